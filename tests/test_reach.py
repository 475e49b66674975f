"""From parameters to the machine and the Python that serve."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from breakeven import machine
from breakeven.config import GateSettings, SweepSettings
from breakeven.errors import UserError
from breakeven.hosts import LOCAL, Host
from breakeven.launch import reach
from breakeven.launch.design import plan_arms
from breakeven.launch.serving import Serving
from tests.stand_in import lay_out_stand_in


@pytest.fixture
def another_python(tmp_path: Path) -> Path:
    """The interpreter of an environment with another SGLang."""
    site, program = lay_out_stand_in(tmp_path / "site", "0.4.9"), tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    program.chmod(0o755)
    return program


def test_a_local_interpreter_of_its_own_is_the_one_that_is_judged(tmp_path: Path, another_python: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    settings = SweepSettings(engine="native", model=str(tmp_path), python=str(another_python))
    host = reach.open_host(settings)
    assert machine.describe(tmp_path, host)["packages"]["sglang"] == "0.4.9"
    assert reach.open_host(settings) is host and host.name == "local"
    serving = Serving(settings, tmp_path, host, tmp_path, {}, (), encode=lambda text: [])
    errors = [each.found for each in serving.preflight(plan_arms([{"algorithm": "NGRAM"}])) if each.severity == "error"]
    assert len(errors) == 1 and "came with SGLang 0.5.3 and this is 0.4.9" in errors[0]
    read, flashinfer = reach.sources_on_host(GateSettings(python=str(another_python)))
    assert (Path(read), flashinfer) == (tmp_path / "site" / "sglang", None)


def test_this_python_is_this_machine_and_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert reach.open_host(SweepSettings()) is LOCAL
    assert reach.open_host(SweepSettings(python=sys.executable)) is LOCAL
    with pytest.raises(UserError, match="python is 'no-such-python', which can't be run; give the interpreter"):
        reach.open_host(SweepSettings(python="no-such-python"))
    (tmp_path / "python").symlink_to(os.path.realpath(sys.executable))  # as another environment's is
    assert reach.open_host(SweepSettings(python=str(tmp_path / "python"))) is not LOCAL


def test_a_python_without_the_package_is_named(another_python: Path) -> None:
    with pytest.raises(UserError, match="has no no_such_package"):
        reach._fetched(reach.open_host(SweepSettings(python=str(another_python))), "no_such_package", "installed")


def _box(files: dict[str, bytes]) -> Host:
    """Another machine with one folder."""
    far: Any = SimpleNamespace(name="box", names=lambda folder: sorted(files), read=lambda path: files[path.name])
    far.size = lambda path: len(files.get(path.name, b""))
    return cast(Host, far)


def test_no_tokenizer_file_of_another_model_remains(tmp_path: Path) -> None:
    first = {"config.json": b"{}", "tokenizer.json": b"A", "chat_template.jinja": b"A", "model.safetensors": b"0"}
    reach.tokenizer_folder(_box(first), Path("/A"), tmp_path)
    folder = reach.tokenizer_folder(_box({"config.json": b"{}", "tokenizer.json": b"B"}), Path("/B"), tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"config.json": b"{}", "tokenizer.json": b"B"}
