"""A sweep on two Ray workers of this machine, with the real server: one of them is killed, and nothing is lost.

It is the sweep of the smoke parameters, so that its verdicts can stand beside those of a run without workers.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from breakeven import artifacts, config, sweep
from breakeven.config import SweepSettings
from breakeven.errors import UserError
from breakeven.hosts import LOCAL
from breakeven.launch.design import Arm, Launch
from breakeven.launch.serving import Serving
from breakeven.sweep import cluster
from breakeven.sweep.load import Workload
from breakeven.sweep.measuring import Measurement
from breakeven.sweep.store import Store
from breakeven.workload.prompts import Prompt
from tests import verdicts
from tests.conftest import ROOT

SETTINGS: dict[str, Any] = {**config.load_parameters(ROOT / "parameters/smoke.yaml"), "profile_steps": 0}


def test_a_search_can_not_be_shared_among_workers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="set search: false"):
        sweep.run_sweep(SweepSettings.checked({**SETTINGS, "workers": 2, "search": True}), tmp_path)


@pytest.mark.parametrize(
    ("workers", "gpus", "refused"), [(4, 2, ""), (4, 4, "2 on a node"), (2, 5, "1 on a node"), (9, 0, "5 on a node")]
)
def test_workers_whose_servers_a_node_has_no_gpus_or_cores_for_are_refused(
    monkeypatch: pytest.MonkeyPatch, workers: int, gpus: int, refused: str
) -> None:
    nodes = [{"Alive": True, "NodeID": name * 28, "Resources": {"CPU": 4.0, "GPU": 4.0}} for name in ("ab", "cd")]
    context = SimpleNamespace(get_node_id=lambda: "no node of these")
    ray = SimpleNamespace(nodes=lambda: nodes, get_runtime_context=lambda: context)
    if refused:
        with pytest.raises(UserError, match=refused):
            cluster._places(ray, workers, gpus)
    else:
        assert len(cluster._places(ray, workers, gpus)) == workers


@pytest.mark.parametrize(("flags", "gpus"), [([], 2), (["--pp-size=2"], 4), (["--dp-size", "2"], 4)])
def test_a_worker_asks_for_all_gpus_of_its_server(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: list[str], gpus: int
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(cluster, "_places", lambda ray, workers, gpus: asked.append(gpus) or [{}])
    monkeypatch.setattr(cluster.machine, "gpus", lambda *_: [{"name": "any"}])
    settings = SweepSettings.checked({**SETTINGS, "workers": 1, "tp": 2, "server_flags": flags})
    hired: list[int] = []
    worker = SimpleNamespace(options=lambda num_gpus, **_: hired.append(num_gpus) or worker, remote=lambda *_: None)
    launch, load = Launch(Arm("baseline", None), 0), SimpleNamespace()
    store, ray = Store(tmp_path, {}, resume=False), SimpleNamespace(remote=lambda _: worker)
    crew = cluster._Crew(ray, settings, [launch], load, store, tmp_path, print)
    crew._hire({"strategy": None, "cores": []})
    assert asked == hired == [gpus]


def test_without_ray_workers_are_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UserError, match="pip install ray"):
        cluster._ray()


def test_a_launch_that_a_worker_lost_with_its_connection_is_measured_again_three_times_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = {"status": "failed", "failure": {"class": "connection-lost", "text": "the connection dropped"}}
    good = {"status": "ok", "failure": None, "seconds": 1.0}
    launch, said = Launch(Arm("baseline", None), 0), []
    fixed = {"cell": "baseline", "arm": "baseline", "restart": 0, "launch": f"{launch.key}.1"}

    def work(answers: list[dict[str, Any]], folder: Path) -> Store:
        """A crew of one worker, in this process."""
        found = ({"rows": [{**fixed, **answer}], "samples": [], "files": {}} for answer in answers)
        worker = SimpleNamespace(measure=SimpleNamespace(remote=lambda *_: object()))
        ray = SimpleNamespace(wait=lambda tasks, num_returns: (tasks, []), get=lambda _: next(found))
        ray.exceptions = SimpleNamespace(RayActorError=ZeroDivisionError)
        monkeypatch.setattr(cluster, "_places", lambda ray, workers, gpus: [{}])
        monkeypatch.setattr(cluster._Crew, "_hire", lambda self, place: worker)
        store = Store(folder, {}, resume=False)
        settings, load = SweepSettings(workers=1), Workload([], Prompt("", "", "", 1))
        cluster._Crew(ray, settings, [launch], load, store, folder, said.append).work()
        return store

    assert [row["status"] for row in work([lost, lost, good], tmp_path / "one").rows] == ["ok"]
    assert sum("the connection dropped; baseline.restart0 is measured again" in text for text in said) == 2
    with pytest.raises(RuntimeError, match="lost 3 times; the last: the connection dropped"):
        work([lost, lost, lost], tmp_path / "other")
    assert artifacts.read_json(tmp_path / "other" / "cells.json")["cells"] == []


def test_workers_serve_through_the_runs_overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "overlay" / "changed").mkdir(parents=True)
    (tmp_path / "overlay" / "changed" / "a.py").write_text("fused = True")
    settings, load = SweepSettings(workers=1, use_overlay=True), Workload([], Prompt("", "", "", 1))
    launch = Launch(Arm("baseline", None), 0)

    def prepared(settings: SweepSettings, folder: Path, say: Any) -> Serving:
        return Serving(settings, folder, LOCAL, Path("/m"), {}, (), list)

    def measured(self: Measurement, launch: Launch) -> list[dict[str, Any]]:
        self.serving.log_path(launch.key).write_text("log")
        folder = Path(self.serving.environment_of(launch.arm.variant)["PYTHONPATH"])
        return [{"overlay": (folder / "changed" / "a.py").read_text()}]

    monkeypatch.setattr(cluster, "_places", lambda ray, workers, gpus: [{"strategy": None, "cores": []}])
    monkeypatch.setattr(Serving, "prepare", prepared)
    monkeypatch.setattr(Workload, "chosen", lambda *_: load)
    monkeypatch.setattr(Measurement, "run", measured)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    here = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=cluster.Worker))
    ray: Any = SimpleNamespace(remote=lambda worker: here)
    store = Store(tmp_path, {}, resume=False)
    crew = cluster._Crew(ray, settings, [launch], load, store, tmp_path, print)
    worker = crew._hire(crew._places[0])
    for _ in range(2):
        found = worker.measure(launch, "baseline.restart0.1", cluster._Known(store, launch, load))
        assert found["rows"][0]["overlay"] == "fused = True"
        assert list(found["files"]) == ["logs/baseline.restart0.log"]


@pytest.mark.e2e
def test_two_workers_give_the_verdicts_of_one_and_a_killed_one_loses_nothing(smoke: Path, tmp_path: Path) -> None:
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
    assert not _workers() and not list(Path(tempfile.gettempdir()).glob(f"breakeven-worker-of-{os.getpid()}-*"))
    verdicts.assert_the_same_answers(smoke, tmp_path)
    verdicts.assert_no_verdict_against_the_other(smoke, tmp_path)


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
