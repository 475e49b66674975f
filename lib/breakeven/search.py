"""Which launch a sweep needs next, from what it has measured: most of a grid can be told from a few servers.

Chains that differ in length alone are a family. Its longest chain tells the accept length of every shorter one
(`costs.accept_length_by_chain_over_requests`). The cycle between two measured lengths is interpolated, with a margin
that follows from how badly interpolation did in this very family: cycles are jagged, and neither a line nor monotony
is assumed. A chain is left unmeasured only when it can't win even with the whole margin in its favour; the winner, its
neighbours and the best of each algorithm are measured, never predicted.

Everything here is a pure function of the results: a sweep that was cut off decides the same again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from breakeven.costs import cost_at
from breakeven.design import TWIN, Arm

WORTH_A_LAUNCH = 0.02  # a candidate that can't be faster than the best by more is dropped
MARGIN_UNKNOWN = 0.10  # of an interpolated cycle, before a family has shown how jagged it is
MARGIN_LEAST = 0.03


@dataclass(frozen=True)
class Candidate:
    """An arm that speculates. ``drafts`` is its chain's length; None for a tree, which no other arm tells about."""

    arm: str
    algorithm: str
    family: str
    drafts: int | None


@dataclass(frozen=True)
class Result:
    """One launch of an arm under one condition. ``lengths[k]`` is the accept length that k drafts would have had."""

    arm: str
    restart: int
    condition: str
    tok_s: float
    cycle_ms: float | None = None
    lengths: tuple[float, ...] = ()


@dataclass(frozen=True)
class Decision:
    """The next launch and the reason for it."""

    arm: str
    restart: int
    action: str
    why: str


@dataclass(frozen=True)
class Outlook:
    """What is known of a candidate under one condition; rates per stream in tok/s, None where nothing bounds them."""

    arm: str
    condition: str
    source: str
    accept_length: float | None = None
    cycle_ms: float | None = None
    margin: float = 0.0
    tok_s: float | None = None
    tok_s_at_best: float | None = None


def candidates(arms: Iterable[Arm]) -> list[Candidate]:
    """The arms that speculate, with their families."""
    return [_candidate(arm) for arm in arms if arm.drafter is not None]


def _candidate(arm: Arm) -> Candidate:
    drafter = arm.drafter
    assert drafter is not None
    if drafter.algorithm == "NGRAM":
        drafts = (drafter.draft_tokens or 0) - 1 if drafter.breadth == 1 else None
    else:
        drafts = drafter.steps if drafter.topk == 1 else None
    shared = replace(drafter, steps=None, draft_tokens=None)
    family = f"{arm.variant.name}: {shared}" if drafts else f"{arm.variant.name}: {drafter}"
    return Candidate(arm.name, drafter.algorithm, family, drafts)


def decide(
    baseline: str,
    arms: Sequence[Candidate],
    results: Sequence[Result],
    failed: Iterable[str],
    restarts: int,
    *,
    twin: bool = False,
) -> Decision | None:
    """The next launch of one variant, or None when it is done.

    First the ends of every family; then whatever could still be the fastest, the most promising first; then the
    neighbours of the fastest. Further restarts repeat the baseline, the fastest and the best of each algorithm, the
    order reversed in every second one. ``twin`` adds the baseline's A/A twin to every restart. Arms that ``failed`` are
    no longer asked for.
    """
    lost = set(failed)
    alive = [each for each in arms if each.arm not in lost]
    measured = {each.arm for each in results}
    if baseline not in measured:
        if baseline in lost:
            return None  # nothing could be compared
        return Decision(baseline, 0, "measure", "what every drafter is compared with")
    return (
        _ends(alive, measured)
        or _promising(alive, results)
        or _neighbours(alive, results)
        or _repeats(baseline, alive, results, lost, restarts, twin=twin)
    )


def outlook(arms: Sequence[Candidate], results: Sequence[Result]) -> list[Outlook]:
    """What is known or expected of every candidate under every condition that was measured."""
    conditions = list(dict.fromkeys(each.condition for each in results))
    return [_expect(each, arms, results, condition) for condition in conditions for each in arms]


