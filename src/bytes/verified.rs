//! Files that are read only as a [`Manifest`] lists them: nothing that was not compared with it leaves this module.
//!
//! A read gets the units that its range meets, whole. Each is read once and hashed where it was read to, so that what is hashed is what
//! is returned, whatever happens to the file meanwhile: in the destination, which is cleared if it is wrong; or, where only a part of the
//! unit is wanted, in memory of its own, which is kept for the reads of the rest.
#![forbid(unsafe_code)]

use std::array;
use std::mem;
use std::path::Path;
use std::sync::Arc;

use super::access::Access;
use super::folder::Folder;
use super::manifest::{Digest, Expected, ListedFile, Manifest, Unit};
use super::read_ranges::{ReadFolder, ReadRanges};
use super::source::Source;
use super::unit_cache::{Key, UnitCache};
use crate::error::{Code, Error, Result, ResultExt, bail};
use crate::num::{to_u64, to_usize};
use crate::parallel::Cancel;
use crate::sha256::{self, Hash};

/// Units are at least so far apart where a result is cut, so that threads do not wait for each other's.
const CUT_MIN_BYTES: u64 = 1 << 20;

/// The bytes of a file that are hashed right after they were read.
const HASHED_AT_ONCE_BYTES: usize = 128 << 10;

/// A folder whose files are read only as a manifest lists them.
#[derive(Clone)]
pub struct VerifiedFolder {
    folder: Folder,
    /// What names in the manifest begin with, of files in it.
    prefix: String,
    shared: Arc<Shared>,
}

struct Shared {
    manifest: Arc<Manifest>,
    cache: UnitCache,
}

impl VerifiedFolder {
    /// The folder; names in the manifest are those of files in it.
    pub fn new(folder: Folder, manifest: Arc<Manifest>) -> VerifiedFolder {
        VerifiedFolder::below(folder, String::new(), manifest)
    }

    /// As [`VerifiedFolder::new`], where names in the manifest begin with `prefix`: the path from the folder that it is of.
    pub fn below(folder: Folder, prefix: String, manifest: Arc<Manifest>) -> VerifiedFolder {
        VerifiedFolder { folder, prefix, shared: Arc::new(Shared { manifest, cache: UnitCache::new() }) }
    }
}

impl ReadFolder for VerifiedFolder {
    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn names(&self) -> Result<Vec<String>> {
        self.folder.names()
    }

    fn sizes(&self, names: &[&str]) -> Result<Vec<Option<u64>>> {
        self.folder.sizes(names)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn ReadRanges>> {
        let path = self.path().join(name);
        let full = format!("{}{name}", self.prefix);
        let listed = self.shared.manifest.get(&full).in_file(&path)?.clone();
        let source = self.folder.open(name)?;
        listed.check_len(source.len()).in_file(&path)?;
        let name = source.name().map_or_else(|| path.to_string_lossy().into_owned(), str::to_owned);
        Ok(Arc::new(Verified { folder: self.clone(), source, listed, name }))
    }

    fn folders(&self) -> Result<Vec<String>> {
        self.folder.folders()
    }

    fn folder(&self, name: &str) -> Result<Option<Arc<dyn ReadFolder>>> {
        let inner = |folder| VerifiedFolder {
            folder,
            prefix: format!("{}{name}/", self.prefix),
            shared: self.shared.clone(),
        };
        Ok(self.folder.folder(name)?.map(|folder| Arc::new(inner(folder)) as Arc<dyn ReadFolder>))
    }

    fn is_verified(&self) -> bool {
        true
    }
}

/// A file of the folder.
struct Verified {
    folder: VerifiedFolder,
    source: Source,
    listed: Arc<ListedFile>,
    name: String,
}

impl Verified {
    /// The bytes of a unit, which are those of the manifest.
    fn unit(&self, unit: Unit) -> Result<Arc<Vec<u8>>> {
        self.folder.shared.cache.get_or_read(self.key(unit), |bytes| {
            resize(bytes, unit.len)?;
            self.read_units([unit], [bytes])
        })
    }

    fn key(&self, unit: Unit) -> Key {
        (self.listed.serial, unit.start)
    }

    /// Fills each of `outs` with a unit, which is as long; all are equally long. What is there after a failure is not of the file.
    fn read_units<const N: usize>(&self, units: [Unit; N], mut outs: [&mut [u8]; N]) -> Result<()> {
        let (mut hashes, mut digests) = (units.map(|_| Hash::new()), units.map(|_| Digest::default()));
        for ((unit, hash), digest) in units.into_iter().zip(&mut hashes).zip(&mut digests) {
            Expected { before: *hash, digest: *digest } = self.expected(unit)?;
        }
        let read = self.read(units.map(|unit| unit.start), &mut outs, &mut hashes);
        let mut result = read;
        let is_read = result.is_ok();
        for (((unit, out), hash), digest) in units.into_iter().zip(outs).zip(hashes).zip(digests) {
            if !is_read || hash.finish() != digest {
                out.fill(0);
                result = result.and_then(|()| Err(self.listed.mismatch(unit)));
            }
        }
        result
    }

