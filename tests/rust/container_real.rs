//! Files by real writers (see `tests/data/make_containers.py`) open with the content that was written.

use std::path::PathBuf;

use crate::support::pickle::{Tensor, torch_dict};
use crate::support::{bytes_of, f32s, names};
use rustload::internals::bytes::Source;
use rustload::internals::container::safetensors::Header;
use rustload::internals::container::zip::{Archive, Trailing};
use rustload::internals::container::{Format, sniff};
use rustload::{Cancel, DType, Limits};

fn source(name: &str) -> Source {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/data/containers", name].iter().collect();
    Source::open(&path).expect("a committed file")
}

/// The bytes of the member whose name ends with `ending`, for any root folder.
fn member(archive: &Archive, ending: &str) -> Vec<u8> {
    let is_it = |member: &rustload::internals::container::zip::Member| member.name().ends_with(ending);
    let index = archive.members().iter().position(is_it).expect("a member of this name");
    archive.read(index, "pickle_bytes", 1 << 20, &Cancel::new()).expect("a readable member")
}

#[test]
fn archives_of_every_writer_open() {
    let want: Vec<u8> = (0_u8..6).flat_map(|n| f32::from(n).to_le_bytes()).collect();
    let mut seen = 0;
    for name in [
        "torch.pt",
        "no_crc.pt",
        "zipfile.pt",
        "zipfile_deflated.pt",
        "zipfile_streamed.pt",
        "info_zip.pt",
        "info_zip_piped.pt",
    ] {
        let source = source(name);
        assert_eq!(sniff(&source).unwrap(), Format::Zip, "{name}");
        let archive = Archive::open(&source, &Limits::default(), Trailing::Error).expect(name);
        assert_eq!(archive.has_checksums(), name != "no_crc.pt");
        assert_eq!(member(&archive, "/data/0"), want, "{name}");
        assert_eq!(member(&archive, "/version"), b"3\n", "{name}");
        for index in 0..archive.members().len() {
            archive.verify(index, &Cancel::new()).expect(name);
        }
        seen += 1;
    }
    assert_eq!(seen, 7);
}

#[test]
fn torch_aligns_storages_to_64_bytes() {
    let archive = Archive::open(&source("torch.pt"), &Limits::default(), Trailing::Error).unwrap();
    let index = archive.find("torch/data/0").unwrap();
    assert_eq!(archive.payload(index).unwrap().start() % 64, 0);
    assert!(!archive.members()[index].is_compressed());
}

#[test]
fn a_streamed_zip64_member_opens() {
    let archive = Archive::open(&source("zipfile_zip64.pt"), &Limits::default(), Trailing::Error).unwrap();
    assert_eq!(member(&archive, "/data.pkl"), b"\x80\x02}.");
}

#[test]
fn a_legacy_file_is_detected() {
    assert_eq!(sniff(&source("legacy.pt")).unwrap(), Format::LegacyTorch);
}

#[test]
fn a_safetensors_file_opens() {
    let source = source("model.safetensors");
    assert_eq!(sniff(&source).unwrap(), Format::Safetensors);
    let header = Header::read(&source, &Limits::default(), false).unwrap();
    let found: Vec<_> = header.tensors.iter().map(|t| (t.name.as_str(), t.dtype, t.shape.to_vec())).collect();
    assert_eq!(found, [("w", DType::F32, vec![2, 3]), ("b", DType::BF16, vec![64])]);
    assert_eq!(header.metadata.unwrap(), [("format".to_owned(), "pt".to_owned())]);
}

#[test]
fn archives_of_torch_open_as_checkpoints() {
    for (name, notes) in
        [("torch.pt", 0), ("no_crc.pt", 1), ("zipfile_deflated.pt", 0), ("info_zip_piped.pt", 0)]
    {
        let path = format!("{}/tests/data/containers/{name}", env!("CARGO_MANIFEST_DIR"));
        let checkpoint = rustload::Checkpoint::open(path).expect(name);
        assert_eq!(names(&checkpoint), ["w", "b"], "{name}");
        assert_eq!(bytes_of(&checkpoint, "w"), f32s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), "{name}");
        assert_eq!(checkpoint.notes().len(), notes, "{name}: {:?}", checkpoint.notes());
    }
}

#[test]
fn the_builder_of_pickles_writes_what_torch_writes() {
    let source = source("torch.pt");
    let archive = Archive::open(&source, &Limits::default(), Trailing::Error).unwrap();
    let whole = |dtype, shape: &[i64], key| Tensor::whole(dtype, shape, key);
    let ours = torch_dict(&[("w", whole(DType::F32, &[2, 3], "0")), ("b", whole(DType::BF16, &[64], "1"))]);
    assert_eq!(ours, member(&archive, "/data.pkl"));
}
