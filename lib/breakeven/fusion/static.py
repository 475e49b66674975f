"""Proof on paper: the changed source read again, for every architecture, and compared with the source as it was."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from breakeven import gates
from breakeven.fusion.grades import graded

Verdicts = dict[str, dict[str, Any]]
"""By architecture, what the gate reader says of one source."""


def prove_static(before: Verdicts, after: Verdicts, admits: Collection[str], *, forced: bool = False) -> dict[str, Any]:
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


def judge_all(reading: gates.Reading, archs: Iterable[str], known: Verdicts | None = None) -> Verdicts:
    """The verdict of one source for each architecture, from one parse, but for those known. Raises UserError."""
    return {arch: (known or {}).get(arch) or reading.judge(gates.make_context(arch)) for arch in archs}