    /// What a unit has to be.
    fn expected(&self, unit: Unit) -> Result<Expected> {
        // One thread hashes a long piece, and the others wait for it.
        let lock = || self.folder.shared.cache.lock(&self.listed.pass);
        let _pass = (!self.listed.is_known(unit)).then(lock);
        self.listed.expected(unit, |at, bytes, len, hash| {
            resize(bytes, len)?;
            self.read([at], &mut [bytes], array::from_mut(hash))
        })
    }

    /// Fills each of `outs`, at most a unit, and hashes each block when it was read, as long as it is in the processor's cache.
    fn read<const N: usize>(
        &self,
        starts: [u64; N],
        outs: &mut [&mut [u8]; N],
        hashes: &mut [Hash; N],
    ) -> Result<()> {
        if Cancel::is_current_cancelled() {
            bail!(Code::Cancelled, "the operation was cancelled");
        }
        let len = outs.iter().map(|out| out.len()).min().unwrap_or(0);
        // A request to a store is not divided.
        let block = if self.source.file().is_some() { HASHED_AT_ONCE_BYTES } else { len.max(1) };
        for at in (0..len).step_by(block) {
            let range = at..len.min(at.saturating_add(block));
            for (start, out) in starts.into_iter().zip(outs.iter_mut()) {
                self.source.read_at(start.saturating_add(to_u64(at)), &mut out[range.clone()])?;
            }
            Hash::update(hashes, outs.each_ref().map(|out| &out[range.clone()]));
        }
        Ok(())
    }
}

/// Makes a buffer as long as a unit, of any content.
fn resize(bytes: &mut Vec<u8>, len: u64) -> Result<()> {
    let len = to_usize(len);
    if bytes.try_reserve_exact(len.saturating_sub(bytes.len())).is_err() {
        bail!(Code::Memory, "{len} byte(s) could not be allocated");
    }
    bytes.resize(len, 0);
    Ok(())
}

impl ReadRanges for Verified {
    fn size(&self) -> u64 {
        self.source.len()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let outside = || Error::new(Code::Truncated, "the range ends after the file");
        if to_u64(out.len()) > self.source.len().saturating_sub(offset) {
            return Err(outside());
        }
        let (mut at, mut rest) = (offset, out);
        while !rest.is_empty() {
            let unit = self.listed.unit_at(at, self.source.len());
            let next = self.listed.unit_at(at.saturating_add(unit.len), self.source.len());
            let (start, len) = (to_usize(at.saturating_sub(unit.start)), to_usize(unit.len));
            let is_fresh = |unit: Unit, at: usize| {
                rest.len().saturating_sub(at) >= len && !self.folder.shared.cache.has(self.key(unit))
            };
            // Whole units go to where they are wanted, two side by side.
            let wholes = match start == 0 && is_fresh(unit, 0) {
                true if next.len == unit.len && is_fresh(next, len) => 2,
                is_whole => usize::from(is_whole),
            };
            let count = if wholes > 0 {
                wholes.saturating_mul(len)
            } else {
                rest.len().min(len.saturating_sub(start))
            };
            let (out, later) = mem::take(&mut rest).split_at_mut(count);
            match (wholes, out.split_at_mut(len.min(count))) {
                _ if count == 0 => return Err(outside()),
                (2, (one, two)) => self.read_units([unit, next], [one, two])?,
                (1, (one, _)) => self.read_units([unit], [one])?,
                (_, (part, _)) => {
                    let bytes = self.unit(unit)?;
                    let found = bytes.get(start..).and_then(|found| found.get(..count));
                    part.copy_from_slice(found.ok_or_else(outside)?);
                }
            }
            (at, rest) = (at.saturating_add(to_u64(count)), later);
        }
        Ok(())
    }

    fn access(&self) -> Access {
        let inner = self.source.access();
        let unit = self.listed.unit_bytes();
        if unit < CUT_MIN_BYTES {
            return inner;
        }
        // Units that are hashed side by side are read by one thread; but a request is for one of them.
        let count = if inner.waits_for_requests() { 1 } else { sha256::lanes() };
        let block = inner.block.max(unit.saturating_mul(count));
        Access { block, small: inner.small.max(block), alignment: unit, ..inner }
    }

    fn check_unchanged(&self) -> Result<()> {
        self.source.check_unchanged()
    }

    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn identity(&self) -> Option<String> {
        self.source.identity()
    }

