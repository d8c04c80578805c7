//! The data of a result that is made slice by slice: for a GPU, or for a file.

use super::cut::ResultSlice;
use super::fill::fill;
use super::read::{Elements, Fill};
use crate::error::{Code, Error, Result, bail};
use crate::layout::{Dims, numel};
use crate::num::to_usize;

/// Makes a slice of a result in memory of exactly its size.
pub(super) type FillSlice = Box<dyn Fn(&ResultSlice, &mut [u8]) -> Result<()> + Send + Sync>;

/// The data of a result.
pub enum ResultData {
    /// Elements of a storage, converted.
    Elements(Box<Elements>),
    /// Any data that can be made in slices.
    InSlices {
        /// The result's shape.
        shape: Dims,
        /// The bytes of one element.
        itemsize: u64,
        /// Makes one slice.
        fill: FillSlice,
    },
}

impl ResultData {
    /// The result's shape, and the bytes of one element.
    pub fn shape(&self) -> (&[u64], u64) {
        match self {
            ResultData::Elements(elements) => (&elements.layout.shape, elements.how.cast.to().itemsize()),
            ResultData::InSlices { shape, itemsize, .. } => (shape, *itemsize),
        }
    }

    /// Fails unless the result takes `nbytes` bytes, and its elements can be read and converted. Reads nothing.
    pub(super) fn check(&self, nbytes: u64) -> Result<()> {
        let (shape, itemsize) = self.shape();
        if numel(shape).and_then(|numel| numel.checked_mul(itemsize)) != Some(nbytes) {
            bail!(Code::InternalError, "a result does not have the size that was declared");
        }
        match self {
            ResultData::Elements(elements) => elements.check(to_usize(nbytes)),
            ResultData::InSlices { .. } => Ok(()),
        }
    }

    /// Makes `numel` elements from `start`, in C order, which are a slice as [`write_all`](super::write_all) cuts them.
    pub fn fill_range(&self, start: u64, numel: u64, out: &mut [u8]) -> Result<()> {
        let slice = ResultSlice::of_range(self.shape().0, start, numel)
            .ok_or_else(|| Error::new(Code::InternalError, "a range of elements is not a slice"))?;
        self.fill_slice(&slice, 1, out)
    }

    /// Makes a slice; one of elements on so many threads.
    pub(super) fn fill_slice(&self, slice: &ResultSlice, threads: usize, out: &mut [u8]) -> Result<()> {
        match self {
            ResultData::Elements(elements) => {
                let Elements { payload, layout, how } = &**elements;
                fill(payload, &slice.layout_of(layout), &Fill { threads: Some(threads), ..how.clone() }, out)
            }
            ResultData::InSlices { fill, .. } => fill(slice, out),
        }
    }

    /// The data of a slice of this result.
    pub fn sliced(self, slice: ResultSlice) -> ResultData {
        let at = slice.index.len();
        if at >= self.shape().0.len() {
            return self;
        }
        match self {
            ResultData::Elements(elements) => {
                let layout = slice.layout_of(&elements.layout);
                ResultData::Elements(Box::new(Elements { layout, ..*elements }))
            }
            ResultData::InSlices { shape, itemsize, fill } => {
                let mut own: Dims = shape[at..].into();
                own[0] = slice.count;
                let fill = move |part: &ResultSlice, out: &mut [u8]| fill(&slice.part(part), out);
                ResultData::InSlices { shape: own, itemsize, fill: Box::new(fill) }
            }
        }
    }
}
