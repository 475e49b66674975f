"""Settings left out of the fit: predicted from the others, and the residual told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from breakeven import analysis, artifacts
from breakeven.analysis import left_out
from breakeven.config import BreakEvenSettings
from tests import synthetic


def grid(run_dir: Path, cycles: dict[str, float], *, pinned: float | None = None) -> dict[str, Any]:
    """A family of chains that accept every draft in half of all verifies, without noise; ``cycles`` over STEP_MS."""
    lengths = {name: 1 + (int(name.rpartition("d")[2]) - 1) / 2 for name in cycles}
    synthetic.sweep(run_dir, {name: (lengths[name], ratio) for name, ratio in cycles.items()}, noise=0.0)
    rows = artifacts.read_jsonl(run_dir / "samples.jsonl")
    for row in rows:
        drafts = int(row["cell"].rpartition("d")[2]) - 1 if "-d" in row["cell"] else 0
        row["correct_drafts_histogram"] = [30] + [0] * (drafts - 1) + [30] if drafts else None
    (run_dir / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    content = artifacts.read_json(run_dir / "cells.json")
    for row in content["cells"]:
        if row["drafter"] != "none":
            row["drafter"] = row["cell"].partition("-")[0].upper()
            row["accept_length_pinned"] = pinned
    artifacts.write_json(run_dir / "cells.json", content)
    return analysis.analyse(analysis.load(run_dir), BreakEvenSettings())


def test_on_a_straight_cost_line_nothing_is_left_to_explain(tmp_path: Path) -> None:
    rows = grid(tmp_path, {f"ngram-d{n}": 1 + 0.1 * n for n in (2, 3, 4, 5)})["left_out"]
    assert [row["rows"] for row in rows] == [3, 4]
    assert all(row["residual"] == pytest.approx(0, abs=1e-6) and row["text"] == "" for row in rows)
    (note,) = left_out.notes(rows)
    assert "2 of 2 settings are predicted within 5%" in note


def test_a_step_in_the_cost_is_the_cycles_part_and_named_by_its_rows(tmp_path: Path) -> None:
    rows = grid(tmp_path, {"ngram-d2": 1.1, "ngram-d3": 1.2, "ngram-d4": 1.7, "ngram-d5": 1.8})["left_out"]
    three, four = rows
    assert three["residual"] == pytest.approx(1.2 / 1.4 - 1) and three["accept_length_part"] == pytest.approx(0)
    assert (1 + four["accept_length_part"]) * (1 + four["cycle_part"]) == pytest.approx(1 + four["residual"])
    summary, family, *each = left_out.notes(rows, [{"cell": "x", "rates": "r", "spread": 0.2}])
    assert "+25.0 ms a draft from 3 to 4 rows" in family and [text[:6] for text in each] == ["NGRAM "] * 2
    assert "differed by up to 20%" in summary and "10.0 ms below the line" in three["text"]


def test_another_drafter_at_the_same_rows_tells_the_step(tmp_path: Path) -> None:
    step = {2: 1.1, 3: 1.2, 4: 1.7, 5: 1.8}
    cycles = {f"ngram-d{n}": ratio for n, ratio in step.items()}
    cycles |= {f"eagle-d{n}": ratio + 0.1 * n for n, ratio in step.items()}
    rows = {row["drafter"]: row for row in grid(tmp_path, cycles)["left_out"]}
    row = rows["EAGLE with 3 draft tokens"]
    assert row["shaped_by"] == "NGRAM" and abs(row["residual"]) > 0.05
    assert row["shaped_residual"] == pytest.approx(0, abs=1e-6)


def test_pinned_lengths_and_ends_are_not_predicted(tmp_path: Path) -> None:
    cycles = {"ngram-d2": 1.1, "ngram-d3": 1.2, "ngram-d4": 1.3}
    assert [row["rows"] for row in grid(tmp_path / "free", cycles)["left_out"]] == [3]
    assert grid(tmp_path / "pinned", cycles, pinned=2.0)["left_out"] == []


def test_a_disturbed_request_is_taken_out_of_every_cell_and_spoils_no_prediction(tmp_path: Path) -> None:
    cycles = {"ngram-d2": 1.1, "ngram-d3": 1.2, "ngram-d4": 1.3}
    grid(tmp_path, cycles)
    rows = artifacts.read_jsonl(tmp_path / "samples.jsonl")
    for row in rows:
        if row["cell"] == "ngram-d3" and row["prompt_id"] == "code edit-0" and row["restart"] == 1:
            row["decode_s"] *= 20
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = analysis.analyse(analysis.load(tmp_path), BreakEvenSettings())
    assert result["left_out"][0]["residual"] == pytest.approx(0, abs=1e-6)
    assert "1 prompt of a restart in which something else ran is left out" in result["left_out_notes"][0]
    assert "disturbed-requests" in {warning["code"] for warning in result["warnings"]}


def test_the_jumps_of_the_target_s_forward_explain_a_residual(tmp_path: Path) -> None:
    cycles = {"ngram-d2": 1.1, "ngram-d3": 1.2, "ngram-d4": 1.7, "ngram-d5": 1.8}
    before = grid(tmp_path, cycles)["left_out"]
    assert all(row["shaped_by"] is None for row in before)
    content = artifacts.read_json(tmp_path / "cells.json")
    baseline = next(row for row in content["cells"] if row["drafter"] == "none")
    baseline["forward_ms"] = {str(rows): 50.0 * (cycles[f"ngram-d{rows}"] - 0.1 * rows) for rows in range(2, 6)}
    artifacts.write_json(tmp_path / "cells.json", content)
    rows = analysis.analyse(analysis.load(tmp_path), BreakEvenSettings())["left_out"]
    assert {row["shaped_by"] for row in rows} == {"the target's forward"}
    assert all(row["shaped_residual"] == pytest.approx(0, abs=1e-3) for row in rows)
    assert (
        "With the cycle's shape from the target's forward at the same numbers of rows: 2 of 2"
        in left_out.notes(rows)[0]
    )


def test_a_forward_measured_by_rows_tells_where_its_cost_jumps(tmp_path: Path) -> None:
    rows = grid(tmp_path, {"ngram-d2": 1.1, "ngram-d3": 1.2, "ngram-d4": 1.7, "ngram-d5": 1.8})["left_out"]
    notes = left_out.notes(rows, [], {"default": {1: 15.0, 4: 16.5, 10: 40.0, 5: 24.5}})
    assert any("rises most from 4 to 5 rows, by 8.0 ms a row" in note for note in notes)
