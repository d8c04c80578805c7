//! The tree of names, split at dots, in columns, with what folds: siblings that are whole numbers and have equal subtrees.
//!
//! `python/rustload/_common/tree.py` has the same rules for what is printed; a test compares them. No recursion. The levels of a name are
//! bounded; the rest of a longer name is one label.

use std::collections::HashMap;

use super::Numbered;

/// The most levels of a name.
const LEVELS_MAX: usize = 64;

/// The most digits of a part that is a number.
const DIGITS_MAX: usize = 18;

/// The most runs of numbers that a label spells.
const RUNS_MAX: usize = 6;

/// A tensor: equal ones have the same kind.
pub(super) struct Leaf<'t> {
    pub(super) name: &'t str,
    pub(super) kind: usize,
}

/// The tree, parents before their children.
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
    let mut made = Columns {
        in_order: Vec::new(),
        labels: Vec::new(),
        roots: nodes[0].children.len(),
        nodes: Vec::new(),
        folds: Vec::new(),
        fold: Vec::new(),
    };
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
    let children = &nodes[parent].children;
    let (mut alike, mut groups) = (Numbered::default(), Vec::<Vec<(u64, usize)>>::new());
    for &child in children {
        if let Some((number, digits)) = whole_number(nodes[child].label) {
            let group = alike.number((digits, nodes[child].signature));
            groups.resize(alike.all.len(), Vec::new());
            groups[group].push((number, child));
        }
    }
    let mut fold_of = HashMap::new();
    for (&(digits, _), members) in alike.all.iter().zip(&mut groups).filter(|(_, members)| members.len() > 1)
    {
        members.sort_unstable();
        let numbers: Vec<u64> = members.iter().map(|&(number, _)| number).collect();
        let fold = folds.number(format!("{{{}}}", spelled(&numbers, digits)));
        let fold = u32::try_from(fold + 1).unwrap_or(0);
        fold_of.extend(members.iter().map(|&(_, child)| (child, fold)));
    }
    children.iter().rev().map(|&child| (child, fold_of.get(&child).copied().unwrap_or(0))).collect()
}

/// The number that a label is, and its digits if it begins with zeros, else 0; `None` if it is not a whole number.
fn whole_number(label: &str) -> Option<(u64, usize)> {
    let is_number = label.len() <= DIGITS_MAX && label.bytes().all(|byte| byte.is_ascii_digit());
    let number = label.parse().ok().filter(|_| is_number)?;
    Some((number, if label.starts_with('0') && label.len() > 1 { label.len() } else { 0 }))
}

/// Abbreviates sorted numbers: `0..31`, `0..30 step 2`, `0..2, 5, 7..9`. `digits` is the number of digits to which zeros fill them.
fn spelled(numbers: &[u64], digits: usize) -> String {
    let text = |number: u64| format!("{number:0digits$}");
    let (first, last) = (numbers[0], numbers[numbers.len() - 1]);
    let step = numbers[1] - first;
    if numbers.len() > 2 && step > 0 && numbers.windows(2).all(|pair| pair[1] - pair[0] == step) {
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
