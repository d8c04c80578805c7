//! Builds archives as torch and zlib write them. Defects are those of the attack table (tests/data/attacks/z_zip.py).

/// The fields of one header.
#[derive(Clone)]
struct Fields {
    name: Vec<u8>,
    flags: u16,
    method: u16,
    crc: u32,
    compressed_size: u32,
    size: u32,
    extra: Vec<u8>,
}

impl Fields {
    /// The bytes from "version needed" to the extra field's length, which both headers share (APPNOTE 4.3.7, 4.3.12).
    fn bytes(&self) -> Vec<u8> {
        let mut out = vec![20, 0];
        out.extend(self.flags.to_le_bytes());
        out.extend(self.method.to_le_bytes());
        out.extend([0; 4]);
        out.extend(self.crc.to_le_bytes());
        out.extend(self.compressed_size.to_le_bytes());
        out.extend(self.size.to_le_bytes());
        out.extend((self.name.len() as u16).to_le_bytes());
        out.extend((self.extra.len() as u16).to_le_bytes());
        out
    }
}

pub(super) struct Entry {
    local: Fields,
    central: Fields,
    payload: Vec<u8>,
    descriptor: Vec<u8>,
}

pub(super) fn entry(name: &str, payload: &[u8]) -> Entry {
    let fields = Fields {
        name: name.into(),
        flags: 0,
        method: 0,
        crc: crc32fast::hash(payload),
        compressed_size: payload.len() as u32,
        size: payload.len() as u32,
        extra: Vec::new(),
    };
    Entry { local: fields.clone(), central: fields, payload: payload.to_vec(), descriptor: Vec::new() }
}

/// A member as torch writes it: zeros and padding in the local file header, a data descriptor after the payload.
pub(super) fn torch_entry(name: &str, payload: &[u8]) -> Entry {
    let mut entry = entry(name, payload);
    entry.descriptor.extend(b"PK\x07\x08");
    for value in [entry.central.crc, entry.central.size, entry.central.size] {
        entry.descriptor.extend(value.to_le_bytes());
    }
    (entry.local.flags, entry.central.flags) = (0x808, 0x808);
    (entry.local.crc, entry.local.compressed_size, entry.local.size) = (0, 0, 0);
    entry.local.extra = b"FB\x05\0ZZZZZ".to_vec();
    entry
}

pub(super) fn deflated(name: &str, payload: &[u8]) -> Entry {
    let mut entry = entry(name, payload);
    entry.payload = miniz_oxide::deflate::compress_to_vec(payload, 6);
    for fields in [&mut entry.local, &mut entry.central] {
        fields.method = 8;
        fields.compressed_size = entry.payload.len() as u32;
    }
    entry
}

/// An archive with zip64 end records.
pub(super) fn archive(entries: &[Entry]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for entry in entries {
        let header = out.len() as u32;
        out.extend(b"PK\x03\x04");
        for part in
            [&entry.local.bytes(), &entry.local.name, &entry.local.extra, &entry.payload, &entry.descriptor]
        {
            out.extend(part);
        }
        directory.extend(b"PK\x01\x02\x14\0");
        directory.extend(entry.central.bytes());
        directory.extend([0; 10]);
        directory.extend(header.to_le_bytes());
        directory.extend(&entry.central.name);
        directory.extend(&entry.central.extra);
    }
    let (start, count) = (out.len() as u64, entries.len() as u64);
    out.extend(&directory);
    let end = out.len() as u64;
    out.extend(b"PK\x06\x06\x2c\0\0\0\0\0\0\0\x2d\0\x2d\0\0\0\0\0\0\0\0\0");
    for value in [count, count, end - start, start] {
        out.extend(value.to_le_bytes());
    }
    out.extend(b"PK\x06\x07\0\0\0\0");
    out.extend(end.to_le_bytes());
    out.extend([1, 0, 0, 0]);
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([count as u16, count as u16].map(u16::to_le_bytes).concat());
    out.extend([(end - start) as u32, start as u32].map(u32::to_le_bytes).concat());
    out.extend([0, 0]);
    out
}
