"""Run the five notebooks in order. ``run.json`` is the only status of a run; papermill's metadata is none.

After a killed kernel or a timeout papermill leaves every cell marked ``completed``: the exception that its call
raises is the evidence, and it is classified and written down here.
"""

from __future__ import annotations

import contextlib
import errno
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import papermill
from jupyter_client.kernelspec import NoSuchKernel
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillExecutionError

from breakeven import artifacts, config, machine, reach, report
from breakeven.errors import UserError, did_you_mean, one_line
from breakeven.progress import RunProgress

CELL_TIMEOUT_S = 12 * 3600
RESERVE_BYTES = 256 * 1024


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM. asyncio's callbacks swallow everything but KeyboardInterrupt and SystemExit."""


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
    values = {**config.load_parameters(parameters), **(overrides or {})}
    values.setdefault("run_dir", f"outputs/{parameters.stem}-{datetime.now():%Y%m%d-%H%M%S}")
    settings = config.settle(values)
    serving = settings["03_launch_server"]
    assert isinstance(serving, config.ServerSettings)
    reach.greet(serving)  # an unreachable host is told before a kernel starts
    run_dir = artifacts.run_folder(values["run_dir"])
    if (run_dir / "run.json").exists():
        raise UserError(f"{run_dir} already holds a run; give another run_dir, or continue it with --resume {run_dir}")
    status = {
        "run_id": run_dir.name,
        "status": "running",
        "started_at": _now(),
        "parameters_file": str(parameters),
        "parameters": {key: value for each in settings.values() for key, value in each.model_dump().items()},
        "environment": machine.describe(root),
        "notebooks": {name: {"exit_class": "not-run"} for name in config.NOTEBOOKS},
    }
    return _execute(root, run_dir, status, cell_timeout_s, stream or sys.stderr)


def resume(run_dir: Path, *, cell_timeout_s: int = CELL_TIMEOUT_S, stream: Any = None) -> dict[str, Any]:
    """Continue a run that did not become whole, with its own parameters; what is done is not done again.

    Raises UserError when there is no such run, when it is whole, and when the machine or its packages differ.
    """
    root = artifacts.project_root()
    run_dir = artifacts.run_folder(str(run_dir))
    if not (run_dir / "run.json").exists():
        near = did_you_mean(run_dir.name, [p.parent.name for p in run_dir.parent.glob("*/run.json")])
        raise UserError(f"no run to resume at {run_dir}{near}")
    status = artifacts.read_json(run_dir / "run.json")
    if status["status"] == "whole":
        raise UserError(f"{run_dir} is whole; nothing to resume. Its report: {run_dir / 'report' / 'index.html'}")
    environment = machine.describe(root)
    then, now = machine.fingerprint(status["environment"]), machine.fingerprint(environment)
    changed = [key for key in now if now[key] != then.get(key)]
    if changed:
        raise UserError(
            f"this run was measured on another machine or with other packages ({', '.join(changed)} differ); "
            "figures of both can't be mixed, so start a new run"
        )
    return _execute(root, run_dir, {**status, "status": "running"}, cell_timeout_s, stream or sys.stderr, resumed=True)


def _execute(
    root: Path, run_dir: Path, status: dict[str, Any], cell_timeout_s: int, stream: Any, *, resumed: bool = False
) -> dict[str, Any]:
    """Run what has not run yet, record every outcome, publish whatever exists."""
    sources = {name: _checked_notebook(root, name) for name in config.NOTEBOOKS}
    record = _StatusFile(run_dir)
    record.write(status)
    with RunProgress(stream) as progress, _interrupts_raise():
        progress.say(f"run {status['run_id']}: results in {run_dir}")
        try:
            for name, source in sources.items():
                if status["notebooks"][name]["exit_class"] == "ok":
                    continue
                outcome = _run_notebook(name, source, run_dir, status["parameters"], cell_timeout_s, progress, resumed)
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
        status["ended_at"] = _now()
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


