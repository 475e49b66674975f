"""The whole suite with the real SGLang as another user in another home, through a real OpenSSH server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakeven import artifacts
from tests.conftest import run_cli
from tests.ssh_box import ALIAS, Box, open_box

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[1]


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    monkeypatch.setenv("BREAKEVEN_CACHE", str(artifacts.cache_root()))  # before the home changes
    with open_box() as box:
        monkeypatch.setenv("HOME", str(box.client_home))
        yield box


def test_the_suite_runs_through_ssh_with_the_verdicts_of_this_machine(box: Box, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    parameters = {"run_dir": run_dir, "host": ALIAS, "python": sys.executable, "restarts": 1}
    overrides = [part for name, value in parameters.items() for part in ("-p", f"{name}={value}")]
    done = run_cli(ROOT, "run", "parameters/smoke.yaml", *overrides, timeout_s=2400)
    assert done.returncode == 0, done.stderr[-4000:]

    gates = artifacts.read_json(run_dir / "gates.json")
    assert (gates["sglang"]["version"], gates["verdict"], gates["patchable"]) == ("0.5.23", "denied-by-sglang", True)
    server = artifacts.read_json(run_dir / "server.json")
    assert server["host"] == ALIAS and server["readiness"]["generation"]["tokens"] > 0
    assert str(box.home) in server["command_line"] and server["effective"]["device"] == "cpu"
    cells = artifacts.read_json(run_dir / "cells.json")["cells"]
    assert [row["cell"] for row in cells] == ["baseline", "ngram-d4-b1-t256"]
    assert all(row["status"] == "ok" and row["errors"] == 0 for row in cells)
    shares = [row["profile"]["shares"] for row in cells]
    assert all(sum(share.values()) == pytest.approx(1.0, abs=0.02) for share in shares), "the traces came back"
    speculating = cells[1]
    assert speculating["canary"]["compared"] == speculating["requests"] > 0
    assert all(each["gap_nats"] < 0.25 for each in speculating["canary"]["parted"])
    assert speculating["cycle_ms"] == pytest.approx(1000 * speculating["accept_length"] / speculating["tok_s"])
    logs = {path.name for path in (run_dir / "logs").iterdir()}
    assert {"launch-proof.log", *(row["log"] for row in cells)} <= logs, "and so did the logs"
    assert box.processes() == [] and box.connections() == [] and box.files() == set()
