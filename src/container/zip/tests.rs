//! Tests of the strict zip reader on archives that it accepts, damaged ones and any bytes. Archives that violate one of its rules
//! are those of the attack table (tests/data/attacks/z_zip.py).

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

use self::builder::{archive, deflated, entry, torch_entry};

mod builder;
mod large;

fn open(bytes: Vec<u8>) -> Result<Archive> {
    Archive::open(&Source::memory(Arc::new(bytes)), &Limits::default(), Trailing::Error)
}

/// The error code of opening the archive and then accessing and reading all members.
fn code_of(bytes: Vec<u8>) -> Option<Code> {
    let read_all = |archive: Archive| {
        for index in 0..archive.members().len() {
            archive.payload(index)?;
            archive.read(index, "pickle_bytes", 1 << 20, &Cancel::new())?;
            archive.verify(index, &Cancel::new())?;
        }
        Ok(())
    };
    open(bytes).and_then(read_all).err().map(|error| error.code())
}

fn small() -> Vec<u8> {
    archive(&[
        torch_entry("a/data.pkl", b"\x80\x02}."),
        entry("a/data/0", b"01234567"),
        deflated("a/x", b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"),
    ])
}

#[test]
fn members_round_trip() {
    let archive = open(small()).unwrap();
    let names: Vec<_> = archive.members().iter().map(Member::name).collect();
    assert_eq!(names, ["a/data.pkl", "a/data/0", "a/x"]);
    assert_eq!(archive.find("a/data/0"), Some(1));
    assert_eq!(archive.find("data/0"), None);
    assert!(archive.has_checksums());
    assert_eq!(archive.read(0, "pickle_bytes", 4, &Cancel::new()).unwrap(), b"\x80\x02}.");
    let payload = archive.payload(1).unwrap();
    assert_eq!(archive.source.read_vec(payload.start(), payload.len()).unwrap(), b"01234567");
    assert!(archive.members()[2].is_compressed());
    assert_eq!(archive.read_inflated(2, 34, &Cancel::new()).unwrap(), b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab");
    assert_eq!(archive.read_inflated(2, 33, &Cancel::new()).unwrap_err().code(), Code::StorageBounds);
    assert_eq!(archive.read(1, "pickle_bytes", 7, &Cancel::new()).unwrap_err().code(), Code::Limit);
}

#[cfg(feature = "scan")]
#[test]
fn duplicate_entries_count_towards_the_salvage_limit() {
    let whole = small();
    let at = |signature: &[u8]| whole.windows(4).position(|window| window == signature).unwrap();
    let (start, end) = (at(b"PK\x01\x02"), at(b"PK\x06\x06"));
    let directory = whole[start..end].repeat(4);
    let record = [&b"PK\x05\x06\0\0\0\0\x0c\0\x0c\0"[..], &(directory.len() as u32).to_le_bytes()].concat();
    let bytes = [&whole[..start], &directory, &record, &(start as u32).to_le_bytes(), b"\0\0"].concat();
    let source = Source::memory(Arc::new(bytes));
    for (entries, complete) in [(12, true), (11, false)] {
        let limits = Limits { entries, ..Limits::default() };
        let found = salvage(&source, &limits, &Cancel::new()).unwrap();
        assert_eq!((found.members.len(), found.complete), (3, complete), "{entries}");
    }
}

#[test]
fn a_flipped_bit_gives_an_error_or_the_same_bytes() {
    let bytes = small();
    let all = |archive: Archive| -> Result<Vec<Vec<u8>>> {
        (0..archive.members().len())
            .map(|index| archive.read(index, "pickle_bytes", 1 << 20, &Cancel::new()))
            .collect()
    };
    let want = open(bytes.clone()).and_then(all).unwrap();
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(found) = open(bytes).and_then(all) {
            assert_eq!(found, want, "bit {bit}");
        }
    }
}

#[test]
fn names_that_differ_in_case_only_are_folded_to_one() {
    for names in [
        &["data.pkl", "DATA.PKL", "Data.Pkl", "data.p\u{212a}l"][..],
        &["stra\u{df}e", "STRASSE", "stra\u{1e9e}e", "\u{17f}tra\u{df}e"],
        &["\u{3a3}\u{3c2}", "\u{3c3}\u{3c3}"],
        &["\u{fb01}le", "FILE", "file"],
    ] {
        for name in names {
            assert_eq!(fold_case(name), fold_case(names[0]), "{name}");
        }
    }
    assert_ne!(fold_case("data.pkl"), fold_case("data.pk1"));
}

proptest! {
    #[test]
    fn any_bytes_between_a_valid_start_and_end_never_panic(
        body in prop::collection::vec(any::<u8>(), 0..400),
        count in 0_u16..4,
        start in 0_u32..500,
    ) {
        let mut bytes = [b"PK\x03\x04".to_vec(), body].concat();
        let size = (bytes.len() as u32).saturating_sub(start);
        bytes.extend(b"PK\x05\x06\0\0\0\0");
        bytes.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
        bytes.extend([size.to_le_bytes(), start.to_le_bytes()].concat());
        bytes.extend([0, 0]);
        code_of(bytes);
    }
}
