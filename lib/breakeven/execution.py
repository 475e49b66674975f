"""Execute one notebook, and say how that ended. papermill's own metadata is no status record.

After a killed kernel or a timeout papermill leaves every cell marked ``completed``: the exception that its call
raises is the evidence, and it is classified here.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import papermill
from jupyter_client.kernelspec import NoSuchKernel
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import Engine, NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillExecutionError

from breakeven import artifacts, config
from breakeven.errors import one_line
from breakeven.progress import RunProgress

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


class Interrupted(KeyboardInterrupt):
    """SIGINT or SIGTERM. asyncio's callbacks swallow everything but KeyboardInterrupt and SystemExit."""


def execute(
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
    position = _Position()
    started, began = time.monotonic(), utc_now()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.unlink(missing_ok=True)  # a stale output must never be taken for a new one
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
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return "disk-full"
    if isinstance(error, PapermillExecutionError):
        return "disk-full" if any(os.strerror(number) in error.evalue for number in _NO_ROOM) else "cell-error"
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


def utc_now() -> str:
    """This moment in UTC, as every file of a run writes it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
