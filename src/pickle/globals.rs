//! Interns globals: each distinct pair of module and name is one value, whichever opcodes name it and how often.
//!
//! Each string is hashed once, when it is first used as a name, so that STACK_GLOBAL on memoized strings costs no more than
//! its opcodes. Refuses names that are not UTF-8, longer than the limit `line`, or of more dotted parts than `dotted`.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::BuildHasher;

use super::arena::{Arena, ByteRange, GlobalRecord, NameRecord, Node};
use super::compat;
use super::first_equal::FirstEqual;
use super::ids::{GlobalId, Handle, NameId};
use crate::error::{Code, Error, Result, bail};
use crate::limits::Limits;
use crate::num::{to_u32, to_u64, u32_to_usize};

pub(super) struct Globals {
    names: FirstEqual<NameId>,
    by_handle: HashMap<Handle, NameId>,
    /// By module, name, and whether these may be Python 2's.
    ids: HashMap<(NameId, NameId, bool), GlobalId>,
    line: u64,
    dotted: u64,
}

impl Globals {
    pub(super) fn new(limits: &Limits) -> Globals {
        Globals {
            names: FirstEqual::new(),
            by_handle: HashMap::new(),
            ids: HashMap::new(),
            line: limits.line,
            dotted: limits.dotted,
        }
    }

    /// Interns the name that a string on the stack contains.
    pub(super) fn name_of(&mut self, arena: &mut Arena, data: &[u8], handle: Handle) -> Result<NameId> {
        let Node::Str(range) = arena.node(handle) else {
            bail!(Code::PickleType, "STACK_GLOBAL needs two strings");
        };
        if let Some(&id) = self.by_handle.get(&handle) {
            return Ok(id);
        }
        let id = self.name(arena, data, range)?;
        self.by_handle.try_reserve(1).map_err(|_| no_memory())?;
        self.by_handle.insert(handle, id);
        Ok(id)
    }

    /// Interns the name that a range of bytes contains.
    pub(super) fn name(&mut self, arena: &mut Arena, data: &[u8], range: ByteRange) -> Result<NameId> {
        let bytes = arena.bytes(data, range);
        Limits::check("line", self.line, to_u64(bytes.len()))?;
        if std::str::from_utf8(bytes).is_err() {
            bail!(Code::PickleText, "a global's name is not UTF-8");
        }
        let (id, is_new) = self.find(arena, data, bytes)?;
        if is_new {
            let parts = bytes.iter().filter(|&&byte| byte == b'.').count().saturating_add(1);
            arena.names.push(NameRecord { range, parts: to_u32(parts) })?;
        }
        Ok(id)
    }

    /// The id of a name, and whether it is new: the caller then adds its record.
    fn find(&mut self, arena: &Arena, data: &[u8], bytes: &[u8]) -> Result<(NameId, bool)> {
        let next = to_u32(arena.names.len());
        let id = self.names.of(self.names.state.hash_one(bytes), next, |id| arena.name(data, id) == bytes)?;
        Ok((id, id == next))
    }

    /// Interns a name that the pickle does not contain: one of the compatibility table, or of a placeholder global.
    pub(super) fn intern_constant(&mut self, arena: &mut Arena, data: &[u8], text: &str) -> Result<NameId> {
        let (id, is_new) = self.find(arena, data, text.as_bytes())?;
        if is_new {
            let (start, len) = (to_u32(arena.decoded.len()), to_u32(text.len()));
            arena.decoded.extend_from_slice(text.as_bytes());
            let range = ByteRange { start, len, decoded: true, is_byte_string: false };
            arena.names.push(NameRecord { range, parts: 1 })?;
        }
        Ok(id)
    }

    /// Interns a global and returns its value. Where `python2` is set (the protocol is below 3), Python 2's names are mapped to
    /// Python 3's (`pickle.py: find_class`).
    pub(super) fn global(
        &mut self,
        arena: &mut Arena,
        data: &[u8],
        spelled: (NameId, NameId),
        python2: bool,
        offset: usize,
    ) -> Result<Handle> {
        let record = |arena: &Arena, id| arena.names.get(u32_to_usize(id));
        let parts = record(arena, spelled.1).map_or(1, |name| name.parts);
        Limits::check("dotted", self.dotted, u64::from(parts))?;
        let handle = |arena: &Arena, id: GlobalId| {
            arena.globals.get(id.index()).map_or(Handle::NONE, |record| record.handle)
        };
        if let Some(&known) = self.ids.get(&(spelled.0, spelled.1, python2)) {
            return Ok(handle(arena, known));
        }
        let text = |id| std::str::from_utf8(arena.name(data, id)).unwrap_or_default();
        let renamed = if python2 { compat::python3_name(text(spelled.0), text(spelled.1)) } else { None };
        let (module, name) = match renamed {
            None => spelled,
            Some((module, None)) => (self.intern_constant(arena, data, module)?, spelled.1),
            Some((module, Some(name))) => {
                (self.intern_constant(arena, data, module)?, self.intern_constant(arena, data, name)?)
            }
        };
        self.ids.try_reserve(2).map_err(|_| no_memory())?;
        let id = match self.ids.entry((module, name, false)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(slot) => {
                let id = *slot.insert(GlobalId::at(arena.globals.len()));
                let handle = arena.add(Node::Global(id))?;
                let offset = to_u32(offset);
                arena.globals.push(GlobalRecord { module, name, spelled, offset, handle })?;
                id
            }
        };
        self.ids.insert((spelled.0, spelled.1, python2), id);
        Ok(handle(arena, id))
    }
}

#[cold]
fn no_memory() -> Error {
    Error::new(Code::Memory, "no memory for the globals")
}
