"""`rustload.lightning.RustloadCheckpointIO`: Lightning loads checkpoints through `rustload.torch.load`, which runs no pickle.

A subclass of Lightning's `TorchCheckpointIO`. It works with `lightning` and with `pytorch_lightning`, which are two packages with
two class hierarchies: it extends the one that the program has imported. Lightning is not patched.
"""

from __future__ import annotations

import abc
import importlib
import sys
from typing import TYPE_CHECKING, Any, Literal

from rustload._frameworks.adapters import import_framework
from rustload._remote.urls import check_environment, shown_path
from rustload.errors import _check_one_of, _error
from rustload.torch._load import load
from rustload.torch._native_values import find_inert, restore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rustload._rustload import Limits
    from rustload.torch._locations import MapLocation

__all__ = ["RustloadCheckpointIO"]

_FABRICS = ("lightning.fabric", "lightning_fabric")  # of `lightning`, and of `pytorch_lightning`

# The keys of hyper-parameters. `load_from_checkpoint` uses them, but no `Trainer` does when it restores a run.
_HYPER_PARAMETERS = frozenset(
    ("hyper_parameters", "hparams_type", "datamodule_hyper_parameters", "datamodule_hparams_type")
)


def _fabric() -> str:
    """The name of the package whose classes to extend: the one that is imported already, or else the one that is installed."""
    for name in _FABRICS:
        if name in sys.modules:
            return name
    for name in _FABRICS:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in ("lightning", name):
                raise
        else:
            return name
    import_framework("lightning")  # raises with advice
    raise ImportError("this version of lightning has no lightning.fabric")


_PACKAGE = _fabric()
_Base: Any = importlib.import_module(f"{_PACKAGE}.plugins").TorchCheckpointIO
_AttributeDict: Any = importlib.import_module(f"{_PACKAGE}.utilities.data").AttributeDict
_url_to_fs: Any = importlib.import_module("fsspec.core").url_to_fs

# Where the versions of Lightning have defined the class.
_ATTRIBUTE_DICTS = frozenset(
    f"{package}.AttributeDict"
    for package in (
        "lightning.fabric.utilities.data",
        "lightning.pytorch.utilities.parsing",
        "lightning_fabric.utilities.data",
        "pytorch_lightning.utilities.parsing",
    )
)


class RustloadCheckpointIO(_Base, metaclass=abc.ABCMeta):  # type: ignore[misc]  # the base is found at run time
    """Loads checkpoints without running their pickles, for `Trainer(plugins=[...])` and `Fabric(plugins=[...])`.

    Saving and removing are those of `TorchCheckpointIO`. Strategies that read checkpoints themselves (DeepSpeed, sharded FSDP) do
    not use it, and neither does `LightningModule.load_from_checkpoint`.
    """

    def __init__(
        self,
        *,
        mmap: bool = False,
        unknown: Literal["error", "keep"] = "error",
        limits: Limits | None = None,
    ) -> None:
        """Reads nothing yet.

        Args:
            mmap: Whether tensors of a local file are views of it, as in `rustload.torch.load`.
            unknown: What to do with objects of classes that are not known: `"error"` raises, `"keep"` returns them as inert
                `rustload.Opaque` and `rustload.Global`. Hyper-parameters are always kept: the trainer does not use them.
            limits: Upper bounds on the memory and work that a file can cause.

        Raises:
            ValueError: `unknown` is another value.
        """
        super().__init__()
        _check_one_of("unknown", unknown, ("error", "keep"))
        self._mmap = bool(mmap)
        self._keeps_unknown = unknown == "keep"
        self._limits = limits

    def load_checkpoint(
        self,
        path: Any,
        map_location: MapLocation = "cpu",
        weights_only: bool | None = None,  # noqa: FBT001 - Lightning's signature
    ) -> dict[str, Any]:
        """Loads a checkpoint.

        `argparse.Namespace`, `types.SimpleNamespace`, Lightning's `AttributeDict` and paths of `pathlib` are created from the
        data in the file; NumPy scalars are Python numbers, and NumPy arrays are tensors.

        Args:
            path: A path, or a URL of fsspec.
            map_location: As for `rustload.torch.load`. The default, the CPU, is the one of `TorchCheckpointIO`.
            weights_only: True or None; no pickle is run in either case.

        Returns:
            The checkpoint.

        Raises:
            FileNotFoundError: `path` does not exist.
            ValueError: `weights_only=False`; or the environment variable `RUSTLOAD_REMOTE` does not allow the scheme of the URL.
            UnsupportedError: An object has a class that is not known, and `unknown="error"` (code `OpaqueValue`).
            FormatError: The file is not a checkpoint, or is damaged.
        """
        fs, local = _url_to_fs(str(path))
        is_local = "file" in (fs.protocol if isinstance(fs.protocol, tuple) else (fs.protocol,))
        if not is_local:
            check_environment(str(path))
        shown = shown_path(str(path))
        if not fs.exists(local):
            raise FileNotFoundError(f"Checkpoint file not found: {shown}")
        # As the program chose this class, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is not an argument against it.
        safe = True if weights_only is None else weights_only
        if is_local:
            found = load(local, map_location, weights_only=safe, mmap=self._mmap, limits=self._limits)
        else:
            with fs.open(local, "rb") as file:
                found = load(file, map_location, weights_only=safe, limits=self._limits)
        found = restore(found, dict.fromkeys(_ATTRIBUTE_DICTS, _AttributeDict))
        if not self._keeps_unknown:
            self._check(found, shown)
        return found  # type: ignore[no-any-return]

    def _check(self, checkpoint: Any, path: str) -> None:
        """Raises for the first inert value outside of hyper-parameters.

        Raises:
            UnsupportedError: There is one.
        """
        for where, name in _inert(checkpoint):
            raise _error(
                "OpaqueValue",
                f"{where} in {path!r} is a {name}: rustload keeps such objects as data, and does not create them",
                "pass RustloadCheckpointIO(unknown='keep'), and create the object from the data in on_load_checkpoint",
            )


def _inert(checkpoint: Any) -> Iterator[tuple[str, str]]:
    """Path and class name of the inert values of a checkpoint, without those in hyper-parameters."""
    if not isinstance(checkpoint, dict):
        yield from find_inert(checkpoint, "the checkpoint")
        return
    for key, value in checkpoint.items():
        if key not in _HYPER_PARAMETERS:
            yield from find_inert(key, "a key of the checkpoint")
            yield from find_inert(value, repr(key))
