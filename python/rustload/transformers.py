"""`rustload.transformers.from_pretrained`: loads models of transformers from any checkpoint on disk.

A thin layer over `rustload.torch.state_dict`: transformers builds the model and places the weights, rustload reads them.
Nothing is downloaded, transformers is not patched, and no code of a repository is run.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rustload._checkpoint.open import open as open_checkpoint
from rustload._common.hub import snapshot_names, snapshot_of
from rustload._common.progress import checked_progress, reporting
from rustload._common.sizes import sizes_once
from rustload._frameworks.adapters import import_framework
from rustload._frameworks.torch import torch_dtype
from rustload._rustload import dtype_name
from rustload.errors import _error
from rustload.torch._read_progress import with_read_progress
from rustload.torch._state_dict import state_dict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rustload._common.patterns import Key, Rename, Strip
    from rustload._common.progress import Progress
    from rustload._rustload import Limits
    from rustload.torch._state_dict import StateDict

transformers: Any = import_framework("transformers")

__all__ = ["from_pretrained"]


def from_pretrained(
    cls: Any,
    path: str | os.PathLike[str],
    *,
    dtype: Any = "auto",
    device_map: str | Mapping[str, Any] | None = None,
    config: Any = None,
    generation_config: Any = None,
    weights: str | None = None,
    subfolder: str = "",
    revision: str = "main",
    cache_dir: str | os.PathLike[str] | None = None,
    key: Key = None,
    strip: Strip = None,
    rename: Rename = None,
    dequantize: bool = False,
    progress: Progress = None,
    limits: Limits | None = None,
    **kwargs: Any,
) -> Any:
    """Loads a model of transformers from a folder with weights of any format: `.bin`, sharded, legacy or safetensors.

    Tensors are read, cast and assigned one at a time, so memory peaks at the size of the model plus the tensors that the few
    threads of transformers hold. The weights are bit-equal to those of `cls.from_pretrained`.

    Args:
        cls: A model class such as `LlamaForCausalLM`, or an Auto class such as `AutoModelForCausalLM`.
        path: A folder with `config.json` and weights; a repository folder of the Hugging Face cache (`models--org--name`); the
            name of a repository that is in the cache; or a weight file beside its `config.json`.
        dtype: A dtype, or "auto" for the dtype in the config, and that of the file if the config has none.
        device_map: As in transformers (it needs accelerate). Not "disk".
        config: A config to use in place of the folder's `config.json`.
        generation_config: A generation config to use in place of the folder's `generation_config.json`.
        weights: The weight file in the folder to use, or its index file, if the names do not determine which one is meant.
        subfolder: A folder in `path`.
        revision: The branch, tag or commit, for the cache.
        cache_dir: The cache folder; None is the default one.
        key: The key in the file under which the state dict is nested.
        strip: A prefix, or several, to remove from names.
        rename: Other names: a mapping, pairs of a regular expression and a replacement, or a callable.
        dequantize: Whether to load quantized weights as the numbers that they mean, into plain layers, without the library that
            packed them. False: transformers loads them by its quantizer.
        progress: True for a progress bar on stderr, which replaces that of transformers, or a callback `(bytes done, total bytes,
            name)` in bytes of the file. It is called by one thread at a time, and not for tensors that the model does not use.
        limits: Upper bounds on the memory and work that the file can cause.
        **kwargs: As in `cls.from_pretrained`: attributes of the config, such as `num_labels`, and arguments of transformers.

    Returns:
        The model, in evaluation mode.

    Raises:
        FileNotFoundError: The folder does not exist, or is not in the cache.
        ValueError: The device map has "disk"; or `trust_remote_code`, or `variant` in place of `weights`, is set.
        FormatError: As for `rustload.open`; its other errors are possible too.
    """
    if kwargs.pop("trust_remote_code", False):
        raise _error("Value", "trust_remote_code=True: rustload runs no code that comes with a checkpoint")
    kwargs.pop("local_files_only", None)  # it is so in any case
    if "torch_dtype" in kwargs:  # what transformers called it before version 5
        torch_dtype_arg = kwargs.pop("torch_dtype")
        dtype = torch_dtype_arg if dtype == "auto" and torch_dtype_arg is not None else dtype
    # By default safetensors is read where a folder has both, so True means nothing more.
    if kwargs.pop("variant", None) is not None or kwargs.pop("use_safetensors", None) is False:
        raise _error(
            "Value",
            "variant= and use_safetensors=False choose one of several files of weights",
            "name it, or its index, by weights=, such as weights='model.fp16.safetensors'",
        )
    if "state_dict" in kwargs:
        raise _error(
            "Value", "state_dict= is what rustload makes here: give it to cls.from_pretrained itself"
        )
    checked_progress(progress)
    if device_map == "disk" or (not isinstance(device_map, str) and "disk" in (device_map or {}).values()):
        raise _error(
            "Value",
            "device_map says 'disk', and transformers would write the weights to disk once more",
            "give accelerate's attach_align_device_hook weights_map=rustload.torch.state_dict(path) instead",
        )
    folder, file = _locate(path, revision, cache_dir)
    folder /= subfolder
    if weights is not None:
        file = folder / weights
    if config is None:
        config, kwargs = _config(cls, folder, kwargs)
    cls, config = _model_class(cls, config)
    if generation_config is None:
        generation_config = _generation_config(folder)
    if dtype != "auto" and not isinstance(dtype, dict):
        dtype = torch_dtype(dtype_name(dtype))
    source: Any = file or folder
    if dequantize:
        source = open_checkpoint(source, dequantize=True, limits=limits)
        config = _without_quantization(config)
    tensors = state_dict(source, key=key, strip=strip, rename=rename, limits=limits)
    with _with_progress(progress, tensors) as reporting_tensors, _load_report_from(path):
        made = cls.from_pretrained(
            None,
            config=config,
            generation_config=generation_config,
            state_dict=reporting_tensors,
            dtype=dtype,
            device_map=device_map,
            local_files_only=True,
            **kwargs,
        )
    model = made[0] if isinstance(made, tuple) else made  # output_loading_info=True gives two
    model.config.name_or_path = model.name_or_path = str(path)
    return made


@contextlib.contextmanager
def _with_progress(progress: Progress, tensors: StateDict) -> Iterator[StateDict]:
    """Wraps the state dict for progress, if requested; a bar of rustload replaces that of transformers."""
    if progress is None or progress is False:
        yield tensors
        return
    log = transformers.utils.logging
    replaces_bar = progress is True and log.is_progress_bar_enabled()
    if replaces_bar:
        log.disable_progress_bar()
    try:
        with reporting(
            progress, sum(sizes_once(one.lazy._core for one in tensors.values())), "loading"
        ) as report:
            yield with_read_progress(tensors, report)
    finally:
        if replaces_bar:
            log.enable_progress_bar()


@contextlib.contextmanager
def _load_report_from(path: str | os.PathLike[str]) -> Iterator[None]:
    """Puts the path into the load report that transformers logs, which says `from: None` if `state_dict=` is passed."""

    def put_path(record: logging.LogRecord) -> bool:
        head, found, rest = str(record.msg).partition(" from: None\n")
        if found and "LOAD REPORT" in head:
            record.msg = f"{head} from: {os.fspath(path)}\n{rest}"
        return True

    logger = logging.getLogger("transformers.modeling_utils")
    logger.addFilter(put_path)
    try:
        yield
    finally:
        logger.removeFilter(put_path)


def _locate(path: str | os.PathLike[str], revision: str, cache_dir: Any) -> tuple[Path, Path | None]:
    """The folder, and the file if `path` is one."""
    given = Path(path)
    if given.is_file():
        return given.parent, given
    if not given.is_dir():
        given = _cached(os.fspath(path), cache_dir)
    if (given / "snapshots").is_dir() and not (given / "config.json").exists():
        repository = os.fspath(given)
        snapshot = snapshot_of(repository, revision)
        if snapshot is None:
            there = ", ".join(snapshot_names(repository)) or "none"
            note = f"revision {revision!r} is not in the cache; there are {there}"
            raise _error("Io", "", note, errno=errno.ENOENT, path=f"{repository}/snapshots/{revision}")
        given = Path(snapshot)
    return given, None


def _cached(name: str, cache_dir: Any) -> Path:
    """The folder of a repository in the Hugging Face cache."""
    from huggingface_hub.constants import HF_HUB_CACHE

    folder = Path(cache_dir or HF_HUB_CACHE) / ("models--" + name.replace("/", "--"))
    is_repository_name = not Path(name).is_absolute() and name.count("/") <= 1 and not name.startswith(".")
    if not is_repository_name or not folder.is_dir():
        note = "there is no such folder"
        if is_repository_name:
            note = f"neither a folder nor a repository in {folder.parent}; rustload downloads nothing: hf download {name}"
        elif "://" in name:
            note = "rustload.convert(url, folder, copy_others=True) makes a folder of what is at a URL"
        raise _error("Io", "", note, errno=errno.ENOENT, path=name)
    return folder


def _config(cls: Any, folder: Path, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The config of a folder, changed by the keywords that name its attributes, and the other keywords, as in transformers."""
    kept = {name: kwargs[name] for name in kwargs if name == "quantization_config"}
    given = {name: value for name, value in kwargs.items() if name not in kept}
    # A class may have a part of the folder's config, such as that of CLIP's text model.
    own = None if getattr(cls, "_model_mapping", None) is not None else getattr(cls, "config_class", None)
    found, unused = (own or transformers.AutoConfig).from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, return_unused_kwargs=True, **given
    )
    return found, unused | kept


