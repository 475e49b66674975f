"""The whole suite with the real SGLang as another user in another home, through a real OpenSSH server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from breakeven import artifacts
from tests import verdicts
from tests.conftest import ROOT, start_cli, wait_for_a_measured_sample
from tests.ssh_box import ALIAS, Box, open_box

pytestmark = pytest.mark.e2e


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    monkeypatch.setenv("BREAKEVEN_CACHE", str(artifacts.cache_root()))  # before the home changes
    with open_box() as box:
        monkeypatch.setenv("HOME", str(box.client_home))
        yield box


def test_the_suite_gives_the_same_verdicts_through_ssh_though_the_connection_is_killed_amid_a_measurement(
    smoke: Path, box: Box, tmp_path: Path
) -> None:
    run_dir = tmp_path / "run"
    options = [f"run_dir={run_dir}", f"host={ALIAS}", f"python={sys.executable}"]
    overrides = [part for option in options for part in ("-p", option)]
    process = start_cli(ROOT, "run", "parameters/smoke.yaml", *overrides)
    try:
        wait_for_a_measured_sample(run_dir, process, seconds=600)
        assert box.cut()
        _, err = process.communicate(timeout=2400)
    finally:
        process.kill()
    assert process.returncode == 0, err[-4000:]
    assert "dropped and was made again; it is measured again" in err
    assert box.processes() == [] and box.connections() == [] and box.files() == set()
    assert not list((run_dir / "logs").glob("*.pid.json"))

    verdicts.assert_the_same_gates(smoke, run_dir)
    verdicts.assert_the_same_answers(smoke, run_dir)
    verdicts.assert_no_verdict_against_the_other(smoke, run_dir)

    run, server = artifacts.read_json(run_dir / "run.json"), artifacts.read_json(run_dir / "server.json")
    assert run["status"] == "whole" and run["runner"]["packages"] == run["environment"]["packages"]
    assert server["host"] == ALIAS and server["readiness"]["generation"]["tokens"] > 0
    assert str(box.home) in server["command_line"] and server["effective"]["device"] == "cpu"
    cells = artifacts.read_json(run_dir / "cells.json")["cells"]
    assert cells[0]["launch"] == "baseline.restart0.2", "the first was lost with its connection"
    shares = [row["profile"]["shares"] for row in cells]
    assert all(sum(share.values()) == pytest.approx(1.0, abs=0.02) for share in shares), "the traces came back"
    logs = {path.name for path in (run_dir / "logs").iterdir()}
    assert {"launch-proof.log", *(row["log"] for row in cells)} <= logs, "and so did the logs"