def _run_notebook(
    name: str,
    source: Path,
    run_dir: Path,
    parameters: Mapping[str, Any],
    cell_timeout_s: int,
    progress: RunProgress,
    resumed: bool,
) -> dict[str, Any]:
    """Execute one notebook; its exit class, seconds, and the failing cell with its error in one line."""
    wanted = {key: parameters[key] for key in config.NOTEBOOKS[name].model_fields}
    if resumed and "resume" in wanted:
        wanted["resume"] = True
    output = run_dir / "notebooks" / f"{name}.ipynb"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.unlink(missing_ok=True)  # a stale output must never be taken for a new one
    position = _Position()
    started, began = time.monotonic(), _now()
    try:
        papermill.execute_notebook(
            source,
            output,
            parameters=wanted,
            engine_name=_ReportingEngine.name,
            progress_bar=False,
            log_output=True,
            cwd=artifacts.project_root(),
            execution_timeout=cell_timeout_s,
            progress=progress,
            position=position,
            notebook_name=name,
        )
        outcome: dict[str, Any] = {"exit_class": "ok"}
    except (Exception, KeyboardInterrupt) as error:
        outcome = {"exit_class": exit_class(error), "failing_cell": position.number, "error": _reason(error)}
    outcome |= {"started_at": began, "seconds": round(time.monotonic() - started, 1)}
    progress.notebook_ends(outcome["exit_class"])
    return outcome


def exit_class(error: BaseException) -> str:
    """The exit class of whatever papermill's call raised.

    cell-error, dead-kernel, timeout, no-kernel, interrupted, disk-full; runner-error for what is our own fault.
    """
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, DeadKernelError):
        return "dead-kernel"
    if isinstance(error, CellTimeoutError):
        return "timeout"
    if isinstance(error, NoSuchKernel):
        return "no-kernel"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "disk-full"
    if isinstance(error, PapermillExecutionError):
        return "disk-full" if "No space left on device" in error.evalue else "cell-error"
    if isinstance(error, RuntimeError) and "Kernel died" in str(error):
        return "dead-kernel"
    return "runner-error"


def _reason(error: BaseException) -> str:
    if isinstance(error, PapermillExecutionError):
        return f"{error.ename}: {' '.join(error.evalue.split())}"
    if isinstance(error, CellTimeoutError):
        return "a cell outlasted the time allowed for one (--cell-timeout)"
    if isinstance(error, KeyboardInterrupt):
        return "stopped by Ctrl-C or SIGTERM"
    return one_line(error)


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


class _Position:
    """The number of the cell that runs, counted from 1 as the source notebook shows them."""

    number: int | None = None


class _ReportingEngine(Engine):
    """papermill's own engine, telling which cell runs and what it prints."""

    name = "breakeven"

    @classmethod
    def execute_managed_notebook(
        cls,
        nb_man: NotebookExecutionManager,
        kernel_name: str,
        *,
        progress: RunProgress,
        position: _Position,
        notebook_name: str,
        execution_timeout: int,
        start_timeout: int = 60,
        **_: Any,
    ) -> None:
        progress.notebook(notebook_name, len(nb_man.nb.cells))
        client = _ReportingClient(
            nb_man,
            kernel_name=kernel_name,
            timeout=execution_timeout,
            startup_timeout=start_timeout,
            log_output=True,
            extra_arguments=["--IPKernelApp.log_level=CRITICAL"],  # its notes on transport and signals are no news
        )
        client.progress, client.position = progress, position
        client.execute()


class _ReportingClient(PapermillNotebookClient):
    progress: RunProgress
    position: _Position

    def execute_cell(self, cell: Any, cell_index: int, *args: Any, **kwargs: Any) -> Any:
        self.position.number = cell_index + 1
        if cell.cell_type == "code":
            lines = [line for line in cell.source.splitlines() if line.strip()]
            self.progress.cell(cell_index + 1, lines[0] if lines else "")
        return super().execute_cell(cell, cell_index, *args, **kwargs)

    def log_output_message(self, output: Any) -> None:
        if output.output_type == "stream":
            self.progress.note("".join(output.text))


papermill_engines.register(_ReportingEngine.name, _ReportingEngine)


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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
