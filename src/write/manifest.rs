//! Manifests of what is written: the digests of pieces, taken from the bytes as they are written, and the text that lists them.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest as _, Sha256};

use super::shards::ascii_json;
use super::staged::{check_target, folder_of};
use super::{PreparedFile, WriteOptions};
use crate::bytes::{Digest, ListedFile, Manifest, UNIT_MAX_BYTES};
use crate::error::{Code, Error, Result};
use crate::num::{to_u64, to_usize};
use crate::parallel::lock;

/// The bytes of a piece in a manifest that is written.
const PIECE_BYTES: u64 = UNIT_MAX_BYTES;

/// The most bytes that are copied because those before them in their piece come later.
const KEPT_MAX_BYTES: u64 = 64 << 20;

/// The bytes that are read back at once.
const READ_BACK_BYTES: u64 = 1 << 20;

/// The end of a manifest's name, after that of the file or folder.
const SUFFIX: &str = ".manifest.json";

/// Files and folders that model signing leaves out.
const IGNORED: [&str; 4] = [".git", ".gitattributes", ".github", ".gitignore"];

/// The digests of a file's pieces, from the bytes as they are written. Several threads may write.
///
/// Bytes of a piece are hashed in order. Those that come too early are copied until their turn; where these copies would take too much
/// memory, bytes are written twice, or come from an earlier call, the piece is read back.
#[derive(Debug)]
pub(super) struct PieceDigests {
    len: u64,
    pieces: Vec<Mutex<Piece>>,
    /// The bytes of all copies.
    kept: AtomicU64,
}

#[derive(Debug)]
enum Piece {
    Partial(Option<Box<Partial>>),
    Complete(Digest),
    /// To be read back.
    Unknown,
}

#[derive(Debug, Default)]
struct Partial {
    hash: Sha256,
    hashed: u64,
    /// Copies of later bytes, by their offset in the piece.
    later: BTreeMap<u64, Vec<u8>>,
}

impl PieceDigests {
    /// For a file of `len` bytes.
    pub(super) fn new(len: u64) -> PieceDigests {
        let count = len.div_ceil(PIECE_BYTES);
        let pieces = (0..count).map(|_| Mutex::new(Piece::Partial(None))).collect();
        PieceDigests { len, pieces, kept: AtomicU64::new(0) }
    }

    /// Takes note of bytes that were written at an offset.
    pub(super) fn update(&self, offset: u64, bytes: &[u8]) {
        let (mut offset, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let within = offset % PIECE_BYTES;
            let (part, after) = rest.split_at(rest.len().min(to_usize(PIECE_BYTES - within)));
            let number = offset / PIECE_BYTES;
            if let Some(piece) = self.pieces.get(to_usize(number)) {
                let mut piece = lock(piece);
                self.update_piece(&mut piece, self.piece_len(number), within, part);
            }
            (offset, rest) = (offset + to_u64(part.len()), after);
        }
    }

    fn piece_len(&self, number: u64) -> u64 {
        PIECE_BYTES.min(self.len.saturating_sub(number * PIECE_BYTES))
    }

    fn update_piece(&self, piece: &mut Piece, len: u64, within: u64, bytes: &[u8]) {
        let nbytes = to_u64(bytes.len());
        let Piece::Partial(partial) = piece else {
            *piece = Piece::Unknown;
            return;
        };
        let partial = partial.get_or_insert_default();
        if within == partial.hashed {
            partial.hash.update(bytes);
            partial.hashed += nbytes;
            while let Some(next) = partial.later.remove(&partial.hashed) {
                partial.hash.update(&next);
                partial.hashed += to_u64(next.len());
                self.kept.fetch_sub(to_u64(next.len()), Ordering::Relaxed);
            }
            if partial.hashed == len && partial.later.is_empty() {
                *piece = Piece::Complete(std::mem::take(&mut partial.hash).finalize().into());
            }
            return;
        }
        let is_early = within > partial.hashed && !partial.later.contains_key(&within);
        if is_early && self.kept.fetch_add(nbytes, Ordering::Relaxed) + nbytes <= KEPT_MAX_BYTES {
            partial.later.insert(within, bytes.to_vec());
            return;
        }
        let later: u64 = partial.later.values().map(|bytes| to_u64(bytes.len())).sum();
        self.kept.fetch_sub(later + if is_early { nbytes } else { 0 }, Ordering::Relaxed);
        *piece = Piece::Unknown;
    }

