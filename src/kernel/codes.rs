//! Turns the packed codes of quantized weights into numbers: unpacks rows of codes to f32, or looks them up among results.

use super::Overflow;
pub use super::arch::{Groups, Table};
use super::arch::{Level, Lookup, RowKernel};
use super::integers::{Across, EVEN_FIRST, EvenFirst, Integers, word};
use crate::dtype::DType;

/// The number of entries of the table of a [`Number`].
pub const TABLE_LEN: usize = 256;
/// The number of codes of 4 bits.
pub const CODES_OF_4_BITS: usize = 16;

/// The numbers of E2M1 codes.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// The order of the codes in a row of packed bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One after another, from the lowest bit on, across the words of a little-endian row.
    Dense,
    /// As many whole codes as fit in each 32-bit word, from its lowest bit on.
    Words,
    /// Pairs of 4-bit codes, of which the upper half of the byte comes first.
    HighFirst,
    /// Eight 4-bit codes in each 32-bit word, of which those of even columns come first (AWQ).
    EvenFirst,
}

/// What number a code means.
#[derive(Clone, Debug, PartialEq)]
pub enum Number {
    /// `((code + add) mod 2^bits ^ flip) - offset`.
    Integer {
        /// Added first.
        add: u32,
        /// Bits that are inverted then.
        flip: u32,
        /// Subtracted at last.
        offset: i32,
    },
    /// A number of this float dtype of one byte.
    Float(DType),
    /// The E2M1 number of 4 bits (FP4).
    E2M1,
    /// An entry of the table.
    Table(Box<[f32; TABLE_LEN]>),
}

/// How codes of 1 to 8 bits are packed, and what they mean.
#[derive(Clone, Debug)]
pub struct Codes {
    bits: u32,
    order: Order,
    number: Number,
    word_add: u32,
}

/// Unpacks codes: they and their numbers.
#[derive(Debug)]
pub struct Unpacker<'c> {
    codes: &'c Codes,
    table: [f32; TABLE_LEN],
}

impl Codes {
    /// Codes of `bits` bits; `None` unless that is 1 to 8.
    pub fn new(bits: u32, order: Order, number: Number) -> Option<Codes> {
        if !(1..=8).contains(&bits) {
            return None;
        }
        Some(Codes { bits, order, number, word_add: 0 })
    }

    /// What unpacks them.
    pub fn unpacker(&self) -> Unpacker<'_> {
        Unpacker { codes: self, table: self.number.table(self.bits) }
    }

    /// The same codes, with a number added to each whole 32-bit word before codes are taken from it: carries reach the next code.
    #[must_use]
    pub fn with_word_add(self, word_add: u32) -> Codes {
        Codes { word_add, ..self }
    }

    /// Whether the first code of each byte is that of its upper half, if each has two.
    pub fn is_high_first(&self) -> Option<bool> {
        match self.order {
            Order::Dense | Order::Words if self.bits == 4 && self.word_add == 0 => Some(false),
            Order::HighFirst if self.word_add == 0 => Some(true),
            _ => None,
        }
    }

    /// What the codes are if they are whole numbers.
    fn integers(&self) -> Option<Integers> {
        let &Number::Integer { add, flip, offset } = &self.number else { return None };
        Some(Integers { mask: (1 << self.bits) - 1, add, flip, offset })
    }

    /// The bits of a code.
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// A number that is added to each whole 32-bit word.
    #[cfg(any(feature = "python", test))]
    pub fn word_add(&self) -> u32 {
        self.word_add
    }

    /// After how many bytes, whole words of `unit` of them, the order of codes repeats, and where each code of these begins, in bits.
    #[cfg(any(feature = "python", test))]
    pub fn period(&self, unit: u64) -> (u64, Vec<u64>) {
        let bits = u64::from(self.bits);
        let (bytes, count) = match self.order {
            Order::Words | Order::EvenFirst => (4, 32 / bits),
            Order::Dense | Order::HighFirst => {
                let is_whole = |bytes: &u64| (8 * bytes).is_multiple_of(bits);
                let bytes = (1..=8).map(|words| words * unit).find(is_whole).unwrap_or(bits * unit);
                (bytes, 8 * bytes / bits)
            }
        };
        (bytes, (0..count as usize).map(|code| self.bit(code) as u64).collect())
    }

    /// The number of each code of 4 bits.
    pub fn sixteen(&self) -> [f32; CODES_OF_4_BITS] {
        let table = self.number.table(self.bits);
        std::array::from_fn(|code| table[code])
    }

    /// The number of each code.
    #[cfg(any(feature = "python", test))]
    pub fn numbers(&self) -> Vec<f32> {
        self.number.table(self.bits)[..1 << self.bits].to_vec()
    }

    /// The bytes that the codes from `start` to `end` of a row lie in, whole 32-bit words where codes are in words.
    pub fn bytes(&self, start: u64, end: u64) -> (u64, u64) {
        let bits = u64::from(self.bits);
        let words = |unit: u64, codes: u64| (start / codes * unit, end.div_ceil(codes) * unit);
        match self.order {
            Order::Dense if self.word_add != 0 => words(4, 32 / bits),
            Order::Dense => (start * bits / 8, (end * bits).div_ceil(8)),
            Order::Words => words(4, 32 / bits),
            Order::HighFirst => words(1, 2),
            Order::EvenFirst => words(4, 8),
        }
    }

    /// The word of rows, of `unit` bytes, that has the codes of a row, and where they begin in it, in bits.
    pub fn across(&self, row: u64, unit: u64) -> (u64, u32) {
        let (bits, word) = (u64::from(self.bits), 8 * unit);
        match self.order {
            Order::Words => (row / (word / bits), (row % (word / bits) * bits) as u32),
            _ => (row * bits / word, (row * bits % word) as u32),
        }
    }

    /// Where a code begins, in bits.
    fn bit(&self, code: usize) -> usize {
        let bits = self.bits as usize;
        match self.order {
            Order::Dense => code * bits,
            Order::Words => code / (32 / bits) * 32 + code % (32 / bits) * bits,
            Order::HighFirst => code / 2 * 8 + (1 - code % 2) * 4,
            Order::EvenFirst => code / 8 * 32 + EVEN_FIRST[code % 8] * 4,
        }
    }
}

