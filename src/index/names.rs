//! Names for tensors: the way from the root, joined with dots; spelled with brackets where two would collide.
//!
//! The walk is a loop with a stack of its own and a bounded depth. A file may share one subtree so often that its paths are
//! without number; when a walk meets more steps than the file has values, it starts again and enters only what holds a
//! tensor, so that every step leads to a name and names are bounded.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use super::meaning::Meaning;
use super::tree::{Object, View};
use super::{Entry, OpaqueClass, Path, Step};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::pickle::{Handle, Value};

/// How many places of one opaque class are named.
const PLACES: usize = 16;

/// What a walk over the tree finds.
#[derive(Default)]
pub(super) struct Found {
    pub(super) entries: Vec<Entry>,
    pub(super) opaque: Vec<OpaqueClass>,
    /// Storages that stand in the tree by themselves and have no tensor yet.
    pub(super) bare: Vec<Handle>,
}

/// Names every tensor that can be reached from `root`.
pub(super) fn find(view: View<'_>, root: Handle, limits: &Limits) -> Result<Found> {
    let budget = view.values.len().saturating_mul(4).saturating_add(1024);
    let mut walk = Walk::new(view, limits, u64::try_from(budget).unwrap_or(u64::MAX), None);
    if !walk.run(root)? {
        walk = Walk::new(view, limits, limits.export_nodes, Some(holds_tensor(view)?));
        if !walk.run(root)? {
            return Err(Error::limit(
                "export_nodes",
                limits.export_nodes,
                limits.export_nodes.saturating_add(1),
            ));
        }
    }
    let Walk { mut found, .. } = walk;
    resolve_collisions(view, &mut found.entries);
    count_opaque(view, &mut found.opaque);
    Ok(found)
}

struct Walk<'a> {
    view: View<'a>,
    limits: &'a Limits,
    /// Steps left before the walk is given up.
    budget: u64,
    /// Which values lead to a tensor; `None` while everything is entered.
    holds: Option<Vec<bool>>,
    found: Found,
    classes: HashMap<String, usize>,
    name_bytes: u64,
}

/// A value on the way, and what is still to be visited inside it.
struct Frame {
    handle: Handle,
    children: std::vec::IntoIter<(Step, Handle)>,
}

impl<'a> Walk<'a> {
    fn new(view: View<'a>, limits: &'a Limits, budget: u64, holds: Option<Vec<bool>>) -> Walk<'a> {
        Walk { view, limits, budget, holds, found: Found::default(), classes: HashMap::new(), name_bytes: 0 }
    }

    /// Walks the tree; false if it was given up.
    fn run(&mut self, root: Handle) -> Result<bool> {
        let mut path: Vec<Step> = Vec::new();
        let mut open = std::collections::HashSet::new();
        let mut frames: Vec<Frame> = Vec::new();
        if let Some(frame) = self.enter(root, &path)? {
            open.insert(root);
            frames.push(frame);
        }
        while let Some(frame) = frames.last_mut() {
            let Some((step, child)) = frame.children.next() else {
                open.remove(&frame.handle);
                frames.pop();
                path.pop();
                continue;
            };
            match self.budget.checked_sub(1) {
                Some(left) => self.budget = left,
                None => return Ok(false),
            }
            if open.contains(&child) || !self.may_hold(child) {
                continue;
            }
            path.push(step);
            match self.enter(child, &path)? {
                Some(frame) => {
                    if u64::try_from(path.len()).unwrap_or(u64::MAX) > self.limits.depth {
                        if self.holds.is_none() {
                            return Ok(false);
                        }
                        return Err(Error::limit(
                            "depth",
                            self.limits.depth,
                            self.limits.depth.saturating_add(1),
                        ));
                    }
                    open.insert(child);
                    frames.push(frame);
                }
                None => {
                    path.pop();
                }
            }
        }
        Ok(true)
    }

    fn may_hold(&self, handle: Handle) -> bool {
        self.holds.as_ref().is_none_or(|holds| holds.get(handle.index()).copied().unwrap_or(false))
    }

    /// Names a tensor, notes an opaque value, and gives the frame of anything that has children.
    fn enter(&mut self, handle: Handle, path: &[Step]) -> Result<Option<Frame>> {
        match self.view.values.get(handle) {
            Value::Call(id) => match self.view.meanings.calls.get(id.index()) {
                Some(&Meaning::Tensor(tensor)) => {
                    self.name(tensor, path)?;
                    return Ok(None);
                }
                Some(Meaning::Opaque) => {
                    let class = self.view.class(&self.view.values.call(id));
                    let next = self.found.opaque.len();
                    let known = *self.classes.entry(class).or_insert_with_key(|class| {
                        self.found.opaque.push(OpaqueClass {
                            class: class.clone(),
                            count: 0,
                            at: Vec::new(),
                        });
                        next
                    });
                    if let Some(known) = self.found.opaque.get_mut(known)
                        && known.at.len() < PLACES
                    {
                        known.at.push(dotted(self.view, path));
                    }
                }
                _ => {}
            },
            Value::PersistentId(pid) => {
                match self.view.meanings.bare.get(&pid) {
                    Some(&tensor) => self.name(tensor, path)?,
                    None if self.view.module(pid).is_some() => {}
                    None => self.found.bare.push(pid),
                }
                return Ok(None);
            }
            Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Set(_) | Value::FrozenSet(_) => {}
            _ => return Ok(None),
        }
        Ok(Some(Frame { handle, children: self.view.children(handle)?.into_iter() }))
    }

    fn name(&mut self, tensor: u32, path: &[Step]) -> Result<()> {
        let count = u64::try_from(self.found.entries.len()).unwrap_or(u64::MAX).saturating_add(1);
        Limits::check("tensors", self.limits.tensors, count)?;
        let name = if path.is_empty() { "tensor".to_owned() } else { dotted(self.view, path) };
        self.name_bytes = self.name_bytes.saturating_add(u64::try_from(name.len()).unwrap_or(u64::MAX));
        Limits::check("name_bytes_total", self.limits.name_bytes_total, self.name_bytes)?;
        self.found.entries.push(Entry { name: name.into(), path: Path::Steps(path.into()), tensor });
        Ok(())
    }
}

