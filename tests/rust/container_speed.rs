//! How long it takes to open containers of 20,000 members, warm: `cargo bench --bench container_speed [file...]`.
//!
//! The limit chased is one pass over the directory or the header. Files named on the command line are timed too.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustload::bytes::Source;
use rustload::container::safetensors::Header;
use rustload::container::zip::{Archive, Trailing};
use rustload::container::{Format, sniff};
use rustload::limits::Limits;

const MEMBERS: u32 = 20_000;
const ROUNDS: usize = 30;

fn main() {
    let limits = Limits::default();
    let zip = Source::memory(Arc::new(zip()));
    report("zip: open", || Archive::open(&zip, &limits, Trailing::Error).expect("a zip").members().len());
    report("zip: open and touch all", || {
        let archive = Archive::open(&zip, &limits, Trailing::Error).expect("a zip");
        (0..archive.members().len()).filter(|&index| archive.payload(index).is_ok()).count()
    });
    let header = Source::memory(Arc::new(safetensors()));
    report("safetensors: read", || Header::read(&header, &limits, false).expect("a header").tensors.len());
    for path in std::env::args().skip(1).filter(|argument| Path::new(argument).exists()) {
        report(&path, || {
            let source = Source::open(Path::new(&path)).expect("a file");
            match sniff(&source).expect("a checkpoint") {
                Format::Zip => {
                    Archive::open(&source, &limits, Trailing::Error).expect("a zip").members().len()
                }
                _ => Header::read(&source, &limits, false).expect("a header").tensors.len(),
            }
        });
    }
}

fn report(what: &str, mut run: impl FnMut() -> usize) {
    let mut times: Vec<Duration> = Vec::new();
    let mut count = 0;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        count = run();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    println!("{what}: {count} members, best {:?}, median {:?}", times[0], times[ROUNDS / 2]);
}

/// An archive of small stored members.
fn zip() -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for index in 0..MEMBERS {
        let name = format!("archive/data/{index}");
        let header = u32::try_from(out.len()).expect("a small archive");
        let fields = [&[0; 10][..], &[0; 4], &[4, 0, 0, 0], &[4, 0, 0, 0]].concat();
        let lens = [u8::try_from(name.len()).expect("a short name"), 0, 0, 0];
        out.extend([b"PK\x03\x04", &fields[..], &lens, name.as_bytes(), b"data"].concat());
        directory.extend([b"PK\x01\x02\0\0", &fields[..], &lens, &[0; 10]].concat());
        directory.extend(header.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let start = u64::try_from(out.len()).expect("a small archive");
    let len = u64::try_from(directory.len()).expect("a small archive");
    out.extend(directory);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([MEMBERS.to_le_bytes()[..2].to_vec(), MEMBERS.to_le_bytes()[..2].to_vec()].concat());
    out.extend([&len.to_le_bytes()[..4], &start.to_le_bytes()[..4], &[0, 0]].concat());
    out
}

/// A header of small tensors with names as long as real ones.
fn safetensors() -> Vec<u8> {
    let infos: Vec<String> = (0..MEMBERS)
        .map(|index| {
            let (begin, end) = (index * 8, index * 8 + 8);
            format!(
                r#""model.layers.{index}.self_attn.q_proj.weight":{{"dtype":"BF16","shape":[2,2],"data_offsets":[{begin},{end}]}}"#
            )
        })
        .collect();
    let header = format!("{{{}}}", infos.join(","));
    let length = u64::try_from(header.len()).expect("a small header").to_le_bytes();
    [&length[..], header.as_bytes(), &vec![0; 8 * 20_000]].concat()
}
