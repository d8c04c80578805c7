//! What a file says of a tensor beside its place: a subclass and attributes, how its integers stand for numbers, and the parts
//! of a tensor that has no storage of its own.
//!
//! All of it is data. The scales of a quantized tensor and the indices of a sparse one are tensors of the file, so what they hold
//! is checked when they are used.

use crate::layout::Dims;
use crate::pickle::{GlobalId, Handle};

/// What a file says of one tensor beside its place.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extra {
    /// The subclass of `torch.Tensor` that it is.
    pub class: Option<GlobalId>,
    /// What is set on it, in program order: each a dict of attributes, or a pair of such a dict and one of slots.
    pub states: Vec<Handle>,
    /// How its integers stand for numbers.
    pub quantization: Option<Quantization>,
}

/// How integers stand for numbers (torch/_utils.py: `_rebuild_qtensor`).
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// The dtype as torch calls it: `"qint8"`.
    pub dtype: &'static str,
    /// `"per_tensor_affine"` and the like.
    pub scheme: &'static str,
    /// What to multiply with, and which integer is zero.
    pub scale: Scale,
    /// The layout in numbers, where several share a byte; the tensor is then all bytes of its storage.
    pub packed: Option<Packed>,
}

/// Scales and zero points.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// One for all.
    Tensor {
        /// What to multiply with.
        scale: f64,
        /// The integer that is zero.
        zero_point: i64,
    },
    /// One for each step along a dimension: tensors with one dimension, or lists of numbers.
    Channel {
        /// What to multiply with.
        scales: Handle,
        /// The integers that are zero; floats in `per_channel_affine_float_qparams`.
        zero_points: Handle,
        /// Which dimension.
        axis: u64,
    },
}

/// The layout of numbers of which several share a byte, as the file states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Numbers along each dimension.
    pub shape: Dims,
    /// Numbers between neighbours along each dimension.
    pub strides: Dims,
    /// The first number.
    pub offset: u64,
}

/// How a sparse tensor is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SparseLayout {
    /// Coordinates and values.
    Coo,
    /// Rows of values.
    Csr,
    /// Columns of values.
    Csc,
    /// Rows of blocks.
    Bsr,
    /// Columns of blocks.
    Bsc,
}

impl SparseLayout {
    /// Every layout.
    pub const ALL: [SparseLayout; 5] =
        [SparseLayout::Coo, SparseLayout::Csr, SparseLayout::Csc, SparseLayout::Bsr, SparseLayout::Bsc];

    /// The name, as torch spells it.
    pub fn name(self) -> &'static str {
        match self {
            SparseLayout::Coo => "sparse_coo",
            SparseLayout::Csr => "sparse_csr",
            SparseLayout::Csc => "sparse_csc",
            SparseLayout::Bsr => "sparse_bsr",
            SparseLayout::Bsc => "sparse_bsc",
        }
    }

    /// Its parts, in the order of the file.
    pub fn parts(self) -> &'static [Part] {
        match self {
            SparseLayout::Coo => &[Part::Indices, Part::Values],
            SparseLayout::Csr | SparseLayout::Bsr => &[Part::CrowIndices, Part::ColIndices, Part::Values],
            SparseLayout::Csc | SparseLayout::Bsc => &[Part::CcolIndices, Part::RowIndices, Part::Values],
        }
    }
}

/// A part of a value that is put together from several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Coordinates: a row for each dimension.
    Indices,
    /// The elements that are stored.
    Values,
    /// Where each row's columns begin.
    CrowIndices,
    /// The column of each element.
    ColIndices,
    /// Where each column's rows begin.
    CcolIndices,
    /// The row of each element.
    RowIndices,
    /// What to multiply a quantized tensor's integers with, along a dimension.
    Scale,
    /// Which integers are zero, along a dimension.
    ZeroPoint,
    /// What an opaque value is the result of calling, where that is itself the result of a call.
    Function,
}

impl Part {
    /// The name, as torch's methods have it where there is one.
    pub fn name(self) -> &'static str {
        match self {
            Part::Indices => "indices",
            Part::Values => "values",
            Part::CrowIndices => "crow_indices",
            Part::ColIndices => "col_indices",
            Part::CcolIndices => "ccol_indices",
            Part::RowIndices => "row_indices",
            Part::Scale => "scale",
            Part::ZeroPoint => "zero_point",
            Part::Function => "function",
        }
    }
}

/// A sparse tensor: its parts are tensors, and what they say of each other is unchecked.
#[derive(Clone, Debug, PartialEq)]
pub struct Sparse {
    /// How it is laid out.
    pub layout: SparseLayout,
    /// Elements along each dimension, those that are zero included.
    pub shape: Dims,
    /// Whether the file says that every coordinate stands once and in order.
    pub is_coalesced: Option<bool>,
    /// The parts, in the order of [`SparseLayout::parts`].
    pub parts: Vec<(Part, Handle)>,
}
