//! Names tensors by their path from the root: keys joined with dots, or in brackets where two names would collide.
//!
//! The traversal is iterative, with an explicit stack of bounded depth. A file may share one subtree so often that the number of
//! paths is exponential. Where a traversal meets more children than its budget, it starts again and enters only values that
//! contain a tensor, so that every step leads to a name, and names are bounded.

mod spelling;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use self::spelling::{NameBuffer, bracketed, dotted};
use crate::error::{Error, Result};
use crate::index::model::{Entry, OpaqueClass, Path, PathStep};
use crate::index::pickled::meanings::Meaning;
use crate::index::pickled::tree::{Child, Naming, View};
use crate::limits::Limits;
use crate::num::to_usize;
use crate::parallel::Cancel;
use crate::pickle::{GlobalId, Handle, Value};

/// The number of steps between two checks for cancellation.
const CANCEL_CHECK_INTERVAL_STEPS: u32 = 1 << 12;

/// The result of a traversal of the tree.
#[derive(Default)]
pub(crate) struct TraversalResult {
    pub(crate) entries: Vec<Entry>,
    pub(crate) opaque: Vec<OpaqueClass>,
    /// Storages that are values of the tree themselves and have no tensor yet.
    pub(crate) bare: Vec<Handle>,
}

/// Names every tensor that is reachable from `root`. Fails with `Limit` where there are too many values or names.
pub(crate) fn find(
    view: View<'_>,
    root: Handle,
    limits: &Limits,
    cancel: &Cancel,
) -> Result<TraversalResult> {
    let budget = view.values.len().saturating_mul(4).saturating_add(1024);
    let mut walk = Walk::new(view, limits, u64::try_from(budget).unwrap_or(u64::MAX), None);
    if !walk.run(root, cancel)? {
        let contains_tensor = values_with_tensor(view);
        walk = Walk::new(view, limits, limits.export_nodes, Some(contains_tensor));
        if !walk.run(root, cancel)? {
            let limit = limits.export_nodes;
            return Err(Error::limit("export_nodes", limit, limit.saturating_add(1)));
        }
    }
    walk.resolve_collisions()?;
    walk.count_opaque()?;
    Ok(walk.found)
}

struct Walk<'a> {
    view: View<'a>,
    limits: &'a Limits,
    /// The number of children that the traversal may still list.
    budget: u64,
    /// Which values contain a tensor; `None` where every value is entered.
    contains_tensor: Option<Vec<bool>>,
    /// Which values were reached where tensors have no names. A second path to such a value adds nothing.
    unnamed: Vec<bool>,
    found: TraversalResult,
    /// The index of each unknown class in `found.opaque`.
    classes: HashMap<Option<GlobalId>, usize>,
    /// Bytes of names, paths and class names so far.
    bytes: u64,
    /// The maximum of `bytes`.
    max_bytes: u64,
    /// The buffer of the name under construction.
    scratch: NameBuffer,
}

/// How the traversal continues at a value.
enum Visit {
    /// It has no children.
    Leaf,
    /// It has children.
    Inside(Frame),
    /// It has more children than the budget allows.
    OverBudget,
}

/// A value on the stack, and its children that are still to be visited.
struct Frame {
    handle: Handle,
    children: std::vec::IntoIter<Child>,
}

