//! The data of the page that `rustload view` writes, which is also that of the page for browsers: what a checkpoint holds, in columns,
//! with the tree of names, what a scan found, and statistics.
//!
//! A name is a path in a tree of parts, and every property of tensors is a column in the order of that tree, so that 20,000 tensors
//! take about 300 kB. Texts from the file are printable and clipped; numbers that JavaScript cannot represent are texts.
#![forbid(unsafe_code)]

pub(crate) mod numbers;
pub(crate) mod scanned;
pub(crate) mod tree;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;

use serde_json::{Value as Json, json};

use self::numbers::rows;
use self::scanned::scanned;
use self::tree::Leaf;
use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::tensor::{Request, Tensor};
use crate::text::{into_printable, shortened};

/// The version of the data; the page that reads it is in the same file.
const SCHEMA: u32 = 1;

/// The most bytes of a part of a name, and of another text, such as a value of the metadata.
const LABEL_MAX_BYTES: usize = 400;
const TEXT_MAX_BYTES: usize = 2000;

/// The most items of a list; the page says how many are left out.
const ITEMS_MAX: usize = 2000;

/// The largest integer up to which JavaScript's numbers are exact.
const EXACT_MAX: i128 = 1 << 53;

/// The flags of a tensor: a parameter; tied; of an earlier name; its strides are not those of C order.
const PARAMETER: i128 = 1;
const TIED: i128 = 2;
const REPEATS: i128 = 4;
const STRIDED: i128 = 8;

/// Which statistics of tensors the page has.
pub(crate) struct Read {
    /// The conversion.
    pub(crate) request: Request,
    /// Whether to read a sample of each tensor, instead of all.
    pub(crate) is_sample: bool,
}

/// The data, and the tensors in its order.
pub(crate) fn document(
    checkpoint: &Checkpoint,
    report: Option<&Json>,
    read: Option<&Read>,
) -> Result<(Json, Vec<Tensor>)> {
    let tensors: Vec<Tensor> =
        (0..checkpoint.len()).filter_map(|position| checkpoint.tensor_at(position)).collect();
    let tied = checkpoint.tied();
    let tied_names: HashSet<&str> = tied.iter().flatten().map(AsRef::as_ref).collect();
    let is_tied = |tensor: &Tensor| tied_names.contains(tensor.name());
    let sums = Sums::of(&tensors);

    let (mut leaves, mut leaf_of) = (Numbered::default(), Vec::with_capacity(tensors.len()));
    for tensor in &tensors {
        leaf_of.push(leaves.number((tensor.dtype(), tensor.shape(), tensor.nbytes(), is_tied(tensor))));
    }
    let named = tensors.iter().map(Tensor::name).zip(leaf_of.iter().copied());
    let names = tree::columns(named.map(|(name, kind)| Leaf { name, kind }));

    let (mut dtypes, mut kinds, mut kind) = (Numbered::default(), Numbered::default(), Vec::new());
    let in_order: Vec<&Tensor> = names.in_order.iter().map(|&at| &tensors[at]).collect();
    let flags = names.in_order.iter().map(|&at| {
        let tensor = &tensors[at];
        let flag = |bit: i128, is_set: bool| if is_set { bit } else { 0 };
        flag(PARAMETER, tensor.is_parameter())
            + flag(TIED, is_tied(tensor))
            + flag(REPEATS, sums.repeats[at])
            + flag(STRIDED, !tensor.layout().is_contiguous())
    });
    let flags = runs(flags);
    for tensor in &in_order {
        let layout = tensor.layout();
        let strides = (!layout.is_contiguous()).then_some(&layout.strides[..]);
        let dtype = dtypes.number(tensor.dtype().name());
        kind.push(kinds.number((dtype, tensor.shape(), strides, tensor.nbytes())));
    }
    let list = |numbers: &[u64]| -> Json { numbers.iter().map(|&one| number(one.into())).collect() };
    let kinds: Json = kinds
        .all
        .iter()
        .map(|(dtype, shape, strides, nbytes)| {
            json!([dtype, list(shape), strides.map(list), number((*nbytes).into())])
        })
        .collect();
    let position: HashMap<&str, usize> =
        in_order.iter().enumerate().map(|(at, tensor)| (tensor.name(), at)).collect();
    let groups: Json = tied
        .iter()
        .map(|group| -> Json { group.iter().filter_map(|name| position.get(&**name)).copied().collect() })
        .collect();
    let opaque = checkpoint.opaque().into_iter().map(|one| {
        let at: Vec<String> = one.at.iter().map(|at| text(at)).collect();
        json!([text(&one.class), one.count, at])
    });
    let metadata: BTreeMap<&String, &String> =
        checkpoint.metadata().iter().map(|(key, value)| (key, value)).collect();
    let stats = match read {
        None => Json::Null,
        Some(read) => rows(&in_order, read)?,
    };
    let made = json!({
        "schema": SCHEMA,
        "rustload": env!("CARGO_PKG_VERSION"),
        "format": checkpoint.format().name(),
        "elements": number(sums.elements),
        "nbytes": number(sums.nbytes),
        "storage_nbytes": number(checkpoint.nbytes().into()),
        "dtypes": sums.dtypes,
        "labels": names.labels.iter().map(|label| shown(label, LABEL_MAX_BYTES)).collect::<Json>(),
        "roots": names.roots,
        "nodes": names.nodes,
        "folds": names.folds,
        "fold": runs(names.fold.iter().map(|&fold| fold.into())),
        "dtype_names": dtypes.all,
        "kinds": kinds,
        "kind": kind,
        "file": runs(in_order.iter().map(|tensor| tensor.storage().0.into())),
        "storage": runs(in_order.iter().map(|tensor| tensor.storage().1.into())),
        "offset": runs(in_order.iter().map(|tensor| tensor.layout().offset.into())),
        "flags": flags,
        "tied": groups,
        "opaque": items(opaque),
        "globals": items(checkpoint.globals()?.iter().map(|name| text(name).into())),
        "metadata": items(metadata.iter().map(|(key, value)| json!([text(key), text(value)]))),
        "notes": items(checkpoint.notes().iter().map(|note| text(note).into())),
        "scan": report.map(scanned),
        "stats": stats,
    });
    Ok((made, names.in_order.iter().map(|&at| tensors[at].clone()).collect()))
}

