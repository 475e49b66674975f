"""Requested, admitted, available, active: four different facts about the fused all-reduce and about the all-reduce
backend, each from where it can be known, never merged.

requested: the flags. admitted: SGLang's gates, or its log where it says so while it starts. available: FlashInfer's
kernels for this GPU. active: the kernels in a trace.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from breakeven import artifacts
from breakeven.hosts import LOCAL
from breakeven.telemetry.kernel_names import is_fused

COLUMNS = {
    "of": "of",
    "requested": "requested",
    "admitted": "admitted",
    "available": "available",
    "active": "active",
    "from": "known from",
}
ARM_COLUMNS = {"arm": "arm", **COLUMNS}
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
    (re.compile(r"^c10d::"), "Gloo"),  # an operator, not a kernel: only a CPU's trace counts those
)


def four_facts(
    command: Iterable[str],
    effective: Mapping[str, Any],
    gates: Mapping[str, Any] | None,
    log: Iterable[str],
    all_reduces: Mapping[str, Any] | None,
    fused: Iterable[str] | None,
) -> list[dict[str, str]]:
    """Two rows: fusion, and the all-reduce backend.

    ``gates`` is what ``gates.json`` holds, None where there is none; ``all_reduces`` is `traces.allreduce` of a trace
    and ``fused`` the names of its fused kernels, None where nothing was traced.
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


def of_arms(run_dir: Path, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The facts of every arm of a sweep that reduces on several GPUs, from the rows of ``cells.json``.

    Each from its first launch that was traced, else from its first; with what that server's log says.
    """
    gates_path = run_dir / "gates.json"
    gates = artifacts.read_json(gates_path) if gates_path.exists() else None
    found = []
    for arm in dict.fromkeys(row["arm"] for row in rows):
        mine = [row for row in rows if row["arm"] == arm and row["status"] == "ok"]
        row = next((each for each in mine if "allreduce" in each.get("profile", {})), mine[0] if mine else None)
        effective = (row or {}).get("effective", {})
        if row is None or int(effective.get("tp") or 1) < 2:
            continue
        profile, log = row.get("profile", {}), run_dir / "logs" / row["log"]
        lines = LOCAL.lines(log) if log.is_file() else iter(())
        facts = four_facts(row["command"], effective, gates, lines, profile.get("allreduce"), profile.get("fused"))
        found += [{"arm": arm, **fact} for fact in facts]
    return found


def backend_of(kernel: str) -> str:
    """Whose all-reduce a kernel is, by its name."""
    return next((name for pattern, name in _KERNELS if pattern.search(kernel)), "another")


def asks_for_fusion(command: Iterable[str]) -> bool:
    """Whether a server's flags ask for the fused all-reduce."""
    return _fusion_requested(list(command), {}).startswith("yes")


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


def _fusion_active(all_reduces: Mapping[str, Any] | None, fused: Iterable[str] | None) -> str:
    if all_reduces is None or fused is None:
        return "not traced"
    if names := sorted(set(fused)):
        runs = sum(runs for name, runs in all_reduces["kernels"].items() if is_fused(name))
        each = f"{runs / all_reduces['n']:g} of {all_reduces['count']:g} all-reduces of a target forward"
        return f"yes: {each}; {names[0][:80]}"
    if all_reduces["kernels"]:
        return f"no: {all_reduces['count']:g} other all-reduces in a target forward"
    return "no all-reduce in the trace"


def _backends_active(all_reduces: Mapping[str, Any] | None) -> str:
    if all_reduces is None:
        return "not traced"
    runs: Counter[str] = Counter()
    for name, count in all_reduces["kernels"].items():
        runs[backend_of(name)] += count
    each = (f"{backend}: {count / all_reduces['n']:g} per target forward" for backend, count in sorted(runs.items()))
    return ", ".join(each) or "no all-reduce in the trace"


def _trace(alone: bool, all_reduces: Mapping[str, Any] | None) -> str:
    return "no trace" if alone or all_reduces is None else "trace"
