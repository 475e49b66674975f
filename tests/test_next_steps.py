"""What to do next: one list, led by the measurement that would decide while the verdict is open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from breakeven import analysis, artifacts
from breakeven.analysis import next_steps
from breakeven.config import BreakEvenSettings
from tests import synthetic


def analyse(run_dir: Path) -> dict[str, Any]:
    return analysis.analyse(analysis.load(run_dir), BreakEvenSettings())


def test_a_decided_answer_is_used_first_and_then_improved(tmp_path: Path) -> None:
    steps = analyse(synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.25)}))["next_steps"]
    assert steps[0]["step"] == "Serve with NGRAM with 4 draft tokens" and steps[0]["brings"].startswith("+")
    assert [row["kind"] for row in steps[1:]] == ["change"] * (len(steps) - 1) and len(steps) > 1


def test_where_speculation_loses_the_first_step_is_to_leave_it_off(tmp_path: Path) -> None:
    steps = analyse(synthetic.sweep(tmp_path, {"ngram-d4": (1.1, 1.4)}))["next_steps"]
    assert steps[0]["step"] == "Serve without speculation"


def test_an_open_verdict_is_led_by_the_measurement_that_would_decide_it(tmp_path: Path) -> None:
    result = analyse(synthetic.sweep(tmp_path, {"ngram-d4": (1.3, 1.25)}, noise=0.03, restarts=2))
    best, first = result["answer"]["best"], result["next_steps"][0]
    assert first["kind"] == "measure" and best["verdict"] == "not-distinguishable"
    assert best["repeats_to_decide"] and f"restarts={best['repeats_to_decide']}" in first["how"]


def test_where_prompts_make_it_open_more_prompts_come_first(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.4)}, noise=0.002)
    rows = artifacts.read_jsonl(tmp_path / "samples.jsonl")
    for row in rows:
        if row["cell"] == "ngram-d4":
            row["decode_s"] *= 0.5 + (int(row["prompt_id"].rpartition("-")[2]) % 4) * 0.5
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "prompts of these kinds" in analyse(tmp_path)["next_steps"][0]["step"]


def test_too_few_prompts_ask_for_prompts_and_not_for_restarts(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.95)}, noise=0.004, restarts=2, prompts_per_kind=1)
    first = analyse(tmp_path)["next_steps"][0]
    assert first["step"].endswith("prompts or more") and "prompts_per_kind=" in first["how"]
    assert int(first["step"].split()[1]) >= 4 and "restarts" not in first["how"]


@pytest.mark.parametrize(("explained", "first_words"), [(False, "Find out why"), (True, "Measure more restarts:")])
def test_loud_launches_are_looked_into_while_the_verdict_is_open(explained: bool, first_words: str) -> None:
    rates = "243, 332 tok/s per stream"
    noise = [{"cell": "x", "drafter": "X", "spread": 0.36, "rates": rates, "explained": explained}]
    noise += [{"cell": "y", "drafter": "Y", "spread": 0.45, "rates": rates, "explained": True}] * (not explained)
    pinned = {"accept_length_pinned": 2.0, "break_even": {"estimate": 1.2}}
    steps = next_steps.next_steps({"best": None}, [pinned], None, None, {"random_weights": True}, noise=noise)
    assert [row["step"].partition(" in the same")[0] for row in steps] == [
        "Measure the accept length", f"{first_words} launches of X differ by 36%",
    ]  # fmt: skip
    assert "trained weights" in steps[0]["step"] and "243, 332" in steps[1]["brings"]


def test_a_launch_that_was_slow_while_measured_is_the_reason_where_launches_differ_by_it(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.99)}, noise=0.02)
    content = artifacts.read_json(tmp_path / "cells.json")
    for row in content["cells"]:
        row["profile"] = {"untraced": {"cycle_ms": 9.0, "text_tokens": 90.0, "measured_text_tokens": 90.0}}
        row |= {"tok_s": 60.0, "step_ms" if row["cell"] == "baseline" else "cycle_ms": 9.0}
        if (row["cell"], row["restart"]) == ("ngram-d4", 1):
            row |= {"tok_s": 60.0 / 1.3, "cycle_ms": 1.3 * 9.0}
    artifacts.write_json(tmp_path / "cells.json", content)
    result = analyse(tmp_path)
    step = next(row for row in result["next_steps"] if row["step"].startswith("Measure more restarts"))
    assert "the machine being slow while ngram-d4, restart 2, was measured" in step["brings"]
    assert result["warnings"][0]["code"] == "launches-differ", "the one on the first screen"


@pytest.mark.parametrize("left_out", [[], [{"option": "o", "why": "measured, -6.4%"}]])
def test_what_is_not_ranked_stands_in_one_line(left_out: list[dict[str, str]]) -> None:
    text = next_steps.left_out_in_words({"left_out": left_out})
    assert text == ("Left out, since nothing is likely to be gained: o (measured, -6.4%)." if left_out else "")


def test_arms_that_cant_be_told_from_the_best_are_named_where_it_is_recommended(tmp_path: Path) -> None:
    cells = {"ngram-d4": (2.0, 1.25), "ngram-d6": (2.0, 1.25), "ngram-d8": (2.0, 1.7)}
    first = analyse(synthetic.sweep(tmp_path, cells, seed=3))["next_steps"][0]
    rival = {"4": "6", "6": "4"}[first["step"].split()[4]]
    told = f"not shown to be faster than NGRAM with {rival} draft tokens, which pays on these prompts too"
    assert told in first["brings"]


@pytest.mark.parametrize(
    ("estimate", "low", "high", "brings"),
    [
        (1.34, 1.12, 1.60, "+34% (+12% to +60%) over the baseline"),
        (1.2398, 1.2362, 1.2433, "+24.0% (+23.6% to +24.3%) over the baseline"),
        (1.013, 1.004, 1.0254, "+1.3% (+0.4% to +2.5%) over the baseline"),
    ],
)
def test_a_gain_is_written_with_the_digits_that_its_interval_needs(
    estimate: float, low: float, high: float, brings: str
) -> None:
    speedup = {"estimate": estimate, "low": low, "high": high}
    best = {"speedup": speedup, "verdict": "pays", "assumed_launch_sd": None, "drafter": "EAGLE3", "cell": "eagle3"}
    (step,) = next_steps._use(best, "eagle3", [], "Serve")
    assert step["brings"] == brings


@pytest.mark.parametrize(
    ("rivals", "named"),
    [(["a"], "a, which pays"), (["a", "b"], "a and b, which pay"), (["a", "b", "c"], "a, b and 1 more, which pay")],
)
def test_what_the_fastest_is_not_shown_to_beat_is_named(rivals: list[str], named: str) -> None:
    speedup = {"estimate": 1.34, "low": 1.12, "high": 1.60}
    best = {"speedup": speedup, "verdict": "pays", "assumed_launch_sd": None, "drafter": "EAGLE3", "cell": "eagle3"}
    (step,) = next_steps._use(best, "eagle3", rivals, "Serve")
    assert f"not shown to be faster than {named} on these prompts too" in step["brings"]
