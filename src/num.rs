//! Conversions between the integer widths of files and of memory, in one place because parsers forbid `as`.
//!
//! `usize` has 32 or 64 bits here, so widening is exact. Narrowing saturates: the largest value is not a position in any buffer,
//! so the slice or allocation that uses it fails in its own terms.

/// A length or position in memory as the 64 bits that files count in.
#[inline]
pub fn to_u64(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// A number of 64 bits as a length or position in memory; saturates on 32-bit machines.
#[inline]
pub fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// A number of 32 bits as a position in memory.
#[inline]
pub fn u32_to_usize(n: u32) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// A position as 32 bits; saturates. For positions that a limit keeps below 4 GiB.
#[inline]
pub fn to_u32(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_is_exact_and_narrowing_saturates() {
        assert_eq!((to_u64(7), to_usize(7), u32_to_usize(7), to_u32(7)), (7, 7, 7, 7));
        assert_eq!((to_u64(usize::MAX), to_u32(usize::MAX)), (u64::MAX, u32::MAX));
        assert_eq!(to_usize(u64::MAX), usize::MAX);
    }
}
