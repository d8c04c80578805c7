//! A range of bytes whose end fits 64 bits.
#![forbid(unsafe_code)]

/// `len` bytes from `start`; the end does not overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Region {
    start: u64,
    len: u64,
}

impl Region {
    /// The range, or `None` if its end does not fit 64 bits.
    pub fn new(start: u64, len: u64) -> Option<Region> {
        start.checked_add(len).map(|_| Region { start, len })
    }

    /// The offset of the first byte.
    pub fn start(self) -> u64 {
        self.start
    }

    /// The number of bytes.
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether the range is empty.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// One past the last byte.
    pub fn end(self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Whether all of `other` lies inside this range.
    pub fn contains(self, other: Region) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// The smallest range that has all of both.
    pub fn hull(self, other: Region) -> Region {
        let start = self.start.min(other.start);
        Region { start, len: self.end().max(other.end()).saturating_sub(start) }
    }

    /// Where `inner` lies in this range, counted from its start; `None` if it does not lie inside.
    pub fn relative(self, inner: Region) -> Option<Region> {
        let start = inner.start.checked_sub(self.start)?;
        self.contains(inner).then_some(Region { start, len: inner.len })
    }

    /// `len` bytes from `start`, which counts from this range's start. `None` if they do not lie inside.
    pub fn subregion(self, start: u64, len: u64) -> Option<Region> {
        let subregion = Region::new(self.start.checked_add(start)?, len)?;
        self.contains(subregion).then_some(subregion)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subregion_lies_inside_its_region() {
        let region = Region::new(10, 5).unwrap();
        assert_eq!(region.subregion(1, 4), Region::new(11, 4));
        assert_eq!(region.subregion(1, 5), None);
        assert_eq!(region.subregion(u64::MAX, 1), None);
        assert_eq!(Region::new(u64::MAX, 1), None);
    }
}
