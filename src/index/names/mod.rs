//! Names for tensors: the way from the root, joined with dots; spelled with brackets where two would collide.
//!
//! The walk is a loop with a stack of its own and a bounded depth. A file may share one subtree so often that its paths are
//! without number; when a walk meets more children than the file has values, it starts again and enters only what holds a
//! tensor, so that every step leads to a name and names are bounded.

mod spelling;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use self::spelling::{Name, dotted, spelled};
use super::meaning::Meaning;
use super::tree::{Child, Naming, View};
use super::{Entry, OpaqueClass, Path, Step};
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::parallel::Cancel;
use crate::pickle::{GlobalId, Handle, Value};

/// How many places of one opaque class are named.
const PLACES: usize = 16;

/// Steps between two looks at whether the work was asked to stop.
const TICK: u32 = 1 << 12;

/// What a walk over the tree finds.
#[derive(Default)]
pub(super) struct Found {
    pub(super) entries: Vec<Entry>,
    pub(super) opaque: Vec<OpaqueClass>,
    /// Storages that stand in the tree by themselves and have no tensor yet.
    pub(super) bare: Vec<Handle>,
}

/// Names every tensor that can be reached from `root`.
pub(super) fn find(view: View<'_>, root: Handle, limits: &Limits, cancel: &Cancel) -> Result<Found> {
    let budget = view.values.len().saturating_mul(4).saturating_add(1024);
    let mut walk = Walk::new(view, limits, u64::try_from(budget).unwrap_or(u64::MAX), None);
    if !walk.run(root, cancel)? {
        let holds = holds_tensor(view);
        walk = Walk::new(view, limits, limits.export_nodes, Some(holds));
        if !walk.run(root, cancel)? {
            let most = limits.export_nodes;
            return Err(Error::limit("export_nodes", most, most.saturating_add(1)));
        }
    }
    walk.resolve_collisions()?;
    walk.count_opaque()?;
    Ok(walk.found)
}

struct Walk<'a> {
    view: View<'a>,
    limits: &'a Limits,
    /// Steps left before the walk is given up.
    budget: u64,
    /// Which values lead to a tensor; `None` while everything is entered.
    holds: Option<Vec<bool>>,
    /// Which values were reached where tensors have no names; nothing is new at a second way to them.
    unnamed: Vec<bool>,
    found: Found,
    /// Where each unknown class stands in `found`.
    classes: HashMap<Option<GlobalId>, usize>,
    /// Bytes of names, paths and class names so far.
    bytes: u64,
    /// How many there may be.
    most: u64,
    /// Where names are written before their length is known.
    scratch: Name,
}

/// What a value is to the walk.
enum Visit {
    /// Nothing is inside.
    Leaf,
    Inside(Frame),
    /// Its children are more than the budget allows.
    TooMuch,
}

/// A value on the way, and what is still to be visited inside it.
struct Frame {
    handle: Handle,
    children: std::vec::IntoIter<Child>,
}