/// For every value, whether a tensor can be reached from it: tensors first, then whatever contains what is known to.
fn holds_tensor(view: View<'_>) -> Result<Vec<bool>> {
    let count = view.values.len();
    let mut holds = vec![false; count];
    let mut ready: Vec<Handle> = Vec::new();
    let mut first = vec![0_u32; count.saturating_add(1)];
    let mut edges: Vec<u32> = Vec::new();
    // Two passes over all values: count each one's parents, then list them.
    for pass in 0..2 {
        for handle in view.values.handles() {
            if is_tensor(view, handle) {
                if pass == 0 {
                    if let Some(mark) = holds.get_mut(handle.index()) {
                        *mark = true;
                    }
                    ready.push(handle);
                }
                continue;
            }
            for (_, child) in view.children(handle)? {
                let Some(slot) = first.get_mut(child.index()) else { continue };
                if pass == 0 {
                    *slot = slot.saturating_add(1);
                } else {
                    // `first` holds the end of each list; filling runs backwards to its start.
                    *slot = slot.saturating_sub(1);
                    let at = usize::try_from(*slot).unwrap_or(usize::MAX);
                    if let Some(edge) = edges.get_mut(at) {
                        *edge = u32::try_from(handle.index()).unwrap_or(u32::MAX);
                    }
                }
            }
        }
        if pass == 0 {
            let mut total = 0_u32;
            for slot in &mut first {
                total = total.saturating_add(*slot);
                *slot = total;
            }
            edges = vec![0; usize::try_from(total).unwrap_or(0)];
        }
    }
    while let Some(handle) = ready.pop() {
        let bounds = (first.get(handle.index()), first.get(handle.index().saturating_add(1)));
        let (Some(&start), Some(&end)) = bounds else { continue };
        let range = usize::try_from(start).unwrap_or(0)..usize::try_from(end).unwrap_or(0);
        for &parent in edges.get(range).unwrap_or_default() {
            let index = usize::try_from(parent).unwrap_or(usize::MAX);
            if let Some(mark @ false) = holds.get_mut(index) {
                *mark = true;
                ready.extend(view.values.handle(index));
            }
        }
    }
    Ok(holds)
}

fn is_tensor(view: View<'_>, handle: Handle) -> bool {
    match view.values.get(handle) {
        Value::Call(id) => matches!(view.meanings.calls.get(id.index()), Some(Meaning::Tensor(_))),
        Value::PersistentId(_) => true,
        _ => false,
    }
}

/// Counts the values of each opaque class over the whole file.
fn count_opaque(view: View<'_>, classes: &mut Vec<OpaqueClass>) {
    let mut counts: HashMap<String, u64> = HashMap::new();
    for (id, _) in view.values.calls() {
        if view.meanings.calls.get(id.index()) == Some(&Meaning::Opaque) {
            let count = counts.entry(view.class(&view.values.call(id))).or_default();
            *count = count.saturating_add(1);
        }
    }
    for class in classes.iter_mut() {
        class.count = counts.remove(&class.class).unwrap_or(0);
    }
    let mut rest: Vec<_> = counts.into_iter().collect();
    rest.sort();
    classes.extend(rest.into_iter().map(|(class, count)| OpaqueClass { class, count, at: Vec::new() }));
}

