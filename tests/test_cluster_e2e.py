"""A sweep on two Ray workers of this machine, with the real server: one of them is killed, and nothing is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest

from breakeven import artifacts, cluster, sweep
from breakeven.config import SweepSettings
from breakeven.errors import UserError

SETTINGS: dict[str, Any] = {
    "engine": "embedded",
    "drafters": [{"algorithm": "NGRAM", "draft_tokens": [4], "breadth": 1, "depth": 256}],
    "kinds": ["code edit"],
    "profile_steps": 0,
}


def test_a_search_can_not_be_shared_among_workers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="set search: false"):
        sweep.run_sweep(SweepSettings.checked({**SETTINGS, "workers": 2, "search": True}), tmp_path)


def test_without_ray_workers_are_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UserError, match="pip install ray"):
        cluster._ray()


@pytest.mark.e2e
def test_a_killed_worker_loses_nothing_and_every_cell_is_measured_once(tmp_path: Path) -> None:
    said: list[str] = []
    killed = threading.Event()

    def kill_a_worker_once_its_server_runs() -> None:
        while not killed.is_set():
            for worker in _workers():
                if any("launch_server" in " ".join(child.cmdline()) for child in worker.children(recursive=True)):
                    os.kill(worker.pid, signal.SIGKILL)
                    killed.set()
                    return
            time.sleep(0.5)

    killer = threading.Thread(target=kill_a_worker_once_its_server_runs, daemon=True)
    killer.start()
    settings = SweepSettings.checked({**SETTINGS, "workers": min(2, os.cpu_count() or 1)})
    result = sweep.run_sweep(settings, tmp_path, said.append)
    assert killed.is_set() and any("died" in line for line in said)
    assert Counter((row["cell"], row["restart"]) for row in result["cells"]) == {
        (cell, restart): 1 for cell in ("baseline", "ngram-d4-b1-t256") for restart in (0, 1)
    }
    assert all(row["status"] == "ok" and row["tok_s"] > 0 for row in result["cells"])
    by_restart = {row["restart"]: row["worker"] for row in result["cells"]}
    assert len(set(by_restart.values())) == settings.workers, "each restart on cores of its own"
    samples = artifacts.read_jsonl(tmp_path / "samples.jsonl")
    measured = Counter((row["launch"], row["prompt_id"]) for row in samples if row["phase"] == "measure")
    assert set(measured.values()) == {1}
    assert all((tmp_path / "logs" / row["log"]).exists() for row in result["cells"])
    assert not _workers()


def _workers() -> list[psutil.Process]:
    """Ray's worker processes under this one that measure."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "ray::Worker" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found
