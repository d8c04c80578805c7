//! What the files beside a checkpoint say of its quantization, where the tensors leave it open. It is never believed against them.

use serde_json::Value;

use super::part::Part;
use super::refusal::{exact, refused};
use crate::bytes::Folder;
use crate::error::{Code, Result};
use crate::kernel::codes::Codes;
use crate::num::to_usize;
use crate::opened::Opened;

/// The most bytes of a configuration that is read.
const CONFIG_MAX_BYTES: u64 = 16 << 20;

/// The most rows or columns of a group or block.
const GROUP_MAX: u64 = 1 << 20;

/// The most groups and blocks that are tried: more say nothing.
const PAIRS_MAX: usize = 256;

/// The parts of a configuration that describe a quantization.
const KEYS: [&str; 3] = ["quantization_config", "compression_config", "quantization"];

/// Methods of quantization, the library that decodes each, and the schemes that each writes as they are read here.
const METHODS: [(&str, &str, &[&str]); 32] = [
    ("aqlm", "aqlm", &[]),
    ("auto-round", "auto-round", AUTO_ROUND),
    ("autoround", "auto-round", AUTO_ROUND),
    ("awq", "autoawq", &["awq"]),
    ("bitnet", "transformers", &[]),
    ("bitsandbytes", "bitsandbytes", &["bnb-nf4", "bnb-fp4", "bnb-int8"]),
    (
        "compressed-tensors",
        "compressed-tensors",
        &["int1", "int2", "int3", "int4", "int5", "int6", "int7", "int8", "fp8", "mxfp4", "nvfp4"],
    ),
    ("eetq", "eetq", &[]),
    ("exl2", "exllamav2", &[]),
    ("exl3", "exllamav3", &[]),
    ("fbgemm_fp8", "transformers", &["fp8"]),
    ("fp8", "transformers", &["fp8", "mxfp4"]),
    ("fouroversix", "fouroversix", &[]),
    ("fp_quant", "fp_quant", &[]),
    ("gemma", "transformers", &["int8"]),
    ("gptq", "gptqmodel", &["gptq"]),
    ("higgs", "flute-kernel", &[]),
    ("hqq", "hqq", &[]),
    ("intel/auto-round", "auto-round", AUTO_ROUND),
    ("metal", "transformers", &["mlx"]),
    (MODELOPT, MODELOPT_LIBRARY, MODELOPT_SCHEMES),
    ("modelopt_fp4", MODELOPT_LIBRARY, MODELOPT_SCHEMES),
    ("modelopt_mixed", MODELOPT_LIBRARY, MODELOPT_SCHEMES),
    ("modelopt_mxfp8", MODELOPT_LIBRARY, MODELOPT_SCHEMES),
    ("mxfp4", "transformers", &["mxfp4", "mlx"]),
    ("mxfp8", "vllm", &["fp8"]),
    ("quanto", "optimum-quanto", &[]),
    ("quark", "amd-quark", &["fp8", "int8", "mxfp4"]),
    ("sinq", "sinq", &[]),
    ("spqr", "spqr_quant", &[]),
    ("torchao", "torchao", &["fp8", "int8", "mxfp4", "nvfp4"]),
    ("vptq", "vptq", &[]),
];

const AUTO_ROUND: &[&str] = &["awq", "fp8", "gptq", "mxfp4", "nvfp4"];

const MODELOPT: &str = "modelopt";
const MODELOPT_LIBRARY: &str = "nvidia-modelopt";
const MODELOPT_SCHEMES: &[&str] = &["fp8", "int4", "int8", "mxfp4", "nvfp4"];

/// Keys of what is done to numbers or inputs besides: with a value, they are not all that the numbers mean.
const CHANGES: [&str; 3] = ["transform_config", "rotation_config", "weight_scale_semantics"];

/// What a tensor is named by which AutoAWQ divides activations (`ScaledActivation`): the next weight is multiplied by it.
const ACTIVATION_SCALES: &str = ".act.scales";

/// The key of the metadata in which ComfyUI says how each layer is quantized.
const LAYERS_KEY: &str = "_quantization_metadata";

