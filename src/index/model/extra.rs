//! Tensor properties beyond dtype and layout: subclass and attributes, quantization parameters, and the components of sparse
//! tensors.
//!
//! All of it is data. The scales of a quantized tensor and the indices of a sparse one are tensors of the file, so their values
//! are checked when they are used.

use crate::index::model::Part;
use crate::layout::Dims;
use crate::pickle::{GlobalId, Handle, Snapshot};

/// The properties of one tensor beyond dtype and layout.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Extra {
    /// Its class, where that is a subclass of `torch.Tensor`.
    pub class: Option<GlobalId>,
    /// The states that are set on it, in program order: each is a dict of attributes, or a pair of such a dict and a dict of slots.
    pub states: Vec<Snapshot>,
    /// Which part of a larger tensor it is.
    pub part: Option<Box<Part>>,
    /// Its quantization parameters.
    pub quantization: Option<Quantization>,
}

/// The parameters of a quantized tensor (torch/_utils.py: `_rebuild_qtensor`).
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// The name of the dtype in torch: `"qint8"`.
    pub dtype: &'static str,
    /// The name of the quantization scheme in torch: `"per_tensor_affine"`.
    pub scheme: &'static str,
    /// The scales and zero points.
    pub scale: Scale,
    /// The layout in elements, where several are packed into a byte; the tensor in the index is then all bytes of its storage.
    pub packed: Option<Packed>,
}

/// Scales and zero points.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// One scale and zero point for the whole tensor.
    Tensor {
        /// The scale.
        scale: f64,
        /// The zero point.
        zero_point: i64,
    },
    /// One scale and zero point for each index of a dimension: 1-D tensors, or lists of numbers.
    Channel {
        /// The scales.
        scales: Snapshot,
        /// The zero points; floats in `per_channel_affine_float_qparams`.
        zero_points: Snapshot,
        /// The dimension.
        axis: u64,
    },
}

/// The layout of elements of which several are packed into a byte, as the file states it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// The number of elements along each dimension.
    pub shape: Dims,
    /// The stride of each dimension, in elements.
    pub strides: Dims,
    /// The offset of the first element, in elements.
    pub offset: u64,
}

/// The layout of a sparse tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SparseLayout {
    /// Coordinates and values.
    Coo,
    /// Compressed sparse rows.
    Csr,
    /// Compressed sparse columns.
    Csc,
    /// Block compressed sparse rows.
    Bsr,
    /// Block compressed sparse columns.
    Bsc,
}

impl SparseLayout {
    /// Every layout.
    pub const ALL: [SparseLayout; 5] =
        [SparseLayout::Coo, SparseLayout::Csr, SparseLayout::Csc, SparseLayout::Bsr, SparseLayout::Bsc];

    /// The name in torch.
    pub fn name(self) -> &'static str {
        match self {
            SparseLayout::Coo => "sparse_coo",
            SparseLayout::Csr => "sparse_csr",
            SparseLayout::Csc => "sparse_csc",
            SparseLayout::Bsr => "sparse_bsr",
            SparseLayout::Bsc => "sparse_bsc",
        }
    }

    /// The components of a tensor of this layout, in the order of the file.
    pub fn components(self) -> &'static [Component] {
        match self {
            SparseLayout::Coo => &[Component::Indices, Component::Values],
            SparseLayout::Csr | SparseLayout::Bsr => {
                &[Component::CrowIndices, Component::ColIndices, Component::Values]
            }
            SparseLayout::Csc | SparseLayout::Bsc => {
                &[Component::CcolIndices, Component::RowIndices, Component::Values]
            }
        }
    }
}

/// A component of a value that consists of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// The coordinates: a row for each dimension.
    Indices,
    /// The stored elements.
    Values,
    /// For each row, the index of its first stored element.
    CrowIndices,
    /// The column of each stored element.
    ColIndices,
    /// For each column, the index of its first stored element.
    CcolIndices,
    /// The row of each stored element.
    RowIndices,
    /// The per-channel scales of a quantized tensor.
    Scale,
    /// The per-channel zero points of a quantized tensor.
    ZeroPoint,
    /// The callable of an opaque value, where that is itself the result of a call.
    Function,
}

impl Component {
    /// The name: that of the method in torch, where there is one.
    pub fn name(self) -> &'static str {
        match self {
            Component::Indices => "indices",
            Component::Values => "values",
            Component::CrowIndices => "crow_indices",
            Component::ColIndices => "col_indices",
            Component::CcolIndices => "ccol_indices",
            Component::RowIndices => "row_indices",
            Component::Scale => "scale",
            Component::ZeroPoint => "zero_point",
            Component::Function => "function",
        }
    }
}

/// A sparse tensor. Its components are tensors; whether they are consistent with each other is not checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Sparse {
    /// The layout.
    pub layout: SparseLayout,
    /// The dense shape.
    pub shape: Dims,
    /// Whether the file states that the coordinates are unique and sorted; `None` where it does not say.
    pub is_coalesced: Option<bool>,
    /// The components, in the order of [`SparseLayout::components`].
    pub components: Vec<(Component, Handle)>,
}
