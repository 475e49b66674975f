"""Processes that die with whatever started them, and the means to find what an earlier run left behind.

The work is done by ``supervise.py``, a program of its own between this process and the server.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import psutil

from breakeven.hosts import supervise

if TYPE_CHECKING:  # not in Python 3.10, in which this module runs on a server's side
    from typing import Self

LOG_LIMIT_BYTES = 64 << 20
"""A log is renamed to NAME.1 at this size, so that a server writes at most twice as much."""


@dataclass(frozen=True)
class Ending:
    """How a supervised process ended: by its own exit code, or by a signal; both None if nobody saw it."""

    exit_code: int | None
    signal: int | None
    why: str
    left: tuple[int, ...] = ()
    """Descendants that survived SIGKILL: stuck in a driver, as a rule."""

    def __str__(self) -> str:
        if self.signal is not None:
            how = f"ended by {signal.Signals(self.signal).name}"
        else:
            how = "ended unseen" if self.exit_code is None else f"exit code {self.exit_code}"
        return f"{how} ({self.why})"


class Supervised:
    """A running command under its supervisor. Leaving the ``with`` block ends it, and so does losing this object."""

    def __init__(
        self, supervisor: subprocess.Popen[str], lifeline: socket.socket, marker: str, grace_s: float, scratch: Path
    ) -> None:
        self.marker = marker
        self.pid = 0
        self._scratch = scratch
        self._supervisor = supervisor
        self._lifeline = lifeline
        self._grace_s = grace_s
        self._pending = b""
        self._closed = False
        self._events: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    @property
    def supervisor_pid(self) -> int:
        """Process id of the supervisor's outer half."""
        return self._supervisor.pid

    def alive(self) -> bool:
        """Whether the command's own process still runs."""
        self._listen(0)
        return "exited" not in self._events and self._supervisor.poll() is None

    def ending(self) -> Ending | None:
        """How it ended; None while the command, a descendant or the supervisor still runs."""
        self._listen(0)
        if not self._closed or self._supervisor.poll() is None:
            return None
        exited = self._events.get("exited", {"exit_code": None, "signal": None})
        ended = self._events.get("ended", {"why": "supervisor killed", "left": []})
        return Ending(exited["exit_code"], exited["signal"], ended["why"], tuple(ended["left"]))

    def wait(self, timeout_s: float = math.inf) -> Ending:
        """Wait until nothing of it runs. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while (ending := self.ending()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {self.pid} still runs after {timeout_s:g} s")
            self._listen(0.1)
            if self._closed:  # the supervisor's last act
                self._supervisor.wait()
        return ending

    def stop(self) -> Ending:
        """End it and all its descendants: SIGTERM, then SIGKILL after the grace period. Twice does no harm."""
        if self._supervisor.poll() is None:
            self._supervisor.terminate()
        ending = self.wait(self._grace_s + 2 * supervise.GIVE_UP_S)
        if "ended" not in self._events:  # nobody was left to end the rest
            _kill(marked(self.marker))
            shutil.rmtree(self._scratch, ignore_errors=True)
        return ending

    def members(self) -> list[psutil.Process]:
        """The command's process and its descendants: what is below the supervisor's inner half."""
        try:
            wardens = psutil.Process(self.supervisor_pid).children()
            return [process for warden in wardens for process in warden.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def activity(self) -> tuple[object, ...]:
        """Something that changes while the command reads, writes or starts processes. Time on a CPU is no evidence:
        a deadlocked rank spins."""
        members = self.members()
        moved_mib = 0
        for process in members:
            with contextlib.suppress(psutil.Error, AttributeError):
                counters = process.io_counters()
                moved_mib += (counters.read_chars + counters.write_chars + counters.read_bytes) >> 20
        return (tuple(sorted(process.pid for process in members)), moved_mib)

    def unhealthy(self) -> list[str]:
        """Its processes that are stopped, or dead and not collected by their parent, in words."""
        words = {psutil.STATUS_STOPPED: "is stopped", psutil.STATUS_ZOMBIE: "is dead"}
        found = []
        for process in self.members():
            with contextlib.suppress(psutil.Error):
                if word := words.get(process.status()):
                    found.append(f"process {process.pid} ({process.name()}) {word}")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _started(self) -> None:
        """Wait until the command runs. Raises OSError if it can't be started."""
        while not self._closed and not self._events.keys() & {"started", "failed"}:
            self._listen(None)
        if "started" in self._events:
            self.pid = self._events["started"]["pid"]
            return
        _, errors = self._supervisor.communicate()
        raise OSError(self._events.get("failed", {}).get("text") or f"the supervisor did not start: {errors.strip()}")

    def _listen(self, timeout_s: float | None) -> None:
        """Take in what the supervisor has told, waiting for the first word only."""
        with self._lock, contextlib.suppress(TimeoutError, BlockingIOError):
            while not self._closed:
                self._lifeline.settimeout(timeout_s)
                data = self._lifeline.recv(4096)
                *lines, self._pending = (self._pending + data).split(b"\n")
                for event in map(json.loads, lines):
                    self._events[event["event"]] = event
                if not data:
                    self._closed = True
                    self._lifeline.close()
                timeout_s = 0


