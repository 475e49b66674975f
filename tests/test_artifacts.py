"""Files of a run: never half-written, never misread."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from breakeven import artifacts
from breakeven.errors import UserError


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
