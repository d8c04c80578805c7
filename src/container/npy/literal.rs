//! The Python literal in a `.npy` header: a dict of three keys.

use super::malformed;
use crate::error::{Code, Error, Result, error};
use crate::layout::Dims;
use crate::num::to_u64;

/// The values of the dict.
pub(super) struct Literal<'a> {
    pub(super) descr: Descr<'a>,
    pub(super) fortran_order: bool,
    pub(super) shape: Dims,
}

/// The value of `descr`.
#[derive(Clone, Copy)]
pub(super) enum Descr<'a> {
    /// A string, as written between its quotes; it has no escapes.
    Text(&'a [u8]),
    /// A list of fields, or a dtype with a shape.
    Fields {
        /// Whether any string in it may be the dtype of Python objects.
        may_have_objects: bool,
        /// The size of an element, if it is plain.
        itemsize: Option<u64>,
    },
}

impl Descr<'_> {
    /// The text for an error.
    pub(super) fn shown(&self) -> String {
        match self {
            Descr::Text(text) => String::from_utf8_lossy(text).into_owned(),
            Descr::Fields { .. } => "a list of fields".to_owned(),
        }
    }
}

impl<'a> Literal<'a> {
    /// Parses all of `text`, which starts at byte `base` of the file. `python2` allows sizes such as `3L`.
    pub(super) fn parse(text: &'a [u8], base: u64, python2: bool) -> Result<Literal<'a>> {
        let mut parser = Parser { text, at: 0, base, python2 };
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        parser.expect(b'{', "a dict")?;
        while !parser.skip(b'}') {
            let at = parser.offset();
            let key = parser.string()?;
            parser.expect(b':', "a colon")?;
            let is_new = match key {
                b"descr" => descr.replace(parser.descr()?).is_none(),
                b"fortran_order" => fortran_order.replace(parser.boolean()?).is_none(),
                b"shape" => shape.replace(parser.shape()?).is_none(),
                _ => {
                    let shown: String = String::from_utf8_lossy(key).chars().take(80).collect();
                    return Err(malformed(format!("the header has the unknown key {shown:?}")).at(at));
                }
            };
            if !is_new {
                return Err(malformed("the header has a duplicate key").at(at));
            }
            if !parser.skip(b',') {
                parser.expect(b'}', "a comma or the end of the dict")?;
                break;
            }
        }
        parser.blanks();
        if !parser.rest().is_empty() {
            return Err(parser.unexpected("nothing but blanks"));
        }
        let missing = |key: &str| malformed(format!("the header has no key {key:?}")).at(base);
        Ok(Literal {
            descr: descr.ok_or_else(|| missing("descr"))?,
            fortran_order: fortran_order.ok_or_else(|| missing("fortran_order"))?,
            shape: shape.ok_or_else(|| missing("shape"))?,
        })
    }
}

/// A position in the text. Methods skip blanks before what they parse.
struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    base: u64,
    python2: bool,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn offset(&self) -> u64 {
        self.base.saturating_add(to_u64(self.at))
    }

    fn advance(&mut self, len: usize) {
        self.at = self.at.saturating_add(len);
    }

    fn blanks(&mut self) {
        let is_blank = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
        self.advance(self.rest().iter().take_while(is_blank).count());
    }

    /// The next byte, after blanks.
    fn peek(&mut self) -> Option<u8> {
        self.blanks();
        self.rest().first().copied()
    }

    /// Whether the next byte is `byte`, which is then consumed.
    fn skip(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.advance(usize::from(found));
        found
    }

    fn expect(&mut self, byte: u8, what: &str) -> Result<()> {
        if self.skip(byte) { Ok(()) } else { Err(self.unexpected(what)) }
    }

    fn unexpected(&mut self, wanted: &str) -> Error {
        let found = match self.peek() {
            Some(byte) => format!("{:?}", char::from(byte)),
            None => "its end".to_owned(),
        };
        malformed(format!("the header has {found} in place of {wanted}")).at(self.offset())
    }