impl Unpacker<'_> {
    /// Unpacks `out.len()` codes of a row from number `start` on. `bytes` begins with the byte that [`Codes::bytes`] says for them;
    /// codes that lie outside it are 0.
    pub fn unpack(&self, bytes: &[u8], start: u64, out: &mut [f32]) {
        let first = self.codes.bytes(start, start).0;
        let skipped = first as usize * 8;
        let start = start as usize;
        let mut rest = out;
        let mut at = start;
        if self.codes.word_add == 0 {
            if let Some(is_high_first) = self.codes.is_high_first() {
                if at % 2 == 1 && !rest.is_empty() {
                    rest[0] = self.one(bytes, self.codes.bit(at) - skipped);
                    rest = &mut rest[1..];
                    at += 1;
                }
                let from = bytes.get((at / 2).saturating_sub(first as usize)..).unwrap_or_default();
                let whole = rest.len() / 2;
                for (out, &byte) in rest.as_chunks_mut().0.iter_mut().zip(from) {
                    let [low, high] = [byte & 15, byte >> 4].map(|code| self.table[usize::from(code)]);
                    *out = if is_high_first { [high, low] } else { [low, high] };
                }
                rest = &mut rest[whole * 2..];
                at += whole * 2;
            } else if self.codes.bits == 8 {
                let from = bytes.get(at - first as usize..).unwrap_or_default();
                let whole = rest.len().min(from.len());
                let (from, wanted) = (&from[..whole], &mut rest[..whole]);
                let convert = self.codes.number.dtype().and_then(to_f32);
                match (self.codes.integers(), convert) {
                    (Some(numbers), _) => {
                        let words = from.as_chunks::<1>().0;
                        Level::used().run(Across { numbers, bit: 0, words, next: None, out: wanted });
                    }
                    (None, Some(convert)) => convert(from, bytemuck::cast_slice_mut(wanted)),
                    (None, None) => {
                        for (out, &byte) in wanted.iter_mut().zip(from) {
                            *out = self.table[usize::from(byte)];
                        }
                    }
                }
                rest = &mut [];
            } else if let (Order::EvenFirst, Some(numbers)) = (self.codes.order, self.codes.integers()) {
                while !at.is_multiple_of(8) && !rest.is_empty() {
                    rest[0] = self.one(bytes, self.codes.bit(at) - skipped);
                    rest = &mut rest[1..];
                    at += 1;
                }
                let words = bytes.get((at / 2).saturating_sub(first as usize)..).unwrap_or_default();
                let whole = rest.len() / 8;
                let (words, wholes) = (words.as_chunks().0, rest.as_chunks_mut().0);
                Level::used().run(EvenFirst { numbers, words, out: wholes });
                rest = &mut rest[whole * 8..];
                at += whole * 8;
            }
        }
        for (code, out) in (at..).zip(rest) {
            *out = self.one(bytes, self.codes.bit(code) - skipped);
        }
    }

    /// The number of the code at a bit.
    fn one(&self, bytes: &[u8], bit: usize) -> f32 {
        let byte = |at: usize| u32::from(bytes.get(at).copied().unwrap_or_default());
        let code = if self.codes.word_add == 0 {
            (byte(bit / 8) | byte(bit / 8 + 1) << 8) >> (bit % 8)
        } else {
            let word = (0..4).fold(0, |word, at| word | byte(bit / 32 * 4 + at) << (8 * at));
            word.wrapping_add(self.codes.word_add) >> (bit % 32)
        };
        self.table[code as usize & ((1 << self.codes.bits) - 1)]
    }

    /// Unpacks one row of codes that are packed along columns: those at `bit` of the words of `low`, of which `high` are the next.
    /// Words have `N` bytes.
    pub fn unpack_across<const N: usize>(&self, low: &[u8], high: &[u8], bit: u32, out: &mut [f32]) {
        let (low, high, bits) = (low.as_chunks::<N>().0, high.as_chunks::<N>().0, self.codes.bits);
        let next = (bit + bits > 8 * N as u32).then_some(high);
        match self.codes.integers() {
            Some(numbers) if next.is_none_or(|next| next.len() >= low.len()) => {
                Level::used().run(Across { numbers, bit, words: low, next, out });
            }
            _ => {
                for (at, (out, &low)) in out.iter_mut().zip(low).enumerate() {
                    let high = next.and_then(|next| next.get(at)).map_or(0, |&high| word(high) << (32 - bit));
                    *out = self.table[((word(low) >> bit | high) & ((1 << bits) - 1)) as usize];
                }
            }
        }
    }
}

