"""One line of the table of failures, and the advice that is not a rule's own."""

from __future__ import annotations

import re
from dataclasses import dataclass

CAUSE, ERROR, SYMPTOM, CONSEQUENCE = 4, 3, 2, 1


@dataclass(frozen=True)
class Rule:
    """One line of the table. ``advice`` may hold ``{flag}`` fields, filled in for the release at hand."""

    cls: str
    level: int
    pattern: re.Pattern[str]
    advice: str


def rule(cls: str, level: int, pattern: str, advice: str) -> Rule:
    return Rule(cls, level, re.compile(pattern), advice)


GRAPH_MEMORY = (
    "Lower the CUDA-graph batch sizes first ({graph_max}): draft tokens x batch is what grew; "
    "then fewer draft tokens, then a smaller --mem-fraction-static. Turning graphs off is the last resort."
)
PHASE_ADVICE = {  # for oom-at-*, by phase
    "load": "The weights and the pool do not fit: more GPUs (--tp), a smaller or quantised model or drafter, a smaller "
    "--mem-fraction-static; check with nvidia-smi that nothing else holds the GPU.",
    "capture": GRAPH_MEMORY,
    "run": "It fitted idle and not under load: lower --mem-fraction-static, --chunked-prefill-size or "
    "--max-running-requests.",
}
HOST_MEMORY = (
    "Host memory (RAM, a cgroup or ulimit), not GPU memory: raise the limit of the process or container, "
    "or load with fewer ranks on this host."
)
NCCL_ADVICE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r"shm|shared memory|no space left|posix_fallocate", re.IGNORECASE),
        "NCCL ran out of shared memory: start the container with --shm-size 32g or --ipc=host.",
    ),
    (
        re.compile(r"socket|connect|ifname|bootstrap|ibv_|net/|timed out", re.IGNORECASE),
        "NCCL can't reach a peer: NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE=1 for a try, firewall, --dist-init-addr.",
    ),
    (
        re.compile(r"peer|p2p|ipc", re.IGNORECASE),
        "GPU peer access failed: NCCL_P2P_DISABLE=1 for a try, IOMMU/ACS settings, nvidia-smi topo -p2p r.",
    ),
)
NCCL_DEFAULT_ADVICE = (
    "The first NCCL WARN of any rank is the cause, the failing call is not: run with NCCL_DEBUG=WARN, then "
    "NCCL_P2P_DISABLE=1, then a run without graphs ({graph_off}) to see the error where it happens."
)
UNKNOWN_ADVICE = (
    "No known class: the text is the last error of the log. Read upwards from its line; other ranks may say more."
)
DRAFTER_ADVICE = (
    "No draft is ever accepted: the drafter is of another kind than the algorithm. If the draft's architectures entry "
    "contains Eagle3, use EAGLE3; check that it was trained for this target."
)


def flags(version: tuple[int, ...] | None) -> dict[str, str]:
    """The spellings of this release for the advice; both spellings when the release is unknown."""
    old_max, new_max = "--cuda-graph-max-bs", "--cuda-graph-max-bs-decode"
    old_off, new_off = "--disable-cuda-graph", "--cuda-graph-backend-decode disabled"
    no_flag = "leave out --enable-flashinfer-allreduce-fusion"
    enforce = "--enforce-disable-flashinfer-allreduce-fusion switches it off"
    if version is None:
        return {
            "graph_max": f"{old_max}, from 0.5.14 {new_max}",
            "graph_off": f"{old_off}, from 0.5.14 {new_off}",
            "fusion_off": f"{enforce} from 0.5.10, before that {no_flag}",
        }
    renamed = version >= (0, 5, 14)
    return {
        "graph_max": new_max if renamed else old_max,
        "graph_off": new_off if renamed else old_off,
        "fusion_off": enforce if version >= (0, 5, 10) else f"{no_flag} (a release that enables it by itself: upgrade)",
    }
