//! What the files beside a checkpoint say of its quantization, where the tensors leave it open. It is never believed against them.

use serde_json::Value;

use super::part::Part;
use super::refusal::{exact, refused};
use crate::bytes::Folder;
use crate::error::{Code, Result};
use crate::kernel::codes::Codes;
use crate::num::to_usize;

/// The most bytes of a configuration that is read.
const CONFIG_MAX_BYTES: u64 = 16 << 20;

/// The most rows or columns of a group or block.
const GROUP_MAX: u64 = 1 << 20;

/// The most groups and blocks that are tried: more say nothing.
const PAIRS_MAX: usize = 256;

/// The parts of a configuration that describe a quantization.
const KEYS: [&str; 3] = ["quantization_config", "compression_config", "quantization"];

/// Methods of quantization, and the library that decodes each.
const LIBRARIES: [(&str, &str); 20] = [
    ("aqlm", "aqlm"),
    ("auto-round", "auto-round"),
    ("autoround", "auto-round"),
    ("awq", "autoawq"),
    ("bitnet", "transformers"),
    ("bitsandbytes", "bitsandbytes"),
    ("compressed-tensors", "compressed-tensors"),
    ("eetq", "eetq"),
    ("exl2", "exllamav2"),
    ("exl3", "exllamav3"),
    ("fp_quant", "fp_quant"),
    ("gptq", "gptqmodel"),
    ("higgs", "flute-kernel"),
    ("hqq", "hqq"),
    ("modelopt", "nvidia-modelopt"),
    ("quanto", "optimum-quanto"),
    ("quark", "amd-quark"),
    ("spqr", "spqr_quant"),
    ("torchao", "torchao"),
    ("vptq", "vptq"),
];

/// The file that holds nothing but the configuration.
const OWN_FILE: &str = "quantize_config.json";

/// The files that may have it, the first one first.
const FILES: [&str; 3] = ["config.json", "hf_quant_config.json", OWN_FILE];

/// What is known of the quantization.
#[derive(Debug, Default)]
pub(super) struct Config {
    /// The widths of codes that it names.
    pub(super) bits: Vec<u64>,
    /// The rows and columns of blocks that it names.
    pub(super) blocks: Vec<(u64, u64)>,
    /// The widths of codes and of groups that it names together, each pair once.
    pub(super) groups: Vec<(u64, u64)>,
    method: Option<String>,
    /// The layout of packed words: `checkpoint_format` of GPTQ, `version` of AWQ.
    format: Option<String>,
    symmetric: bool,
    /// Whether zero points were changed by whole words.
    by_words: bool,
    is_there: bool,
}

impl Config {
    /// The configuration in a folder. Fails where a file that may have it is there and cannot be read.
    pub(super) fn of_folder(folder: &Folder) -> Result<Config> {
        for (name, size) in FILES.iter().zip(folder.sizes(&FILES)?) {
            // What a manifest lists has to be there.
            let is_there = size.is_some() || folder.is_verified();
            let Some(config) = (if is_there { read(folder, name)? } else { None }) else { continue };
            if *name == OWN_FILE {
                return Ok(Config::of(&config));
            }
            let all = [Some(&config), config.get("text_config")];
            let found = all.into_iter().flatten().find_map(|all| KEYS.iter().find_map(|key| all.get(key)));
            if let Some(found) = found {
                return Ok(Config::of(found));
            }
        }
        Ok(Config::default())
    }

    fn of(found: &Value) -> Config {
        let text = |key: &str| found.get(key).and_then(Value::as_str).map(str::to_lowercase);
        let modelopt = || text("quant_algo").map(|_| "modelopt".to_owned());
        let method = text("quant_method").or_else(modelopt);
        let mut config = Config { is_there: true, method, ..Config::default() };
        config.format = text("checkpoint_format").or_else(|| text("version")).or_else(|| text("format"));
        config.symmetric = found.get("sym").and_then(Value::as_bool).unwrap_or(false);
        let quantizer = found.get("meta").and_then(|meta| meta.get("quantizer"));
        config.by_words = quantizer.is_some_and(|quantizer| quantizer.to_string().contains("gptqmodel"));
        let groups = found.get("config_groups").and_then(Value::as_object);
        for weights in
            groups.into_iter().flat_map(|groups| groups.values()).filter_map(|group| group.get("weights"))
        {
            config.bits.extend(weights.get("num_bits").and_then(Value::as_u64));
            config.blocks.extend(weights.get("block_structure").and_then(block));
        }
        config.blocks.extend(found.get("weight_block_size").and_then(block));
        // Modules may have widths of their own.
        let modules = found.as_object().into_iter().flat_map(|all| all.values());
        for part in std::iter::once(found).chain(modules) {
            let size = |key: &str| part.get(key).and_then(Value::as_u64);
            config.groups.extend(size("bits").zip(size("group_size")));
        }
        config.groups.retain(|&(_, width)| (1..=GROUP_MAX).contains(&width));
        for pairs in [&mut config.groups, &mut config.blocks] {
            pairs.sort_unstable();
            pairs.dedup();
            pairs.truncate(PAIRS_MAX);
        }
        config
    }

