//! What the loader makes of the table of globals (`globals.txt`). A known global is never called: the entry says how to interpret a call of it.

use crate::dtype::DType;
use crate::index::pickled::globals;
use crate::index::pickled::globals::Row;

/// A known global.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
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
pub(crate) enum TensorClass {
    /// `torch.nn.parameter.Parameter`.
    Parameter,
    /// `torch.autograd.variable.Variable`.
    Variable,
    /// `torch.FloatTensor` and the like.
    Plain,
}

/// The functions that rebuild a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rebuild {
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

/// The known global `module.name`; `None` where the loader gives it no meaning.
pub(crate) fn lookup(module: &str, name: &str) -> Option<Known> {
    let Row { kind, how, calls, .. } = *globals::row(module, name)?;
    Some(match kind {
        "tensor" => match how {
            "parameter_class" => Known::TensorClass(TensorClass::Parameter),
            "variable_class" => Known::TensorClass(TensorClass::Variable),
            "class" => Known::TensorClass(TensorClass::Plain),
            "v1" => Known::Rebuild(Rebuild::Tensor),
            "v2" => Known::Rebuild(Rebuild::TensorV2),
            "v3" => Known::Rebuild(Rebuild::TensorV3),
            "parameter" => Known::Rebuild(Rebuild::Parameter),
            "parameter_with_state" => Known::Rebuild(Rebuild::ParameterWithState),
            "quantized" => Known::Rebuild(Rebuild::Quantized),
            "sparse" => Known::Rebuild(Rebuild::Sparse),
            "wrapper" => Known::Rebuild(Rebuild::WrapperSubclass),
            "meta" => Known::Rebuild(Rebuild::Meta),
            "from_device" => Known::Rebuild(Rebuild::FromDevice),
            "from_type" => Known::Rebuild(Rebuild::FromType),
            _ => return None,
        },
        "loaded" => Known::LoadFromBytes,
        "storage_class" if name == "UntypedStorage" => Known::Storage(None),
        "storage_class" => Known::Storage(Some(DType::from_storage_class(name)?)),
        "dtype" => DType::ALL
            .iter()
            .find(|dtype| dtype.name() == name)
            .map_or(Known::Label, |&dtype| Known::Dtype(dtype)),
        "ordered_dict" => Known::OrderedDict,
        "counter" => Known::Counter,
        "default_dict" => Known::DefaultDict,
        "dict" => Known::Dict,
        "list" => Known::List,
        "deque" => Known::Deque,
        "set" => Known::Set,
        "frozenset" => Known::FrozenSet,
        "tuple" => Known::Tuple,
        "bytearray" => Known::ByteArray,
        "bytes" if how == "encode" => Known::Encode,
        "bytes" => Known::Bytes,
        "complex" => Known::Complex,
        "size" => Known::Size,
        "device" => Known::Device,
        "layout" if calls == "-" => Known::Label,
        "record" | "layout" => Known::Record,
        "label" | "qscheme" => Known::Label,
        "numpy_dtype" => Known::NumpyDtype,
        "ndarray" if how == "frombuffer" => Known::NumpyFromBuffer,
        "ndarray" => Known::NumpyReconstruct,
        "numpy_scalar" => Known::NumpyScalar,
        _ => return None,
    })
}

/// The element type of a storage class; `None` for other names, and for `UntypedStorage`.
pub(crate) fn storage_dtype(module: &str, name: &str) -> Option<DType> {
    match lookup(module, name) {
        Some(Known::Storage(dtype)) => dtype,
        _ => None,
    }
}

/// The element type of a class like `torch.FloatTensor`; `None` for a sparse one, which has no storage.
pub(crate) fn tensor_dtype(module: &str, name: &str) -> Option<DType> {
    let is_dense = matches!(module, "torch" | "torch.cuda");
    storage_dtype(module, &format!("{}Storage", name.strip_suffix("Tensor")?)).filter(|_| is_dense)
}

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
    fn every_dtype_and_storage_class_has_a_row_and_a_meaning() {
        for &dtype in DType::ALL {
            assert_eq!(lookup("torch", dtype.name()), Some(Known::Dtype(dtype)));
        }
        for (module, name, _) in globals::rows().filter(|(_, _, row)| row.kind == "storage_class") {
            assert!(matches!(lookup(module, name), Some(Known::Storage(_))), "{module}.{name}");
        }
    }

    #[test]
    fn dtypes_are_known_by_their_torch_names_only() {
        assert_eq!(lookup("torch", "bfloat16"), Some(Known::Dtype(DType::BF16)));
        assert_eq!(lookup("torch", "BF16"), None);
    }
}
