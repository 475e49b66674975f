"""From samples with a known truth to the answer, its words, its warnings and its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from breakeven import analysis, artifacts
from breakeven.config import BreakEvenSettings
from breakeven.display import plots
from breakeven.errors import UserError
from tests import synthetic

SETTINGS = BreakEvenSettings()


def analyse(run_dir: Path) -> dict[str, Any]:
    return analysis.analyse(analysis.load(run_dir), SETTINGS)


def test_a_drafter_that_is_faster_pays_with_the_true_break_even(tmp_path: Path) -> None:
    result = analyse(synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.25)}))
    (row,) = result["comparisons"]
    assert row["verdict"] == "pays" == result["answer"]["verdict"]
    assert row["speedup"]["estimate"] == pytest.approx(1.6, rel=0.02)
    assert row["break_even"]["estimate"] == pytest.approx(1.25, rel=0.02)
    assert row["accept_length"]["estimate"] == pytest.approx(2.0)
    assert result["answer"]["sentence"].startswith("Yes. NGRAM with 4 draft tokens decodes 1.6")


def test_a_slower_drafter_does_not_pay(tmp_path: Path) -> None:
    result = analyse(synthetic.sweep(tmp_path, {"ngram-d4": (1.1, 1.4)}))
    assert result["answer"]["verdict"] == "does-not-pay"
    assert result["answer"]["sentence"].startswith("No. Even the best drafter measured")


def test_a_difference_inside_the_noise_is_not_sold_as_an_answer(tmp_path: Path) -> None:
    result = analyse(synthetic.sweep(tmp_path, {"ngram-d4": (1.25, 1.25)}, noise=0.03, restarts=2))
    assert result["answer"]["verdict"] == "not-distinguishable"
    assert result["answer"]["sentence"].startswith("Not shown.")


def test_the_parts_of_the_cycle_add_up_to_the_cycle(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.3)}, noise=0.0)
    content = artifacts.read_json(tmp_path / "cells.json")
    for row in content["cells"]:
        if row["cell"] == "ngram-d4":
            row["profile"] = {"shares": {"draft": 0.1, "verify": 0.8, "other": 0.1}}
    artifacts.write_json(tmp_path / "cells.json", content)
    base, spec = analyse(tmp_path)["cycle"]
    assert base["parts"] == {"step": pytest.approx(50.0)}
    assert sum(spec["parts"].values()) == pytest.approx(65.0) and spec["parts"]["verify"] == pytest.approx(52.0)


def test_every_doubt_about_the_measurement_is_a_warning(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (1.0, 1.3)})
    content = artifacts.read_json(tmp_path / "cells.json")
    content["cells"][1]["effective"] = {"max_running_requests": 48}
    content["cells"][1]["canary"] = {"compared": 1, "parted": [{"prompt_id": "p", "token": 3, "gap_nats": 2.5}]}
    failed = synthetic.launch_row("ngram-d8", "ngram-d8.restart0.1", 0, 9)
    failed |= {"status": "failed", "failure": {"class": "oom-at-run", "text": "<b>boom</b>", "advice": "Less."}}
    content["cells"].append(failed)
    artifacts.write_json(tmp_path / "cells.json", content)
    rows = artifacts.read_jsonl(tmp_path / "samples.jsonl")
    for row in rows[:16]:
        row |= {"finish": "length", "cached_tokens": 95}
    for row in rows:
        if row["cell"] == "baseline":
            row["finish"] = "length"
    rows[20]["degenerate"] = True
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    codes = {warning["code"] for warning in analyse(tmp_path)["warnings"]}
    assert codes == {
        "launch-failed",
        "degenerate-output",
        "prompt-not-fresh",
        "unequal-limits",
        "output-differs",
        "drafter-not-working",
        "answers-cut-off",
    }


def test_texts_that_part_at_near_ties_are_called_rounding(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.3)})
    content = artifacts.read_json(tmp_path / "cells.json")
    content["cells"][1]["canary"] = {"compared": 16, "parted": [{"prompt_id": "p", "token": 3, "gap_nats": 0.06}]}
    artifacts.write_json(tmp_path / "cells.json", content)
    result = analyse(tmp_path)
    assert not [warning for warning in result["warnings"] if warning["code"] == "output-differs"]
    told = next(each for each in result["findings"] if "1 of 16 greedy texts of NGRAM part" in each)
    assert "what rounding does" in told


def test_partial_samples_of_a_launch_that_failed_are_kept_but_not_analysed(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.3)})
    wild = synthetic.request("code edit-0", "code edit", 9.0, 0.1, "ngram-d4")
    artifacts.append_jsonl(
        tmp_path / "samples.jsonl",
        {"cell": "ngram-d4", "restart": 0, "launch": "ngram-d4.restart0.2", "phase": "measure", **wild},
    )
    assert analyse(tmp_path)["comparisons"][0]["accept_length"]["estimate"] == pytest.approx(2.0)


def test_without_a_measured_baseline_there_is_nothing_to_analyse(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {})
    content = artifacts.read_json(tmp_path / "cells.json")
    artifacts.write_json(tmp_path / "cells.json", {**content, "cells": []})
    with pytest.raises(UserError, match="no complete launch of the baseline"):
        analysis.load(tmp_path)


def test_without_a_sweep_the_shipped_example_is_shown_and_labelled_as_recorded(tmp_path: Path) -> None:
    measured = analysis.load(tmp_path)
    assert "a recorded example" in measured.source and "not on this machine" in measured.source
    result = analysis.analyse(measured, SETTINGS)
    assert measured.source in result["answer"]["how"]
    assert {row["cell"] for row in result["comparisons"]} == {f"ngram-d{n}-b1-t256" for n in (2, 4, 8)}


def test_saving_writes_the_json_the_tables_and_the_figures(tmp_path: Path) -> None:
    result = analyse(synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.3), "ngram-d8": (2.2, 1.6)}))
    figures = [
        plots.speedup_figure(result["comparisons"]),
        plots.accept_length_figure(result["by_kind"]),
        plots.cycle_figure(result["cycle"]),
    ]
    analysis.save(result, figures, tmp_path)
    saved = artifacts.read_json(tmp_path / "breakeven.json")
    assert [each["name"] for each in saved["figures"]] == ["speedup", "accept-length", "cycle"]
    assert all((tmp_path / "figures" / f"{each['name']}.svg").stat().st_size > 1000 for each in saved["figures"])
    assert "speedup.estimate" in (tmp_path / "comparisons.csv").read_text().splitlines()[0]


def test_a_figure_says_in_words_what_it_shows_and_escapes_names() -> None:
    row = {
        "cell": 'x"><script>',
        "verdict": "pays",
        "speedup": {"estimate": 1.25, "low": 1.2, "high": 1.3},
    }
    figure = plots.speedup_figure([row])
    assert "1.25 (1.20 to 1.30), pays" in figure.alt
    assert "<script>" not in figure.to_html() and 'role="img"' in figure.to_html()


def spread_over_kinds(run_dir: Path) -> Path:
    """Two kinds of prompt between which speculation doubles and halves the rate, on quiet servers."""
    synthetic.sweep(run_dir, {"ngram-d4": (2.0, 1.4)}, noise=0.002)
    rows = artifacts.read_jsonl(run_dir / "samples.jsonl")
    for row in rows:
        if row["cell"] == "ngram-d4":
            row["decode_s"] *= 0.5 + (int(row["prompt_id"].rpartition("-")[2]) % 4) * 0.5
    (run_dir / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run_dir


def test_where_prompts_make_it_open_the_answer_is_for_these_prompts_and_speaks_of_no_noise(tmp_path: Path) -> None:
    answer = analyse(spread_over_kinds(tmp_path))["answer"]
    assert answer["verdict"] == "not-distinguishable"
    assert answer["sentence"].startswith("On these 16 prompts, yes: NGRAM with 4 draft tokens decodes 1.1")
    assert "prompts differ so much that" in answer["sentence"] and "noise" not in answer["sentence"]
    assert "Prompts make most of the uncertainty" in answer["uncertainty"]
    assert answer["best"]["share_of_prompts"] > 0.9 and answer["best"]["verdict_same_prompts"] == "pays"


def test_where_restarts_make_it_open_they_are_named(tmp_path: Path) -> None:
    answer = analyse(synthetic.sweep(tmp_path, {"ngram-d4": (1.4, 1.39)}, noise=0.05))["answer"]
    assert answer["sentence"].startswith("Not shown.") and "faster or slower" in answer["sentence"]
    assert "Fresh servers make most of the uncertainty" in answer["uncertainty"]


def test_no_is_said_only_when_every_drafter_loses(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (1.9, 2.0), "ngram-d8": (2.0, 2.2)}, noise=0.002)
    rows = artifacts.read_jsonl(tmp_path / "samples.jsonl")
    for row in rows:
        if row["cell"] == "ngram-d8":
            row["decode_s"] *= 0.5 + (int(row["prompt_id"].rpartition("-")[2]) % 4) * 0.34
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = analyse(tmp_path)
    answer, step = result["answer"], result["next_steps"][0]
    assert answer["best"]["verdict"] == "does-not-pay" and answer["open"]["cell"] == "ngram-d8"
    assert answer["sentence"].startswith("Not shown. None is seen to pay: the best drafter measured, NGRAM with 4")
    assert "open: NGRAM with 8 draft tokens (0." in answer["sentence"] and answer["verdict"] == "not-distinguishable"
    assert step["kind"] == "measure" and "NGRAM with 8 draft tokens" in step["brings"]
    assert result["next_steps"][1]["step"] == "Until then, serve without speculation"


@pytest.mark.parametrize(
    ("cycle", "said", "step"), [(1.25, "Yes", "Until then, serve with"), (3.0, "No", "Until then, serve without")]
)
def test_one_restart_says_its_launch_noise_is_assumed(tmp_path: Path, cycle: float, said: str, step: str) -> None:
    result = analyse(synthetic.sweep(tmp_path, {"ngram-d4": (2.0, cycle)}, restarts=1))
    answer, steps = result["answer"], result["next_steps"]
    assert answer["sentence"].startswith(f"{said}, if fresh servers differ by no more than the 2% assumed. ")
    assert "launch noise assumed 2%, not measured" in answer["uncertainty"]
    assert "Student" not in answer["uncertainty"] and "Fresh servers" not in answer["uncertainty"]
    assert steps[0]["step"] == "Measure on 3 fresh servers each" and steps[1]["step"].startswith(step)


def test_a_cell_launched_once_beside_others_rests_on_what_those_differ_by(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.25), "ngram-d8": (2.0, 1.0)})
    content = artifacts.read_json(tmp_path / "cells.json")
    content["cells"] = [row for row in content["cells"] if (row["cell"], row["restart"] > 0) != ("ngram-d8", True)]
    artifacts.write_json(tmp_path / "cells.json", content)
    answer = analyse(tmp_path)["answer"]
    assert answer["best"]["restarts"] == 1 and answer["best"]["assumed_launch_sd"] is None
    assert answer["sentence"].startswith("Yes. NGRAM with 8")


def test_where_nothing_pays_the_best_is_of_those_with_most_servers_and_a_faster_looking_single_launch_is_open(
    tmp_path: Path,
) -> None:
    """A single launch beside a baseline that was disturbed looks fast, and is luck."""
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.95), "ngram-d8": (2.0, 1.9)}, noise=0.05)
    content = artifacts.read_json(tmp_path / "cells.json")
    content["cells"] = [row for row in content["cells"] if (row["cell"], row["restart"] > 0) != ("ngram-d8", True)]
    artifacts.write_json(tmp_path / "cells.json", content)
    rows = artifacts.read_jsonl(tmp_path / "samples.jsonl")
    for row in rows:
        row["decode_s"] *= 1.3 if (row["cell"], row["restart"]) == ("baseline", 0) else 1.0
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    answer = analyse(tmp_path)["answer"]
    assert answer["verdict"] == "not-distinguishable" and answer["best"]["cell"] == "ngram-d4"
    assert "; open: NGRAM with 8 draft tokens (1." in answer["sentence"] and answer["open"]["cell"] == "ngram-d8"
    assert answer["sentence"].startswith("Not shown. The best drafter measured on 3 servers, NGRAM with 4")


def test_a_decided_loser_is_no_worse_for_its_single_launch(tmp_path: Path) -> None:
    """Even the *best* one loses, whatever it rests on."""
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 3.3), "ngram-d8": (2.0, 2.2)}, noise=0.003)
    content = artifacts.read_json(tmp_path / "cells.json")
    content["cells"] = [row for row in content["cells"] if (row["cell"], row["restart"] > 0) != ("ngram-d8", True)]
    artifacts.write_json(tmp_path / "cells.json", content)
    answer = analyse(tmp_path)["answer"]
    assert answer["best"]["cell"] == "ngram-d8" and answer["best"]["restarts"] == 1
    assert answer["sentence"].startswith("No. Even the best drafter measured, NGRAM with 8") and not answer["open"]


def test_failed_drafters_are_named_in_one_sentence(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.25), "ngram-d6": (2.0, 1.3), "ngram-d8": (2.0, 1.5)})
    content = artifacts.read_json(tmp_path / "cells.json")
    for row in content["cells"]:
        row["status"] = "failed" if row["cell"] in ("ngram-d6", "ngram-d8") else "ok"
    artifacts.write_json(tmp_path / "cells.json", content)
    told = [each for each in analyse(tmp_path)["answer"]["elsewhere"] if each.startswith("Not compared")]
    assert len(told) == 1 and "NGRAM with 6 draft tokens; NGRAM with 8 draft tokens: no restart" in told[0]


def test_a_drafter_whose_every_answer_loops_is_named_with_the_reason_and_not_compared(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.25), "ngram-d8": (7.6, 1.5)})
    rows = artifacts.read_jsonl(tmp_path / "samples.jsonl")
    loops = ({**row, "degenerate": row["cell"] == "ngram-d8"} for row in rows)
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in loops))
    result = analyse(tmp_path)
    assert result["answer"]["best"]["cell"] == "ngram-d4"
    told = [each for each in result["answer"]["elsewhere"] if each.startswith("Not compared: NGRAM with 8")]
    assert len(told) == 1 and "every answer loops" in told[0] and told[0] in result["findings"]


def test_findings_say_both_halves_of_an_open_verdict(tmp_path: Path) -> None:
    (finding,) = analyse(spread_over_kinds(tmp_path))["findings"]
    assert "pays on these prompts, not shown for others" in finding


def test_every_launch_is_listed_with_its_fate(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, {"ngram-d4": (2.0, 1.3)}, restarts=2)
    content = artifacts.read_json(tmp_path / "cells.json")
    content["cells"][1] |= {"status": "failed", "failure": {"class": "hang", "text": "no answer", "advice": "a"}}
    artifacts.write_json(tmp_path / "cells.json", content)
    fates = [row["fate"] for row in analyse(tmp_path)["launches"]]
    assert fates == ["ok", "failed: hang, no answer", "ok", "ok"]
