//! Reads the header of a `.npy` file: the dtype, shape and order of an array, and where its elements start.
//!
//! Follows `numpy/lib/_format_impl.py`, versions 1.0 to 3.0. The header is a Python literal, which this module parses by hand. It accepts
//! what writers of the format write: a dict of exactly `descr`, `fortran_order` and `shape`. Refused, although NumPy reads it: a
//! key twice, `True` as a size, numbers in other spellings than decimal, escapes and comments.

mod literal;

use crate::bytes::Cursor;
use crate::dtype::DType;
use crate::error::{Code, Error, Result, error};
use crate::layout::{Dims, numel};
use crate::num::to_u64;

use literal::{Descr, Literal};

/// The first bytes of every `.npy` file.
pub const MAGIC: &[u8] = b"\x93NUMPY";

/// NumPy's own bound on the header (`_MAX_HEADER_SIZE`). NumPy has it because parsing a long literal is slow in Python; a plain array's
/// header has about 100 bytes, and a record's about 20 for each field.
const HEADER_MAX_BYTES: u64 = 10_000;

/// Bytes that are read first. NumPy pads the header of most arrays to exactly this length.
const FIRST_READ_BYTES: u64 = 128;

/// The header of a `.npy` file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the elements are.
    pub elements: Elements,
    /// The number of elements along each dimension.
    pub shape: Dims,
    /// Whether the first dimension varies fastest.
    pub fortran_order: bool,
    /// The length of the header in bytes; the elements start there.
    pub len: u64,
}

/// What the elements of an array are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Numbers.
    Numbers {
        /// The element type.
        dtype: DType,
        /// Whether they are big-endian.
        big_endian: bool,
    },
    /// Python objects, stored as one pickle in place of the elements.
    Objects,
    /// Anything else that NumPy has.
    Others {
        /// The class of an element, in NumPy: `"numpy.str_"`.
        class: &'static str,
        /// Whether the array may have fields of Python objects; then there is a pickle in place of the elements.
        may_be_pickle: bool,
        /// The size of an element, if it is plain.
        itemsize: Option<u64>,
    },
}

impl Elements {
    /// The class of an element, in NumPy; `None` for numbers.
    pub fn class(&self) -> Option<&'static str> {
        match self {
            Elements::Numbers { .. } => None,
            Elements::Objects => Some("numpy.object_"),
            Elements::Others { class, .. } => Some(class),
        }
    }

    /// Whether a pickle may stand in place of the elements.
    pub fn may_be_pickle(&self) -> bool {
        matches!(self, Elements::Objects | Elements::Others { may_be_pickle: true, .. })
    }
}

impl Header {
    /// Reads the header of an array. `read` returns that many bytes from its start, or fewer where it is shorter. Fails with
    /// `NpyHeader` where the header is not one that writers write, with `Truncated` where it is not whole.
    pub fn read(read: impl Fn(u64) -> Result<Vec<u8>>) -> Result<Header> {
        let first = read(FIRST_READ_BYTES)?;
        let preamble = Preamble::parse(&first)?;
        if preamble.end <= to_u64(first.len()) {
            return preamble.header(&first);
        }
        preamble.header(&read(preamble.end)?)
    }

    /// The offset behind the elements; `None` for objects, and where the size of an element is not plain.
    pub fn end(&self) -> Option<u64> {
        let itemsize = match self.elements {
            Elements::Numbers { dtype, .. } => dtype.itemsize(),
            Elements::Others { itemsize, may_be_pickle: false, .. } => itemsize?,
            _ => return None,
        };
        numel(&self.shape)?.checked_mul(itemsize)?.checked_add(self.len)
    }

    /// Bytes of all elements, where they are of this dtype. Fails with `TensorShape` where that does not fit 64 bits.
    pub fn nbytes(&self, dtype: DType) -> Result<u64> {
        let nbytes = numel(&self.shape).and_then(|numel| numel.checked_mul(dtype.itemsize()));
        nbytes.ok_or_else(|| {
            error!(Code::TensorShape, "the size of shape {:?} does not fit 64 bits", self.shape)
        })
    }
}

/// What precedes the dict: magic number, version, length.
struct Preamble {
    major: u8,
    /// The offset of the dict.
    start: u64,
    /// The offset of the elements.
    end: u64,
}

impl Preamble {
    fn parse(bytes: &[u8]) -> Result<Preamble> {
        let mut cursor = Cursor::new(bytes, 0);
        if cursor.take(to_u64(MAGIC.len()))? != MAGIC {
            return Err(malformed("the array does not start with the magic number of .npy").at(0));
        }
        let (major, minor) = (cursor.u8()?, cursor.u8()?);
        let len: u64 = match (major, minor) {
            (1, 0) => cursor.u16()?.into(),
            (2 | 3, 0) => cursor.u32()?.into(),
            _ => {
                let text = format!("version {major}.{minor} of the format is not 1.0, 2.0 or 3.0");
                return Err(malformed(text).at(to_u64(MAGIC.len())));
            }
        };
        let start = cursor.offset();
        if len > HEADER_MAX_BYTES {
            let text = format!("a header of {len} byte(s), NumPy reads {HEADER_MAX_BYTES} at most");
            return Err(malformed(text).at(start));
        }
        Ok(Preamble { major, start, end: start.saturating_add(len) })
    }

