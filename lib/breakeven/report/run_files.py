"""The files of a run as the pages need them: checked where they are read, so that a half of one is told in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from breakeven import artifacts
from breakeven.errors import UserError

NEEDED: dict[str, dict[str, type]] = {
    "run.json": {"status": str, "started_at": str, "parameters": dict, "environment": dict, "notebooks": dict},
    "breakeven.json": {"source": str, "answer": dict},
    "cells.json": {"cells": list},
    "gates.json": {"arch": str, "verdict": str},
}
IN_EACH_CELL = {"cell": str, "launch": str, "status": str, "order": int, "restart": int}
ENVIRONMENT: dict[str, Any] = {
    **{"host": "unknown", "memory_gib": "?", "python": "unknown"},
    **{"gpus": [], "packages": {}, "git_commit": None},
}
RUN = {"parameters_file": "unknown"}
NOTEBOOK = {"failing_cell": None, "error": "", "exit_class": "unknown"}
ANSWER: dict[str, Any] = {"uncertainty": "", "how": "", "best": None, "elsewhere": []}
RESULT: dict[str, Any] = {
    **{
        name: []
        for name in (
            "comparisons",
            "variants",
            "warnings",
            "findings",
            "figures",
            "cells",
            "by_kind",
            "next_steps",
            "left_out",
            "left_out_notes",
            "forecast",
            "arm_facts",
        )
    },
    **{name: None for name in ("outlook", "reported", "machine", "setting")},
}
"""What a result of an earlier release may lack; the others before it: what the parts of one may."""


def read_run(run_dir: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """``run.json`` and ``breakeven.json`` of a run, each empty where it does not exist.

    Raises UserError for a folder that holds neither, nor an executed notebook, and for a file that lacks what the pages
    need.
    """
    if not run_dir.is_dir():
        raise UserError(f"no run folder {run_dir}; runs are the folders under outputs/")
    run, result = read(run_dir, "run.json"), read(run_dir, "breakeven.json")
    if not run and not result and not list((run_dir / "notebooks").glob("*.ipynb")):
        raise UserError(f"{run_dir} holds no run: neither run.json nor executed notebooks")
    if run:
        _require(run_dir / "run.json", run["notebooks"], dict.fromkeys(run["notebooks"], dict))
        notebooks = {name: {**NOTEBOOK, **each} for name, each in run["notebooks"].items()}
        known = {name: value for name, value in run["environment"].items() if value is not None}
        run = {**RUN, **run, "environment": {**ENVIRONMENT, **known}, "notebooks": notebooks}
    if result:
        _require(run_dir / "breakeven.json", result["answer"], {"sentence": str, "verdict": str})
        result = {**RESULT, **result, "answer": {**ANSWER, **result["answer"]}}
    return run, result


def read_cells(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of ``cells.json``, none where it does not exist. Raises UserError for a row that lacks a name."""
    cells = read(run_dir, "cells.json").get("cells", [])
    for row in cells:
        _require(run_dir / "cells.json", row, IN_EACH_CELL)
    return list(cells)


def read(run_dir: Path, name: str) -> dict[str, Any]:
    """One of the files in `NEEDED`; empty where it does not exist. Raises UserError where it lacks what is needed."""
    path = run_dir / name
    if not path.exists():
        return {}
    content = artifacts.read_json(path)
    _require(path, content, NEEDED[name])
    return content


def _require(path: Path, content: Any, needed: dict[str, type]) -> None:
    if not isinstance(content, dict):
        raise UserError(f"{path} holds {content!r:.40} where an object belongs; restore the file or remove it")
    if lacking := [key for key, kind in needed.items() if not isinstance(content.get(key), kind)]:
        raise UserError(f"{path} lacks {', '.join(lacking)}; restore the file or remove it")
