//! Tests of archives past 4 GiB as torch's writer makes them (modelled on a real file), in a sparse temporary file.

use tempfile::NamedTempFile;

use super::*;
use crate::sys::FileExt;

const GIB: u64 = 1 << 30;

/// The local file header that torch writes for a member with a zip64 extra field of these values.
fn local(name: &str, zip64: &[u64]) -> Vec<u8> {
    let mut out = b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    out.extend((name.len() as u16).to_le_bytes());
    let len = if zip64.is_empty() { 0 } else { 4 + 8 * zip64.len() as u16 };
    out.extend(len.to_le_bytes());
    out.extend(name.as_bytes());
    out.extend(field(zip64));
    out
}

fn field(values: &[u64]) -> Vec<u8> {
    if values.is_empty() {
        return Vec::new();
    }
    let mut out = vec![1, 0];
    out.extend((8 * values.len() as u16).to_le_bytes());
    out.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    out
}

fn central(name: &str, crc: u32, size: u64, header: u64) -> Vec<u8> {
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes();
    let wide = |value: &u64| *value >= u64::from(u32::MAX);
    let extra = field(&[size, size, header].into_iter().filter(wide).collect::<Vec<_>>());
    let mut out = b"PK\x01\x02\0\0\0\0\x08\x08\0\0\0\0\0\0".to_vec();
    out.extend(crc.to_le_bytes());
    out.extend([narrow(size), narrow(size)].concat());
    out.extend((name.len() as u16).to_le_bytes());
    out.extend((extra.len() as u16).to_le_bytes());
    out.extend([0; 10]);
    out.extend(narrow(header));
    out.extend(name.as_bytes());
    out.extend(extra);
    out
}

fn descriptor(crc: u32, size: u64, wide: bool) -> Vec<u8> {
    let mut out = [b"PK\x07\x08".to_vec(), crc.to_le_bytes().to_vec()].concat();
    for _ in 0..2 {
        out.extend_from_slice(&size.to_le_bytes()[..if wide { 8 } else { 4 }]);
    }
    out
}

/// An archive of a storage with `size` zero bytes (a hole in the file) and `a/version`. `offset_in_version` is added to the offset in
/// the zip64 extra field of `a/version`.
fn sparse(size: u64, offset_in_version: u64) -> NamedTempFile {
    let file = NamedTempFile::new().unwrap();
    let mut at = 0;
    let mut put = |bytes: &[u8], hole: u64| {
        file.as_file().write_all_at(bytes, at).unwrap();
        let start = at;
        at += bytes.len() as u64 + hole;
        start
    };
    let is_wide = size >= u64::from(u32::MAX);
    put(&local("a/data/0", &vec![size; if is_wide { 2 } else { 0 }]), size);
    let version = put(&descriptor(0, size, is_wide), 0) + if is_wide { 24 } else { 16 };
    let crc = crc32fast::hash(b"3\n");
    let past = version >= u64::from(u32::MAX);
    let own = version + offset_in_version;
    put(&[local("a/version", &vec![own; past.into()]), b"3\n".to_vec()].concat(), 0);
    put(&descriptor(crc, 2, past), 0);
    let directory = [central("a/data/0", 0, size, 0), central("a/version", crc, 2, version)].concat();
    let start = put(&directory, 0);
    let len = directory.len() as u64;
    let mut end = b"PK\x06\x06\x2c\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
    end.extend([2, 2, len, start].into_iter().flat_map(u64::to_le_bytes));
    end.extend(b"PK\x06\x07\0\0\0\0");
    end.extend((start + len).to_le_bytes());
    end.extend([1, 0, 0, 0]);
    end.extend(b"PK\x05\x06\0\0\0\0\x02\0\x02\0");
    end.extend((len as u32).to_le_bytes());
    end.extend(u32::try_from(start).unwrap_or(u32::MAX).to_le_bytes());
    end.extend([0, 0]);
    put(&end, 0);
    file
}

fn open_file(file: &NamedTempFile) -> Archive {
    let source = Source::open(file.path()).unwrap();
    Archive::open(&source, &Limits::default(), Trailing::Error).unwrap()
}

#[test]
fn a_storage_past_4_gib_has_a_zip64_header_and_descriptor() {
    for size in [5 * GIB, u64::from(u32::MAX), u64::from(u32::MAX) - 200, u64::from(u32::MAX) - 10] {
        let archive = open_file(&sparse(size, 0));
        assert_eq!(archive.members()[0].size(), size);
        assert_eq!(archive.payload(0).unwrap().len(), size);
        assert_eq!(archive.read(1, "pickle_bytes", 99, &Cancel::new()).unwrap(), b"3\n");
    }
}

#[test]
fn a_wrong_offset_in_a_local_zip64_extra_field_is_a_mismatch() {
    let error = open_file(&sparse(5 * GIB, 1)).payload(1).unwrap_err();
    assert_eq!(error.code(), Code::ZipMismatch);
}
