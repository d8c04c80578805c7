//! Quantized weights as the numbers that they mean: a tensor for each, with the name and shape of the weight, whose bytes are decoded
//! from the codes as they are read.

mod bitsandbytes;
mod config;
mod decode;
mod evidence;
#[cfg(feature = "python")]
mod handed;
mod integers;
mod known;
mod packed;
mod part;
mod refusal;
mod tiles;
mod words;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use self::config::Config;
use self::evidence::{Evidence, Weight};
#[cfg(feature = "python")]
pub(crate) use self::handed::{Handed, HandedCodes, HandedScales};
use self::packed::Decoding;
use super::schemes::Roles;
use super::{NamedTensor, Opened, Role, Shard};
use crate::bytes::{Folder, Io, Source};
use crate::dtype::DType;
use crate::error::{Code, Error, Result};
use crate::index::{Index, Location, Objects, Storage, Tensor};

/// What is known of a quantized weight of the logical view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    /// The scheme that it is quantized in.
    pub(crate) scheme: &'static str,
    /// The bits of a code.
    pub(crate) bits: u32,
    /// The name of the weight.
    pub(crate) name: String,
    /// The dtype that its numbers are rounded to.
    pub(crate) dtype: DType,
    /// Its elements.
    pub(crate) numel: u64,
    /// The names of its codes and of what belongs to them.
    pub(crate) stored: Vec<Arc<str>>,
    /// Their bytes.
    pub(crate) stored_nbytes: u64,
}

/// The quantized weights of a checkpoint, which are in an index of their own after those of the files.
#[derive(Debug)]
pub(crate) struct Dequantized {
    /// The number of that index, in place of that of a file.
    pub(super) shard: u32,
    /// By tensor.
    weights: Vec<Placed>,
    /// Why codes are not known, by their names.
    refused: HashMap<Arc<str>, (Code, String)>,
}

/// A weight of the logical view, and where its codes are.
#[derive(Debug)]
struct Placed {
    description: Description,
    #[cfg_attr(
        not(feature = "python"),
        expect(dead_code, reason = "for decoders on other devices, which Python has")
    )]
    decoding: Arc<Decoding>,
    file: u32,
    position: u64,
}

/// What is known of the codes of a checkpoint.
struct Known {
    /// The entry of the codes, those of what belongs to them, and the weight.
    weights: Vec<(u32, Vec<u32>, Weight)>,
    refused: HashMap<Arc<str>, (Code, String)>,
}

impl Opened {
    /// What is known of a tensor of the logical view; `None` for a tensor that is as it is stored.
    pub(crate) fn description(&self, id: (u32, u32)) -> Option<&Description> {
        Some(&self.placed(id)?.description)
    }

    /// Why codes are not read as numbers, where the logical view was asked for.
    pub(crate) fn refusal(&self, name: &str) -> Option<&(Code, String)> {
        self.dequantized.as_ref()?.refused.get(name)
    }

    /// The file from which a tensor is read, and where in it, for sorting only.
    pub(crate) fn place(&self, id: (u32, u32)) -> (u32, u64) {
        let stored = || (id.0, self.storage((id.0, self.tensor(id).storage())).position());
        self.placed(id).map_or_else(stored, |placed| (placed.file, placed.position))
    }

    fn placed(&self, id: (u32, u32)) -> Option<&Placed> {
        let all = self.dequantized.as_ref().filter(|all| all.shard == id.0)?;
        all.weights.get(id.1 as usize)
    }

    /// What is known of all quantized weights. Fails where a file cannot be read.
    pub(crate) fn descriptions(&self) -> Result<Vec<Description>> {
        if let Some(dequantized) = &self.dequantized {
            return Ok(dequantized.weights.iter().map(|placed| placed.description.clone()).collect());
        }
        let Known { weights, .. } = self.known()?;
        Ok(weights.iter().map(|(codes, own, weight)| self.description_of(*codes, own, weight)).collect())
    }

