"""A server that somebody else runs: asked, and left running; what is no SGLang is said in one line."""

from __future__ import annotations

import contextlib
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from breakeven import config
from breakeven.errors import UserError
from breakeven.hosts import LOCAL
from breakeven.launch import proof, reach
from breakeven.launch.serving import Serving
from breakeven.server import LaunchFailure, attach, readiness
from tests.conftest import Suite, run_cli
from tests.stand_in import lay_out_stand_in


@contextlib.contextmanager
def running(folder: Path, behaviour: str = "good") -> Iterator[str]:
    """The stand-in for SGLang, started by nobody of this suite; its URL."""
    (port,) = LOCAL.free_ports(1)
    environment = {**os.environ, "PYTHONPATH": str(lay_out_stand_in(folder / "site")), "BEHAVIOUR": behaviour}
    command = [sys.executable, "-m", "sglang.launch_server", "--port", str(port)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline().split()[1])
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 30
        while not readiness.is_healthy(url, 1):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        yield url
        assert process.poll() is None, "it must be left running"
    finally:
        for pid in (process.pid, child):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def test_a_running_server_is_described_asked_and_left_running(tmp_path: Path) -> None:
    with running(tmp_path) as url:
        with attach.attach(url, tmp_path / "log") as server:
            assert server.readiness["generation"]["text"] == "Monday" and server.alive() and server.failure() is None
            assert server.effective["max_running_requests"] == 7
            record = server.record()
        assert record["command"] == [] and record["requested"] == {} and record["host"] == f"attach:{url}"
        assert readiness.is_healthy(url, 5)


def test_an_old_release_is_asked_by_the_old_name(tmp_path: Path) -> None:
    with running(tmp_path, "old") as url:
        assert attach.look_at(url).effective["max_running_requests"] == 7


@pytest.mark.parametrize(("behaviour", "word"), [("mute", "without a token"), ("broken", "500")])
def test_a_server_that_does_not_generate_is_no_ready_one(tmp_path: Path, behaviour: str, word: str) -> None:
    with running(tmp_path, behaviour) as url, pytest.raises(LaunchFailure) as caught:
        attach.attach(url, tmp_path / "log", ready_timeout_s=10)
    assert caught.value.failure.cls == "not-ready" and word in caught.value.failure.text


def test_a_server_that_goes_away_is_missed(tmp_path: Path) -> None:
    with running(tmp_path) as url:
        server = attach.attach(url, tmp_path / "log")
    failure = LaunchFailure.of(server).failure
    assert failure.cls == "not-ready" and "breakeven logs" in failure.advice


class _Other(http.server.BaseHTTPRequestHandler):
    """Some other server: vLLM's paths, or anything that answers."""

    answers: ClassVar[dict[str, tuple[int, bytes]]] = {}

    def do_GET(self) -> None:
        code, body = self.answers.get(self.path, (404, b'{"detail":"Not Found"}'))
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("answers", "word"),
    [
        ({}, "is no SGLang server (/server_info: status 404"),
        ({"/version": (200, b'{"version": "0.12.0"}'), "/health": (200, b"")}, "is no SGLang server"),
        ({"/server_info": (200, b"<html>hello</html>")}, "is no SGLang server"),
        ({"/server_info": (200, b'{"vllm_config": {}}')}, "is no SGLang server"),
        ({"/server_info": (200, b"[1]")}, "is no SGLang server"),
        ({"/server_info": (401, b"{}")}, "wants an API key"),
    ],
)
def test_what_is_no_sglang_server_is_said_in_one_line(answers: dict[str, tuple[int, bytes]], word: str) -> None:
    handler = type("Handler", (_Other,), {"answers": answers})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever).start()
    try:
        with pytest.raises(UserError) as caught:
            reach.greet(config.ServerSettings(host=f"attach:http://127.0.0.1:{server.server_port}"))
    finally:
        server.shutdown()
        server.server_close()
    assert word in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:30000", "ftp://x", "http://", "http://x:y", "http://x/v1", "http://a:b@x"]
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UserError, match="is no server's URL"):
        attach.checked_url(url)


def test_nothing_that_answers_is_said() -> None:
    (port,) = LOCAL.free_ports(1)
    with pytest.raises(UserError, match="no server answers"):
        attach.look_at(f"http://127.0.0.1:{port}")


def test_the_suite_serves_through_it_and_says_what_it_can_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("breakeven.workload.chat_encoder", lambda folder: lambda text: [1, 2, 3])
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with running(tmp_path) as url:
        settings = config.ServerSettings(
            host=f"attach:{url}", model=str(tmp_path / "model"), server_flags=["--x"], use_overlay=True
        )
        serving = Serving.prepare(settings, tmp_path)
        known = proof.preflight_of(serving)
        assert "server_flags, use_overlay" in known[-1].found
        record = proof.prove(serving, known, lambda text: None)
    assert "was running already" in proof.in_words(record)
    assert "left running" in proof.findings(record)[0]


def test_a_sweep_measures_what_runs_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    said: list[str] = []
    with running(tmp_path) as url:
        settings = config.SweepSettings(host=f"attach:{url}", restarts=3, server_flags=["--x"])
        alone = attach.as_it_runs(settings, said.append)
    assert (alone.drafters, alone.variants, alone.restarts) == ([], {}, 1)
    assert "server_flags" in said[1] and "left out" in said[-1]
    assert attach.as_it_runs(config.SweepSettings(), said.append) == config.SweepSettings()


@pytest.mark.process
def test_a_server_that_speculates_is_refused_before_a_kernel_starts(tmp_path: Path, suite: Suite) -> None:
    root = suite()
    with running(tmp_path / "server", "speculating") as url:
        done = run_cli(root, "run", "parameters/short.yaml", "-p", f"host=attach:{url}")
    assert done.returncode == 2 and "the attached server speculates (EAGLE3)" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and not (root / "outputs").exists()


def test_a_container_is_held_from_within_or_not_at_all() -> None:
    with pytest.raises(UserError, match="SSH destination"):
        reach.open_host(config.ServerSettings(command_prefix=["docker", "exec", "-i", "box"]))
    assert reach.open_host(config.ServerSettings(command_prefix=["numactl", "--membind=0"])) is LOCAL
