"""`rustload.torch.load_into`: a checkpoint into a model, one tensor at a time, at the cost of the model and a window.

Nothing is written before names, shapes and kinds of number are known to fit. Memory that is there is written to in place; what is
on the meta device gets its storage where it belongs. The module's own loading code (`_load_from_state_dict`, hooks of
`load_state_dict`) runs as torch runs it, on lazy handles and before anything is read.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any, Literal

import torch

from rustload._checkpoint.names import Key, Rename, Strip, named
from rustload._common.patterns import check_rules
from rustload._common.progress import Progress, checked_progress, reporting
from rustload._common.rules import Rules
from rustload._common.sizes import parse_bytes
from rustload.errors import RustloadWarning, _make
from rustload.torch._execute import done_steps
from rustload.torch._hooks import after_loading, own_code, run_own_code
from rustload.torch._own_views import own_views
from rustload.torch._peak_memory import Meter
from rustload.torch._plan import Plan, Wish, is_counter, ordered, plan_of
from rustload.torch._report import Converted, LoadReport, mismatch_error, prefix_hint
from rustload.torch._slots import check_device_map, device_rule, slots_of
from rustload.torch._state_dict import checkpoint_of, versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload._common.limits import Limits
    from rustload.torch._hooks import Own

__all__ = ["load_into"]


def load_into(
    model: torch.nn.Module,
    path: Any,
    *,
    key: Key = None,
    strip: Strip = None,
    rename: Rename = None,
    dtype: Any = None,
    transpose: Any = None,
    device: Any = None,
    device_map: Mapping[str, Any] | None = None,
    strict: bool = True,
    assign: Literal["auto"] | bool = "auto",
    copy: bool | None = None,
    allow_lossy: bool = False,
    memory: str | int = "256MiB",
    progress: Progress = None,
    limits: Limits | None = None,
) -> LoadReport:
    """Loads a checkpoint into a model at the cost of the model and a window, whatever the file's dtype and format.

    Parameters and buffers that have memory are written to in place, on the CPU or a GPU. Those on the meta device get
    storage, and keep `requires_grad`, attributes and ties; with no cast or transpose on the CPU that is a view of the file
    (private, copy-on-write). Names that are tied in the file and new in the model end as one parameter. All that does not fit is
    told in one error before anything is written.

    Args:
        model: The module. Build it under `torch.device("meta")` to have its memory taken once.
        path: What `rustload.open` takes, or an open checkpoint.
        key: What the state dict is nested under in the file, such as `"state_dict"` or `("model", "ema")`.
        strip: A prefix, or several, to take off names, such as `"module."`.
        rename: Other names: a mapping from names or leading parts of names (None leaves a tensor out), pairs of a regular
            expression and a replacement, or a callable.
        dtype: What parameters shall be: a dtype for float tensors that go into floats, a mapping from glob patterns of the file's
            names, or a callable that gets the lazy tensor. None, or no match, keeps the model's dtypes; with `assign=True`
            the file's.
        transpose: A mapping from glob patterns or a callable that says True (the last two dimensions swapped) or gives an order.
        device: Where everything shall be. None leaves what has memory where it is, and puts the rest on the CPU.
        device_map: From names of modules to devices, as accelerate writes it; `""` is the whole model. Not "disk".
        strict: Whether missing and unexpected names and other shapes are an error; if not, what fits is loaded.
        assign: "auto" writes in place where there is memory and assigns where there is none; True assigns everywhere; False only
            writes in place.
        copy: True gives new storage memory of its own where it could be a view of the file.
        allow_lossy: Whether a cast may change the kind of number, as for `LazyTensor.materialize`.
        memory: The most host memory to hold on the way for what cannot be read straight to where it belongs, in bytes or as
            "256MiB"; 1 MiB at least.
        progress: True for a bar on stderr, or a callable `(bytes done, bytes in all, name)`.
        limits: Bounds on what the file may make the reader do.

    Returns:
        What was done.

    Raises:
        ModelMismatchError: Names are missing or unexpected, or shapes or kinds of number differ; nothing was changed.
        ValueError: An argument does not fit, or tied parameters have different values in the file.
        DeviceError: A device is not there.
        FormatError: As for `rustload.open`, whose other errors are possible too.

    >>> import torch, rustload.torch
    >>> with torch.device("meta"):
    ...     model = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8, bias=False) for name in ("q", "k", "v", "lm_head")})
    >>> report = rustload.torch.load_into(model, "model.pt", dtype="bfloat16")
    >>> model["q"].weight.dtype, report.bytes, report.missing
    (torch.bfloat16, 512, [])
    """
    if assign not in ("auto", True, False):
        raise _make("Value", "Value", f"assign={assign!r} is not 'auto', True or False")
    checked_progress(progress)
    start = time.perf_counter()
    wish = Wish(
        rules=Rules(dtype=dtype, transpose=transpose),
        place=device_rule(device, device_map),
        assign=assign,
        copy=copy,
        allow_lossy=allow_lossy,
        window=max(parse_bytes(memory, "memory"), 1 << 20),
    )
    if not isinstance(model, torch.nn.Module):
        raise _make("Type", "Type", _no_model(model))
    checkpoint = checkpoint_of(path, limits)
    check_rules(checkpoint._core, dtype=dtype, transpose=transpose)
    shared = own_views()  # the model owns its parameters: no other view is of this mapping
    tensors = {
        name: lazy._with_views_in(shared) for name, lazy in named(checkpoint, key, strip, rename).items()
    }
    own = None
    if own_code(model):
        sorted_out = {name: ordered(lazy, wish.rules) for name, lazy in tensors.items()}
        own = run_own_code(model, sorted_out, versions(checkpoint, key, strip))
    slots = slots_of(model)
    check_device_map(model, device_map)
    plan = plan_of(model, slots, tensors, wish, checkpoint=checkpoint, key=key, own=own)
    # Hooks that run after loading may take names off the lists; a name that they leave is told then.
    names_only = not (plan.mismatched or plan.messages)
    later = names_only and any(module._load_state_dict_post_hooks for module in model.modules())
    if plan.messages or (strict and plan.faults() and not later):
        raise _mismatch(checkpoint, model, plan)
    if not plan.steps and tensors and not strict:
        _warn_of_no_match(checkpoint, model, plan)
    meter = Meter()
    done = 0
    try:
        with reporting(progress, sum(step.nbytes for step in plan.steps), "loading") as report:
            for step in done_steps(plan.steps, wish, meter.sample):
                meter.sample()
                done += 1
                report(step.nbytes, step.slot.names[0])
    except Exception as error:
        error.add_note(
            f"while loading into the model; {done} of its {len(plan.steps)} tensors were loaded before"
        )
        raise
    for module, extra in plan.extra:
        module.set_extra_state(extra)
    _move_rest(plan, wish)
    missing, unexpected = list(plan.missing), list(plan.unexpected)
    if after_loading(model, missing, unexpected):
        plan.missing = {name: plan.missing.get(name, ()) for name in missing}
        plan.unexpected = {name: plan.unexpected.get(name, ()) for name in unexpected}
        if strict and plan.faults():
            raise _mismatch(checkpoint, model, plan, loaded=True)
    return LoadReport(
        missing=missing,
        unexpected=unexpected,
        mismatched=plan.mismatched,
        converted=[
            Converted(step.slot.names[0], step.lazy.dtype, step.dtype)
            for step in plan.steps
            if step.dtype != step.lazy.dtype
        ],
        tied=[group for group in plan.groups() if len(group) > 1],
        on_meta=[slot.names[0] for slot in slots if slot.on_meta],
        bytes=sum(step.nbytes for step in plan.steps),
        seconds=time.perf_counter() - start,
        peak_host=meter.host,
        peak_device=meter.device,
        notes=_own_loaders(model, own) + checkpoint.notes,
    )


def _no_model(given: Any) -> str:
    if isinstance(given, type):
        return f"the model is the class {given.__name__}: make one, under torch.device('meta') where memory counts"
    return f"the model is a {type(given).__name__}, not a torch.nn.Module; the path comes second"


def _move_rest(plan: Plan, wish: Wish) -> None:
    """Brings what the file does not have to its device too, so that the model is whole."""
    for slot in plan.unfilled:
        place = wish.place(slot)
        if slot.on_meta and is_counter(slot):
            slot.assign(torch.zeros((), dtype=slot.tensor.dtype, device=place))
        if (
            place is None
            or slot.on_meta
            or torch.nn.parameter.is_lazy(slot.tensor)
            or slot.tensor.device == place
        ):
            continue
        if slot.is_parameter:
            slot.tensor.data = slot.tensor.data.to(place)
        else:
            slot.assign(slot.tensor.to(place))


def _own_loaders(model: torch.nn.Module, own: Own | None) -> list[str]:
    """Notes on loading code of the model's own."""
    notes = [f"the loading code of {name} itself was run" for name in sorted(own.classes)] if own else []
    if type(model).load_state_dict is not torch.nn.Module.load_state_dict:
        notes.append(f"{type(model).__qualname__} has a load_state_dict of its own, which was not called")
    return notes


def _mismatch(
    checkpoint: Checkpoint, model: torch.nn.Module, plan: Plan, *, loaded: bool = False
) -> Exception:
    return mismatch_error(
        _source(checkpoint),
        type(model).__name__,
        plan.missing,
        plan.unexpected,
        plan.mismatched,
        plan.messages,
        loaded=loaded,
    )


def _warn_of_no_match(checkpoint: Checkpoint, model: torch.nn.Module, plan: Plan) -> None:
    """Warns that `strict=False` loaded nothing, with the advice that the error of `strict=True` has."""
    message = f"no tensor of {_source(checkpoint)} fits {type(model).__name__}: nothing was loaded"
    hint = prefix_hint(plan.missing, plan.unexpected)
    warnings.warn(RustloadWarning(f"{message}; {hint}" if hint else message), stacklevel=3)


def _source(checkpoint: Checkpoint) -> str:
    files = checkpoint.files
    return (
        repr(files[0])
        if len(files) == 1
        else f"a checkpoint of {len(files)} files"
        if files
        else "the checkpoint"
    )