    /// The file as a manifest lists it; `None` for an empty one. `read` fills a buffer with the bytes at an offset.
    pub(super) fn finish(self, read: impl Fn(u64, &mut [u8]) -> Result<()>) -> Result<Option<ListedFile>> {
        if self.len == 0 {
            return Ok(None);
        }
        let mut digests = Vec::with_capacity(self.pieces.len());
        let mut buffer = Vec::new();
        for (number, piece) in (0..).zip(&self.pieces) {
            if let Piece::Complete(digest) = *lock(piece) {
                digests.push(digest);
                continue;
            }
            let (mut hash, start, len) = (Sha256::new(), number * PIECE_BYTES, self.piece_len(number));
            for at in (0..len).step_by(to_usize(READ_BACK_BYTES)) {
                buffer.resize(to_usize(READ_BACK_BYTES.min(len - at)), 0);
                read(start + at, &mut buffer)?;
                hash.update(&buffer);
            }
            digests.push(hash.finalize().into());
        }
        ListedFile::pieces(self.len, PIECE_BYTES, digests).map(Some)
    }
}

/// The manifest that is written beside a file or folder.
pub(super) struct ManifestBeside {
    path: PathBuf,
    /// The name of the file or folder.
    name: String,
    files: Vec<(String, ListedFile)>,
}

impl ManifestBeside {
    /// That of a target, if `options` ask for one. Fails if one is there that may not be replaced.
    pub(super) fn new(target: &Path, options: &WriteOptions) -> Result<Option<ManifestBeside>> {
        if !options.manifest {
            return Ok(None);
        }
        let no_name = || Error::new(Code::Value, "a manifest has no name for this path").in_file(target);
        let name = target.file_name().and_then(|name| name.to_str()).ok_or_else(no_name)?;
        let path = folder_of(target).join(format!("{name}{SUFFIX}"));
        check_target(&path, options.overwrite)?;
        Ok(Some(ManifestBeside { path, name: name.to_owned(), files: Vec::new() }))
    }

    /// As [`ManifestBeside::new`], of a target that is a file: fails as [`statement`] for a name that a manifest may not list.
    pub(super) fn of_file(target: &Path, options: &WriteOptions) -> Result<Option<ManifestBeside>> {
        let manifest = ManifestBeside::new(target, options)?;
        manifest.as_ref().map_or(Ok(()), |manifest| check_listable(&manifest.name))?;
        Ok(manifest)
    }

    /// The name of the file or folder.
    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    /// Lists a file, which is not empty.
    pub(super) fn add(&mut self, name: String, listed: Option<ListedFile>) {
        self.files.extend(listed.map(|listed| (name, listed)));
    }

    /// Lists a file of these bytes.
    pub(super) fn add_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let digests = PieceDigests::new(to_u64(bytes.len()));
        digests.update(0, bytes);
        let missing = |_, _: &mut [u8]| Err(Error::new(Code::InternalError, "a digest is missing"));
        self.add(name.to_owned(), digests.finish(missing)?);
        Ok(())
    }

    /// Writes the manifest; its name it gets with `commit`.
    pub(super) fn prepare(self, options: &WriteOptions) -> Result<PreparedFile> {
        let text = statement(&Manifest::new(self.files)?, &self.name)?;
        PreparedFile::new(&self.path, text.as_bytes(), options.overwrite, options.sync)
    }
}

/// Fails for a name that a manifest may not list.
pub(super) fn check_listable(name: &str) -> Result<()> {
    if !name.contains([':', '\\', '\0', '\n', '\r']) {
        return Ok(());
    }
    let text = format!("a manifest cannot list {name:?}: it has a colon, a backslash or a line break");
    Err(Error::new(Code::Value, text).note("Rename the file."))
}

/// An unsigned statement of OpenSSF model signing, method `shards`, of a model of this name. Fails unless all files are in pieces of
/// one size and have names that a manifest may list.
pub(crate) fn statement(manifest: &Manifest, name: &str) -> Result<String> {
    let mut files: Vec<(&str, &ListedFile)> = manifest.files().collect();
    // By folders first, as model signing orders paths.
    files.sort_by(|one, two| one.0.split('/').cmp(two.0.split('/')));
    let sizes = files.iter().map(|(_, file)| file.size_and_piece().map(|(_, piece)| piece));
    let of_one = |one: Option<u64>, two: Option<u64>| one.filter(|_| one == two);
    let no_size =
        || Error::new(Code::Value, "a statement has files in pieces of one size, and at least one file");
    let piece = sizes.reduce(of_one).flatten().ok_or_else(no_size)?;
    let (mut root, mut resources) = (Sha256::new(), String::new());
    for (name, file) in files {
        check_listable(name)?;
        let size = file.size_and_piece().map_or(0, |(size, _)| size);
        let mut start = 0_u64;
        for digest in file.digests() {
            root.update(digest);
            let end = start.saturating_add(piece).min(size);
            let separator = if resources.is_empty() { "" } else { ",\n" };
            let shard = ascii_json(&format!("{name}:{start}:{end}"));
            let _ = write!(
                resources,
                r#"{separator}   {{"name": {shard}, "algorithm": "sha256-sharded-{piece}", "digest": "{}"}}"#,
                hex(digest)
            );
            start = end;
        }
    }
    let root: Digest = root.finalize().into();
    Ok(format!(
        r#"{{
 "_type": "https://in-toto.io/Statement/v1",
 "subject": [{{"name": {}, "digest": {{"sha256": "{}"}}}}],
 "predicateType": "https://model_signing/signature/v1.0",
 "predicate": {{
  "serialization": {{
   "method": "shards",
   "hash_type": "sha256",
   "shard_size": {piece},
   "allow_symlinks": true,
   "ignore_paths": {IGNORED:?}
  }},
  "resources": [
{resources}
  ]
 }}
}}
"#,
        ascii_json(name),
        hex(&root)
    ))
}

