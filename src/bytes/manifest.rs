//! What files consist of: for each, the SHA-256 digests of its pieces.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use once_cell::race::OnceBox;
use sha2::{Digest as _, Sha256};

use crate::error::{Code, Error, Result, bail};
use crate::num::{to_u64, to_usize};
use crate::sha256::Hash;

/// The most bytes that are read, hashed and kept at once. A longer piece is hashed as a whole once; the states of that hash before
/// each unit of this size are kept, and tell from then on whether a unit is still the same.
pub const UNIT_MAX_BYTES: u64 = 8 << 20;

/// A SHA-256 digest.
pub type Digest = [u8; 32];

/// The digest of some bytes.
pub(super) fn digest(bytes: &[u8]) -> Digest {
    Sha256::digest(bytes).into()
}

/// Files by their names, and what each consists of. Shared by everything that is opened with it.
#[derive(Debug)]
pub struct Manifest(BTreeMap<String, Arc<ListedFile>>);

impl Manifest {
    /// The manifest of these files. Fails for two files of one name.
    pub fn new(files: impl IntoIterator<Item = (String, ListedFile)>) -> Result<Manifest> {
        let mut all = BTreeMap::new();
        for (name, file) in files {
            match all.entry(name) {
                Entry::Vacant(entry) => entry.insert(Arc::new(file)),
                Entry::Occupied(entry) => {
                    bail!(Code::ManifestInvalid, "the manifest lists {:?} twice", entry.key());
                }
            };
        }
        Ok(Manifest(all))
    }

    /// All files and their names, sorted by name.
    pub fn files(&self) -> impl Iterator<Item = (&str, &ListedFile)> {
        self.0.iter().map(|(name, file)| (name.as_str(), &**file))
    }

    /// The file of that name. Fails where it is not listed, with a similar name: sums made in another folder have other ones.
    pub fn get(&self, name: &str) -> Result<&Arc<ListedFile>> {
        self.0.get(name).ok_or_else(|| {
            let mut text = format!("the manifest does not list {name:?}");
            let is_below =
                |listed: &&String| listed.strip_suffix(name).is_some_and(|folder| folder.ends_with('/'));
            if let Some(listed) = self.0.keys().find(is_below) {
                text += &format!(
                    ": it lists {listed:?}, and names are those of files in the folder that is read"
                );
            }
            Error::new(Code::ManifestMissing, text)
        })
    }
}

/// The digests of a file's pieces, which are of one size but for the last.
#[derive(Debug)]
pub struct ListedFile {
    /// A number that no other file of this process has.
    pub(super) serial: u64,
    size: Option<u64>,
    piece: u64,
    pieces: Vec<Piece>,
    /// Held while a piece of several units is hashed as a whole.
    pub(super) pass: Mutex<()>,
}

#[derive(Debug)]
struct Piece {
    digest: Digest,
    /// The hash of all that is before each of its units, known once a piece of several units was found to have its digest.
    before: OnceBox<Vec<Hash>>,
}

/// What the bytes of a unit are hashed after, and what the digest of both has to be.
pub(super) struct Expected {
    pub(super) before: Hash,
    pub(super) digest: Digest,
}

/// A part of a file that is verified at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// The number of its piece, and where that begins and how long it is.
    piece: usize,
    piece_start: u64,
    piece_len: u64,
    /// Where it begins in the file, and its length.
    pub(super) start: u64,
    pub(super) len: u64,
}

impl ListedFile {
    /// A file of `size` bytes in pieces of `piece` bytes. Fails unless there is a digest for each.
    pub fn pieces(size: u64, piece: u64, digests: Vec<Digest>) -> Result<ListedFile> {
        let count = if piece == 0 { 0 } else { size.div_ceil(piece) };
        if count == 0 || count != to_u64(digests.len()) {
            bail!(
                Code::ManifestInvalid,
                "{} digest(s) for {size} byte(s) in pieces of {piece}",
                digests.len()
            );
        }
        Ok(ListedFile::new(Some(size), piece, digests))
    }

    /// A file of which the digest of the whole is known.
    pub fn whole(digest: Digest) -> ListedFile {
        ListedFile::new(None, u64::MAX, vec![digest])
    }

    fn new(size: Option<u64>, piece: u64, digests: Vec<Digest>) -> ListedFile {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let pieces = digests.into_iter().map(|digest| Piece { digest, before: OnceBox::new() }).collect();
        let serial = NEXT.fetch_add(1, Ordering::Relaxed);
        ListedFile { serial, size, piece, pieces, pass: Mutex::new(()) }
    }

    /// The size of the file and that of its pieces, in bytes; `None` where only the digest of the whole is known.
    pub fn size_and_piece(&self) -> Option<(u64, u64)> {
        self.size.map(|size| (size, self.piece))
    }

    /// The digests of its pieces.
    pub fn digests(&self) -> impl Iterator<Item = &Digest> {
        self.pieces.iter().map(|piece| &piece.digest)
    }

    /// The bytes of one unit; fewer at the end of a piece.
    pub(super) fn unit_bytes(&self) -> u64 {
        self.piece.min(UNIT_MAX_BYTES)
    }

    /// Fails where a file of `len` bytes cannot be this one. Of an empty file there is nothing else to verify.
    pub(super) fn check_len(&self, len: u64) -> Result<()> {
        let text = match self.size {
            Some(size) if size != len => format!("the file has {len} byte(s), and {size} in the manifest"),
            None if len == 0 && self.pieces.first().is_none_or(|piece| piece.digest != digest(&[])) => {
                "the file is empty, and is not in the manifest".to_owned()
            }
            _ => return Ok(()),
        };
        Err(Error::new(Code::ManifestMismatch, text))
    }

