//! Checkpoints of several files: which file a name is taken from, missing names, ties, and similar names.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic, and say so by failing")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::pickle::{Tensor, pickle, torch_dict};
use crate::support::zip::Archive;
use crate::support::{bytes_of, f32s, names, opened, st, timed};
use rustload::internals::trees;
use rustload::{Checkpoint, Code, DType, Error, Format, Options, Subject};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn with(self, name: &str, bytes: impl AsRef<[u8]>) -> Folder {
        std::fs::write(self.path(name), bytes).unwrap();
        self
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn open_files(&self, names: &[&str]) -> Result<Checkpoint, Error> {
        let paths: Vec<PathBuf> = names.iter().map(|name| self.path(name)).collect();
        Checkpoint::open_all(&paths, Options::default())
    }
}

/// A safetensors file of tensors of one float each.
fn floats(tensors: &[(&str, f32)]) -> Vec<u8> {
    let file = st::File::new().metadata("format", "pt");
    tensors.iter().fold(file, |file, (name, value)| file.tensor(name, "F32", &[1], &f32s(&[*value]))).bytes()
}

/// A torch archive of tensors of one float each, one storage per tensor.
fn torch(tensors: &[(&str, f32)]) -> Vec<u8> {
    let whole = |at: usize| Tensor::whole(DType::F32, &[1], &at.to_string());
    let entries: Vec<_> = tensors.iter().enumerate().map(|(at, (name, _))| (*name, whole(at))).collect();
    let archive = Archive::new(torch_dict(&entries));
    let storages = tensors.iter().enumerate();
    storages
        .fold(archive, |archive, (at, (_, value))| archive.storage(&at.to_string(), &f32s(&[*value])))
        .bytes()
}

fn value(checkpoint: &Checkpoint, name: &str) -> f32 {
    f32::from_le_bytes(bytes_of(checkpoint, name).try_into().unwrap())
}

#[test]
fn a_damaged_shard_is_named() {
    let folder = Folder::new()
        .with("one.safetensors", floats(&[("a", 1.0)]))
        .with("two.safetensors", &floats(&[("b", 3.0)])[..40]);
    let error = folder.open_files(&["one.safetensors", "two.safetensors"]).unwrap_err();
    assert_eq!(error.path(), Some(folder.path("two.safetensors").as_path()));
}

#[test]
fn metadata_of_several_files_is_one_map() {
    let file = |pairs: &[(&str, &str)]| {
        pairs.iter().fold(st::File::new(), |file, (key, value)| file.metadata(key, value)).bytes()
    };
    let folder = Folder::new()
        .with("one.safetensors", file(&[("format", "pt"), ("who", "one")]))
        .with("two.safetensors", file(&[("who", "two")]));
    let checkpoint = folder.open_files(&["one.safetensors", "two.safetensors"]).unwrap();
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(checkpoint.metadata(), [pair("format", "pt"), pair("who", "two")]);
}

#[test]
fn files_of_both_formats_merge() {
    let folder =
        Folder::new().with("one.bin", torch(&[("a", 1.0)])).with("two.safetensors", floats(&[("b", 2.0)]));
    let checkpoint = folder.open_files(&["one.bin", "two.safetensors"]).unwrap();
    assert_eq!(names(&checkpoint), ["a", "b"]);
    assert_eq!((value(&checkpoint, "a"), value(&checkpoint, "b")), (1.0, 2.0));
    assert_eq!(checkpoint.format(), Format::Zip);
    let trees: Vec<bool> = trees(&checkpoint).map(|(_, tree)| tree.is_some()).collect();
    assert_eq!(trees, [true, false]);
}

#[test]
fn storages_of_two_files_are_never_tied() {
    let folder = Folder::new().with("one.bin", torch(&[("a", 1.0)])).with("two.bin", torch(&[("b", 1.0)]));
    let checkpoint = folder.open_files(&["one.bin", "two.bin"]).unwrap();
    assert_eq!(checkpoint.tied(), Vec::<Vec<_>>::new());
    assert_eq!(checkpoint.nbytes(), 8);
}

