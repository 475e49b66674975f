"""SGLang's plugin (entry-point group ``sglang.srt.plugins``): what has to change inside SGLang for the CPU engine.

SGLang loads it in each of its processes and in every server of this environment, so without the switch that
``engine.server_environment`` sets it does nothing. Its hooks change SGLang in memory; no file of it is touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

GROUP = "sglang.srt.plugins"
NAME = "breakeven_embedded"  # as in pyproject.toml
SWITCH = "BREAKEVEN_EMBEDDED_ENGINE"
FALLBACKS = "sglang.srt.arg_groups.overrides._attention_backend_platform_fallbacks"
GROUP_OF_RANKS = "sglang.srt.distributed.parallel_state.GroupCoordinator.__init__"
LOAD_MODEL = "sglang.srt.model_loader.loader.DefaultModelLoader.load_model"


def load() -> None:
    """Register the hooks of the embedded engine, where it was asked for."""
    if os.environ.get(SWITCH) != "1":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(FALLBACKS, keep_intel_amx, HookType.AROUND)
    HookRegistry.register(GROUP_OF_RANKS, without_gpu_communicators, HookType.AROUND)
    HookRegistry.register(LOAD_MODEL, get_ready, HookType.AFTER)


def keep_intel_amx(original: Callable[[Any], dict[str, Any]], view: Any) -> dict[str, Any]:
    """Around SGLang's platform fallbacks: ``intel_amx`` stays on a CPU without AMX.

    SGLang would swap it for ``torch_native``, which can't verify drafts; the stand-in's attention needs no AMX.
    ``view`` shows the server's arguments; the result holds the arguments to change.
    """
    if view.device == "cpu" and view.attention_backend == "intel_amx":
        return {}
    return original(view)


def without_gpu_communicators(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Around the set-up of a group of ranks: they reduce through Gloo alone.

    SGLang would build a communicator of NCCL wherever that is installed, which its own CUDA wheels bring along, and
    fail on a CPU.
    """
    original(*args, **{**kwargs, "use_pynccl": False, "use_custom_allreduce": False})


def get_ready(model: Any, *_args: Any, **_kwargs: Any) -> None:
    """After a model is loaded: have the kernels compiled, and lay out linear layers and head for oneDNN."""
    from sgl_kernel.compiled import prepare
    from sgl_kernel.linear import pack
    from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod

    prepare(next(model.parameters()).dtype)
    for layer in model.modules():
        if isinstance(getattr(layer, "quant_method", None), UnquantizedLinearMethod):
            pack(layer)
    if hasattr(model, "lm_head"):
        pack(model.lm_head)