def dropped(arms: Sequence[Candidate], results: Sequence[Result], failed: Iterable[str]) -> list[dict[str, Any]]:
    """Every candidate that was not measured, with the reason."""
    lost = set(failed)
    rows = []
    for condition in dict.fromkeys(each.condition for each in results):
        leader = fastest(arms, results, condition)
        for each in arms:
            expected = _expect(each, arms, results, condition)
            if expected.source == "measured" or each.arm in lost or leader is None or not expected.tok_s_at_best:
                continue
            why = (
                f"at most {expected.tok_s_at_best:.1f} tok/s: accept length {expected.accept_length:.2f} from the "
                f"longest chain, cycle {expected.cycle_ms:.1f} ms interpolated, less {expected.margin:.0%} margin; "
                f"{leader} has {rate(results, leader, condition):.1f}"
            )
            rows.append({"cell": each.arm + condition, "why": why})
    return rows


def fastest(arms: Sequence[Candidate], results: Sequence[Result], condition: str) -> str | None:
    """The candidate with the highest mean rate under a condition."""
    measured = [each.arm for each in arms if rate(results, each.arm, condition)]
    return max(measured, key=lambda arm: rate(results, arm, condition), default=None)


def rate(results: Sequence[Result], arm: str, condition: str) -> float:
    """Mean tok/s of an arm's launches; 0 where there is none."""
    rates = [each.tok_s for each in results if (each.arm, each.condition) == (arm, condition)]
    return fmean(rates) if rates else 0.0


# --- the stages -----------------------------------------------------------------------------------------------------


def _ends(arms: Sequence[Candidate], measured: set[str]) -> Decision | None:
    families = _families(arms)
    for end, why in (
        (-1, "the longest chain of its family: its accepted drafts tell the accept length of every shorter one"),
        (0, "the shortest chain of its family: cycles between the two ends can be interpolated"),
    ):
        for family in families:
            if family[end].arm not in measured:
                text = why if family[end].drafts else "a tree: no other arm tells about it"
                return Decision(family[end].arm, 0, "measure", text)
    return None


def _promising(arms: Sequence[Candidate], results: Sequence[Result]) -> Decision | None:
    """The candidate that could beat the best by most, under any condition."""
    best: tuple[float, Decision] | None = None
    measured = {each.arm for each in results}
    for expected in outlook(arms, results):
        leader = fastest(arms, results, expected.condition)
        if expected.arm in measured or leader is None:
            continue
        bar = rate(results, leader, expected.condition)
        hope = expected.tok_s_at_best / bar - 1 if expected.tok_s_at_best else float("inf")
        if hope > WORTH_A_LAUNCH and (best is None or hope > best[0]):
            best = (hope, Decision(expected.arm, 0, "measure", _hope_in_words(expected, leader, bar)))
    return best[1] if best else None


def _hope_in_words(expected: Outlook, leader: str, bar: float) -> str:
    if expected.tok_s is None:
        return "nothing measured bounds its rate"
    return (
        f"expected {expected.tok_s:.1f}, at best {expected.tok_s_at_best:.1f} tok/s; the fastest so far, {leader}, "
        f"has {bar:.1f}"
    )


def _neighbours(arms: Sequence[Candidate], results: Sequence[Result]) -> Decision | None:
    measured = {each.arm for each in results}
    for condition in dict.fromkeys(each.condition for each in results):
        leader = fastest(arms, results, condition)
        for family in _families(arms):
            names = [each.arm for each in family]
            if leader not in names:
                continue
            place = names.index(leader)
            for name in names[max(0, place - 1) : place + 2]:
                if name not in measured:
                    return Decision(name, 0, "confirm", f"neighbour of the fastest, {leader}")
    return None


def _repeats(
    baseline: str, arms: Sequence[Candidate], results: Sequence[Result], lost: set[str], restarts: int, *, twin: bool
) -> Decision | None:
    again = [baseline.removesuffix("baseline") + TWIN] if twin else []
    done = {(each.arm, each.restart) for each in results}
    for restart in range(restarts):
        wanted = [baseline, *_finalists(arms, results), *again] if restart else [baseline, *again]
        for name in wanted if restart % 2 == 0 else reversed(wanted):
            if (name, restart) not in done and name not in lost:
                return Decision(name, restart, "confirm", _why_again(name, baseline, again, restart))
    return None


