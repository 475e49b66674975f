"""The overlay under the real SGLang: its processes import it, its gates open for the GPU, and text stays as it is."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from breakeven import fusion
from breakeven.embedded import engine
from breakeven.embedded.model import ensure_model
from breakeven.server import LaunchSpec, launch

pytestmark = pytest.mark.e2e

START_S = 1200.0
"""Seconds for a start: 40 on two idle cores, many times that where they are shared."""
PROMPTS = ["The capital of France is", "def fibonacci(n):", "Once upon a time there was a"]
SERVED = re.compile(r"breakeven overlay: pid (\d+) imports (\S+) from (\S+)")


@pytest.fixture(scope="module")
def change(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """The overlay for SM12x of the installed release; taken back at the end."""
    outcome = fusion.patch("sm120", out=tmp_path_factory.mktemp("home") / "overlay")
    assert outcome["status"] == "changed", outcome["reasons"]
    yield outcome
    assert fusion.revert(Path(outcome["path"]))["status"] == "reverted"


def serve_and_ask(folder: Path, pythonpath: str) -> tuple[list[list[int]], str, int]:
    """Greedy answers of a real server, its log, and the id of its first process."""
    folder.mkdir()
    spec = LaunchSpec(
        python=sys.executable,
        model_path=str(ensure_model()),
        dtype="bfloat16",
        context_length=1024,
        max_running_requests=4,
        max_total_tokens=4096,
        defaults=tuple(engine.server_flags()),
    )
    environment = engine.server_environment({**os.environ, "PYTHONPATH": pythonpath})
    with launch(spec, folder / "server.log", engine_env=environment, ready_timeout_s=START_S) as server:
        answers = []
        for prompt in PROMPTS:
            sampling = {"max_new_tokens": 24, "temperature": 0.0}
            asked = {"text": prompt, "sampling_params": sampling}
            answer = httpx.post(f"{server.base_url}/generate", json=asked, timeout=600, trust_env=False)
            answers.append(answer.raise_for_status().json()["output_ids"])
        return answers, server.log_path.read_text(encoding="utf-8"), server.pid


def test_the_server_and_its_children_import_the_changed_files_and_greedy_text_is_unchanged(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(prefix="e2e-", dir="/tmp") as temporary:  # short: SGLang makes sockets in it
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        plain, plain_log, _ = serve_and_ask(tmp_path / "plain", "")
        changed, log, first_pid = serve_and_ask(tmp_path / "changed", change["path"])
    served = SERVED.findall(log)
    assert {name for _, name, _ in served} == {file["module"] for file in change["files"]}
    assert all(Path(file).is_relative_to(change["path"]) for _, _, file in served)
    assert {pid for pid, _, _ in served} - {str(first_pid)}, "a spawned child imports them too"
    assert "breakeven overlay" not in plain_log
    assert changed == plain


@pytest.mark.parametrize("arch", ["sm120", "sm121"])
def test_the_gates_of_the_imported_modules_let_the_gpu_through(change: dict[str, Any], arch: str) -> None:
    found = fusion.prove_imported(Path(change["path"]), arch, pythonpath=[engine.SITE])
    assert found["proven"], found["because"]
    assert {"asked": "_resolve_backend('auto')", "answer": "trtllm", "raised": None} in found["admitted"]


def test_they_do_not_let_another_gpu_through(change: dict[str, Any]) -> None:
    found = fusion.prove_imported(Path(change["path"]), "sm110", pythonpath=[engine.SITE])
    assert found["proven"] is False