    /// The rows of each of `groups` groups of `rows` rows: those that it names, or as many in each.
    pub(super) fn group_of(&self, rows: u64, groups: u64) -> Option<u64> {
        let stated = self.groups.iter().map(|&(_, height)| height);
        let mut fitting: Vec<u64> = stated.filter(|&height| rows.div_ceil(height) == groups).collect();
        fitting.sort_unstable();
        fitting.dedup();
        match fitting[..] {
            [] => exact(Some(rows), groups),
            [height] => Some(height),
            _ => None,
        }
    }

    /// The method that it names, and the library that decodes what that writes.
    pub(super) fn library(&self) -> Option<(&'static str, &'static str)> {
        let method = self.method.as_deref()?;
        LIBRARIES.iter().find(|(name, _)| *name == method).copied()
    }

    /// Fails where it contradicts words that are packed as those of GPTQ or AWQ.
    pub(super) fn check_packed(&self, is_awq: bool) -> Result<()> {
        let (own, other) = if is_awq { ("awq", "gptq") } else { ("gptq", "awq") };
        if self.method.as_deref() == Some(other) {
            return Err(refused(format!(
                "its words are packed as those of {own}, the configuration says {other}"
            )));
        }
        let known = if is_awq { ["gemm", "auto_round:auto_awq"].as_slice() } else { &["gptq", "gptq_v2"] };
        match &self.format {
            Some(format) if self.method.as_deref() == Some(own) && !known.contains(&format.as_str()) => {
                Err(refused(format!("the configuration says that its words are packed as {format:?}")))
            }
            _ => Ok(()),
        }
    }

    /// How zero points of GPTQ are stored: one less than they are, or as they are (`gptq_v2`). `plain` are codes as they are, `made`
    /// makes those to which a number is added.
    pub(super) fn zeros(
        &self,
        part: &Part,
        plain: Codes,
        made: &dyn Fn(u32) -> Result<Codes>,
    ) -> Result<Codes> {
        let bits = plain.bits();
        let middle = (1_u32 << (bits - 1)) as f32;
        let all_are = |number: f32| -> Result<bool> {
            let (rows, words) = (part.shape[0], part.shape[1]);
            let bytes = part.bytes(0, rows.saturating_mul(words).saturating_mul(4))?;
            let unpacker = plain.unpacker();
            let mut numbers = vec![0.0; to_usize(words * 32 / u64::from(bits))];
            let mut rows = bytes.chunks_exact(to_usize(words * 4).max(1));
            Ok(rows.all(|row| {
                unpacker.unpack(row, 0, &mut numbers);
                numbers.iter().all(|&found| found == number)
            }))
        };
        if !self.is_there {
            return match (all_are(middle - 1.0)?, all_are(middle)?) {
                (true, _) => made(1),
                (_, true) => Ok(plain),
                _ => {
                    let text = "nothing says how its zero points are stored: quantize_config.json or config.json would";
                    Err(refused(text))
                }
            };
        }
        if self.format.as_deref() == Some("gptq_v2") || (self.symmetric && all_are(middle)?) {
            return Ok(plain);
        }
        if self.by_words && matches!(bits, 2 | 4 | 8) {
            let ones = u32::MAX / ((1 << bits) - 1);
            return Ok(plain.with_word_add(ones));
        }
        made(1)
    }
}

fn block(value: &Value) -> Option<(u64, u64)> {
    match value.as_array()?[..] {
        [ref rows, ref columns] => {
            let size = |value: &Value| value.as_u64().filter(|size| (1..=GROUP_MAX).contains(size));
            Some((size(rows)?, size(columns)?))
        }
        _ => None,
    }
}

/// A configuration; `None` if the folder has none of this name, as far as it can be read and is listed.
fn read(folder: &Folder, name: &str) -> Result<Option<Value>> {
    let bytes = folder.open(name).and_then(|source| match source.len() {
        0..=CONFIG_MAX_BYTES => source.read_vec(0, source.len()),
        _ => Ok(Vec::new()),
    });
    match bytes {
        Err(error) if error.code() == Code::ManifestMissing => Ok(None),
        bytes => Ok(serde_json::from_slice(&bytes?).ok()),
    }
}
