"""What an optimisation would buy: effects in milliseconds in, rates and break-even out, side by side.

A faster target forward speeds up the baseline too, so that it can raise tokens per second and AL* at once. Every table
here therefore shows both arms, and the better one. Effects are measured (an arm of that kind was run) or modelled, and
labelled.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from breakeven.costs import formulas
from breakeven.errors import UserError

Evidence = Literal["measured", "modelled", "reported", "assumed"]
"""``assumed``: modelled on a reported figure that can't be true."""


@dataclass(frozen=True)
class Point:
    """Where a server stands. Times in ms; ``verify_ms`` and ``draft_ms`` are parts of the cycle, None where not
    measured."""

    accept_length: float
    cycle_ms: float
    step_ms: float
    batch: float = 1.0
    verify_ms: float | None = None
    draft_ms: float | None = None

    def __post_init__(self) -> None:
        wrong = [
            name for name in ("accept_length", "cycle_ms", "step_ms", "batch") if not 0 < getattr(self, name) < math.inf
        ]
        if wrong:
            raise UserError(f"{wrong[0]} is {getattr(self, wrong[0])}; a what-if needs it above zero")

    @property
    def base_tok_s(self) -> float:
        return formulas.MS_PER_S * self.batch / self.step_ms

    @property
    def spec_tok_s(self) -> float:
        return formulas.spec_tok_s(self.batch, self.accept_length, self.cycle_ms)

    @property
    def best_tok_s(self) -> float:
        """Of the two arms, the one that one would run."""
        return max(self.base_tok_s, self.spec_tok_s)

    @property
    def break_even(self) -> float:
        return formulas.break_even_accept_length(self.cycle_ms, self.step_ms)

    @property
    def speedup(self) -> float:
        return self.accept_length / self.break_even


@dataclass(frozen=True)
class Change:
    """What an optimisation does. Savings in ms (negative: a loss): per verify, per cycle's drafting, per cycle
    elsewhere, and per baseline step; ``accept_length_gained`` in tokens per verify."""

    name: str
    evidence: Evidence = "modelled"
    verify_saved_ms: float = 0.0
    draft_saved_ms: float = 0.0
    other_saved_ms: float = 0.0
    step_saved_ms: float = 0.0
    accept_length_gained: float = 0.0

    @property
    def cycle_saved_ms(self) -> float:
        return self.verify_saved_ms + self.draft_saved_ms + self.other_saved_ms

    def scaled(self, factor: float) -> Change:
        """The same change, its effects times ``factor``."""
        effects = {name: getattr(self, name) * factor for name in EFFECTS}
        return replace(self, **effects)


EFFECTS = ("verify_saved_ms", "draft_saved_ms", "other_saved_ms", "step_saved_ms", "accept_length_gained")


def target_forward(name: str, saved_ms: float, evidence: Evidence = "modelled") -> Change:
    """A change of the target forward: the verify and the baseline step both get shorter by ``saved_ms``."""
    return Change(name, evidence, verify_saved_ms=saved_ms, step_saved_ms=saved_ms)


def apply(point: Point, change: Change) -> Point:
    """The point after the change. Raises UserError when it would leave no time, or an accept length below 1."""
    try:
        formulas.break_even_after(point.cycle_ms, point.step_ms, change.cycle_saved_ms, change.step_saved_ms)
    except ValueError as error:
        raise UserError(f"{change.name}: {error}; give smaller savings") from None
    length = point.accept_length + change.accept_length_gained
    if length < 1:
        raise UserError(f"{change.name}: an accept length of {length:g} is below 1, which every verify gives")
    return replace(
        point,
        accept_length=length,
        cycle_ms=point.cycle_ms - change.cycle_saved_ms,
        step_ms=point.step_ms - change.step_saved_ms,
        verify_ms=None if point.verify_ms is None else point.verify_ms - change.verify_saved_ms,
        draft_ms=None if point.draft_ms is None else point.draft_ms - change.draft_saved_ms,
    )


def what_if(point: Point, changes: Iterable[Change], *, evidence: Evidence = "measured") -> list[dict[str, Any]]:
    """One row per change, the point as it stands first: both arms' rates and gains, AL and AL* apart, evidence (that
    of the point itself is ``evidence``)."""
    rows = [_row(point, point, "as it stands", evidence)]
    return rows + [_row(point, apply(point, change), change.name, change.evidence) for change in changes]


def _row(before: Point, after: Point, name: str, evidence: str) -> dict[str, Any]:
    return {
        "change": name,
        "evidence": evidence,
        "cycle_ms": after.cycle_ms,
        "step_ms": after.step_ms,
        "base_tok_s": after.base_tok_s,
        "base_gain": after.base_tok_s / before.base_tok_s - 1,
        "spec_tok_s": after.spec_tok_s,
        "spec_gain": after.spec_tok_s / before.spec_tok_s - 1,
        "best_gain": after.best_tok_s / before.best_tok_s - 1,
        "accept_length": after.accept_length,
        "break_even_accept_length": after.break_even,
        "break_even_change": after.break_even - before.break_even,
        "speedup": after.speedup,
        "pays": after.speedup > 1,
    }


