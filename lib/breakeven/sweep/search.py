"""Which launch a sweep needs next, from what it has measured: most of a grid can be told from a few servers.

The ends of a family tell of what lies between them (`expectations`). A chain is left unmeasured only when it
can't win even with the whole margin in its favour. The winner and the best of each other algorithm are measured in
every restart and the winner's neighbours in the last, unless they are far behind.

Everything here is a pure function of the results: a sweep that was cut off decides the same again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from breakeven.launch.design import TWIN
from breakeven.sweep.expectations import (
    Candidate,
    Outlook,
    Result,
    expect,
    families,
    fastest,
    forwards_are_known,
    outlook,
    rate,
)

WORTH_A_LAUNCH = 0.02  # a candidate that can't be faster than the best by more is dropped
FAR_BEHIND = 0.10  # what stays behind the fastest by more, a neighbour even at its best, needs no further launch


@dataclass(frozen=True)
class Decision:
    """The next launch and the reason for it."""

    arm: str
    restart: int
    action: str
    why: str


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

    First the ends of every family; then whatever could still be the fastest, the most promising first. Further restarts
    repeat the baseline, the fastest and the best of each algorithm that is not far behind it, the order reversed in
    every second one; then come the neighbours of what is the fastest over all its restarts, in the last restart: its
    baseline ran most recently, and a machine drifts. ``twin`` adds the baseline's A/A twin to every restart. Arms that
    ``failed`` are no longer asked for.
    """
    lost = set(failed)
    alive = [each for each in arms if each.arm not in lost]
    measured = {each.arm for each in results}
    if baseline not in measured:
        if baseline in lost:
            return None  # nothing could be compared
        return Decision(baseline, 0, "measure", "what every drafter is compared with")
    return (
        _ends(alive, results)
        or _promising(alive, results)
        or _repeats(baseline, alive, results, lost, restarts, twin=twin)
        or _neighbours(alive, results, restarts)
    )


def dropped(arms: Sequence[Candidate], results: Sequence[Result], failed: Iterable[str]) -> list[dict[str, Any]]:
    """Every candidate that was not measured, with the reason."""
    lost = set(failed)
    rows = []
    for condition in dict.fromkeys(each.condition for each in results):
        leader = fastest(arms, results, condition)
        for each in arms:
            expected = expect(each, arms, results, condition)
            if expected.source == "measured" or each.arm in lost or leader is None or not expected.tok_s_at_best:
                continue
            why = (
                f"at most {expected.tok_s_at_best:.1f} tok/s: accept length {expected.accept_length:.2f} from the "
                f"longest chain, cycle {expected.cycle_ms:.1f} ms {expected.source}, less {expected.margin:.0%}; "
                f"{leader} has {rate(results, leader, condition):.1f}"
            )
            rows.append({"cell": each.arm + condition, "why": why})
    return rows


# --- the stages -----------------------------------------------------------------------------------------------------


def _ends(arms: Sequence[Candidate], results: Sequence[Result]) -> Decision | None:
    measured = {each.arm for each in results}
    for end, why in (
        (-1, "the longest chain of its family: its accepted drafts tell the accept length of every shorter one"),
        (0, "the shortest chain of its family: cycles between the two ends can be interpolated"),
    ):
        for family in families(arms):
            if end == 0 and forwards_are_known(family, results):
                continue
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


def _neighbours(arms: Sequence[Candidate], results: Sequence[Result], restarts: int) -> Decision | None:
    measured = {each.arm for each in results}
    for condition in dict.fromkeys(each.condition for each in results):
        leader = fastest(arms, results, condition)
        for family in families(arms):
            names = [each.arm for each in family]
            if leader not in names:
                continue
            place = names.index(leader)
            bar = rate(results, leader, condition) * (1 - FAR_BEHIND)
            for each in family[max(0, place - 1) : place + 2]:
                at_best = expect(each, arms, results, condition).tok_s_at_best
                if each.arm not in measured and (at_best is None or at_best > bar):
                    return Decision(each.arm, restarts - 1, "confirm", f"neighbour of the fastest, {leader}")
    return None


def _repeats(
    baseline: str, arms: Sequence[Candidate], results: Sequence[Result], lost: set[str], restarts: int, *, twin: bool
) -> Decision | None:
    again = [baseline.removesuffix("baseline") + TWIN] if twin else []
    done = {(each.arm, each.restart) for each in results}
    for restart in range(restarts):
        wanted = [baseline, *_finalists(arms, results), *again]
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
    """The best of each algorithm under each condition, unless it is far behind: the fastest of all is among them."""
    names: dict[str, None] = {}
    for condition in dict.fromkeys(each.condition for each in results):
        algorithms = dict.fromkeys(each.algorithm for each in arms)
        bests = [fastest([each for each in arms if each.algorithm == name], results, condition) for name in algorithms]
        rates = {best: rate(results, best, condition) for best in bests if best}
        bar = max(rates.values(), default=0.0) * (1 - FAR_BEHIND)
        names |= dict.fromkeys(best for best, its_rate in rates.items() if its_rate >= bar)
    return list(names)
