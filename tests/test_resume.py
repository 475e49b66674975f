"""A sweep that is cut off anywhere and resumed: the same launches in the same order, none twice, none lost."""

from __future__ import annotations

import errno
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakeven import artifacts, machine
from breakeven.config import SweepSettings
from breakeven.costs import formulas
from breakeven.launch.design import Launch
from breakeven.sweep import running
from breakeven.sweep.store import Store

PLANNED = SweepSettings(
    run_dir="unused",
    drafters=[
        {"algorithm": "EAGLE3", "model": "m", "steps": [1, 2, 3, 4, 5, 6], "topk": 1},
        {"algorithm": "NGRAM", "draft_tokens": [2, 4, 8], "breadth": 1},
    ],
    restarts=2,
    aa_pair=True,
)
PROMPTS = ("a", "b", "c")
ACCEPTANCE = {"EAGLE3": 0.6, "NGRAM": 0.3}


class Cut(BaseException):
    """The end of a kernel: no handler runs."""


class Disk:
    """What a store writes with; of one life of a sweep, one operation is cut off, or the disk is full from there on."""

    def __init__(self, cut_at: int | None, how: str) -> None:
        self.cut_at, self.how, self.operations = cut_at, how, 0

    @contextmanager
    def in_place(self) -> Iterator[None]:
        write, append = artifacts.write_json, artifacts.append_jsonl

        def write_json(path: Path, content: dict[str, Any]) -> Path:
            self._cut("before")
            if self._now("amid"):
                (path.parent / f".{path.name}.half").write_text('{"schema_version": 1, "ce')
            self._cut("amid")
            written = write(path, content)
            self._cut("after")
            self.operations += 1
            return written

        def append_jsonl(path: Path, row: dict[str, Any]) -> None:
            self._cut("before")
            if self._now("amid"):
                with path.open("a") as file:
                    file.write(json.dumps(row)[:40])
            self._cut("amid")
            append(path, row)
            self._cut("after")
            self.operations += 1

        with mock.patch.multiple(artifacts, write_json=write_json, append_jsonl=append_jsonl):
            yield

    def _now(self, how: str) -> bool:
        return self.operations == self.cut_at and self.how == how

    def _cut(self, how: str) -> None:
        if self.how == "full" and how == "before" and self.operations == self.cut_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        if self._now(how):
            raise Cut


