"""What would change the answer: what-if, tornado, the smallest change that pays, and the ranked plan, from a sweep.

Everything starts from one measured point: a cell beside its baseline. An effect is *measured* where an arm with that
change was run (another variant, another draft length), else *modelled* from this point's own figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from breakeven.analysis.arms import Arm, baselines_of
from breakeven.analysis.cycle import BETWEEN, FORWARD, part_ms
from breakeven.costs import plan, whatif
from breakeven.costs.plan import Option
from breakeven.costs.whatif import Change, Evidence, Point
from breakeven.errors import UserError
from breakeven.launch.design import DEFAULT_VARIANT

Row = Mapping[str, Any]
TORNADO_SHARE = 0.1
NOTHING: dict[str, Any] = {
    "cell": "",
    "point": None,
    "premise": "",
    **{name: [] for name in ("what_if", "tornado", "smallest_change", "plan", "left_out")},
}
"""Where no cell was compared there is no point to start from."""


def outlook(
    best: Row,
    arms: Mapping[str, Arm],
    contest: Sequence[Row],
    cycles: Sequence[Row],
    fusing_saves_ms: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """What-if rows, tornado, levers and plan for the cell ``best`` (a row of `judging.against_the_fastest`).

    ``fusing_saves_ms``: per cell, what fused all-reduces are forecast to save from the bench; a share is guessed
    without it.
    """
    by_cell = {row["cell"]: row for row in cycles}
    point = point_of(best, by_cell)
    fused = _fused(best, fusing_saves_ms or {})
    options = [
        *variant_options(best, arms, contest, by_cell),
        *length_options(best, arms, contest, by_cell),
        *plan.usual_options(
            point,
            allreduce_ms=_allreduce_ms(by_cell.get(best["against"]), point),
            trained=arms[best["cell"]].algorithm != "NGRAM",
            fused=fused,
        ),
        *_gap_options(best, by_cell),
    ]
    return of_point(best["drafter"], point, options)


def of_point(
    name: str,
    point: Point,
    options: Sequence[Option],
    changes: Sequence[Change] = (),
    *,
    premise: str = "",
    evidence: Evidence = "measured",
) -> dict[str, Any]:
    """The same for any point, measured or recorded: ``changes`` stand in the what-if alone, ``premise`` is what the
    plan takes for granted. Options that leave no time are left out."""
    possible = [option for option in options if _applies(point, option)]
    ranked, others = plan.plan(point, possible)
    return {
        "cell": name,
        "point": asdict(point),
        "premise": premise,
        "what_if": whatif.what_if(point, [*changes, *(option.likely for option in possible)], evidence=evidence),
        "tornado": whatif.tornado(point, share=TORNADO_SHARE),
        "smallest_change": whatif.smallest_change_that_pays(point),
        "plan": ranked,
        "left_out": others,
    }


def _fused(best: Row, saved_ms: Mapping[str, float]) -> Change | None:
    """Fused all-reduces as the bench forecasts them, for a cell and its baseline."""
    if best["cell"] not in saved_ms or best["against"] not in saved_ms:
        return None
    verify_ms, step_ms = saved_ms[best["cell"]], saved_ms[best["against"]]
    return Change("fused all-reduce and RMSNorm", verify_saved_ms=verify_ms, step_saved_ms=step_ms)


def _applies(point: Point, option: Option) -> bool:
    try:
        for change in (option.least, option.likely, option.most):
            whatif.apply(point, change)
    except UserError:
        return False
    return True


def point_of(row: Row, cycles: Mapping[str, Row]) -> Point:
    """A compared cell as a point; its parts where the traced window tells them."""
    step_ms = cycles[row["against"]]["total_ms"]
    cycle_ms = row["break_even"]["estimate"] * step_ms
    scale = cycle_ms / cycles[row["cell"]]["total_ms"]
    verify_ms, draft_ms = (part_ms(cycles[row["cell"]], names) for names in (FORWARD, ("draft", "draft extend")))
    return Point(
        accept_length=row["accept_length"]["estimate"],
        cycle_ms=cycle_ms,
        step_ms=step_ms,
        batch=row["concurrency"],
        verify_ms=None if verify_ms is None else verify_ms * scale,
        draft_ms=None if draft_ms is None else draft_ms * scale,
    )


def variant_options(
    best: Row, arms: Mapping[str, Arm], contest: Sequence[Row], cycles: Mapping[str, Row]
) -> list[Option]:
    """The same drafter and condition under every other variant that was measured, its baseline with it."""
    arm = arms[best["cell"]]
    alike = (arm.condition, arm.algorithm, arm.steps, arm.topk, arm.draft_tokens)
    baselines = baselines_of(arms, arm.condition)
    options = []
    for row in contest:
        other = arms[row["cell"]]
        same = (other.condition, other.algorithm, other.steps, other.topk, other.draft_tokens) == alike
        if same and other.variant != arm.variant and row["break_even"]:
            name = f"variant {other.variant}" + (f" instead of {arm.variant}" if arm.variant != DEFAULT_VARIANT else "")
            base = cycles.get(baselines[other.variant].name) if other.variant in baselines else None
            saved_ms = point_of(best, cycles).step_ms - base["total_ms"] if base else 0.0
            options.append(_measured(name, best, row, cycles, step_saved_ms=saved_ms, effort_days=0.1))
    return options


def length_options(
    best: Row, arms: Mapping[str, Arm], contest: Sequence[Row], cycles: Mapping[str, Row]
) -> list[Option]:
    """The best other draft length of the same family."""
    arm = arms[best["cell"]]
    others = [
        row
        for row in contest
        if arms[row["cell"]].family == arm.family and row["cell"] != arm.name and row["break_even"]
    ]
    if not others:
        return []
    row = max(others, key=lambda each: each["speedup"]["estimate"])
    drafts = arms[row["cell"]].drafts
    name = f"{drafts} draft{'s' if drafts != 1 else ''} instead of {arm.drafts}"
    return [_measured(name, best, row, cycles, effort_days=0.05)]


def _measured(
    name: str, best: Row, row: Row, cycles: Mapping[str, Row], *, effort_days: float, step_saved_ms: float = 0.0
) -> Option:
    """The change from one measured cell to another; its range is the speed-up's own interval on these prompts."""
    here, there = point_of(best, cycles), point_of(row, cycles)

    def change(cycle_factor: float) -> Change:
        return Change(
            name,
            "measured",
            other_saved_ms=here.cycle_ms - there.cycle_ms * cycle_factor,
            step_saved_ms=step_saved_ms,
            accept_length_gained=there.accept_length - here.accept_length,
        )

    same = row["speedup_same_prompts"]
    return Option(
        change(same["estimate"] / same["low"]), change(1.0), change(same["estimate"] / same["high"]), effort_days, 0.05,
        "already measured in this run; confirm it with more restarts before switching",
        "a run with more restarts puts its rate below the present one's",
    )  # fmt: skip


