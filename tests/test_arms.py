"""Arms of a sweep: read from cells.json, compared within their variant and condition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from breakeven import analysis, artifacts
from breakeven.analysis import arms
from breakeven.config import BreakEvenSettings
from tests import synthetic

GRID = {"ngram-d4": (2.0, 1.25), "fused/ngram-d4": (2.0, 1.15), "ngram-d4@c4": (2.0, 3.2)}
BASELINES = {"baseline": 1.0, "fused/baseline": 0.9, "baseline@c4": 1.5}


def analyse(run_dir: Path) -> dict[str, Any]:
    return analysis.analyse(analysis.load(run_dir), BreakEvenSettings())


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return analyse(synthetic.sweep(tmp_path_factory.mktemp("grid"), GRID, baselines=BASELINES))


def by_cell(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["cell"]: row for row in rows}


def test_each_arm_is_compared_with_the_baseline_of_its_own_variant_and_condition(grid: dict[str, Any]) -> None:
    rows = by_cell(grid["comparisons"])
    assert {name: row["against"] for name, row in rows.items()} == {
        "ngram-d4": "baseline",
        "fused/ngram-d4": "fused/baseline",
        "ngram-d4@c4": "baseline@c4",
    }
    assert rows["ngram-d4"]["break_even"]["estimate"] == pytest.approx(1.25, rel=0.03)
    assert rows["fused/ngram-d4"]["break_even"]["estimate"] == pytest.approx(1.15 / 0.9, rel=0.03)
    assert rows["ngram-d4@c4"]["break_even"]["estimate"] == pytest.approx(3.2 / 1.5, rel=0.03)


def test_other_variants_are_compared_with_the_default_baseline_too(grid: dict[str, Any]) -> None:
    rows = by_cell(grid["variants"])
    assert set(rows) == {"fused/baseline", "fused/ngram-d4"}
    assert rows["fused/baseline"]["speedup"]["estimate"] == pytest.approx(1 / 0.9, rel=0.03)
    assert rows["fused/ngram-d4"]["speedup"]["estimate"] == pytest.approx(2.0 / 1.15, rel=0.03)


def test_the_answer_names_the_condition_that_differs(grid: dict[str, Any]) -> None:
    assert grid["answer"]["sentence"].startswith("Yes. NGRAM with 4 draft tokens, variant fused, concurrency 1")
    elsewhere, fused, kinds = grid["answer"]["elsewhere"]
    by_kind = "By kind (8 prompts each, these alone): NGRAM with 4 draft tokens, variant fused, concurrency 1 pays on"
    assert kinds.startswith(by_kind)
    assert "concurrency 4 does not pay" in elsewhere
    assert fused.startswith("baseline, variant fused, concurrency 1 is faster than baseline, concurrency 1: 1.1")


def test_the_answer_stands_beside_the_fastest_baseline_of_its_condition(grid: dict[str, Any]) -> None:
    best = grid["answer"]["best"]
    assert best["cell"] == "fused/ngram-d4" and best["against"] == "fused/baseline"
    assert "as fast as the fastest baseline (variant fused)" in grid["answer"]["sentence"]


def test_family_counts_every_condition(grid: dict[str, Any]) -> None:
    assert {row["family"] for row in grid["comparisons"]} == {3} == {grid["answer"]["best"]["family"]}
    assert {row["family"] for row in grid["by_kind"]} == {6}
    assert "wide enough for 3 comparisons at once" in grid["answer"]["how"]


def test_answer_does_not_recommend_a_variant_slower_than_another_baseline(tmp_path: Path) -> None:
    cells = {"ngram-d4": (2.0, 2.1), "slow/ngram-d4": (2.0, 2.22)}
    result = analyse(synthetic.sweep(tmp_path, cells, baselines={"baseline": 1.0, "slow/baseline": 2.0}, noise=0.003))
    answer, step = result["answer"], result["next_steps"][0]
    assert answer["sentence"].startswith(
        "No. Even the best drafter measured, NGRAM with 4 draft tokens, decodes at 0.9"
    )
    assert "the fastest baseline (variant default)" in answer["sentence"] and answer["verdict"] == "does-not-pay"
    assert step["step"] == "Serve the fastest baseline (variant default), without speculation"
    assert by_cell(result["comparisons"])["slow/ngram-d4"]["verdict"] == "pays"
    assert any("variant slow pays beside the baseline of its own variant (1.8" in each for each in answer["elsewhere"])


def test_a_drafter_on_another_variant_has_to_beat_the_fastest_baseline_too(tmp_path: Path) -> None:
    cells = {"ngram-d4": (2.0, 2.4), "fused/ngram-d4": (2.0, 1.6)}
    result = analyse(synthetic.sweep(tmp_path, cells, baselines={"baseline": 1.0, "fused/baseline": 1.2}, noise=0.003))
    best, point = result["answer"]["best"], result["outlook"]["point"]
    assert (best["cell"], best["against"], best["verdict"]) == ("fused/ngram-d4", "baseline", "pays")
    assert best["speedup"]["estimate"] == pytest.approx(1.25, rel=0.01)
    assert by_cell(result["comparisons"])["fused/ngram-d4"]["speedup"]["estimate"] == pytest.approx(1.5, rel=0.01)
    assert point["step_ms"] == pytest.approx(50.0, rel=0.01) and point["cycle_ms"] == pytest.approx(80.0, rel=0.01)


def test_a_drafter_whose_speed_up_crosses_1_has_a_crossover_between_the_two(grid: dict[str, Any]) -> None:
    (row,) = [each for each in grid["curves"]["concurrency"] if each["crossover"]]
    assert 1 < row["crossover"] < 4
    assert any("changes at about" in sentence for sentence in grid["findings"])


def test_an_arm_whose_baseline_failed_needs_more_and_says_so(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, GRID, baselines=BASELINES)
    content = artifacts.read_json(tmp_path / "cells.json")
    for row in content["cells"]:
        if row["cell"] == "fused/baseline":
            row |= {"status": "failed", "failure": {"class": "hang", "text": "t", "advice": "a"}}
    artifacts.write_json(tmp_path / "cells.json", content)
    row = by_cell(analyse(tmp_path)["comparisons"])["fused/ngram-d4"]
    assert row["verdict"] == "needs-more" and "fused/baseline" in row["note"] and row["speedup"] is None


def test_the_baselines_second_half_stands_in_where_the_first_was_not_measured(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.25)}, baselines={"baseline": 1.0, "baseline-again": 1.0}, restarts=2)
    content = artifacts.read_json(tmp_path / "cells.json")
    content["cells"] = [row for row in content["cells"] if (row["cell"], row["restart"]) != ("baseline", 1)]
    artifacts.write_json(tmp_path / "cells.json", content)
    (row,) = analyse(tmp_path)["comparisons"]
    assert row["restarts"] == 2 and row["against"] == "baseline"


def test_arms_that_would_read_the_same_carry_their_names(tmp_path: Path) -> None:
    row = synthetic.launch_row("ngram-d4-b1", "a", 0, 0)
    words = arms.in_words(arms.arms_of([row, {**row, "cell": "ngram-d4-b4"}, {**row, "cell": "x", "draft_tokens": 8}]))
    assert words["ngram-d4-b1"] == "NGRAM with 4 draft tokens (ngram-d4-b1)"
    assert words["x"] == "NGRAM with 8 draft tokens"


def test_a_pinned_accept_length_is_warned_of_and_never_the_answer(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (1.1, 1.4), "eagle-d6": (5.0, 1.4)})
    content = artifacts.read_json(tmp_path / "cells.json")
    for row in content["cells"]:
        if row["cell"] == "eagle-d6":
            row["accept_length_pinned"] = 5.0
    artifacts.write_json(tmp_path / "cells.json", content)
    result = analyse(tmp_path)
    assert result["answer"]["best"]["cell"] == "ngram-d4"
    assert "accept-length-pinned" in {warning["code"] for warning in result["warnings"]}


def test_with_pinned_accept_lengths_alone_the_answer_is_the_bar_and_no_verdict(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"eagle-d6": (2.0, 1.4), "eagle-d2": (2.0, 1.2)})
    content = artifacts.read_json(tmp_path / "cells.json")
    for row in content["cells"]:
        row["accept_length_pinned"] = None if row["cell"] == "baseline" else 2.0
    artifacts.write_json(tmp_path / "cells.json", content)
    result = analyse(tmp_path)
    assert result["answer"]["sentence"].startswith("Not decided: accept lengths were pinned to 2")
    assert "NGRAM with 2 draft tokens breaks even at 1.2" in result["answer"]["sentence"]
    assert {row["verdict"] for row in result["comparisons"]} == {"needs-more"}
    assert result["by_kind"] == result["theory"] == result["left_out"] == []
    assert [row["step"][:25] for row in result["next_steps"]] == ["Measure the accept length"]


def test_an_accept_length_interval_stays_within_what_a_verify_can_give(tmp_path: Path) -> None:
    result = analysis.analyse(analysis.load(tmp_path / "nothing-here"), BreakEvenSettings())
    for row in result["comparisons"]:
        assert 1 <= row["accept_length"]["low"] <= row["accept_length"]["high"] <= row["drafts"] + 1


def test_accept_length_over_prompts_is_told_with_the_share_above_break_even(grid: dict[str, Any]) -> None:
    spread = by_cell(grid["comparisons"])["ngram-d4"]["prompts_accept_length"]
    assert spread["p10"] == spread["p50"] == spread["p90"] == pytest.approx(2.0)
    assert spread["above_break_even"] == 1.0


def test_of_two_named_variants_the_first_is_what_the_other_is_compared_with(tmp_path: Path) -> None:
    cells = {"unfused/ngram-d4": (2.0, 1.25), "fused/ngram-d4": (2.0, 1.15)}
    baselines = {"unfused/baseline": 1.0, "fused/baseline": 0.9}
    result = analyse(synthetic.sweep(tmp_path, cells, baselines=baselines))
    rows = by_cell(result["variants"])
    assert set(rows) == {"fused/baseline", "fused/ngram-d4"}
    assert {row["against"] for row in rows.values()} == {"baseline, variant unfused"}
    assert {row["outcome"] for row in rows.values()} == {"faster"}
    assert rows["fused/baseline"]["speedup"]["estimate"] == pytest.approx(1 / 0.9, rel=0.03)


def test_a_variant_inside_what_two_runs_of_one_server_differ_by_is_neither_faster_nor_slower(tmp_path: Path) -> None:
    cells = {"unfused/ngram-d4": (2.0, 1.25), "fused/ngram-d4": (2.0, 1.25)}
    baselines = {"unfused/baseline": 1.0, "unfused/baseline-again": 1.13, "fused/baseline": 1.07}
    result = analyse(synthetic.sweep(tmp_path, cells, baselines=baselines))
    row = by_cell(result["variants"])["fused/baseline"]
    assert row["verdict"] == "not-distinguishable" and row["noise_widest"] > 0.07
    assert row["speedup"]["low"] < 1 < row["speedup"]["high"]
    needed = by_cell(result["comparisons"])["fused/ngram-d4"]["break_even"]
    assert needed["high"] / needed["estimate"] > 1.07, "a bar is two rates, and no surer than they are"