def _model_class(cls: Any, config: Any) -> tuple[Any, Any]:
    """Resolves an Auto class to the model class for the config, and the config to the part that the model uses."""
    mapping = getattr(cls, "_model_mapping", None)
    if mapping is None:
        return cls, config
    if type(config) not in mapping:
        raise _error("Value", f"{cls.__name__} has no model for a {type(config).__name__}")
    found = mapping[type(config)]
    if isinstance(found, (tuple, list)):
        named = {one.__name__: one for one in found}
        chosen = [named[name] for name in getattr(config, "architectures", None) or () if name in named]
        found = chosen[0] if chosen else found[0]
    text = getattr(config, "sub_configs", {}).get("text_config")
    if text is not None and getattr(found, "config_class", None) == text:
        whole, config = config, config.get_text_config()
        if getattr(whole, "quantization_config", None) is not None:
            config.quantization_config = whole.quantization_config
    return found, config


def _without_quantization(config: Any) -> Any:
    """A copy of a config, from which a model with plain layers is built."""
    config = copy.deepcopy(config)
    parts = [getattr(config, name, None) for name in getattr(config, "sub_configs", None) or ()]
    for part in (config, *parts):
        if hasattr(part, "quantization_config"):
            del part.quantization_config
    return config


def _generation_config(folder: Path) -> Any:
    """The generation config of the folder, from `generation_config.json` or else `config.json`; None if neither has one."""
    for options in ({}, {"config_file_name": "config.json", "_from_model_config": True}):
        try:
            return transformers.GenerationConfig.from_pretrained(folder, local_files_only=True, **options)
        except OSError:
            continue
    return None