    /// The unit that has the byte at `offset` of a file of `len` bytes.
    pub(super) fn unit_at(&self, offset: u64, len: u64) -> Unit {
        let piece = offset.checked_div(self.piece).unwrap_or(0);
        let piece_start = piece.saturating_mul(self.piece);
        let piece_len = self.piece.min(len.saturating_sub(piece_start));
        let inner = offset.saturating_sub(piece_start);
        let before = inner.saturating_sub(inner % UNIT_MAX_BYTES);
        Unit {
            piece: to_usize(piece),
            piece_start,
            piece_len,
            start: piece_start.saturating_add(before),
            len: UNIT_MAX_BYTES.min(piece_len.saturating_sub(before)),
        }
    }

    /// What a unit has to be. Where that is not known, `read` reads the piece of which it is a part, one unit at a time, into the
    /// buffer that it gets, and hashes what it reads.
    pub(super) fn expected(
        &self,
        unit: Unit,
        read: impl FnMut(u64, &mut Vec<u8>, u64, &mut Hash) -> Result<()>,
    ) -> Result<Expected> {
        let missing = || Error::new(Code::ManifestMismatch, "the file is longer than in the manifest");
        let piece = self.pieces.get(unit.piece).ok_or_else(missing)?;
        if unit.piece_len <= UNIT_MAX_BYTES {
            return Ok(Expected { before: Hash::new(), digest: piece.digest });
        }
        let all = piece.before.get_or_try_init(|| Ok(Box::new(self.states(unit, piece, read)?)))?;
        let number = to_usize(unit.start.saturating_sub(unit.piece_start) / UNIT_MAX_BYTES);
        let before = all.get(number).ok_or_else(missing)?.clone();
        let after = all.get(number.saturating_add(1));
        let digest = after.map_or(piece.digest, |after| after.clone().finish());
        Ok(Expected { before, digest })
    }

    /// Whether [`ListedFile::expected`] has to read the whole piece.
    pub(super) fn is_known(&self, unit: Unit) -> bool {
        let found = self.pieces.get(unit.piece);
        unit.piece_len <= UNIT_MAX_BYTES || found.is_none_or(|piece| piece.before.get().is_some())
    }

    /// The hash before each unit of a piece, once the piece as a whole has its digest.
    fn states(
        &self,
        unit: Unit,
        piece: &Piece,
        mut read: impl FnMut(u64, &mut Vec<u8>, u64, &mut Hash) -> Result<()>,
    ) -> Result<Vec<Hash>> {
        let (mut hash, mut before, mut bytes) = (Hash::new(), Vec::new(), Vec::new());
        let end = unit.piece_start.saturating_add(unit.piece_len);
        let mut at = unit.piece_start;
        while at < end {
            before.push(hash.clone());
            read(at, &mut bytes, UNIT_MAX_BYTES.min(end.saturating_sub(at)), &mut hash)?;
            at = at.saturating_add(UNIT_MAX_BYTES);
        }
        if hash.finish() == piece.digest { Ok(before) } else { Err(self.mismatch(unit)) }
    }

    /// The error for bytes without the digest of their piece.
    pub(super) fn mismatch(&self, unit: Unit) -> Error {
        let (number, start) = (unit.piece, unit.piece_start);
        let end = start.saturating_add(unit.piece_len);
        match self.size {
            Some(_) => {
                let text = format!("piece {number}, bytes {start} to {end}, is not the one in the manifest");
                Error::new(Code::ManifestMismatch, text).at(start)
            }
            None => {
                let text = format!("the file differs from the manifest, somewhere in bytes {start} to {end}");
                Error::new(Code::ManifestMismatch, text)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_cover_every_piece() {
        let file = |piece: u64, len: u64| {
            let digests = vec![[0; 32]; usize::try_from(len.div_ceil(piece)).unwrap()];
            ListedFile::pieces(len, piece, digests).unwrap()
        };
        for (piece, len) in
            [(1, 3), (10, 10), (10, 25), (UNIT_MAX_BYTES, 3 * UNIT_MAX_BYTES), (9_000_000, 40_000_001)]
        {
            let (file, mut at) = (file(piece, len), 0);
            while at < len {
                let unit = file.unit_at(at, len);
                assert_eq!((unit.start, unit.len > 0), (at, true), "{piece} {len}");
                assert_eq!(unit, file.unit_at(at + unit.len - 1, len));
                assert!(unit.len <= UNIT_MAX_BYTES && (at + unit.len - 1) / piece == at / piece);
                at += unit.len;
            }
            assert_eq!(at, len);
        }
        let whole = ListedFile::whole([0; 32]);
        assert_eq!(whole.unit_at(UNIT_MAX_BYTES, UNIT_MAX_BYTES + 5).len, 5);
    }

    #[test]
    fn there_is_a_digest_for_each_piece() {
        for (size, piece, count) in [(10, 0, 1), (0, 5, 0), (10, 5, 1), (10, 5, 3), (u64::MAX, 1, 2)] {
            let found = ListedFile::pieces(size, piece, vec![[0; 32]; count]);
            assert_eq!(found.unwrap_err().code(), Code::ManifestInvalid, "{size} {piece} {count}");
        }
    }
}
