//! The tree of names, split at dots, with what folds: siblings that are whole numbers and have equal subtrees. `layers.0`, `layers.1` and
//! so on fold to `layers.{0..1}`; `conv1` and `conv2` are two names.
//!
//! In columns for the page, in rows for what is printed. No recursion. The levels of a name are bounded; the rest of a longer name is one
//! label.

use std::collections::HashMap;

use super::Numbered;

/// The most levels of a name.
const LEVELS_MAX: usize = 64;

/// The most digits of a part that is a number.
const DIGITS_MAX: usize = 18;

/// The most runs of numbers that a label spells.
const RUNS_MAX: usize = 6;

/// A tensor: equal ones have the same kind.
#[derive(Clone, Copy)]
pub(crate) struct Leaf<'t> {
    pub(crate) name: &'t str,
    pub(crate) kind: usize,
}

/// The tree, parents before their children.
#[derive(Default)]
pub(super) struct Columns<'t> {
    /// The positions of the tensors, in the order of the tree.
    pub(super) in_order: Vec<usize>,
    pub(super) labels: Vec<&'t str>,
    /// The number of nodes below the root.
    pub(super) roots: usize,
    /// Of each node two numbers: its label; and twice the number of its children, and one more if it is a tensor.
    pub(super) nodes: Vec<usize>,
    pub(super) folds: Vec<String>,
    /// Of each node: 0, or the number of the label that it folds to, from 1.
    pub(super) fold: Vec<u32>,
}

#[derive(Default)]
struct Node<'t> {
    label: &'t str,
    /// Position and kind of the tensor that has exactly this name.
    leaf: Option<(usize, usize)>,
    children: Vec<usize>,
    /// A number that equal subtrees share.
    signature: usize,
}

/// The tree of tensors, in the order to show.
pub(super) fn columns<'t>(tensors: impl Iterator<Item = Leaf<'t>>) -> Columns<'t> {
    let mut nodes = built(tensors);
    sign(&mut nodes);
    let (mut labels, mut folds) = (Numbered::default(), Numbered::default());
    let mut made = Columns { roots: nodes[0].children.len(), ..Columns::default() };
    let mut pending = with_folds(&nodes, 0, &mut folds);
    while let Some((at, fold)) = pending.pop() {
        let node = &nodes[at];
        made.nodes.push(labels.number(node.label));
        made.nodes.push(node.children.len() * 2 + usize::from(node.leaf.is_some()));
        made.fold.push(fold);
        made.in_order.extend(node.leaf.map(|(position, _)| position));
        pending.extend(with_folds(&nodes, at, &mut folds));
    }
    Columns { labels: labels.all, folds: folds.all, ..made }
}

/// Of one or several tensors: their number, their bytes where a tensor with several names counts once, and where each name counts.
#[cfg(feature = "python")]
pub(crate) type Sums = [u128; 3];

/// A row of the tree as it is printed: equal subtrees are folded into one, and single branches joined.
#[cfg(feature = "python")]
pub(crate) struct Row {
    /// The part of a name, or several joined with dots, or the fold of several: `layers.{0..31}`.
    pub(crate) label: String,
    pub(crate) level: usize,
    /// The number of equal subtrees that are folded into it.
    pub(crate) times: usize,
    /// The position of the tensor that has exactly this name.
    pub(crate) leaf: Option<usize>,
    /// Those of all folded subtrees.
    pub(crate) sums: Sums,
}

