use super::*;
use std::sync::Arc;

/// A header of POSIX with a right checksum.
fn header(name: &str, size: usize, kind: u8) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name.as_bytes());
    block[100..107].copy_from_slice(b"0000644");
    block[124..135].copy_from_slice(format!("{size:011o}").as_bytes());
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    sum(&mut block);
    block
}

fn sum(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

fn member(name: &str, data: &[u8]) -> Vec<u8> {
    let mut contents = data.to_vec();
    contents.resize(data.len().next_multiple_of(512), 0);
    [header(name, data.len(), b'0'), contents].concat()
}

fn open(parts: &[Vec<u8>]) -> Result<Archive> {
    open_bytes([parts.concat(), vec![0; 1024]].concat(), false)
}

fn open_bytes(bytes: Vec<u8>, ignore_trailing: bool) -> Result<Archive> {
    let source = Source::memory(Arc::new(bytes));
    Archive::open(&source, &Limits::default(), ignore_trailing, &Cancel::new())
}

fn code(parts: &[Vec<u8>]) -> Option<Code> {
    open(parts).err().map(|error| error.code())
}

#[test]
fn members_are_ranges_of_the_file() {
    let archive =
        open(&[header("folder/", 0, b'5'), member("./folder/a", b"12345"), member("b", b"")]).unwrap();
    let names: Vec<&str> = archive.members().iter().map(Member::name).collect();
    assert_eq!(names, ["folder/a", "b"]);
    let found = archive.find("folder/a").unwrap();
    assert_eq!((found.region().start(), found.region().len()), (1024, 5));
    assert_eq!(archive.window(found).unwrap().read_vec(0, 5).unwrap(), b"12345");
    assert!(archive.find("folder").is_none() && archive.find("./b").is_none());
}

#[test]
fn an_archive_ends_with_zeros_and_the_file() {
    let whole = [member("a", b"1"), vec![0; 1024]].concat();
    for len in 0..whole.len() {
        let is_complete = len >= 1536 && len.is_multiple_of(512);
        assert_eq!(open_bytes(whole[..len].to_vec(), false).is_ok(), is_complete, "{len}");
    }
    let trailing = [&whole[..], b"x"].concat();
    assert_eq!(open_bytes(trailing.clone(), false).unwrap_err().code(), Code::TrailingData);
    assert_eq!(open_bytes(trailing, true).unwrap().members().len(), 1);
}

#[test]
fn a_size_beyond_the_file_allocates_nothing() {
    let mut block = header("a", 0, b'0');
    block[124..135].copy_from_slice(b"77777777777");
    sum(&mut block);
    assert_eq!(code(&[block]), Some(Code::Truncated));
    // An extended header is read into memory, so its size has a limit.
    let mut block = header("a", 0, b'x');
    block[124..135].copy_from_slice(b"77777777777");
    sum(&mut block);
    assert_eq!(code(&[block]), Some(Code::Limit));
}
