"""Figures that somebody wrote down, in words that an engineer would sign."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from breakeven import analysis, artifacts
from breakeven.analysis import next_steps, reported
from breakeven.config import BreakEvenSettings, load_parameters, settle
from breakeven.errors import UserError

ROOT = Path(__file__).parents[1]
KIMI = "parameters/kimi-k2.5-8x-rtx-pro-6000"
HEAD = "id,batch,base_tok_s,spec_tok_s,accept_length,draft_tokens,cycle_ms,verify_ms,allreduce_count,allreduce_ms"


@pytest.fixture(scope="module")
def kimi() -> dict[str, Any]:
    return reported.read(ROOT / f"{KIMI}.csv")


def words(found: dict[str, Any]) -> str:
    rows = [
        text for row in found["rows"] for key in ("follows", "does_not_follow", "contradictions") for text in row[key]
    ]
    return " ".join([*rows, *(text for each in found["measurements"] for text in each.values())])


@pytest.mark.parametrize("figure", ["2.46", "2.30", "1.80", "2.73", "33.3 ms", "3.3 ms", "24.4 ms", "12.2 ms"])
def test_the_storys_figures_are_told(kimi: dict[str, Any], figure: str) -> None:
    assert figure in words(kimi)


def test_the_all_reduce_figure_is_called_impossible_and_not_explained_away(kimi: dict[str, Any]) -> None:
    eagle, ngram = kimi["rows"]
    assert any("more than the whole baseline step" in text for text in eagle["does_not_follow"])
    assert not any("all-reduces of" in text for text in ngram["does_not_follow"])


def test_a_saving_in_the_forward_is_said_to_raise_the_bar_while_both_rates_rise(kimi: dict[str, Any]) -> None:
    text = next(text for text in kimi["rows"][0]["follows"] if "rises from" in text)
    assert "from 2.73 to 3.07 (2 ms) or 6.04 (8 ms)" in text and "does not make speculation pay" in text


def test_an_unknown_accept_length_gives_a_ratio_alone(kimi: dict[str, Any]) -> None:
    ngram = kimi["rows"][1]
    assert ngram["speedup"] == pytest.approx(0.5) and ngram["break_even_accept_length"] is None
    assert any("not known" in text for text in ngram["does_not_follow"])


def test_two_or_three_measurements_would_settle_it_a_trace_first(kimi: dict[str, Any]) -> None:
    assert 2 <= len(kimi["measurements"]) <= 3
    assert kimi["measurements"][0]["measurement"].startswith("A trace")
    assert any("N-gram" in each["measurement"] for each in kimi["measurements"])


def test_everything_is_marked_as_reported(kimi: dict[str, Any]) -> None:
    assert {row["evidence"] for row in kimi["rows"]} == {"reported"}
    assert kimi["outlook"]["what_if"][0]["evidence"] == "reported"
    assert "nothing here was measured" in reported.answer(kimi)["uncertainty"]
    assert reported.answer(kimi)["sentence"].startswith("As reported, no: EAGLE-3")


def test_the_headline_names_every_row_and_the_setting_whose_figures_they_are(kimi: dict[str, Any]) -> None:
    sentence, about = reported.answer(kimi)["sentence"], kimi["setting"]["words"]
    assert "EAGLE-3 drafter runs at 0.73" in sentence and "N-gram drafter runs at 0.50" in sentence
    for expected in ("Kimi-K2.5", "8x RTX PRO 6000", "TP 8", "Reported by the engineer", f"{Path(KIMI).name}.csv"):
        assert expected in about


def test_measurements_come_before_changes_and_each_gain_names_the_faster_arm() -> None:
    settings = BreakEvenSettings(records=f"{KIMI}.csv")
    steps = analysis.analyse(None, settings)["next_steps"]
    kinds = [row["kind"] for row in steps]
    assert kinds == sorted(kinds, key=["use", "measure", "change"].index) and 2 <= kinds.count("measure") <= 3
    assert steps[0]["brings"] == "82 tok/s instead of 60 and 41, as reported"
    assert [row["rank"] for row in steps] == list(range(1, len(steps) + 1))
    assert all(
        "the baseline; where both save the same milliseconds it stays the faster arm (" in row["brings"]
        for row in steps
        if row["kind"] == "change"
    )


def test_options_that_build_on_a_contradicted_figure_lose_half_of_their_chance(kimi: dict[str, Any]) -> None:
    plan = {row["option"]: row for row in kimi["outlook"]["plan"]}
    fused = plan["fused all-reduce and RMSNorm, 10% of the all-reduce time"]
    assert fused["risk"] == pytest.approx(0.75) and fused["gain_low"] < 0 < fused["gain_high"] == fused["gain"]
    other = plan["another all-reduce backend, 20% of the all-reduce time"]
    assert fused["evidence"] == other["evidence"] == "assumed" and other["gain_low"] == 0.0
    assert "81%" in kimi["outlook"]["premise"] and "A trace decides" in kimi["outlook"]["premise"]


def test_the_parameter_file_is_accepted_and_launches_nothing() -> None:
    settings = settle(load_parameters(ROOT / f"{KIMI}.yaml"))
    assert settings["04_sweep_drafters"].model_dump()["model"] == "none"
    assert settings["01_read_gating"].model_dump()["arch"] == "sm120"


def test_a_run_of_recorded_figures_alone_has_every_key_of_a_measured_one(tmp_path: Path) -> None:
    settings = BreakEvenSettings(records=f"{KIMI}.csv")
    alone = analysis.analyse(analysis.load(tmp_path, settings.records), settings)
    measured = analysis.analyse(analysis.load(tmp_path), BreakEvenSettings())
    assert set(alone) == set(measured) and alone["comparisons"] == []
    assert {warning["code"] for warning in alone["warnings"]} == {
        "verify-is-not-the-cycle",
        "allreduce-exceeds-baseline-step",
    }


def test_recorded_figures_stand_beside_measured_ones_and_leave_the_answer_alone(tmp_path: Path) -> None:
    settings = BreakEvenSettings(records=f"{KIMI}.csv")
    example = analysis.analyse(analysis.load(tmp_path), BreakEvenSettings())
    both = analysis.analyse(analysis.load(tmp_path), settings)
    assert both["answer"] == example["answer"] and both["reported"]["rows"]
    assert len(both["warnings"]) == len(example["warnings"]) + 2


def test_nothing_measured_and_no_records_is_refused() -> None:
    with pytest.raises(UserError, match="nothing to analyse"):
        analysis.analyse(None, BreakEvenSettings())


def read(tmp_path: Path, *lines: str) -> dict[str, Any]:
    path = tmp_path / "r.csv"
    path.write_text("\n".join([HEAD, *lines]) + "\n")
    return reported.read(path)


def test_consistent_figures_get_no_contradiction_and_a_yes(tmp_path: Path) -> None:
    found = read(tmp_path, "a,1,100,150,2.4,3,16,14,60,0.02")
    answer = reported.answer(found)
    assert answer["sentence"].startswith("As reported, yes: a runs at 1.50")
    assert not found["rows"][0]["does_not_follow"] and found["outlook"]["premise"] == ""


def test_rows_without_a_baseline_give_no_answer_and_name_what_is_missing(tmp_path: Path) -> None:
    found = read(tmp_path, "a,1,,150,2.4,3,,,,")
    assert reported.answer(found)["verdict"] == "needs-more"
    assert "base_tok_s" in words(found)


def test_a_rate_of_several_streams_is_told_with_its_batch(tmp_path: Path) -> None:
    found = read(tmp_path, "a,24,1435,986,24.28,,,24.61,,")
    text = words(found)
    assert "at batch 24" in text and found["rows"][0]["verdict"] == "does-not-pay"


def told(tmp_path: Path, *lines: str) -> dict[str, Any]:
    path = tmp_path / "r.csv"
    head = "id,batch,base_tok_s,spec_tok_s,accept_length,verify_ms,what,saving_low_ms,saving_high_ms,hardware,model"
    path.write_text("\n".join([head, *lines]) + "\n")
    return reported.read(path)


def test_savings_on_a_row_that_pays(tmp_path: Path) -> None:
    text = words(told(tmp_path, "a,1,82,100,3.0,,EAGLE-3,1,2,,"))
    assert "it pays." in text and "does not make speculation pay" not in text
    assert "worth having for both arms: speculation still runs at 1.16 or 1.09 of the baseline's rate" in text
    assert "then runs at 1.13 or 0.86" in words(told(tmp_path, "a,1,82,100,3.0,,EAGLE-3,1.5,5,,"))
    assert "does not make speculation pay" in words(told(tmp_path, "a,1,82,60,2.0,,EAGLE-3,1,2,,"))
    assert "worth having" not in words(told(tmp_path, "a,1,82,,2.0,30,EAGLE-3,1,2,,"))  # no cycle, a bound alone


def test_meanwhile_pairs_each_rate_with_its_own_baseline(tmp_path: Path) -> None:
    boxes = ("a,1,82,60,2.0,,Kimi EAGLE-3,,,8x RTX PRO 6000,Kimi", "b,1,500,400,1.9,,Qwen n-gram,,,1x H200,Qwen")
    found = told(tmp_path, *boxes)
    first = next_steps.next_steps(reported.answer(found), [], None, found, {})[0]
    assert first["step"] == "Until it is measured, serve without speculation"
    assert first["brings"] == (
        "82 tok/s instead of 60 (Kimi EAGLE-3); 500 tok/s instead of 400 (Qwen n-gram), as reported"
    )


def test_figures_that_can_be_true_together_are_not_said_to_contradict(tmp_path: Path) -> None:
    idle = reported.answer(told(tmp_path, "a,1,82,60,1.01,,EAGLE-3,,,,"))
    assert "do not fit together" not in idle["uncertainty"]
    assert "do not fit together" in reported.answer(told(tmp_path, "a,1,82,60,2,30,EAGLE-3,,,,"))["uncertainty"]


def test_what_was_assumed_of_a_row_is_told_with_it(tmp_path: Path) -> None:
    assert "Assumed: batch is empty" in words(told(tmp_path, "a,,82,60,2.0,,EAGLE-3,,,,"))


def test_notebook_05_of_recorded_figures_saves_what_the_report_needs(tmp_path: Path) -> None:
    settings = BreakEvenSettings(records=f"{KIMI}.csv")
    result = analysis.analyse(None, settings)
    analysis.save(result, [], tmp_path)
    assert artifacts.read_json(tmp_path / "breakeven.json")["reported"]["file"] == f"{Path(KIMI).name}.csv"
    assert "What options on all-reduces bring is therefore assumed" in (tmp_path / "plan.md").read_text()
