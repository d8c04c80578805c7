//! The header of a new safetensors file: the order of the tensors, their byte ranges, and the JSON text.
//!
//! The bytes are those of the reference writer (safetensors 0.8), except that metadata keys are sorted: the reference's order
//! changes from run to run.

use std::io::Write;

use super::{HEADER_MAX_BYTES, LENGTH_LEN};
use crate::bytes::Region;
use crate::dtype::DType;
use crate::error::{Code, Error, Result, error};
use crate::layout::{Dims, numel};
use crate::num::to_u64;

/// The header's length is a multiple of this, so that the data is aligned.
const HEADER_ALIGNMENT: usize = 8;

/// A tensor of a new file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Any string, unique in the file.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// The shape in elements of `dtype`.
    pub shape: Dims,
}

/// The bytes before the data of a new file, and where the data of each tensor goes.
#[derive(Clone, Debug)]
pub struct FilePlan {
    /// Length, header and padding: the file's first bytes.
    pub head: Vec<u8>,
    /// The byte range of each tensor in the file, in the order of the declarations.
    pub regions: Vec<Region>,
    /// The size of the file.
    pub len: u64,
}

impl FilePlan {
    /// Plans a file of these tensors. Fails for a dtype that the format lacks, for duplicate names, and where the header would be
    /// longer than the format allows.
    pub fn new(tensors: &[Declaration], metadata: &[(String, String)]) -> Result<FilePlan> {
        let codes = tensors.iter().map(code).collect::<Result<Vec<_>>>()?;
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        let key = |&index: &usize| {
            let tensor = tensors.get(index);
            let rank = tensor.and_then(|tensor| tensor.dtype.safetensors_rank());
            (std::cmp::Reverse(rank), tensor.map(|tensor| tensor.name.as_str()))
        };
        order.sort_unstable_by(|one, two| key(one).cmp(&key(two)));
        check_unique(tensors)?;

        let mut json = Json(vec![0; 8]);
        json.raw("{");
        json.metadata(metadata)?;
        let mut ranges = vec![(0, 0); tensors.len()];
        let mut end = 0_u64;
        for index in order {
            let (Some(tensor), Some(code)) = (tensors.get(index), codes.get(index)) else { continue };
            let start = end;
            let nbytes = numel(&tensor.shape).and_then(|numel| numel.checked_mul(tensor.dtype.itemsize()));
            end = nbytes.and_then(|nbytes| start.checked_add(nbytes)).ok_or_else(|| {
                Error::new(Code::TensorShape, "the size of the tensors does not fit 64 bits")
                    .in_member(&tensor.name)
            })?;
            json.tensor(tensor, code, (start, end))?;
            if let Some(range) = ranges.get_mut(index) {
                *range = (start, end);
            }
        }
        let head = json.finish()?;
        let data = to_u64(head.len());
        let region = |&(start, end): &(u64, u64)| {
            data.checked_add(start).and_then(|offset| Region::new(offset, end.saturating_sub(start)))
        };
        let too_large = || Error::new(Code::TensorShape, "the size of the file does not fit 64 bits");
        let regions = ranges.iter().map(region).collect::<Option<Vec<_>>>().ok_or_else(too_large)?;
        let len = data.checked_add(end).ok_or_else(too_large)?;
        Ok(FilePlan { head, regions, len })
    }
}

fn code(tensor: &Declaration) -> Result<&'static str> {
    // The two elements in a byte take a dimension.
    let lacks_dimension = tensor.dtype == DType::F4E2M1FnX2 && tensor.shape.is_empty();
    tensor.dtype.safetensors().filter(|_| !lacks_dimension).ok_or_else(|| {
        let shape = if lacks_dimension { " without dimensions" } else { "" };
        error!(Code::NotSafetensors, "{}{shape} has no form in a safetensors file", tensor.dtype)
            .in_member(&tensor.name)
    })
}

fn check_unique(tensors: &[Declaration]) -> Result<()> {
    let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    if names.binary_search(&METADATA_KEY).is_ok() {
        let text =
            format!("{METADATA_KEY:?} is the key of the header's metadata, so no tensor can have this name");
        return Err(Error::new(Code::DuplicateName, text));
    }
    let mut pairs = names.iter().zip(names.iter().skip(1));
    match pairs.find(|(one, two)| one == two) {
        Some((name, _)) => Err(error!(Code::DuplicateName, "two tensors are named {name:?}")),
        None => Ok(()),
    }
}

/// The key of the metadata in a header.
const METADATA_KEY: &str = "__metadata__";

/// A header as it is written: eight bytes for its length, then compact JSON.
struct Json(Vec<u8>);

