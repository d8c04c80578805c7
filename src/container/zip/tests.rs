//! Tests of each rule of the strict zip reader, with the smallest archive that violates it (ids from the attack matrix).

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

use self::builder::{Entry, ZipBuilder, deflated, entry, torch_entry};

mod builder;
mod large;

fn open_with(bytes: Vec<u8>, trailing: Trailing) -> Result<Archive> {
    Archive::open(&Source::memory(Arc::new(bytes)), &Limits::default(), trailing)
}

fn open(bytes: Vec<u8>) -> Result<Archive> {
    open_with(bytes, Trailing::Error)
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

fn small() -> ZipBuilder {
    let mut builder = ZipBuilder::new([
        torch_entry("a/data.pkl", b"\x80\x02}."),
        entry("a/data/0", b"01234567"),
        deflated("a/x", b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"),
    ]);
    builder.zip64 = true;
    builder
}

/// The code for the small archive with one defect planted.
fn planted(defect: impl FnOnce(&mut ZipBuilder)) -> Option<Code> {
    let mut builder = small();
    defect(&mut builder);
    code_of(builder.bytes())
}

fn entry_planted(index: usize, defect: impl FnOnce(&mut Entry)) -> Option<Code> {
    planted(|builder| defect(&mut builder.entries[index]))
}

#[test]
fn members_round_trip() {
    let archive = open(small().bytes()).unwrap();
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

#[test]
fn there_is_exactly_one_end_record_at_the_end() {
    // Z01
    let bytes = small().bytes();
    let error = open(bytes[..bytes.len() - 22].to_vec()).unwrap_err();
    assert_eq!(error.code(), Code::ZipAmbiguous);
    assert!(error.message().contains("missing"), "{error}");
    // Z02, and the comment that is fine
    assert_eq!(planted(|zip| zip.comment_len = Some(9)), Some(Code::ZipAmbiguous));
    assert_eq!(planted(|zip| zip.comment = b"hello".to_vec()), None);
    // Z03: the inner one reaches the end too, or is mere bytes
    let inner = ZipBuilder::default().bytes();
    assert_eq!(planted(|zip| zip.comment = inner), Some(Code::ZipAmbiguous));
    assert_eq!(planted(|zip| zip.comment = b"PK\x05\x06".to_vec()), Some(Code::ZipAmbiguous));
}

#[test]
fn trailing_bytes_are_refused_unless_ignored() {
    // Z04
    for builder in [small(), ZipBuilder { zip64: false, ..small() }] {
        let mut bytes = builder.bytes();
        bytes.extend([0; 1000]);
        assert_eq!(open(bytes.clone()).unwrap_err().code(), Code::ZipTrailing);
        assert_eq!(open_with(bytes, Trailing::Ignore).unwrap().members().len(), 3);
    }
}

#[test]
fn a_contradictory_central_directory_is_refused() {
    // Z05
    for zip64 in [true, false] {
        let broken = Some(Code::ZipStructure);
        assert_eq!(planted(|zip| (zip.zip64, zip.directory_start) = (zip64, Some(0))), broken);
        assert_eq!(planted(|zip| (zip.zip64, zip.directory_start) = (zip64, Some(0xffff_fff0))), broken);
        assert_eq!(planted(|zip| (zip.zip64, zip.directory_size) = (zip64, Some(0xffff))), broken);
        // Z06
        assert_eq!(planted(|zip| (zip.zip64, zip.count) = (zip64, Some(2))), broken);
        assert_eq!(planted(|zip| (zip.zip64, zip.count) = (zip64, Some(4))), broken);
        // Z07
        assert_eq!(planted(|zip| (zip.zip64, zip.disks) = (zip64, [1, 0])), broken);
        assert_eq!(planted(|zip| (zip.zip64, zip.disks) = (zip64, [0, 1])), broken);
    }
    assert_eq!(entry_planted(0, |entry| entry.disk = 1), Some(Code::ZipStructure));
    // Z08
    assert_eq!(planted(|zip| zip.zip64_count = Some(2)), Some(Code::ZipStructure));
    assert_eq!(
        planted(|zip| (zip.count, zip.zip64_count) = (Some(0xffff), Some(2))),
        Some(Code::ZipStructure)
    );
    assert_eq!(planted(|zip| zip.count = Some(0xffff)), None);
    assert_eq!(planted(|zip| zip.directory_start = Some(u32::MAX)), None);
    // Z09
    for offset in [0, 1 << 40, u64::MAX] {
        assert_eq!(planted(|zip| zip.locator = Some(offset)), Some(Code::ZipStructure));
    }
    assert_eq!(code_of(ZipBuilder::default().bytes()), Some(Code::ZipStructure));
}

#[test]
fn zip64_fields_exist_exactly_for_sentinels() {
    // Z10: superfluous, repeated, short; Z11: absent
    let broken = Some(Code::ZipStructure);
    let field = |len: u16| [&[1, 0][..], &len.to_le_bytes(), &vec![8; len.into()]].concat();
    assert_eq!(entry_planted(0, |entry| entry.central.extra = field(8)), broken);
    assert_eq!(entry_planted(0, |entry| entry.central.extra = [field(0), field(0)].concat()), broken);
    assert_eq!(entry_planted(0, |entry| entry.central.extra = vec![1, 0, 9]), broken);
    assert_eq!(entry_planted(0, |entry| entry.central.size = u32::MAX), broken);
    let sentinel = |extra: Vec<u8>| {
        entry_planted(1, |entry| {
            entry.central.size = u32::MAX;
            entry.central.extra = extra;
        })
    };
    assert_eq!(sentinel(field(4)), broken);
    assert_eq!(sentinel(field(16)), broken);
    assert_eq!(sentinel([1, 0, 8, 0, 8, 0, 0, 0, 0, 0, 0, 0].to_vec()), None);
}

#[test]
fn a_local_header_that_contradicts_the_central_directory_is_a_mismatch() {
    let mismatch = Some(Code::ZipMismatch);
    // Z12, Z13, Z14, Z16
    assert_eq!(entry_planted(0, |entry| entry.signature = *b"PK\x03\x05"), Some(Code::ZipPrefix));
    assert_eq!(entry_planted(1, |entry| entry.signature = *b"PK\x03\x05"), mismatch);
    assert_eq!(entry_planted(0, |entry| entry.local.name = b"a/data.pkk".to_vec()), mismatch);
    assert_eq!(entry_planted(0, |entry| entry.local.name = b"a/data.pk".to_vec()), mismatch);
    assert_eq!(entry_planted(1, |entry| entry.local.method = 8), mismatch);
    assert_eq!(entry_planted(1, |entry| entry.local.flags = 1), mismatch);
    // Z15
    assert_eq!(entry_planted(1, |entry| entry.local.crc = 0), mismatch);
    assert_eq!(entry_planted(1, |entry| entry.local.size = 0), mismatch);
    assert_eq!(entry_planted(1, |entry| entry.local.compressed_size = u32::MAX), mismatch);
    // Z33
    for byte in [0, 4, 8, 12] {
        assert_eq!(entry_planted(0, |entry| entry.descriptor[byte] ^= 1), mismatch);
    }
    assert_eq!(entry_planted(0, |entry| entry.descriptor.clear()), Some(Code::RecordOverlap));
    // A second local zip64 field, one of an odd length, one with another value.
    let extra = |bytes: &[u8]| entry_planted(1, |entry| entry.local.extra = bytes.to_vec());
    assert_eq!(extra(&[1, 0, 4, 0, 0, 0, 0, 0]), mismatch);
    assert_eq!(extra(&[1, 0, 8, 0, 1, 0, 0, 0, 0, 0, 0, 0]), mismatch);
    assert_eq!(extra(&[9, 0, 0, 0, 0]), None);
}

#[test]
fn local_headers_with_their_sizes_in_a_zip64_field_are_accepted_as_numpy_writes_them() {
    const SENTINEL: u32 = u32::MAX;
    let field = |sizes: [u64; 2]| [&[1, 0, 16, 0][..], &sizes.map(u64::to_le_bytes).concat()].concat();
    let with = |sizes: [u32; 2], extra: Vec<u8>| {
        let mut planted = deflated("a.npy", &[7; 100]);
        [planted.local.size, planted.local.compressed_size] = sizes;
        planted.local.extra = extra;
        code_of(ZipBuilder::new([planted]).bytes())
    };
    let [size, stored] = [100, u64::from(deflated("a.npy", &[7; 100]).central.compressed_size)];
    let mismatch = Some(Code::ZipMismatch);
    assert_eq!(with([SENTINEL; 2], field([size, stored])), None);
    assert_eq!(with([SENTINEL; 2], Vec::new()), mismatch);
    // Other sizes in the field, in the other order, zero without a data descriptor, or an offset in place of the sizes.
    for sizes in [[size + 1, stored], [size, stored + 1], [stored, size], [0, 0], [u64::MAX, u64::MAX]] {
        assert_eq!(with([SENTINEL; 2], field(sizes)), mismatch, "{sizes:?}");
    }
    assert_eq!(with([SENTINEL; 2], [1, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0].to_vec()), mismatch);
    // A single sentinel, or none and other sizes.
    assert_eq!(with([SENTINEL, stored as u32], field([size, stored])), mismatch);
    assert_eq!(with([100, SENTINEL], field([size, stored])), mismatch);
    assert_eq!(with([0, 0], field([size, stored])), mismatch);
    // The field twice.
    assert_eq!(with([SENTINEL; 2], field([size, stored]).repeat(2)), mismatch);
}

#[test]
fn duplicate_names_are_refused() {
    // Z17: the good one first, the bad one first
    for payloads in [[b"good", b"evil"], [b"evil", b"good"]] {
        let zip = ZipBuilder::new(payloads.map(|payload| entry("a/data.pkl", payload)));
        assert_eq!(code_of(zip.bytes()), Some(Code::ZipDuplicate));
    }
}

#[test]
fn names_that_readers_decode_differently_are_refused() {
    // Z24 to Z29
    let long = "a/".to_owned() + &"x".repeat(510);
    for name in ["a\\b", "a/../b", "..", "/a", "C:a", "c:/a", "a\0b", "", "/", "a//b", "a/./b", &long] {
        let code = code_of(ZipBuilder::new([entry(name, b"x")]).bytes());
        assert_eq!(code, Some(Code::ZipName), "{name:?}");
    }
    for flags in [0, 0x800] {
        let mut entry = entry("a", b"x");
        for fields in [&mut entry.local, &mut entry.central] {
            (fields.name, fields.flags) = (b"a/\xff".to_vec(), flags);
        }
        assert_eq!(code_of(ZipBuilder::new([entry]).bytes()), Some(Code::ZipName));
    }
    for name in ["a/..b", "\u{6a21}/data.pkl", &long[..511], "a b/c:d"] {
        assert_eq!(code_of(ZipBuilder::new([entry(name, b"x")]).bytes()), None, "{name:?}");
    }
}

#[test]
fn a_unicode_path_field_must_contain_the_same_name() {
    let extra = |name: &[u8]| {
        let len = (name.len() as u16 + 5).to_le_bytes();
        [&b"up"[..], &len, &[1, 0, 0, 0, 0], name].concat()
    };
    assert_eq!(entry_planted(1, |entry| entry.central.extra = extra(b"a/data/0")), None);
    assert_eq!(entry_planted(1, |entry| entry.central.extra = extra(b"a/data/1")), Some(Code::ZipName));
    assert_eq!(entry_planted(1, |entry| entry.local.extra = extra(b"a/data/1")), Some(Code::ZipName));
}

#[test]
fn overlapping_members_are_refused() {
    // Z30, R15
    assert_eq!(entry_planted(2, |entry| entry.header = Some(0)), Some(Code::RecordOverlap));
    // Z31: the sizes reach past the next header
    let too_long = |entry: &mut Entry| {
        for fields in [&mut entry.local, &mut entry.central] {
            (fields.size, fields.compressed_size) = (60, 60);
        }
    };
    assert_eq!(entry_planted(1, too_long), Some(Code::RecordOverlap));
    // ... by so little that the central directory alone does not show it: the extra field moves the payload
    let slight = |entry: &mut Entry| {
        entry.local.extra = vec![0; 4];
        for fields in [&mut entry.local, &mut entry.central] {
            (fields.size, fields.compressed_size) = (10, 10);
        }
    };
    assert_eq!(entry_planted(1, slight), Some(Code::RecordOverlap));
    // Z32
    assert_eq!(entry_planted(1, |entry| entry.central.size = 9), Some(Code::ZipMismatch));
    // Past the directory
    assert_eq!(entry_planted(2, |entry| entry.header = Some(4000)), Some(Code::RecordOverlap));
}

#[test]
fn a_prefix_is_refused() {
    // A09 with the offsets moved along, and with the offsets as they were
    assert_eq!(code_of([b"junk".to_vec(), small().bytes()].concat()), Some(Code::ZipPrefix));
    let mut moved = ZipBuilder::new([entry("a/b", b"x"), entry("a/c", b"y")]);
    moved.entries[0].header = Some(34);
    moved.entries[1].header = Some(34);
    moved.entries.truncate(1);
    assert_eq!(code_of(moved.bytes()), Some(Code::ZipPrefix));
}

#[test]
fn checksums_are_checked_unless_all_are_zero() {
    // Z34
    assert_eq!(entry_planted(1, |entry| entry.payload[0] ^= 1), Some(Code::ZipCrc));
    let wrong = |entry: &mut Entry| (entry.local.crc, entry.central.crc) = (1, 1);
    assert_eq!(entry_planted(2, wrong), Some(Code::ZipCrc));
    let zero = |entry: &mut Entry| {
        (entry.local.crc, entry.central.crc) = (0, 0);
        if let Some(crc) = entry.descriptor.get_mut(4..8) {
            crc.fill(0);
        }
    };
    assert_eq!(entry_planted(1, zero), Some(Code::ZipCrc));
    // Z34b
    let mut builder = small();
    builder.entries.iter_mut().for_each(zero);
    assert!(!open(builder.bytes()).unwrap().has_checksums());
    assert_eq!(code_of(builder.bytes()), None);
}

#[test]
fn inflation_is_bounded_and_exact() {
    // Z36: refused by the stated size
    let bomb = ZipBuilder::new([deflated("a/data.pkl", &vec![0; 4 << 20])]);
    let error = open(bomb.bytes()).unwrap().read(0, "pickle_bytes", 1 << 20, &Cancel::new()).unwrap_err();
    assert_eq!(error.code(), Code::Limit);
    assert!(error.message().contains("pickle_bytes"));
    // ... and by the true one
    let set = |size: u32| {
        let mut bomb = bomb.clone();
        let entry = &mut bomb.entries[0];
        for fields in [&mut entry.local, &mut entry.central] {
            fields.size = size;
        }
        code_of(bomb.bytes())
    };
    assert_eq!(set(1000), Some(Code::ZipStructure));
    assert_eq!(set(1 << 20), Some(Code::ZipStructure));
    // Z40
    let resized = |len: usize, size: u32| {
        entry_planted(2, |entry| {
            entry.payload.resize(len, 0);
            for fields in [&mut entry.local, &mut entry.central] {
                (fields.compressed_size, fields.size) = (len as u32, size);
            }
        })
    };
    let len = small().entries[2].payload.len();
    assert_eq!(resized(len, 34), None);
    assert_eq!(resized(len + 1, 34), Some(Code::ZipStructure));
    assert_eq!(resized(len - 1, 34), Some(Code::ZipStructure));
    assert_eq!(resized(len, 33), Some(Code::ZipStructure));
    assert_eq!(resized(len, 35), Some(Code::ZipStructure));
    assert_eq!(resized(0, 34), Some(Code::ZipStructure));
}

#[test]
fn long_members_inflate_in_chunks() {
    let payload: Vec<u8> = (0..300_000_u32).flat_map(|n| (n.wrapping_mul(n) >> 3).to_le_bytes()).collect();
    let archive = open(ZipBuilder::new([deflated("a/data/0", &payload)]).bytes()).unwrap();
    assert!(archive.read_inflated(0, payload.len() as u64, &Cancel::new()).unwrap() == payload);
    archive.verify(0, &Cancel::new()).unwrap();
}

#[test]
fn other_methods_and_encryption_are_unsupported() {
    // Z38
    for method in [1, 9, 12, 14, 93, 95, 99] {
        let set = |entry: &mut Entry| (entry.local.method, entry.central.method) = (method, method);
        assert_eq!(entry_planted(1, set), Some(Code::ZipUnsupported));
    }
    // Z39
    for bit in [0, 5, 6, 13] {
        let set = |entry: &mut Entry| (entry.local.flags, entry.central.flags) = (1 << bit, 1 << bit);
        assert_eq!(entry_planted(1, set), Some(Code::ZipUnsupported));
    }
}

#[test]
fn the_number_of_members_is_limited() {
    // Z41, without writing a million members: the stated count is checked first
    let limits = Limits { entries: 2, ..Limits::default() };
    let error = Archive::open(&Source::memory(Arc::new(small().bytes())), &limits, Trailing::Error);
    assert!(error.unwrap_err().message().contains("entries"));
    let limits = Limits { directory_bytes: 50, ..Limits::default() };
    let error = Archive::open(&Source::memory(Arc::new(small().bytes())), &limits, Trailing::Error);
    assert!(error.unwrap_err().message().contains("directory_bytes"));
}

#[test]
fn nested_archives_and_unusual_records_are_opaque_bytes() {
    // Z45, Z48, Z49
    let inner = small().bytes();
    let outer = ZipBuilder::new([
        entry("a/.storage_alignment", b"-1"),
        entry("a/.data/x.pkl", b"\x80\x02."),
        entry("a/inner.zip", &inner),
    ]);
    assert_eq!(code_of(outer.bytes()), None);
    assert_eq!(open(outer.bytes()).unwrap().read(2, "pickle_bytes", 9999, &Cancel::new()).unwrap(), inner);
}

#[cfg(feature = "scan")]
#[test]
fn duplicate_entries_count_towards_the_salvage_limit() {
    let whole = small().bytes();
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
fn a_directory_entry_has_no_bytes() {
    // Z50
    assert_eq!(code_of(ZipBuilder::new([entry("a/data/", b"x")]).bytes()), Some(Code::ZipStructure));
    let archive = open(ZipBuilder::new([entry("a/data/", b"")]).bytes()).unwrap();
    assert!(archive.members()[0].is_directory());
}

#[test]
fn a_truncated_archive_is_an_error() {
    // A17
    let bytes = small().bytes();
    for len in 0..bytes.len() {
        assert!(code_of(bytes[..len].to_vec()).is_some(), "cut to {len}");
    }
}

#[test]
fn a_flipped_bit_gives_an_error_or_the_same_bytes() {
    let bytes = small().bytes();
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
