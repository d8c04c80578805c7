//! When two values are one key of a dict, without ever hashing deep.
//!
//! Python's rules: `1 == True == 1.0`, strings by content, tuples by their items, NaN by identity, everything opaque by
//! identity. Tuples are hash-consed as they become keys: each tuple is looked at once, after the tuples in it, so a DAG of
//! tuples costs its own size; depth and expanded size are bounded. Lists, dicts, sets and bytearrays are refused.

use std::collections::HashMap;
use std::collections::hash_map::{Entry, RandomState};
use std::hash::{BuildHasher, Hash, Hasher};

use super::arena::{Arena, Node, Piece, Span};
use super::value::{Handle, Value, Values};
use super::wide;
use crate::error::{Code, Error, Result};
use crate::limits::Limits;

/// Strings and integers up to this many bytes are compared each time; longer ones once.
const SHORT: u32 = 128;

/// A hash that anybody can make collide, for telling that keys differ: equal hashes are looked at again.
struct Quick(u64);

impl Hasher for Quick {
    fn write(&mut self, bytes: &[u8]) {
        let (chunks, rest) = bytes.as_chunks::<8>();
        for chunk in chunks {
            self.write_u64(u64::from_le_bytes(*chunk));
        }
        let mut last = [0; 8];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        self.write_u64(u64::from_le_bytes(last));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // A product carries differences upwards only, and names often differ in one word's last bytes.
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A value as dicts tell keys apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key<'a> {
    None,
    Int(i64),
    /// An odd number and a power of two: what a large integer and a large float have in common.
    Scaled(i64, u32),
    /// The bits of a float that is no integer.
    Float(u64),
    Str(&'a [u8]),
    Bytes(&'a [u8]),
    Big(&'a [u8]),
    /// The first equal object.
    Same(Handle),
}

impl Values {
    /// A dict's entries as Python has them: of equal keys the first position and key object and the last value. For a call,
    /// the same of its `items`.
    pub fn entries(&self, handle: Handle) -> Result<Vec<(Handle, Handle)>> {
        let pairs = match self.get(handle) {
            Value::Dict(pairs) => pairs,
            Value::Call(id) => self.call(id).items,
            _ => return Err(Error::new(Code::PickleType, "entries are asked of a value that is no dict")),
        };
        self.unique(pairs)
    }

    /// Pairs as a dict would keep them: of equal keys the first position and key object and the last value.
    pub fn unique(&self, pairs: &[(Handle, Handle)]) -> Result<Vec<(Handle, Handle)>> {
        let mut places = HashMap::new();
        let mut entries: Vec<(Handle, Handle)> = Vec::new();
        places.try_reserve(pairs.len()).map_err(|_| no_memory())?;
        entries.try_reserve(pairs.len()).map_err(|_| no_memory())?;
        for &(key, value) in pairs {
            match places.entry(self.arena.key(&self.data, key)) {
                Entry::Vacant(place) => {
                    place.insert(entries.len());
                    entries.push((key, value));
                }
                Entry::Occupied(place) => {
                    if let Some(entry) = entries.get_mut(*place.get()) {
                        entry.1 = value;
                    }
                }
            }
        }
        Ok(entries)
    }

    /// Whether two of the keys are one key for Python; cheaper than [`Values::unique`] where all differ.
    pub fn has_equal_keys(&self, pairs: &[(Handle, Handle)]) -> bool {
        if pairs.len() < 2 {
            return false;
        }
        let data: &[u8] = &self.data;
        let hashes = pairs.iter().map(|&(key, _)| {
            let mut hasher = Quick(0);
            self.arena.key(data, key).hash(&mut hasher);
            hasher.finish()
        });
        !all_differ(hashes) && self.unique(pairs).is_ok_and(|entries| entries.len() < pairs.len())
    }

    /// A set's items as Python has them: of equal ones the first. For a call, the same of its `appended`.
    pub fn elements(&self, handle: Handle) -> Result<Vec<Handle>> {
        let items = match self.get(handle) {
            Value::Set(items) | Value::FrozenSet(items) => items,
            Value::Call(id) => self.call(id).appended,
            _ => return Err(Error::new(Code::PickleType, "elements are asked of a value that is no set")),
        };
        let mut seen = std::collections::HashSet::new();
        seen.try_reserve(items.len()).map_err(|_| no_memory())?;
        Ok(items.iter().copied().filter(|&item| seen.insert(self.arena.key(&self.data, item))).collect())
    }
}

/// Whether hashes are seen to differ. Where that takes long, as it does for hashes made to collide, it stays open.
fn all_differ(hashes: impl ExactSizeIterator<Item = u64>) -> bool {
    let count = hashes.len();
    let room = count.saturating_add(count >> 1).next_power_of_two();
    let mut marks: Vec<u32> = Vec::new();
    if marks.try_reserve_exact(room).is_err() {
        return false;
    }
    // The upper half of a hash is its place, the lower half its mark; places that are taken are passed over.
    marks.resize(room, 0);
    let last = wide(room.saturating_sub(1));
    let mut steps = count.saturating_mul(8);
    for hash in hashes {
        let mark = u32::try_from(hash & 0xffff_ffff).unwrap_or_default() | 1;
        let mut at = hash >> 32;
        loop {
            match usize::try_from(at & last).ok().and_then(|at| marks.get_mut(at)) {
                Some(free @ 0) => {
                    *free = mark;
                    break;
                }
                Some(other) if *other != mark && steps > 0 => {
                    (at, steps) = (at.wrapping_add(1), steps.saturating_sub(1));
                }
                _ => return false,
            }
        }
    }
    true
}

impl Arena {
    fn key<'a>(&'a self, data: &'a [u8], handle: Handle) -> Key<'a> {
        let short = |piece: Piece| if piece.len <= SHORT { Some(self.bytes(data, piece)) } else { None };
        let long = || Key::Same(self.long_keys.get(&handle).copied().unwrap_or(handle));
        match self.node(handle) {
            Node::None => Key::None,
            Node::Bool(value) => Key::Int(i64::from(value)),
            Node::Int(value) => Key::Int(value),
            Node::Float(value) => float_key(value, handle),
            Node::Str(piece) => short(piece).map_or_else(long, Key::Str),
            Node::Bytes(piece) => short(piece).map_or_else(long, Key::Bytes),
            Node::BigInt(piece) => match big_key(self.bytes(data, piece)) {
                Key::Big(bytes) if short(piece).is_some() => Key::Big(bytes),
                Key::Big(_) => long(),
                key => key,
            },
            Node::Tuple { canon, .. } => Key::Same(canon.unwrap_or(handle)),
            _ => Key::Same(handle),
        }
    }

    fn tuple(&self, handle: Handle) -> &[Handle] {
        match self.node(handle) {
            Node::Tuple { start, len, .. } => self.run(Span::of(start, len)),
            _ => &[],
        }
    }
}

/// Checks values as they become keys, and finds the first equal one of tuples and long strings.
pub(super) struct Interner {
    /// First objects by a hash of 32 bits; equal hashes of unequal objects probe on.
    seen: HashMap<u32, Handle>,
    state: RandomState,
    depth: u8,
    nodes: u16,
}

impl Interner {
    pub(super) fn new(limits: &Limits) -> Interner {
        Interner {
            seen: HashMap::new(),
            state: RandomState::new(),
            depth: u8::try_from(limits.key_depth).unwrap_or(u8::MAX),
            nodes: u16::try_from(limits.key_nodes).unwrap_or(u16::MAX),
        }
    }

    /// Fails when the value cannot be a key.
    #[inline]
    pub(super) fn check(&mut self, arena: &mut Arena, data: &[u8], handle: Handle) -> Result<()> {
        match arena.node(handle) {
            Node::Str(piece) | Node::Bytes(piece) | Node::BigInt(piece) => {
                if piece.len > SHORT {
                    self.intern_long(arena, data, handle, piece)
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

    fn intern_long(&mut self, arena: &mut Arena, data: &[u8], handle: Handle, piece: Piece) -> Result<()> {
        if arena.long_keys.contains_key(&handle) {
            return Ok(());
        }
        let bytes = arena.bytes(data, piece);
        let hash = self.state.hash_one(bytes);
        let first = self.first(hash, handle, |other| match (arena.node(handle), arena.node(other)) {
            (Node::Str(_), Node::Str(piece))
            | (Node::Bytes(_), Node::Bytes(piece))
            | (Node::BigInt(_), Node::BigInt(piece)) => arena.bytes(data, piece) == bytes,
            _ => false,
        })?;
        arena.long_keys.try_reserve(1).map_err(|_| no_memory())?;
        arena.long_keys.insert(handle, first);
        Ok(())
    }

    /// Interns a tuple after the tuples in it. The list of those under way is as short as the depth limit.
    fn intern_tuple(&mut self, arena: &mut Arena, data: &[u8], handle: Handle) -> Result<()> {
        let mut open = vec![handle];
        while let Some(&top) = open.last() {
            match self.measure(arena, data, top)? {
                Measure::First(child) => {
                    let depth = wide(open.len()).saturating_add(1);
                    Limits::check("key_depth", u64::from(self.depth), depth)?;
                    open.push(child);
                }
                Measure::Done { depth: new_depth, nodes: new_nodes } => {
                    let keys = |handle| arena.tuple(handle).iter().map(|&item| arena.key(data, item));
                    let mut hasher = self.state.build_hasher();
                    keys(top).for_each(|key| key.hash(&mut hasher));
                    let first = self.first(hasher.finish(), top, |other| {
                        matches!(arena.node(other), Node::Tuple { .. }) && keys(top).eq(keys(other))
                    })?;
                    if let Node::Tuple { start, len, .. } = arena.node(top) {
                        let (depth, nodes, canon) = (new_depth, new_nodes, Some(first));
                        arena.nodes.set(top, Node::Tuple { depth, nodes, start, len, canon })?;
                    }
                    open.pop();
                }
            }
        }
        Ok(())
    }

    /// The depth and expanded size of a tuple, or the first tuple in it that has none yet.
    fn measure(&mut self, arena: &mut Arena, data: &[u8], handle: Handle) -> Result<Measure> {
        let (mut deepest, mut size) = (0u8, 1u64);
        let len = arena.tuple(handle).len();
        let max = u64::from(self.nodes);
        Limits::check("key_nodes", max, wide(len))?;
        for at in 0..len {
            let Some(&child) = arena.tuple(handle).get(at) else { break };
            match arena.node(child) {
                Node::Tuple { canon: None, .. } => return Ok(Measure::First(child)),
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

    fn first(&mut self, hash: u64, handle: Handle, equal: impl Fn(Handle) -> bool) -> Result<Handle> {
        self.seen.try_reserve(1).map_err(|_| no_memory())?;
        let mut probe = u32::try_from(hash & 0xffff_ffff).unwrap_or_default();
        loop {
            match self.seen.entry(probe) {
                Entry::Vacant(place) => return Ok(*place.insert(handle)),
                Entry::Occupied(place) if equal(*place.get()) => return Ok(*place.get()),
                Entry::Occupied(_) => probe = probe.wrapping_add(1),
            }
        }
    }
}

enum Measure {
    First(Handle),
    Done { depth: u8, nodes: u16 },
}

fn float_key<'a>(value: f64, handle: Handle) -> Key<'a> {
    if value.is_nan() {
        return Key::Same(handle);
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
        Ok(up) if up <= 10 => Key::Int(signed.wrapping_shl(up)),
        Ok(_) if value == -9_223_372_036_854_775_808.0 => Key::Int(i64::MIN),
        Ok(up) => {
            let zeros = signed.trailing_zeros();
            Key::Scaled(signed >> zeros, up.saturating_add(zeros))
        }
    }
}

/// An integer beyond 64 bits: as a float would be keyed, if a double can hold it.
fn big_key(bytes: &[u8]) -> Key<'_> {
    let zero_bytes = bytes.iter().take_while(|&&byte| byte == 0).count();
    let rest = bytes.get(zero_bytes..).unwrap_or_default();
    let zero_bits = rest.first().map_or(0, |byte| byte.trailing_zeros());
    if rest.len() > 8 {
        return Key::Big(bytes);
    }
    let Some(value) = super::text::small(rest) else { return Key::Big(bytes) };
    let odd = value >> zero_bits;
    if odd.unsigned_abs() >= 1 << 53 {
        return Key::Big(bytes);
    }
    let shift = u32::try_from(zero_bytes).unwrap_or(u32::MAX).saturating_mul(8).saturating_add(zero_bits);
    Key::Scaled(odd, shift)
}

#[cold]
fn unhashable() -> Error {
    Error::new(Code::PickleType, "a list, dict, set or bytearray stands as a dict key or set item")
}

#[cold]
fn no_memory() -> Error {
    Error::new(Code::Memory, "no memory for the keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_floats_are_the_integers_they_equal() {
        for int in [0i64, 1, -1, 255, -256, 1 << 52, (1 << 53) - 1, 1 << 62, -(1 << 62), i64::MIN] {
            #[expect(clippy::as_conversions, reason = "these integers are exact as doubles")]
            let float = int as f64;
            assert_eq!(float_key(float, Handle::NONE), Key::Int(int));
        }
        assert_eq!(float_key(-0.0, Handle::NONE), Key::Int(0));
        assert_eq!(float_key(0.5, Handle::NONE), Key::Float(0.5f64.to_bits()));
        assert_eq!(float_key(f64::NAN, Handle::TRUE), Key::Same(Handle::TRUE));
    }

    #[test]
    fn hashes_differ_until_two_are_equal_or_it_takes_long() {
        let mixed = |at: u64| {
            let mut hasher = Quick(0);
            hasher.write_u64(at);
            hasher.finish()
        };
        for count in [0, 1, 2, 3, 100, 20_000] {
            assert!(all_differ((0..count).map(mixed).collect::<Vec<_>>().into_iter()), "{count}");
        }
        let twice: Vec<u64> = (0..1000).chain([7]).map(mixed).collect();
        assert!(!all_differ(twice.into_iter()));
        let colliding: Vec<u64> = (0..100_000).map(|at| at << 1).collect();
        assert!(!all_differ(colliding.into_iter()));
    }

    #[test]
    fn large_integers_and_floats_meet() {
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