impl<'a> Walk<'a> {
    fn new(view: View<'a>, limits: &'a Limits, budget: u64, contains_tensor: Option<Vec<bool>>) -> Walk<'a> {
        let (found, classes) = (TraversalResult::default(), HashMap::new());
        let max_bytes = max_name_bytes(limits, view.values.data().len());
        let unnamed = vec![false; view.values.len()];
        let scratch = NameBuffer::default();
        Walk { view, limits, budget, contains_tensor, unnamed, found, classes, bytes: 0, max_bytes, scratch }
    }

    /// Traverses the tree; returns false where it is over budget.
    fn run(&mut self, root: Handle, cancel: &Cancel) -> Result<bool> {
        let mut steps = 0_u32;
        let mut path: Vec<PathStep> = Vec::new();
        // By value, whether it is on the stack.
        let mut on_stack = vec![false; self.view.values.len()];
        let mut mark_on_stack = |handle: Handle, is_inside| {
            on_stack.get_mut(handle.index()).is_some_and(|entry| std::mem::replace(entry, is_inside))
        };
        let mut frames: Vec<Frame> = Vec::new();
        match self.enter(root, Naming::All, &path)? {
            Visit::Leaf => {}
            Visit::OverBudget => return Ok(false),
            Visit::Inside(frame) => {
                mark_on_stack(root, true);
                frames.push(frame);
            }
        }
        while let Some(frame) = frames.last_mut() {
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(CANCEL_CHECK_INTERVAL_STEPS) {
                cancel.check()?;
            }
            let Some(Child { step, value: child, naming }) = frame.children.next() else {
                mark_on_stack(frame.handle, false);
                frames.pop();
                path.pop();
                continue;
            };
            if !self.may_contain_tensor(child) || mark_on_stack(child, true) {
                continue;
            }
            if naming == Naming::None && self.mark_unnamed(child) {
                mark_on_stack(child, false);
                continue;
            }
            path.push(step);
            match self.enter(child, naming, &path)? {
                Visit::Leaf => {
                    mark_on_stack(child, false);
                    path.pop();
                }
                Visit::OverBudget => return Ok(false),
                Visit::Inside(frame) => {
                    if u64::try_from(path.len()).unwrap_or(u64::MAX) > self.limits.depth {
                        if self.contains_tensor.is_none() {
                            return Ok(false);
                        }
                        let limit = self.limits.depth;
                        return Err(Error::limit("depth", limit, limit.saturating_add(1)));
                    }
                    frames.push(frame);
                }
            }
        }
        Ok(true)
    }

    fn may_contain_tensor(&self, handle: Handle) -> bool {
        self.contains_tensor
            .as_ref()
            .is_none_or(|contains| contains.get(handle.index()).copied().unwrap_or(false))
    }

    /// Marks a value as reached where tensors have no names; returns whether it was marked before.
    fn mark_unnamed(&mut self, handle: Handle) -> bool {
        self.unnamed.get_mut(handle.index()).is_some_and(|mark| std::mem::replace(mark, true))
    }

    /// Names a tensor, records an opaque value, and returns the frame of a value with children.
    fn enter(&mut self, handle: Handle, naming: Naming, path: &[PathStep]) -> Result<Visit> {
        match self.view.values.get(handle) {
            Value::Call(id) => match self.view.meanings.calls.get(id.index()) {
                Some(&Meaning::Tensor(tensor)) => {
                    self.name(tensor, naming, path)?;
                    if self.view.extra(tensor).is_none() {
                        return Ok(Visit::Leaf);
                    }
                }
                Some(&Meaning::Storage(tensor)) => {
                    self.name(tensor, naming, path)?;
                    return Ok(Visit::Leaf);
                }
                Some(Meaning::Opaque) => {
                    self.record_opaque(self.view.class_id(&self.view.values.call(id)), path)?
                }
                _ => {}
            },
            Value::PersistentId(pid) => {
                match self.view.meanings.tensor_of(pid) {
                    Some(tensor) => self.name(tensor, naming, path)?,
                    None if self.view.module(pid).is_some() => {}
                    None => self.found.bare.push(pid),
                }
                return Ok(Visit::Leaf);
            }
            Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Set(_) | Value::FrozenSet(_) => {}
            _ => return Ok(Visit::Leaf),
        }
        let mut children = self.view.children(handle)?;
        self.propagate_naming(handle, naming, &mut children);
        if children.is_empty() {
            return Ok(Visit::Leaf);
        }
        match self.budget.checked_sub(self.view.weight(handle)) {
            Some(left) => self.budget = left,
            None => return Ok(Visit::OverBudget),
        }
        Ok(Visit::Inside(Frame { handle, children: children.into_iter() }))
    }

    /// Sets [`Naming::None`] on the children whose tensors have no names, by the position of their parent in the tree.
    fn propagate_naming(&self, handle: Handle, naming: Naming, children: &mut [Child]) {
        let is_named = |child: &Child| match naming {
            Naming::All => true,
            Naming::Entry => match self.view.values.get(handle) {
                Value::Call(id) => match self.view.meaning(id) {
                    Meaning::Tensor(_) => false,
                    Meaning::Sparse(_) => matches!(child.step, PathStep::Component(_)),
                    _ => true,
                },
                _ => true,
            },
            Naming::None => false,
        };
        for child in children.iter_mut().filter(|child| !is_named(child)) {
            child.naming = Naming::None;
        }
    }

    /// Adds an entry for a tensor.
    fn name(&mut self, tensor: u32, naming: Naming, path: &[PathStep]) -> Result<()> {
        if naming == Naming::None {
            return Ok(());
        }
        let count = u64::try_from(self.found.entries.len()).unwrap_or(u64::MAX).saturating_add(1);
        Limits::check("tensors", self.limits.tensors, count)?;
        let name = if path.is_empty() { "tensor".into() } else { self.text(path, dotted)? };
        self.charge(size_of_val(path))?;
        self.found.entries.push(Entry { name, path: Path::Steps(path.into()), tensor });
        Ok(())
    }

    /// Adds an opaque value to those of its class.
    fn record_opaque(&mut self, class: Option<GlobalId>, path: &[PathStep]) -> Result<()> {
        let position = self.class_position(class)?;
        if self.found.opaque.get(position).is_some_and(|class| class.at.len() < OpaqueClass::PATHS_MAX) {
            let path = self.text(path, dotted)?;
            self.found.opaque.get_mut(position).into_iter().for_each(|class| class.at.push(path.to_string()));
        }
        Ok(())
    }

    /// The index of a class in `found.opaque`, to which it is added if it is new.
    fn class_position(&mut self, class: Option<GlobalId>) -> Result<usize> {
        if let Some(&position) = self.classes.get(&class) {
            return Ok(position);
        }
        let name = self.view.class_name(class);
        self.charge(name.len())?;
        let position = self.found.opaque.len();
        self.found.opaque.push(OpaqueClass { class: name, count: 0, at: Vec::new() });
        self.classes.insert(class, position);
        Ok(position)
    }

    /// Formats a path. Its length counts towards the limit on names.
    fn text(
        &mut self,
        path: &[PathStep],
        write: fn(View<'_>, &[PathStep], &mut NameBuffer) -> fmt::Result,
    ) -> Result<Arc<str>> {
        let left = self.max_bytes.saturating_sub(self.bytes);
        self.scratch.max_len = to_usize(left);
        self.scratch.text.clear();
        match write(self.view, path, &mut self.scratch) {
            Ok(()) => self.charge(self.scratch.text.len())?,
            Err(fmt::Error) => self.charge(self.scratch.max_len.saturating_add(1))?,
        }
        Ok(self.scratch.text.as_str().into())
    }

    /// Adds to the bytes of names. Fails with `Limit` where they exceed the maximum.
    fn charge(&mut self, bytes: usize) -> Result<()> {
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        Limits::check("name_bytes_total", self.max_bytes, self.bytes)
    }

    /// Counts the values of each opaque class in the whole file, reachable or not.
    fn count_opaque(&mut self) -> Result<()> {
        let reached = self.found.opaque.len();
        for (id, _) in self.view.values.calls() {
            if self.view.meanings.calls.get(id.index()) != Some(&Meaning::Opaque) {
                continue;
            }
            let position = self.class_position(self.view.class_id(&self.view.values.call(id)))?;
            if let Some(class) = self.found.opaque.get_mut(position) {
                class.count = class.count.saturating_add(1);
            }
        }
        if let Some(unseen) = self.found.opaque.get_mut(reached..) {
            unseen.sort_by(|one, two| one.class.cmp(&two.class));
        }
        Ok(())
    }

    /// Writes duplicate names with brackets; names that still collide get a number.
    fn resolve_collisions(&mut self) -> Result<()> {
        let mut duplicates = duplicate_names(&self.found.entries);
        if duplicates.is_empty() {
            return Ok(());
        }
        for &index in &duplicates {
            let Some(entry) = self.found.entries.get(index) else { continue };
            let Path::Steps(steps) = entry.path.clone() else { continue };
            let name = self.text(&steps, bracketed)?;
            self.found.entries.get_mut(index).into_iter().for_each(|entry| entry.name = name.clone());
        }
        duplicates = duplicate_names(&self.found.entries);
        if duplicates.is_empty() {
            return Ok(());
        }
        let mut taken: HashSet<Arc<str>> =
            self.found.entries.iter().map(|entry| entry.name.clone()).collect();
        let mut numbers: HashMap<Arc<str>, u32> = HashMap::new();
        for index in duplicates {
            let Some(entry) = self.found.entries.get_mut(index) else { continue };
            // The first entry keeps the name. Each number is tried once per name.
            let Some(number) = numbers.get_mut(&entry.name) else {
                numbers.insert(entry.name.clone(), 1);
                continue;
            };
            let free_name = loop {
                *number = number.saturating_add(1);
                let name: Arc<str> = format!("{}#{number}", entry.name).into();
                if taken.insert(name.clone()) {
                    break name;
                }
            };
            let bytes = free_name.len();
            entry.name = free_name;
            self.charge(bytes)?;
        }
        Ok(())
    }
}

