"""What would change the answer: measured and modelled options, the plan and its file, sliders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from breakeven import analysis, artifacts
from breakeven.analysis import next_steps, outlook
from breakeven.config import BreakEvenSettings
from breakeven.costs import whatif
from breakeven.costs.whatif import Point
from breakeven.display import sliders
from tests import synthetic


def analyse(run_dir: Path) -> dict[str, Any]:
    return analysis.analyse(analysis.load(run_dir), BreakEvenSettings())


def with_shares(run_dir: Path, shares: dict[str, float], work: dict[str, float] | None = None) -> Path:
    content = artifacts.read_json(run_dir / "cells.json")
    for row in content["cells"]:
        own = shares if row["drafter"] != "none" else {"target forward": 1.0}
        row["profile"] = {"shares": own, "cycle_ms": 50.0, "n": 6}
        if work:
            row["profile"]["work_ms"] = {"verify": work, "decode": work}
    artifacts.write_json(run_dir / "cells.json", content)
    return run_dir


def options(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["option"]: row for row in (*result["outlook"]["plan"], *result["outlook"]["left_out"])}


def test_another_variant_that_was_measured_is_an_option_with_measured_effects(tmp_path: Path) -> None:
    cells = {"ngram-d4": (2.0, 1.25), "fused/ngram-d4": (2.0, 1.4)}
    result = analyse(synthetic.sweep(tmp_path, cells, baselines={"baseline": 1.0, "fused/baseline": 1.1}, noise=0.002))
    row = options(result)["variant fused"]
    assert row["evidence"] == "measured"
    assert row["base_gain"] == pytest.approx(1 / 1.1 - 1, abs=0.01)
    assert row["spec_gain"] == pytest.approx(1.25 / 1.4 - 1, abs=0.01)
    assert row["gain_low"] <= row["gain"] <= row["gain_high"]


def test_another_length_that_was_measured_is_an_option(tmp_path: Path) -> None:
    result = analyse(synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.25), "ngram-d8": (2.2, 1.6)}, noise=0.002))
    row = options(result)["7 drafts instead of 3"]
    assert row["evidence"] == "measured" and row["spec_gain"] == pytest.approx((2.2 / 1.6) / (2.0 / 1.25) - 1, abs=0.01)


def test_the_ranking_follows_from_the_numbers(tmp_path: Path) -> None:
    heavy = {"allreduce": 40.0, "attention": 1.0, "matmul": 8.0, "rest": 1.0, "all": 50.0}
    light = {"allreduce": 1.0, "attention": 1.0, "matmul": 47.0, "rest": 1.0, "all": 50.0}
    first = {}
    for name, work in (("heavy", heavy), ("light", light)):
        synthetic.sweep(tmp_path / name, {"ngram-d4": (2.0, 1.25)}, noise=0.002)
        found = analyse(with_shares(tmp_path / name, {"verify": 0.9, "other": 0.1}, work))
        first[name] = found["outlook"]["plan"][0]["option"]
    assert first["heavy"] == "topology (peer access, placement of ranks), 50% of the all-reduce time"
    assert first["light"] == "a better drafter (10 % more accept length)"


def test_what_a_bench_forecasts_of_fusing_stands_in_for_a_guessed_share(tmp_path: Path) -> None:
    heavy = {"allreduce": 40.0, "attention": 1.0, "matmul": 8.0, "rest": 1.0, "all": 50.0}
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.25)}, noise=0.0)
    measured = analysis.load(with_shares(tmp_path, {"verify": 0.9, "other": 0.1}, heavy))
    assert measured is not None
    result = analysis.analyse(measured, BreakEvenSettings())
    best, cycles = result["answer"]["best"], result["cycle"]
    ahead = outlook.outlook(best, measured.arms, result["comparisons"], cycles, {"ngram-d4": 5.0, "baseline": 2.0})
    row = next(row for row in ahead["plan"] if row["option"] == "fused all-reduce and RMSNorm")
    assert row["base_gain"] == pytest.approx(50 / 48 - 1) and row["spec_gain"] == pytest.approx(62.5 / 57.5 - 1)


def test_without_a_trace_of_all_reduces_nothing_is_promised_about_them(tmp_path: Path) -> None:
    result = analyse(synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.25)}))
    assert not any("all-reduce" in name for name in options(result))


def test_the_plan_is_a_file_too(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.25)})
    result = analyse(with_shares(tmp_path, {"draft": 0.1, "verify": 0.8, "other": 0.1}))
    analysis.save(result, [], tmp_path)
    text = (tmp_path / "plan.md").read_text()
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len(table) == 2 + len(result["next_steps"])
    assert "NGRAM with 4 draft tokens" in text and "A drafter twice as fast" in text
    assert artifacts.read_json(tmp_path / "breakeven.json")["outlook"]["plan"] == result["outlook"]["plan"]


def test_a_pipe_or_a_newline_in_a_name_does_not_break_the_plans_table() -> None:
    point = Point(2.0, 25.0, 10.0)
    found = outlook.of_point("a|b\nc", point, [outlook.plan.usual_options(point)[0]])
    steps = [{name: "x|y\nz" for name in next_steps.columns.STEPS}]
    line = next(line for line in next_steps.markdown(steps, found, "s").splitlines() if "x\\|y z" in line)
    assert line.replace("\\|", "").count("|") == len(next_steps.columns.STEPS) + 1


def test_the_sliders_start_at_the_measured_point_and_answer_to_a_move() -> None:
    pytest.importorskip("ipywidgets")
    box = sliders.what_if(Point(2.0, 25.0, 10.0, verify_ms=20.0, draft_ms=3.0))
    forward, draft, length = box.children[:3]
    assert (forward.value, draft.value, length.value) == (0, 0, 0)
    assert draft.max == 3.0
    row = whatif.what_if(Point(2.0, 25.0, 10.0), [whatif.target_forward("t", 5.0)])[1]
    assert row["break_even_accept_length"] > 2.5 and row["base_gain"] > row["spec_gain"] > 0
