//! A writer of torch's zip archives: stored members with correct checksums, and optional defects.

/// A torch archive under construction.
#[derive(Clone)]
pub(crate) struct Archive {
    root: String,
    members: Vec<Member>,
    descriptors: bool,
    no_checksums: bool,
}

#[derive(Clone)]
struct Member {
    /// With the root folder.
    name: String,
    bytes: Vec<u8>,
    deflated: bool,
    flipped_crc: bool,
}

impl Archive {
    /// An empty archive.
    pub(crate) fn bare() -> Archive {
        let root = "archive".to_owned();
        Archive { root, members: Vec::new(), descriptors: false, no_checksums: false }
    }

    /// `archive/data.pkl`, `byteorder` and `version`, as torch writes them.
    pub(crate) fn new(pickle: Vec<u8>) -> Archive {
        Archive::bare().with("data.pkl", &pickle).with("byteorder", b"little").with("version", b"3\n")
    }

    /// Adds a member in the root folder.
    pub(crate) fn with(self, name: &str, bytes: &[u8]) -> Archive {
        let name = format!("{}/{name}", self.root);
        self.with_path(&name, bytes)
    }

    /// Adds a member with exactly this name.
    pub(crate) fn with_path(mut self, name: &str, bytes: &[u8]) -> Archive {
        let (name, bytes) = (name.to_owned(), bytes.to_vec());
        self.members.push(Member { name, bytes, deflated: false, flipped_crc: false });
        self
    }

    /// Adds a storage `data/key`.
    pub(crate) fn storage(self, key: &str, bytes: &[u8]) -> Archive {
        self.with(&format!("data/{key}"), bytes)
    }

    /// Replaces the bytes of a member.
    pub(crate) fn replace(mut self, name: &str, bytes: &[u8]) -> Archive {
        self.member(name).bytes = bytes.to_vec();
        self
    }

    pub(crate) fn deflated(mut self, name: &str) -> Archive {
        self.member(name).deflated = true;
        self
    }

    /// Flips a bit of a member's checksum.
    pub(crate) fn wrong_crc(mut self, name: &str) -> Archive {
        self.member(name).flipped_crc = true;
        self
    }

    /// Sets the byte order to big-endian.
    pub(crate) fn big_endian(self) -> Archive {
        self.replace("byteorder", b"big")
    }

    /// Writes zero for every checksum, as torch does after `set_crc32_options(False)`.
    pub(crate) fn no_checksums(self) -> Archive {
        Archive { no_checksums: true, ..self }
    }

    /// Writes sizes and checksums in data descriptors, as torch does.
    pub(crate) fn descriptors(self) -> Archive {
        Archive { descriptors: true, ..self }
    }

    fn member(&mut self, name: &str) -> &mut Member {
        let name = format!("{}/{name}", self.root);
        self.members.iter_mut().find(|member| member.name == name).expect("a member of this name")
    }

    /// The archive's bytes: APPNOTE 4.3.7, 4.3.9, 4.3.12 and 4.3.16.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let (mut out, mut directory) = (Vec::new(), Vec::new());
        for member in &self.members {
            let payload = if member.deflated {
                miniz_oxide::deflate::compress_to_vec(&member.bytes, 6)
            } else {
                member.bytes.clone()
            };
            let crc = if self.no_checksums { 0 } else { crc32fast::hash(&member.bytes) };
            let crc = crc ^ u32::from(member.flipped_crc);
            let flags: u16 = if self.descriptors { 0x808 } else { 0x800 };
            let method: u16 = if member.deflated { 8 } else { 0 };
            let sizes = [crc, payload.len() as u32, member.bytes.len() as u32].map(u32::to_le_bytes).concat();
            let local_sizes = if self.descriptors { vec![0; 12] } else { sizes.clone() };
            let offset = out.len() as u32;
            let name_len = (member.name.len() as u16).to_le_bytes();
            let middle = |sizes: &[u8]| {
                [&0_u16.to_le_bytes()[..], &flags.to_le_bytes(), &method.to_le_bytes(), &[0; 4], sizes]
                    .concat()
            };
            out.extend_from_slice(b"PK\x03\x04");
            out.extend_from_slice(&middle(&local_sizes));
            out.extend_from_slice(&[&name_len[..], &[0; 2], member.name.as_bytes(), &payload].concat());
            if self.descriptors {
                out.extend_from_slice(&[&b"PK\x07\x08"[..], &sizes].concat());
            }
            directory.extend_from_slice(b"PK\x01\x02\0\0");
            directory.extend_from_slice(&middle(&sizes));
            directory.extend_from_slice(&[&name_len[..], &[0; 12], &offset.to_le_bytes()].concat());
            directory.extend_from_slice(member.name.as_bytes());
        }
        let count = (self.members.len() as u16).to_le_bytes();
        let (at, len) = (out.len() as u32, directory.len() as u32);
        out.extend_from_slice(&directory);
        out.extend_from_slice(&[&b"PK\x05\x06\0\0\0\0"[..], &count, &count].concat());
        out.extend_from_slice(&[len.to_le_bytes(), at.to_le_bytes()].concat());
        out.extend_from_slice(&[0; 2]);
        out
    }
}