/// The longest such text that is read.
const LAYERS_MAX_BYTES: usize = 4 << 20;

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
    /// The layout of packed words, and the kind of numbers, of AutoRound.
    packing: Option<String>,
    kind: Option<String>,
    /// One of [`CHANGES`], or [`ACTIVATION_SCALES`].
    change: Option<&'static str>,
    symmetric: bool,
    /// Whether zero points were changed by whole words.
    by_words: bool,
    is_there: bool,
    /// What ComfyUI says of layers in the header, by their names.
    layers: Option<Value>,
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
        let modelopt = || text("quant_algo").map(|_| MODELOPT.to_owned());
        let method = text("quant_method").or_else(|| text("method")).or_else(modelopt);
        let mut config = Config { is_there: true, method, ..Config::default() };
        config.format = text("checkpoint_format").or_else(|| text("version")).or_else(|| text("format"));
        (config.packing, config.kind) = (text("packing_format"), text("data_type"));
        let is_empty =
            |value: &Value| value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
        config.change = CHANGES.into_iter().find(|key| found.get(key).is_some_and(|value| !is_empty(value)));
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

    /// The same with what a checkpoint has for all of its codes: what its metadata say of layers, and scales of activations.
    pub(super) fn beside(mut self, opened: &Opened) -> Config {
        let stated = opened.metadata.iter().find(|(key, _)| key == LAYERS_KEY);
        self.layers = stated.map(|(_, text)| {
            let all = if text.len() <= LAYERS_MAX_BYTES { text } else { "" };
            let mut all: Value = serde_json::from_str(all).unwrap_or_default();
            all.get_mut("layers").map(Value::take).unwrap_or_default()
        });
        if opened.entries.iter().any(|entry| entry.name.ends_with(ACTIVATION_SCALES)) {
            self.change = Some(ACTIVATION_SCALES);
        }
        self
    }

    fn is_of_auto_round(&self) -> bool {
        self.library().is_some_and(|(_, library)| library == "auto-round")
    }

    /// The method that it names.
    #[cfg(feature = "python")]
    pub(super) fn method(&self) -> Option<&str> {
        self.method.as_deref()
    }

    /// The method that it names, and the library that decodes what that writes.
    pub(super) fn library(&self) -> Option<(&'static str, &'static str)> {
        let method = self.method.as_deref()?;
        METHODS.iter().find(|(name, ..)| *name == method).map(|&(name, library, _)| (name, library))
    }

    /// Fails where codes of a scheme may mean something else than their tensors say: it names a method that is not known to write them
    /// so, or says more of them than is known.
    pub(super) fn check(&self, module: &str, scheme: &str) -> Result<()> {
        if let Some(layers) = &self.layers {
            let name = module.strip_suffix('.').unwrap_or(module);
            check_layer(layers.get(name).unwrap_or(&Value::Null), scheme)?;
        }
        let other = || Err(refused(format!("its tensors are those of {scheme}")));
        let kind = match scheme {
            "mxfp4" => "mx_fp",
            "nvfp4" => "nv_fp",
            "awq" | "gptq" => "int",
            _ => "",
        };
        let method = self.method.as_deref();
        match (self.change, method, METHODS.iter().find(|(name, ..)| method == Some(name))) {
            (Some(key), ..) => Err(refused(format!("{key:?} changes what its numbers mean"))),
            (_, Some(_), Some((_, _, schemes))) if !schemes.contains(&scheme) => other(),
            _ if self.is_of_auto_round()
                && self.kind.as_ref().is_some_and(|stated| !stated.starts_with(kind)) =>
            {
                other()
            }
            (_, Some(method), None) => {
                Err(refused(format!("the configuration names the method {method:?}, which is not known")))
            }
            _ => Ok(()),
        }
    }

    /// Fails unless it says that ModelOpt wrote NVFP4 with a second scale: ComfyUI's, of the same names and shapes, has the halves of bytes
    /// and the scales in another order.
    pub(super) fn check_second_scale(&self) -> Result<()> {
        match self.library().is_some_and(|(_, library)| library == MODELOPT_LIBRARY) {
            true => Ok(()),
            false => Err(refused(
                "nothing says in which order its codes and scales are: config.json or hf_quant_config.json of ModelOpt would",
            )),
        }
    }

    /// Fails where it contradicts words that are packed as those of GPTQ or AWQ.
    pub(super) fn check_packed(&self, is_awq: bool) -> Result<()> {
        let own = if is_awq { "awq" } else { "gptq" };
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
        if !self.symmetric && self.is_of_auto_round() {
            return match self.packing.as_deref() {
                Some("auto_round:auto_gptq") => made(1),
                Some("auto_round" | "auto_round:gptqmodel") => Ok(plain),
                _ => Err(refused(
                    "\"packing_format\" of the configuration does not say how its zero points are stored",
                )),
            };
        }
        if self.by_words && matches!(bits, 2 | 4 | 8) {
            let ones = u32::MAX / ((1 << bits) - 1);
            return Ok(plain.with_word_add(ones));
        }
        made(1)
    }
}

/// Fails unless what ComfyUI says of a layer is that its tensors mean what they do in other files.
pub(super) fn check_layer(layer: &Value, scheme: &str) -> Result<()> {
    let format = layer["format"].as_str().unwrap_or_default();
    let is_rotated = !matches!(layer["convrot"], Value::Null | Value::Bool(false));
    match scheme {
        "fp8" if format.starts_with("float8_") && !is_rotated => Ok(()),
        "int8" if format == "int8_tensorwise" && !is_rotated => Ok(()),
        _ => Err(refused(format!(
            "it is in the format {format:?} of ComfyUI, which the library comfy-kitchen decodes"
        ))),
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
