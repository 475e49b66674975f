"""Chain lengths left out of the fit, predicted from the others, beside what they measured.

A search launches a few lengths of a chain and predicts the rest. What such a prediction is worth is told by leaving
each measured length out in turn: the accept length then comes from the longest chain's accepted drafts, the cycle from
the straight line between the two nearest lengths that stay. The residual is split into those two parts, and beside it
stands what is left once the jumps of a row's cost are known from elsewhere, as a search knows the target's forward.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from breakeven.analysis import curves
from breakeven.analysis.arms import Arm
from breakeven.costs.formulas import cost_at, forward_by_drafts

Row = Mapping[str, Any]
FORWARD = "the target's forward"
GOOD = 0.05
"""A prediction within 5 % of the measured rate needs no explanation."""


def left_out(
    samples: pd.DataFrame,
    arms: Mapping[str, Arm],
    comparisons: Sequence[Row],
    cells: Sequence[Row],
    cycles: Sequence[Row],
    forward_ms: Mapping[str, Mapping[int, float]],
    noise: Sequence[Row] = (),
) -> list[dict[str, Any]]:
    """One row per measured chain length that lies between two others of its family.

    Keys: family, drafter, rows (that a verify computes: drafts and root), and of accept_length, cycle_ms and tok_s (per
    stream) the ``predicted`` and the measured value; ``residual``, predicted over measured less 1, with the parts of it
    that accept length and cycle make, which multiply; ``shaped_by``: the target's forward (``forward_ms``, see
    `curves.forwards`), or another family that measured the same numbers of rows, and ``shaped_residual``: that of a
    cycle which takes its shape from there; ``text``: what explains a residual beyond 5 %, ``family_text``: where the
    cost of the family's rows is no line. Ends can't be interpolated; pinned accept lengths are left aside. ``noise`` is
    that of `cautions.launch_spreads`.
    """
    summary = {row["cell"]: row for row in cells if row["kind"] == "all"}
    parts = {row["cell"]: row for row in cycles}
    free = [row for row in comparisons if not row["accept_length_pinned"] and row["cell"] in summary]
    families = [(name, [arm for arm, _ in members]) for name, members in curves.families(arms, free)]
    cycle_ms = {arm.name: summary[arm.name]["cycle_ms"] for _, members in families for arm in members}
    loud = {row["cell"]: row["rates"] for row in noise}
    found = []
    for name, members in families:
        lengths = curves.lengths_by_chain(samples, members[-1])
        for left, arm, right in zip(members, members[1:], members[2:], strict=False):
            if arm.drafts is None or lengths is None or arm.drafts >= len(lengths):
                continue
            row = _row(name, arm, float(lengths[arm.drafts]), _between(left, arm, right, cycle_ms), summary[arm.name])
            row |= _shaped((left, arm, right), families, cycle_ms, forward_ms.get(arm.variant, {}), row)
            row["text"] = _explained(row, (left, arm, right), parts, loud.get(arm.name))
            row["family_text"] = _steepest(name, members, cycle_ms)
            found.append(row)
    return found


def _row(family: str, arm: Arm, length: float, cycle_ms: float, measured: Row) -> dict[str, Any]:
    tok_s = 1000 * length / cycle_ms
    return {
        "family": family,
        "drafter": arm.words(),
        "rows": _rows(arm),
        "accept_length_predicted": length,
        "accept_length": measured["accept_length"],
        "cycle_ms_predicted": cycle_ms,
        "cycle_ms": measured["cycle_ms"],
        "tok_s_predicted": tok_s,
        "tok_s": measured["tok_s"],
        "residual": tok_s / measured["tok_s"] - 1,
        "accept_length_part": length / measured["accept_length"] - 1,
        "cycle_part": measured["cycle_ms"] / cycle_ms - 1,
    }


def _rows(arm: Arm) -> int:
    return (arm.drafts or 0) + 1


def _between(left: Arm, arm: Arm, right: Arm, values: Mapping[str, float]) -> float:
    """The straight line between two neighbours, at the arm between them."""
    ends = [left.drafts or 0, right.drafts or 0]
    return float(np.interp(arm.drafts or 0, ends, [values[left.name], values[right.name]]))


def _shaped(
    three: tuple[Arm, Arm, Arm],
    families: Sequence[tuple[str, list[Arm]]],
    cycle_ms: Mapping[str, float],
    forward_ms: Mapping[int, float],
    row: Row,
) -> dict[str, Any]:
    """The same with the shape of the target's forward, or else of another family that verified the same numbers of rows
    under the same condition: what the cycle differs by is interpolated, and a step in a row's cost is seen there."""
    arm = three[1]
    shapes = {FORWARD: forward_by_drafts(forward_ms, arm.condition.concurrency)}
    for name, members in families:
        other = members[0]
        if other.family != arm.family and (other.variant, other.condition) == (arm.variant, arm.condition):
            shapes[name] = {each.drafts or 0: cycle_ms[each.name] for each in members}
    for name, shape in shapes.items():
        if all((each.drafts or 0) in shape for each in three):
            around = {each.drafts or 0: cycle_ms[each.name] for each in (three[0], three[2])}
            shaped_ms = cost_at(around, arm.drafts or 0, shape).cycle_ms
            assert shaped_ms is not None
            tok_s = 1000 * row["accept_length_predicted"] / shaped_ms
            return {"shaped_by": name, "shaped_cycle_ms": shaped_ms, "shaped_residual": tok_s / row["tok_s"] - 1}
    return {"shaped_by": None, "shaped_cycle_ms": None, "shaped_residual": None}


# --- in words -------------------------------------------------------------------------------------------------------


