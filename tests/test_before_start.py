"""What is wrong with a suite's parameters is told before a kernel starts, and paths lead where they were meant to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from breakeven import config, pipeline
from breakeven.before_start import check_before_start, counted_from_root
from breakeven.errors import UserError
from tests.conftest import ROOT, Suite

PINNED_AND_GRID: dict[str, Any] = {"server_env": {"SGLANG_SIMULATE_ACC_LEN": "2.0"}, "search": False}


@pytest.fixture
def started(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The runs that got as far as the kernels, from the root of a suite."""
    monkeypatch.chdir(suite())
    runs: list[Any] = []
    monkeypatch.setattr(pipeline, "_machines", lambda root, settings: {"environment": {}, "runner": None})
    monkeypatch.setattr(pipeline, "_execute", lambda *given, **more: runs.append(given) or {})
    return runs


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"drafters": [{"algoritm": "NGRAM"}]}, "did you mean 'algorithm'"),
        ({"drafters": [{"algorithm": "EAGLE5"}]}, "did you mean"),
        ({"drafters": [{"algorithm": "STANDALONE", "model": "nowhere"}]}, "nowhere holds no config.json"),
        ({"variants": {"a": {"flag": []}}}, "did you mean 'flags'"),
        ({"variants": {"a b": {}}}, "letters, digits"),
        ({"concurrency": []}, "concurrency is an empty list"),
        ({"temperature": [-1.0]}, "temperature holds -1.0"),
        ({"context_tokens": [100_000]}, "context_length is 2048"),
        ({"kinds": ["cod edit"]}, "did you mean 'code edit'"),
        ({"prompts": "nope.jsonl"}, "nope.jsonl can't be read"),
        ({"prompts_per_kind": 999}, "999 prompts per kind: there are"),
        ({"records": "nope.csv"}, "nope.csv does not exist"),
        ({"records": "nope.csv", "model": "none"}, "nope.csv does not exist"),
        ({"model": "nowhere"}, "model: nowhere holds no config.json"),
        ({"workers": 2, "search": True}, "workers: a search decides launch by launch"),
        ({**PINNED_AND_GRID, "search": True}, "search: the accept length of"),
        ({"server_env": {"SGLANG_SIMULATE_ACC_LEN": "two"}}, "give a number such as 2.0"),
        ({"server_env": {"HF_TOKEN": "$NO_SUCH_VARIABLE"}}, "the environment has no such variable"),
    ],
    ids=str,
)
def test_a_misspelt_drafter_starts_no_kernel(started: list[Any], values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as caught:
        pipeline.run(Path("parameters/short.yaml"), values)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert not started and not Path("outputs").exists()


def test_what_can_be_run_is_started(started: list[Any]) -> None:
    pipeline.run(Path("parameters/short.yaml"), PINNED_AND_GRID)
    assert len(started) == 1


@pytest.mark.parametrize("file", sorted((ROOT / "parameters").glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_parameter_file_could_start(file: Path) -> None:
    check_before_start(config.settle(counted_from_root(config.load_parameters(file))))


def test_paths_count_from_here_then_from_the_root(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notebooks run in the root: what was found from here is told to them as they find it."""
    here = tmp_path / "elsewhere"
    for folder in (here / "mine", tmp_path / "models/theirs"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    for file in (here / "my.jsonl", tmp_path / "set.jsonl"):
        file.write_text('{"id": "a", "kind": "k", "prompt": "p", "max_new_tokens": 8}\n')
    drafters = [{"algorithm": "STANDALONE", "model": "models/theirs", "steps": [1, 2], "topk": 1}]
    monkeypatch.chdir(here)
    values = {"run_dir": "outputs/x", "model": "mine", "drafters": drafters, "prompts": "my.jsonl"}
    pipeline.run(Path("short.yaml"), values)  # of parameters/
    _, run_dir, status, *_ = started.pop()
    told = status["parameters"]
    assert run_dir == tmp_path / "outputs/x" and told["run_dir"] == "outputs/x"
    assert (told["model"], told["prompts"]) == ("elsewhere/mine", "elsewhere/my.jsonl")
    assert told["drafters"][0]["model"] == "models/theirs" and told["drafters"][0]["steps"] == [1, 2]
    assert status["parameters_file"] == "parameters/short.yaml"

    pipeline.run(Path("short.yaml"), {"run_dir": "outputs/y", "prompts": "set.jsonl"})
    assert started.pop()[2]["parameters"]["prompts"] == "set.jsonl"


def test_paths_of_another_machine_and_words_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("embedded", "model", "installed"):
        (tmp_path / name).mkdir()
    here = {"model": "embedded", "sglang": "installed", "prompts": "shipped", "records": "none"}
    assert counted_from_root(here) == here
    there = {"host": "box", "model": "model", "drafters": [{"algorithm": "EAGLE3", "model": "model"}]}
    assert counted_from_root(there) == there
    assert counted_from_root({"model": "model"}) == {"model": str(tmp_path / "model")}