/// Pairs of 4-bit codes, in groups of which each but the first has `width` codes, and that `skip` fewer. Both are even.
#[derive(Clone, Copy)]
pub struct Pairs<'a> {
    /// Two codes each.
    pub bytes: &'a [u8],
    /// Whether the code in the upper half of a byte is the first.
    pub is_high_first: bool,
    /// The codes of a group that come before.
    pub skip: usize,
    /// The codes of a group.
    pub width: usize,
}

impl<'a> Pairs<'a> {
    /// The number of their groups.
    pub fn groups(&self) -> usize {
        self.skip.saturating_add(self.bytes.len() * 2).div_ceil(self.width.max(1))
    }

    /// Looks them up in the table of their group.
    pub fn look_up(self, tables: &[Table], out: &mut [u8]) {
        Level::used().look_up(self.into_lookup(out), tables);
    }

    /// Looks them up in what their groups say, where the level does that without tables. Returns whether it did.
    pub fn scale_and_look_up(self, groups: Groups<'_>, out: &mut [u8]) -> bool {
        groups
            .first(self.groups())
            .is_some_and(|groups| Level::used().scale_and_look_up(self.into_lookup(out), groups))
    }

    fn into_lookup<'l>(self, out: &'l mut [u8]) -> Lookup<'l>
    where
        'a: 'l,
    {
        let Pairs { bytes, is_high_first, skip, width } = self;
        Lookup { bytes, is_high_first, lens: ((width - skip) / 2, width / 2), out: out.as_chunks_mut().0 }
    }
}

/// The row kernel that widens a float dtype of one byte.
fn to_f32(dtype: DType) -> Option<RowKernel> {
    Level::used().row_kernel(dtype, DType::F32, Overflow::Nan)
}

impl Number {
    fn dtype(&self) -> Option<DType> {
        if let Number::Float(dtype) = self { Some(*dtype) } else { None }
    }

