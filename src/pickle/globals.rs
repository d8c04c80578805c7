//! Globals are interned: equal module and name are one value, however often and in whatever form the pickle names them.
//!
//! Each string is hashed once, when it is first used as a name, so that STACK_GLOBAL on memoized strings costs no more than
//! its opcodes. Refused: names that are no UTF-8, too long, or with too many dotted parts.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::BuildHasher;

use super::arena::{Arena, GlobalRecord, NameRecord, Node, Piece};
use super::value::{GlobalId, Handle};
use super::{index, names, narrow, wide};
use crate::error::{Code, Error, Result};
use crate::limits::Limits;

/// A module or class name, by its number among the distinct ones.
pub(super) type NameId = u32;

pub(super) struct Globals {
    by_hash: HashMap<u32, NameId>,
    by_handle: HashMap<Handle, NameId>,
    ids: HashMap<(NameId, NameId), GlobalId>,
    state: RandomState,
    line: u64,
    dotted: u64,
}

impl Globals {
    pub(super) fn new(limits: &Limits) -> Globals {
        Globals {
            by_hash: HashMap::new(),
            by_handle: HashMap::new(),
            ids: HashMap::new(),
            state: RandomState::new(),
            line: limits.line,
            dotted: limits.dotted,
        }
    }

    /// The name that a value of the stack spells.
    pub(super) fn name_of(&mut self, arena: &mut Arena, data: &[u8], handle: Handle) -> Result<NameId> {
        let Node::Str(piece) = arena.node(handle) else {
            return Err(Error::new(Code::PickleType, "STACK_GLOBAL takes two strings"));
        };
        if let Some(&id) = self.by_handle.get(&handle) {
            return Ok(id);
        }
        let id = self.name(arena, data, piece)?;
        self.by_handle.try_reserve(1).map_err(|_| no_memory())?;
        self.by_handle.insert(handle, id);
        Ok(id)
    }

    /// The name that some bytes spell.
    pub(super) fn name(&mut self, arena: &mut Arena, data: &[u8], piece: Piece) -> Result<NameId> {
        let bytes = arena.bytes(data, piece);
        Limits::check("line", self.line, wide(bytes.len()))?;
        if std::str::from_utf8(bytes).is_err() {
            return Err(Error::new(Code::PickleText, "a global's name is not UTF-8"));
        }
        let parts = bytes.iter().filter(|&&byte| byte == b'.').count().saturating_add(1);
        match self.place(arena, data, bytes)? {
            Ok(id) => Ok(id),
            Err(probe) => self.add(arena, probe, NameRecord { piece, parts: narrow(parts) }),
        }
    }

    /// The id of a known name, or where a new one belongs.
    fn place(&mut self, arena: &Arena, data: &[u8], bytes: &[u8]) -> Result<Result<NameId, u32>> {
        self.by_hash.try_reserve(1).map_err(|_| no_memory())?;
        let mut probe = u32::try_from(self.state.hash_one(bytes) & 0xffff_ffff).unwrap_or_default();
        while let Some(&id) = self.by_hash.get(&probe) {
            let known = arena.names.get(index(id)).map(|record| arena.bytes(data, record.piece));
            if known == Some(bytes) {
                return Ok(Ok(id));
            }
            probe = probe.wrapping_add(1);
        }
        Ok(Err(probe))
    }

    fn add(&mut self, arena: &mut Arena, probe: u32, record: NameRecord) -> Result<NameId> {
        let id = narrow(arena.names.len());
        arena.names.push(record)?;
        self.by_hash.insert(probe, id);
        Ok(id)
    }

    /// A name of rustload's own: of the compatibility table, or for what a survey puts in a value's place.
    pub(super) fn constant(&mut self, arena: &mut Arena, data: &[u8], text: &str) -> Result<NameId> {
        match self.place(arena, data, text.as_bytes())? {
            Ok(id) => Ok(id),
            Err(probe) => {
                let start = arena.side.len();
                arena.side.extend_from_slice(text.as_bytes());
                let piece = Piece { start: narrow(start), len: narrow(text.len()), side: true };
                self.add(arena, probe, NameRecord { piece, parts: 1 })
            }
        }
    }

    /// The value of a global. `old` says that the protocol is below 3, so that Python 2's names are mapped
    /// (`pickle.py: find_class`).
    pub(super) fn global(
        &mut self,
        arena: &mut Arena,
        data: &[u8],
        spelled: (NameId, NameId),
        old: bool,
        offset: usize,
    ) -> Result<Handle> {
        let record = |arena: &Arena, id| arena.names.get(index(id));
        let parts = record(arena, spelled.1).map_or(1, |name| name.parts);
        Limits::check("dotted", self.dotted, u64::from(parts))?;
        let text = |id| std::str::from_utf8(arena.name(data, id)).unwrap_or_default();
        let renamed = if old { names::rename(text(spelled.0), text(spelled.1)) } else { None };
        let (module, name) = match renamed {
            None => spelled,
            Some((module, None)) => (self.constant(arena, data, module)?, spelled.1),
            Some((module, Some(name))) => {
                (self.constant(arena, data, module)?, self.constant(arena, data, name)?)
            }
        };
        self.ids.try_reserve(1).map_err(|_| no_memory())?;
        match self.ids.entry((module, name)) {
            Entry::Occupied(known) => {
                Ok(arena.globals.get(known.get().index()).map_or(Handle::NONE, |record| record.handle))
            }
            Entry::Vacant(place) => {
                let id = *place.insert(GlobalId::at(arena.globals.len()));
                let handle = arena.add(Node::Global(id))?;
                let offset = narrow(offset);
                arena.globals.push(GlobalRecord { module, name, spelled, offset, handle })?;
                Ok(handle)
            }
        }
    }
}

#[cold]
fn no_memory() -> Error {
    Error::new(Code::Memory, "no memory for the globals")
}
