"""Doubts about a measurement: launches that differ, slow hosts, floors that are none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from breakeven import analysis, artifacts
from breakeven.analysis import arms, cautions, disturbances
from breakeven.config import BreakEvenSettings
from tests import synthetic


def launch(cell: str, restart: int, tok_s: float, **values: Any) -> dict[str, Any]:
    return {**synthetic.launch_row(cell, f"{cell}.restart{restart}.1", restart, 0), "tok_s": tok_s, **values}


CELLS = [
    launch("baseline", 0, 62.0), launch("baseline", 1, 61.0), launch("baseline-again", 0, 55.0),
    launch("ngram-d4", 0, 80.0), launch("ngram-d4", 1, 81.0),
]  # fmt: skip


def codes(warnings: list[dict[str, str]]) -> dict[str, str]:
    return {each["code"]: each["text"] for each in warnings}


def warned(cells: list[dict[str, Any]], **options: Any) -> dict[str, str]:
    warm_up = {**synthetic.request("p", "k", 2.0, 1.0, "ngram-d4"), "cell": "x", "phase": "warm-up", "restart": 0}
    return codes(cautions.warn(pd.DataFrame([warm_up]), cells, [], **options))


def test_both_halves_of_the_baseline_count_as_one_and_their_widest_pair_is_told() -> None:
    noise = cautions.launch_spreads(CELLS, arms.arms_of(CELLS))
    assert [row["cell"] for row in noise] == ["baseline", "ngram-d4"]
    assert noise[0]["spread"] == pytest.approx(62 / 55 - 1) and not noise[0]["explained"]
    text = warned(CELLS, noise=noise)["launches-differ"]
    assert "baseline by 12.7% (55.0 to 62.0 tok/s per stream on 3 servers)" in text and "ngram" not in text.lower()


def test_quiet_launches_are_no_warning() -> None:
    quiet = [launch("baseline", 0, 62.0), launch("baseline", 1, 61.5)]
    assert "launches-differ" not in warned(quiet, noise=cautions.launch_spreads(quiet, arms.arms_of(quiet)))


def test_an_effect_smaller_than_launches_differ_by_is_named() -> None:
    noise = [{"drafter": "baseline", "spread": 0.2, "rates": "r"}]
    row = {"drafter": "X", "speedup": {"estimate": 1.1}, "verdict": "pays"}
    (found,) = cautions._launches_differ(noise, [row])
    assert "what is claimed of X is less than that" in found["text"]


def test_a_floor_above_the_step_is_a_warning_with_its_reason() -> None:
    assert warned([], floors=[{"above_step": True, "how": "because"}])["floor-above-step"] == "because"
    assert "floor-above-step" not in warned([], floors=[{"above_step": False, "how": "h"}])


def test_a_launch_on_a_slower_host_is_named_as_people_count() -> None:
    slow = [launch("ngram-d4", 0, 80.0, profile={"host_operator_us": 4.6}),
            launch("ngram-d4", 1, 60.0, profile={"host_operator_us": 9.2})]  # fmt: skip
    text = warned(slow)["slow-host"]
    assert "ngram-d4, restart 2, 9.2 against" in text and "60.0 against 80.0 tok/s" in text
    without_rates = warned([{**row, "tok_s": None} for row in slow])["slow-host"]
    assert without_rates.endswith("restart 2, 9.2 against 4.6 µs"), "where every answer loops there is no rate"
    slow[1]["profile"]["host_operator_us"] = 5.0
    assert "slow-host" not in warned(slow)


@pytest.mark.parametrize(("fused", "warns"), [([], True), (["allreduce_fusion_kernel_oneshot_lamport"], False)])
def test_a_variant_that_asks_for_fusion_and_never_runs_it_is_named(fused: list[str], warns: bool) -> None:
    asks = {"command": ["python", "--flashinfer-allreduce-fusion-backend", "trtllm"]}
    traced = {"profile": {"allreduce": {"count": 61, "ms": 1.0, "n": 7, "kernels": {}}, "fused": fused}}
    plain = {"command": ["python", "--enforce-disable-flashinfer-allreduce-fusion"]}
    none = {"profile": {**traced["profile"], "fused": []}}
    cells = [launch("off/baseline", 0, 4.2, **plain, **none), launch("on/baseline", 0, 4.5, **asks, **traced)]
    text = warned(cells).get("fusion-did-not-run", "")
    assert ("variant on asks" in text and "61 others" in text) if warns else not text


def test_a_cycle_shorter_than_a_step_says_that_the_machine_changed(tmp_path: Path) -> None:
    for name, ratio, warned_of in (("a", 0.94, True), ("b", 1.05, False)):
        result = analysis.analyse(
            analysis.load(synthetic.sweep(tmp_path / name, {"ngram-d2": (1.4, ratio)})), BreakEvenSettings()
        )
        assert ("cycle-below-step" in codes(result["warnings"])) is warned_of


def test_two_estimates_of_a_cycle_that_differ_are_a_warning() -> None:
    cells = [launch("ngram-d4", 0, 80.0, profile={"untraced": {"off": 0.08}})]
    assert "differ by 8.0%" in warned(cells)["cycle-estimates-differ"]
    looping = [{**cells[0], "tok_s": None}]
    assert "cycle-estimates-differ" not in warned(looping), "nothing rests on the cycle of answers that all loop"
    cells[0]["profile"]["untraced"]["off"] = -0.01
    assert "cycle-estimates-differ" not in warned(cells)


def test_parts_that_do_not_add_up_to_the_traced_cycle_are_a_warning() -> None:
    cells = [launch("ngram-d4", 0, 80.0, profile={"work_residual": -0.2})]
    assert "come to 120.0% of it" in warned(cells)["cycle-parts-differ"]
    assert "cycle-parts-differ" not in warned([{**cells[0], "tok_s": None}])
    cells[0]["profile"]["work_residual"] = -0.009  # kernels that start before their forerunners end
    assert "cycle-parts-differ" not in warned(cells)


def test_a_launch_whose_requests_took_longer_than_the_same_server_does_later_is_named() -> None:
    def cell(name: str, later_ms: float, text_tokens: float = 180.0, **values: Any) -> dict[str, Any]:
        untraced = {"cycle_ms": later_ms, "text_tokens": text_tokens, "measured_text_tokens": 170.0}
        return launch(name, 0, 80.0, profile={"untraced": untraced}, **values)

    cells = [cell("baseline", 4.57, step_ms=4.59), cell("standalone-s1", 5.56, cycle_ms=5.69)]
    assert "slow-while-measured" not in warned(cells), "what a request costs once is 0.4 and 2.3 % here"
    text = warned([*cells, cell("standalone-s5", 6.43, cycle_ms=6.96)])["slow-while-measured"]
    assert text.startswith("standalone-s5, restart 1:") and "6.96 ms" in text and "6.43 ms" in text
    fresh = {**cell("standalone-s5", 6.43, cycle_ms=6.45), "restart": 1, "tok_s": 86.4}
    slow = cell("standalone-s5", 6.43, cycle_ms=6.96)
    (spread,) = cautions.launch_spreads([*cells, slow, fresh], arms.arms_of([*cells, slow, fresh]))
    assert spread["explained"] and "slow while standalone-s5, restart 1, was measured" in spread["rates"]
    slower = {**slow, "tok_s": 60.0}
    (spread,) = cautions.launch_spreads([*cells, slower, fresh], arms.arms_of([*cells, slower, fresh]))
    assert not spread["explained"], "8 % of 44 are the machine's"
    faster = {**slow, "tok_s": 99.0}
    (spread,) = cautions.launch_spreads([*cells, faster, fresh], arms.arms_of([*cells, faster, fresh]))
    assert not spread["explained"] and "slow while" not in spread["rates"], "the slowest is another one"
    longer = cell("standalone-s5", 6.43, text_tokens=60.0, cycle_ms=6.96)
    assert "slow-while-measured" not in warned([*cells, longer]), "a cycle behind less text is shorter"
    later_slower = [cell("baseline", 5.70, step_ms=4.59), cells[1]]
    assert "slow-while-measured" not in warned(later_slower), "the faster of two is no measure"
    slowed = [*cells, cell("standalone-s3", 7.61, cycle_ms=6.08)]
    assert "slow-while-measured" not in warned(slowed), "the later ones were of a slower host"
    once = [cell("baseline", 2.0, step_ms=2.2), cell("ngram-d4", 3.0, cycle_ms=3.35)]
    assert "slow-while-measured" not in warned(once), "short answers: all launches alike"


def test_arms_left_to_a_prediction_are_those_that_were_not_measured(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.25)})
    content = artifacts.read_json(tmp_path / "cells.json")
    content["predictions"] = [
        {"arm": arm, "condition": "", "source": source, "tok_s_at_best": 21.5}
        for arm, source in (("ngram-d4", "measured"), ("ngram-d3", "interpolated"))
    ]
    artifacts.write_json(tmp_path / "cells.json", content)
    result = analysis.analyse(analysis.load(tmp_path), BreakEvenSettings())
    assert [row["arm"] for row in result["predictions"]] == ["ngram-d3"]
    assert (
        "what was not expected to be 2 % faster than the best was not launched (ngram-d3, at best 21.5 tok/s)"
        in result["answer"]["how"]
    )


def test_a_request_that_something_else_slowed_down_is_named(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.25)})
    rows = artifacts.read_jsonl(tmp_path / "samples.jsonl")
    assert "disturbed-requests" not in codes(list(disturbances.warnings(pd.DataFrame(rows))))
    slow = next(row for row in rows if (row["cell"], row["restart"]) == ("ngram-d4", 1))
    slow["decode_s"] *= 1.8
    text = codes(list(disturbances.warnings(pd.DataFrame(rows))))["disturbed-requests"]
    assert "ngram-d4, restart 2, prompt code edit-0 1.8 times" in text


def test_a_cycle_that_falls_with_the_length_of_the_draft_is_a_warning(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path / "a", {"ngram-d4": (2.0, 1.8), "ngram-d6": (2.0, 1.5)}, noise=0.0)
    warnings = codes(analysis.analyse(analysis.load(tmp_path / "a"), BreakEvenSettings())["warnings"])
    assert "NGRAM with 6 draft tokens 17% below NGRAM with 4" in warnings["cycle-falls-with-length"]
    synthetic.sweep(tmp_path / "b", {"ngram-d4": (2.0, 1.5), "ngram-d6": (2.0, 1.8)}, noise=0.0)
    warnings = codes(analysis.analyse(analysis.load(tmp_path / "b"), BreakEvenSettings())["warnings"])
    assert "cycle-falls-with-length" not in warnings
