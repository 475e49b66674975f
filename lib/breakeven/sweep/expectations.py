"""What is known or expected of every arm that speculates, from a few of them: rates that were not measured.

Chains that differ in length alone are a family. Its longest chain tells the accept length of every shorter one
(`accept_length_by_chain_over_requests`). A cycle is the target's forward over the chain's rows and a rest: drafts
and the host. The forward is jagged (kernels change with the shape), so it is measured, on the baseline's server with as
many requests in flight as the chain has rows; the rest is interpolated between measured lengths, and below the
shortest it lies between proportional to the drafts and the same. Where no forward was measured the whole cycle is
interpolated. The margin follows from how badly that did in this very family.

Everything here is a pure function of the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from breakeven.costs.formulas import cost_at, forward_by_drafts
from breakeven.launch.design import Arm

MARGIN_UNKNOWN = 0.10  # of an interpolated cycle, before a family has shown how jagged it is
MARGIN_OF_REST = 0.05  # the same where the target's forward is measured and the rest alone is told from other lengths
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
    """One launch of an arm under one condition. ``lengths[k]`` is the accept length that k drafts would have had.

    ``streams``: requests in flight. A verify of k drafts is a forward of ``streams * (k + 1)`` rows. A baseline may
    tell ``forward_ms``, milliseconds of the target's forward by its rows.
    """

    arm: str
    restart: int
    condition: str
    tok_s: float
    cycle_ms: float | None = None
    lengths: tuple[float, ...] = ()
    streams: int = 1
    forward_ms: Mapping[int, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Outlook:
    """What is known of a candidate under one condition; rates per stream in tok/s, None where nothing bounds them.

    ``source``: measured, interpolated between measured lengths, bounded from above by a longer one, or unknown.
    """

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


def outlook(arms: Sequence[Candidate], results: Sequence[Result]) -> list[Outlook]:
    """What is known or expected of every candidate under every condition that was measured."""
    conditions = list(dict.fromkeys(each.condition for each in results))
    return [expect(each, arms, results, condition) for condition in conditions for each in arms]


def fastest(arms: Sequence[Candidate], results: Sequence[Result], condition: str) -> str | None:
    """The candidate with the highest mean rate under a condition."""
    measured = [each.arm for each in arms if rate(results, each.arm, condition)]
    return max(measured, key=lambda arm: rate(results, arm, condition), default=None)


def rate(results: Sequence[Result], arm: str, condition: str) -> float:
    """Mean tok/s of an arm's launches; 0 where there is none."""
    rates = [each.tok_s for each in results if (each.arm, each.condition) == (arm, condition)]
    return fmean(rates) if rates else 0.0


def families(arms: Sequence[Candidate]) -> list[list[Candidate]]:
    families: dict[str, list[Candidate]] = {}
    for each in arms:
        families.setdefault(each.family, []).append(each)
    return [sorted(family, key=lambda each: each.drafts or 0) for family in families.values()]


def expect(candidate: Candidate, arms: Sequence[Candidate], results: Sequence[Result], condition: str) -> Outlook:
    mine = [each for each in results if (each.arm, each.condition) == (candidate.arm, condition)]
    if mine:
        own = [each.cycle_ms for each in mine if each.cycle_ms]
        mean_rate, cycle_ms = fmean(each.tok_s for each in mine), fmean(own) if own else None
        length = mean_rate * cycle_ms / 1000 if cycle_ms else None
        return Outlook(candidate.arm, condition, "measured", length, cycle_ms, 0.0, mean_rate, mean_rate)
    family = {each.arm: each.drafts for each in arms if each.family == candidate.family}
    here = [each for each in results if each.condition == condition and each.arm in family]
    length = _length(candidate.drafts, here)
    cycle = _cycle(candidate.drafts, _cycles(family, here), _forwards(results, condition))
    if length is None or cycle is None:
        return Outlook(candidate.arm, condition, "unknown")
    source, expected_ms, least_ms = cycle
    rates = 1000 * length / expected_ms, 1000 * length / least_ms
    return Outlook(candidate.arm, condition, source, length, expected_ms, 1 - least_ms / expected_ms, *rates)


def _cycle(
    drafts: int | None, cycles: Mapping[int, float], forward_ms: Mapping[int, float]
) -> tuple[str, float, float] | None:
    """How a chain's cycle is told from those of its family, its expected and its least milliseconds; None where nothing
    bounds it.

    ``forward_ms``: the target's forward by the chain's drafts.
    """
    if not drafts or not cycles:
        return None
    if {drafts, *cycles} <= forward_ms.keys():
        margin = _margin(cycles, forward_ms, MARGIN_OF_REST)
        shortest = min(cycles)
        if drafts < shortest:
            # a rest below nothing is a dear forward at that number of rows, and no gain for shorter chains
            rest = max(0.0, cycles[shortest] - forward_ms[shortest])
            least = rest * drafts / shortest
            return "bounded", forward_ms[drafts] + (rest + least) / 2, (forward_ms[drafts] + least) * (1 - margin)
        expected = cost_at(cycles, drafts, forward_ms).cycle_ms
        return None if expected is None else ("interpolated", expected, expected * (1 - margin))
    whole = cost_at(cycles, drafts).cycle_ms
    return None if whole is None else ("interpolated", whole, whole * (1 - _margin(cycles, {}, MARGIN_UNKNOWN)))


def _forwards(results: Sequence[Result], condition: str) -> dict[int, float]:
    """Milliseconds of the target's forward by the drafts that it verifies under a condition, as far as measured."""
    streams = next((each.streams for each in results if each.condition == condition), 1)
    by_rows = {rows: ms for each in results for rows, ms in each.forward_ms.items()}
    return forward_by_drafts(by_rows, streams)


def forwards_are_known(family: Sequence[Candidate], results: Sequence[Result]) -> bool:
    conditions = {each.condition for each in results}
    return all({each.drafts for each in family} <= _forwards(results, condition).keys() for condition in conditions)


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


def _margin(cycles: Mapping[int, float], forward_ms: Mapping[int, float], unknown: float) -> float:
    """Share of an interpolated cycle by which it may be too long, from the worst miss at the known lengths.

    Twice that where the forward, which is what jumps, is interpolated too.
    """
    lengths = sorted(cycles)
    misses = []
    for left, middle, right in zip(lengths, lengths[1:], lengths[2:], strict=False):
        expected = cost_at({each: cycles[each] for each in (left, right)}, middle, forward_ms).cycle_ms
        assert expected is not None
        misses.append(abs(cycles[middle] - expected) / expected)
    return min(0.5, max(MARGIN_LEAST, max(misses) * (1 if forward_ms else 2))) if misses else unknown
