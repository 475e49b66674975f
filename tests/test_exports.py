"""What a sweep leaves for other tools."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from breakeven import artifacts
from breakeven.sweep import exports, forecast
from breakeven.sweep.store import Store


def row(cell: str, tok_s: float, steps: int | None = None, **more: Any) -> dict[str, Any]:
    return {
        "cell": cell,
        "launch": f"{cell}.restart0.1",
        "restart": 0,
        "order": 0,
        "variant": "default",
        "drafter": "EAGLE3" if steps else "none",
        "steps": steps,
        "topk": 1 if steps else None,
        "concurrency": 1,
        "temperature": 0.0,
        "context_tokens": 0,
        "status": "ok",
        "tok_s": tok_s,
        "sglang_version": "0.5.23",
        "command": ["python", "-m", "sglang.launch_server", "--model-path", "/m", "--port", "1234", "--nccl-port", "9"],
        "environment": {},
        **more,
    }


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    artifacts.append_jsonl(tmp_path / "samples.jsonl", {"cell": "baseline", "phase": "measure", "decode_s": 1.5})
    return tmp_path


def test_the_tables_open_in_pandas_and_each_column_has_its_unit(run_dir: Path) -> None:
    exports.export(run_dir, {"cells": [row("baseline", 50.0), row("eagle3-s3", 70.0, 3, cycle_ms=30.0)]})
    launches = pd.read_parquet(run_dir / "launches.parquet")
    assert list(launches["tok_s"]) == [50.0, 70.0]
    schema = pq.read_schema(run_dir / "launches.parquet")
    assert schema.field("cycle_ms").metadata[b"unit"] == b"ms"
    units = json.loads((run_dir / "units.json").read_text())["columns"]
    for name in (*launches.columns, *pd.read_parquet(run_dir / "requests.parquet").columns):
        assert units[name]["meaning"]


def test_the_script_launches_the_fastest_cell_and_quotes_what_it_was_given(run_dir: Path) -> None:
    hostile = "/m; touch pwned $(touch pwned) 'x'"
    command = [*row("", 0)["command"][:4], hostile, "--port", "1234"]
    cells = [row("baseline", 50.0), row("eagle3-s3", 70.0, 3, command=command, environment={"A": "b c", "T": "$TOKEN"})]
    exports.export(run_dir, {"cells": cells})
    script = (run_dir / "fastest.sh").read_text()
    shown = script.replace("exec python", "printf '%s\\n' \"$A\" \"$T\"; exec printf '%s\\n'")
    done = subprocess.run(["sh", "-c", shown], capture_output=True, text=True, env={"TOKEN": "secret"}, cwd=run_dir)
    assert done.stdout.splitlines() == ["b c", "secret", "-m", "sglang.launch_server", "--model-path", hostile]
    assert not (run_dir / "pwned").exists() and "secret" not in script


def test_a_rate_at_a_pinned_accept_length_is_no_drafters_and_never_the_fastest() -> None:
    cells = [row("baseline", 50.0), row("eagle3-s3", 70.0, 3, accept_length_pinned=2.0)]
    fastest = exports.fastest_row(cells)
    assert fastest is not None and fastest["cell"] == "baseline"
    assert exports.adaptive_settings(cells) == {}


def test_adaptive_candidates_are_the_chains_that_pay_at_each_batch_and_zero_where_none_does() -> None:
    cells = [row("baseline", 50.0), row("s1", 60.0, 1), row("s3", 70.0, 3), row("s5", 68.0, 5)]
    cells += [row("baseline@c8", 40.0, concurrency=8), row("s1@c8", 30.0, 1, concurrency=8)]
    assert exports.adaptive_settings(cells) == {"1": {"candidate_steps": [3, 5]}, "8": {"candidate_steps": [0]}}


def test_there_are_no_adaptive_settings_for_a_release_without_the_table() -> None:
    cells = [row("baseline", 50.0), row("s3", 70.0, 3, sglang_version="0.5.13")]
    assert exports.adaptive_settings(cells) == {}


def test_a_sweep_without_any_figure_still_exports_its_rows(run_dir: Path) -> None:
    failed = {key: value for key, value in row("baseline", 0.0).items() if key not in ("tok_s", "command")}
    files = exports.export(run_dir, {"cells": [{**failed, "status": "failed"}]})
    assert (run_dir / "launches.csv").exists() and not (run_dir / "fastest.sh").exists()
    assert "fastest.sh" not in {each["file"] for each in files}


def test_a_baseline_that_wins_is_named_as_itself_and_not_as_its_twin() -> None:
    fastest = exports.fastest_row([row("baseline", 70.0), row("baseline-again", 70.1), row("eagle3-s3", 60.0, 3)])
    assert fastest is not None and fastest["cell"] == "baseline"
    alone = exports.fastest_row([row("baseline-again", 70.1), row("eagle3-s3", 60.0, 3)])
    assert alone is not None and alone["cell"] == "baseline-again", "of a baseline it is all that there is"


def test_a_server_that_was_attached_to_has_no_launch_script(run_dir: Path) -> None:
    files = exports.export(run_dir, {"cells": [row("baseline", 50.0, command=[])]})
    assert not (run_dir / "fastest.sh").exists() and all(each["file"] != "fastest.sh" for each in files)


def test_nothing_that_an_earlier_sweep_left_stands_for_a_new_ones(run_dir: Path) -> None:
    artifacts.write_json(run_dir / forecast.FILE, {"rows": []})
    exports.export(run_dir, {"cells": [row("baseline", 50.0), row("s1", 70.0, 1)]})
    assert (run_dir / "adaptive.json").exists() and (run_dir / "fastest.sh").exists()
    Store(run_dir, {}, resume=False)
    assert [path.name for path in run_dir.iterdir() if ".before-" not in path.name] == ["cells.json"]
