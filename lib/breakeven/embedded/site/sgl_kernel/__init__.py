"""A stand-in for ``sgl_kernel`` on machines without CUDA: the CPU operations that SGLang needs for Llama models.

PyPI's sglang-kernel holds CUDA code only, and importing it without libcuda fails. SGLang imports the CPU operations by
name, some before its plugins load, so this folder's parent stands first on the server's PYTHONPATH
(``breakeven.embedded.engine.server_environment``). Everything works in plain PyTorch, without a
compiler or a build; where numba can compile them, kernels do the part that counts (``kernels.py``).

``convert_weight_packed`` stays absent on purpose: SGLang takes it as the sign of a full AMX build
(``sglang/srt/utils/common.py``, ``_is_intel_amx_backend_available``) and would then, on a CPU with AMX, want fused
layers that are not here. Without it those layers run as SGLang's own PyTorch fallbacks on every CPU.
"""

from collections.abc import Callable
from typing import Any

from .attention import decode_attention_cpu, extend_attention_cpu
from .cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
)
from .linear import weight_packed_linear
from .missing import explain, install_namespace, raising
from .tree import build_tree_kernel_efficient_cpu, reconstruct_indices_from_tree_mask, verify_tree_greedy_cpu

__version__ = "0.4.10"  # the sglang-kernel release whose place this takes; SGLang 0.5.23 pins it

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "reconstruct_indices_from_tree_mask",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
    "weight_packed_linear",
]

install_namespace(
    decode_attention_cpu=decode_attention_cpu,
    extend_attention_cpu=extend_attention_cpu,
    weight_packed_linear=weight_packed_linear,
)


def __getattr__(name: str) -> Callable[..., Any]:
    """Called for names that are not here.

    SGLang imports ``*_cpu`` names without a guard, for models that may never call them: those become functions that
    raise when called. Any other name is a CUDA operation that SGLang probes for (``hasattr``, ``try: import``), and a
    probe must see that it is absent.
    """
    if name.endswith("_cpu"):
        return raising(name)
    raise AttributeError(explain(name))
