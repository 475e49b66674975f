"""The notebooks as they are committed: clean, short, and of one skeleton."""

from __future__ import annotations

import statistics
import subprocess
from pathlib import Path

import nbformat
import pytest

from breakeven import config

ROOT = Path(__file__).parents[1]
NAMES = list(config.NOTEBOOKS)


def book(name: str) -> nbformat.NotebookNode:
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def test_every_notebook_in_the_folder_belongs_to_the_suite() -> None:
    assert sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_committed_without_outputs_and_run_metadata(name: str) -> None:
    notebook = book(name)
    assert notebook.metadata.kernelspec.name == "python3"
    assert "papermill" not in notebook.metadata
    for cell in notebook.cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert set(cell.metadata) <= {"tags"}
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_follows_the_skeleton(name: str) -> None:
    texts = [cell.source for cell in book(name).cells if cell.cell_type == "markdown"]
    assert texts[0].startswith("# ") and "**Question.**" in texts[0]
    assert "## Findings" in texts
    assert texts[-1].startswith("**What comes next.**")


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_short_and_hold_no_functions(name: str) -> None:
    sources = [
        cell.source
        for cell in book(name).cells
        if cell.cell_type == "code" and "parameters" not in cell.metadata.get("tags", [])
    ]
    lengths = [len(source.splitlines()) for source in sources]
    assert max(lengths) <= 20 and statistics.median(lengths) <= 6
    assert not any(word in source for source in sources for word in ("def ", "class ", "sys.path", "chdir"))


@pytest.mark.parametrize("path", ["lib/breakeven/new_module.py", "outputs/.gitkeep"])
def test_git_does_not_ignore(path: str) -> None:
    assert subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT).returncode == 1


@pytest.mark.parametrize("path", ["outputs/a-run/run.json", ".venv/x", "lib/breakeven/__pycache__/x.pyc"])
def test_git_ignores(path: str) -> None:
    assert subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT).returncode == 0
