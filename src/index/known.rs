//! The table of known globals. A known global is never called: the entry says how to interpret a call of it.

use crate::dtype::DType;

/// A known global.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// A function that rebuilds a tensor.
    Rebuild(Rebuild),
    /// A storage class; `None` for `UntypedStorage`, whose elements are bytes.
    Storage(Option<DType>),
    /// `torch.storage._load_from_bytes`: how torch writes a storage into a pickle other than that of `torch.save`.
    LoadFromBytes,
    /// A `torch.dtype`.
    Dtype(DType),
    /// `collections.OrderedDict`.
    OrderedDict,
    /// `collections.Counter`.
    Counter,
    /// `collections.defaultdict`.
    DefaultDict,
    /// `builtins.dict`.
    Dict,
    /// `builtins.list`.
    List,
    /// `collections.deque`.
    Deque,
    /// `builtins.set`.
    Set,
    /// `builtins.frozenset`.
    FrozenSet,
    /// `builtins.bytearray`.
    ByteArray,
    /// `builtins.complex`.
    Complex,
    /// `_codecs.encode`: how Python 3 pickles bytes in protocol 2.
    Encode,
    /// `builtins.bytes`: how protocol 2 pickles empty bytes.
    Bytes,
    /// `builtins.tuple`, which Paddle calls with a name and an array.
    Tuple,
    /// `torch.Size`.
    Size,
    /// `torch.device`.
    Device,
    /// A function of a few numbers or strings, whose call is kept as data: `slice(0, 3)`.
    Record,
    /// `numpy.dtype`.
    NumpyDtype,
    /// `numpy._core.multiarray._reconstruct`.
    NumpyReconstruct,
    /// `numpy._core.numeric._frombuffer`.
    NumpyFromBuffer,
    /// `numpy._core.multiarray.scalar`.
    NumpyScalar,
    /// A tensor class, of which torch before 0.4 pickled an empty object and a state.
    TensorClass(TensorClass),
    /// A global that checkpoints use as a value and never call.
    Label,
}

/// The tensor classes of torch before 0.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorClass {
    /// `torch.nn.parameter.Parameter`.
    Parameter,
    /// `torch.autograd.variable.Variable`.
    Variable,
    /// `torch.FloatTensor` and the like.
    Plain,
}

/// The functions that rebuild a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rebuild {
    /// `_rebuild_tensor(storage, offset, size, stride)`.
    Tensor,
    /// `_rebuild_tensor_v2(..., requires_grad, hooks[, metadata])`.
    TensorV2,
    /// `_rebuild_tensor_v3(..., requires_grad, hooks, dtype[, metadata])`.
    TensorV3,
    /// `_rebuild_parameter(tensor, requires_grad, hooks)`.
    Parameter,
    /// `_rebuild_parameter_with_state(tensor, requires_grad, hooks, state)`.
    ParameterWithState,
    /// `_rebuild_wrapper_subclass(class, dtype, size, stride, offset, layout, device, requires_grad)`, whose elements are in the state.
    WrapperSubclass,
    /// `torch._tensor._rebuild_from_type_v2(rebuild, class, args, state)`, and the older `_rebuild_from_type`.
    FromType,
    /// `_rebuild_qtensor(storage, offset, size, stride, quantizer, requires_grad, hooks)`.
    Quantized,
    /// `_rebuild_sparse_tensor(layout, (indices, values, size[, is_coalesced]))`.
    Sparse,
    /// `_rebuild_meta_tensor_no_storage(dtype, size, stride, requires_grad)`.
    Meta,
    /// `_rebuild_device_tensor_from_numpy(array, dtype, device, requires_grad)` and similar ones.
    FromDevice,
}