/// Sums over tensors of which names of one and the same tensor count once.
struct Sums {
    /// Of each tensor: whether an earlier name refers to the same one.
    repeats: Vec<bool>,
    elements: i128,
    nbytes: i128,
    /// By dtype, the largest first.
    dtypes: Vec<Json>,
}

impl Sums {
    fn of(tensors: &[Tensor]) -> Sums {
        let mut seen = HashSet::new();
        let (mut repeats, mut elements, mut nbytes) = (Vec::with_capacity(tensors.len()), 0_i128, 0_i128);
        let (mut names, mut dtypes) = (Numbered::default(), Vec::<(u64, u64)>::new());
        for tensor in tensors {
            let layout = tensor.layout();
            let is_new = seen.insert((
                tensor.storage(),
                tensor.dtype(),
                &layout.shape,
                &layout.strides,
                layout.offset,
            )) || layout.numel() == 0;
            repeats.push(!is_new);
            if is_new {
                elements += i128::from(layout.numel());
                nbytes += i128::from(tensor.nbytes());
                let number = names.number(tensor.dtype().name());
                dtypes.resize(names.all.len(), (0, 0));
                dtypes[number].0 += 1;
                dtypes[number].1 = dtypes[number].1.saturating_add(tensor.nbytes());
            }
        }
        let mut by_dtype: Vec<(&str, (u64, u64))> = names.all.into_iter().zip(dtypes).collect();
        by_dtype.sort_by_key(|&(_, (_, nbytes))| std::cmp::Reverse(nbytes));
        let sum = |(dtype, (tensors, nbytes))| json!({"dtype": dtype, "tensors": tensors, "nbytes": nbytes});
        Sums { repeats, elements, nbytes, dtypes: by_dtype.into_iter().map(sum).collect() }
    }
}

/// Different values, numbered in the order in which they were met first.
struct Numbered<T> {
    all: Vec<T>,
    numbers: HashMap<T, usize>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered { all: Vec::new(), numbers: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    fn number(&mut self, value: T) -> usize {
        if let Some(&number) = self.numbers.get(&value) {
            return number;
        }
        let number = self.all.len();
        self.all.push(value.clone());
        self.numbers.insert(value, number);
        number
    }
}

/// The differences of neighbours, in runs: difference, length, difference, length, ...
fn runs(numbers: impl Iterator<Item = i128>) -> Json {
    let mut found: Vec<(i128, u64)> = Vec::new();
    let mut before = 0;
    for one in numbers {
        let difference = one - before;
        before = one;
        match found.last_mut() {
            Some((last, length)) if *last == difference => *length += 1,
            _ => found.push((difference, 1)),
        }
    }
    found.into_iter().flat_map(|(difference, length)| [number(difference), length.into()]).collect()
}

/// The number; as text where JavaScript would round it.
fn number(number: i128) -> Json {
    match i64::try_from(number) {
        Ok(small) if number.abs() <= EXACT_MAX => small.into(),
        _ => number.to_string().into(),
    }
}

/// A text from a file: printable, without its middle if it is long.
fn text(text: &str) -> String {
    shown(text, TEXT_MAX_BYTES)
}

fn shown(text: &str, max_bytes: usize) -> String {
    into_printable(shortened(text, max_bytes).into_owned())
}

/// A list for the page, cut, with the number of all its items.
fn items(all: impl Iterator<Item = Json>) -> Json {
    let (mut kept, mut count) = (Vec::new(), 0_u64);
    for item in all {
        if kept.len() < ITEMS_MAX {
            kept.push(item);
        }
        count += 1;
    }
    json!({"count": count, "items": kept})
}
