"""The reference pages: which public names are on which page. A test compares them with the public names of the package."""

from __future__ import annotations

PAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "open": (
        "Open and read",
        (
            "rustload.open", "rustload.Checkpoint", "rustload.Selection", "rustload.LazyTensor", "rustload.JoinedTensor",
            "rustload.concat", "rustload.stack", "rustload.Stream", "rustload.DType", "rustload.Part", "rustload.Quantization",
            "rustload.Scheme",
            "rustload.Buffer", "rustload.Ranges",
        ),
    ),
    "objects": (
        "Values beside tensors",
        ("rustload.Opaque", "rustload.OpaqueClass", "rustload.Global", "rustload.Sparse", "rustload.DefaultDict"),
    ),
    "write": (
        "Save and convert",
        ("rustload.save", "rustload.convert", "rustload.Writer", "rustload.SaveReport", "rustload.unflatten"),
    ),
    "scan": (
        "Scan",
        (
            "rustload.scan", "rustload.ScanReport", "rustload.FileReport", "rustload.Finding", "rustload.Policy",
            "rustload.Manifest", "rustload.Fault",
        ),
    ),
    "look": (
        "Look and compare",
        (
            "rustload.view", "rustload.diff", "rustload.DiffReport", "rustload.TensorDiff", "rustload.ValueDiff",
            "rustload.Statistics", "rustload.Histogram", "rustload.ExponentCount",
        ),
    ),
    "safe_open": ("safe_open", ("rustload.safe_open", "rustload.PySafeSlice", "rustload.TensorMeta")),
    "limits": (
        "Limits, memory, GPUs",
        ("rustload.Limits", "rustload.Memory", "rustload.memory", "rustload.trim", "rustload.cuda_info"),
    ),
    "errors": (
        "Errors",
        (
            "rustload.RustloadError", "rustload.FormatError", "rustload.UnsupportedError", "rustload.DisallowedError",
            "rustload.LimitError", "rustload.TensorNotFoundError", "rustload.ModelMismatchError", "rustload.DeviceError",
            "rustload.NotEnoughMemoryError", "rustload.SafetensorError", "rustload.InternalError", "rustload.RustloadWarning",
        ),
    ),
    "torch": (
        "rustload.torch",
        (
            "rustload.torch.load", "rustload.torch.load_into", "rustload.torch.state_dict", "rustload.torch.save_model",
            "rustload.torch.LoadReport", "rustload.torch.Mismatch", "rustload.torch.Converted", "rustload.torch.StateDict",
            "rustload.torch.TorchHandle",
        ),
    ),
    "distributed": (
        "rustload.torch.distributed",
        (
            "rustload.torch.distributed.Reader", "rustload.torch.distributed.Planner", "rustload.torch.distributed.Writer",
        ),
    ),
    "jax": ("rustload.jax", ("rustload.jax.load", "rustload.jax.unflatten")),
    "transformers": ("rustload.transformers", ("rustload.transformers.from_pretrained",)),
    "diffusers": ("rustload.diffusers", ("rustload.diffusers.from_pretrained",)),
    "peft": ("rustload.peft", ("rustload.peft.load_adapter",)),
    "lightning": ("rustload.lightning", ("rustload.lightning.RustloadCheckpointIO",)),
    "vllm": ("rustload.vllm", ("rustload.vllm.RustloadModelLoader",)),
    "sglang": ("rustload.sglang", ("rustload.sglang.RustloadModelLoader", "rustload.sglang.choose_loader")),
    "remote": ("rustload.remote", ("rustload.remote.fsspec", "rustload.remote.obstore")),
}  # fmt: skip
"""File name to title and names."""


def pages() -> dict[str, str]:
    """The Markdown of each page: mkdocstrings replaces the directives by signatures and docstrings."""
    found = {}
    for file, (title, names) in PAGES.items():
        found[f"api/{file}.md"] = f"# {title}\n\n" + "\n\n".join(f"::: {name}" for name in names) + "\n"
    return found
