"""vLLM's entry point (group `vllm.general_plugins`): registers the load format `rustload`.

vLLM calls `register` in each of its processes, whatever load format they use. An error here would keep vLLM from starting, so
a version of vLLM with another interface is logged, and nothing else.
"""

from __future__ import annotations

import sys

_is_registered = False


def register() -> None:
    """Registers the load format, once per process. Does nothing in a `vllm` command that does not use it."""
    global _is_registered
    if _is_registered or not _is_asked_for(sys.argv):
        return
    try:
        from vllm.model_executor.model_loader import register_model_loader

        from rustload.vllm import RustloadModelLoader

        register_model_loader("rustload")(RustloadModelLoader)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        import logging

        # vllm-ascend raises a ValueError in register_model_loader.
        logging.getLogger("vllm.rustload").warning("--load-format rustload is not available: %s", error)
    else:
        _is_registered = True


def _is_asked_for(argv: list[str]) -> bool:
    """Whether this process may use the load format. False only for a `vllm` command whose arguments cannot ask for it.

    vLLM's loaders take a second to import, which a front end can do without. Processes that vLLM spawns have the arguments of
    their parent.
    """
    program = argv[0].replace("\\", "/") if argv else ""
    is_command = program.endswith("/vllm") or "/vllm/entrypoints/" in program
    return not is_command or any("rustload" in one.lower() or one.startswith("--config") for one in argv[1:])