    fn folder(&self) -> Option<Arc<dyn ReadFolder>> {
        Some(Arc::new(self.folder.clone()))
    }
}

#[cfg(test)]
mod tests {
    use crate::sys::FileExt;
    use std::collections::BTreeMap;
    use std::fs::{self, File};
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::manifest::{UNIT_MAX_BYTES, digest};
    use super::*;
    use crate::bytes::Io;

    /// Bytes that do not repeat within a unit.
    fn content(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect()
    }

    fn pieces(bytes: &[u8], piece: usize) -> ListedFile {
        let digests = bytes.chunks(piece).map(digest).collect();
        ListedFile::pieces(to_u64(bytes.len()), to_u64(piece), digests).unwrap()
    }

    fn manifest(files: impl IntoIterator<Item = (&'static str, ListedFile)>) -> Arc<Manifest> {
        Arc::new(Manifest::new(files.into_iter().map(|(name, file)| (name.to_owned(), file))).unwrap())
    }

    fn on_disk(root: &Path, listed: ListedFile) -> VerifiedFolder {
        VerifiedFolder::new(Folder::Disk(root.to_owned(), Io::Auto), manifest([("a", listed)]))
    }

    fn code<T>(result: Result<T>) -> Option<Code> {
        result.err().map(|error| error.code())
    }

    fn read(file: &dyn ReadRanges, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut out = vec![0; len];
        file.read_at(offset, &mut out).map(|()| out)
    }

    /// The bytes of a store in memory, which count how many were read.
    #[derive(Clone)]
    struct Store(Arc<(BTreeMap<String, Vec<u8>>, AtomicU64)>);

    struct Object(Store, String);

    impl ReadFolder for Store {
        fn path(&self) -> &Path {
            Path::new("store://")
        }
        fn names(&self) -> Result<Vec<String>> {
            Ok(self.0.0.keys().cloned().collect())
        }
        fn sizes(&self, names: &[&str]) -> Result<Vec<Option<u64>>> {
            Ok(names.iter().map(|&name| Some(to_u64(self.0.0.get(name)?.len()))).collect())
        }
        fn open(&self, name: &str) -> Result<Arc<dyn ReadRanges>> {
            Ok(Arc::new(Object(self.clone(), name.to_owned())))
        }
    }

    impl ReadRanges for Object {
        fn size(&self) -> u64 {
            to_u64(self.0.0.0[&self.1].len())
        }
        fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
            self.0.0.1.fetch_add(to_u64(out.len()), Ordering::Relaxed);
            out.copy_from_slice(&self.0.0.0[&self.1][to_usize(offset)..][..out.len()]);
            Ok(())
        }
    }

    #[test]
    fn every_range_is_that_of_the_file() {
        let (root, bytes) = (tempfile::tempdir().unwrap(), content(10_000));
        fs::write(root.path().join("a"), &bytes).unwrap();
        for piece in [1, 7, 1000, 4096, 9_999, 10_000, 20_000] {
            let file = on_disk(root.path(), pieces(&bytes, piece)).open("a").unwrap();
            for (start, end) in [(0, 10_000), (1, 2), (999, 1001), (4095, 9999), (5000, 5000), (9999, 10_000)]
            {
                assert_eq!(read(&*file, to_u64(start), end - start).unwrap(), bytes[start..end], "{piece}");
            }
            assert_eq!(code(read(&*file, 9_999, 2)), Some(Code::Truncated));
        }
    }

    #[test]
    fn a_flipped_bit_fails_the_reads_of_its_piece_and_no_others() {
        let (root, bytes) = (tempfile::tempdir().unwrap(), content(5_000));
        let path = root.path().join("a");
        for flip in (0..5_000).step_by(97).chain([0, 999, 1000, 1001, 4_999]) {
            let mut bad = bytes.clone();
            bad[flip] ^= 1 << (flip % 8);
            fs::write(&path, &bad).unwrap();
            let folder = on_disk(root.path(), pieces(&bytes, 1000));
            let file = folder.open("a").unwrap();
            for start in (0..4_900).step_by(311) {
                let touched = start / 1000 * 1000..(start + 99) / 1000 * 1000 + 1000;
                let found = read(&*file, to_u64(start), 100);
                match touched.contains(&flip) {
                    true => {
                        let error = found.unwrap_err();
                        assert_eq!(error.code(), Code::ManifestMismatch);
                        assert_eq!(error.offset(), Some(to_u64(flip / 1000 * 1000)));
                    }
                    false => assert_eq!(found.unwrap(), bytes[start..start + 100]),
                }
            }
            let whole = on_disk(root.path(), ListedFile::whole(digest(&bytes))).open("a").unwrap();
            assert_eq!(code(read(&*whole, 0, 1)), Some(Code::ManifestMismatch));
        }
    }