    /// Fails where the configuration names a method of quantization and no tensor is codes that are known: the weights are not plain ones.
    #[cfg(feature = "python")]
    pub(crate) fn check_dequantized(&self) -> Result<()> {
        let has_weights = self.dequantized.as_ref().is_some_and(|all| !all.weights.is_empty());
        match self.config()?.method() {
            Some(method) if !has_weights => Err(Error::new(
                Code::QuantUnknown,
                format!("the configuration says {method}, and no tensor is in a scheme of it that is known"),
            )),
            _ => Ok(()),
        }
    }

    /// Replaces codes of known schemes by the weights that they mean, and leaves out what belongs to them.
    pub(super) fn dequantize(&mut self) -> Result<()> {
        let Some(first) = self.shards.first() else { return Ok(()) };
        let mut index = first.index.without_tensors();
        let Known { weights, refused } = self.known()?;
        let shard = self.shards.len() as u32;
        let mut placed = Vec::new();
        let mut replaced: HashMap<u32, NamedTensor> = HashMap::new();
        let mut left_out = HashSet::new();
        // Equal names in modules that share the tensors are one weight (tied weights).
        let mut by_parts: HashMap<_, u32> = HashMap::new();
        for (codes, own, weight) in weights {
            let named = self.entry(codes).clone();
            let name = weight.name.as_str().into();
            let part = |&part: &u32| (self.id(self.entry(part)), leaf(&self.entry(part).name));
            let parts: Vec<_> = std::iter::once(&codes).chain(&own).map(part).collect();
            let key = (parts, weight.decoding.dtype);
            let tensor = match by_parts.get(&key) {
                Some(&tensor) => tensor,
                None => {
                    let description = self.description_of(codes, &own, &weight);
                    let position = weight.decoding.codes.part.position();
                    let (tensor, decoding) = add(&mut index, weight)?;
                    placed.push(Placed { description, decoding, file: named.shard, position });
                    tensor
                }
            };
            by_parts.insert(key, tensor);
            replaced.insert(codes, NamedTensor { name, path: named.path, shard, tensor });
            left_out.extend(own);
        }
        let is_all_known = refused.is_empty();
        // Scales of a cache belong to a scheme and not to codes.
        let is_left_out = |entry: u32| left_out.contains(&entry) || (is_all_known && self.is_of_cache(entry));
        let mut roles = Vec::new();
        let mut kept = Vec::with_capacity(self.entries.len());
        let mut numbers = HashMap::new();
        for (entry, named) in (0_u32..).zip(&self.entries) {
            if replaced.contains_key(&entry) || !is_left_out(entry) {
                numbers.insert(entry, kept.len() as u32);
                let is_plain = is_all_known || replaced.contains_key(&entry);
                roles.push(if is_plain { Role::Plain } else { self.role(entry) });
                kept.push(replaced.remove(&entry).unwrap_or_else(|| named.clone()));
            }
        }
        let by_name: HashMap<_, _> =
            (0_u32..).zip(&kept).map(|(at, named)| (named.name.clone(), at)).collect();
        if by_name.len() < kept.len() {
            let text = "a quantized weight has the name of another tensor";
            return Err(Error::new(Code::ShardDuplicate, text));
        }
        self.roles = Roles::renumbered(roles, &numbers);
        (self.entries, self.by_name) = (kept, by_name);
        let objects = Objects::default();
        self.shards.push(Shard { path: None, file: shard as usize, is_inner: false, index, objects });
        self.dequantized = Some(Dequantized { shard, weights: placed, refused });
        Ok(())
    }

    /// The configuration in the folder of the first file.
    fn config(&self) -> Result<Config> {
        let Some(first) = self.shards.first() else { return Ok(Config::default()) };
        let on_disk = || Some(Folder::Disk(first.path.as_deref()?.parent()?.to_owned(), Io::Buffered));
        let folder = Folder::in_store(&first.index.source).or_else(on_disk);
        folder.map_or_else(|| Ok(Config::default()), |folder| Config::of_folder(&folder))
    }