    /// A string without escapes, as written between its quotes.
    fn string(&mut self) -> Result<&'a [u8]> {
        let text = self.quoted()?;
        if text.contains(&b'\\') {
            return Err(malformed("a string of the header has an escape").at(self.offset()));
        }
        Ok(text)
    }

    /// A string on one line, as written between its quotes. A backslash escapes the byte after it.
    fn quoted(&mut self) -> Result<&'a [u8]> {
        let Some(quote @ (b'\'' | b'"')) = self.peek() else { return Err(self.unexpected("a string")) };
        self.advance(1);
        let rest = self.rest();
        let mut escaped = false;
        for (len, &byte) in rest.iter().enumerate() {
            match byte {
                b'\n' | b'\r' | b'\0' => break,
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                _ if byte == quote => {
                    self.advance(len.saturating_add(1));
                    return Ok(rest.get(..len).unwrap_or_default());
                }
                _ => {}
            }
        }
        Err(malformed("a string of the header has no end").at(self.offset()))
    }

    fn boolean(&mut self) -> Result<bool> {
        self.blanks();
        for (word, value) in [(&b"True"[..], true), (b"False", false)] {
            if self.rest().starts_with(word) {
                self.advance(word.len());
                return Ok(value);
            }
        }
        Err(self.unexpected("True or False"))
    }

    /// A tuple of sizes.
    fn shape(&mut self) -> Result<Dims> {
        self.expect(b'(', "a tuple")?;
        let mut shape = Dims::new();
        while !self.skip(b')') {
            shape.push(self.size()?);
            if self.skip(b',') {
                continue;
            }
            // In Python `(3)` is a number, not a tuple.
            let wanted = if shape.len() == 1 { "a comma" } else { "a comma or the end of the tuple" };
            if shape.len() == 1 || !self.skip(b')') {
                return Err(self.unexpected(wanted));
            }
            break;
        }
        Ok(shape)
    }

    /// A decimal number without a sign and leading zeros, of at most 63 bits as in NumPy.
    fn size(&mut self) -> Result<u64> {
        let Some(b'0'..=b'9') = self.peek() else { return Err(self.unexpected("a size")) };
        let at = self.offset();
        let len = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        let digits = self.rest().get(..len).unwrap_or_default();
        self.advance(len);
        if len > 1 && digits.starts_with(b"0") {
            return Err(malformed("a size of the header has a leading zero").at(at));
        }
        let size = digits.iter().try_fold(0_u64, |size, &digit| {
            size.checked_mul(10)?.checked_add(u64::from(digit.wrapping_sub(b'0')))
        });
        let size = size
            .filter(|&size| i64::try_from(size).is_ok())
            .ok_or_else(|| error!(Code::TensorShape, "a size of {len} digits does not fit 63 bits").at(at))?;
        if self.python2 && self.rest().starts_with(b"L") {
            self.advance(1);
        }
        Ok(size)
    }

    /// A dtype: a string, a list of fields, or a dtype with a shape.
    fn descr(&mut self) -> Result<Descr<'a>> {
        match self.peek() {
            Some(b'[' | b'(') => self.fields(),
            _ => self.string().map(Descr::Text),
        }
    }

    /// A list or tuple of any depth; only its brackets, commas and atoms are checked.
    fn fields(&mut self) -> Result<Descr<'a>> {
        let mut may_have_objects = false;
        // The open lists and tuples: the byte that closes each, and its items so far.
        let mut open: Vec<(u8, Vec<Item>)> = Vec::new();
        loop {
            // An item, or the end of an empty or comma-terminated list.
            let mut item = match self.peek() {
                Some(opener @ (b'[' | b'(')) => {
                    self.advance(1);
                    open.push((if opener == b'[' { b']' } else { b')' }, Vec::new()));
                    continue;
                }
                Some(b'\'' | b'"') => {
                    let text = self.quoted()?;
                    // `O` or `object`, maybe escaped. The names of fields count too.
                    may_have_objects |= text.iter().any(|&byte| matches!(byte, b'O' | b'o' | b'\\'));
                    Item { dtype: super::itemsize(text), ..Item::default() }
                }
                Some(b'0'..=b'9') => Item { numel: Some(self.size()?), ..Item::default() },
                Some(closer) if open.last().is_some_and(|(expected, _)| *expected == closer) => {
                    self.advance(1);
                    open.pop().map(|(closer, items)| Item::of(closer, &items)).unwrap_or_default()
                }
                _ => return Err(self.unexpected("a dtype")),
            };
            // After an item: the ends of the lists that it is the last of, or a comma.
            while let Some((closer, items)) = open.last_mut() {
                items.push(item);
                let closer = *closer;
                if self.skip(b',') {
                    break;
                }
                self.expect(closer, "a comma or the end of a list")?;
                item = open.pop().map(|(closer, items)| Item::of(closer, &items)).unwrap_or_default();
            }
            if open.is_empty() {
                return Ok(Descr::Fields { may_have_objects, itemsize: item.dtype });
            }
        }
    }
}

/// An item of a list or tuple of a dtype, by what it may stand for.
#[derive(Clone, Copy, Default)]
struct Item {
    /// The size of an element of the dtype that it is.
    dtype: Option<u64>,
    /// The size of the field that it is: a name, a dtype and maybe a shape.
    field: Option<u64>,
    /// The number of elements of the shape that it is.
    numel: Option<u64>,
}

impl Item {
    /// A list of fields; or a field, a dtype with a shape, or a shape.
    fn of(closer: u8, items: &[Item]) -> Item {
        if closer == b']' {
            let sum = |sum: u64, item: &Item| sum.checked_add(item.field?);
            return Item { dtype: items.iter().try_fold(0, sum), ..Item::default() };
        }
        let repeated = |dtype: &Item, shape: &Item| dtype.dtype?.checked_mul(shape.numel?);
        Item {
            dtype: match items {
                [dtype, shape] => repeated(dtype, shape),
                _ => None,
            },
            field: match items {
                [_, dtype] => dtype.dtype,
                [_, dtype, shape] => repeated(dtype, shape),
                _ => None,
            },
            numel: items.iter().try_fold(1, |product: u64, item| product.checked_mul(item.numel?)),
        }
    }
}