/// The rows of the tree of tensors, the root first and parents before their children, in the order to show.
#[cfg(feature = "python")]
pub(crate) fn rows(tensors: &[(Leaf<'_>, Sums)]) -> Vec<Row> {
    let mut nodes = built(tensors.iter().map(|&(leaf, _)| leaf));
    sign(&mut nodes);
    let mut sums: Vec<Sums> = vec![[0; 3]; nodes.len()];
    for at in (0..nodes.len()).rev() {
        let own = nodes[at].leaf.map(|(position, _)| tensors[position].1);
        sums[at] = total(own.into_iter().chain(nodes[at].children.iter().map(|&child| sums[child])));
    }
    let mut rows = Vec::new();
    let root = Row { label: String::new(), level: 0, times: 1, leaf: None, sums: sums[0] };
    let mut pending = vec![(0, root)];
    while let Some((mut at, mut row)) = pending.pop() {
        let mut inner = folded(&nodes, &sums, at, row.level + 1);
        while row.level > 0 && nodes[at].leaf.is_none() && inner.len() == 1 {
            let Some((only, joined)) = inner.pop() else { break };
            row.label = format!("{}.{}", row.label, joined.label);
            row.times *= joined.times;
            at = only;
            inner = folded(&nodes, &sums, at, row.level + 1);
        }
        row.leaf = nodes[at].leaf.map(|(position, _)| position);
        rows.push(row);
        pending.extend(inner.into_iter().rev());
    }
    rows
}

/// The children of a node, each with its row: of a fold the node of the smallest number, in the place of the first.
#[cfg(feature = "python")]
fn folded(nodes: &[Node<'_>], sums: &[Sums], parent: usize, level: usize) -> Vec<(usize, Row)> {
    let mut folds: Vec<Option<_>> = fold_groups(nodes, parent).into_iter().map(Some).collect();
    let mut fold_of = HashMap::new();
    for (fold, (_, members)) in folds.iter().flatten().enumerate() {
        fold_of.extend(members.iter().map(|&child| (child, fold)));
    }
    let shown = nodes[parent].children.iter().filter_map(|&child| match fold_of.get(&child) {
        None => Some((nodes[child].label.to_owned(), vec![child])),
        Some(&fold) => folds[fold].take(),
    });
    let row = |(label, members): (String, Vec<usize>)| {
        let sums = total(members.iter().map(|&member| sums[member]));
        (members[0], Row { label, level, times: members.len(), leaf: None, sums })
    };
    shown.map(row).collect()
}

#[cfg(feature = "python")]
fn total(all: impl Iterator<Item = Sums>) -> Sums {
    all.fold([0; 3], |sum, one| std::array::from_fn(|at| sum[at] + one[at]))
}

/// The nodes, the root first and parents before their children.
fn built<'t>(tensors: impl Iterator<Item = Leaf<'t>>) -> Vec<Node<'t>> {
    let mut nodes = vec![Node::default()];
    let mut named: HashMap<(usize, &str), usize> = HashMap::new();
    for (position, leaf) in tensors.enumerate() {
        let mut at = 0;
        for part in parts(leaf.name) {
            let next = *named.entry((at, part)).or_insert(nodes.len());
            if next == nodes.len() {
                nodes.push(Node { label: part, ..Node::default() });
                nodes[at].children.push(next);
            }
            at = next;
        }
        nodes[at].leaf = Some((position, leaf.kind));
    }
    nodes
}

/// The parts of a name between dots; dots inside brackets, as in `a["x.y"]`, do not count.
fn parts(name: &str) -> Vec<&str> {
    let count = |bracket| name.bytes().filter(|&byte| byte == bracket).count();
    let has_brackets = count(b'[') > 0 && count(b'[') == count(b']');
    let (mut parts, mut start, mut depth) = (Vec::new(), 0, 0_i64);
    for (at, byte) in name.bytes().enumerate() {
        match byte {
            b'[' if has_brackets => depth += 1,
            b']' if has_brackets => depth -= 1,
            b'.' if depth <= 0 && parts.len() < LEVELS_MAX => {
                parts.push(&name[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&name[start..]);
    parts
}

/// Gives equal subtrees the same signature. Order is ignored, because a layer that is split over shards has its tensors in another one.
fn sign(nodes: &mut [Node<'_>]) {
    let mut signatures = Numbered::default();
    for at in (0..nodes.len()).rev() {
        let node = &nodes[at];
        let mut inside: Vec<(&str, usize)> =
            node.children.iter().map(|&child| (nodes[child].label, nodes[child].signature)).collect();
        inside.sort_unstable();
        nodes[at].signature = signatures.number((inside, node.leaf.map(|(_, kind)| kind)));
    }
}

/// The children of a node from the last to the first, with their folds.
fn with_folds(nodes: &[Node<'_>], parent: usize, folds: &mut Numbered<String>) -> Vec<(usize, u32)> {
    let mut fold_of = HashMap::new();
    for (label, members) in fold_groups(nodes, parent) {
        let fold = u32::try_from(folds.number(label) + 1).unwrap_or(0);
        fold_of.extend(members.into_iter().map(|child| (child, fold)));
    }
    let children = nodes[parent].children.iter().rev();
    children.map(|&child| (child, fold_of.get(&child).copied().unwrap_or(0))).collect()
}

/// The children of a node that fold: the label of each fold, and its nodes, sorted by number.
fn fold_groups(nodes: &[Node<'_>], parent: usize) -> Vec<(String, Vec<usize>)> {
    let (mut alike, mut groups) = (Numbered::default(), Vec::<Vec<(u64, usize)>>::new());
    for &child in &nodes[parent].children {
        if let Some((number, digits)) = whole_number(nodes[child].label) {
            let group = alike.number((digits, nodes[child].signature));
            groups.resize(alike.all.len(), Vec::new());
            groups[group].push((number, child));
        }
    }
    let folds = alike.all.iter().zip(groups).filter(|(_, members)| members.len() > 1);
    let folds = folds.map(|(&(digits, _), mut members)| {
        members.sort_unstable();
        let (numbers, members): (Vec<u64>, Vec<usize>) = members.into_iter().unzip();
        (format!("{{{}}}", spelled(&numbers, digits)), members)
    });
    folds.collect()
}

/// The number that a label is, and its digits if it begins with zeros, else 0; `None` if it is not a whole number.
fn whole_number(label: &str) -> Option<(u64, usize)> {
    let is_number = label.len() <= DIGITS_MAX && label.bytes().all(|byte| byte.is_ascii_digit());
    let number = label.parse().ok().filter(|_| is_number)?;
    Some((number, if label.starts_with('0') && label.len() > 1 { label.len() } else { 0 }))
}

/// Abbreviates sorted numbers: `0..31`, `0..30 step 2`, `0..2, 5, 7..9`. `digits` is the number of digits to which zeros fill them.
pub(crate) fn spelled(numbers: &[u64], digits: usize) -> String {
    let text = |number: u64| format!("{number:0digits$}");
    let &[first, second, .., last] = numbers else {
        return numbers.iter().map(|&number| text(number)).collect::<Vec<_>>().join(", ");
    };
    let step = second - first;
    if step > 0 && numbers.windows(2).all(|pair| pair[1] - pair[0] == step) {
        let step = if step == 1 { String::new() } else { format!(" step {step}") };
        return format!("{}..{}{step}", text(first), text(last));
    }
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, end)) if *end + 1 == number => *end = number,
            _ => runs.push((number, number)),
        }
    }
    let mut spelled: Vec<String> = Vec::new();
    for (from, to) in runs {
        match to - from {
            0 => spelled.push(text(from)),
            1 => spelled.push(format!("{}, {}", text(from), text(to))),
            _ => spelled.push(format!("{}..{}", text(from), text(to))),
        }
    }
    if spelled.len() > RUNS_MAX {
        let end = spelled.len() - 1;
        spelled.splice(RUNS_MAX - 2..end, ["..".to_owned()]);
    }
    spelled.join(", ")
}