class Measurements:
    """What servers with known costs would answer; counts launches that are made although their rows are on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repeated: list[str] = []
        self.store: Store

    def __call__(self, launch: Launch) -> list[dict[str, Any]]:
        arm, drafter = launch.arm, launch.arm.drafter
        done = artifacts.read_json(self.folder / "cells.json")["cells"]
        self.repeated += [launch.key for row in done if (row["arm"], row["restart"]) == (arm.name, launch.restart)]
        fixed = {"cell": arm.name, "arm": arm.name, "restart": launch.restart, "condition": "", "concurrency": 1}
        fixed |= {"launch": self.store.new_attempt(launch), "drafter": drafter.algorithm if drafter else "none"}
        drafts = (drafter.steps or (drafter.draft_tokens or 1) - 1) if drafter else 0
        rate = ACCEPTANCE[drafter.algorithm] if drafter else 0.0
        verifies = [1000 * (1 - rate) * rate**k for k in range(drafts)] + [1000 * rate**drafts]
        for prompt in PROMPTS:
            sample = {
                "prompt_id": prompt,
                "completion_tokens": 101,
                "degenerate": False,
                "output_ids": [1],
                "error": None,
            }
            histogram = verifies if drafter else None
            self.store.add_sample({**fixed, "phase": "warm-up", **sample, "prompt_id": f"warm-up {prompt}"})
            self.store.add_sample({**fixed, "phase": "measure", "correct_drafts_histogram": histogram, **sample})
        cycle_ms = 20.0 + 2.5 * drafts + 0.1 * launch.restart
        figures: dict[str, Any] = {
            "tok_s": 1000 * formulas.expected_accept_length(rate, drafts) / cycle_ms,
            "cycle_ms": cycle_ms,
        }
        if arm.name == arm.baseline and not launch.restart:
            figures["forward_ms"] = {str(rows): 14.0 + 2.0 * rows for rows in range(2, 9)}
        return [{**fixed, **figures, "status": "ok", "failure": None, "seconds": 1.0}]


def swept(folder: Path, cuts: list[tuple[int, str]], **changes: Any) -> dict[str, Any]:
    """What ``cells.json`` holds at the end of a sweep that is cut off as often as there are cuts, and resumed."""
    planned = SweepSettings(**{**PLANNED.model_dump(), **changes})
    measure = Measurements(folder)
    for life, (operation, how) in enumerate([*cuts, (None, "")]):
        disk = Disk(operation, how)
        with mock.patch.object(machine, "describe", return_value={}), disk.in_place():
            try:
                measure.store = Store(folder, running._plan(planned), resume=life > 0)
                running.measure_all(planned, running.plan(planned), measure.store, measure, lambda text: None)
            except (Cut, OSError):
                continue
            break
    assert measure.repeated == []
    content = artifacts.read_json(folder / "cells.json")
    assert content["cells"] == measure.store.content()["cells"]
    rows = artifacts.read_jsonl(folder / "samples.jsonl")
    complete = {row["launch"] for row in content["cells"]}
    times = Counter((row["launch"], row["prompt_id"]) for row in rows if row["launch"] in complete)
    assert times == {(launch, text): 1 for launch in complete for p in PROMPTS for text in (p, f"warm-up {p}")}
    return content


def without_attempts(content: dict[str, Any]) -> dict[str, Any]:
    cells = [{**row, "launch": row["launch"].rpartition(".")[0]} for row in content["cells"]]
    return {"cells": cells, "search": content["search"], "predictions": content["predictions"]}


@pytest.fixture(scope="module", params=[True, False], ids=["search", "grid"])
def uncut(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bool, dict[str, Any]]:
    content = swept(tmp_path_factory.mktemp("uncut"), [], search=request.param)
    launched = [(row["arm"], row["restart"]) for row in content["cells"]]
    assert len(launched) == len(set(launched)) == (22 if not request.param else len(launched))
    if request.param:
        assert len(launched) < 15 and {each["action"] for each in content["search"]} == {"measure", "confirm", "drop"}
    return request.param, without_attempts(content)


class Looping(Measurements):
    """Every answer of NGRAM loops: its launches end well and have no figure."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.made: list[str] = []

    def __call__(self, launch: Launch) -> list[dict[str, Any]]:
        self.made.append(launch.key)
        drafter = launch.arm.drafter
        without = ("tok_s", "cycle_ms") if drafter and drafter.algorithm == "NGRAM" else ()
        return [{key: row[key] for key in row if key not in without} for row in super().__call__(launch)]


def searched(folder: Path, measure: Measurements, *, resume: bool = False) -> list[str]:
    """What one life of a search says."""
    planned, said = PLANNED.model_copy(update={"search": True}), []
    with mock.patch.object(machine, "describe", return_value={}):
        measure.store = Store(folder, running._plan(planned), resume=resume)
        running.measure_all(planned, running.plan(planned), measure.store, measure, said.append)
    return said


def test_a_search_does_not_repeat_what_gave_no_figure(tmp_path: Path) -> None:
    measure = Looping(tmp_path)
    searched(tmp_path, measure)
    whole = list(measure.made)
    assert len(set(whole)) == len(whole) and any("ngram" in key for key in whole)
    searched(tmp_path, measure, resume=True)
    assert measure.made == whole and measure.repeated == []


def test_a_search_says_how_long_it_may_take(tmp_path: Path) -> None:
    first, second, *_ = searched(tmp_path, Measurements(tmp_path))
    assert first.startswith("launch 1, of at most 22: baseline.restart0; ")  # nothing to tell it from yet
    assert second.startswith("launch 2, of at most 22: ") and ", at most about 0:00:21 left; " in second


CUTS = st.lists(
    st.tuples(st.integers(0, 120), st.sampled_from(["before", "amid", "after", "full"])), min_size=1, max_size=4
)


@settings(max_examples=60)
@given(cuts=CUTS)
def test_wherever_a_sweep_is_cut_off_it_ends_as_if_it_had_not_been(
    uncut: tuple[bool, dict[str, Any]], cuts: list[tuple[int, str]]
) -> None:
    search, whole = uncut
    with tempfile.TemporaryDirectory() as folder:
        assert without_attempts(swept(Path(folder), cuts, search=search)) == whole