    /// The number of each code.
    fn table(&self, bits: u32) -> [f32; TABLE_LEN] {
        let mut table = [0.0; TABLE_LEN];
        match self {
            &Number::Integer { add, flip, offset } => {
                let numbers = Integers { mask: (1 << bits) - 1, add, flip, offset };
                for (code, entry) in (0_u32..1 << bits).zip(&mut table) {
                    *entry = numbers.of(code);
                }
            }
            Number::Float(dtype) => {
                let codes: Vec<u8> = (0..=u8::MAX).collect();
                if let Some(convert) = to_f32(*dtype) {
                    convert(&codes, bytemuck::cast_slice_mut(&mut table));
                }
            }
            Number::E2M1 => table[..E2M1.len()].copy_from_slice(&E2M1),
            Number::Table(all) => table = **all,
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes of a row in the order of its columns, by the definition of each order.
    fn packed(codes: &[u32], bits: u32, order: Order) -> Vec<u8> {
        let bits = bits as usize;
        let mut bytes = vec![0_u8; codes.len() * 4 + 8];
        for (at, &code) in codes.iter().enumerate() {
            let bit = match order {
                Order::Dense => at * bits,
                Order::Words => at / (32 / bits) * 32 + at % (32 / bits) * bits,
                Order::HighFirst => at / 2 * 8 + if at % 2 == 0 { 4 } else { 0 },
                Order::EvenFirst => {
                    let within = [0, 2, 4, 6, 1, 3, 5, 7].iter().position(|&column| column == at % 8);
                    at / 8 * 32 + within.unwrap() * 4
                }
            };
            for each in 0..bits {
                bytes[(bit + each) / 8] |= ((code >> each & 1) as u8) << ((bit + each) % 8);
            }
        }
        bytes
    }

    #[test]
    fn rows_of_every_order_unpack_from_any_code_on() {
        let integer = |offset| Number::Integer { add: 0, flip: 0, offset };
        for (bits, order) in (1..=8)
            .flat_map(|bits| [(bits, Order::Dense), (bits, Order::Words)])
            .chain([(4, Order::HighFirst), (4, Order::EvenFirst)])
        {
            let wanted: Vec<u32> =
                (0..77_u32).map(|at| at.wrapping_mul(2_654_435_761) >> 7 & ((1 << bits) - 1)).collect();
            let bytes = packed(&wanted, bits, order);
            let codes = Codes::new(bits, order, integer(1 << (bits - 1))).unwrap();
            for (start, end) in [(0, 77), (1, 77), (2, 5), (7, 40), (33, 76), (5, 5), (32, 64)] {
                let (first, last) = codes.bytes(start, end);
                let mut out = vec![f32::NAN; (end - start) as usize];
                codes.unpacker().unpack(&bytes[first as usize..last as usize], start, &mut out);
                for (out, code) in out.iter().zip(&wanted[start as usize..]) {
                    assert_eq!(*out, *code as f32 - (1 << (bits - 1)) as f32, "{bits} {order:?} {start}");
                }
            }
        }
        assert!(
            Codes::new(0, Order::Dense, integer(0)).is_none()
                && Codes::new(9, Order::Dense, integer(0)).is_none()
        );
    }

    #[test]
    fn the_order_of_codes_repeats_after_whole_words() {
        let period = |bits, order, unit| {
            Codes::new(bits, order, Number::E2M1).map(|codes| codes.period(unit)).unwrap_or_default()
        };
        assert_eq!(period(4, Order::Dense, 1), (1, vec![0, 4]));
        assert_eq!(period(4, Order::HighFirst, 1), (1, vec![4, 0]));
        assert_eq!(period(3, Order::Dense, 1), (3, vec![0, 3, 6, 9, 12, 15, 18, 21]));
        assert_eq!(period(3, Order::Dense, 4), (12, (0..32).map(|code| 3 * code).collect()));
        assert_eq!(period(5, Order::Words, 1), (4, vec![0, 5, 10, 15, 20, 25]));
        assert_eq!(period(4, Order::EvenFirst, 1), (4, vec![0, 16, 4, 20, 8, 24, 12, 28]));
    }

    #[test]
    fn an_addition_wraps_in_each_code_or_carries_within_the_word() {
        let bytes = 0x0000_f0ff_u32.to_le_bytes();
        let mut out = [0.0; 8];
        let each = Codes::new(4, Order::Dense, Number::Integer { add: 1, flip: 0, offset: 0 }).unwrap();
        each.unpacker().unpack(&bytes, 0, &mut out);
        assert_eq!(out, [0.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
        let word = Codes::new(4, Order::Dense, Number::Integer { add: 0, flip: 0, offset: 0 }).unwrap();
        let word = word.with_word_add(0x1111_1111);
        word.unpacker().unpack(&bytes, 0, &mut out);
        assert_eq!(out, [0.0, 1.0, 2.0, 0.0, 2.0, 1.0, 1.0, 1.0]);
    }

    #[test]
    fn codes_across_rows_may_straddle_two_words() {
        let (low, high) = (0xc000_0005_u32.to_le_bytes(), 0x0000_0001_u32.to_le_bytes());
        let codes = Codes::new(3, Order::Dense, Number::Integer { add: 0, flip: 0, offset: 0 }).unwrap();
        let mut out = [0.0];
        codes.unpacker().unpack_across::<4>(&low, &high, 0, &mut out);
        assert_eq!(out, [5.0]);
        codes.unpacker().unpack_across::<4>(&low, &high, 30, &mut out);
        assert_eq!(out, [7.0]);
        let signed = Codes::new(4, Order::Dense, Number::Integer { add: 0, flip: 8, offset: 8 }).unwrap();
        signed.unpacker().unpack_across::<1>(&[0x9f], &[], 4, &mut out);
        assert_eq!(out, [-7.0]);
        signed.unpacker().unpack_across::<1>(&[0x9f], &[], 0, &mut out);
        assert_eq!(out, [-1.0]);
    }
}