impl Json {
    fn raw(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    /// Separates two members of the object.
    fn separate(&mut self) {
        if self.0.last() != Some(&b'{') {
            self.raw(",");
        }
    }

    fn string(&mut self, text: &str) -> Result<()> {
        serde_json::to_writer(&mut self.0, text)
            .map_err(|error| error!(Code::InternalError, "a string could not be written: {error}"))
    }

    fn metadata(&mut self, metadata: &[(String, String)]) -> Result<()> {
        if metadata.is_empty() {
            return Ok(());
        }
        let mut sorted: Vec<&(String, String)> = metadata.iter().collect();
        sorted.sort_unstable();
        self.string(METADATA_KEY)?;
        self.raw(":{");
        for (key, value) in sorted {
            self.separate();
            self.string(key)?;
            self.raw(":");
            self.string(value)?;
        }
        self.raw("}");
        Ok(())
    }

    fn tensor(&mut self, tensor: &Declaration, code: &str, (start, end): (u64, u64)) -> Result<()> {
        self.separate();
        self.string(&tensor.name)?;
        self.raw(r#":{"dtype":""#);
        self.raw(code);
        self.raw(r#"","shape":["#);
        let last = tensor.shape.len().saturating_sub(1);
        for (at, &size) in tensor.shape.iter().enumerate() {
            // The format counts the elements of a packed dtype, two in each byte.
            let size =
                if tensor.dtype == DType::F4E2M1FnX2 && at == last { size.saturating_mul(2) } else { size };
            let comma = if at == last { "" } else { "," };
            self.number(format_args!("{size}{comma}"));
        }
        self.number(format_args!(r#"],"data_offsets":[{start},{end}]}}"#));
        Ok(())
    }

    fn number(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a vector does not fail.
        let _ = self.0.write_fmt(text);
    }

    /// Closes the object, pads it with spaces, and writes its length in front.
    fn finish(mut self) -> Result<Vec<u8>> {
        self.raw("}");
        let padded = self.0.len().next_multiple_of(HEADER_ALIGNMENT);
        self.0.resize(padded, b' ');
        let length = to_u64(padded).saturating_sub(LENGTH_LEN);
        if length > HEADER_MAX_BYTES {
            let text = format!("the header takes {length} bytes, the format allows {HEADER_MAX_BYTES}");
            return Err(Error::new(Code::HeaderTooLarge, text));
        }
        let length = length.to_le_bytes();
        self.0.iter_mut().zip(length).for_each(|(byte, of_length)| *byte = of_length);
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declaration(name: &str, dtype: DType, shape: &[u64]) -> Declaration {
        Declaration { name: name.to_owned(), dtype, shape: shape.into() }
    }

    #[test]
    fn a_header_is_that_of_the_reference_writer() {
        let tensors = [
            declaration("b", DType::U8, &[3]),
            declaration("a", DType::F32, &[1]),
            declaration("é\"x", DType::Bool, &[1]),
            declaration("z", DType::BF16, &[1]),
            declaration("h", DType::F16, &[1]),
            declaration("e", DType::F32, &[0, 3]),
            declaration("s", DType::I64, &[]),
        ];
        let plan = FilePlan::new(&tensors, &[("format".to_owned(), "pt".to_owned())]).unwrap();
        let text = std::str::from_utf8(&plan.head[8..]).unwrap();
        let expected = concat!(
            r#"{"__metadata__":{"format":"pt"},"s":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"#,
            r#""a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},"e":{"dtype":"F32","shape":[0,3],"data_offsets":[12,12]},"#,
            r#""z":{"dtype":"BF16","shape":[1],"data_offsets":[12,14]},"h":{"dtype":"F16","shape":[1],"data_offsets":[14,16]},"#,
            r#""b":{"dtype":"U8","shape":[3],"data_offsets":[16,19]},"é\"x":{"dtype":"BOOL","shape":[1],"data_offsets":[19,20]}}"#,
        );
        assert_eq!(text.trim_end_matches(' '), expected);
        assert_eq!(to_u64(plan.head.len()) + 20, plan.len);
        assert_eq!(plan.head.len() % 8, 0);
        assert_eq!(u64::from_le_bytes(plan.head[..8].try_into().unwrap()), to_u64(plan.head.len()) - 8);
        let starts: Vec<u64> =
            plan.regions.iter().map(|region| region.start() - to_u64(plan.head.len())).collect();
        assert_eq!(starts, [16, 8, 19, 12, 14, 12, 0]);
    }

    #[test]
    fn packed_elements_are_counted_one_by_one() {
        let plan = FilePlan::new(&[declaration("p", DType::F4E2M1FnX2, &[2, 3])], &[]).unwrap();
        assert!(
            std::str::from_utf8(&plan.head[8..]).unwrap().contains(r#""shape":[2,6],"data_offsets":[0,6]"#)
        );
    }

    #[test]
    fn what_the_format_lacks_is_refused() {
        let code = |tensors: &[Declaration]| FilePlan::new(tensors, &[]).unwrap_err().code();
        let plain = declaration("a", DType::U8, &[1]);
        assert_eq!(code(&[declaration("c", DType::C128, &[1])]), Code::NotSafetensors);
        assert_eq!(code(&[declaration("p", DType::F4E2M1FnX2, &[])]), Code::NotSafetensors);
        assert_eq!(code(&[plain.clone(), plain.clone()]), Code::DuplicateName);
        assert_eq!(code(&[declaration("__metadata__", DType::U8, &[1])]), Code::DuplicateName);
        assert_eq!(code(&[declaration("x", DType::U8, &[u64::MAX, 2])]), Code::TensorShape);
        let long = declaration(&"x".repeat(100_000_000), DType::U8, &[1]);
        assert_eq!(code(&[long]), Code::HeaderTooLarge);
    }

    #[test]
    fn keys_of_the_metadata_are_sorted() {
        let pair = |key: &str| (key.to_owned(), "v".to_owned());
        let plan = FilePlan::new(&[], &[pair("b"), pair("a\n")]).unwrap();
        let text = std::str::from_utf8(&plan.head[8..]).unwrap();
        assert_eq!(text.trim_end(), r#"{"__metadata__":{"a\n":"v","b":"v"}}"#);
    }
}
