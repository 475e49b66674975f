"""What a kernel or operator does, by its name: FlashInfer's, SGLang's, NCCL's, cuBLAS's and torch's."""

from __future__ import annotations

import re

_ALLREDUCE = re.compile(
    r"all_?reduce|cross_device_reduce|multimem\w*reduce|quick_?reduce|pcie_ipc|ipc_(tp2|rsag|topo)|push_oneshot", re.I
)
_FUSED = re.compile(r"all_?reduce_?fusion|all_?reduce\w*(rms|norm)|(rms|norm)\w*lamport", re.I)
_UNFUSED_PATTERN = re.compile(r"AllReduceFusionPattern\)?\s*0\b")  # the fusion kernel asked for a plain all-reduce
_ATTENTION = re.compile(r"attention|attn|fmha|\bmha|mla|_fwd_|paged_?kv|ragged_?kv|flash_fwd", re.I)
_MATMUL = re.compile(r"gemm|nvjet|cutlass|cublas|splitk|matmul|::(add)?mm\b|::bmm\b|::_?linear|wgmma|gemv", re.I)
_SURELY_ATTENTION = re.compile(r"attention|attn|fmha", re.I)
_NOT_ATTENTION = re.compile(r"norm|rope|sampling|topk", re.I)  # FlashInfer's namespace is in all its kernels' names


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
    return bool(_FUSED.search(name)) and not _UNFUSED_PATTERN.search(name)
