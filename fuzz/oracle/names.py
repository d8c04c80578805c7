"""The names of which random pickles are made."""

from __future__ import annotations

EVIL = (
    b"cevil\nrun\n.",
    b"cevil\nrun\n)R.",
    b"(ievil\nrun\n.",
    b"\x80\x04\x8c\x04evil\x8c\x03run\x93.",
    b"\x80\x02cevil\nrun\nX\x02\0\0\0idq\x00\x85R0N.",
)
"""Pickles that resolve a name which no report lists as inert."""

KNOWN = (
    "collections.OrderedDict", "collections.Counter", "collections.defaultdict", "collections.deque", "builtins.dict",
    "builtins.list", "builtins.set", "builtins.frozenset", "builtins.bytearray", "builtins.bytes", "builtins.complex",
    "builtins.slice", "builtins.range", "builtins.tuple", "builtins.object", "builtins.int", "builtins.str", "torch.Size",
    "torch.device", "torch.Tensor", "torch.FloatStorage", "torch.nn.parameter.Parameter", "torch.float32", "torch.strided",
    "numpy.dtype", "numpy.ndarray", "torch.storage.TypedStorage", "torch.storage.UntypedStorage",
    "torch.autograd.variable.Variable", "torch.FloatTensor", "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state", "torch._tensor._rebuild_from_type_v2",
    "torch._utils._rebuild_device_tensor_from_numpy", "_codecs.encode", "torch.serialization._get_layout",
    "numpy._core.multiarray._reconstruct", "numpy._core.multiarray.scalar", "numpy._core.numeric._frombuffer",
)  # fmt: skip
"""Names that a report may call inert."""
OTHER = (
    "torch.storage._load_from_bytes", "torch.load", "numpy.load", "pickle.loads", "joblib.load", "argparse.Namespace",
    "types.SimpleNamespace", "datetime.date", "pathlib.PurePosixPath", "torch.nn.modules.linear.Linear",
    "torch.nn.modules.container.Sequential", "joblib.numpy_pickle.NumpyArrayWrapper", "fractions.Fraction",
    "decimal.Decimal", "uuid.UUID", "enum.Enum", "copyreg._reconstructor",
)  # fmt: skip
"""Loaders, and classes of checkpoints that a report may not know."""
HIDING = (
    "__setstate__", "__class__", "__dict__", "__reduce__", "__getitem__", "keys", "items", "update", "append", "extend", "add",
    "__init__", "__new__", "__missing__", "default_factory", "__call__", "__setitem__", "__len__", "__iter__", "__hash__",
    "__eq__", "data",
    "dtype", "shape", "requires_grad", "__array_finalize__", "__torch_function__", "_backward_hooks", "_parameters",
    "_modules", "forward",
    "__setattr__", "__getattr__", "_set_from_file", "subclass", "order", "allow_mmap", "read", "_extra_state",
    "set_extra_state",
)  # fmt: skip
"""Attributes that some reader looks up on an object."""


ATTRIBUTES = (
    "a", "data", "int", "maps", "_parameters", "_modules", "_buffers", "training", "_forward_hooks", "hook",
    "_flat_weights_names", "_all_weights",
    "weight", "_version", "_non_persistent_buffers_set", "inplace", "default_factory", "args", "is_safe", "dims",
)  # fmt: skip
"""Attributes of the known classes."""
