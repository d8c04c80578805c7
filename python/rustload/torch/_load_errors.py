"""Errors with the messages of `torch.load`, which programs match, and rustload's advice as a note."""

from __future__ import annotations

import pickle
import pickletools
from typing import IO, NoReturn

from rustload.errors import FormatError, _error

_KEEP = (
    "unknown='keep' opens the file with such values as inert data; nothing that it names is imported or called, "
    "and add_safe_globals has no effect here"
)
_OPEN = "rustload.open reads it"
_BARE = f"this is a bare pickle, not one of torch.save's files; {_OPEN}"

# The opcodes that torch's restricted unpickler reads (torch/_weights_only_unpickler.py: `Unpickler.load`).
_OPCODES = (
    "APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPERSID BINPUT BINUNICODE BUILD EMPTY_DICT EMPTY_LIST EMPTY_SET "
    "EMPTY_TUPLE GLOBAL LONG1 LONG_BINGET LONG_BINPUT MARK NEWFALSE NEWOBJ NEWTRUE NONE PROTO REDUCE SETITEM SETITEMS "
    "SHORT_BINSTRING STOP TUPLE TUPLE1 TUPLE2 TUPLE3"
)

# Names for which torch has a special message (torch/_weights_only_unpickler.py: `Unpickler.load`).
_BLOCKED = ("sys", "os", "posix", "nt")
_AFTER_IMPORT = {
    "``torch.nested`` and ``torch._dynamo`` must be imported to load nested jagged tensors (NJTs)": (
        "torch.nested._internal.nested_tensor.NestedTensor",
        "torch.nested._internal.nested_tensor._rebuild_njt",
        "torch._dynamo.decorators._DimRange",
    ),
    "``torch.distributed.tensor`` must be imported to load DTensors": (
        "torch.distributed.device_mesh.DeviceMesh",
        "torch.distributed.tensor._dtensor_spec.DTensorSpec",
        "torch.distributed.tensor._dtensor_spec.TensorMeta",
        "torch.distributed.tensor.DTensor",
        "torch.distributed.tensor.placement_types.Partial",
        "torch.distributed.tensor.placement_types.Replicate",
        "torch.distributed.tensor.placement_types.Shard",
    ),
}
_NEEDS_IMPORT = {name: text for text, names in _AFTER_IMPORT.items() for name in names}


def refuse_global(found: str, *, keep: bool = True) -> NoReturn:
    """Raises for a global that is not on torch's allowlist; `keep` is whether the file opens with `unknown="keep"`.

    Raises:
        DisallowedError: Always.
    """
    module, _, name = found.rpartition(".")
    if module in _BLOCKED:
        text = f"Trying to load unsupported GLOBAL {found} whose module {module} is blocked."
    elif found in _NEEDS_IMPORT:
        _refuse(
            module,
            name,
            f"{_NEEDS_IMPORT[found]} with torch.load; rustload does not load them, whatever is imported",
        )
    else:
        shown = name if module == "builtins" else found
        text = f"Unsupported global: GLOBAL {shown} was not an allowed global by default."
    _refuse(module, name, f"WeightsUnpickler error: {text}", _KEEP if keep else _BARE)


def refuse_class(class_name: str) -> NoReturn:
    """Raises for a call of an allowed function with arguments of an unknown form.

    Raises:
        DisallowedError: Always.
    """
    module, _, name = class_name.rpartition(".")
    text = f"WeightsUnpickler error: {class_name} is called in an unknown way"
    _refuse(module, name, text, code="DisallowedCall")


def _refuse(
    module: str, name: str, text: str, advice: str = _KEEP, code: str = "DisallowedGlobal"
) -> NoReturn:
    error = _error(code, f"Weights only load failed. {text}", advice)
    error.module, error.name = module, name  # type: ignore[attr-defined]  # DisallowedError has both
    raise error


class _EndOfFileError(FormatError, EOFError):
    """Nothing is left of an open file. Programs that load one object after another from it end with EOFError."""


def at_end(error: FormatError) -> FormatError:
    """The error as one that is an EOFError too."""
    made = _EndOfFileError(*error.args)
    made.__dict__.update(error.__dict__)
    return made


def no_path() -> ValueError:
    """The error for `mmap=True` without a path."""
    return ValueError("f must be a file path in order to use the mmap argument")


def no_archive(f: object) -> RuntimeError:
    """The error for `mmap=True` with a file that is not a zip archive."""
    name = f"{f}, " if isinstance(f, str) else ""
    error = RuntimeError(
        f"mmap can only be used with files saved with `torch.save({name}_use_new_zipfile_serialization=True), "
        "please torch.save your checkpoint with this option in order to use mmap."
    )
    error.add_note("rustload.open gives lazy views of such a file too")
    return error


def is_distributed() -> RuntimeError:
    """The error for a folder of `torch.distributed.checkpoint`."""
    error = RuntimeError("this is a distributed checkpoint, which torch.save did not write")
    error.add_note(
        f"{_OPEN}, and rustload.torch.state_dict(path) is a dict of its tensors; "
        "rustload.open(path).objects also has its other values"
    )
    return error


def is_torchscript() -> RuntimeError:
    """The error for a TorchScript archive."""
    error = RuntimeError(
        "Cannot use ``weights_only=True`` with TorchScript archives passed to ``torch.load``."
    )
    error.add_note(f"{_OPEN}: the weights, not the code")
    return error


def tar() -> RuntimeError:
    """The error for the oldest format, a tar file."""
    return RuntimeError("Cannot use ``weights_only=True`` with files saved in the legacy .tar format.")


def no_magic(file: IO[bytes] | None) -> Exception:
    """The error for a pickle that `torch.save` did not write: that of the first opcode that torch does not read, if there is one.

    Args:
        file: The pickle, if it can be read again.
    """
    refused = None if file is None else _refused_opcode(file)
    error: Exception = RuntimeError("Invalid magic number; corrupt file?")
    if refused is not None:
        text = f"Weights only load failed. WeightsUnpickler error: Unsupported operand {refused}"
        error = pickle.UnpicklingError(text)
    error.add_note(_BARE)
    return error


def _refused_opcode(file: IO[bytes]) -> int | None:
    known = _OPCODES.split()
    try:
        for opcode, _, _ in pickletools.genops(file):
            if opcode.name not in known:
                return ord(opcode.code)
    except ValueError:  # a text that Python does not decode
        pass
    return None