def _why_again(name: str, baseline: str, again: Sequence[str], restart: int) -> str:
    if name in again:
        return "the baseline as if it were another cell: the noise floor"
    if name == baseline:
        return f"restart {restart + 1} of what everything is compared with"
    return f"restart {restart + 1} of the best of its algorithm: a fresh server is the largest source of variance"


def _finalists(arms: Sequence[Candidate], results: Sequence[Result]) -> list[str]:
    """The best of each algorithm under each condition: the fastest of all is among them."""
    names: dict[str, None] = {}
    for condition in dict.fromkeys(each.condition for each in results):
        for algorithm in dict.fromkeys(each.algorithm for each in arms):
            best = fastest([each for each in arms if each.algorithm == algorithm], results, condition)
            if best:
                names.setdefault(best)
    return list(names)


# --- expectations ---------------------------------------------------------------------------------------------------


def _families(arms: Sequence[Candidate]) -> list[list[Candidate]]:
    families: dict[str, list[Candidate]] = {}
    for each in arms:
        families.setdefault(each.family, []).append(each)
    return [sorted(family, key=lambda each: each.drafts or 0) for family in families.values()]


def _expect(candidate: Candidate, arms: Sequence[Candidate], results: Sequence[Result], condition: str) -> Outlook:
    mine = [each for each in results if (each.arm, each.condition) == (candidate.arm, condition)]
    if mine:
        own = [each.cycle_ms for each in mine if each.cycle_ms]
        mean_rate, cycle_ms = fmean(each.tok_s for each in mine), fmean(own) if own else None
        length = mean_rate * cycle_ms / 1000 if cycle_ms else None
        return Outlook(candidate.arm, condition, "measured", length, cycle_ms, 0.0, mean_rate, mean_rate)
    family = {each.arm: each.drafts for each in arms if each.family == candidate.family}
    here = [each for each in results if each.condition == condition and each.arm in family]
    length = _length(candidate.drafts, here)
    cycles = _cycles(family, here)
    cost = cost_at(cycles, candidate.drafts) if candidate.drafts else None
    if length is None or cost is None or cost.cycle_ms is None:
        return Outlook(candidate.arm, condition, "unknown")
    margin = _margin(cycles)
    expected = 1000 * length / cost.cycle_ms
    at_best = expected / (1 - margin)
    return Outlook(candidate.arm, condition, "interpolated", length, cost.cycle_ms, margin, expected, at_best)


def _length(drafts: int | None, family: Sequence[Result]) -> float | None:
    """Accept length with so many drafts, told by the longest chain that ran; None where none was long enough."""
    longest = max((len(each.lengths) for each in family), default=0)
    if drafts is None or drafts >= longest:
        return None
    return fmean(each.lengths[drafts] for each in family if len(each.lengths) == longest)


def _cycles(family: dict[str, int | None], results: Sequence[Result]) -> dict[int, float]:
    by_drafts: dict[int, list[float]] = {}
    for each in results:
        drafts = family[each.arm]
        if drafts and each.cycle_ms:
            by_drafts.setdefault(drafts, []).append(each.cycle_ms)
    return {drafts: fmean(values) for drafts, values in by_drafts.items()}


def _margin(cycles: dict[int, float]) -> float:
    """Share of an interpolated cycle by which it may be too long: twice the worst miss at the known lengths."""
    lengths = sorted(cycles)
    misses = []
    for left, middle, right in zip(lengths, lengths[1:], lengths[2:], strict=False):
        between = cost_at({left: cycles[left], right: cycles[right]}, middle).cycle_ms
        assert between is not None
        misses.append(abs(cycles[middle] - between) / between)
    return min(0.5, max(MARGIN_LEAST, 2 * max(misses))) if misses else MARGIN_UNKNOWN