/// Spells out the names that are there twice; whatever still collides gets a number.
fn resolve_collisions(view: View<'_>, entries: &mut [Entry]) {
    for spelled_out in [true, false] {
        let mut counts: HashMap<Arc<str>, u32> = HashMap::with_capacity(entries.len());
        for entry in entries.iter() {
            let count = counts.entry(entry.name.clone()).or_default();
            *count = count.saturating_add(1);
        }
        if counts.len() == entries.len() {
            return;
        }
        let mut seen: HashMap<Arc<str>, u32> = HashMap::new();
        for entry in
            entries.iter_mut().filter(|entry| counts.get(&entry.name).is_some_and(|&count| count > 1))
        {
            if spelled_out {
                if let Path::Steps(steps) = &entry.path {
                    entry.name = spelled(view, steps).into();
                }
            } else {
                let number = seen.entry(entry.name.clone()).or_default();
                *number = number.saturating_add(1);
                if *number > 1 {
                    entry.name = format!("{}#{number}", entry.name).into();
                }
            }
        }
    }
}

/// The path joined with dots: `optimizer.state.0.exp_avg`.
fn dotted(view: View<'_>, path: &[Step]) -> String {
    let mut out = String::new();
    for (position, step) in path.iter().enumerate() {
        if position > 0 {
            out.push('.');
        }
        match step {
            Step::Key(key) => key_text(view, *key, false, &mut out),
            Step::Index(index) => push(&mut out, format_args!("{index}")),
            Step::Argument(index) => push(&mut out, format_args!("args.{index}")),
        }
    }
    out
}

/// The path with every key that is no identifier in brackets: `a["x.y"][0]`.
fn spelled(view: View<'_>, path: &[Step]) -> String {
    let mut out = String::new();
    for step in path {
        match step {
            Step::Key(key) => match view.values.get(*key) {
                Value::Str(text) if text.as_str().is_some_and(is_identifier) => {
                    if !out.is_empty() {
                        out.push('.');
                    }
                    key_text(view, *key, false, &mut out);
                }
                _ => {
                    out.push('[');
                    key_text(view, *key, true, &mut out);
                    out.push(']');
                }
            },
            Step::Index(index) => push(&mut out, format_args!("[{index}]")),
            Step::Argument(index) => push(&mut out, format_args!("(args)[{index}]")),
        }
    }
    out
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && text.chars().all(|c| c.is_alphanumeric() || c == '_')
}

/// A dict key as text; `quoted` tells texts from numbers.
fn key_text(view: View<'_>, key: Handle, quoted: bool, out: &mut String) {
    // A key is a small tree (limits key_depth, key_nodes): what is still to be written, last first.
    enum Part {
        Value(Handle, bool),
        Text(&'static str),
    }
    let mut parts = vec![Part::Value(key, quoted)];
    while let Some(part) = parts.pop() {
        match part {
            Part::Text(text) => out.push_str(text),
            Part::Value(handle, quoted) => match view.get(handle) {
                Ok(Object::Str(text)) if quoted => push(out, format_args!("{:?}", text.to_string_lossy())),
                Ok(Object::Str(text)) => out.push_str(&text.to_string_lossy()),
                Ok(Object::Tuple(items)) => {
                    out.push('(');
                    parts.push(Part::Text(if items.len() == 1 { ",)" } else { ")" }));
                    for (position, &item) in items.iter().enumerate().rev() {
                        parts.push(Part::Value(item, true));
                        if position > 0 {
                            parts.push(Part::Text(", "));
                        }
                    }
                }
                Ok(Object::None) => out.push_str("None"),
                Ok(Object::Bool(value)) => out.push_str(if value { "True" } else { "False" }),
                Ok(Object::Int(value)) => push(out, format_args!("{value}")),
                Ok(Object::Float(value)) => push(out, format_args!("{value:?}")),
                Ok(Object::Bytes(bytes)) => push(out, format_args!("b\"{}\"", bytes.escape_ascii())),
                Ok(Object::Global { module, name }) => push(out, format_args!("{module}.{name}")),
                Ok(Object::Opaque { class, .. }) => push(out, format_args!("<{class}>")),
                _ => out.push_str("<key>"),
            },
        }
    }
}

fn push(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = out.write_fmt(text);
}
