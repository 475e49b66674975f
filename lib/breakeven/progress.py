"""What a long run is doing: a live bar in a terminal, timestamped lines in a log."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text


def clock(seconds: float) -> str:
    """Seconds as ``h:mm:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


class RunProgress:
    """Which notebook, which cell, what it waits for, and how long it has taken so far.

    Use as a context manager; ``stream`` decides between bar and lines by being a terminal or not.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._started = time.monotonic()
        self._notebook = ""
        self._cells = 0
        self._bar: Progress | None = None
        console = Console(file=stream)
        if console.is_terminal:
            columns = ("[bold]{task.description}", "{task.fields[note]}")
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn(columns[0]),
                BarColumn(bar_width=20),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn(columns[1], markup=False),
                console=console,
                transient=False,
            )

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def notebook(self, name: str, cells: int) -> None:
        """A notebook with that many cells begins."""
        self._notebook, self._cells = name, cells
        if self._bar:
            self._task = self._bar.add_task(name, total=cells, note="starting a kernel")
        else:
            self._line("starts")

    def cell(self, number: int, title: str) -> None:
        """The cell with that number (from 1) begins."""
        if self._bar:
            self._bar.update(self._task, completed=number - 1, note=title[:100])
        else:
            self._line(f"cell {number}/{self._cells}: {title}")

    def note(self, text: str) -> None:
        """A line that the running cell printed: what it waits for."""
        for line in text.splitlines():
            if self._bar:
                self._bar.update(self._task, note=line[:100])
            elif line.strip():
                self._line(line)

    def notebook_ends(self, outcome: str) -> None:
        """The notebook has ended, well or badly."""
        if self._bar:
            finished = self._cells if outcome == "ok" else None
            self._bar.update(self._task, completed=finished, note=outcome)
            self._bar.stop_task(self._task)
        else:
            self._line(outcome)

    def say(self, text: str) -> None:
        """A line of the runner's own."""
        if self._bar:
            self._bar.console.print(Text(text))
        else:
            print(text, file=self._stream, flush=True)

    def _line(self, text: str) -> None:
        print(f"[{clock(time.monotonic() - self._started)}] {self._notebook}: {text}", file=self._stream, flush=True)
