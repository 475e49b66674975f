"""The search: what it launches, what it leaves out, and whether it ever misses a clearly faster chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.costs import formulas
from breakeven.sweep import expectations, search
from breakeven.sweep.expectations import Candidate, Result
from breakeven.sweep.search import Decision


def chains(family: str, drafts: Sequence[int]) -> list[Candidate]:
    return [Candidate(f"{family}-{k}", family, family, k) for k in drafts]


class Machine:
    """A machine with known costs and acceptance, which a search may ask launch by launch."""

    def __init__(
        self, arms: list[Candidate], cycle_ms: Callable[[Candidate], float], acceptance: float, step_ms: float = 20.0
    ) -> None:
        self.arms = arms
        self.cycle_ms = cycle_ms
        self.acceptance = acceptance
        self.step_ms = step_ms
        self.forward_ms: dict[int, float] = {}
        self.broken: set[str] = set()

    def length(self, drafts: int) -> float:
        return formulas.expected_accept_length(self.acceptance, drafts)

    def rate(self, arm: Candidate) -> float:
        assert arm.drafts is not None
        return 1000 * self.length(arm.drafts) / self.cycle_ms(arm)

    def search(self, restarts: int = 2, *, twin: bool = False) -> list[Decision]:
        results: list[Result] = []
        decisions: list[Decision] = []
        lost: set[str] = set()
        while decision := search.decide("baseline", self.arms, results, lost, restarts, twin=twin):
            decisions.append(decision)
            assert len(decisions) <= restarts * (len(self.arms) + 2), "more launches than the grid has"
            if decision.arm in self.broken:
                lost.add(decision.arm)
                continue
            results.append(self.launch(decision))
        self.results = results
        return decisions

    def launch(self, decision: Decision) -> Result:
        if decision.arm.startswith("baseline"):
            return Result(decision.arm, decision.restart, "", 1000 / self.step_ms, forward_ms=self.forward_ms)
        arm = next(each for each in self.arms if each.arm == decision.arm)
        assert arm.drafts is not None
        lengths = tuple(self.length(k) for k in range(arm.drafts + 1))
        return Result(arm.arm, decision.restart, "", self.rate(arm), self.cycle_ms(arm), lengths)


def linear(candidate: Candidate) -> float:
    return 24.0 + 4.0 * (candidate.drafts or 0)


def test_two_families_of_seven_take_a_third_of_the_grid() -> None:
    arms = chains("eagle", range(1, 8)) + chains("ngram", range(1, 8))
    slow = Machine(arms, lambda each: linear(each) + (30.0 if each.family == "ngram" else 0.0), acceptance=0.6)
    decisions = slow.search(restarts=2)
    grid = 2 * (len(arms) + 1)
    assert len(decisions) <= grid / 3
    best = max(arms, key=slow.rate)
    assert expectations.fastest(arms, slow.results, "") == best.arm


def test_the_fastest_and_the_baseline_get_every_restart_and_its_neighbours_are_measured() -> None:
    machine = Machine(chains("eagle", range(1, 8)), linear, acceptance=0.6)
    launched = [(each.arm, each.restart) for each in machine.search(restarts=3, twin=True)]
    best = expectations.fastest(machine.arms, machine.results, "")
    assert best == max(machine.arms, key=machine.rate).arm
    place = int(best.split("-")[1])
    assert {(name, restart) for name in ("baseline", "baseline-again", best) for restart in range(3)} <= set(launched)
    assert {f"eagle-{place - 1}", f"eagle-{place + 1}"} <= {name for name, _ in launched}
    assert len(launched) == len(set(launched)), "no launch twice"


@pytest.mark.parametrize(("behind_ms", "repeated"), [(2.0, True), (30.0, False)])
def test_the_best_of_another_algorithm_is_repeated_unless_it_is_far_behind(behind_ms: float, repeated: bool) -> None:
    arms = chains("eagle", range(1, 8)) + chains("ngram", range(1, 8))
    machine = Machine(arms, lambda each: linear(each) + (behind_ms if each.family == "ngram" else 0.0), acceptance=0.6)
    again = {each.arm for each in machine.search(restarts=2) if each.restart == 1 and each.why.startswith("restart")}
    rival = max((each for each in arms if each.family == "ngram"), key=machine.rate)
    assert (rival.arm in again) is repeated
    assert expectations.fastest(arms, machine.results, "") in again, "the winner is measured in every restart"


def test_a_dip_in_a_jagged_cost_curve_is_found() -> None:
    """One step slower than three, as seen on a GPU: the margin follows from what the family itself has shown."""
    cycles = {1: 7.3, 2: 6.2, 3: 6.6, 4: 6.8, 5: 7.0}
    machine = Machine(chains("standalone", cycles), lambda each: cycles[each.drafts or 0], 0.3, step_ms=5.0)
    machine.search()
    assert expectations.fastest(machine.arms, machine.results, "") == "standalone-2"


def test_what_was_left_out_is_named_with_its_reason() -> None:
    machine = Machine(chains("eagle", range(1, 8)), linear, acceptance=0.6)
    launched = {each.arm for each in machine.search()}
    left_out = search.dropped(machine.arms, machine.results, ())
    assert {each["cell"] for each in left_out} == {each.arm for each in machine.arms} - launched
    assert left_out and all("at most" in each["why"] and "interpolated" in each["why"] for each in left_out)


def test_an_arm_that_fails_is_not_asked_for_again_and_the_rest_goes_on() -> None:
    machine = Machine(chains("eagle", range(1, 8)), linear, acceptance=0.6)
    machine.broken = {"eagle-7"}
    decisions = machine.search()
    assert [each.arm for each in decisions].count("eagle-7") == 1
    assert expectations.fastest(machine.arms, machine.results, "") == max(machine.arms[:-1], key=machine.rate).arm


def test_without_a_baseline_nothing_is_launched() -> None:
    assert search.decide("baseline", chains("eagle", [1, 2]), [], {"baseline"}, 2) is None


def test_a_tree_is_always_measured_since_no_other_arm_tells_about_it() -> None:
    arms = [*chains("eagle", [1, 2, 3]), Candidate("eagle-tree", "eagle", "a tree", None)]
    results = [Result("baseline", 0, "", 50.0)]
    results += [Result(f"eagle-{k}", 0, "", 60.0, 30.0, (1.0,) * (k + 1)) for k in (1, 2, 3)]
    decision = search.decide("baseline", arms, results, (), 1)
    assert decision is not None and decision.arm == "eagle-tree" and "tree" in decision.why


def test_a_chain_that_could_win_under_any_condition_is_measured() -> None:
    arms = chains("eagle", [1, 4, 8])
    lengths = tuple(formulas.expected_accept_length(0.9, k) for k in range(9))

    def at(condition: str, short_ms: float, long_ms: float) -> list[Result]:
        return [
            Result("baseline", 0, condition, 50.0),
            Result("eagle-1", 0, condition, 1000 * lengths[1] / short_ms, short_ms, lengths[:2]),
            Result("eagle-8", 0, condition, 1000 * lengths[8] / long_ms, long_ms, lengths),
        ]

    alone = at("", 30.0, 200.0)
    dropped = search.decide("baseline", arms, alone, (), 1)
    both = search.decide("baseline", arms, [*alone, *at("@c8", 30.0, 60.0)], (), 1)
    assert dropped is None or dropped.action == "confirm"
    assert both is not None and both.arm == "eagle-4" and both.action == "measure"


def jumping(candidate: Candidate) -> float:
    """A forward that costs half as much again beyond four rows, as kernels in blocks of four do, and a rest."""
    rows = (candidate.drafts or 0) + 1
    return (20.0 if rows <= 4 else 30.0) + (3.0 * (rows - 1) if candidate.family == "eagle" else 0.5)


def test_where_the_forward_is_measured_a_jump_costs_no_launches() -> None:
    arms = chains("eagle", range(1, 8)) + chains("ngram", range(1, 8))
    machine = Machine(arms, jumping, acceptance=0.6)
    blind = len(machine.search(restarts=2))
    machine.forward_ms = {rows: 20.0 if rows <= 4 else 30.0 for rows in range(1, 9)}
    seeing = machine.search(restarts=2)
    assert len(seeing) <= 2 * (len(arms) + 1) / 3 < blind
    assert expectations.fastest(arms, machine.results, "") == max(arms, key=machine.rate).arm
    told = {each.arm: each for each in expectations.outlook(arms, machine.results) if each.source != "measured"}
    for each in arms:
        if each.arm in told and told[each.arm].source == "interpolated":
            assert told[each.arm].tok_s == pytest.approx(machine.rate(each), rel=0.02)
        elif each.arm in told:
            assert told[each.arm].tok_s_at_best > machine.rate(each), "a bound holds"


def test_a_neighbour_that_is_far_behind_at_its_best_is_left_out() -> None:
    machine = Machine(chains("ngram", range(1, 8)), jumping, acceptance=0.6)
    machine.forward_ms = {rows: 20.0 if rows <= 4 else 30.0 for rows in range(1, 9)}
    launched = {each.arm for each in machine.search()}
    assert expectations.fastest(machine.arms, machine.results, "") == "ngram-3"
    assert "ngram-2" in launched and "ngram-4" not in launched
    assert "ngram-4" in {each["cell"] for each in search.dropped(machine.arms, machine.results, ())}


def test_what_was_measured_once_gets_its_restarts_before_its_neighbours_are_looked_at() -> None:
    machine = Machine(chains("eagle", range(1, 8)), linear, acceptance=0.6)
    decisions = machine.search(restarts=2)
    best = expectations.fastest(machine.arms, machine.results, "")
    again = next(i for i, each in enumerate(decisions) if (each.arm, each.restart) == (best, 1))
    late = [(i, each) for i, each in enumerate(decisions) if each.why.startswith("neighbour of")]
    assert late and all(i > again for i, _ in late)
    assert {each.restart for _, each in late} == {1}, "their baseline is the one that ran last"


@given(
    acceptance=st.floats(0.2, 0.95),
    forward_ms=st.lists(st.floats(10.0, 40.0), min_size=9, max_size=9),
    per_draft_ms=st.floats(0.0, 10.0),
    fixed_ms=st.floats(0.0, 10.0),
)
def test_the_choice_is_within_two_percent_of_the_best_however_the_forward_jumps(
    acceptance: float, forward_ms: list[float], per_draft_ms: float, fixed_ms: float
) -> None:
    arms = chains("eagle", range(1, 9))
    machine = Machine(
        arms, lambda each: forward_ms[each.drafts or 0] + fixed_ms + per_draft_ms * (each.drafts or 0), acceptance
    )
    machine.forward_ms = {rows: forward_ms[rows - 1] for rows in range(2, 10)}
    machine.search()
    chosen = next(each for each in arms if each.arm == expectations.fastest(arms, machine.results, ""))
    assert machine.rate(chosen) >= max(map(machine.rate, arms)) / (1 + search.WORTH_A_LAUNCH + 0.001)


@given(
    acceptance=st.floats(0.2, 0.95),
    fixed_ms=st.floats(5.0, 40.0),
    per_draft_ms=st.floats(0.1, 10.0),
    jags=st.lists(st.floats(0.985, 1.015), min_size=8, max_size=8),
)
def test_the_choice_is_within_two_percent_of_the_best_where_cycles_are_nearly_straight(
    acceptance: float, fixed_ms: float, per_draft_ms: float, jags: list[float]
) -> None:
    arms = chains("eagle", range(1, 9))
    machine = Machine(
        arms, lambda each: (fixed_ms + per_draft_ms * (each.drafts or 0)) * jags[(each.drafts or 1) - 1], acceptance
    )
    machine.search()
    chosen = next(each for each in arms if each.arm == expectations.fastest(arms, machine.results, ""))
    assert machine.rate(chosen) >= max(map(machine.rate, arms)) / (1 + search.WORTH_A_LAUNCH + 0.001)


PUBLIC_SWEEPS = {
    # vllm-project/vllm pull request 20780, Llama-3.1-8B at batch 1: chain length -> (tok/s, accept length)
    "EAGLE": {2: (228.83, 2.10), 3: (233.10, 2.29), 5: (212.31, 2.43), 6: (202.43, 2.45)},
    "EAGLE3": {2: (231.48, 2.36), 4: (246.91, 3.08), 6: (238.10, 3.46)},
}


@pytest.mark.parametrize("family", PUBLIC_SWEEPS)
def test_on_published_step_sweeps_the_choice_is_the_best_of_the_grid(family: str) -> None:
    points = PUBLIC_SWEEPS[family]
    arms = chains(family, points)
    lengths = tuple(np.interp(range(max(points) + 1), [0, *points], [1.0, *(length for _, length in points.values())]))
    results = [Result("baseline", 0, "", 141.44)]
    while decision := search.decide("baseline", arms, results, (), 1):
        drafts = int(decision.arm.split("-")[1])
        rate, length = points[drafts]
        results.append(Result(decision.arm, 0, "", rate, 1000 * length / rate, lengths[: drafts + 1]))
    best = max(points, key=lambda drafts: points[drafts][0])
    assert expectations.fastest(arms, results, "") == f"{family}-{best}"
