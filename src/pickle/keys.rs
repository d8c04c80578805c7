//! Equality of dict keys and set items, without deep hashing.
//!
//! Python's rules: `1 == True == 1.0`, strings by content, tuples by their items, NaN by identity, everything opaque by
//! identity. Tuples are hash-consed when they become keys: each tuple is processed once, after the tuples in it, so a DAG of
//! tuples costs its own size; depth and expanded size are bounded. Lists, dicts, sets and bytearrays are not hashable and refused.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, Hash, Hasher};

use super::arena::{Arena, ByteRange, Node, Span};
use super::first_equal::FirstEqual;
use super::ids::Handle;
use super::value::{Value, Values};
use crate::error::{Code, Error, Result};
use crate::limits::Limits;
use crate::num::to_u64;

/// Strings and integers up to this many bytes are compared by content each time; longer ones are interned.
const INLINE_KEY_MAX_BYTES: u32 = 128;

/// A value as a hash key with Python's equality.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key<'a> {
    None,
    Int(i64),
    /// An odd number and a power of two to multiply it by: the common form of large integers and large floats.
    Scaled(i64, u32),
    /// The bits of a float that is not an integer.
    Float(u64),
    Str(&'a [u8]),
    Bytes(&'a [u8]),
    Big(&'a [u8]),
    /// Equal by identity: the object itself, or the first equal one of an interned object.
    Identity(Handle),
}

impl Values {
    /// A dict's entries as in Python: of equal keys the first position and key object and the last value. For a call, the same of
    /// its `items`. Fails for any other value.
    pub fn entries(&self, handle: Handle) -> Result<Vec<(Handle, Handle)>> {
        let pairs = match self.get(handle) {
            Value::Dict(pairs) => pairs,
            Value::Call(id) => self.call(id).items,
            _ => return Err(Error::new(Code::PickleType, "a value without dict entries")),
        };
        self.unique(pairs)
    }

    /// Deduplicates pairs as a dict does: of equal keys the first position and key object and the last value.
    pub fn unique(&self, pairs: &[(Handle, Handle)]) -> Result<Vec<(Handle, Handle)>> {
        let mut positions = HashMap::new();
        let mut entries: Vec<(Handle, Handle)> = Vec::new();
        positions.try_reserve(pairs.len()).map_err(|_| no_memory())?;
        entries.try_reserve(pairs.len()).map_err(|_| no_memory())?;
        for &(key, value) in pairs {
            match positions.entry(self.arena.key(&self.data, key)) {
                Entry::Vacant(position) => {
                    position.insert(entries.len());
                    entries.push((key, value));
                }
                Entry::Occupied(position) => {
                    if let Some(entry) = entries.get_mut(*position.get()) {
                        entry.1 = value;
                    }
                }
            }
        }
        Ok(entries)
    }

    /// For each pair, the number of its entry in [`Values::unique`].
    pub fn entry_numbers(&self, pairs: &[(Handle, Handle)]) -> Result<Vec<usize>> {
        let mut numbers_of = HashMap::new();
        numbers_of.try_reserve(pairs.len()).map_err(|_| no_memory())?;
        let numbers = pairs.iter().map(|&(key, _)| {
            let next = numbers_of.len();
            *numbers_of.entry(self.arena.key(&self.data, key)).or_insert(next)
        });
        Ok(numbers.collect())
    }

    /// Whether [`Values::unique`] compares a key as Python does: not a tuple, or a long string or integer, that no opcode made a key.
    pub fn is_comparable_key(&self, key: Handle) -> bool {
        match self.arena.node(key) {
            Node::Str(range) | Node::Bytes(range) | Node::BigInt(range) => {
                range.len <= INLINE_KEY_MAX_BYTES || self.arena.long_keys.contains_key(&key)
            }
            Node::Tuple { canon, .. } => canon.is_some(),
            _ => true,
        }
    }

    /// Whether two of the keys are equal in Python.
    pub fn has_equal_keys(&self, pairs: &[(Handle, Handle)]) -> bool {
        pairs.len() > 1 && self.unique(pairs).is_ok_and(|entries| entries.len() < pairs.len())
    }

    /// A set's items as in Python: of equal ones the first. For a call, the same of its `appended`. Fails for any other value.
    pub fn elements(&self, handle: Handle) -> Result<Vec<Handle>> {
        let items = match self.get(handle) {
            Value::Set(items) | Value::FrozenSet(items) => items,
            Value::Call(id) => self.call(id).appended,
            _ => return Err(Error::new(Code::PickleType, "a value without set elements")),
        };
        let mut seen = std::collections::HashSet::new();
        seen.try_reserve(items.len()).map_err(|_| no_memory())?;
        Ok(items.iter().copied().filter(|&item| seen.insert(self.arena.key(&self.data, item))).collect())
    }
}

impl Arena {
    fn key<'a>(&'a self, data: &'a [u8], handle: Handle) -> Key<'a> {
        let short = |range: ByteRange| {
            if range.len <= INLINE_KEY_MAX_BYTES { Some(self.bytes(data, range)) } else { None }
        };
        let long = || Key::Identity(self.long_keys.get(&handle).copied().unwrap_or(handle));
        match self.node(handle) {
            Node::None => Key::None,
            Node::Bool(value) => Key::Int(i64::from(value)),
            Node::Int(value) => Key::Int(value),
            Node::Float(value) => float_key(value, handle),
            Node::Str(range) => short(range).map_or_else(long, Key::Str),
            Node::Bytes(range) => short(range).map_or_else(long, Key::Bytes),
            Node::BigInt(range) => match big_key(self.bytes(data, range)) {
                Key::Big(bytes) if short(range).is_some() => Key::Big(bytes),
                Key::Big(_) => long(),
                key => key,
            },
            Node::Tuple { canon, .. } => Key::Identity(canon.unwrap_or(handle)),
            _ => Key::Identity(handle),
        }
    }

    fn tuple(&self, handle: Handle) -> &[Handle] {
        match self.node(handle) {
            Node::Tuple { start, len, .. } => self.handles_in(Span::of(start, len)),
            _ => &[],
        }
    }
}

/// Checks that values are hashable when they become keys, and interns tuples and long strings.
pub(super) struct Interner {
    interned: FirstEqual<Handle>,
    depth: u8,
    nodes: u16,
}

impl Interner {
    pub(super) fn new(limits: &Limits) -> Interner {
        Interner {
            interned: FirstEqual::new(),
            depth: u8::try_from(limits.key_depth).unwrap_or(u8::MAX),
            nodes: u16::try_from(limits.key_nodes).unwrap_or(u16::MAX),
        }
    }

    /// Interns a value that becomes a key; fails where it is not hashable or exceeds `key_depth` or `key_nodes`.
    #[inline]
    pub(super) fn check(&mut self, arena: &mut Arena, data: &[u8], handle: Handle) -> Result<()> {
        match arena.node(handle) {
            Node::Str(range) | Node::Bytes(range) | Node::BigInt(range) => {
                if range.len > INLINE_KEY_MAX_BYTES {
                    self.intern_long(arena, data, handle, range)
                } else {
                    Ok(())
                }
            }
            Node::Tuple { canon: Some(_), .. } => Ok(()),
            Node::Tuple { .. } => self.intern_tuple(arena, data, handle),
            Node::List(_) | Node::Dict(_) | Node::Set(_) | Node::ByteArray(_) => Err(unhashable()),
            _ => Ok(()),
        }
    }

    fn intern_long(
        &mut self,
        arena: &mut Arena,
        data: &[u8],
        handle: Handle,
        range: ByteRange,
    ) -> Result<()> {
        if arena.long_keys.contains_key(&handle) {
            return Ok(());
        }
        let bytes = arena.bytes(data, range);
        let hash = self.interned.state.hash_one(bytes);
        let first =
            self.interned.of(hash, handle, |other| match (arena.node(handle), arena.node(other)) {
                (Node::Str(_), Node::Str(range))
                | (Node::Bytes(_), Node::Bytes(range))
                | (Node::BigInt(_), Node::BigInt(range)) => arena.bytes(data, range) == bytes,
                _ => false,
            })?;
        arena.long_keys.try_reserve(1).map_err(|_| no_memory())?;
        arena.long_keys.insert(handle, first);
        Ok(())
    }

    /// Interns a tuple, after the tuples in it. The explicit stack of unfinished tuples is at most as deep as the limit `key_depth`.
    fn intern_tuple(&mut self, arena: &mut Arena, data: &[u8], handle: Handle) -> Result<()> {
        let mut unfinished = vec![handle];
        while let Some(&top) = unfinished.last() {
            match self.measure(arena, data, top)? {
                Measure::Pending(child) => {
                    let depth = to_u64(unfinished.len()).saturating_add(1);
                    Limits::check("key_depth", u64::from(self.depth), depth)?;
                    unfinished.push(child);
                }
                Measure::Done { depth: new_depth, nodes: new_nodes } => {
                    let keys = |handle| arena.tuple(handle).iter().map(|&item| arena.key(data, item));
                    let mut hasher = self.interned.state.build_hasher();
                    keys(top).for_each(|key| key.hash(&mut hasher));
                    let first = self.interned.of(hasher.finish(), top, |other| {
                        matches!(arena.node(other), Node::Tuple { .. }) && keys(top).eq(keys(other))
                    })?;
                    if let Node::Tuple { start, len, .. } = arena.node(top) {
                        let (depth, nodes, canon) = (new_depth, new_nodes, Some(first));
                        arena.set_node(top, Node::Tuple { depth, nodes, start, len, canon });
                    }
                    unfinished.pop();
                }
            }
        }
        Ok(())
    }

    /// The depth and expanded size of a tuple, or the first tuple in it that is not interned yet.
    fn measure(&mut self, arena: &mut Arena, data: &[u8], handle: Handle) -> Result<Measure> {
        let (mut deepest, mut size) = (0u8, 1u64);
        let len = arena.tuple(handle).len();
        let max = u64::from(self.nodes);
        Limits::check("key_nodes", max, to_u64(len))?;
        for at in 0..len {
            let Some(&child) = arena.tuple(handle).get(at) else { break };
            match arena.node(child) {
                Node::Tuple { canon: None, .. } => return Ok(Measure::Pending(child)),
                Node::Tuple { depth, nodes, .. } => {
                    deepest = deepest.max(depth);
                    size = size.saturating_add(u64::from(nodes));
                }
                _ => {
                    self.check(arena, data, child)?;
                    size = size.saturating_add(1);
                }
            }
        }
        let depth = deepest.saturating_add(1);
        Limits::check("key_depth", u64::from(self.depth), u64::from(depth))?;
        Limits::check("key_nodes", max, size)?;
        Ok(Measure::Done { depth, nodes: u16::try_from(size).unwrap_or(u16::MAX) })
    }
}

enum Measure {
    Pending(Handle),
    Done { depth: u8, nodes: u16 },
}

fn float_key<'a>(value: f64, handle: Handle) -> Key<'a> {
    if value.is_nan() {
        return Key::Identity(handle);
    }
    if value.trunc() != value || value.is_infinite() {
        return Key::Float(value.to_bits());
    }
    let bits = value.to_bits();
    let exponent = i32::from(u16::try_from(bits >> 52 & 0x7ff).unwrap_or_default()).saturating_sub(1075);
    let mantissa = i64::try_from(bits & ((1 << 52) - 1) | 1 << 52).unwrap_or_default();
    let signed = if value.is_sign_negative() { mantissa.wrapping_neg() } else { mantissa };
    match u32::try_from(exponent) {
        _ if value == 0.0 => Key::Int(0),
        // The value is whole, so the bits that are shifted out are zero.
        Err(_) => Key::Int(signed >> exponent.unsigned_abs().min(63)),
        Ok(shift) if shift <= 10 => Key::Int(signed.wrapping_shl(shift)),
        Ok(_) if value == -9_223_372_036_854_775_808.0 => Key::Int(i64::MIN),
        Ok(shift) => {
            let zeros = signed.trailing_zeros();
            Key::Scaled(signed >> zeros, shift.saturating_add(zeros))
        }
    }
}

/// The key of an integer beyond 64 bits: that of the equal float, if a double represents it exactly.
fn big_key(bytes: &[u8]) -> Key<'_> {
    let zero_bytes = bytes.iter().take_while(|&&byte| byte == 0).count();
    let rest = bytes.get(zero_bytes..).unwrap_or_default();
    let zero_bits = rest.first().map_or(0, |byte| byte.trailing_zeros());
    if rest.len() > 8 {
        return Key::Big(bytes);
    }
    let Some(value) = super::text::i64_from_twos_complement(rest) else { return Key::Big(bytes) };
    let odd = value >> zero_bits;
    if odd.unsigned_abs() >= 1 << 53 {
        return Key::Big(bytes);
    }
    let shift = u32::try_from(zero_bytes).unwrap_or(u32::MAX).saturating_mul(8).saturating_add(zero_bits);
    Key::Scaled(odd, shift)
}

#[cold]
fn unhashable() -> Error {
    Error::new(
        Code::PickleType,
        "a list, dict, set or bytearray is a dict key or set item, but is not hashable",
    )
}

#[cold]
fn no_memory() -> Error {
    Error::new(Code::Memory, "no memory for the keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_floats_have_the_keys_of_equal_integers() {
        for int in [0i64, 1, -1, 255, -256, 1 << 52, (1 << 53) - 1, 1 << 62, -(1 << 62), i64::MIN] {
            #[expect(clippy::as_conversions, reason = "these integers are exact as doubles")]
            let float = int as f64;
            assert_eq!(float_key(float, Handle::NONE), Key::Int(int));
        }
        assert_eq!(float_key(-0.0, Handle::NONE), Key::Int(0));
        assert_eq!(float_key(0.5, Handle::NONE), Key::Float(0.5f64.to_bits()));
        assert_eq!(float_key(f64::NAN, Handle::TRUE), Key::Identity(Handle::TRUE));
    }

    #[test]
    fn equal_large_integers_and_floats_have_one_key() {
        let two_to_63 = [0, 0, 0, 0, 0, 0, 0, 0x80, 0];
        assert_eq!(big_key(&two_to_63), float_key(9_223_372_036_854_775_808.0, Handle::NONE));
        let minus_two_to_64 = [0, 0, 0, 0, 0, 0, 0, 0, 0xff];
        assert_eq!(big_key(&minus_two_to_64), float_key(-18_446_744_073_709_551_616.0, Handle::NONE));
        let odd = [1, 0, 0, 0, 0, 0, 0, 0x80, 0];
        assert_eq!(big_key(&odd), Key::Big(&odd));
        // 3 * 2^70
        let three = [0, 0, 0, 0, 0, 0, 0, 0, 0xc0, 0];
        assert_eq!(big_key(&three), float_key(3.0 * 2f64.powi(70), Handle::NONE));
    }
}