def _allreduce_ms(base: Row | None, point: Point) -> float | None:
    found = part_ms(base, ("all-reduce",))
    return found if found and found < point.step_ms else None


def _gap_options(best: Row, cycles: Mapping[str, Row]) -> list[Option]:
    """Less host time between forwards, in both arms, where the trace shows how much there is."""
    cycle_gap_ms, step_gap_ms = (part_ms(cycles[best[key]], BETWEEN) for key in ("cell", "against"))
    if not cycle_gap_ms or step_gap_ms is None:
        return []
    change = Change(
        "half the host's time between forwards (scheduling, sampling; on a GPU also graphs)",
        other_saved_ms=cycle_gap_ms / 2,
        step_saved_ms=step_gap_ms / 2,
    )
    return [
        Option.ranging(
            change, 0.0, 1.6, 1.0, 0.4,
            "check in server.json whether overlap scheduling is on, and on a GPU graphs for this batch; then a variant",
            "a trace shows that the forwards leave no gap",
        )
    ]  # fmt: skip


def what_if_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The what-if as a reader wants it: each rate with its gain."""
    shown = []
    for row in rows:
        rates = {
            f"{arm}_tok_s": f"{row[f'{arm}_tok_s']:.1f} ({row[f'{arm}_gain']:+.1%})"
            if row["change"] != rows[0]["change"]
            else f"{row[f'{arm}_tok_s']:.1f}"
            for arm in ("base", "spec")
        }
        shown.append({**row, **rates})
    return shown
