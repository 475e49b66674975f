"""Verdicts from samples: identities, what is left out, coverage on simulated sweeps, noise floors, thin data."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakeven import stats
from breakeven.display import show
from breakeven.errors import UserError
from breakeven.stats import conclusions, simulate
from breakeven.stats.simulate import AGAIN, BASELINE, World
from breakeven.stats.variance import Component, Spread, holm, prompt_component

SMALL = World(cycle_ms={2: 17.4, 5: 24.0}, prompts_per_kind=4)
CHAINS = ["chain-2", "chain-5"]


def sweep(seed: int = 0, restarts: int = 3, world: World = SMALL) -> pd.DataFrame:
    return simulate.measure(world, np.random.default_rng(seed), restarts)[0]


def one(samples: pd.DataFrame, cell: str = "chain-2", **options: object) -> dict:
    return stats.compare(samples, BASELINE, [cell], **options)[0]  # type: ignore[arg-type]


# --- figures --------------------------------------------------------------------------------------------------------


def test_figures_of_a_cell_are_ratios_of_sums_without_the_first_token() -> None:
    samples = pd.DataFrame(
        {
            "cell": ["base", "base", "ngram", "ngram"],
            "restart": 0,
            "phase": "measure",
            "prompt_id": ["a", "b"] * 2,
            "completion_tokens": [11, 31, 11, 31],
            "verify_ct": [None, None, 4, 16],
            "decode_s": [0.5, 1.5, 0.4, 1.2],
        }
    )
    cells = stats.summarise_cells(samples).set_index("cell")
    assert cells.loc["base", "tok_s"] == pytest.approx(40 / 2.0)
    assert cells.loc["base", "step_ms"] == pytest.approx(50)
    assert np.isnan(cells.loc["base", "accept_length"]) and np.isnan(cells.loc["base", "cycle_ms"])
    assert cells.loc["ngram", "accept_length"] == pytest.approx(2)
    assert cells.loc["ngram", "cycle_ms"] == pytest.approx(1000 * 2 / cells.loc["ngram", "tok_s"])
    result = stats.compare(samples, "base", ["ngram"])[0]
    assert result["speedup"]["estimate"] == pytest.approx(1.25)
    assert result["break_even"]["estimate"] == pytest.approx(1.6)


@given(seed=st.integers(0, 10_000), restarts=st.integers(1, 4))
@settings(max_examples=15)
def test_speedup_is_accept_length_over_break_even_and_the_margin_agrees(seed: int, restarts: int) -> None:
    found = one(sweep(seed, restarts))
    length, needed = found["accept_length"]["estimate"], found["break_even"]["estimate"]
    assert found["speedup"]["estimate"] == pytest.approx(length / needed)
    assert found["margin"]["estimate"] == pytest.approx(length - needed)
    for name in conclusions.FIGURES:
        assert found[name]["low"] <= found[name]["estimate"] <= found[name]["high"]
    assert (found["p_pays"] > 0.5) == (length > needed)
    json.dumps(found, allow_nan=False)


@given(order=st.permutations(range(8)), scale=st.floats(0.1, 10))
@settings(max_examples=10)
def test_neither_the_order_of_samples_nor_the_unit_of_time_matters(order: list[int], scale: float) -> None:
    samples = sweep()
    shuffled = pd.concat([samples[samples.index % 8 == part] for part in order])
    shuffled = shuffled.assign(decode_s=shuffled["decode_s"] * scale)
    first, second = one(samples), one(shuffled)
    assert second["speedup"]["low"] == pytest.approx(first["speedup"]["low"])
    assert second["verdict"] == first["verdict"]


def test_the_same_seed_gives_the_same_bootstrap() -> None:
    assert one(sweep(), seed=3) == one(sweep(), seed=3)
    assert one(sweep(), seed=3)["bootstrap"] != one(sweep(), seed=4)["bootstrap"]


def test_warm_up_and_degenerate_rows_are_left_out() -> None:
    clean = sweep().assign(degenerate=False)
    warm = clean.assign(phase="warm-up", decode_s=99.0)
    looping = (
        clean[clean["cell"] == "chain-2"]
        .head(3)
        .assign(prompt_id="loop", degenerate=True, completion_tokens=4000, verify_ct=10)
    )
    dirty = pd.concat([clean, warm, looping], ignore_index=True)
    assert one(dirty)["speedup"] == one(clean)["speedup"]
    cells = stats.summarise_cells(dirty)
    chain = cells[(cells["cell"] == "chain-2") & (cells["kind"] == "all")].iloc[0]
    assert chain["degenerate"] == 3 and chain["requests"] == 72


def test_a_rate_and_its_step_have_the_same_interval() -> None:
    cells = stats.summarise_cells(sweep(restarts=2)).set_index(["cell", "kind"])
    base = cells.loc[(BASELINE, "all")]
    assert 1000 / base["step_ms_high"] == pytest.approx(base["tok_s_low"])


def test_only_pairs_that_both_arms_have_are_compared() -> None:
    samples = sweep()
    slow = samples["prompt_id"].isin(["p000", "p001"]) & (samples["cell"] == BASELINE)
    partial = samples[~(samples["prompt_id"].isin(["p000", "p001"]) & (samples["cell"] == "chain-2"))]
    spoiled = partial.assign(decode_s=partial["decode_s"].where(~slow, 1e6))
    assert one(spoiled)["speedup"]["estimate"] == pytest.approx(one(partial)["speedup"]["estimate"])
    assert one(spoiled)["prompts"] == 22


def test_kinds_get_a_row_each_and_figures_of_their_own() -> None:
    rows = stats.compare(sweep(), BASELINE, CHAINS, by=["kind"])
    assert [(row["kind"], row["cell"]) for row in rows[:2]] == [("kind 0", "chain-2"), ("kind 0", "chain-5")]
    assert len(rows) == 12 and {row["prompts"] for row in rows} == {4}
    lengths = [row["accept_length"]["estimate"] for row in rows if row["cell"] == "chain-5"]
    assert lengths[-1] > lengths[0]
    cells = stats.summarise_cells(sweep())
    assert set(cells["kind"]) == {"all", *(f"kind {k}" for k in range(6))} and len(cells) == 4 * 7


# --- truth ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [2, 3])
def test_intervals_cover_the_truth_and_verdicts_hold(restarts: int) -> None:
    truth = simulate.truth(SMALL, prompts_per_kind=20_000)
    rng = np.random.default_rng(7)
    sweeps, covered, wrong = 120, dict.fromkeys(("speedup", "accept_length", "break_even", "margin"), 0), 0
    for index in range(sweeps):
        world = replace(SMALL, launch_sd=rng.uniform(0.01, 0.03))
        samples, _ = simulate.measure(world, rng, restarts)
        cell = CHAINS[index % 2]  # one per sweep: cells of a sweep share their prompts and are not independent
        found = one(samples, cell, aa_pairs=[(BASELINE, AGAIN)])
        true = truth.loc[cell]
        for name in covered:
            covered[name] += found[name]["low_alone"] <= true[name] <= found[name]["high_alone"]
        assert found["speedup"]["low"] <= found["speedup"]["low_alone"], "what decides is no narrower"
        wrong += found["verdict"] == ("does-not-pay" if true["speedup"] > 1 else "pays")
    # Of 120 independent 95 % intervals, 107 to 119 cover with probability 0.99.
    assert all(107 <= count <= 119 for count in covered.values()), covered
    assert wrong <= 0.05 * sweeps


def test_two_runs_of_the_same_cell_are_hardly_ever_called_different() -> None:
    rng = np.random.default_rng(11)
    verdicts = [stats.compare(simulate.measure(SMALL, rng, 2)[0], BASELINE, [AGAIN])[0]["verdict"] for _ in range(60)]
    assert verdicts.count("not-distinguishable") >= 54


def test_a_planted_slow_down_is_found_with_the_restarts_that_were_asked_for() -> None:
    rng = np.random.default_rng(5)
    found = 0
    for _ in range(30):
        pilot = _slowed(simulate.measure(SMALL, rng, 2)[0], 1.05)
        first = stats.compare(pilot, BASELINE, [AGAIN])[0]
        if first["verdict"] == "not-distinguishable" and first["repeats_to_decide"]:
            more = _slowed(simulate.measure(SMALL, rng, first["repeats_to_decide"])[0], 1.05)
            first = stats.compare(more, BASELINE, [AGAIN])[0]
        assert first["verdict"] != "pays"
        found += first["verdict"] == "does-not-pay"
    assert found >= 20  # asked for with a power of 80 %, from a pilot that does not know its own noise well


def _slowed(samples: pd.DataFrame, factor: float) -> pd.DataFrame:
    return samples.assign(decode_s=samples["decode_s"].where(samples["cell"] != AGAIN, samples["decode_s"] * factor))


def test_few_restarts_widen_the_interval() -> None:
    quiet = World(cycle_ms={2: 17.4, 5: 24.0}, prompts_per_kind=8, acceptance_spread=400.0)
    widths = []
    for restarts in (2, 6):
        ratios = [one(sweep(seed, restarts, quiet))["speedup"] for seed in range(12)]
        widths.append(np.mean([ratio["high"] / ratio["low"] for ratio in ratios]))
    assert widths[0] > widths[1]


# --- noise floor, several comparisons, what would decide -----------------------------------------------------------


def test_a_difference_inside_that_of_an_aa_pair_decides_nothing() -> None:
    quiet = replace(SMALL, launch_sd=0.0, round_sd=0.0, drift_sd=0.0, request_sd=0.0, acceptance_spread=1e6)
    samples = sweep(world=quiet)
    assert one(samples, "chain-2")["verdict"] != "not-distinguishable"
    noisy = _slowed(samples, 1.5)
    found = one(noisy, "chain-2", aa_pairs=[(BASELINE, AGAIN)])
    assert found["verdict"] == "not-distinguishable" and found["noise_floor"] == pytest.approx(0.5, abs=0.1)
    assert "runs of the same server differ by" in found["note"]


def test_an_undecided_comparison_says_what_would_decide_it() -> None:
    found = [row for seed in range(20) for row in stats.compare(sweep(seed, 2), BASELINE, CHAINS)]
    undecided = [row for row in found if row["verdict"] == "not-distinguishable"]
    assert undecided
    for row in undecided:
        assert (
            (row["repeats_to_decide"] is not None and row["repeats_to_decide"] > 2)
            or "prompts" in row["note"]
            or ("treat it as none" in row["note"])
        )
        assert row["detectable"] > 0
    assert all(row["repeats_to_decide"] is None for row in found if row["verdict"] != "not-distinguishable")


def test_restarts_to_decide_grow_as_the_effect_shrinks() -> None:
    spread = Spread((Component("restarts", 0.02**2, 3.0), Component("prompts", 0.0, 20.0)))
    counts = [conclusions.restarts_to_decide(effect, spread, 2, 0.95) for effect in (0.1, 0.05, 0.03)]
    assert all(counts) and counts == sorted(counts)  # type: ignore[type-var]
    assert conclusions.restarts_to_decide(0.001, spread, 2, 0.95) is None


def test_holm_adjusts_step_by_step() -> None:
    adjusted, factors = holm([0.01, 0.04, 0.03])
    assert adjusted == pytest.approx([0.03, 0.06, 0.06])
    assert factors * [0.01, 0.04, 0.03] == pytest.approx(adjusted)
    assert holm([0.5, 0.9])[0] == pytest.approx([1.0, 1.0])
    assert holm([0.0, 0.2])[1] == pytest.approx([2.0, 1.0])
    assert len(holm([])[0]) == 0


def test_more_comparisons_make_verdicts_harder() -> None:
    alone, among = one(sweep(), "chain-5"), stats.compare(sweep(), BASELINE, ["chain-5", AGAIN, "chain-2"])[0]
    assert among["p_adjusted"] >= alone["p_adjusted"]
    assert among["speedup"]["low"] <= alone["speedup"]["low"]
    assert (among["family"], alone["family"]) == (3, 1)


def test_questions_put_together_are_one_family() -> None:
    questions = [stats.Question(sweep(seed), BASELINE, CHAINS) for seed in range(3)]
    for question, rows in zip(questions, stats.compare_together(questions), strict=True):
        for row, own in zip(rows, stats.compare(question.samples, BASELINE, CHAINS), strict=True):
            together, alone = row["speedup"], own["speedup"]
            assert (row["cell"], row["family"], own["family"]) == (own["cell"], 6, 2)
            assert together["low"] <= alone["low"] and together["low_alone"] == alone["low_alone"]


@given(seed=st.integers(0, 10_000), restarts=st.integers(1, 4), drift=st.floats(0.7, 1.4))
@settings(max_examples=25)
def test_a_verdict_and_the_interval_beside_it_never_contradict_each_other(
    seed: int, restarts: int, drift: float
) -> None:
    samples = _slowed(sweep(seed, restarts), drift)
    for by in ([], ["kind"]):
        for row in stats.compare(samples, BASELINE, CHAINS, by=by, aa_pairs=[(BASELINE, AGAIN)]):
            for verdict, interval in (("verdict", "speedup"), ("verdict_same_prompts", "speedup_same_prompts")):
                low, high = row[interval]["low"], row[interval]["high"]
                expected = "pays" if low > 1 else "does-not-pay" if high < 1 else "not-distinguishable"
                assert row[verdict] == expected
            assert row["speedup"]["low"] <= row["speedup_same_prompts"]["low"]
            assert (row["p_pays"] > 0.975) or row["verdict"] != "pays"


@given(value=st.floats(0.2, 5.0), other=st.floats(0.2, 5.0))
def test_an_end_never_rounds_onto_the_other_side_of_1(value: float, other: float) -> None:
    for shown, end in zip(map(float, show.ends(value, other).split(" to ")), (value, other), strict=True):
        assert (shown > 1) == (end > 1 + 5e-7) and (shown < 1) == (end < 1 - 5e-7)


@given(low=st.floats(0.2, 5.0), width=st.floats(0.001, 2.0), where=st.floats(0, 1))
def test_an_interval_a_thousandth_wide_or_more_shows_its_width_around_its_estimate(
    low: float, width: float, where: float
) -> None:
    interval = {"low": low, "high": low + width, "estimate": low + where * width}
    first, second = show.ends(low, low + width).split(" to ")
    assert float(first) < float(second)
    assert float(first) <= float(show.estimate_of(interval)) <= float(second)
    assert show.cell(interval) == f"{show.estimate_of(interval)} ({first} to {second})"


@pytest.mark.parametrize(
    ("low", "high", "written"),
    [
        (1.1, 1.36, "1.10 to 1.36"),
        (1.2362, 1.2433, "1.236 to 1.243"),
        (1.23984, 1.24001, "1.2398 to 1.2400"),
        (1.5, 1.5, "1.5000 to 1.5000"),
        (0.99996, 1.2, "0.99996 to 1.20000"),
    ],
)
def test_a_narrow_interval_is_written_with_the_digits_that_show_its_width(
    low: float, high: float, written: str
) -> None:
    assert show.ends(low, high) == written


def test_too_few_prompts_are_not_cured_by_restarts() -> None:
    samples = sweep()
    for names in (["p000"], ["p000", "p001", "p002"]):
        row = one(samples[samples["prompt_id"].isin(names)])
        assert row["repeats_to_decide"] is None and row["prompts_to_decide"] >= conclusions.FEWEST_PROMPTS


def test_of_other_prompts_nothing_is_said_from_three() -> None:
    samples = sweep()
    few = samples[samples["prompt_id"].isin(["p000", "p001", "p002"])]
    row = one(few)
    assert row["verdict"] == "needs-more" and row["speedup"]["too_few"] == "too few prompts to say: n=3"
    assert row["speedup_same_prompts"]["too_few"] == "" and row["verdict_same_prompts"] != "needs-more"


def test_an_undecided_interval_that_spans_everything_says_nothing() -> None:
    samples = sweep(restarts=2)
    wild = (samples["cell"] == "chain-2") & (samples["restart"] == 1)
    row = one(samples.assign(decode_s=samples["decode_s"] * np.where(wild, 6.0, 1.0)))
    assert row["verdict"] == "not-distinguishable" and "differ too much to say" in row["speedup"]["too_few"]
    assert row["speedup"]["high"] > conclusions.WIDEST * row["speedup"]["low"]
    assert one(samples)["speedup"]["too_few"] == ""


def test_a_quiet_mean_of_two_loud_pairs_is_no_quiet_floor() -> None:
    quiet = replace(SMALL, launch_sd=0.0, round_sd=0.0, drift_sd=0.0, request_sd=0.0)
    samples = sweep(restarts=2, world=quiet)
    twin = samples["cell"] == AGAIN
    factor = np.where(twin & (samples["restart"] == 0), 1.1, np.where(twin, 1 / 1.1, 1.0))
    row = one(samples.assign(decode_s=samples["decode_s"] * factor), aa_pairs=[(BASELINE, AGAIN)])
    assert row["noise_floor"] == pytest.approx(1.1 ** (1 / 2**0.5) - 1, abs=0.01)
    assert row["noise_widest"] == pytest.approx(1.21 - 1, abs=0.01)


# --- variance components --------------------------------------------------------------------------------------------


def test_prompt_variance_leaves_out_noise_that_does_not_come_back() -> None:
    rng = np.random.default_rng(0)
    prompt, noise = rng.normal(0, 1, 400), rng.normal(0, 1, (3, 400))
    only_noise = prompt_component(noise / noise.size, np.zeros(400, int)).value
    both = prompt_component((prompt + noise) / noise.size, np.zeros(400, int)).value
    assert both == pytest.approx(1 / 400, rel=0.3)
    assert only_noise < 0.1 / 400


def test_prompt_variance_is_that_within_kinds() -> None:
    kinds = np.repeat([0, 1], 50)
    apart = np.tile(np.where(kinds == 0, -1.0, 1.0) / 200, (2, 1))
    assert prompt_component(apart, kinds).value == pytest.approx(0, abs=1e-12)
    assert prompt_component(apart, np.zeros(100, int)).value > 0.005


def test_degrees_of_freedom_lie_between_those_of_the_components() -> None:
    spread = Spread((Component("a", 1.0, 2.0), Component("b", 1.0, 8.0)))
    assert 2 < spread.df < 10 and spread.df == pytest.approx(4 / (1 / 2 + 1 / 8))
    assert spread.quantile(0.975) > 1.96 * spread.se


# --- thin and broken data -------------------------------------------------------------------------------------------


def test_one_restart_says_what_it_can_not_know_and_stays_wide() -> None:
    found = one(sweep(restarts=1))
    assert "one restart: launch noise assumed 2%" in found["note"] and "assumed" in found["method"]
    assert found["assumed_launch_sd"] == pytest.approx(0.02) and one(sweep())["assumed_launch_sd"] is None
    same = found["speedup_same_prompts"]
    assert same["high"] / same["low"] > 1.1


def test_prompts_of_their_own_in_every_restart_are_accepted() -> None:
    samples = sweep()
    nested = samples.assign(prompt_id=samples["prompt_id"] + "-" + samples["restart"].astype(str))
    found = one(nested)
    assert found["prompts"] == 72 and found["speedup"]["low"] < found["speedup"]["high"]


def test_a_cell_without_usable_samples_needs_more_and_the_others_stand() -> None:
    samples = sweep()
    broken = samples.assign(degenerate=samples["cell"] == "chain-5")
    rows = stats.compare(broken, BASELINE, CHAINS)
    assert [row["verdict"] for row in rows][1] == "needs-more" and rows[0]["speedup"] is not None
    assert "in common with baseline" in rows[1]["note"] and set(rows[0]) == set(rows[1])
    assert stats.compare(samples.assign(phase="warm-up"), BASELINE, CHAINS)[0]["verdict"] == "needs-more"
    assert stats.summarise_cells(samples.assign(phase="warm-up")).empty


def test_a_launch_that_failed_leaves_the_rest_comparable() -> None:
    samples = sweep()
    found = one(samples[~((samples["cell"] == "chain-2") & (samples["restart"] == 1))])
    assert found["restarts"] == 2 and found["verdict"] != "needs-more"


def test_samples_without_any_noise_are_no_trouble() -> None:
    samples = sweep(world=replace(SMALL, launch_sd=0.0, round_sd=0.0, drift_sd=0.0, request_sd=0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stats.compare(samples, BASELINE, [AGAIN])[0]["verdict"] == "not-distinguishable"
        stats.compare(samples[samples["prompt_id"] == "p000"], BASELINE, CHAINS)
        stats.summarise_cells(samples[samples["prompt_id"] == "p000"].head(1))


def test_samples_of_one_file_read_back_from_json_are_understood() -> None:
    rows = [json.loads(line) for line in sweep().drop(columns="correct_drafts_histogram").to_json(
        orient="records", lines=True).splitlines()]  # fmt: skip
    again = pd.DataFrame(rows).assign(degenerate=None)
    assert one(again)["speedup"]["estimate"] == pytest.approx(one(sweep())["speedup"]["estimate"])


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({}, {"cell": "chian-2"}, "did you mean 'chain-2'"),
        ({}, {"by": ["kid"]}, "did you mean 'kind'"),
        ({}, {"level": 95}, "between 0 and 1"),
        ({}, {"aa_pairs": [(BASELINE, "base-again")]}, "no cell 'base-again'"),
        ({"restart": None}, {}, "have no restart"),
    ],
)
def test_bad_questions_are_refused_in_one_line(change: dict, options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        one(sweep().assign(**change), **options)
    assert "\n" not in str(caught.value)


def test_cells_of_another_concurrency_are_not_compared() -> None:
    samples = sweep()
    mixed = samples.assign(concurrency=np.where(samples["cell"] == "chain-2", 8, 1))
    with pytest.raises(UserError, match="chain-2 ran at concurrency 8 and baseline at 1"):
        one(mixed)


def test_missing_columns_are_named() -> None:
    with pytest.raises(UserError, match="lack the columns verify_ct"):
        one(sweep().drop(columns="verify_ct"))
