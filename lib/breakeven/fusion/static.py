"""Proof on paper: the changed source read again, for every architecture, and compared with the source as it was."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from breakeven.errors import UserError
from breakeven.fusion.grades import graded
from breakeven.fusion.record import ChangedFile
from breakeven.sources import Source

Reading = dict[str, dict[str, Any]]
"""By architecture, what the gate reader says of one source."""

READ_APART = """
import json, sys
from breakeven import gates
from breakeven.errors import UserError
try:
    print(json.dumps(gates.read_gates(*json.loads(sys.argv[1]))))
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


def prove_static(before: Reading, after: Reading, admits: Collection[str], *, forced: bool = False) -> dict[str, Any]:
    """Compare two readings of the gates, by architecture: the admitted ones run now, nothing else moved.

    ``forced``: where FlashInfer has no kernel, an admitted architecture is expected to be let through by SGLang alone.
    """
    reasons = []
    for arch in before:
        old, new = before[arch], after[arch]
        if arch not in admits:
            moved = [key for key in ("verdict", "admitted", "auto_enabled", "backend") if old[key] != new[key]]
            reasons += [f"{arch}: {key} went from {old[key]} to {new[key]}" for key in moved]
        elif not (new["verdict"] == "runs" or (forced and new["admitted"] == "yes")):
            reasons.append(f"{arch}: the verdict is {new['verdict']}, admitted {new['admitted']}")
    moved_to = [f"{arch}: {before[arch]['verdict']} to {after[arch]['verdict']}" for arch in before if arch in admits]
    good = [*moved_to, f"as before on {', '.join(arch for arch in before if arch not in admits)}"]
    return graded("static", not reasons, reasons or good)


def read_all(archs: list[str], trees: list[str], flashinfer: str | None) -> list[Reading]:
    """Read the gates of each tree for each architecture, on as many processors as there are.

    In processes of their own, started like commands: this works from a notebook and from any script. Raises UserError.
    """
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        asked = [[threads.submit(_read_apart, arch, tree, flashinfer) for arch in archs] for tree in trees]
        return [{arch: one.result() for arch, one in zip(archs, row, strict=True)} for row in asked]


def _read_apart(arch: str, tree: str, flashinfer: str | None) -> dict[str, Any]:
    command = [sys.executable, "-c", READ_APART, json.dumps([arch, tree, flashinfer])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 2:
        raise UserError(done.stderr.strip())
    if done.returncode:
        raise RuntimeError(f"reading the gates of {tree} for {arch} failed:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def changed_copy(source: Source, changed: list[ChangedFile], copy: Path) -> Path:
    """The source with the changed files in it, as far as reading the gates needs it."""
    for file in _files_to_read(source):
        target = copy / file.relative_to(source.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        _link_or_copy(file, target)
    for change in changed:
        (copy / change.file).unlink()  # first: it may be a link to the original
        (copy / change.file).write_bytes(change.after)
    return copy


def _files_to_read(source: Source) -> Iterable[Path]:
    yield from source.folder.rglob("*.py")
    yield from source.root.glob("sglang-*.dist-info/METADATA")
    yield from (file for name in ("pyproject.toml", "PKG-INFO") if (file := source.root / name).is_file())


def _link_or_copy(file: Path, target: Path) -> None:
    try:
        os.link(file, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(file, target)
