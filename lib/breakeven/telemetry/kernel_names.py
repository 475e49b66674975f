"""What a kernel or operator does, by its name: FlashInfer's, SGLang's, NCCL's, cuBLAS's and torch's."""

from __future__ import annotations

import functools
import re

_ALLREDUCE = re.compile(
    r"all_?reduce|cross_device_reduce|multimem\w*reduce|quick_?reduce|pcie_ipc|ipc_(tp2|rsag|topo)|push_oneshot", re.I
)
_FUSED = re.compile(r"all_?reduce_?fusion|all_?reduce\w*(rms|norm)|(rms|norm)\w*lamport", re.I)
# the fusion kernel asked for a plain all-reduce: its pattern is 0, or its third parameter, the norm, is false; and what
# only clears its buffers
_UNFUSED = re.compile(
    r"lamport_initialize|AllReduceFusionPattern(\)?\s*0\b|E0E|::kAllReduce\b)"
    r"|oneshotAllreduceFusionKernel(<[^,]+,[^,]+,\s*(\(bool\)\s*)?(false|0)\b|ILh\d+E((?!Lb).)+Lb0E)"
)
_MLA = r"(?-i:mla|MLA|Mla)"  # not SmemLayout
_ATTENTION = re.compile(rf"attention|attn|fmha|\bmha|{_MLA}|_fwd_|paged_?kv|ragged_?kv|flash_fwd", re.I)
_MATMUL = re.compile(
    r"gemm|nvjet|cutlass|cublas|splitk(?!v)|matmul|::(add)?mm\b|::bmm\b|\bbmm_|::_?linear|wgmma|gemv|fused_moe_kernel"
    r"|marlin",
    re.I,
)
_SURELY_ATTENTION = re.compile(rf"attention|attn|fmha|flash_fwd|{_MLA}", re.I)
_NOT_ATTENTION = re.compile(r"norm|rope|sampling|topk", re.I)  # FlashInfer's namespace is in all its kernels' names


@functools.cache  # a trace has thousands of kernels and tens of names
def work_kind(name: str) -> str:
    """allreduce, attention, matmul or rest."""
    if _ALLREDUCE.search(name) or _FUSED.search(name):
        return "allreduce"
    if _MATMUL.search(name) and not _SURELY_ATTENTION.search(name):
        return "matmul"
    if _ATTENTION.search(name) and not _NOT_ATTENTION.search(name):
        return "attention"
    return "rest"


def is_fused(name: str) -> bool:
    """Whether this is an all-reduce and a norm in one kernel."""
    return bool(_FUSED.search(name)) and not _UNFUSED.search(name)
