"""Requested, admitted, available, active: four different facts about the fused all-reduce and about the all-reduce
backend, each from where it can be known, never merged.

requested: the flags. admitted: SGLang's gates, or its log where it says so while it starts. available: FlashInfer's
kernels for this GPU. active: the kernels in a trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

COLUMNS = {
    "of": "of",
    "requested": "requested",
    "admitted": "admitted",
    "available": "available",
    "active": "active",
    "from": "known from",
}
NOT_USED = "not used: one GPU has nothing to reduce"

_FUSION_ON = re.compile(r"flashinfer all-?reduce fusion enabled|workspace initialized", re.IGNORECASE)
_FUSION_OFF = re.compile(
    r"flashinfer all-?reduce fusion (is )?(forcibly )?disabled|all-?reduce fusion.*(not available|requires|skip)",
    re.IGNORECASE,
)
_BACKEND_SAID = re.compile(r"All-reduce call path: ([^(\n]+)|\[AR\] Using (\w+)")
_CUSTOM_OFF = re.compile(r"custom all-?reduce .{0,20}(is )?disabled( because| due to)?.{0,160}", re.IGNORECASE)
_PCIE_ON = re.compile(r"PCIe-IPC all-?reduce enabled", re.IGNORECASE)
_BACKEND_FLAGS = {
    "--disable-custom-all-reduce": "NCCL (custom off)",
    "--enable-mscclpp": "MSCCL++",
    "--enable-torch-symm-mem": "torch symmetric memory",
    "--enable-symm-mem": "NCCL symmetric memory",
    "--enable-nccl-nvls": "NCCL with NVLS",
}
_KERNELS = (
    (re.compile(r"all_?reduce_?fusion|lamport", re.IGNORECASE), "FlashInfer"),
    (re.compile(r"pcie_ipc|ipc_(tp2|rsag|topo)", re.IGNORECASE), "FlashInfer PCIe IPC"),
    (re.compile(r"cross_device_reduce|custom_?all_?reduce|all_?reduce_?push|push_oneshot", re.IGNORECASE), "custom"),
    (re.compile(r"multimem", re.IGNORECASE), "symmetric memory"),
    (re.compile(r"mscclpp", re.IGNORECASE), "MSCCL++"),
    (re.compile(r"quick_?reduce", re.IGNORECASE), "quick"),
    (re.compile(r"nccl", re.IGNORECASE), "NCCL"),
)


def four_facts(
    command: Iterable[str],
    effective: Mapping[str, Any],
    gates: Mapping[str, Any] | None,
    log: Iterable[str],
    all_reduces: Iterable[str] | None,
    fused: Iterable[str] | None,
) -> list[dict[str, str]]:
    """Two rows: fusion, and the all-reduce backend.

    ``gates`` is what ``gates.json`` holds, None where there is none; ``all_reduces`` and ``fused`` are the names of
    such kernels in a trace, None where nothing was traced.
    """
    arguments = list(command)
    admitted_by_log, backend_by_log = _from_log(log)
    alone = int(effective.get("tp") or 1) < 2
    gates = gates or {}
    context = f"gates of {gates['arch']}" if gates.get("arch") else "no gates.json"
    fusion = {
        "of": "fused all-reduce",
        "requested": _fusion_requested(arguments, effective),
        "admitted": admitted_by_log or str(gates.get("admitted", "not known")),
        "available": str(gates.get("available", "not known")),
        "active": NOT_USED if alone else _fusion_active(all_reduces, fused),
        "from": "; ".join(["flags", *(["server log"] if admitted_by_log else []), context, _trace(alone, all_reduces)]),
    }
    backend = {
        "of": "all-reduce backend",
        "requested": next((text for flag, text in _BACKEND_FLAGS.items() if flag in arguments), "SGLang's choice"),
        "admitted": NOT_USED if alone else backend_by_log or "not said in the log",
        "available": NOT_USED if alone else "see peer access in the preflight",
        "active": NOT_USED if alone else _backends_active(all_reduces),
        "from": f"flags; server log; preflight; {_trace(alone, all_reduces)}",
    }
    return [fusion, backend]


def backend_of(kernel: str) -> str:
    """Whose all-reduce a kernel is, by its name."""
    return next((name for pattern, name in _KERNELS if pattern.search(kernel)), "another")


def _fusion_requested(arguments: list[str], effective: Mapping[str, Any]) -> str:
    if "--enforce-disable-flashinfer-allreduce-fusion" in arguments:
        return "off"
    flag = "--flashinfer-allreduce-fusion-backend"
    if flag in arguments:
        return f"yes: {arguments[arguments.index(flag) + 1]}"
    if "--enable-flashinfer-allreduce-fusion" in arguments:
        return "yes"
    by_itself = effective.get("fusion_backend") or effective.get("fusion_requested")
    return f"by SGLang itself: {by_itself}" if by_itself else "no"


def _from_log(lines: Iterable[str]) -> tuple[str | None, str | None]:
    """What the server said while it started: whether fusion is on, and which backend reduces."""
    fusion = backend = None
    for line in lines:
        if _FUSION_ON.search(line):
            fusion = "yes"
        elif _FUSION_OFF.search(line):
            fusion = f"no: {_message(line)}"
        if said := _BACKEND_SAID.search(line):
            backend = (said[1] or said[2]).strip()
        elif _PCIE_ON.search(line):
            backend = "FlashInfer PCIe IPC"
        elif (off := _CUSTOM_OFF.search(line)) and backend is None:
            backend = f"NCCL: {off[0].strip()}"
    return fusion, backend


def _message(line: str) -> str:
    """The line without its time stamp, no longer than a table takes."""
    return re.sub(r"^\[[^\]]*\]\s*", "", line).strip()[:200]


def _fusion_active(all_reduces: Iterable[str] | None, fused: Iterable[str] | None) -> str:
    if all_reduces is None or fused is None:
        return "not traced"
    names = sorted(set(fused))
    if names:
        return f"yes: {names[0][:80]}"
    return "no: other all-reduces ran" if list(all_reduces) else "no all-reduce in the trace"


def _backends_active(all_reduces: Iterable[str] | None) -> str:
    if all_reduces is None:
        return "not traced"
    return ", ".join(sorted({backend_of(name) for name in all_reduces})) or "no all-reduce in the trace"


def _trace(alone: bool, all_reduces: Iterable[str] | None) -> str:
    return "no trace" if alone or all_reduces is None else "trace"
