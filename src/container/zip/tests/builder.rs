//! Builds archives field by field, so that a test can make a single field wrong.

/// The fields of one header; a test changes one to plant a defect.
#[derive(Clone, Debug)]
pub(super) struct Fields {
    pub(super) name: Vec<u8>,
    pub(super) flags: u16,
    pub(super) method: u16,
    pub(super) crc: u32,
    pub(super) compressed_size: u32,
    pub(super) size: u32,
    pub(super) extra: Vec<u8>,
}

impl Fields {
    /// The bytes from "version needed" to the extra field's length, which both headers share (APPNOTE 4.3.7, 4.3.12).
    pub(super) fn bytes(&self) -> Vec<u8> {
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

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) local: Fields,
    pub(super) central: Fields,
    pub(super) payload: Vec<u8>,
    pub(super) descriptor: Vec<u8>,
    pub(super) signature: [u8; 4],
    pub(super) disk: u16,
    /// A false offset of the local file header, for the central directory.
    pub(super) header: Option<u32>,
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
    Entry {
        local: fields.clone(),
        central: fields,
        payload: payload.to_vec(),
        descriptor: Vec::new(),
        signature: *b"PK\x03\x04",
        disk: 0,
        header: None,
    }
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

/// Builds an archive field by field; `None` means the correct value.
#[derive(Clone, Debug, Default)]
pub(super) struct ZipBuilder {
    pub(super) entries: Vec<Entry>,
    pub(super) disks: [u16; 2],
    pub(super) count: Option<u16>,
    pub(super) directory_size: Option<u32>,
    pub(super) directory_start: Option<u32>,
    pub(super) zip64: bool,
    pub(super) zip64_count: Option<u64>,
    pub(super) locator: Option<u64>,
    pub(super) comment: Vec<u8>,
    pub(super) comment_len: Option<u16>,
}

impl ZipBuilder {
    pub(super) fn new(entries: impl IntoIterator<Item = Entry>) -> ZipBuilder {
        ZipBuilder { entries: entries.into_iter().collect(), ..ZipBuilder::default() }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let (mut out, mut directory) = (Vec::new(), Vec::new());
        for entry in &self.entries {
            let header = entry.header.unwrap_or(out.len() as u32);
            out.extend(entry.signature);
            for part in [&entry.local.bytes(), &entry.local.name, &entry.local.extra] {
                out.extend(part);
            }
            out.extend(&entry.payload);
            out.extend(&entry.descriptor);
            directory.extend(b"PK\x01\x02\x14\0");
            directory.extend(entry.central.bytes());
            directory.extend([0, 0]);
            directory.extend(entry.disk.to_le_bytes());
            directory.extend([0; 6]);
            directory.extend(header.to_le_bytes());
            directory.extend(&entry.central.name);
            directory.extend(&entry.central.extra);
        }
        let start = out.len() as u64;
        out.extend(&directory);
        let end = out.len() as u64;
        if self.zip64 {
            out.extend(b"PK\x06\x06\x2c\0\0\0\0\0\0\0\x2d\0\x2d\0\0\0\0\0\0\0\0\0");
            let count = self.zip64_count.unwrap_or(self.entries.len() as u64);
            for value in [count, count, end - start, start] {
                out.extend(value.to_le_bytes());
            }
            out.extend(b"PK\x06\x07\0\0\0\0");
            out.extend(self.locator.unwrap_or(end).to_le_bytes());
            out.extend([1, 0, 0, 0]);
        }
        out.extend(b"PK\x05\x06");
        let count = self.count.unwrap_or(self.entries.len() as u16);
        for value in [self.disks[0], self.disks[1], count, count] {
            out.extend(value.to_le_bytes());
        }
        out.extend(self.directory_size.unwrap_or((end - start) as u32).to_le_bytes());
        out.extend(self.directory_start.unwrap_or(start as u32).to_le_bytes());
        out.extend(self.comment_len.unwrap_or(self.comment.len() as u16).to_le_bytes());
        out.extend(&self.comment);
        out
    }
}
