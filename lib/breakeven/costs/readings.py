"""How recorded figures may be meant: tokens of one stream or of all, milliseconds or another unit.

`as_meant` takes for granted only what a single reading fits. Where two fit, a figure stays as it was given (a cycle
that fits rates and accept length with a factor alone is left out), and the audit tells both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from breakeven.costs import formulas
from breakeven.costs.figures import Figures

TIE_BAND = 0.03
"""Relative difference that two figures from the field may show and still mean the same: 3 %, unless an interval is
known."""

EXACT = 1e-9
"""Slack for comparisons that are meant literally, so that rounding in the last bit decides nothing."""

LONGEST_CHAIN = 16
"""No public drafter emits more than this many tokens per verify and stream; more is a total over several streams."""

USUAL_LENGTH = 6
"""Public reports on ordinary text stay below it; beside several streams a longer one may be their total."""

COSTLIEST_CYCLE = 100
"""In baseline steps: no cycle is longer, whatever the drafter."""


@dataclass(frozen=True)
class Reading:
    """``figures`` as they are computed with; ``assumptions`` in words; why a time was left out, by column: ``units``
    (its value is that of seconds or microseconds) or ``batch_fold`` (it fits with a factor of the batch alone)."""

    figures: Figures
    assumptions: list[str]
    units: Mapping[str, str]
    batch_fold: bool

    @property
    def left_out(self) -> list[str]:
        return sorted({*self.units, *(["cycle_ms"] if self.batch_fold else [])})


def as_meant(given: Figures) -> Reading:
    """The figures to compute with; see the module."""
    figures, assumptions = given, []
    if figures.batch is None:
        assumptions.append("batch is empty: one stream is assumed, and rates are taken as those of one stream")
    if _only_a_total(figures):
        assert figures.accept_length is not None and figures.batch is not None
        figures = replace(figures, accept_length=figures.accept_length / figures.batch)
        assumptions.append("accept_length is read as the total over the batch")
    units = dict(_other_units(figures))
    without: dict[str, Any] = dict.fromkeys(units)
    figures = replace(figures, **without)
    assumptions += [f"{column} is left out: its value is that of {unit}" for column, unit in units.items()]
    batch_fold = figures.cycle_ms is not None and _fits_with_the_batch(figures, figures.cycle_ms)
    if batch_fold:
        figures = replace(figures, cycle_ms=None)
        assumptions.append("cycle_ms is left out: it fits rates and accept length with a factor of the batch alone")
    return Reading(figures, assumptions, units, batch_fold)


def possible_length(length: float | None, draft_tokens: float | None) -> bool:
    """Whether a verify of one stream can emit so many tokens: at least the bonus, at most every draft and the bonus."""
    return (
        length is not None
        and length >= 1 - EXACT
        and (draft_tokens is None or length <= (draft_tokens + 1) * (1 + EXACT))
    )


def may_be_total(figures: Figures) -> bool:
    """Whether the accept length could be the tokens of all streams together: at least one each, not too many each."""
    batch, length = figures.batch or 1.0, figures.accept_length
    if batch < 2 or length is None:
        return False
    return possible_length(length / batch, figures.draft_tokens or LONGEST_CHAIN - 1)


def verify_fits_a_total(figures: Figures) -> bool:
    """Whether a total over the streams would explain why verify and cycle differ (a short verify would as well)."""
    return may_be_total(figures) and figures.verify_ms is not None and _fits_with_the_batch(figures, figures.verify_ms)


def _only_a_total(figures: Figures) -> bool:
    """More than any drafter emits per stream, or more than these draft tokens give where the cycle shows the factor
    too. A verify alone shows nothing: at batch 2 it may well be half of its cycle."""
    length, cycle = figures.accept_length, figures.cycle_ms
    if length is None or not may_be_total(figures) or _cycle_fits(figures):
        return False
    beyond_any = length > max(LONGEST_CHAIN, (figures.draft_tokens or 0) + 1)
    fits = any(time and _fits_with_the_batch(figures, time) for time in (cycle, figures.verify_ms))
    return beyond_any or (fits and not possible_length(length, figures.draft_tokens))


def doubtful_length(figures: Figures) -> bool:
    """Whether a length that one stream may have is so long that it may well be the total of all, and no cycle tells."""
    length, cycle = figures.accept_length, figures.cycle_ms
    if length is None or length <= USUAL_LENGTH or not possible_length(length, figures.draft_tokens):
        return False
    told = _cycle_fits(figures) or (cycle is not None and _fits_with_the_batch(figures, cycle))
    return may_be_total(figures) and not told


def _cycle_fits(figures: Figures) -> bool:
    """Whether the cycle that was given says that the accept length is per stream."""
    implied = implied_cycle_ms(figures)
    return bool(figures.cycle_ms and implied and abs(implied / figures.cycle_ms - 1) <= 0.1)


def implied_cycle_ms(figures: Figures) -> float | None:
    """The cycle that rate and accept length imply, in ms."""
    if not figures.accept_length or figures.spec_tok_s is None:
        return None
    return formulas.cycle_ms(figures.batch or 1.0, figures.accept_length, figures.spec_tok_s)


def _fits_with_the_batch(figures: Figures, time_ms: float) -> bool:
    """Whether the implied cycle is as many times longer than ``time_ms`` as there are streams, within 10 %."""
    batch, implied = figures.batch or 1.0, implied_cycle_ms(figures)
    return batch >= 2 and implied is not None and abs(implied / batch / time_ms - 1) <= 0.1


def apart(left: float, right: float) -> bool:
    """Whether two figures differ by more than the tie band."""
    return max(left, right) / min(left, right) - 1 > TIE_BAND


def percent(left: float, right: float) -> str:
    return f"{100 * abs(left / right - 1):.1f} %"


# --- units ----------------------------------------------------------------------------------------------------------


def _other_units(figures: Figures) -> Iterable[tuple[str, str]]:
    """Times whose value makes sense in seconds or microseconds alone, against the cycle and the baseline's step."""
    cycle = implied_cycle_ms(figures)
    step = formulas.baseline_step_ms(figures.batch or 1.0, figures.base_tok_s) if figures.base_tok_s else None
    if not cycle and not step:
        return
    longest = 5 * cycle if cycle else COSTLIEST_CYCLE * (step or 0.0)
    shortest = 0.8 * step if step else longest / 200
    for column in ("cycle_ms", "verify_ms", "draft_ms"):
        time = getattr(figures, column)
        low = 0.0 if column == "draft_ms" else shortest  # n-grams are drafted in next to no time
        if time and (unit := _unit(time, low, longest)):
            yield column, unit
    allreduces = (figures.allreduce_count or 0.0) * (figures.allreduce_ms or 0.0)
    if longest < allreduces <= longest * 1e3:
        yield "allreduce_ms", "microseconds"


def _unit(time: float, low_ms: float, high_ms: float) -> str | None:
    """The unit in which a time lies between two bounds, where it does not in milliseconds."""
    if time < low_ms and low_ms <= time * 1e3 <= high_ms:
        return "seconds"
    if time > high_ms and low_ms <= time / 1e3 <= high_ms:
        return "microseconds"
    return None
