"""The data behind the curves: draft lengths, positions, concurrency, theory; where the cycle goes and its floors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven import analysis, artifacts
from breakeven.analysis import curve_plots, curves, cycle
from breakeven.config import BreakEvenSettings
from breakeven.display import plots
from tests import synthetic

RATES = st.floats(0.2, 5.0)


def point(concurrency: int, speedup: float, verdict: str = "") -> dict[str, Any]:
    verdict = verdict or ("pays" if speedup > 1 else "does-not-pay")
    return {"concurrency": concurrency, "estimate": speedup, "low": speedup, "high": speedup, "verdict": verdict}


@given(st.floats(1.01, 5.0), st.floats(0.2, 0.99))
def test_a_crossover_lies_between_the_neighbours_on_either_side_of_1(above: float, below: float) -> None:
    found = curves.crossover([point(1, above), point(4, above), point(16, below)])
    assert found is not None and 4 <= found <= 16
    # told from the other side it is the same place
    assert curves.crossover([point(4, below), point(16, above)]) == pytest.approx(64 / found, rel=1e-6)


@given(st.lists(st.floats(1.01, 5.0), min_size=2, max_size=5))
def test_without_a_change_of_answer_there_is_no_crossover(speedups: list[float]) -> None:
    assert curves.crossover([point(2**place, value) for place, value in enumerate(speedups)]) is None


def test_no_crossover_inside_the_noise() -> None:
    noise = [point(1, 1.005, "not-distinguishable"), point(4, 0.99, "not-distinguishable")]
    assert curves.crossover(noise) is None
    assert curves.crossover([point(1, 1.4), *noise[1:], point(16, 1.2)]) is None
    found = curves.crossover([point(1, 1.4), point(4, 0.99, "not-distinguishable"), point(16, 1 / 1.4)])
    assert found == pytest.approx(4.0)


def with_histograms(run_dir: Path) -> Path:
    """A chain of 7 drafts, 3 measured too; half of all verifies accept every draft."""
    synthetic.sweep(run_dir, {"ngram-d4": (2.5, 1.5), "ngram-d8": (4.5, 2.0)}, noise=0.0)
    rows = artifacts.read_jsonl(run_dir / "samples.jsonl")
    for row in rows:
        drafts = {"ngram-d4": 3, "ngram-d8": 7}.get(row["cell"])
        row["correct_drafts_histogram"] = [30] + [0] * (drafts - 1) + [30] if drafts else None
    (run_dir / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_dir


def analyse(run_dir: Path) -> dict[str, Any]:
    return analysis.analyse(analysis.load(run_dir), BreakEvenSettings())


def test_lengths_between_two_measured_ones_are_predicted_and_labelled(tmp_path: Path) -> None:
    rows = analyse(with_histograms(tmp_path))["curves"]["draft_length"]
    assert [(row["drafts"], row["source"]) for row in rows] == [
        (3, "measured"), (4, "interpolated"), (5, "interpolated"), (6, "interpolated"), (7, "measured"),
    ]  # fmt: skip
    four = rows[1]
    assert four["accept_length"] == pytest.approx(1 + 0.5 * 4)
    assert four["break_even"] == pytest.approx(1.5 + (2.0 - 1.5) / 4)


def test_lengths_between_follow_a_jump_of_the_target_s_forward(tmp_path: Path) -> None:
    with_histograms(tmp_path)
    step_ms = next(row["total_ms"] for row in analyse(tmp_path)["cycle"] if row["cell"] == "baseline")
    content = artifacts.read_json(tmp_path / "cells.json")
    forwards = {rows: step_ms * (1.5 if rows > 6 else 1.0) for rows in range(1, 9)}
    next(row for row in content["cells"] if row["cell"] == "baseline")["forward_ms"] = forwards
    artifacts.write_json(tmp_path / "cells.json", content)
    rows = {row["drafts"]: row["break_even"] for row in analyse(tmp_path)["curves"]["draft_length"]}
    assert [rows[drafts] for drafts in (3, 4, 5, 6, 7)] == pytest.approx([1.5, 1.5, 1.5, 2.0, 2.0], rel=1e-3)


def test_acceptance_got_by_position_stands_beside_the_one_that_is_needed(tmp_path: Path) -> None:
    rows = {row["cell"]: row for row in analyse(with_histograms(tmp_path))["curves"]["positions"]}
    assert rows["ngram-d8"]["got"] == [pytest.approx(0.5)] + [pytest.approx(1.0)] * 6
    assert rows["ngram-d4"]["needed"] == pytest.approx(0.348, abs=0.01)  # 1 + a + a^2 + a^3 = 1.5


def test_theory_has_no_residual_where_its_assumptions_hold(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.0)}, noise=0.0)
    (row,) = analyse(tmp_path)["theory"]
    assert row["leviathan_speedup"] == pytest.approx(2.0) and row["leviathan_residual"] == pytest.approx(0.0)
    assert row["sequoia_speedup"] is None  # without a trace the verify's own cost is not known


def test_no_leviathan_speedup_without_draft_cost(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"eagle-d4": (2.0, 1.5)}, noise=0.0)
    content = artifacts.read_json(tmp_path / "cells.json")
    for row in content["cells"]:
        row["drafter"] = "none" if row["cell"] == "baseline" else "EAGLE3"
    artifacts.write_json(tmp_path / "cells.json", content)
    (row,) = analyse(tmp_path)["theory"]
    assert row["draft_cost"] is row["leviathan_speedup"] is row["leviathan_residual"] is None


def test_what_leviathan_misses_is_the_verifys_growth_and_sequoia_misses_the_gaps(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.5)}, noise=0.0)
    content = artifacts.read_json(tmp_path / "cells.json")
    for row in content["cells"]:
        shares = {"verify": 0.8, "other": 0.2} if row["cell"] != "baseline" else {"target forward": 1.0}
        row["profile"] = {"shares": shares, "cycle_ms": 80.0, "n": 6}
    artifacts.write_json(tmp_path / "cells.json", content)
    (row,) = analyse(tmp_path)["theory"]
    assert row["verify_steps"] == pytest.approx(1.2)
    assert row["leviathan_residual"] == pytest.approx(1 / 1.5 - 1)
    assert row["sequoia_residual"] == pytest.approx(1.2 / 1.5 - 1)


def test_a_trace_that_tells_kinds_of_work_splits_the_forward_and_the_gaps() -> None:
    samples = pd.DataFrame(
        [{"cell": "e", "restart": 0, "phase": "measure", "prompt_id": "p", "completion_tokens": 101,
          "verify_ct": 50, "decode_s": 0.5}]
    )  # fmt: skip
    profile = {
        "shares": {"draft": 0.2, "verify": 0.6, "other": 0.2},
        "cycle_ms": 20.0,
        "host_gap_ms": 1.0,
        "work_ms": {"verify": {"allreduce": 4.0, "attention": 1.0, "matmul": 5.0, "rest": 1.0, "all": 11.0}},
    }
    (row,) = cycle.cycle_rows(samples, [{"cell": "e", "profile": profile}])
    assert sum(row["parts"].values()) == pytest.approx(10.0) == pytest.approx(row["total_ms"])
    assert row["parts"]["all-reduce"] == pytest.approx(2.0) and row["parts"]["host gaps"] == pytest.approx(0.5)
    assert cycle.part_ms(row, cycle.FORWARD) == pytest.approx(6.0)
    assert cycle.part_ms({**row, "split": "not traced"}, cycle.FORWARD) is None


def test_a_gpus_work_counts_as_traced_and_the_rest_of_the_measured_cycle_is_the_hosts() -> None:
    samples = pd.DataFrame(
        [{"cell": "e", "restart": 0, "phase": "measure", "prompt_id": "p", "completion_tokens": 101,
          "verify_ct": 50, "decode_s": 0.328}]
    )  # fmt: skip
    work = {"allreduce": 0.5, "attention": 0.4, "matmul": 4.0, "rest": 0.1, "all": 5.0}
    draft = {"allreduce": 0.0, "attention": 0.0, "matmul": 0.3, "rest": 0.1, "all": 0.4}
    profile = {"shares": {"verify": 0.4, "other": 0.6}, "cycle_ms": 14.6, "host_gap_ms": 6.4, "device": "gpu"}
    (row,) = cycle.cycle_rows(
        samples, [{"cell": "e", "profile": {**profile, "work_ms": {"verify": work, "draft": draft}}}]
    )
    assert row["total_ms"] == pytest.approx(6.56) == pytest.approx(sum(row["parts"].values()))
    assert cycle.part_ms(row, cycle.FORWARD) == pytest.approx(5.0) and row["parts"]["all-reduce"] == 0.5
    assert row["parts"]["host and gaps"] == pytest.approx(6.56 - 5.4)


def write_model(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(b"\0" * 4_000_000)
    return folder


def test_the_floors_are_bytes_over_bandwidth(tmp_path: Path) -> None:
    model = write_model(tmp_path, tie_word_embeddings=True, num_hidden_layers=10, hidden_size=1000)
    weights, payload = cycle.floors(model, 2, memory_gb_s=100.0, link_gb_s=10.0)
    assert weights["ms"] == pytest.approx(4e6 / 2 / 100e9 * 1e3)
    assert payload["ms"] == pytest.approx(10 * 2 * (2 * 1 / 2) * 1000 * 2 / 10e9 * 1e3)


def test_an_input_table_that_is_not_shared_is_not_read_whole(tmp_path: Path) -> None:
    model = write_model(tmp_path, tie_word_embeddings=False, vocab_size=1000, hidden_size=1000)
    assert cycle.floors(model, 1, 100.0, None)[0]["ms"] == pytest.approx(2e6 / 100e9 * 1e3)


@pytest.mark.parametrize(("config", "words"), [({"n_routed_experts": 8}, "mixture of experts"), (None, "config.json")])
def test_where_no_floor_is_known_the_reason_stands_instead(
    tmp_path: Path, config: dict[str, Any] | None, words: str
) -> None:
    if config:
        write_model(tmp_path, **config)
    (row,) = cycle.floors(tmp_path, 1, 100.0, None)
    assert row["ms"] is None and words in row["how"]


def test_a_floor_above_the_measured_step_is_none_and_says_why() -> None:
    rows = [{"name": "weights read once", "ms": 44.0, "how": "h"}, {"name": "p", "ms": 2.0, "how": "h"}]
    high, low = cycle.held_against(rows, 35.8)
    assert high["ms"] is None and "more than the whole step of 35.8 ms" in high["how"]
    assert high["above_step"] and "threads" in high["how"]
    assert low["ms"] == 2.0 and not low["above_step"]


def test_this_machines_memory_bandwidth_is_of_a_plausible_size() -> None:
    assert 0.1 < cycle.memory_bandwidth_gb_s(size_mib=16, repeats=2) < 20_000


def test_every_figure_says_in_words_what_it_shows(tmp_path: Path) -> None:
    figures = {each.name: each for each in curve_plots.figures(analyse(with_histograms(tmp_path)))}
    assert set(figures) == {
        "speedup", "accept-length", "speedup-curve", "draft-length", "positions", "cycle", "tornado",
    }  # fmt: skip
    assert "breaks even at 1.50" in figures["speedup-curve"].alt
    assert "4 drafts (interpolated): 3.00 got" in figures["draft-length"].alt
    assert all(each.svg.startswith("<svg") and len(each.alt) > 40 for each in figures.values())


def test_dollars_and_control_characters_in_names_are_drawn_as_text() -> None:
    interval = {"estimate": 1.2, "low": 1.1, "high": 1.3}
    row = {"cell": "a$b_{$c", "kind": "k$\\frac$\x1b", "verdict": "pays", "speedup": interval}
    row |= {"accept_length": interval, "break_even": interval}
    for figure in (plots.speedup_figure([row]), plots.accept_length_figure([row])):
        assert "a$b_{$c" in figure.svg and "\x1b" not in figure.svg


def test_a_figure_of_hundreds_of_cells_shows_the_first_and_says_so() -> None:
    interval = {"estimate": 1.2, "low": 1.1, "high": 1.3}
    row = {"cell": "c", "verdict": "pays", "speedup": interval, "accept_length": interval, "break_even": interval}
    figure = curve_plots.speedup_curve_figure([row] * 500)
    assert "the first 8 of 500" in figure.title and len(figure.svg) < 100_000