    /// What is known of all codes.
    fn known(&self) -> Result<Known> {
        let mut known = Known { weights: Vec::new(), refused: HashMap::new() };
        let mut companions: HashMap<u32, Vec<u32>> = HashMap::new();
        let entries = || 0..self.entries.len() as u32;
        for entry in entries() {
            if let Role::Companion(Some(codes)) = self.role(entry) {
                companions.entry(codes).or_default().push(entry);
            }
        }
        let mut config = None;
        for codes in entries().filter(|&entry| self.role(entry) == Role::Codes) {
            self.options.cancel.check()?;
            let own = companions.remove(&codes).unwrap_or_default();
            let named = self.entry(codes);
            let config = match &mut config {
                Some(config) => config,
                none => none.insert(self.config()?.beside(self)),
            };
            match self.weight(codes, &own, config) {
                Ok(weight) => known.weights.push((codes, own, weight)),
                Err(error) if matches!(error.code(), Code::QuantUnknown | Code::TensorBounds) => {
                    let library = config.library().map(|(method, library)| {
                        format!("; the configuration says {method}, which the library {library} decodes")
                    });
                    let text = error.message().to_owned() + &library.unwrap_or_default();
                    known.refused.insert(named.name.clone(), (error.code(), text));
                }
                Err(error) => {
                    let error = self.file_changed_or(named.shard, error).in_member(&named.name);
                    return Err(error.in_known_file(self.shards[named.shard as usize].path.as_deref()));
                }
            }
        }
        Ok(known)
    }

    /// The weight that codes are, with these companions.
    fn weight(&self, codes: u32, companions: &[u32], config: &Config) -> Result<Weight> {
        let whole = &*self.entry(codes).name;
        let start = whole.rfind('.').map_or(0, |dot| dot + 1);
        let (module, name) = whole.split_at(start);
        let mut others = BTreeMap::new();
        for &entry in companions {
            let other = &*self.entry(entry).name;
            if !self.is_of_activations(entry, codes) {
                others.insert(other.strip_prefix(module).unwrap_or(other), entry);
            }
        }
        known::weight(Evidence { opened: self, config, codes, module, name, others })
    }

    fn description_of(&self, codes: u32, companions: &[u32], weight: &Weight) -> Description {
        let parts: Vec<u32> = std::iter::once(codes).chain(companions.iter().copied()).collect();
        let nbytes = |part: &u32| {
            let tensor = self.tensor(self.id(self.entry(*part)));
            tensor.layout().numel().saturating_mul(tensor.dtype().itemsize())
        };
        Description {
            scheme: weight.scheme,
            bits: weight.decoding.codes.codes.bits(),
            name: weight.name.clone(),
            dtype: weight.decoding.dtype,
            numel: weight.layout.numel(),
            stored: parts.iter().map(|&part| self.entry(part).name.clone()).collect(),
            stored_nbytes: parts.iter().map(nbytes).fold(0, u64::saturating_add),
        }
    }
}

/// The last component of a name.
fn leaf(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Adds a weight, without a name; returns its number, and what it is decoded from.
fn add(index: &mut Index, weight: Weight) -> Result<(u32, Arc<Decoding>)> {
    let Weight { layout, decoding, .. } = weight;
    let (number, dtype) = (index.tensors.len() as u32, decoding.dtype);
    let too_large = || Error::new(Code::TensorShape, "a weight's size does not fit 64 bits");
    let nbytes = decoding.nbytes().ok_or_else(too_large)?;
    index.tensors.push(Tensor::of_layout(dtype, layout, number, nbytes)?);
    let (position, numel) = (decoding.codes.part.position(), decoding.rows.saturating_mul(decoding.columns));
    let decoding = Arc::new(decoding);
    let location = Location::Derived(Source::new(decoding.clone()), position);
    index.storages.push(Storage { location, nbytes, numel, big_endian: false, device: None });
    Ok((number, decoding))
}
