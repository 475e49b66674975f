"""What the curves show: break-even over draft length and concurrency, acceptance by position, theory.

Rows come from `judging.compare_all`; everything here is arithmetic on them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from breakeven.analysis.arms import Arm, condition_in_words
from breakeven.analysis.cycle import FORWARD, part_ms
from breakeven.analysis.ranking import DECIDED
from breakeven.costs import formulas
from breakeven.errors import UserError
from breakeven.launch.design import DEFAULT_VARIANT
from breakeven.stats.samples import usable

Row = Mapping[str, Any]


def by_draft_length(
    samples: pd.DataFrame,
    arms: Mapping[str, Arm],
    comparisons: Sequence[Row],
    forward_ms: Mapping[str, Mapping[int, float]],
) -> list[dict[str, Any]]:
    """Per family of chains: every length up to the longest, measured or predicted.

    Accept lengths of lengths that were not measured follow from the histogram of correct drafts at the longest. Their
    cycle is interpolated between measured neighbours, with the jumps of the target's forward where ``forward_ms`` tells
    them, see `forwards`; it is a guess all the same, so that it is labelled. Rows: family, drafts, accept_length,
    break_even, speedup, source (measured | interpolated), cell; accept_length and speedup are None where the length was
    pinned.
    """
    rows = []
    for family, members in families(arms, comparisons):
        step_ms = _step_ms(members[0][1], samples)
        cycles = {arm.drafts: row["break_even"]["estimate"] * step_ms for arm, row in members if arm.drafts}
        measured = {arm.drafts: row for arm, row in members if arm.drafts}
        longest = members[-1][0]
        of_verify = formulas.forward_by_drafts(forward_ms.get(longest.variant, {}), longest.condition.concurrency)
        lengths = lengths_by_chain(samples, longest)
        chains = [] if lengths is None else formulas.chain_table(lengths, cycles, step_ms, forward_ms=of_verify)
        predicted = {chain.draft_tokens: chain for chain in chains}
        for drafts in sorted({*measured, *predicted}):
            found = _of_length(measured.get(drafts), predicted.get(drafts))
            if found:
                rows.append({"family": family, "drafts": drafts, **found})
    return rows


def forwards(cells: Sequence[Row]) -> dict[str, dict[int, float]]:
    """Milliseconds of the target's forward by its rows, per variant, as measured on the baseline's server."""
    found = {(row.get("variant") or DEFAULT_VARIANT): row["forward_ms"] for row in cells if row.get("forward_ms")}
    return {variant: {int(rows): ms for rows, ms in by_rows.items()} for variant, by_rows in found.items()}


def _of_length(row: Row | None, chain: formulas.Chain | None) -> dict[str, Any] | None:
    """One draft length: as measured, else as predicted, else nothing."""
    if row is not None:
        figures = {name: row[name]["estimate"] for name in ("accept_length", "break_even", "speedup")}
        if row["accept_length_pinned"]:
            figures |= {"accept_length": None, "speedup": None}
        bounds = {f"break_even_{end}": row["break_even"][end] for end in ("low", "high")}
        too_few = row["break_even"]["too_few"]
        return {"source": "measured", "cell": row["cell"], "too_few": too_few, **figures, **bounds}
    if chain is None or chain.break_even_accept_length is None:
        return None
    figures = {"accept_length": chain.accept_length, "break_even": chain.break_even_accept_length}
    return {"source": "interpolated", "cell": None, **figures, "speedup": chain.speedup}


def families(arms: Mapping[str, Arm], comparisons: Sequence[Row]) -> Iterable[tuple[str, list[tuple[Arm, Row]]]]:
    """Chains that differ in length alone, shortest first; ``family`` in words."""
    known = {row["cell"]: row for row in comparisons if row["break_even"]}
    chains = [arm for arm in arms.values() if arm.name in known and arm.is_chain and arm.drafts]
    for _, group in itertools.groupby(sorted(chains, key=lambda arm: str(arm.family)), key=lambda arm: arm.family):
        members = sorted(group, key=lambda arm: arm.drafts or 0)
        parts = [members[0].algorithm, members[0].variant if members[0].variant != "default" else ""]
        name = ", ".join(part for part in (*parts, condition_in_words(members[0].condition)) if part)
        yield name, [(arm, known[arm.name]) for arm in members]


def _step_ms(row: Row, samples: pd.DataFrame) -> float:
    base = usable(samples[samples["cell"] == row["against"]])
    return float(1000 * base["decode_s"].sum() / (base["completion_tokens"] - 1).sum())


def lengths_by_chain(samples: pd.DataFrame, longest: Arm) -> np.ndarray | None:
    """The accept length of every chain up to this one, from its accepted drafts; None where the server told none."""
    histograms = _histograms(samples, longest.name)
    if histograms is None or longest.pinned_length:
        return None
    try:
        return formulas.accept_length_by_chain_over_requests(histograms[0], histograms[1])
    except UserError:  # no request with a count
        return None


def _histograms(samples: pd.DataFrame, cell: str) -> tuple[list[list[float]], list[float]] | None:
    """Histograms of correct drafts and tokens of a cell's requests; None where the server told none."""
    if "correct_drafts_histogram" not in samples.columns:
        return None
    good = usable(samples[samples["cell"] == cell])
    good = good[[isinstance(each, list) and sum(each) > 0 for each in good["correct_drafts_histogram"]]]
    if good.empty:
        return None
    return good["correct_drafts_histogram"].tolist(), (good["completion_tokens"] - 1).tolist()


