"""Files of a run: never half-written, never misread."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from breakeven import artifacts
from breakeven.errors import UserError
from tests.conftest import Suite


def test_what_is_written_is_read_with_its_schema_version(tmp_path: Path) -> None:
    path = artifacts.write_json(tmp_path / "a" / "x.json", {"rate": 1.5, "none": float("nan"), "name": "é<&"})
    assert artifacts.read_json(path) == {"schema_version": 1, "rate": 1.5, "none": None, "name": "é<&"}


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = artifacts.write_text(tmp_path / "x", "old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        artifacts.write_text(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "run the notebook that writes it first"),
        ("{", "can't be read"),
        ("[]", "no JSON object"),
        ('{"schema_version": 99}', "schema_version 99; this release reads 1"),
    ],
)
def test_a_file_that_is_not_as_expected_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=words):
        artifacts.read_json(path)


@pytest.mark.parametrize(
    "run_dir", ["", " ", "a\0b", ".", "..", "/", "notebooks", "./notebooks/../lib", "parameters", "outputs", "docs/new"]
)
def test_a_run_dir_that_is_the_checkout_is_refused(run_dir: str, suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    root = suite()
    (root / "lib").mkdir()
    (root / "outputs").mkdir()
    before = sorted(root.rglob("*"))
    for folder in (root, root / "notebooks"):  # as the runner, and as JupyterLab
        monkeypatch.chdir(folder)
        with pytest.raises(UserError, match=r"outputs/my-run"):
            artifacts.run_folder(run_dir if folder == root else str(root / run_dir) if run_dir.strip(" .") else run_dir)
    assert sorted(root.rglob("*")) == before


def test_a_folder_with_other_things_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers/thesis.tex").touch()
    with pytest.raises(UserError, match=r"holds 'thesis.tex' and no run; give a folder that is new or empty"):
        artifacts.run_folder(tmp_path / "papers")


@pytest.mark.parametrize("name", ["run.json", "samples.jsonl", "logs", "notebooks", "01.ipynb", ".DS_Store"])
def test_a_folder_that_a_run_has_begun_is_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).touch()
    assert artifacts.run_folder(tmp_path / "run") == tmp_path / "run"
    if name.endswith(("json", "jsonl")):
        (tmp_path / "run/notes.txt").touch()
        assert artifacts.run_folder(tmp_path / "run") == tmp_path / "run"


def test_paths_count_from_here_then_from_the_root(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    root = suite()
    executed = root / "outputs/by-hand/notebooks/01_read_gating.ipynb"
    executed.parent.mkdir(parents=True)
    executed.touch()
    (root / "outputs/both").touch()
    (root / "both").touch()
    monkeypatch.chdir(root / "outputs")
    assert artifacts.located("both") == root / "outputs/both"
    assert artifacts.located("parameters/short.yaml") == root / "parameters/short.yaml"
    assert artifacts.located("short.yaml", "parameters") == root / "parameters/short.yaml"
    assert artifacts.located("nowhere/x") == root / "nowhere/x"
    assert artifacts.located("~/x") == Path.home() / "x"
    assert artifacts.from_root(root / "both") == "both" and artifacts.from_root(Path("/x")) == "/x"
    for folder in (root, root / "outputs", root / "outputs/by-hand"):  # a run folder is no root
        monkeypatch.chdir(folder)
        assert artifacts.project_root() == root
        assert artifacts.run_path("by-hand", "outputs") == artifacts.run_path("outputs/by-hand") == executed.parents[1]
    assert artifacts.run_path(".") == executed.parents[1]


def test_rows_survive_a_crash_in_the_middle_of_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    for number in range(3):
        artifacts.append_jsonl(path, {"n": number})
    with path.open("a") as file:
        file.write('{"n": 3, "out')
    assert [row["n"] for row in artifacts.read_jsonl(path)] == [0, 1, 2]
    assert artifacts.read_jsonl(tmp_path / "missing.jsonl") == []


def test_a_row_appended_after_a_crash_does_not_swallow_the_cut_off_one(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    artifacts.append_jsonl(path, {"n": 0})
    with path.open("a") as file:
        file.write('{"n": 1, "out')
    artifacts.append_jsonl(path, {"n": 2})
    assert [row["n"] for row in artifacts.read_jsonl(path)] == [0, 2]


def test_a_damaged_row_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text('{"n": 0}\n{"n": oops}\n{"n": 2}\n')
    with pytest.raises(UserError, match=r"samples.jsonl:2 is no JSON"):
        artifacts.read_jsonl(path)
