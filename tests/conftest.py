"""What several tests need: a suite of five small notebooks, run by the real runner with real kernels."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import nbformat
import pytest

from breakeven import artifacts, config
from breakeven.server import Server, launch
from breakeven.server.command import LaunchSpec

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a script, which is inherited: what these tests interrupt would go on for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("untimed", deadline=None)  # a busy machine fails no test
hypothesis.settings.load_profile("untimed")

ROOT = Path(__file__).parents[1]
Suite = Callable[..., Path]
START_S = 1200.0
"""Seconds for a start of the real server: 40 on two idle cores, many times that where they are shared."""


def lay_out_suite(root: Path, **bodies: str) -> Path:
    """A suite in a folder; keyword arguments ``n01`` to ``n05`` replace the body of a notebook."""
    (root / "notebooks").mkdir()
    (root / "parameters").mkdir()
    (root / "parameters" / "short.yaml").write_text("run_dir: outputs/run\n")
    for name in config.NOTEBOOKS:
        book = nbformat.v4.new_notebook(
            metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        )
        book.cells = [
            nbformat.v4.new_markdown_cell(f"# Title of {name}"),
            nbformat.v4.new_code_cell(config.parameters_cell(name), metadata={"tags": ["parameters"]}),
            nbformat.v4.new_code_cell(bodies.get(f"n{name[:2]}", "answer = 1")),
        ]
        nbformat.write(book, root / "notebooks" / f"{name}.ipynb")
    return root


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """``lay_out_suite`` in the test's own folder."""
    return functools.partial(lay_out_suite, tmp_path)


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of the shipped smoke parameters, in a folder of its own."""
    run_dir = tmp_path_factory.mktemp("runs") / "smoke"
    done = run_cli(ROOT, "run", "parameters/smoke.yaml", "-p", f"run_dir={run_dir}", timeout_s=1500)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip().splitlines()[-1] == str(run_dir / "report/index.html")
    return run_dir


def wait_for_a_measured_sample(
    run_dir: Path, process: subprocess.Popen[Any], cell: str = "baseline", seconds: float = 300
) -> None:
    """Return once a request to a server of this cell was measured."""
    deadline = time.monotonic() + seconds
    while not any(
        (row["phase"], row["cell"]) == ("measure", cell) for row in artifacts.read_jsonl(run_dir / "samples.jsonl")
    ):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture(scope="session")
def cpu_spec() -> LaunchSpec:
    """The default model on the embedded engine, as small as a server gets."""
    from breakeven.embedded import engine, model

    return LaunchSpec(
        python=sys.executable,
        model_path=str(model.ensure_model()),
        dtype="bfloat16",
        context_length=1024,
        max_running_requests=4,
        max_total_tokens=4096,
        defaults=tuple(engine.server_flags()),
    )


@pytest.fixture
def short_temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, empty again at the end; its path is short, because SGLang makes sockets in it."""
    folder = tempfile.mkdtemp(prefix="e2e-", dir="/tmp")
    monkeypatch.setattr(tempfile, "tempdir", folder)
    yield Path(folder)
    Path(folder).rmdir()


def launch_on_cpu(spec: LaunchSpec, folder: Path, *, pythonpath: str = "", **options: Any) -> Server:
    """A real server on the embedded engine, its log and record in ``folder``; ``options`` are those of ``launch``."""
    from breakeven.embedded import engine

    environment = engine.server_environment({**os.environ, "PYTHONPATH": pythonpath})
    fixed = {"ready_timeout_s": START_S, "record_path": folder / "server.pid.json"}
    return launch(spec, folder / "server.log", engine_env=environment, **{**fixed, **options})


def start_cli(root: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command line in a process group of its own, started from the suite's root."""
    return subprocess.Popen(
        [sys.executable, "-m", "breakeven.cli", *arguments],
        cwd=root,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def run_cli(root: Path, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """The command line, waited for."""
    process = start_cli(root, *arguments)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
