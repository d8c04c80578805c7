//! Looks codes of 4 bits up in tables of 16 results of two bytes.

/// The 16 results of a group of codes, of two bytes each.
pub type Table = [u8; 32];

/// What eight bytes of codes are looked up to.
pub(super) type Sixteen = [[u8; 4]; 8];

/// Codes in pairs, of which as many in order have the same table.
pub(in crate::kernel) struct Lookup<'a> {
    /// Two codes each.
    pub(in crate::kernel) bytes: &'a [u8],
    /// Whether the code in the upper half of a byte is the first.
    pub(in crate::kernel) is_high_first: bool,
    pub(in crate::kernel) tables: &'a [Table],
    /// The bytes that have the first table, and those that have each of the others.
    pub(in crate::kernel) lens: (usize, usize),
    /// The results of both codes of each byte.
    pub(in crate::kernel) out: &'a mut [[u8; 4]],
}

impl Lookup<'_> {
    /// Looks up eight bytes at a time with `sixteen`, and the rest of a group with [`portable`].
    #[inline(always)]
    pub(super) fn run(self, sixteen: impl Fn(&Table, bool, &[u8; 8], &mut Sixteen)) {
        let Lookup { mut bytes, is_high_first, tables, lens: (mut len, others), mut out } = self;
        for table in tables {
            let count = len.min(bytes.len()).min(out.len());
            let ((own, bytes_left), (own_out, out_left)) = (bytes.split_at(count), out.split_at_mut(count));
            let ((eights, few), (sixteens, few_out)) = (own.as_chunks(), own_out.as_chunks_mut());
            for (out, eight) in sixteens.iter_mut().zip(eights) {
                sixteen(table, is_high_first, eight, out);
            }
            portable(table, is_high_first, few, few_out);
            (bytes, out, len) = (bytes_left, out_left, others);
        }
    }
}

/// The portable loop.
#[inline(always)]
pub(super) fn portable(table: &Table, is_high_first: bool, bytes: &[u8], out: &mut [[u8; 4]]) {
    let results = table.as_chunks::<2>().0;
    for (out, byte) in out.iter_mut().zip(bytes) {
        let [low, high] = [byte & 15, byte >> 4].map(|code| results[usize::from(code)]);
        let ([a, b], [c, d]) = if is_high_first { (high, low) } else { (low, high) };
        *out = [a, b, c, d];
    }
}
