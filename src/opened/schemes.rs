//! Decides for each named tensor whether it is numbers, codes of a quantization, or what belongs to such codes (scales, zero points).
//!
//! The evidence is in the file: dtypes, shapes, and which names are beside each other, in any shard. No configuration is believed.
//! Codes must not be read as numbers; what they mean is decided in `quantized`.

mod names;

use std::collections::HashMap;

use once_cell::race::OnceBox;

use self::names::{Leaf, ancestors};
use super::Opened;
use crate::dtype::{DType, Kind};
use crate::layout::numel;

/// What a tensor is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// Numbers as they are.
    #[default]
    Plain,
    /// The codes of a quantized weight.
    Codes,
    /// What belongs to codes, of which this is the entry: scales, zero points, shapes. `None` for a scale of the whole checkpoint's
    /// scheme, such as that of a cache.
    Companion(Option<u32>),
}

/// The roles of all entries of a checkpoint; empty where all are numbers as they are.
#[derive(Debug)]
pub(super) struct Roles(Vec<Role>);

impl Roles {
    /// Roles in which companions belong to codes of other numbers.
    pub(super) fn renumbered(roles: Vec<Role>, numbers: &HashMap<u32, u32>) -> OnceBox<Roles> {
        let new = |old: u32| numbers.get(&old).copied();
        let role = |role| match role {
            Role::Companion(codes) => Role::Companion(codes.and_then(new)),
            role => role,
        };
        OnceBox::with_value(Box::new(Roles(roles.into_iter().map(role).collect())))
    }
}

impl Opened {
    /// What the tensor of an entry is. The roles of all are found on first use.
    pub(crate) fn role(&self, entry: u32) -> Role {
        let roles = self.roles.get_or_init(|| Box::new(Roles(roles(self))));
        roles.0.get(entry as usize).copied().unwrap_or_default()
    }

    /// The entries of what belongs to codes.
    pub(crate) fn companions(&self, codes: u32) -> impl Iterator<Item = u32> + '_ {
        let entries = 0..self.entries.len() as u32;
        entries.filter(move |&entry| self.role(entry) == Role::Companion(Some(codes)))
    }

    /// Whether what belongs to codes is for activations or a cache, and not for their numbers.
    pub(super) fn is_of_activations(&self, companion: u32, codes: u32) -> bool {
        let leaf = |entry: u32| Leaf::of(&self.entry(entry).name);
        leaf(companion).is_of_activations(&leaf(codes))
    }

    /// Whether it is a scale of activations or of a cache, of no codes.
    pub(super) fn is_of_cache(&self, entry: u32) -> bool {
        let leaf = Leaf::of(&self.entry(entry).name);
        let is_left_over = leaf.is_marker() || leaf.is_of_activations(&Leaf::of(""));
        self.role(entry) == Role::Companion(None) && is_left_over
    }

    fn is_one(&self, entry: u32) -> bool {
        numel(&self.tensor(self.id(self.entry(entry))).layout().shape) == Some(1)
    }

    /// Whether it is one number, and not the grid of scales of one block.
    fn is_number(&self, entry: u32) -> bool {
        self.is_one(entry) && self.tensor(self.id(self.entry(entry))).layout().ndim() < 2
    }

    /// Whether it is blocks of 16 bytes by its name and shape (gpt-oss).
    fn is_blocks(&self, entry: u32, leaf: &Leaf<'_>) -> bool {
        let tensor = self.tensor(self.id(self.entry(entry)));
        leaf.has_blocks() && tensor.dtype() == DType::U8 && tensor.layout().shape.last() == Some(&16)
    }

    fn dtype_of(&self, entry: u32) -> DType {
        self.tensor(self.id(self.entry(entry))).dtype()
    }

    /// Whether dtype and shape are those of codes. Integers of 64 bits are none but as words, nor are lists of integers.
    fn may_be_codes(&self, entry: u32) -> bool {
        let tensor = self.tensor(self.id(self.entry(entry)));
        let dtype = tensor.dtype();
        let is_small = dtype.itemsize() <= 4 || Leaf::of(&self.entry(entry).name).is_words();
        let is_words = dtype.kind() == Kind::Int && is_small && tensor.layout().ndim() >= 2;
        // Those of torch say in the file how they are quantized.
        let is_torch =
            || self.extra(self.id(self.entry(entry))).is_some_and(|extra| extra.quantization.is_some());
        (is_narrow(dtype) || is_words) && !is_torch()
    }
}

/// Whether a dtype has no other use than for codes. `float8_e8m0fnu` has: its numbers are scales.
pub(crate) fn is_narrow(dtype: DType) -> bool {
    match dtype.kind() {
        Kind::Float => dtype.itemsize() == 1 && dtype != DType::F8E8M0Fnu,
        Kind::Packed => true,
        _ => false,
    }
}

/// What is needed of a checkpoint to find the roles.
struct Evidence<'o> {
    opened: &'o Opened,
    leaves: Vec<Leaf<'o>>,
    /// Whether each tensor may be codes.
    candidates: Vec<bool>,
    /// Those that may be codes and are not named as scales, by the name up to its last `_`.
    by_stem: HashMap<&'o str, u32>,
    /// The first of them in each module.
    by_module: HashMap<&'o str, u32>,
    /// The one of them that is the module's weight.
    weights: HashMap<&'o str, u32>,
}

