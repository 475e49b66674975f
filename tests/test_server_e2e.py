"""The real SGLang on the embedded CPU engine: it comes up, goes without a trace, and each way to fail has its name."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from breakeven import workload
from breakeven.hosts import LOCAL, processes, supervise
from breakeven.server import Drafter, LaunchFailure, LaunchSpec, Server
from breakeven.workload import profiling, untraced
from tests.conftest import START_S, launch_on_cpu

pytestmark = pytest.mark.e2e


@pytest.fixture
def spec(cpu_spec: LaunchSpec) -> LaunchSpec:
    return cpu_spec


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, short_temporary: Path) -> Iterator[None]:
    """No process, record or temporary file outlives a test."""
    yield
    assert not (tmp_path / "server.pid.json").exists()
    assert [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE] == []


def _launch(tmp_path: Path, spec: LaunchSpec, stall_timeout_s: float = 300) -> Server:
    return launch_on_cpu(spec, tmp_path, stall_timeout_s=stall_timeout_s, on_progress=print)


@contextlib.contextmanager
def _once_the_scheduler_runs(number: int) -> Iterator[list[int]]:
    """Send a signal to SGLang's scheduler, the child that loads the model, soon after it calls itself so; its id.

    It loads for two seconds or more. What it made in /dev/shm the supervisor should have seen by then.
    """
    sent: list[int] = []
    over = threading.Event()

    def watch() -> None:
        while not (sent or over.wait(0.1)):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if process.cmdline()[:1] == ["sglang::scheduler"]:
                        over.wait(0.4)
                        process.send_signal(number)
                        sent.append(process.pid)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield sent
    finally:
        over.set()
        watcher.join()


def test_a_server_comes_up_generates_is_seen_hanging_and_leaves_nothing(tmp_path, spec):
    drafter = Drafter("NGRAM", draft_tokens=4, breadth=1)
    with _launch(tmp_path, replace(spec, drafter=drafter)) as server:
        assert server.alive() and server.failure(answer_within_s=120) is None
        generation = server.readiness["generation"]
        assert generation["tokens"] >= 1 and generation["text"].strip()
        assert set(server.startup_s) >= {"import", "load", "pool", "http", "warm-up", "generation"}
        info = server.info()
        assert info["speculative_algorithm"] == "NGRAM" and info["speculative_num_draft_tokens"] == 4
        assert info["max_running_requests"] == 4 and info["port"] == server.spec.port
        marker = server._process.marker
        members = {process.pid for process in processes.marked(marker)}
        inodes = supervise.shared_memory(members)
        shared = [path for path in Path("/dev/shm").iterdir() if path.stat().st_ino in inodes]
        children = psutil.Process(server.pid).children()
        scheduler = next(process for process in children if process.cmdline()[0] == "sglang::scheduler")
        assert {server.pid, scheduler.pid} <= members, "the marker must survive in SGLang's children"
        scheduler.suspend()
        failure = server.failure(answer_within_s=5)
        assert failure is not None and failure.cls == "hang"
        assert f"process {scheduler.pid} (" in failure.text and "is stopped" in failure.text
    assert shared and not any(path.exists() for path in shared)
    assert processes.marked(marker) == [] and not any(psutil.pid_exists(pid) for pid in members)
    assert LOCAL.port_is_free(server.spec.port) and LOCAL.port_is_free(server.spec.dist_port)


def test_a_scheduler_killed_while_it_loads_ends_the_start_at_once(tmp_path, spec):
    with _once_the_scheduler_runs(signal.SIGKILL) as killed, pytest.raises(LaunchFailure) as caught:
        _launch(tmp_path, spec)
    assert killed and caught.value.failure.cls == "killed", caught.value
    assert "warm-up" not in caught.value.startup_s


def test_a_stopped_scheduler_is_a_hang_within_its_bound(tmp_path, spec):
    with _once_the_scheduler_runs(signal.SIGSTOP) as stopped:
        began = time.monotonic()
        with pytest.raises(LaunchFailure) as caught:
            _launch(tmp_path, spec, stall_timeout_s=30)
    assert stopped and caught.value.failure.cls == "hang", caught.value
    assert f"process {stopped[0]} (" in caught.value.failure.text and "is stopped" in caught.value.failure.text
    assert time.monotonic() - began < START_S


def test_a_port_of_the_ranks_that_is_taken_meanwhile_is_named(tmp_path, spec, monkeypatch):
    """The HTTP port being free is not enough; and a port may be taken after it was found free."""
    port, dist_port = LOCAL.free_ports(2)
    start = LOCAL.start
    with contextlib.ExitStack() as taken:

        def start_and_take_it(*command: Any, **options: Any) -> Any:
            started = start(*command, **options)
            taken.enter_context(socket.create_server(("0.0.0.0", dist_port)))
            return started

        monkeypatch.setattr(LOCAL, "start", start_and_take_it)
        with pytest.raises(LaunchFailure) as caught:
            _launch(tmp_path, replace(spec, port=port, dist_port=dist_port))
    assert caught.value.failure.cls == "port-in-use", caught.value
    assert caught.value.failure.line is not None


def test_a_limit_on_memory_is_out_of_memory_at_load(tmp_path, spec):
    """The imports alone take 5 GB of addresses, so that a pool of 4.6 GB (23 kB a token) does not fit into 9 GiB."""
    limited = replace(spec, max_total_tokens=200_000, prefix=("prlimit", f"--as={9 << 30}"))
    with pytest.raises(LaunchFailure) as caught:
        _launch(tmp_path, limited)
    assert caught.value.failure.cls == "oom-at-load", caught.value


def test_a_model_path_that_does_not_exist_is_a_configuration_failure(tmp_path, spec):
    with pytest.raises(LaunchFailure) as caught:
        _launch(tmp_path, replace(spec, model_path="/no/such/model"))
    assert caught.value.failure.cls == "config" and caught.value.failure.line is not None, caught.value
    assert "/no/such/model" in (tmp_path / "server.log").read_text()


def shrunken(model: Path, folder: Path, tokens: int = 40_000) -> Path:
    """The model as a draft of another family would be: fewer tokens, its weights otherwise the same."""
    from safetensors.torch import load_file, save_file

    folder.mkdir()
    weights = load_file(model / "model.safetensors")
    weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"][:tokens].clone()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((model / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": tokens}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).symlink_to(model / name)
    return folder


def test_a_draft_with_another_vocabulary_that_gets_as_far_as_the_server_is_named_by_its_failure(tmp_path, spec):
    draft = shrunken(Path(spec.model_path), tmp_path / "draft")
    drafter = Drafter("STANDALONE", model=str(draft), steps=2, topk=1)
    with pytest.raises(LaunchFailure) as caught:
        _launch(tmp_path, replace(spec, drafter=drafter))
    failure = caught.value.failure
    assert failure.cls == "config" and "same vocabulary" in failure.text, caught.value
    assert "Take a draft of the same family" in failure.advice and failure.line is not None


def test_what_tells_a_gpu_s_cycle_runs_against_a_real_server(tmp_path, spec, monkeypatch):
    """The pairs of answers before anything is recorded, then both windows, all behind as much text as was measured."""
    monkeypatch.setattr(profiling, "_on_gpu", lambda base_url: True)
    monkeypatch.setattr(untraced, "LONG_TOKENS", 96)
    monkeypatch.setattr(untraced, "PAIRS", {"device": 2, "host": 2})
    for module in (profiling, untraced):
        monkeypatch.setattr(module, "HOST_STEPS", 24)
    folder, prompt = tmp_path / "traces" / "any", workload.Prompt("any", "open chat", "Hello", 48)
    limits = {"measured": untraced.Measured(text_tokens=90.0), "context_length": spec.context_length}
    with (
        _launch(tmp_path, spec) as server,
        workload.Client(server.base_url, lambda text: list(range(1000, 1040))) as client,
    ):
        found = profiling.cycle_shares(server.base_url, client, prompt, 8, folder, **limits)
    profile = found["profile"]
    assert "error" not in profile, profile
    assert profile["untraced"]["text_tokens"] == pytest.approx(90, abs=2)
    assert profile["untraced"]["n"] == 2 * 6 and profile["n"] == 6, "from one to the next of 7 steps after the prefill"
    assert profile["host_window"] == 22 - 22 // 4
    assert profile["untraced"]["host_off"] > -1 and sum(profile["shares"].values()) == pytest.approx(1)
