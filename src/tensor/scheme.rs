//! What a tensor is in the scheme that its checkpoint is quantized in, and the error for codes where numbers were asked for.

use super::quantized::Dequantization;
use super::{Request, Tensor};
use crate::error::{Code, Error, Result, error};
use crate::opened::{Role, is_narrow};

/// The companions that an error names.
const COMPANIONS_SHOWN: usize = 4;
/// What to do with codes that are refused where numbers were asked for.
const AS_STORED: &str = "Without dequantize, the codes are read as stored, for the library that wrote them.";

impl Tensor {
    /// Whether it is codes of a quantization, what belongs to such codes, or numbers as they are. Without a name, its dtype tells.
    pub(crate) fn role(&self) -> Role {
        match self.entry {
            Some(entry) => self.opened.role(entry),
            None if is_narrow(self.dtype) => Role::Codes,
            None => Role::Plain,
        }
    }

    /// Whether `dequantize` changes the elements, or fails to.
    pub(crate) fn is_quantized(&self) -> bool {
        self.quantization().is_some() || self.is_codes()
    }

    /// Whether it is codes as they are stored, which are no numbers.
    pub(crate) fn is_codes(&self) -> bool {
        self.role() == Role::Codes
    }

    /// Whether a cast makes numbers of codes that have scales or the like beside them. In the logical view, it is refused.
    #[cfg(feature = "python")]
    pub(crate) fn casts_without_scales(&self) -> bool {
        let has_companions = |entry: u32| self.opened.companions(entry).next().is_some();
        !self.opened.options.dequantize && self.is_codes() && self.entry.is_some_and(has_companions)
    }

    /// Fails where the request needs the numbers that codes mean.
    pub(crate) fn check_scheme(&self, request: &Request) -> Result<()> {
        match self.dequantization(request) {
            Some(Dequantization::Refused) => Err(self.refused_codes()),
            _ => Ok(()),
        }
    }

    /// The error for codes where numbers were asked for: why the logical view has not replaced them, or what is beside them.
    pub(super) fn refused_codes(&self) -> Error {
        if let Some((code, text)) = self.opened.refusal(self.name()) {
            let error = error!(*code, "it is not read as numbers: {text}");
            return if *code == Code::QuantUnknown { error.note(AS_STORED) } else { error };
        }
        let companions = self.entry.into_iter().flat_map(|entry| self.opened.companions(entry));
        let described = |entry: u32| {
            let named = self.opened.entry(entry);
            let tensor = self.opened.tensor(self.opened.id(named));
            format!("{:?} ({} {:?})", named.name, tensor.dtype(), &tensor.layout().shape[..])
        };
        let mut seen: Vec<String> = companions.take(COMPANIONS_SHOWN + 1).map(described).collect();
        let more = if seen.len() > COMPANIONS_SHOWN { " and others" } else { "" };
        seen.truncate(COMPANIONS_SHOWN);
        let beside = match seen.is_empty() {
            true => "no scales are beside it".to_owned(),
            false => format!("{}{more} belong to it", seen.join(", ")),
        };
        let shape = &self.opened.tensor(self.id).layout().shape[..];
        let text = format!("{} {shape:?} is codes of a quantization, and not numbers: {beside}", self.dtype);
        Error::new(Code::QuantUnknown, text)
    }

    /// The codes that it belongs to, by their name; of scales of scales, those of the first.
    pub(crate) fn companion_of(&self) -> Option<&str> {
        let owner = |role| if let Role::Companion(codes) = role { codes } else { None };
        let first = owner(self.role())?;
        // Owners are in the same module or above it, where the weight has none: there is no cycle.
        let codes = std::iter::successors(Some(first), |&codes| owner(self.opened.role(codes))).last()?;
        Some(&self.opened.entry(codes).name)
    }

    /// Whether a cast of a whole checkpoint leaves it: its bytes mean what they are stored as.
    pub(crate) fn is_kept_as_stored(&self) -> bool {
        self.role() != Role::Plain
    }
}
