"""What several tests need: a suite of five small notebooks, run by the real runner with real kernels."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from breakeven import config

Suite = Callable[..., Path]


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
