"""Break-even of recorded figures: what follows from the figures that a table gives, what is missing, what contradicts.

`analyze` takes one row and `analyze_csv` a file; both apply the same arithmetic (`formulas`) and the same scrutiny
(`audit`) as measured figures get. Nothing is filled in silently: a value that was assumed or derived is marked so in
the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from breakeven.artifacts import SCHEMA_VERSION
from breakeven.costs import audit, baselines, readings
from breakeven.costs.figures import Figures, read_csv
from breakeven.costs.formulas import (
    accept_length,
    baseline_step_ms,
    break_even_accept_length,
    cycle_ms,
    spec_tok_s,
    speedup,
)
from breakeven.costs.readings import EXACT, TIE_BAND, possible_length

# --- one row --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Derived:
    """What follows from the figures. ``*_source``: given | implied | lower-bound | None."""

    batch: float
    accept_length: float | None
    accept_length_source: str | None
    cycle_ms: float | None
    cycle_source: str | None
    step_ms: float | None
    spec_tok_s: float | None
    break_even: float | None
    speedup: float | None
    speedup_by_cycle: float | None  # from accept length and the cycle that was given, where both exist


def analyze(figures: Figures) -> dict[str, Any]:
    """One row of `breakeven analyze`: results (None where the figures do not carry them), verdict, needs, warnings."""
    findings, given = audit.examine(figures), figures.given
    read = readings.as_meant(figures)
    figures = read.figures
    derived = derive(figures)
    verdict, because = judge(figures, derived)
    needs, needs_text = missing(figures, derived, verdict)
    margin = (
        derived.accept_length - derived.break_even
        if derived.accept_length is not None
        and derived.break_even is not None
        and derived.cycle_source != "lower-bound"
        and possible_length(derived.accept_length, figures.draft_tokens)
        else None
    )
    return {
        "id": figures.id,
        "evidence": "reported",
        "batch": derived.batch,
        "accept_length": derived.accept_length,
        "accept_length_source": derived.accept_length_source,
        "spec_tok_s": derived.spec_tok_s,
        "cycle_ms": derived.cycle_ms,
        "cycle_source": derived.cycle_source,
        "baseline_step_ms": derived.step_ms,
        "not_verify_ms": _not_verify(figures, derived),
        "rate_over_implied": _rate_over_implied(figures),
        "break_even_accept_length": derived.break_even,
        "break_even_over_accept_length": 1 / derived.speedup if derived.speedup else None,
        "margin": margin,
        "speedup": derived.speedup,
        "verdict": verdict,
        "because": because,
        "needs": needs,
        "needs_text": needs_text,
        "warnings": [finding.as_dict() for finding in findings],
        "assumptions": read.assumptions,
        "left_out": read.left_out,
        "given": given,
        "notes": dict(figures.notes),
    }


def derive(figures: Figures) -> Derived:
    """Everything that follows from the given figures by identities alone.

    A given cycle goes before an implied one (it is the one that was measured on its own); draft and verify alone are
    only a lower bound of the cycle. A speed-up of two given rates goes before one by accept length and cycle.
    """
    batch = figures.batch or 1.0
    length, rate, cycle = figures.accept_length or None, figures.spec_tok_s, figures.cycle_ms
    length_source, cycle_source = ("given" if length else None), ("given" if cycle else None)
    if cycle is None and length and rate:
        cycle, cycle_source = cycle_ms(batch, length, rate), "implied"
    elif length is None and cycle and rate:
        length, length_source = accept_length(batch, rate, cycle), "implied"
    elif rate is None and cycle and length and possible_length(length, figures.draft_tokens):
        rate = spec_tok_s(batch, length, cycle)
    if cycle is None and figures.verify_ms:
        cycle, cycle_source = figures.verify_ms + (figures.draft_ms or 0.0), "lower-bound"

    step = baseline_step_ms(batch, figures.base_tok_s) if figures.base_tok_s else None
    by_cycle = None
    if step and length_source == "given" and cycle_source == "given" and possible_length(length, figures.draft_tokens):
        assert length is not None and cycle is not None
        by_cycle = speedup(length, cycle, step)
    return Derived(
        batch=batch,
        accept_length=length,
        accept_length_source=length_source,
        cycle_ms=cycle,
        cycle_source=cycle_source,
        step_ms=step,
        spec_tok_s=rate,
        break_even=break_even_accept_length(cycle, step) if cycle and step else None,
        speedup=rate / figures.base_tok_s if rate and figures.base_tok_s else None,
        speedup_by_cycle=by_cycle,
    )


def verdict_of(speedup: float) -> str:
    """pays | does-not-pay | not-distinguishable by the tie band alone (no interval known)."""
    if abs(speedup - 1) <= TIE_BAND + EXACT:
        return "not-distinguishable"
    return "pays" if speedup > 1 else "does-not-pay"


def judge(figures: Figures, derived: Derived) -> tuple[str, str]:
    """The verdict and the sentence it rests on."""
    if derived.speedup is not None:
        verdict = verdict_of(derived.speedup)
        if derived.speedup_by_cycle is not None and {verdict, verdict_of(derived.speedup_by_cycle)} == {
            "pays",
            "does-not-pay",
        }:
            return "needs-more", (
                f"the rates say {derived.speedup:.3g}, accept length and cycle say {derived.speedup_by_cycle:.3g}: "
                f"they are not of one run"
            )
        source = "the two rates" if figures.spec_tok_s else "accept length and cycle"
        return verdict, f"speed-up {derived.speedup:.3g} by {source}; within {TIE_BAND:.0%} of 1 is called a tie"
    if derived.break_even is not None:
        most = derived.accept_length if possible_length(derived.accept_length, figures.draft_tokens) else None
        if most is None and figures.draft_tokens is not None:
            most = figures.draft_tokens + 1
        if most is not None and verdict_of(most / derived.break_even) == "does-not-pay":
            at_least = "at least " if derived.cycle_source == "lower-bound" else ""
            return "does-not-pay", f"AL* is {at_least}{derived.break_even:.3g} and the accept length at most {most:.3g}"
    return "needs-more", "the figures do not carry a comparison"


def missing(figures: Figures, derived: Derived, verdict: str) -> tuple[list[str], str | None]:
    """The fewest columns that would complete the row, and the same as a sentence with the alternatives."""
    needs, texts = [], []
    length = derived.accept_length if figures.accept_length is None else figures.accept_length
    impossible = length is not None and not possible_length(length, figures.draft_tokens)
    if figures.base_tok_s is None:
        needs.append("base_tok_s")
        texts.append("base_tok_s, from the same server and workload without speculation")
    if verdict == "needs-more" and derived.speedup is not None:
        needs += ["spec_tok_s", "accept_length", "cycle_ms"]
        texts.append("spec_tok_s, accept_length and cycle_ms of one run, since the given ones contradict each other")
    elif (
        figures.spec_tok_s is None and (figures.accept_length is None or impossible) and derived.cycle_source == "given"
    ):
        needs.append("accept_length")
        texts.append("accept_length (or spec_tok_s)")
    elif derived.spec_tok_s is None and figures.accept_length is not None and not impossible:
        needs.append("spec_tok_s")
        texts.append("spec_tok_s (or cycle_ms)")
    elif derived.spec_tok_s is None:
        needs += ["spec_tok_s", "accept_length"]
        texts.append("spec_tok_s for the verdict and accept_length for the break-even")
    elif derived.cycle_source in (None, "lower-bound"):
        needs.append("accept_length")
        texts.append("accept_length (or cycle_ms) for the break-even; without it the answer is relative only")
    if impossible and "accept_length" not in needs:
        needs.append("accept_length")
        texts.append(f"accept_length again: {length:.4g} can't be one")
    return needs, "; ".join(texts) or None


def _rate_over_implied(figures: Figures) -> float | None:
    """The given rate over the one that accept length and the time given for the cycle (or verify) imply, less 1."""
    seen = figures.cycle_ms or figures.verify_ms
    if not seen or not figures.accept_length or figures.spec_tok_s is None:
        return None
    return figures.spec_tok_s / spec_tok_s(figures.batch or 1.0, figures.accept_length, seen) - 1


def _not_verify(figures: Figures, derived: Derived) -> float | None:
    if figures.verify_ms is None or derived.cycle_ms is None or derived.cycle_source == "lower-bound":
        return None
    return derived.cycle_ms - figures.verify_ms


def used_ms(row: Mapping[str, Any], column: str) -> float | None:
    """A time of an analysed row as it was given; None where it was not, or was left out (`readings.as_meant`)."""
    return None if column in row["left_out"] else row["given"].get(column)


# --- a file ---------------------------------------------------------------------------------------------------------


def analyze_csv(path: str | Path) -> dict[str, Any]:
    """Break-even of every row of a CSV file: ``{"schema_version": 1, "rows": [...], "other_columns": [...]}``.

    Columns: `COLUMNS`, in any order; all but id may be absent or empty. Other columns are carried verbatim under
    ``notes``; of them only source, base_source, hardware, model and tp are read, for the audit. Raises UserError (file,
    line, column) for a file that is no such table.
    """
    rows, others = read_csv(path)
    together = baselines.examine_together(rows)
    results = []
    for figures in rows:
        result = analyze(figures)
        result["warnings"] += [finding.as_dict() for finding in together.get(figures.id, [])]
        results.append(result)
    return {"schema_version": SCHEMA_VERSION, "rows": results, "other_columns": others}
