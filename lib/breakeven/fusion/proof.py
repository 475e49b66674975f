"""Proof that the change took, graded by what it rests on: source, import, compiler, trace. None stands for another.

Each function returns one row: ``grade``, ``proven`` (True, False, or None: not tried), ``result`` (the same in words),
``detail`` (why, in words), ``because`` (the parts of it), and what belongs to the grade.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from breakeven.errors import UserError
from breakeven.fusion import imported_probe
from breakeven.fusion.grades import graded
from breakeven.fusion.record import RECORD_NAME
from breakeven.gates.archs import capability

# Kernel names as the profiler writes them, from FlashInfer's trtllm_allreduce_fusion.cuh (read in 0.6.1 to 0.7.2) and
# trtllm_mnnvl_allreduce.cuh (0.6.16 to 0.7.2). The same kernels do a plain all-reduce, with pattern 0 or with the norm
# switched off: that is not fusion.
FUSED_KERNELS = {
    "trtllm": re.compile(
        r"allreduce_fusion_kernel_(?:oneshot_lamport|twoshot_sync)<\(flashinfer::[\w:]*AllReduceFusionPattern\)[1-9]"
    ),
    "mnnvl": re.compile(r"oneshotAllreduceFusionKernel<\(unsigned char\)\d+, \w+, true|rmsNormLamport<"),
}
ALL_REDUCE = re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE)
IMPORT_TIMEOUT_S = 600


def prove_imported(
    overlay: Path, arch: str, *, pythonpath: Sequence[Path] = (), python: str = sys.executable
) -> dict[str, Any]:
    """Import the overlay's modules in a fresh process and ask their gates for ``arch``.

    The GPU is pretended at torch's level, so this runs without one. ``pythonpath`` names folders that the server has on
    its PYTHONPATH beside the overlay (a stand-in for a package that needs CUDA). Raises UserError for no overlay.
    """
    if not (overlay / RECORD_NAME).is_file():
        raise UserError(f"{overlay} is no overlay: it has no {RECORD_NAME}")
    major, minor = capability(arch)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, [overlay, *pythonpath]))}
    command = [python, imported_probe.__file__, str(overlay / RECORD_NAME), str(major), str(minor)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=IMPORT_TIMEOUT_S)
    if done.returncode:
        return graded("imported", False, done.stderr.strip().splitlines()[-3:])
    found = json.loads(done.stdout.strip().splitlines()[-1])
    strangers = [f"{name} came from {file}" for name, file in found["imported"].items() if not _inside(file, overlay)]
    closed = [f"for {arch}, {_said(one)}" for one in found["admitted"] if not one["answer"]]
    too_wide = [f"for capability 8.9 too, {_said(one)}" for one in found["control"] if one["answer"]]
    reasons = strangers + closed + too_wide + ([] if found["admitted"] else ["no gate could be asked"])
    good = [f"for {arch}, {_said(one)}" for one in found["admitted"]]
    return graded("imported", not reasons, reasons or good, **found)


def prove_active(trace: Path) -> dict[str, Any]:
    """Look for the fused kernels in a trace of the server (Kineto's JSON, gzipped or not).

    Counts kernel launches: of the fused kernels by backend, and of every other all-reduce beside them. Raises UserError
    for a file that is no such trace.
    """
    kernels = Counter(
        str(event.get("name", ""))
        for event in _events(trace)
        if isinstance(event, dict) and event.get("cat") == "kernel"
    )
    if not kernels:
        return graded("active", None, [f"{trace} records no GPU kernels"])
    fused = {
        backend: sum(count for name, count in kernels.items() if pattern.search(name))
        for backend, pattern in FUSED_KERNELS.items()
    }
    fused = {backend: count for backend, count in fused.items() if count}
    other = {
        name: count
        for name, count in kernels.most_common()
        if ALL_REDUCE.search(name) and not any(pattern.search(name) for pattern in FUSED_KERNELS.values())
    }
    because = [f"the fused kernel of {backend} was launched {count} times" for backend, count in fused.items()]
    because = because or [f"none of {sum(kernels.values())} kernel launches is a fused one"]
    return graded("active", bool(fused), because, fused=fused, other_all_reduces=other)


def _events(trace: Path) -> list[Any]:
    try:
        content = trace.read_bytes()
        text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        events = json.loads(text)["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{trace} is no profiler trace: {error or type(error).__name__}") from None
    if not isinstance(events, list):
        raise UserError(f"{trace} is no profiler trace: its traceEvents are no list")
    return events


def _inside(file: str, folder: Path) -> bool:
    return Path(file).resolve().is_relative_to(folder.resolve())


def _said(answer: dict[str, Any]) -> str:
    """``_resolve_backend('auto') is 'trtllm'``."""
    return f"`{answer['asked']}` " + (f"raised {answer['raised']}" if answer["raised"] else f"is {answer['answer']!r}")
