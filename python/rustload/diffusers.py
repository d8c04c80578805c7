"""`rustload.diffusers.from_pretrained`: loads models and pipelines of diffusers from any checkpoint on disk.

A thin layer over `rustload.torch.load_into`: diffusers builds the model from its config, rustload reads the weights into it.
Nothing is downloaded, diffusers is not patched, no pickle is run, and no code of a repository is.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rustload._common.rules import DEFAULT_CAST_DTYPES
from rustload._frameworks.adapters import import_framework
from rustload._frameworks.torch import torch_dtype
from rustload._rustload import dtype_name
from rustload.errors import _error
from rustload.torch._load_into import load_into

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rustload._common.patterns import Key, Rename, Strip
    from rustload._common.progress import Progress
    from rustload._common.rules import TensorInfo
    from rustload._rustload import Limits

diffusers: Any = import_framework("diffusers")

__all__ = ["from_pretrained"]


def from_pretrained(
    cls: Any,
    path: str | os.PathLike[str],
    *,
    dtype: Any = None,
    device: Any = None,
    weights: str | None = None,
    subfolder: str = "",
    key: Key = None,
    strip: Strip = None,
    rename: Rename = None,
    progress: Progress = None,
    limits: Limits | None = None,
    **kwargs: Any,
) -> Any:
    """Loads a model or a pipeline of diffusers from a folder with weights of any format: `.bin`, sharded, legacy or safetensors.

    Parameters are made once, in their final dtype; with accelerate installed without memory for initial values. The weights are
    bit-equal to those of `cls.from_pretrained`.

    Args:
        cls: A model class such as `UNet2DConditionModel`, a pipeline class such as `StableDiffusionPipeline`, or
            `DiffusionPipeline` for the class that the folder names.
        path: The folder on disk: of a model, with `config.json`; of a pipeline, with `model_index.json`.
        dtype: The dtype of parameters, except in modules that the class keeps in float32; None is that of the model class,
            float32.
        device: The device; None is the CPU.
        weights: For a model, the weight file in the folder, if its names do not determine which one is meant.
        subfolder: A folder in `path`, such as `"unet"`.
        key: For a model, the key in the file under which the state dict is nested.
        strip: For a model, a prefix, or several, to remove from names.
        rename: For a model, other names, as in `load_into`.
        progress: True for a progress bar of each model, or a callback `(bytes done, total bytes, name)`.
        limits: Upper bounds on the memory and work that a file can cause.
        **kwargs: For a pipeline, passed to `cls.from_pretrained`: components that are made already, such as `unet=model`.

    Returns:
        The model in evaluation mode, or the pipeline. The models of a pipeline are loaded by rustload, those of transformers too;
        everything else by diffusers, which gets `use_safetensors=True`, so that it reads no pickle.

    Raises:
        OSError: The folder or its config does not exist.
        ModelMismatchError: The file does not fit the model.
        ValueError: An argument is for models only and `cls` is a pipeline, or the other way round.
        FormatError: As for `rustload.open`; its other errors are possible too.
    """
    folder = Path(path) / subfolder
    if issubclass(cls, diffusers.DiffusionPipeline):
        named = {"weights": weights, "key": key, "strip": strip, "rename": rename}
        given = [name for name, value in named.items() if value is not None]
        if given:
            raise _error("Value", f"{given[0]}= is for one model, and {cls.__name__} is a pipeline")
        return _pipeline(cls, folder, kwargs, dtype=dtype, device=device, progress=progress, limits=limits)
    if kwargs:
        raise _error("Value", f"{next(iter(kwargs))}= is for pipelines, and {cls.__name__} is a model")
    config = cls.load_config(folder, local_files_only=True)
    with _default_dtype(dtype), _without_memory():
        model = cls.from_config(config)
    with _without_ignored_names(model):
        load_into(
            model,
            folder / weights if weights else folder,
            key=key,
            strip=strip,
            rename=rename,
            dtype=_dtype_rule(cls, dtype),
            device=device,
            progress=progress,
            limits=limits,
        )
    model.register_to_config(_name_or_path=os.fspath(folder))
    return model.eval()


@contextlib.contextmanager
def _default_dtype(dtype: Any) -> Iterator[None]:
    """Within it, torch makes tensors in that dtype, so buffers that no file has get the dtype that they have in diffusers."""
    before = torch.get_default_dtype()
    made = torch_dtype(dtype_name(dtype)) if isinstance(dtype, (str, torch.dtype)) else before
    torch.set_default_dtype(made if made.itemsize > 1 else before)  # torch refuses 8 bits
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _without_memory() -> contextlib.AbstractContextManager[Any]:
    """Makes parameters on the meta device if accelerate is installed, as diffusers does. Buffers get their values."""
    try:
        import accelerate
    except ImportError:
        return contextlib.nullcontext()
    return accelerate.init_empty_weights(include_buffers=False)  # type: ignore[no-any-return]


def _dtype_rule(cls: Any, dtype: Any) -> Any:
    """The dtype of the tensors of a model class: some modules stay in float32, as in diffusers."""
    kept = cls._keep_in_fp32_modules or []
    modules = {kept} if isinstance(kept, str) else set(kept)
    if dtype is None or not modules:
        return dtype

    def choose(lazy: TensorInfo) -> Any:
        if lazy.dtype not in DEFAULT_CAST_DTYPES:
            return None
        return dtype if modules.isdisjoint(lazy.name.split(".")) else "float32"

    return choose


@contextlib.contextmanager
def _without_ignored_names(model: Any) -> Iterator[None]:
    """Within it, the names that the model's class ignores in files are not unexpected."""
    ignored = model._keys_to_ignore_on_load_unexpected
    if not ignored:
        yield
        return

    def forget(_module: Any, keys: Any) -> None:
        keys.unexpected_keys[:] = [
            name for name in keys.unexpected_keys if not any(re.search(pattern, name) for pattern in ignored)
        ]

    hook = model.register_load_state_dict_post_hook(forget)
    try:
        yield
    finally:
        hook.remove()