/// The known global `module.name`; `None` where it is unknown.
pub(super) fn lookup(module: &str, name: &str) -> Option<Known> {
    Some(match (module, name) {
        ("torch._utils", _) => Known::Rebuild(match name {
            "_rebuild_tensor" => Rebuild::Tensor,
            "_rebuild_tensor_v2" => Rebuild::TensorV2,
            "_rebuild_tensor_v3" => Rebuild::TensorV3,
            "_rebuild_parameter" => Rebuild::Parameter,
            "_rebuild_parameter_with_state" => Rebuild::ParameterWithState,
            "_rebuild_qtensor" => Rebuild::Quantized,
            "_rebuild_sparse_tensor" => Rebuild::Sparse,
            "_rebuild_wrapper_subclass" => Rebuild::WrapperSubclass,
            "_rebuild_meta_tensor_no_storage" => Rebuild::Meta,
            "_rebuild_device_tensor_from_numpy"
            | "_rebuild_device_tensor_from_cpu_tensor"
            | "_rebuild_xla_tensor" => Rebuild::FromDevice,
            _ => return None,
        }),
        ("torch._tensor" | "torch.tensor", "_rebuild_from_type_v2" | "_rebuild_from_type") => {
            Known::Rebuild(Rebuild::FromType)
        }
        ("torch.storage", "UntypedStorage") => Known::Storage(None),
        ("torch.storage", "TypedStorage") => Known::Label,
        ("torch.storage", "_load_from_bytes") => Known::LoadFromBytes,
        ("torch" | "torch.cuda" | "torch.sparse" | "torch.cuda.sparse", _) => {
            return lookup_torch(module, name);
        }
        ("torch.serialization", "_get_layout") => Known::Record,
        ("torch.nn.parameter", "Parameter") => Known::TensorClass(TensorClass::Parameter),
        ("torch.autograd.variable", "Variable") => Known::TensorClass(TensorClass::Variable),
        ("collections", "OrderedDict") => Known::OrderedDict,
        ("collections", "Counter") => Known::Counter,
        ("collections", "defaultdict") => Known::DefaultDict,
        ("collections", "deque") => Known::Deque,
        ("builtins", "dict") => Known::Dict,
        ("builtins", "list") => Known::List,
        ("builtins", "tuple") => Known::Tuple,
        ("builtins", "set") => Known::Set,
        ("builtins", "frozenset") => Known::FrozenSet,
        ("builtins", "bytearray") => Known::ByteArray,
        ("builtins", "bytes") => Known::Bytes,
        ("builtins", "complex") => Known::Complex,
        ("builtins", "slice" | "range" | "xrange") => Known::Record,
        ("builtins", "Ellipsis" | "int" | "float" | "str" | "bool" | "object") => Known::Label,
        ("_codecs", "encode") => Known::Encode,
        ("numpy", "dtype") => Known::NumpyDtype,
        ("numpy", "ndarray") => Known::Label,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "_reconstruct") => Known::NumpyReconstruct,
        ("numpy.core.multiarray" | "numpy._core.multiarray", "scalar") => Known::NumpyScalar,
        ("numpy.core.numeric" | "numpy._core.numeric", "_frombuffer") => Known::NumpyFromBuffer,
        _ => return None,
    })
}

fn lookup_torch(module: &str, name: &str) -> Option<Known> {
    if let Some(stem) = name.strip_suffix("Storage").filter(|_| matches!(module, "torch" | "torch.cuda")) {
        return Some(Known::Storage(Some(match stem {
            "Double" => DType::F64,
            "Float" => DType::F32,
            "Half" => DType::F16,
            "BFloat16" => DType::BF16,
            "Long" => DType::I64,
            "Int" => DType::I32,
            "Short" => DType::I16,
            "Char" => DType::I8,
            "Byte" => DType::U8,
            "Bool" => DType::Bool,
            "ComplexFloat" => DType::C64,
            "ComplexDouble" => DType::C128,
            // The integers without their scales; packed ones as bytes.
            "QInt8" => DType::I8,
            "QInt32" => DType::I32,
            "QUInt8" | "QUInt4x2" | "QUInt2x4" => DType::U8,
            "Untyped" => return Some(Known::Storage(None)),
            _ => return None,
        })));
    }
    if let Some(
        "Double" | "Float" | "Half" | "BFloat16" | "Long" | "Int" | "Short" | "Char" | "Byte" | "Bool",
    ) = name.strip_suffix("Tensor")
    {
        return Some(Known::TensorClass(TensorClass::Plain));
    }
    if module != "torch" {
        return None;
    }
    match name {
        "Size" => Some(Known::Size),
        "device" => Some(Known::Device),
        _ if LABELS.contains(&name) => Some(Known::Label),
        _ => DType::ALL.iter().copied().find(|dtype| dtype.name() == name).map(Known::Dtype),
    }
}

/// The names of `torch` that are labels: those of torch/_weights_only_unpickler.py (`_get_allowed_globals`) beside storages,
/// tensors and the dtypes that can be read.
const LABELS: &[&str] = &[
    "Tensor",
    "strided",
    "sparse_coo",
    "sparse_csr",
    "sparse_csc",
    "sparse_bsr",
    "sparse_bsc",
    "_mkldnn",
    "jagged",
    "per_tensor_affine",
    "per_tensor_symmetric",
    "per_channel_affine",
    "per_channel_symmetric",
    "per_channel_affine_float_qparams",
    "qint8",
    "quint8",
    "qint32",
    "quint4x2",
    "quint2x4",
    "int1",
    "int2",
    "int3",
    "int4",
    "int5",
    "int6",
    "int7",
    "uint1",
    "uint2",
    "uint3",
    "uint4",
    "uint5",
    "uint6",
    "uint7",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c24_a_storage_class_must_be_in_torch() {
        assert_eq!(lookup("torch", "FloatStorage"), Some(Known::Storage(Some(DType::F32))));
        assert_eq!(lookup("torch.cuda", "HalfStorage"), Some(Known::Storage(Some(DType::F16))));
        assert_eq!(lookup("torch.storage", "UntypedStorage"), Some(Known::Storage(None)));
        assert_eq!(lookup("evil", "FloatStorage"), None);
        assert_eq!(lookup("torch", "MyStorage"), None);
        assert_eq!(lookup("torch.sparse", "FloatTensor"), Some(Known::TensorClass(TensorClass::Plain)));
        assert_eq!(lookup("torch.cuda", "MyTensor"), None);
    }

    #[test]
    fn dtypes_are_known_by_their_torch_names_only() {
        assert_eq!(lookup("torch", "bfloat16"), Some(Known::Dtype(DType::BF16)));
        assert_eq!(lookup("torch", "BF16"), None);
    }
}
