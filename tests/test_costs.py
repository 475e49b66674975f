"""Formulas of speculation: the identities, chains out of histograms, theory, cost curves, what-if, plan."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.costs import formulas, plan, whatif
from breakeven.costs.whatif import Change, Point, target_forward
from breakeven.errors import UserError

positive = st.floats(0.1, 1e4)
probability = st.floats(0.0, 1.0)
# As reported once: 82 tok/s without, 60 tok/s at accept length 2 with speculation, verify 30 ms.
STORY = Point(accept_length=2.0, cycle_ms=1000 * 2 / 60, step_ms=1000 / 82, verify_ms=30.0)


@pytest.mark.parametrize(
    ("cycle_ms", "base_tok_s", "accept_length"), [(30, 82, 2.46), (28, 82, 2.30), (22, 82, 1.80), (6.56, 206, 1.35)]
)
def test_break_even_of_published_figures(cycle_ms: float, base_tok_s: float, accept_length: float) -> None:
    step_ms = formulas.baseline_step_ms(1, base_tok_s)
    assert round(formulas.break_even_accept_length(cycle_ms, step_ms), 2) == accept_length


def test_the_cycle_that_a_rate_implies() -> None:
    assert formulas.cycle_ms(1, 2.0, 60) == pytest.approx(33.3, abs=0.05)
    assert formulas.cycle_ms(64, 2.43, 2339) == pytest.approx(66.49, abs=0.005)


@given(batch=positive, length=st.floats(1, 16), rate=positive, base=positive)
def test_speedup_is_the_ratio_of_rates_and_one_at_break_even(
    batch: float, length: float, rate: float, base: float
) -> None:
    cycle, step = formulas.cycle_ms(batch, length, rate), formulas.baseline_step_ms(batch, base)
    needed = formulas.break_even_accept_length(cycle, step)
    assert formulas.speedup(length, cycle, step) == pytest.approx(rate / base)
    assert formulas.speedup(needed, cycle, step) == pytest.approx(1)
    assert formulas.spec_tok_s(batch, length, cycle) == pytest.approx(rate)
    assert formulas.accept_length(batch, rate, cycle) == pytest.approx(length)


@given(cycle=st.floats(11, 100), step=st.floats(5, 10), saved=st.floats(0.01, 4))
def test_a_faster_target_forward_raises_break_even_while_both_rates_rise(
    cycle: float, step: float, saved: float
) -> None:
    before, after = Point(2.0, cycle, step), whatif.apply(Point(2.0, cycle, step), target_forward("x", saved))
    assert after.break_even > before.break_even
    assert after.base_tok_s > before.base_tok_s and after.spec_tok_s > before.spec_tok_s


def test_a_saving_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves nothing"):
        formulas.break_even_after(30, 12, 5, 12)


def test_shorter_chains_from_the_histogram_of_correct_drafts() -> None:
    # 26 tokens in 7 verifies, one of them with no draft right and six with three.
    assert formulas.accept_length_by_chain([1, 0, 0, 6]) == pytest.approx([1, 1 + 6 / 7, 1 + 12 / 7, 1 + 18 / 7])
    assert formulas.acceptance_by_position([1, 0, 0, 6]) == pytest.approx([6 / 7, 1, 1])
    assert formulas.accept_length_by_chain([25]) == pytest.approx([1])
    assert np.isnan(formulas.acceptance_by_position([3, 0, 0])[1])


@given(st.lists(st.integers(0, 50), min_size=2, max_size=9).filter(any))
def test_chains_grow_with_length_and_never_beyond_it(histogram: list[int]) -> None:
    lengths = formulas.accept_length_by_chain(histogram)
    assert np.all(np.diff(lengths) >= -1e-12) and np.all(np.diff(lengths) <= 1 + 1e-12)
    assert lengths[-1] == pytest.approx(1 + np.average(np.arange(len(histogram)), weights=histogram))


def test_a_workload_weighs_prompts_by_the_verifies_of_the_chain_asked_for() -> None:
    easy, hard = [0, 0, 0, 25], [100, 0, 0, 0]  # 100 tokens each: 25 verifies at AL 4, 100 at AL 1
    lengths = formulas.accept_length_by_chain_over_requests([easy, hard], [100, 100])
    assert lengths == pytest.approx([1, 200 / 150, 200 / (100 / 3 + 100), 200 / 125])
    assert formulas.accept_length_by_chain(np.add(easy, hard))[1] == pytest.approx(1.2)  # what pooling would have said
    mixed = formulas.accept_length_by_chain_over_requests([[1, 1], [0, 0, 2]], [3, 6])  # different lengths
    assert len(mixed) == 3


@pytest.mark.parametrize("histogram", [[], [0, 0], [1, -1], [math.nan, 1]])
def test_a_histogram_without_counts_is_refused(histogram: list[float]) -> None:
    with pytest.raises(UserError, match="histogram of correct drafts"):
        formulas.accept_length_by_chain(histogram)


def test_one_histogram_per_request_is_needed() -> None:
    with pytest.raises(UserError, match="1 histograms of correct drafts for 2 requests"):
        formulas.accept_length_by_chain_over_requests([[1, 2]], [3, 4])


def test_theory_of_leviathan_at_its_limits() -> None:
    assert formulas.expected_accept_length(0.0, 5) == 1
    assert formulas.expected_accept_length(1.0, 5) == 6
    assert formulas.expected_accept_length(0.8, 4) == pytest.approx(1 + 0.8 + 0.64 + 0.512 + 0.4096)
    assert formulas.expected_speedup(0.8, 4, 0.0) == pytest.approx(formulas.expected_accept_length(0.8, 4))
    assert formulas.expected_speedup(0.0, 4, 0.1) == pytest.approx(1 / 1.4)
    assert formulas.expected_tree_speedup(3.0, 1.0, 4, 0.1) == pytest.approx(3 / 1.4)  # t(n) = 1: Leviathan's cost


@given(acceptance=st.floats(0.01, 0.99), drafts=st.integers(1, 10))
def test_required_acceptance_inverts_the_expected_length(acceptance: float, drafts: int) -> None:
    length = formulas.expected_accept_length(acceptance, drafts)
    assert formulas.required_acceptance(length, drafts) == pytest.approx(acceptance, abs=1e-6)


def test_required_acceptance_says_when_no_drafter_is_good_enough() -> None:
    assert formulas.required_acceptance(2.73, 1) is None
    assert formulas.required_acceptance(0.9, 3) == 0.0


def test_cost_between_measured_lengths_is_interpolated_and_outside_unknown() -> None:
    measured = {1: 7.3, 3: 6.56, 5: 8.0}  # one draft slower than three: curves are not monotone
    assert formulas.cost_at(measured, 3) == formulas.Cost(3, 6.56, "measured")
    assert formulas.cost_at(measured, 2) == formulas.Cost(2, pytest.approx(6.93), "interpolated")
    assert formulas.cost_at(measured, 6) == formulas.Cost(6, None, "outside")
    assert formulas.cost_at({}, 1).source == "outside"


def test_a_jump_of_the_target_s_forward_is_in_the_cycles_between() -> None:
    forward_ms = {1: 10.0, 2: 10.0, 3: 10.0, 4: 20.0, 5: 20.0}  # by drafts: a kernel changes at five rows
    measured = {1: 12.0, 5: 26.0}
    assert [formulas.cost_at(measured, k, forward_ms).cycle_ms for k in (2, 3, 4)] == pytest.approx([13, 14, 25])
    unknown = {k: ms for k, ms in forward_ms.items() if k != 3}
    assert formulas.cost_at(measured, 3, unknown).cycle_ms == pytest.approx(19), "a line where the forward is not known"
    rows = formulas.chain_table([1, 1.5, 1.7, 1.8, 1.9, 1.95], measured, 11.0, forward_ms=forward_ms)
    assert rows[2].cycle_ms == pytest.approx(14)


def test_the_forward_of_a_verify_is_that_of_the_rows_of_all_streams() -> None:
    by_rows = {1: 5.0, 4: 8.0, 8: 9.0}
    assert formulas.forward_by_drafts(by_rows, 1)[3] == 8.0
    assert formulas.forward_by_drafts(by_rows, 4) == {0: 8.0, 1: 9.0}
    assert formulas.forward_by_drafts(by_rows, 2) == {0: pytest.approx(6.0), 1: 8.0, 2: 8.5, 3: 9.0}
    assert formulas.forward_by_drafts({}, 1) == {}


def test_chain_table_marks_what_is_predicted() -> None:
    rows = formulas.chain_table([1, 1.6, 1.9, 2.0, 2.05], {1: 7.3, 3: 6.56}, step_ms=4.85)
    assert [row.cycle_source for row in rows] == ["measured", "interpolated", "measured", "outside"]
    assert rows[2].speedup == pytest.approx(2.0 * 4.85 / 6.56)
    assert rows[3].spec_tok_s is None and rows[3].accept_length == 2.05


def test_what_if_shows_both_arms_apart() -> None:
    rows = whatif.what_if(STORY, [target_forward("fused", 2.0), target_forward("fused", 8.0)])
    assert [round(row["break_even_accept_length"], 2) for row in rows] == [2.73, 3.07, 6.04]
    assert [round(row["spec_tok_s"], 1) for row in rows] == [60.0, 63.8, 78.9]
    assert all(row["base_gain"] > row["spec_gain"] for row in rows[1:])
    assert [row["evidence"] for row in rows] == ["measured", "modelled", "modelled"]


def test_what_if_refuses_a_saving_longer_than_the_step_in_one_line() -> None:
    with pytest.raises(UserError, match=r"fused: a saving of 24.4 ms .* give smaller savings"):
        whatif.what_if(STORY, [target_forward("fused", 24.4)])


def test_smallest_change_brings_the_speedup_to_one() -> None:
    levers = {row["lever"]: row for row in whatif.smallest_change_that_pays(STORY)}
    assert levers["accept length"]["needed"] == pytest.approx(0.733, abs=1e-3)
    saved = levers["verify alone"]["needed"]
    assert whatif.apply(STORY, Change("x", verify_saved_ms=saved)).speedup == pytest.approx(1)
    assert levers["verify alone"]["reachable"] is True
    assert levers["drafting"]["reachable"] is None
    assert levers["target forward (verify and baseline step)"]["reachable"] is False


def test_a_drafter_that_costs_less_than_is_missing_is_no_lever() -> None:
    point = Point(accept_length=2.0, cycle_ms=33.3, step_ms=12.2, verify_ms=30.0, draft_ms=3.0)
    drafting = next(row for row in whatif.smallest_change_that_pays(point) if row["lever"] == "drafting")
    assert drafting["reachable"] is False and "at most 3.00 ms" in drafting["text"]


def test_where_speculation_pays_the_limit_of_a_faster_forward_is_named() -> None:
    point = Point(accept_length=2.0, cycle_ms=6.56, step_ms=4.85)
    forward = whatif.smallest_change_that_pays(point)[-1]
    limit = 2 * 4.85 - 6.56
    assert f"{limit:.2f} ms" in forward["text"] and forward["needed"] == pytest.approx(-limit)
    assert whatif.apply(point, target_forward("x", limit)).speedup == pytest.approx(1)


def test_tornado_puts_the_widest_swing_first_and_says_what_flips_the_answer() -> None:
    rows = whatif.tornado(STORY, {"accept_length": (1.5, 3.0)})
    assert rows[0]["quantity"] == "accept_length" and rows[0]["changes_the_answer"]
    assert [row["swing"] for row in rows] == sorted((row["swing"] for row in rows), reverse=True)
    assert not any(row["changes_the_answer"] for row in rows[1:])
    with pytest.raises(UserError, match="no quantity 'draft_ms'"):
        whatif.tornado(STORY, {"draft_ms": (1, 2)})


def test_plan_ranks_by_expected_gain_and_follows_the_figures() -> None:
    point = Point(accept_length=2.0, cycle_ms=14.0, step_ms=9.0, verify_ms=11.0, draft_ms=2.0)
    rows, _ = plan.plan(point, plan.usual_options(point, allreduce_ms=3.0))
    assert [row["rank"] for row in rows] == list(range(1, len(rows) + 1))
    assert all(row["gain_low"] <= row["gain"] <= row["gain_high"] for row in rows)
    assert {row["evidence"] for row in rows} == {"modelled"}
    rank = {row["option"]: row["rank"] for row in rows}
    little = {row["option"]: row["rank"] for row in plan.plan(point, plan.usual_options(point, allreduce_ms=0.1))[0]}
    drafter = "a better drafter (10 % more accept length)"
    assert little[drafter] == 1 < rank[drafter]  # all-reduce options lead only where there is all-reduce time


def test_plan_prefers_less_effort_where_gains_are_alike() -> None:
    point = Point(accept_length=2.0, cycle_ms=14.0, step_ms=9.0)
    options = [
        plan.Option.ranging(Change(name, draft_saved_ms=1.0), 0.5, 2.0, days, 0.5, "try", "refute")
        for name, days in (("slow", 9.0), ("quick", 1.0))
    ]
    assert [row["option"] for row in plan.plan(point, options)[0]] == ["quick", "slow"]


def test_what_is_likely_to_lose_or_not_enough_is_left_out_of_the_ranking_with_its_reason() -> None:
    point = Point(accept_length=2.0, cycle_ms=30.0, step_ms=10.0)
    losing = plan.Option.ranging(Change("slower", step_saved_ms=-1.0), 0.5, 2.0, 1.0, 0.5, "try", "refute")
    short = plan.Option.ranging(Change("not enough", draft_saved_ms=2.0), 0.5, 2.0, 1.0, 0.5, "try", "refute")
    gaining = plan.Option.ranging(target_forward("forward", 1.0), 0.5, 2.0, 1.0, 0.5, "try", "refute")
    ranked, others = plan.plan(point, [losing, short, gaining])
    assert [(row["option"], row["arm"]) for row in ranked] == [("forward", "baseline")]
    reasons = {row["option"]: row["why"] for row in others}
    assert reasons["slower"].startswith("modelled, -") and "still slower than the baseline" in reasons["not enough"]


def test_a_measured_shorter_chain_is_an_option_of_its_own() -> None:
    point = Point(accept_length=2.05, cycle_ms=8.0, step_ms=4.85)
    chains = formulas.chain_table([1, 1.6, 1.9, 2.0, 2.05], {1: 7.3, 3: 6.56, 4: 8.0}, 4.85)
    rows, _ = plan.plan(point, plan.usual_options(point, chain=4, chains=chains))
    shorter = next(row for row in rows if row["option"] == "3 draft tokens instead of 4")
    assert shorter["evidence"] == "measured"
    assert shorter["spec_gain"] == pytest.approx((2.0 / 6.56) / (2.05 / 8.0) - 1)


def test_allreduces_longer_than_the_step_are_no_basis_for_a_plan() -> None:
    with pytest.raises(UserError, match="do not fit into a baseline step"):
        plan.usual_options(STORY, allreduce_ms=24.4)


@pytest.mark.parametrize("wrong", [0.0, -1.0, math.nan, math.inf])
def test_a_point_needs_figures_above_zero(wrong: float) -> None:
    with pytest.raises(UserError, match="cycle_ms is"):
        Point(2.0, wrong, 12.0)