impl<'a> Walk<'a> {
    fn new(view: View<'a>, limits: &'a Limits, budget: u64, holds: Option<Vec<bool>>) -> Walk<'a> {
        let (found, classes) = (Found::default(), HashMap::new());
        let most = most_bytes(limits, view.values.data().len());
        let unnamed = vec![false; view.values.len()];
        let scratch = Name::default();
        Walk { view, limits, budget, holds, unnamed, found, classes, bytes: 0, most, scratch }
    }

    /// Walks the tree; false if it was given up.
    fn run(&mut self, root: Handle, cancel: &Cancel) -> Result<bool> {
        let mut steps = 0_u32;
        let mut path: Vec<Step> = Vec::new();
        // By value, whether the walk is inside it.
        let mut open = vec![false; self.view.values.len()];
        let mut set = |handle: Handle, inside| {
            open.get_mut(handle.index()).is_some_and(|mark| std::mem::replace(mark, inside))
        };
        let mut frames: Vec<Frame> = Vec::new();
        match self.enter(root, Naming::All, &path)? {
            Visit::Leaf => {}
            Visit::TooMuch => return Ok(false),
            Visit::Inside(frame) => {
                set(root, true);
                frames.push(frame);
            }
        }
        while let Some(frame) = frames.last_mut() {
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(TICK) {
                cancel.check()?;
            }
            let Some(Child { step, value: child, naming }) = frame.children.next() else {
                set(frame.handle, false);
                frames.pop();
                path.pop();
                continue;
            };
            if !self.may_hold(child) || set(child, true) {
                continue;
            }
            if naming == Naming::None && self.is_known_unnamed(child) {
                set(child, false);
                continue;
            }
            path.push(step);
            match self.enter(child, naming, &path)? {
                Visit::Leaf => {
                    set(child, false);
                    path.pop();
                }
                Visit::TooMuch => return Ok(false),
                Visit::Inside(frame) => {
                    if u64::try_from(path.len()).unwrap_or(u64::MAX) > self.limits.depth {
                        if self.holds.is_none() {
                            return Ok(false);
                        }
                        let most = self.limits.depth;
                        return Err(Error::limit("depth", most, most.saturating_add(1)));
                    }
                    frames.push(frame);
                }
            }
        }
        Ok(true)
    }

    fn may_hold(&self, handle: Handle) -> bool {
        self.holds.as_ref().is_none_or(|holds| holds.get(handle.index()).copied().unwrap_or(false))
    }

    /// Whether a value was reached before where tensors have no names.
    fn is_known_unnamed(&mut self, handle: Handle) -> bool {
        self.unnamed.get_mut(handle.index()).is_some_and(|mark| std::mem::replace(mark, true))
    }

    /// Names a tensor, notes an opaque value, and gives the frame of anything that has children.
    fn enter(&mut self, handle: Handle, naming: Naming, path: &[Step]) -> Result<Visit> {
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
                    self.note_opaque(self.view.class_id(&self.view.values.call(id)), path)?
                }
                _ => {}
            },
            Value::PersistentId(pid) => {
                match self.view.meanings.bare.get(&pid) {
                    Some(&tensor) => self.name(tensor, naming, path)?,
                    None if self.view.module(pid).is_some() => {}
                    None => self.found.bare.push(pid),
                }
                return Ok(Visit::Leaf);
            }
            Value::List(_) | Value::Tuple(_) | Value::Dict(_) | Value::Set(_) | Value::FrozenSet(_) => {}
            _ => return Ok(Visit::Leaf),
        }
        let mut children = self.view.children(handle)?;
        self.pass_on(handle, naming, &mut children);
        if children.is_empty() {
            return Ok(Visit::Leaf);
        }
        match self.budget.checked_sub(self.view.weight(handle)) {
            Some(left) => self.budget = left,
            None => return Ok(Visit::TooMuch),
        }
        Ok(Visit::Inside(Frame { handle, children: children.into_iter() }))
    }

    /// What a value's place says of the names of what is inside it.
    fn pass_on(&self, handle: Handle, naming: Naming, children: &mut [Child]) {
        let is_named = |child: &Child| match naming {
            Naming::All => true,
            Naming::Entry => match self.view.values.get(handle) {
                Value::Call(id) => match self.view.meaning(id) {
                    Meaning::Tensor(_) => false,
                    Meaning::Sparse(_) => matches!(child.step, Step::Part(_)),
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

    fn name(&mut self, tensor: u32, naming: Naming, path: &[Step]) -> Result<()> {
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

    fn note_opaque(&mut self, class: Option<GlobalId>, path: &[Step]) -> Result<()> {
        let known = match self.classes.get(&class) {
            Some(&known) => known,
            None => {
                let name = self.view.class_name(class);
                self.charge(name.len())?;
                let known = self.found.opaque.len();
                self.found.opaque.push(OpaqueClass { class: name, count: 0, at: Vec::new() });
                self.classes.insert(class, known);
                known
            }
        };
        if self.found.opaque.get(known).is_some_and(|known| known.at.len() < PLACES) {
            let place = self.text(path, dotted)?;
            self.found.opaque.get_mut(known).into_iter().for_each(|known| known.at.push(place.to_string()));
        }
        Ok(())
    }

    /// A path as text, which counts among the names.
    fn text(
        &mut self,
        path: &[Step],
        write: fn(View<'_>, &[Step], &mut Name) -> fmt::Result,
    ) -> Result<Arc<str>> {
        let left = self.most.saturating_sub(self.bytes);
        self.scratch.room = usize::try_from(left).unwrap_or(usize::MAX);
        self.scratch.text.clear();
        match write(self.view, path, &mut self.scratch) {
            Ok(()) => self.charge(self.scratch.text.len())?,
            Err(fmt::Error) => self.charge(self.scratch.room.saturating_add(1))?,
        }
        Ok(self.scratch.text.as_str().into())
    }

    fn charge(&mut self, bytes: usize) -> Result<()> {
        self.bytes = self.bytes.saturating_add(u64::try_from(bytes).unwrap_or(u64::MAX));
        Limits::check("name_bytes_total", self.most, self.bytes)
    }

    /// Counts the values of each opaque class over the whole file.
    fn count_opaque(&mut self) -> Result<()> {
        let mut unseen: Vec<OpaqueClass> = Vec::new();
        for (id, _) in self.view.values.calls() {
            if self.view.meanings.calls.get(id.index()) != Some(&Meaning::Opaque) {
                continue;
            }
            let class = self.view.class_id(&self.view.values.call(id));
            let known = match self.classes.get(&class) {
                Some(&known) => known,
                None => {
                    let name = self.view.class_name(class);
                    self.charge(name.len())?;
                    let known = self.found.opaque.len().saturating_add(unseen.len());
                    unseen.push(OpaqueClass { class: name, count: 0, at: Vec::new() });
                    self.classes.insert(class, known);
                    known
                }
            };
            let reached = self.found.opaque.len();
            let slot = match known.checked_sub(reached) {
                None => self.found.opaque.get_mut(known),
                Some(place) => unseen.get_mut(place),
            };
            if let Some(class) = slot {
                class.count = class.count.saturating_add(1);
            }
        }
        unseen.sort_by(|one, two| one.class.cmp(&two.class));
        self.found.opaque.append(&mut unseen);
        Ok(())
    }

    /// Spells out the names that are there twice; whatever still collides gets a number.
    fn resolve_collisions(&mut self) -> Result<()> {
        let mut twice = repeated(&self.found.entries);
        if twice.is_empty() {
            return Ok(());
        }
        for &at in &twice {
            let Some(entry) = self.found.entries.get(at) else { continue };
            let Path::Steps(steps) = entry.path.clone() else { continue };
            let name = self.text(&steps, spelled)?;
            self.found.entries.get_mut(at).into_iter().for_each(|entry| entry.name = name.clone());
        }
        twice = repeated(&self.found.entries);
        if twice.is_empty() {
            return Ok(());
        }
        let mut taken: HashSet<Arc<str>> =
            self.found.entries.iter().map(|entry| entry.name.clone()).collect();
        let mut numbers: HashMap<Arc<str>, u32> = HashMap::new();
        for at in twice {
            let Some(entry) = self.found.entries.get_mut(at) else { continue };
            // The first keeps the name; a number is never tried twice for one name.
            let Some(number) = numbers.get_mut(&entry.name) else {
                numbers.insert(entry.name.clone(), 1);
                continue;
            };
            let free = loop {
                *number = number.saturating_add(1);
                let name: Arc<str> = format!("{}#{number}", entry.name).into();
                if taken.insert(name.clone()) {
                    break name;
                }
            };
            let bytes = free.len();
            entry.name = free;
            self.charge(bytes)?;
        }
        Ok(())
    }
}

/// Names are joined from keys of the pickle. A short pickle can share keys and tensors so that names without number come of
/// it, so it may have an eighth of the limit only, and 16 bytes for each of its own.
fn most_bytes(limits: &Limits, pickle: usize) -> u64 {
    let own = u64::try_from(pickle).unwrap_or(u64::MAX).saturating_mul(16);
    own.saturating_add(limits.name_bytes_total >> 3).min(limits.name_bytes_total)
}

/// The positions of names that are there more than once.
fn repeated(entries: &[Entry]) -> Vec<usize> {
    let mut counts: HashMap<&str, u32> = HashMap::with_capacity(entries.len());
    for entry in entries {
        let count = counts.entry(&entry.name).or_default();
        *count = count.saturating_add(1);
    }
    if counts.len() == entries.len() {
        return Vec::new();
    }
    let is_repeated = |entry: &Entry| counts.get(&*entry.name).is_some_and(|&count| count > 1);
    entries.iter().enumerate().filter(|(_, entry)| is_repeated(entry)).map(|(at, _)| at).collect()
}

/// For every value, whether a tensor can be reached from it: tensors first, then whatever contains what is known to.
fn holds_tensor(view: View<'_>) -> Vec<bool> {
    let count = view.values.len();
    let mut holds = vec![false; count];
    let mut ready: Vec<Handle> = Vec::new();
    let mut first = vec![0_u32; count.saturating_add(1)];
    let mut edges: Vec<u32> = Vec::new();
    // Two passes over all values: count each one's parents, then list them.
    for pass in 0..2 {
        for handle in view.values.handles() {
            if view.is_tensor(handle) {
                if pass == 0 {
                    if let Some(mark) = holds.get_mut(handle.index()) {
                        *mark = true;
                    }
                    ready.push(handle);
                }
                continue;
            }
            view.parts(handle, |child| {
                let Some(slot) = first.get_mut(child.index()) else { return };
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
            });
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
    holds
}
