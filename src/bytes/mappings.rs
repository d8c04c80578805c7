//! Copy-on-write mappings that one owner of views has to itself, such as a model: no other owner sees its in-place edits.
#![forbid(unsafe_code)]

use std::sync::{Arc, Mutex};

use super::{Mapping, Region, Source};
use crate::error::Result;
use crate::parallel::lock_unless_stuck;

/// One copy-on-write mapping per file, apart from the mapping that [`Source::map`] shares.
#[derive(Debug, Default)]
pub struct Mappings(Mutex<Vec<(Source, Arc<Mapping>)>>);

impl Mappings {
    /// As [`Source::map`], in this owner's mapping of the file, which is made at the first call.
    ///
    /// If two threads map a file at once, both get the same mapping.
    pub fn map(&self, source: &Source) -> Result<Option<(Arc<Mapping>, Region)>> {
        let source = &source.proved()?;
        let Some(file) = source.file() else { return Ok(None) };
        let find = |all: &[(Source, Arc<Mapping>)]| {
            all.iter().find(|(mapped, _)| mapped.same_backing(source)).map(|(_, mapping)| mapping.clone())
        };
        if let Some(mapping) = lock_unless_stuck(&self.0).and_then(|all| find(&all)) {
            source.check_unchanged()?;
            return Ok(Some((mapping, source.region())));
        }
        let new = Arc::new(file.map_unshared(true)?);
        let mapping = match lock_unless_stuck(&self.0) {
            None => new,
            Some(mut all) => find(&all).unwrap_or_else(|| {
                all.push((source.clone(), new.clone()));
                new
            }),
        };
        Ok(Some((mapping, source.region())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    // Windows has no copy-on-write mappings.
    #[cfg(unix)]
    #[test]
    fn each_owner_has_one_mapping_per_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"0123456789").unwrap();
        let source = Source::open(file.path()).unwrap();
        let (one, two) = (Mappings::default(), Mappings::default());
        let (first, region) = one.map(&source).unwrap().unwrap();
        let (part, window) = one.map(&source.window(2, 3).unwrap()).unwrap().unwrap();
        assert!(Arc::ptr_eq(&first, &part));
        assert_eq!((region.start(), region.len(), window.start(), window.len()), (0, 10, 2, 3));
        let (other, _) = two.map(&source).unwrap().unwrap();
        let (shared, _) = source.map(true).unwrap().unwrap();
        assert!(!Arc::ptr_eq(&first, &other) && !Arc::ptr_eq(&first, &shared));
        assert_ne!(first.address(region), other.address(region));
        assert!(one.map(&Source::memory(Arc::new(*b"0123"))).unwrap().is_none());
    }

    // Windows has no copy-on-write mappings.
    #[cfg(unix)]
    #[test]
    fn a_cut_file_is_not_mapped() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"0123456789").unwrap();
        let source = Source::open(file.path()).unwrap();
        let owner = Mappings::default();
        owner.map(&source).unwrap();
        file.as_file().set_len(4).unwrap();
        assert!(owner.map(&source).is_err());
        assert!(Mappings::default().map(&source).is_err());
    }
}