def by_position(samples: pd.DataFrame, arms: Mapping[str, Arm], comparisons: Sequence[Row]) -> list[dict[str, Any]]:
    """Per chain: acceptance got at each position, and the one that would break even if it were the same at each."""
    rows = []
    for row in comparisons:
        arm = arms[row["cell"]]
        histograms = _histograms(samples, arm.name)
        if not row["break_even"] or not arm.is_chain or not arm.drafts or histograms is None or arm.pinned_length:
            continue
        total = np.sum([[*each, *[0] * (arm.drafts + 1 - len(each))] for each in histograms[0]], axis=0)
        got = [None if math.isnan(each) else float(each) for each in formulas.acceptance_by_position(total)]
        needed = formulas.required_acceptance(row["break_even"]["estimate"], arm.drafts)
        rows.append({"cell": arm.name, "drafts": arm.drafts, "got": got[: arm.drafts], "needed": needed})
    return rows


def by_concurrency(arms: Mapping[str, Arm], comparisons: Sequence[Row]) -> list[dict[str, Any]]:
    """Per drafter that ran at several concurrencies: the speed-up at each, and where it crosses 1.

    ``crossover``: see there; None where the answer is not shown to change.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in comparisons:
        arm = arms[row["cell"]]
        if row["speedup"] and not arm.pinned_length:
            shape = (arm.variant, arm.algorithm, arm.steps, arm.topk, arm.draft_tokens)
            key = (*shape, arm.condition.temperature, arm.condition.context_tokens)
            groups.setdefault(key, []).append(row)
    rows = []
    for members in groups.values():
        points = sorted(
            ({**row["speedup"], "concurrency": row["concurrency"], "verdict": row["verdict"]} for row in members),
            key=lambda point: point["concurrency"],
        )
        if len({point["concurrency"] for point in points}) > 1:
            name = arms[members[0]["cell"]].words().split(", concurrency")[0]
            rows.append({"drafter": name, "points": points, "crossover": crossover(points)})
    return rows


def crossover(points: Sequence[Row]) -> float | None:
    """The concurrency at which the speed-up crosses 1: between one that pays and one that does not, whatever is
    undecided between them left out (on a log scale, linear in log speed-up)."""
    decided = [point for point in points if point["verdict"] in DECIDED]
    for left, right in itertools.pairwise(decided):
        if left["verdict"] != right["verdict"]:
            before, after = math.log(left["estimate"]), math.log(right["estimate"])
            share = before / (before - after)
            return float(left["concurrency"] * (right["concurrency"] / left["concurrency"]) ** share)
    return None


def theory(
    samples: pd.DataFrame, arms: Mapping[str, Arm], comparisons: Sequence[Row], cycles: Sequence[Row]
) -> list[dict[str, Any]]:
    """Leviathan's and Sequoia's formulas beside what was measured; a residual is measured over theory, less 1.

    ``acceptance`` is that of the first position, from which Leviathan's accept length follows if all positions were
    alike. The speed-ups take the accept length as measured, so that their residual is cost alone: Leviathan's verify
    costs one baseline step, Sequoia's the measured t(n); what is left to Sequoia is sampling, scheduling and gaps.
    The cost of a draft is the traced draft time over the drafts; without a trace it is unknown, and both speed-ups with
    it, but for NGRAM, whose drafts no model makes. A pinned accept length is no drafter's: theory has nothing to say on
    it.
    """
    by_cell = {row["cell"]: row for row in cycles}
    first_position = {row["cell"]: row["got"][0] for row in by_position(samples, arms, comparisons) if row["got"]}
    rows = []
    for row in comparisons:
        arm = arms[row["cell"]]
        if not row["break_even"] or not arm.drafts or arm.pinned_length:
            continue
        cycle, base = by_cell.get(arm.name), by_cell.get(row["against"])
        length, speedup = row["accept_length"]["estimate"], row["speedup"]["estimate"]
        forward_ms, drafted_ms = part_ms(cycle, FORWARD), part_ms(cycle, ("draft", "draft extend"))
        step_ms = base["total_ms"] if base else None
        depth = arm.steps or arm.drafts
        draft_cost = drafted_ms / depth / step_ms if drafted_ms is not None and step_ms else None
        if draft_cost is None and arm.algorithm == "NGRAM":
            draft_cost = 0.0
        acceptance = first_position.get(arm.name)
        expected_length = formulas.expected_accept_length(acceptance, arm.drafts) if acceptance is not None else None
        leviathan = length / (depth * draft_cost + 1.0) if arm.is_chain and draft_cost is not None else None
        sequoia = None
        if forward_ms is not None and step_ms and draft_cost is not None:
            sequoia = formulas.expected_tree_speedup(length, forward_ms / step_ms, depth, draft_cost)
        rows.append(
            {
                "cell": arm.name,
                "drafts": arm.drafts,
                "acceptance": acceptance,
                "draft_cost": draft_cost,
                "verify_steps": forward_ms / step_ms if forward_ms is not None and step_ms else None,
                "accept_length": length,
                "leviathan_accept_length": expected_length,
                "accept_length_residual": length / expected_length - 1 if expected_length else None,
                "speedup": speedup,
                "leviathan_speedup": leviathan,
                "leviathan_residual": speedup / leviathan - 1 if leviathan else None,
                "sequoia_speedup": sequoia,
                "sequoia_residual": speedup / sequoia - 1 if sequoia else None,
            }
        )
    return rows
