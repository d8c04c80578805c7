//! Looks codes of 4 bits up in tables of 16 results of two bytes.

use crate::dtype::DType;

/// The 16 results of a group of codes, of two bytes each.
pub type Table = [u8; 32];

/// What the codes of groups mean: `(number - zero) * scale`, rounded to `dtype`, which has two bytes.
#[derive(Clone, Copy)]
pub struct Groups<'a> {
    /// The number of each code.
    pub numbers: &'a [f32; 16],
    /// The zero point of each group.
    pub zeros: Option<&'a [f32]>,
    /// The scale of each group.
    pub scales: &'a [f32],
    /// That of results.
    pub dtype: DType,
    /// Whether results are written with non-temporal stores, where they fill cache lines.
    pub non_temporal: bool,
}

impl Groups<'_> {
    /// The first `count` of them; `None` if there are fewer.
    pub(in crate::kernel) fn first(self, count: usize) -> Option<Self> {
        let zeros = self.zeros.map(|zeros| zeros.get(..count));
        (zeros != Some(None)).then_some(Groups {
            zeros: zeros.flatten(),
            scales: self.scales.get(..count)?,
            ..self
        })
    }
}

/// Codes in pairs, of which as many in order are of the same group.
pub(in crate::kernel) struct Lookup<'a> {
    /// Two codes each.
    pub(in crate::kernel) bytes: &'a [u8],
    /// Whether the code in the upper half of a byte is the first.
    pub(in crate::kernel) is_high_first: bool,
    /// The bytes of the first group, and those of each of the others.
    pub(in crate::kernel) lens: (usize, usize),
    /// The results of both codes of each byte.
    pub(in crate::kernel) out: &'a mut [[u8; 4]],
}

impl Lookup<'_> {
    /// Looks up `N` bytes at a time in the results of their group.
    #[inline(always)]
    pub(super) fn run<T, const N: usize>(
        self,
        groups: impl Iterator<Item = T>,
        look_up: impl Fn(&T, bool, &[u8; N], &mut [[u8; 4]; N]),
    ) {
        let Lookup { mut bytes, is_high_first, lens: (mut len, others), mut out } = self;
        for results in groups {
            let count = len.min(bytes.len()).min(out.len());
            let ((own, bytes_left), (own_out, out_left)) = (bytes.split_at(count), out.split_at_mut(count));
            let ((many, few), (many_out, few_out)) = (own.as_chunks(), own_out.as_chunks_mut());
            for (out, bytes) in many_out.iter_mut().zip(many) {
                look_up(&results, is_high_first, bytes, out);
            }
            if !few.is_empty() {
                let (mut bytes, mut out) = ([0; N], [[0; 4]; N]);
                bytes[..few.len()].copy_from_slice(few);
                look_up(&results, is_high_first, &bytes, &mut out);
                few_out.copy_from_slice(&out[..few.len()]);
            }
            (bytes, out, len) = (bytes_left, out_left, others);
        }
    }
}

/// The portable loop.
#[inline(always)]
pub(super) fn portable(table: &Table, is_high_first: bool, bytes: &[u8; 8], out: &mut [[u8; 4]; 8]) {
    let results = table.as_chunks::<2>().0;
    for (out, byte) in out.iter_mut().zip(bytes) {
        let [low, high] = [byte & 15, byte >> 4].map(|code| results[usize::from(code)]);
        let ([a, b], [c, d]) = if is_high_first { (high, low) } else { (low, high) };
        *out = [a, b, c, d];
    }
}