    /// Parses the dict. `bytes` start with the preamble.
    fn header(&self, bytes: &[u8]) -> Result<Header> {
        let mut cursor = Cursor::new(bytes, 0);
        cursor.take(self.start)?;
        let text = cursor.take(self.end.saturating_sub(self.start))?;
        // Version 3 is UTF-8. Versions 1 and 2 are Latin-1, in which any byte is a character.
        if self.major == 3
            && let Err(error) = std::str::from_utf8(text)
        {
            let offset = self.start.saturating_add(to_u64(error.valid_up_to()));
            return Err(malformed("the header is not UTF-8").at(offset));
        }
        // `_filter_header`: Python 2 wrote sizes as `3L`, before version 3 existed.
        let literal = Literal::parse(text, self.start, self.major < 3)?;
        let elements = elements(&literal.descr).ok_or_else(|| {
            let shown: String = literal.descr.shown().chars().take(80).collect();
            malformed(format!("{shown:?} is not a dtype that NumPy writes")).at(self.start)
        })?;
        let (shape, fortran_order) = (literal.shape, literal.fortran_order);
        Ok(Header { elements, shape, fortran_order, len: self.end })
    }
}

/// What the elements are by `descr` (numpy: `dtype_to_descr`); `None` where it is not a dtype that NumPy writes.
fn elements(descr: &Descr<'_>) -> Option<Elements> {
    match descr {
        Descr::Text(text) => elements_of(text),
        Descr::Fields { may_have_objects, itemsize } => {
            let (may_be_pickle, itemsize) = (*may_have_objects, *itemsize);
            Some(Elements::Others { class: "numpy.void", may_be_pickle, itemsize })
        }
    }
}

/// The size of an element of a dtype in a list of fields; `None` for objects, and for what NumPy does not write.
fn itemsize(text: &[u8]) -> Option<u64> {
    match elements_of(text)? {
        Elements::Numbers { dtype, .. } => Some(dtype.itemsize()),
        Elements::Others { itemsize, .. } => itemsize,
        Elements::Objects => None,
    }
}

/// As [`elements`], for a dtype that is a string.
fn elements_of(text: &[u8]) -> Option<Elements> {
    let others = |class, itemsize| Some(Elements::Others { class, may_be_pickle: false, itemsize });
    let text = std::str::from_utf8(text).ok()?;
    let order = text.chars().next().filter(|order| "<>=|".contains(*order));
    let code = text.get(usize::from(order.is_some())..)?;
    if let Some(dtype) = DType::from_numpy_code(code) {
        // `=` and `|` mean the byte order of the reader's machine.
        return Some(Elements::Numbers { dtype, big_endian: order == Some('>') && dtype.itemsize() > 1 });
    }
    let (kind, size) = code.split_at_checked(1)?;
    let is_size = !size.is_empty() && size.len() <= 10 && size.bytes().all(|byte| byte.is_ascii_digit());
    let nbytes = size.parse::<u64>().ok().filter(|_| is_size);
    match kind {
        "O" if size.is_empty() || is_size => Some(Elements::Objects),
        "U" if is_size => others("numpy.str_", nbytes.and_then(|size| size.checked_mul(4))),
        "S" | "a" if is_size => others("numpy.bytes_", nbytes),
        "V" if is_size => others("numpy.void", nbytes),
        "M" if is_time(size) => others("numpy.datetime64", Some(8)),
        "m" if is_time(size) => others("numpy.timedelta64", Some(8)),
        "f" if matches!(size, "12" | "16") => others("numpy.longdouble", nbytes),
        "c" if matches!(size, "24" | "32") => others("numpy.clongdouble", nbytes),
        _ => None,
    }
}

/// Whether this follows the kind of a time: `8`, or `8` and a unit such as `[25us]` (numpy: `datetime_data`).
fn is_time(size: &str) -> bool {
    let unit =
        size.strip_prefix("8").map(|unit| unit.strip_prefix('[').and_then(|unit| unit.strip_suffix(']')));
    match unit {
        Some(Some(unit)) => unit.bytes().all(|byte| byte.is_ascii_alphanumeric()),
        Some(None) => size == "8",
        None => false,
    }
}

fn malformed(text: impl Into<String>) -> Error {
    Error::new(Code::NpyHeader, text)
}

#[cfg(test)]
#[expect(clippy::as_conversions, reason = "the builders write small numbers of their own")]
mod tests;