#[test]
fn unknown_classes_of_several_files_are_counted_together() {
    let file = |class: &str, count: usize| {
        let pickle = pickle(|p| {
            p.list_of(|p| {
                p.times(count, |p| {
                    p.new_object("mine", class);
                });
            });
        });
        Archive::new(pickle).bytes()
    };
    let folder =
        Folder::new().with("1.bin", file("A", 2)).with("2.bin", file("B", 1)).with("3.bin", file("A", 3));
    let checkpoint = folder.open_files(&["1.bin", "2.bin", "3.bin"]).unwrap();
    let found: Vec<_> = checkpoint.opaque().into_iter().map(|class| (class.class, class.count)).collect();
    assert_eq!(found, [("mine.A".to_owned(), 5), ("mine.B".to_owned(), 1)]);
}

#[test]
fn equal_notes_of_several_files_are_merged() {
    let file = |name: &str| {
        Archive::new(torch_dict(&[(name, Tensor::whole(DType::U8, &[0], "0"))])).no_checksums().bytes()
    };
    let folder = Folder::new().with("1.bin", file("a")).with("2.bin", file("b"));
    assert_eq!(folder.open_files(&["1.bin", "2.bin"]).unwrap().notes().len(), 1);
}

fn similar(names: &[&str], wanted: &str) -> Vec<String> {
    let tensors: Vec<(&str, f32)> = names.iter().map(|name| (*name, 0.0)).collect();
    let error = opened(floats(&tensors)).tensor(wanted).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(error.subject(), &Subject::Name(wanted.to_owned()));
    match error.next_step().unwrap_or_default().strip_prefix("did you mean: ") {
        Some(names) => names.split(", ").map(str::to_owned).collect(),
        None => Vec::new(),
    }
}

#[test]
fn the_error_for_a_missing_name_lists_similar_names() {
    let there = ["model.embed.weight", "model.norm.weight", "lm_head.weight", "lm_head.bias"];
    assert_eq!(similar(&there, "lm_head.weigth")[0], "lm_head.weight");
    assert_eq!(similar(&there, "norm.weight")[0], "model.norm.weight");
    assert_eq!(similar(&there, "base.lm_head.bias")[0], "lm_head.bias");
    assert_eq!(similar(&there, "lm_head").len(), 2);
    assert_eq!(similar(&there, "something else entirely"), Vec::<String>::new());
    assert_eq!(similar(&there, ""), Vec::<String>::new());
    assert_eq!(similar(&[], "a"), Vec::<String>::new());
}

#[test]
fn a_missing_name_among_many_long_similar_names_is_fast() {
    let all: Vec<String> = (0..20_000).map(|n| format!("{}{n:05}", "a".repeat(200))).collect();
    let tensors: Vec<(&str, f32)> = all.iter().map(|name| (name.as_str(), 0.0)).collect();
    let checkpoint = opened(floats(&tensors));
    let (_, time) = timed(|| checkpoint.tensor(&format!("{}x", "a".repeat(203))).unwrap_err());
    assert!(time < Duration::from_secs(5), "{time:?}");
}

#[test]
fn s09_many_metadata_keys_open_in_linear_time() {
    let pairs = (0..300_000).map(|n| (format!("k{n}"), "v".into()));
    let header = serde_json::json!({"__metadata__": serde_json::Map::from_iter(pairs)}).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let (checkpoint, time) = timed(|| opened(bytes));
    assert_eq!(checkpoint.metadata().len(), 300_000);
    assert!(time < Duration::from_secs(20), "{time:?}");
}

#[test]
fn a_tensor_keeps_its_checkpoint_alive() {
    let checkpoint = opened(floats(&[("a", 1.0), ("b", 2.0)]));
    let tensor = checkpoint.tensor("a").unwrap();
    drop(checkpoint);
    let again = tensor.checkpoint();
    assert_eq!((again.len(), again.contains("b"), again.contains("c")), (2, true, false));
    assert!(again.tensor_at(2).is_none());
    assert_eq!(again.tensor_at(1).unwrap().name(), "b");
    assert_eq!(again.files().map(Path::to_owned).collect::<Vec<_>>(), Vec::<PathBuf>::new());
}