def _explained(row: Row, three: tuple[Arm, Arm, Arm], parts: Mapping[str, Row], launches: str | None) -> str:
    """Where a residual comes from; empty within 5 %."""
    if abs(row["residual"]) <= GOOD:
        return ""
    off_ms = row["cycle_ms"] - row["cycle_ms_predicted"]
    text = (
        f"{row['drafter']}: {row['residual']:+.1%}, of which accept length {row['accept_length_part']:+.1%} and cycle "
        f"{row['cycle_part']:+.1%}. Its cycle lies {abs(off_ms):.1f} ms {'above' if off_ms > 0 else 'below'} the line "
        f"between its neighbours{_parts_off(three, parts)}"
    )
    if row["shaped_by"]:
        text += (
            f"; with the shape of {row['shaped_by']} at the same numbers of rows {row['shaped_residual']:+.1%} is left"
        )
    return text + (f"; its own launches gave {launches}." if launches else ".")


def _parts_off(three: tuple[Arm, Arm, Arm], parts: Mapping[str, Row]) -> str:
    """Which parts of the cycle leave the line, from the traced windows: ``(draft +0.6 ms, verify +1.0 ms)``."""
    if any(parts[arm.name]["split"] != "traced window" for arm in three):
        return ""
    names = dict.fromkeys(name for arm in three for name in parts[arm.name]["parts"])
    off = {}
    for name in names:
        values = {arm.name: parts[arm.name]["parts"].get(name, 0.0) for arm in three}
        off[name] = values[three[1].name] - _between(*three, values)
    most = sorted(off.items(), key=lambda item: -abs(item[1]))[:2]
    return " (mostly " + ", ".join(f"{name} {ms:+.1f} ms" for name, ms in most) + ")"


def _steepest(family: str, members: Sequence[Arm], cycle_ms: Mapping[str, float]) -> str:
    """At which draft a family's cycle rises most, and what the others add."""
    rises = []
    for first, second in itertools.pairwise(members):
        drafts = (second.drafts or 0) - (first.drafts or 0)
        rises.append(((cycle_ms[second.name] - cycle_ms[first.name]) / drafts, first, second))
    most_ms, first, second = max(rises, key=lambda rise: rise[0])
    others = sorted(rise[0] for rise in rises if rise[2] is not second)
    return (
        f"{family}: the cost of a row is no line. The cycle changes by {most_ms:+.1f} ms a draft from {_rows(first)} "
        f"to {_rows(second)} rows, and by {others[0]:+.1f} to {others[-1]:+.1f} ms elsewhere."
    )


def table_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows as a table shows them: residuals and their parts in percent."""
    shares = ("residual", "accept_length_part", "cycle_part", "shaped_residual")
    return [{**row, **{name: None if row[name] is None else f"{row[name]:+.1%}" for name in shares}} for row in rows]


def notes(
    rows: Sequence[Row],
    noise: Sequence[Row] = (),
    forward_ms: Mapping[str, Mapping[int, float]] | None = None,
    disturbed: int = 0,
) -> list[str]:
    """What the leaving-out shows: how many settings came out right, where costs jump, what explains the others.

    ``forward_ms`` is the target's forward where the sweep measured it, see `curves.forwards`; ``disturbed``: how many
    prompts `disturbances.calm` took away.
    """
    if not rows:
        return []
    good = sum(abs(row["residual"]) <= GOOD for row in rows)
    length = max(abs(row["accept_length_part"]) for row in rows)
    cycle = max(abs(row["cycle_ms_predicted"] / row["cycle_ms"] - 1) for row in rows)
    text = (
        f"{good} of {len(rows)} settings are predicted within {GOOD:.0%} of what they measured; the accept length is "
        f"never off by more than {length:.1%}, the interpolated cycle by up to {cycle:.1%}."
    )
    shaped = [row for row in rows if row["shaped_residual"] is not None]
    if shaped:
        shapes = [row["shaped_by"] for row in shaped]
        better = sum(abs(row["shaped_residual"]) <= GOOD for row in shaped)
        whose = " or ".join(dict.fromkeys(by if by == FORWARD else "another drafter" for by in shapes))
        text += f" With the cycle's shape from {whose} at the same numbers of rows: {better} of {len(shaped)}."
    if disturbed:
        text += (
            f" {disturbed} prompt{'s' if disturbed > 1 else ''} of a restart in which something else ran "
            f"{'are' if disturbed > 1 else 'is'} left out for all cells alike, so that figures differ from those above."
        )
    wrong = [row for row in rows if row["text"]]
    if wrong and noise and noise[0]["spread"] > GOOD:
        text += (
            f" Launches of one and the same cell differed by up to {noise[0]['spread']:.0%}, which no fit can foresee."
        )
    first = next(iter((forward_ms or {}).values()), {})
    alone = [_forward(first)] if wrong and len(first) > 2 else []
    return [text, *alone, *dict.fromkeys(row["family_text"] for row in wrong), *(row["text"] for row in wrong)]


def _forward(forward_ms: Mapping[int, float]) -> str:
    """The target's forward by rows, measured without any drafter, and where it rises most."""
    known = sorted(forward_ms.items())
    rises = [((ms - ms0) / (rows - rows0), rows0, rows) for (rows0, ms0), (rows, ms) in itertools.pairwise(known)]
    most_ms, before, after = max(rises)
    told = ", ".join(f"{rows}: {ms:.1f} ms" for rows, ms in known)
    return (
        f"The target's forward by rows, measured without a drafter ({told}), rises most from {before} to {after} rows, "
        f"by {most_ms:.1f} ms a row."
    )
