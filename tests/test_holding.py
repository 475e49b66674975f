"""One process at a time works on a run folder, and the kernels of a run belong to its runner."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from breakeven import holding
from breakeven.config import ServerSettings, SweepSettings
from breakeven.errors import UserError
from breakeven.holding import held
from breakeven.hosts import LOCAL
from breakeven.launch import proof
from breakeven.launch.serving import Serving
from breakeven.sweep import running
from tests.conftest import Suite, run_cli

HOLD = """
import sys
from pathlib import Path
from breakeven.holding import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def another_process_holds(folder: Path) -> Iterator[subprocess.Popen[str]]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], **pipes) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_second_sweep_in_a_folder_is_refused(tmp_path: Path) -> None:
    with another_process_holds(tmp_path) as process:
        with pytest.raises(UserError, match="is under way in another process; wait for its end"):
            running.run_sweep(SweepSettings(), tmp_path)
        with pytest.raises(UserError, match="is under way in another process"):
            proof.prove(Serving(ServerSettings(), tmp_path, LOCAL, Path("/m"), {}, (), list), [])
        assert list(tmp_path.iterdir()) == []
        process.kill()
        process.wait()
        with held(tmp_path):
            pass  # however the holder ended


def test_the_kernels_below_a_holder_pass_and_work_on_other_folders_too(tmp_path: Path) -> None:
    (other := tmp_path / "other").mkdir()
    with held(tmp_path):
        with held(other), another_process_holds(other):
            pass
        assert os.environ[holding.HELD] == str(tmp_path.resolve())
        with another_process_holds(tmp_path):
            pass
    assert holding.HELD not in os.environ


@pytest.mark.process
def test_a_notebook_that_the_runner_executes_passes(suite: Suite) -> None:
    hold = "from breakeven import artifacts\nfrom breakeven.holding import held\n"
    root = suite(n04=f"{hold}with held(artifacts.run_folder(run_dir)):\n    pass")
    done = run_cli(root, "run", "parameters/short.yaml")
    assert done.returncode == 0, done.stderr[-2000:]
