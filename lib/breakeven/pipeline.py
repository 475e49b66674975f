"""Run the five notebooks in order, publish what they leave, go on where a run stopped.

``run.json`` is the only status of a run.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import nbformat
import papermill

from breakeven import artifacts, config, machine, report
from breakeven.before_start import check_before_start, counted_from_root
from breakeven.errors import UserError, did_you_mean, one_line
from breakeven.execution import Interrupted, execute, utc_now
from breakeven.holding import held
from breakeven.hosts import LOCAL
from breakeven.launch import reach
from breakeven.progress import RunProgress

CELL_TIMEOUT_S = 12 * 3600
RESERVE_BYTES = 256 * 1024


def run(
    parameters: Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    cell_timeout_s: int = CELL_TIMEOUT_S,
    stream: Any = None,
) -> dict[str, Any]:
    """Run the suite with a parameter file and publish it; returns what ``run.json`` holds.

    Raises UserError, before any kernel starts, when a parameter or a notebook is not as it should be.
    """
    root = artifacts.project_root()
    file = config.parameter_file(parameters)
    values = {**config.load_parameters(file), **(overrides or {})}
    values.setdefault("run_dir", f"outputs/{file.stem}-{datetime.now():%Y%m%d-%H%M%S}")
    settings = config.settle(counted_from_root(values))
    check_before_start(settings)
    run_dir = artifacts.run_path(values["run_dir"])
    if (run_dir / "run.json").exists():
        raise UserError(f"{run_dir} already holds a run; give another run_dir, or continue it with --resume {run_dir}")
    machines = _machines(root, settings)  # an unreachable host is told before a kernel starts
    run_dir = artifacts.run_folder(run_dir)
    status = {
        "run_id": run_dir.name,
        "status": "running",
        "started_at": utc_now(),
        "parameters_file": artifacts.from_root(file),
        "parameters": {**_flat(settings), "run_dir": artifacts.from_root(run_dir)},
        **machines,
        "notebooks": {name: {"exit_class": "not-run"} for name in config.NOTEBOOKS},
    }
    with held(run_dir):
        return _execute(root, run_dir, status, cell_timeout_s, stream or sys.stderr)


def resume(run_dir: Path, *, cell_timeout_s: int = CELL_TIMEOUT_S, stream: Any = None) -> dict[str, Any]:
    """Continue a run that did not become whole, with its own parameters; what is done is not done again.

    Raises UserError when there is no such run, when it is whole or under way, and when this machine, its host or the
    packages of either differ.
    """
    root = artifacts.project_root()
    run_dir = artifacts.run_path(run_dir, "outputs")
    if not (run_dir / "run.json").exists():
        near = did_you_mean(run_dir.name, [p.parent.name for p in run_dir.parent.glob("*/run.json")])
        raise UserError(f"no run to resume at {run_dir}{near or '; runs are the folders under outputs/'}")
    run_dir, status = artifacts.run_folder(run_dir), artifacts.read_json(run_dir / "run.json")
    if wrong := [key for key in ("parameters", "environment", "notebooks") if not isinstance(status.get(key), dict)]:
        raise UserError(f"{run_dir / 'run.json'} lacks {', '.join(wrong)}: no run can go on from it; start a new one")
    if status.get("status") == "whole":
        raise UserError(f"{run_dir} is whole; nothing to resume. Its report: {run_dir / 'report' / 'index.html'}")
    settings = config.settle(status["parameters"])
    check_before_start(settings)
    for which, now in _machines(root, settings).items():
        _refuse_another_machine(status.get(which) or {}, now or {})
    parameters = {**_flat(settings), "run_dir": artifacts.from_root(run_dir)}  # it may have been moved
    notebooks = {name: status["notebooks"].get(name, {"exit_class": "not-run"}) for name in config.NOTEBOOKS}
    status |= {"status": "running", "parameters": parameters, "notebooks": notebooks}
    with held(run_dir):
        return _execute(root, run_dir, status, cell_timeout_s, stream or sys.stderr, resumed=True)


def _flat(settings: Mapping[str, config.Settings]) -> dict[str, Any]:
    """The parameters of all notebooks as one mapping."""
    return {key: value for each in settings.values() for key, value in each.model_dump().items()}


def _machines(root: Path, settings: Mapping[str, config.Settings]) -> dict[str, dict[str, Any] | None]:
    """``environment``: the machine that serves; ``runner``: this one, None where they are one and the same.

    Raises UserError, in one line, where the host can't be reached.
    """
    serving = settings["03_launch_server"]
    assert isinstance(serving, config.ServerSettings)
    reach.greet(serving)
    host = reach.open_host(serving)
    try:
        return {
            "environment": machine.describe(root, host),
            "runner": None if host is LOCAL else machine.describe(root),
        }
    except OSError as error:
        raise UserError(f"host: {one_line(error)}") from None


def _refuse_another_machine(then: dict[str, Any], now: dict[str, Any]) -> None:
    before, after = machine.fingerprint(then), machine.fingerprint(now)
    if changed := [key for key in after if after[key] != before[key]]:
        where = f" on {before['host']}" if before["host"] else ""
        raise UserError(
            f"this run was measured{where} on another machine or with other packages ({', '.join(changed)} differ); "
            "figures of both can't be mixed, so start a new run"
        )


def _execute(
    root: Path, run_dir: Path, status: dict[str, Any], cell_timeout_s: int, stream: Any, *, resumed: bool = False
) -> dict[str, Any]:
    """Run what has not run yet, record every outcome, publish whatever exists."""
    sources = {name: _checked_notebook(root, name) for name in config.NOTEBOOKS}
    try:
        record = _StatusFile(run_dir)
        record.write(status)
    except OSError as error:
        raise UserError(f"{run_dir} can't be written: {error.strerror}; make room, or take another run_dir") from None
    with RunProgress(stream) as progress, _interrupts_raise():
        progress.say(f"run {status['run_id']}: results in {run_dir}")
        try:
            for name, source in sources.items():
                if status["notebooks"][name]["exit_class"] == "ok":
                    continue
                outcome = execute(name, source, run_dir, status["parameters"], cell_timeout_s, progress, resumed)
                status["notebooks"][name] = outcome
                record.write(status)
                if outcome["exit_class"] != "ok":
                    progress.say(failure_line(name, outcome))
                    break
        except Interrupted:
            # between two notebooks: nothing was running, the next one is simply not run
            progress.say("interrupted between two notebooks")
        classes = [each["exit_class"] for each in status["notebooks"].values()]
        whole = all(each == "ok" for each in classes)
        status["status"] = "whole" if whole else "interrupted" if "interrupted" in classes else "incomplete"
        status["ended_at"] = utc_now()
        record.close(status)
    with _interrupts_ignored():
        try:
            report.publish(run_dir)
        except OSError as error:
            print(f"the report could not be written: {one_line(error)}", file=stream)
    return status


def failure_line(notebook: str, outcome: Mapping[str, Any]) -> str:
    """One line that says where a run stopped and why."""
    where = f", cell {outcome['failing_cell']}" if outcome.get("failing_cell") else ""
    return f"{notebook}{where} ended with {outcome['exit_class']}: {outcome.get('error', '')}"


def _checked_notebook(root: Path, name: str) -> Path:
    """The notebook's path, after checking that papermill can parameterise it: exactly one tagged cell."""
    path = root / "notebooks" / f"{name}.ipynb"
    try:
        book = nbformat.read(path, as_version=4)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read as a notebook: {one_line(error)}") from None
    tagged = sum("parameters" in cell.metadata.get("tags", []) for cell in book.cells)
    if tagged != 1:
        raise UserError(f"{path} has {tagged} cells tagged 'parameters'; papermill needs exactly one")
    declared = papermill.inspect_notebook(path)
    missing = sorted(set(config.NOTEBOOKS[name].model_fields) - set(declared))
    if missing:
        raise UserError(f"the parameters cell of {path} does not set {', '.join(missing)}")
    return path


class _StatusFile:
    """run.json, with room kept aside so that a full disk can still be told there."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / "run.json"
        self._reserve = run_dir / ".room-for-the-last-status"
        artifacts.write_bytes(self._reserve, b"\0" * RESERVE_BYTES)

    def write(self, status: dict[str, Any]) -> None:
        try:
            artifacts.write_json(self._path, status)
        except OSError:
            self._reserve.unlink(missing_ok=True)
            artifacts.write_json(self._path, status)

    def close(self, status: dict[str, Any]) -> None:
        self._reserve.unlink(missing_ok=True)
        artifacts.write_json(self._path, status)


@contextlib.contextmanager
def _interrupts_raise() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise Interrupted once; a second one while tidying up is ignored."""

    def stop(number: int, frame: Any) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted

    before = {each: signal.signal(each, stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    before = {each: signal.signal(each, signal.SIG_IGN) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