def _pipeline(
    cls: Any,
    folder: Path,
    made: Mapping[str, Any],
    *,
    dtype: Any,
    device: Any,
    progress: Progress,
    limits: Limits | None,
) -> Any:
    components = dict(made)
    for name, described in cls.load_config(folder, local_files_only=True).items():
        if name in components or name.startswith("_") or not isinstance(described, (list, tuple)):
            continue
        library, class_name = described
        found = _class_of(library, class_name)
        if found is None:
            continue
        if issubclass(found, diffusers.ModelMixin):
            components[name] = from_pretrained(
                found, folder / name, dtype=dtype, device=device, progress=progress, limits=limits
            )
        else:
            components[name] = _of_transformers(found, folder / name, dtype, progress, limits)
    torch_type = None if dtype is None else torch_dtype(dtype_name(dtype))
    options = {} if torch_type is None else {"torch_dtype": torch_type}
    pipeline = cls.from_pretrained(
        folder, local_files_only=True, use_safetensors=True, **options, **components
    )
    return pipeline if device is None else pipeline.to(device)


def _class_of(library: Any, class_name: Any) -> type | None:
    """The model class of a component; None for a tokenizer, a scheduler or another component without weights."""
    if not isinstance(library, str) or not isinstance(class_name, str):
        return None  # a component that the pipeline was saved without
    import transformers

    places = {"diffusers": diffusers, "transformers": transformers}
    place = places.get(library) or getattr(diffusers.pipelines, library, None)
    found = getattr(place, class_name, None)
    models = (diffusers.ModelMixin, transformers.PreTrainedModel)
    return found if isinstance(found, type) and issubclass(found, models) else None


def _of_transformers(cls: Any, folder: Path, dtype: Any, progress: Progress, limits: Limits | None) -> Any:
    from rustload.transformers import from_pretrained as load_model  # imports transformers

    # diffusers loads in float32 where no dtype is given.
    return load_model(
        cls, folder, dtype="float32" if dtype is None else dtype, progress=progress, limits=limits
    )