fn roles(opened: &Opened) -> Vec<Role> {
    let Some(evidence) = Evidence::of(opened) else { return Vec::new() };
    let entries = || 0..opened.entries.len() as u32;
    let named: Vec<Option<u32>> = entries().map(|entry| evidence.owner_by_name(entry)).collect();
    let mut has_scale = vec![false; named.len()];
    for (entry, codes) in entries().zip(&named).filter_map(|(entry, &codes)| Some((entry, codes?))) {
        has_scale[codes as usize] |= evidence.leaf(entry).multiplies(evidence.leaf(codes));
    }
    let owner = |entry: u32| named[entry as usize].or_else(|| evidence.owner_by_module(entry, &has_scale));
    let owners: Vec<Option<u32>> = entries().map(owner).collect();
    let mut is_owner = vec![false; owners.len()];
    owners.iter().flatten().for_each(|&owner| is_owner[owner as usize] = true);
    let role = |entry: u32| match owners[entry as usize] {
        Some(owner) => Role::Companion(Some(owner)),
        None if is_owner[entry as usize] || evidence.is_codes(entry) => Role::Codes,
        None => Role::Plain,
    };
    let mut roles: Vec<Role> = entries().map(role).collect();
    if roles.contains(&Role::Codes) {
        for (entry, role) in entries().zip(&mut roles) {
            if *role == Role::Plain && evidence.is_lone_scale(entry) {
                *role = Role::Companion(None);
            }
        }
    }
    roles
}

impl<'o> Evidence<'o> {
    /// `None` where no tensor may be codes.
    fn of(opened: &'o Opened) -> Option<Evidence<'o>> {
        let entries = || (0_u32..).zip(&opened.entries);
        let mut candidates: Vec<bool> = entries().map(|(entry, _)| opened.may_be_codes(entry)).collect();
        // A description of a quantization is proof whatever the dtype.
        for (_, entry) in entries().filter(|(_, entry)| names::states_quantization(&entry.name)) {
            let above = ancestors(&entry.name).filter_map(|name| opened.by_name.get(name));
            above.for_each(|&codes| candidates[codes as usize] = true);
        }
        if !candidates.contains(&true) {
            return None;
        }
        let leaves: Vec<Leaf<'o>> = opened.entries.iter().map(|entry| Leaf::of(&entry.name)).collect();
        let (mut by_stem, mut by_module, mut weights) = (HashMap::new(), HashMap::new(), HashMap::new());
        for (entry, leaf) in (0_u32..).zip(&leaves) {
            if !candidates[entry as usize] || leaf.says_scale {
                continue;
            }
            by_module.entry(leaf.module()).or_insert(entry);
            if let Some(stem) = leaf.without_last_word() {
                by_stem.entry(stem).or_insert(entry);
            }
            if leaf.is_weight() {
                weights.entry(leaf.module()).or_insert(entry);
            }
        }
        Some(Evidence { opened, leaves, candidates, by_stem, by_module, weights })
    }

    fn leaf(&self, entry: u32) -> &Leaf<'o> {
        &self.leaves[entry as usize]
    }

    /// Whether a tensor is codes even with nothing beside it.
    fn is_codes(&self, entry: u32) -> bool {
        let leaf = self.leaf(entry);
        let is_named = || {
            is_narrow(self.opened.dtype_of(entry)) || leaf.has_weight() || self.opened.is_blocks(entry, leaf)
        };
        self.candidates[entry as usize] && !leaf.is_marker() && is_named()
    }

    /// The codes that a tensor belongs to by its name, which begins with theirs.
    fn owner_by_name(&self, entry: u32) -> Option<u32> {
        let leaf = self.leaf(entry);
        let codes_named = |name: &str| {
            let found = self.opened.by_name.get(name).copied();
            found.filter(|&owner| owner != entry && self.candidates[owner as usize])
        };
        // No module has a tensor and a submodule of one name: what is named below a tensor describes it.
        let described = ancestors(&self.opened.entry(entry).name).find_map(codes_named);
        described.or_else(|| if leaf.says_scale { leaf.prefixes().find_map(codes_named) } else { None })
    }

    /// The codes that a tensor belongs to by its module. `has_scale`: the codes that have a scale which is named after them.
    fn owner_by_module(&self, entry: u32, has_scale: &[bool]) -> Option<u32> {
        let leaf = self.leaf(entry);
        let weight = || self.weights.get(leaf.module()).copied().filter(|&owner| owner != entry);
        if !leaf.says_scale {
            // All that a module with a quantized weight has besides belongs to the weight, but not its bias.
            return if self.is_codes(entry) || leaf.has_bias() { None } else { weight() };
        }
        let first = || self.by_module.get(leaf.module()).copied();
        match leaf.stem() {
            Some(stem) => self.by_stem.get(stem).copied().or_else(weight),
            // One number beside integers, or beside a weight that has its scale, may be anything.
            None => {
                let is_free = |&codes: &u32| {
                    has_scale[codes as usize]
                        && !leaf.is_of_activations(self.leaf(codes))
                        && self.opened.is_number(entry)
                };
                weight()
                    .filter(|codes| !is_free(codes))
                    .or_else(|| if self.opened.is_one(entry) { None } else { first() })
            }
        }
    }

    /// Whether it is one number that is named as a scale: that of a cache or of activations, whose module has no weight; or a marker.
    fn is_lone_scale(&self, entry: u32) -> bool {
        if self.leaf(entry).is_marker() {
            return true;
        }
        let is_float = self.opened.dtype_of(entry).kind() == Kind::Float;
        let is_of_weight = self.weights.contains_key(self.leaf(entry).module());
        self.leaf(entry).says_scale && !is_of_weight && is_float && self.opened.is_one(entry)
    }
}

#[cfg(test)]
mod tests;
