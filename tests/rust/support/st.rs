//! A writer of safetensors files.

/// A safetensors file under construction.
#[derive(Clone, Default)]
pub(crate) struct File {
    metadata: Vec<(String, String)>,
    tensors: Vec<(String, String, Vec<u64>, Vec<u8>)>,
    padding: usize,
}

impl File {
    pub(crate) fn new() -> File {
        File::default()
    }

    pub(crate) fn metadata(mut self, key: &str, value: &str) -> File {
        self.metadata.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Adds a tensor; `dtype` is the header's code. The bytes need not fit the shape.
    pub(crate) fn tensor(mut self, name: &str, dtype: &str, shape: &[u64], bytes: &[u8]) -> File {
        self.tensors.push((name.to_owned(), dtype.to_owned(), shape.to_vec(), bytes.to_vec()));
        self
    }

    /// Adds so many spaces after the header, which is a multiple of 8 bytes long without: with 1, every tensor is misaligned.
    pub(crate) fn pad(self, padding: usize) -> File {
        File { padding, ..self }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut header = serde_json::Map::new();
        if !self.metadata.is_empty() {
            let map: serde_json::Map<_, _> =
                self.metadata.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect();
            header.insert("__metadata__".to_owned(), map.into());
        }
        let mut data = Vec::new();
        for (name, dtype, shape, bytes) in &self.tensors {
            let begin = data.len();
            data.extend_from_slice(bytes);
            let offsets = [begin, data.len()];
            let info = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
            header.insert(name.clone(), info);
        }
        let mut header = serde_json::Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8) + self.padding, b' ');
        [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
    }
}