def smallest_change_that_pays(point: Point) -> list[dict[str, Any]]:
    """Per lever, the least change that brings the speed-up to 1, everything else as it is.

    Rows: lever, needed (in ``unit``; negative: how much may be lost before it stops paying; None where no amount
    brings it to 1), reachable (False where no amount does, None where the part was not measured), text.
    """
    short_ms = point.cycle_ms - point.accept_length * point.step_ms  # what the cycle is too long by
    change = f"{short_ms:.2f} ms less" if short_ms > 0 else f"up to {-short_ms:.2f} ms more"
    verify, draft = point.verify_ms, point.draft_ms
    rows = [
        {
            "lever": "accept length",
            "needed": point.break_even - point.accept_length,
            "unit": "tokens per verify",
            "reachable": None,
            "text": f"accept length {point.break_even:.2f} instead of {point.accept_length:.2f}, at the same cycle",
        },
    ]
    spare = {
        "drafting": draft,
        "verify alone": verify - point.step_ms if verify is not None else None,  # it contains a step's work
        "the rest of the cycle": point.cycle_ms - verify - draft if verify is not None and draft is not None else None,
    }
    for lever, most in spare.items():
        text = f"{change} of {lever}, the baseline step untouched"
        if most is not None and short_ms > most:
            text += f"; at most {max(most, 0):.2f} ms are there to be saved"
        reachable = None if most is None else bool(short_ms < most)
        rows.append({"lever": lever, "needed": short_ms, "unit": "ms", "reachable": reachable, "text": text})
    rows.append(_forward_lever(point, short_ms))
    return rows


def _forward_lever(point: Point, short_ms: float) -> dict[str, Any]:
    """Solves ``AL (step - s) = cycle - s`` for s: verify and baseline step change together."""
    lever = {"lever": "target forward (verify and baseline step)", "unit": "ms"}
    if short_ms > 0:
        text = (
            "no saving makes speculation pay: the baseline gains more from it (it does one forward per token), so that "
            "AL* rises while both rates rise"
        )
        return lever | {"needed": None, "reachable": False, "text": text}
    limit = -short_ms / (point.accept_length - 1) if point.accept_length > 1 else math.inf
    if limit >= point.step_ms:
        return lever | {"needed": None, "reachable": True, "text": "it pays however fast a target forward gets"}
    text = f"it pays until a target forward is faster by {limit:.2f} ms in both arms"
    return lever | {"needed": -limit, "reachable": True, "text": text}


def tornado(
    point: Point, ranges: Mapping[str, tuple[float, float]] | None = None, *, share: float = 0.1
) -> list[dict[str, Any]]:
    """What moves the answer most: the speed-up with one quantity at a time at its low and its high value.

    ``ranges`` gives (low, high) by name (an interval, say); others are taken ± ``share``. Names: accept_length,
    step_ms, target_forward (verify and step by the same share; its range is that of the step), and verify_ms, draft_ms,
    other_ms where the parts are known, else cycle_ms. Widest swing first. Raises UserError for another name.
    """
    values = {"accept_length": point.accept_length, "step_ms": point.step_ms, "target_forward": point.step_ms}
    if point.verify_ms is None or point.draft_ms is None:
        values["cycle_ms"] = point.cycle_ms
    else:
        other = point.cycle_ms - point.verify_ms - point.draft_ms
        values |= {"verify_ms": point.verify_ms, "draft_ms": point.draft_ms, "other_ms": other}
    for name in ranges or {}:
        if name not in values:
            raise UserError(f"no quantity {name!r} in this tornado; there are {', '.join(values)}")
    rows = []
    for name, value in values.items():
        low, high = (ranges or {}).get(name, (value * (1 - share), value * (1 + share)))
        ends = [_speedup_with(point, name, end - value) for end in (low, high)]
        rows.append(
            {
                "quantity": name,
                "low": low,
                "high": high,
                "speedup_at_low": ends[0],
                "speedup_at_high": ends[1],
                "swing": abs(ends[1] - ends[0]),
                "changes_the_answer": (ends[0] - 1) * (ends[1] - 1) < 0,
            }
        )
    return sorted(rows, key=lambda row: -row["swing"])


def _speedup_with(point: Point, name: str, more: float) -> float:
    longer = more if name in ("cycle_ms", "verify_ms", "draft_ms", "other_ms") else 0.0
    slower = more if name in ("step_ms", "target_forward") else 0.0
    if name == "target_forward":  # where the verify was not measured, it is taken for a step
        longer = more * (point.verify_ms or point.step_ms) / point.step_ms
    length = point.accept_length + (more if name == "accept_length" else 0.0)
    return formulas.speedup(length, point.cycle_ms + longer, point.step_ms + slower)