    #[test]
    fn pieces_that_change_places_and_other_sizes_are_found() {
        let (root, bytes) = (tempfile::tempdir().unwrap(), content(3_000));
        let path = root.path().join("a");
        let folder = || on_disk(root.path(), pieces(&bytes, 1000));
        let swapped = [&bytes[..1000], &bytes[2000..], &bytes[1000..2000]].concat();
        fs::write(&path, swapped).unwrap();
        let file = folder().open("a").unwrap();
        assert_eq!(read(&*file, 0, 1000).unwrap(), bytes[..1000]);
        assert_eq!(code(read(&*file, 1000, 1)), Some(Code::ManifestMismatch));
        for other in [&bytes[..2_999], &[&bytes[..], b"x"].concat(), b""] {
            fs::write(&path, other).unwrap();
            assert_eq!(code(folder().open("a")), Some(Code::ManifestMismatch));
            let whole = on_disk(root.path(), ListedFile::whole(digest(&bytes))).open("a");
            assert_eq!(code(whole.and_then(|file| read(&*file, 0, 1))), Some(Code::ManifestMismatch));
        }
        fs::write(root.path().join("b"), b"1").unwrap();
        assert_eq!(code(folder().open("b")), Some(Code::ManifestMissing));
    }

    #[test]
    fn a_long_piece_is_hashed_once_and_what_it_has_later_is_compared_with_that() {
        let len = to_usize(UNIT_MAX_BYTES) * 2 + 12_345;
        let (root, bytes) = (tempfile::tempdir().unwrap(), content(len));
        let path = root.path().join("a");
        fs::write(&path, &bytes).unwrap();
        let file = on_disk(root.path(), ListedFile::whole(digest(&bytes))).open("a").unwrap();
        assert_eq!(read(&*file, 100, 10).unwrap(), bytes[100..110]);
        // The file changes in place after the pass over it.
        let at = UNIT_MAX_BYTES + 17;
        File::options().write(true).open(&path).unwrap().write_at(b"changed", at).unwrap();
        assert_eq!(code(read(&*file, at + 1000, 10)), Some(Code::ManifestMismatch));
        assert_eq!(read(&*file, 2 * UNIT_MAX_BYTES, 5).unwrap(), bytes[2 * to_usize(UNIT_MAX_BYTES)..][..5]);
    }

    #[test]
    fn a_piece_that_several_threads_want_is_read_once() {
        // Shorter pieces come from the block that each opened file keeps of a store.
        let piece = to_usize(Access::default().metadata_block);
        let bytes = content(4 * piece);
        let store = Store(Arc::new((BTreeMap::from([("a".to_owned(), bytes.clone())]), AtomicU64::new(0))));
        let listed = manifest([("a", pieces(&bytes, piece))]);
        let folder = VerifiedFolder::new(Folder::Store(Arc::new(store.clone())), listed);
        std::thread::scope(|scope| {
            for start in 0..8_u64 {
                let (folder, bytes) = (folder.clone(), &bytes);
                scope.spawn(move || {
                    let file = folder.open("a").unwrap();
                    for step in 0..8 {
                        let at = (start + step) % 8 * 32_500;
                        assert_eq!(read(&*file, at, 1000).unwrap(), bytes[to_usize(at)..][..1000]);
                    }
                });
            }
        });
        assert_eq!(store.0.1.load(Ordering::Relaxed), to_u64(bytes.len()));
    }

    #[test]
    fn a_destination_of_whole_pieces_is_filled_in_one_read_and_cleared_if_they_are_wrong() {
        let bytes = content(3 * to_usize(UNIT_MAX_BYTES));
        for (listed, passes) in
            [(pieces(&bytes, to_usize(UNIT_MAX_BYTES)), 1), (ListedFile::whole(digest(&bytes)), 2)]
        {
            let store =
                Store(Arc::new((BTreeMap::from([("a".to_owned(), bytes.clone())]), AtomicU64::new(0))));
            let listed = manifest([("a", listed)]);
            let folder = VerifiedFolder::new(Folder::Store(Arc::new(store.clone())), listed);
            assert_eq!(read(&*folder.open("a").unwrap(), 0, bytes.len()).unwrap(), bytes);
            assert_eq!(store.0.1.load(Ordering::Relaxed), passes * to_u64(bytes.len()));
            assert!(folder.shared.cache.is_empty());
        }
        let (root, mut out) = (tempfile::tempdir().unwrap(), vec![7; 3_000]);
        let mut bad = content(3_000);
        bad[1_500] ^= 1;
        fs::write(root.path().join("a"), bad).unwrap();
        let file = on_disk(root.path(), pieces(&content(3_000), 1_000)).open("a").unwrap();
        assert_eq!(code(file.read_at(0, &mut out)), Some(Code::ManifestMismatch));
        assert_eq!(out, [&content(1_000)[..], &[0; 1_000], &[7; 1_000]].concat());
    }
}