/// The maximum bytes of names. A short pickle can share keys and subtrees so that it has exponentially many names; so the maximum
/// is an eighth of the limit, plus 16 bytes for each byte of the pickle, and at most the limit.
fn max_name_bytes(limits: &Limits, pickle: usize) -> u64 {
    let pickle_share = u64::try_from(pickle).unwrap_or(u64::MAX).saturating_mul(16);
    pickle_share.saturating_add(limits.name_bytes_total >> 3).min(limits.name_bytes_total)
}

/// The indices of entries whose names are not unique.
fn duplicate_names(entries: &[Entry]) -> Vec<usize> {
    let mut counts: HashMap<&str, u32> = HashMap::with_capacity(entries.len());
    for entry in entries {
        let count = counts.entry(&entry.name).or_default();
        *count = count.saturating_add(1);
    }
    if counts.len() == entries.len() {
        return Vec::new();
    }
    let is_duplicate = |entry: &Entry| counts.get(&*entry.name).is_some_and(|&count| count > 1);
    entries.iter().enumerate().filter(|(_, entry)| is_duplicate(entry)).map(|(at, _)| at).collect()
}

/// For every value, whether a tensor is reachable from it: a search from the tensors along reversed edges.
fn values_with_tensor(view: View<'_>) -> Vec<bool> {
    let mut contains_tensor = vec![false; view.values.len()];
    let mut pending: Vec<Handle> = Vec::new();
    // Each child with one of its parents.
    let mut edges: Vec<(Handle, Handle)> = Vec::new();
    for handle in view.values.handles() {
        match view.is_tensor(handle) {
            true => pending.push(handle),
            false => view.for_each_referenced(handle, |child| edges.push((child, handle))),
        }
    }
    edges.sort_unstable();
    while let Some(handle) = pending.pop() {
        if let Some(mark @ false) = contains_tensor.get_mut(handle.index()) {
            *mark = true;
            let first = edges.partition_point(|&(child, _)| child < handle);
            let parents = edges.iter().skip(first).take_while(|&&(child, _)| child == handle);
            pending.extend(parents.map(|&(_, parent)| parent));
        }
    }
    contains_tensor
}
