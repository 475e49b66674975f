"""What several tests need: a suite of five small notebooks, run by the real runner with real kernels."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from breakeven import config
from breakeven.command import LaunchSpec
from breakeven.server import Server, launch

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
