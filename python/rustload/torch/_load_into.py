"""`rustload.torch.load_into`: loads a checkpoint into a model, one tensor at a time; memory peaks at the model plus a window.

Names, shapes and kinds of number are checked before anything is written. Parameters with memory are written in place; those on
the meta device get storage on their target device. Custom loading code of the model (`_load_from_state_dict`, hooks of
`load_state_dict`) runs as in torch, on lazy handles and before anything is read.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch

from rustload._checkpoint.names import renamer, select_tensors
from rustload._checkpoint.open import opened
from rustload._common.options import CastOptions, NamesOptions, SourceOptions, filled, part, takes
from rustload._common.patterns import warn_of_unused_patterns
from rustload._common.progress import Progress, checked_progress, reporting
from rustload._common.request import checked_cast
from rustload._common.rules import Rules, kept_text
from rustload._common.sizes import parse_bytes
from rustload.errors import RustloadWarning, _check_one_of, _error, _printable
from rustload.torch._buffers import is_of_transformers, make_buffers
from rustload.torch._execute import check_memory, execute_steps
from rustload.torch._hooks import (
    check_scaled,
    has_custom_loading,
    loaded_by_code,
    run_custom_loading,
    run_post_hooks,
)
from rustload.torch._peak_memory import PeakMemory
from rustload.torch._plan import (
    LoadOptions,
    Plan,
    apply_transpose,
    check_casts,
    is_batch_counter,
    make_plan,
    saved_values,
)
from rustload.torch._private_views import private_context
from rustload.torch._report import Converted, LoadReport, mismatch_error, prefix_hint
from rustload.torch._shards import is_dtensor, local_tensor
from rustload.torch._share import Share, SharedReads, agreed, is_shared, rows_needed
from rustload.torch._slots import check_device_map, device_rule, slots_of
from rustload.torch._state_dict import module_versions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rustload._checkpoint.checkpoint import Checkpoint
    from rustload._common.request import Cast
    from rustload.torch._hooks import CustomLoading


class IntoOptions(SourceOptions, CastOptions, total=False):
    """What to load of a checkpoint, and which conversions of numbers are made."""


@takes(IntoOptions)
def load_into(
    model: torch.nn.Module,
    path: Any,
    *,
    dtype: Any = None,
    transpose: Any = None,
    device: Any = None,
    device_map: Mapping[str, Any] | None = None,
    strict: bool = True,
    assign: Literal["auto"] | bool = "auto",
    copy: bool | None = None,
    cast: Cast = "auto",
    memory: str | int = "256MiB",
    share: Share = None,
    progress: Progress = None,
    **options: Unpack[IntoOptions],
) -> LoadReport:
    """Loads a checkpoint into a model; memory peaks at the model plus a window, whatever the file's dtype and format.

    Parameters and buffers with memory are written in place, on the CPU or a GPU. Those on the meta device get storage, and keep
    `requires_grad`, attributes and ties; on the CPU, without a cast or transpose, the storage is a view of the file (a private
    copy-on-write mapping). Names that are tied in the file and get new storage become one parameter. Everything that does not fit
    is reported in one error before anything is written. Scales of what is dequantized are not loaded.

    Args:
        model: The module. Build it under `torch.device("meta")` so that its memory is allocated only once.
        path: Anything that `rustload.open` takes, an open checkpoint, or a selection of its tensors.
        dtype: The dtype of parameters: a dtype for float tensors that go into float parameters, a mapping from glob patterns of
            the file's names, or a callable that gets the lazy tensor. None, or no match, keeps the model's dtypes; with
            `assign=True`, that of the file, or of the numbers that quantized weights mean.
        transpose: A mapping from glob patterns, or a callable, to True (swap the last two dimensions) or a permutation.
        device: The device of all tensors. None keeps tensors with memory on their device, and puts the others on the CPU.
        device_map: A mapping from module names to devices, as in accelerate; `""` is the whole model. Not "disk".
        strict: Whether missing names, unexpected names and mismatched shapes are an error; if False, tensors that fit are loaded.
        assign: "auto" writes in place, and assigns new storage to meta tensors; True assigns new storage to all; False only
            writes in place.
        copy: True makes new storage own its memory instead of being a view of the file.
        cast: Whether the CPU or the GPU casts tensors that go to a GPU, as for `LazyTensor.materialize`.
        memory: The most host memory for temporary tensors, used where a tensor cannot be read directly into its destination; in
            bytes or as "256MiB"; at least 1 MiB.
        share: "node": the ranks of `torch.distributed` on one machine read what they need once. From a store, a rank fetches what
            no other has; of a cold file on a network file system, each reads a share into the page cache. All ranks of the
            default group call it, and an error of one is an error of all. None: each rank reads for itself, and nothing is
            communicated; where the page cache fetches each page once, this is faster (docs/guides/distributed.md).
        progress: True for a progress bar on stderr, or a callback `(bytes done, total bytes, name)`.
        **options: What to load, and which conversions are made (`IntoOptions`).

    Returns:
        A report of what was loaded.

    Raises:
        ModelMismatchError: Names are missing or unexpected, or shapes or kinds of number differ; nothing was changed, except
            tensors that the model's own loading code uses after it has copied them.
        ValueError: An argument has an invalid value, or tied parameters have different values in the file.
        DeviceError: A device does not exist.
        NotEnoughMemoryError: New tensors need more memory than this process may take; nothing was changed.
        RuntimeError: With `share="node"`, another rank failed; the message has its rank and the cause.
        UnsupportedError: There are codes that `dequantize` does not decode, or codes are to be cast and their scales are not
            loaded (code `QuantUnknown`).
        FormatError: As for `rustload.open`; its other errors are possible too.

    >>> import torch, rustload.torch
    >>> with torch.device("meta"):
    ...     model = torch.nn.ModuleDict({name: torch.nn.Linear(8, 8, bias=False) for name in ("q", "k", "v", "lm_head")})
    >>> report = rustload.torch.load_into(model, "model.pt", dtype="bfloat16")
    >>> model["q"].weight.dtype, report.bytes, report.missing
    (torch.bfloat16, 512, [])
    """
    how = filled(load_into, options)
    names = part(NamesOptions, how)
    start = time.perf_counter()
    shared = is_shared(share)
    with agreed(shared=shared):
        # Ranks differ in their arguments, such as the device.
        _check_one_of("assign", assign, ("auto", True, False))
        checked_progress(progress)
        applied = LoadOptions(
            rules=Rules(dtype=dtype, transpose=transpose),
            device_of=device_rule(device, device_map),
            assign=assign,
            copy=copy,
            window=max(parse_bytes(memory, "memory"), 1 << 20),
            cast=checked_cast(cast),
            **part(CastOptions, how),
        )
        if not isinstance(model, torch.nn.Module):
            raise _error("Type", _not_a_module(model))
        checkpoint, chosen = opened(path, "torch", how["limits"], dequantize=applied.dequantize)
        warn_of_unused_patterns(checkpoint._core.names, dtype=dtype, transpose=transpose)
        context = private_context()  # the model owns its parameters: no other view shares this mapping
        tensors = {
            name: lazy._with_context(context) for name, lazy in select_tensors(chosen, **names).items()
        }
        for lazy in tensors.values() if applied.dequantize else ():
            lazy._core.check_scheme()
        unchanged = applied.rules.kept(tensors.values())
        kept = [f"dtype= {kept_text(unchanged)}"] if unchanged else []
        new_name = renamer(how["strip"], how["rename"])
        custom = None
        if has_custom_loading(model):
            transposed = {name: apply_transpose(lazy, applied.rules) for name, lazy in tensors.items()}
            versions = module_versions(checkpoint, how["key"], how["strip"]) if chosen is checkpoint else {}
            others = {new_name(name): value for name, value in saved_values(checkpoint, how["key"])}
            custom = run_custom_loading(model, transposed, versions, others)
            if applied.dequantize:
                check_scaled(custom.tensors)
        slots = slots_of(model)
        check_device_map(model, device_map)
        plan = make_plan(
            model,
            slots,
            tensors,
            applied,
            checkpoint=checkpoint,
            key=how["key"],
            new_name=new_name,
            custom=custom,
        )
        # Post hooks may remove names from the lists, so names are checked after the hooks have run.
        only_names_differ = not (plan.mismatched or plan.messages)
        check_after_hooks = only_names_differ and any(
            module._load_state_dict_post_hooks for module in model.modules()
        )
        if plan.messages or (strict and plan.faults() and not check_after_hooks):
            raise _mismatch(checkpoint, model, plan, loaded_by_code(custom))
        if not plan.steps and tensors and not strict:
            _warn_of_no_match(checkpoint, model, plan)
        check_casts(plan, checkpoint)
        check_memory(plan.steps, applied)
    with SharedReads(checkpoint) as reads:
        warmed = []
        if shared:
            with agreed(shared=True):
                needed = rows_needed(checkpoint, plan.steps)
                reads.offer()
            with agreed(shared=True):
                warmed = [reads.begin(needed)]
        peak = PeakMemory()
        done = 0
        with agreed(shared=shared):
            try:
                with reporting(progress, sum(step.nbytes for step in plan.steps), "loading") as report:
                    for step in execute_steps(plan.steps, applied, peak.sample):
                        peak.sample()
                        done += 1
                        report(step.nbytes, step.slot.names[0])
            except Exception as error:
                error.add_note(
                    f"while loading into the model; {done} of its {len(plan.steps)} tensors were loaded before"
                )
                raise
            for module, extra in plan.extra:
                module.set_extra_state(extra)
            _move_unfilled(plan, applied)
            made = make_buffers(model, slots, applied.device_of)
            missing, unexpected = list(plan.missing), list(plan.unexpected)
            if run_post_hooks(model, missing, unexpected):
                plan.missing = {name: plan.missing.get(name, ()) for name in missing}
                plan.unexpected = {name: plan.unexpected.get(name, ()) for name in unexpected}
                if strict and plan.faults():
                    what = "the parameters that fit were changed, as a hook of the model could still take the others"
                    raise _mismatch(checkpoint, model, plan, what)
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
        bytes_read=sum(step.nbytes_read for step in plan.steps),
        seconds=time.perf_counter() - start,
        peak_host=peak.host,
        peak_device=peak.device,
        notes=[
            *_custom_loading_notes(model, custom),
            *plan.notes(),
            *made,
            *kept,
            *checkpoint.notes,
            *warmed,
        ],
    )


def _not_a_module(given: Any) -> str:
    if isinstance(given, type):
        return f"the model is the class {given.__name__}: pass an instance, built under torch.device('meta') to save memory"
    return f"the model is a {type(given).__name__}, not a torch.nn.Module; the path is the second argument"


def _move_unfilled(plan: Plan, options: LoadOptions) -> None:
    """Moves tensors that the file does not have to their device too, so that the model is complete."""
    for slot in plan.unfilled:
        device = options.device_of(slot)
        if slot.on_meta and is_batch_counter(slot):
            slot.assign(torch.zeros((), dtype=slot.tensor.dtype, device=device))
        if (
            device is None
            or slot.on_meta
            or torch.nn.parameter.is_lazy(slot.tensor)
            or slot.tensor.device == device
        ):
            continue
        if is_dtensor(slot.tensor):
            slot.assign(slot.parameter(local_tensor(slot.tensor).to(device)))
        elif slot.is_parameter:
            slot.tensor.data = slot.tensor.data.to(device)
        else:
            slot.assign(slot.tensor.to(device))


def _custom_loading_notes(model: torch.nn.Module, custom: CustomLoading | None) -> list[str]:
    """Notes on the custom loading code of the model."""
    notes = (
        [f"the loading code of {name} itself was run" for name in sorted(custom.classes)] if custom else []
    )
    if type(model).load_state_dict is not torch.nn.Module.load_state_dict:
        notes.append(f"{type(model).__qualname__} has a load_state_dict of its own, which was not called")
    return notes


def _mismatch(checkpoint: Checkpoint, model: torch.nn.Module, plan: Plan, loaded: str | None) -> Exception:
    error = mismatch_error(
        _source(checkpoint),
        type(model).__name__,
        plan.missing,
        plan.unexpected,
        plan.mismatched,
        plan.messages,
        loaded=loaded,
    )
    if is_of_transformers(model) and not prefix_hint(plan.missing, plan.unexpected):
        error.add_note(
            "transformers renames and joins weights of some models: rustload.transformers.from_pretrained does too"
        )
    return error


def _warn_of_no_match(checkpoint: Checkpoint, model: torch.nn.Module, plan: Plan) -> None:
    """Warns that `strict=False` loaded nothing, with the hint of the error of `strict=True`."""
    message = f"no tensor of {_source(checkpoint)} fits {type(model).__name__}: nothing was loaded"
    hint = prefix_hint(plan.missing, plan.unexpected)
    warnings.warn(RustloadWarning(_printable(f"{message}; {hint}" if hint else message)), stacklevel=3)


def _source(checkpoint: Checkpoint) -> str:
    files = checkpoint.files
    if len(files) == 1:
        return repr(files[0])
    return f"a checkpoint of {len(files)} files" if files else "the checkpoint"
