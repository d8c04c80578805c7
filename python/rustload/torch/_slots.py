"""The parameters and buffers of a model, each once, with all names, owners and the target device."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from rustload._common.similar import did_you_mean, similar
from rustload._frameworks.torch import check_device
from rustload.errors import _error
from rustload.torch._shards import is_dtensor, like

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclasses.dataclass
class Slot:
    """A parameter or buffer of a module.

    Attributes:
        names: All its names, as `state_dict()` has them; more than one where the module ties them.
        owners: The modules that hold it, each with the attribute's name.
        tensor: The current tensor.
        is_parameter: Whether it is a parameter; otherwise a buffer.
        persistent: Whether `state_dict()` has it.
    """

    names: list[str]
    owners: list[tuple[torch.nn.Module, str]]
    tensor: torch.Tensor
    is_parameter: bool
    persistent: bool

    @property
    def on_meta(self) -> bool:
        """Whether it is on the meta device."""
        return self.tensor.device.type == "meta"

    def assign(self, tensor: torch.Tensor) -> None:
        """Replaces the tensor in all modules that hold it; pass a Parameter for a parameter."""
        for module, attribute in self.owners:
            (module._parameters if self.is_parameter else module._buffers)[attribute] = tensor  # type: ignore[assignment]
            if isinstance(module, torch.jit.ScriptModule) and hasattr(module, "_flat_weights"):
                # A scripted RNN has its parameters a second time in a list; torch.nn.RNNBase refreshes it in __setattr__.
                module._flat_weights = [tensor if one is self.tensor else one for one in module._flat_weights]
        self.tensor = tensor

    def parameter(self, data: torch.Tensor) -> torch.Tensor:
        """Wraps data for `assign`: a parameter keeps its class, attributes and `requires_grad`.

        Args:
            data: The elements; of a DTensor, those of this rank.
        """
        old = self.tensor
        sharded = is_dtensor(old)
        if sharded:
            data = like(old, data)
        if not self.is_parameter:
            return data
        made: torch.Tensor = torch.nn.Parameter(
            data, requires_grad=old.requires_grad and (data.is_floating_point() or data.is_complex())
        )
        if type(old) is not torch.nn.Parameter and not sharded and not torch.nn.parameter.is_lazy(old):
            made = type(old)._make_subclass(type(old), data, made.requires_grad)
        made.__dict__.update(old.__dict__)
        return made


def slots_of(model: torch.nn.Module) -> list[Slot]:
    """Every parameter and buffer of the model, each once, in the order of `state_dict()`."""
    found: dict[int, Slot] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        lead = f"{prefix}." if prefix else ""
        transient = module._non_persistent_buffers_set
        for is_parameter, tensors in ((True, module._parameters), (False, module._buffers)):
            for attribute, tensor in tensors.items():
                if tensor is None:
                    continue
                persistent = is_parameter or attribute not in transient
                slot = found.setdefault(id(tensor), Slot([], [], tensor, is_parameter, persistent=False))
                slot.persistent |= persistent
                if persistent or not slot.names:
                    slot.names.append(lead + attribute)
                if not any(held is module and name == attribute for held, name in slot.owners):
                    slot.owners.append((module, attribute))
    return list(found.values())


def device_rule(device: Any, device_map: Any) -> Callable[[Slot], torch.device | None]:
    """Returns a function from a slot to its target device; None keeps its device, and means the CPU for a meta tensor.

    Args:
        device: One device for all.
        device_map: A mapping from module names to devices, as in accelerate: `""` is the whole model, and the longest matching
            name is used.

    Raises:
        ValueError: Both are given, the map has "disk" or is a strategy, or it has no entry for a tensor.
        DeviceError: A device does not exist.
    """
    if device_map is None:
        if device is None:
            return lambda _: None
        target = check_device(device) or torch.device("cpu")
        return lambda _: target
    if device is not None:
        raise _error("Value", "device= and device_map= are both given")
    if not isinstance(device_map, Mapping):
        note = (
            "accelerate.infer_auto_device_map(model) makes one; {'': 'cuda:0'} is the whole model on one GPU"
        )
        text = f"is a mapping from modules to devices, not {device_map!r}"
        raise _error("Value", text, note, argument="device_map")
    devices: dict[str, torch.device] = {}
    for name, target in device_map.items():
        if str(target) == "disk":
            raise _error(
                "Value",
                f"device_map puts {name!r} on disk, and load_into fills memory",
                "for layers that are read when they run, give accelerate the state dict: "
                "attach_align_device_hook(model, execution_device=..., offload=True, "
                "weights_map=rustload.torch.state_dict(path))",
            )
        devices[name] = check_device(target) or torch.device("cpu")

    def choose(slot: Slot) -> torch.device:
        name = slot.names[0]
        while name and name not in devices:
            name = name.rpartition(".")[0]
        if name not in devices:
            raise _error(
                "Value",
                f"device_map says nothing of {slot.names[0]!r}",
                "'' stands for the whole model",
            )
        return devices[name]

    return choose


def check_device_map(model: torch.nn.Module, device_map: Any) -> None:
    """Checks that the names of a device map exist, because a misspelled one would be ignored.

    Raises:
        ValueError: A name is neither a module nor a tensor of the model.
    """
    if not device_map:
        return
    known = {name for name, _ in model.named_modules(remove_duplicate=False)}
    known |= {name for slot in slots_of(model) for name in slot.names}
    for name in device_map:
        if name not in known:
            near = did_you_mean(similar(str(name), known))
            raise _error(
                "Value",
                f"device_map names {name!r}, which the model does not have",
                near or "its names are those of model.named_modules()",
            )