fn hex(digest: &Digest) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests(bytes: &[u8]) -> Vec<Digest> {
        bytes.chunks(to_usize(PIECE_BYTES)).map(|piece| Sha256::digest(piece).into()).collect()
    }

    fn content() -> Vec<u8> {
        (0..to_usize(2 * PIECE_BYTES) + 12_345).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8).collect()
    }

    /// The digests after these writes, and how often a piece was read back in blocks.
    fn written(bytes: &[u8], writes: &[(usize, usize)]) -> (Vec<Digest>, u64) {
        let (made, blocks) = (PieceDigests::new(to_u64(bytes.len())), AtomicU64::new(0));
        for &(start, end) in writes {
            made.update(to_u64(start), &bytes[start..end]);
        }
        let read = |offset, out: &mut [u8]| {
            blocks.fetch_add(1, Ordering::Relaxed);
            out.copy_from_slice(&bytes[to_usize(offset)..][..out.len()]);
            Ok(())
        };
        let listed = made.finish(read).unwrap().unwrap();
        (listed.digests().copied().collect(), blocks.into_inner())
    }

    #[test]
    fn bytes_in_any_order_have_the_digests_of_the_file() {
        let (bytes, piece) = (content(), to_usize(PIECE_BYTES));
        let (expected, end) = (digests(&bytes), bytes.len());
        let orders: [&[(usize, usize)]; 4] = [
            &[(0, end)],
            &[(piece + 5, end), (0, 10), (10, piece + 5)],
            &[(0, 1), (2, piece), (1, 2), (piece + 1, end), (piece, piece + 1)],
            &[(3, 7), (7, piece), (0, 3), (piece, end)],
        ];
        for writes in orders {
            assert_eq!(written(&bytes, writes), (expected.clone(), 0), "{writes:?}");
        }
        let read_back: [&[(usize, usize)]; 4] = [
            &[(piece, end)],
            &[(0, end), (4, 6), (2 * piece, end)],
            &[(5, piece), (2, 9), (0, 2), (piece, end)],
            &[],
        ];
        for writes in read_back {
            let (found, blocks) = written(&bytes, writes);
            assert_eq!(found, expected, "{writes:?}");
            assert!(blocks > 0);
        }
    }

    #[test]
    fn copies_of_early_bytes_are_bounded() {
        let bytes = vec![7_u8; to_usize(KEPT_MAX_BYTES) + 4 * to_usize(PIECE_BYTES)];
        let made = PieceDigests::new(to_u64(bytes.len()));
        for piece in bytes.chunks(to_usize(PIECE_BYTES)).enumerate() {
            made.update(to_u64(piece.0) * PIECE_BYTES + 1, &piece.1[1..]);
            assert!(made.kept.load(Ordering::Relaxed) <= KEPT_MAX_BYTES);
        }
        for number in 0..made.pieces.len() {
            made.update(to_u64(number) * PIECE_BYTES, &[7]);
        }
        assert_eq!(made.kept.load(Ordering::Relaxed), 0);
        let read = |_, out: &mut [u8]| {
            out.fill(7);
            Ok(())
        };
        let listed = made.finish(read).unwrap().unwrap();
        assert_eq!(listed.digests().copied().collect::<Vec<_>>(), digests(&bytes));
    }

    #[test]
    fn a_statement_has_pieces_of_one_size_and_plain_names() {
        let file =
            |piece| ListedFile::pieces(10, piece, vec![[1; 32]; 10_usize.div_ceil(to_usize(piece))]).unwrap();
        let code = |files: Vec<(&str, ListedFile)>| {
            let files = files.into_iter().map(|(name, file)| (name.to_owned(), file));
            statement(&Manifest::new(files).unwrap(), "m").map_err(|error| error.code())
        };
        assert!(code(vec![("a", file(5)), ("b", file(5))]).unwrap().contains(r#""a:5:10""#));
        assert_eq!(code(vec![("a", file(5)), ("b", file(4))]), Err(Code::Value));
        assert_eq!(code(vec![("a", file(5)), ("b", ListedFile::whole([0; 32]))]), Err(Code::Value));
        assert_eq!(code(vec![]), Err(Code::Value));
        assert_eq!(code(vec![("a:b", file(5))]), Err(Code::Value));
    }
}