def start(
    command: Sequence[str],
    *,
    log_path: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    record_path: Path | None = None,
    grace_s: float = 10.0,
    log_limit_bytes: int = LOG_LIMIT_BYTES,
) -> Supervised:
    """Start a command that outlives neither this process nor the object returned.

    ``env`` is its whole environment (this process's if None), but for TMPDIR: a folder of its own, removed when it
    ends, because SGLang leaves its sockets behind. ``record_path`` is a file that says what runs, for
    ``end_leftover``. ``grace_s`` lies between SIGTERM and SIGKILL. Raises OSError if it can't be started.
    """
    log_path.parent.mkdir(parents=True, exist_ok=True)
    marker = secrets.token_hex(8)
    scratch = Path(tempfile.mkdtemp(prefix="breakeven-"))  # short: SGLang puts sockets in it
    mine, theirs = socket.socketpair()
    # -I: the server's PYTHONPATH is not the supervisor's, and modules beside it must not hide the standard ones.
    program = [sys.executable, "-I", supervise.__file__, "--parent", str(os.getpid())]
    program += ["--lifeline", str(theirs.fileno()), "--grace", str(grace_s)]
    program += ["--log", str(log_path.absolute()), "--log-limit", str(log_limit_bytes)]
    program += ["--scratch", str(scratch)]
    program += ["--record", str(record_path.absolute())] if record_path else []
    with theirs:
        supervisor = subprocess.Popen(
            [*program, "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**(os.environ if env is None else env), "TMPDIR": str(scratch), **_marks(marker)},
            cwd=cwd,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    supervised = Supervised(supervisor, mine, marker, grace_s, scratch)
    supervised._started()
    return supervised


def _marks(marker: str) -> dict[str, str]:
    """The marker, and what keeps setproctitle (SGLang's processes name themselves) from writing over it in /proc."""
    return {supervise.MARKER: marker, "SPT_NOENV": "1"}


def marked(marker: str) -> list[psutil.Process]:
    """Every process of this machine that was started under the marker, supervisors included."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if _runs(process) and process.environ().get(supervise.MARKER) == marker:
                found.append(process)
    return found


def end_leftover(record_path: Path) -> list[int]:
    """End what an earlier run started under this record and left; returns the process ids that were ended.

    Processes are known by start time and marker, never by number alone. A record whose starter still runs, and is not
    this process, belongs to a run in progress: it is left alone.
    """
    try:
        record = json.loads(record_path.read_text())
    except (OSError, ValueError):
        return []
    if of_a_run_in_progress(record) or "marker" not in record:  # without one it tells of another machine
        return []
    leftover = {process.pid: process for process in marked(record["marker"])}
    for role in ("keeper", "warden", "server"):
        if process := _living(record.get(role)):
            leftover[process.pid] = process
    for process in list(leftover.values()):  # a process that sets its title may have overwritten its environment
        with contextlib.suppress(psutil.Error):
            leftover |= {child.pid: child for child in process.children(recursive=True)}
    _kill(leftover.values())
    shutil.rmtree(record["scratch"], ignore_errors=True)
    record_path.unlink(missing_ok=True)
    return sorted(leftover)


def of_a_run_in_progress(record: dict[str, Any]) -> bool:
    """Whether the process that wrote a record as its ``starter`` still runs, and is not this one."""
    starter = _living(record.get("starter"))
    return starter is not None and starter.pid != os.getpid()


def _living(recorded: dict[str, Any] | None) -> psutil.Process | None:
    """The process of a record, unless it is gone or another one has its number now."""
    if not recorded or supervise.identity(recorded["pid"]) != recorded:
        return None
    try:
        return psutil.Process(recorded["pid"])
    except psutil.NoSuchProcess:
        return None


def _kill(processes: Iterable[psutil.Process]) -> None:
    waiting = list(processes)
    for process in waiting:
        with contextlib.suppress(psutil.Error):
            process.kill()
    deadline = time.monotonic() + supervise.GIVE_UP_S
    while waiting := [process for process in waiting if _runs(process)]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {[process.pid for process in waiting]} survive SIGKILL")
        time.sleep(0.02)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
