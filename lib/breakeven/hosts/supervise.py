"""Hold a server so that it dies with whatever started it. Linux; standard library alone (Python 3.10
and newer), one file, run as a program.

::

    starter ──lifeline──> keeper ──fork──> warden ──exec──> server ──> its children and theirs

* Keeper and warden are subreapers: a descendant that loses its parent becomes theirs, so none slips away.
* Both watch the lifeline, a socket whose other end the starter holds: its end of file means that the starter is gone,
  however it ended. A fork of the starter may hold that end as well, so each also watches its parent's process id.
* Neither dies alone. A killed warden takes the server with it (parent-death signal) and the keeper ends what is left;
  a killed keeper makes the warden end everything. They share no process group and no session.
* The warden copies the server's output to a log of bounded size, and tells the starter over the lifeline, in JSON
  lines (``started`` or ``failed``, ``exited``, ``ended``), what becomes of the server.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

MARKER = "BREAKEVEN_SERVER_ID"
"""Environment variable that marks every process of one server, so that a later run can find what was left."""
ORPHANS_S = 2.0
"""Seconds between SIGTERM and SIGKILL for descendants whose leader, the server's first process, is gone."""
GIVE_UP_S = 30.0
"""Seconds after which a process that survives SIGKILL (stuck in a driver) is reported and no longer waited for."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_IN_CREATE = 0x100
_PARENT_CHECK_MS = 500
_SHARED_MEMORY = Path("/dev/shm")
_MAPPED_WITHIN_S = 1.0
"""Seconds from the making of a shared file to its mapping, at most."""
_UNTOLD_S = 10.0
_LONGEST_LINE = 65536


def stat_fields(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on (0 state, 1 parent, 19 start in clock ticks); empty if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name before it may hold spaces and parentheses


def descendants(root: int) -> list[int]:
    """Process ids of everything below ``root``, zombies included, nearest first."""
    children: dict[int, list[int]] = {}
    for pid in (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()):
        if fields := stat_fields(pid):
            children.setdefault(int(fields[1]), []).append(pid)
    found: list[int] = []
    frontier = [root]
    while frontier:
        frontier = [child for parent in frontier for child in children.get(parent, [])]
        found += frontier
    return found


def identity(pid: int) -> dict[str, Any] | None:
    """What tells this process from a later one with the same number: start time and boot. None if it is gone."""
    fields = stat_fields(pid)
    if not fields or fields[0] in "ZX":
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {"pid": pid, "start_ticks": int(fields[19]), "boot_id": boot}


def shared_memory(pids: Iterable[int]) -> set[int]:
    """Inodes of the files of /dev/shm that these processes have mapped (a semaphore is mapped under another name)."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError), Path(f"/proc/{pid}/maps").open(errors="replace") as maps:
            found |= {int(line.split(maxsplit=5)[4]) for line in maps if "/dev/shm/" in line}
    return found


class BoundedLog:
    """An append-only file that is renamed to ``NAME.1`` when it is full: the two together stay under twice the limit.

    What the disk does not take is dropped and counted, because a server must not be blocked by its log.
    """

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path = path
        self.limit_bytes = limit_bytes
        self.dropped_bytes = 0
        self._open()

    def write(self, data: bytes) -> None:
        """Append. Files change between two lines, or within one that is longer than 64 KiB."""
        while data:
            room = max(self.limit_bytes - self._size, 0)
            cut = len(data) if len(data) <= room else data.find(b"\n", room) + 1 or len(data)
            self._append(data[:cut])
            if self._size >= self.limit_bytes + (0 if data[:cut].endswith(b"\n") else _LONGEST_LINE):
                self._rotate()
            data = data[cut:]

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._size = os.fstat(self._fd).st_size

    def _append(self, data: bytes) -> None:
        written = 0
        with contextlib.suppress(OSError):
            if self.dropped_bytes:
                note = f"\n[{self.dropped_bytes} bytes are missing here: the disk did not take them]\n"
                self._size += os.write(self._fd, note.encode())
                self.dropped_bytes = 0
            written = os.write(self._fd, data)
        self._size += written
        self.dropped_bytes += len(data) - written

    def _rotate(self) -> None:
        try:
            os.replace(self.path, self.path.with_name(self.path.name + ".1"))
        except OSError:  # a folder that lets nothing be renamed: the bound matters more than the lines
            os.ftruncate(self._fd, 0)
            self._size = 0
        else:
            os.close(self._fd)
            self._open()


class Holder:
    """Waits for one child. When the child ends, the starter goes or a signal asks, ends all below this process."""

    def __init__(self, parent: int, lifeline: socket.socket, grace_s: float) -> None:
        self.grace_s = grace_s
        self.status: int | None = None
        self.why = "exited"
        self.left: list[int] = []
        self.on_exit: Callable[[int], None] = lambda status: None
        self._parent = parent
        self._lifeline = lifeline
        self._child = 0
        self._shared: set[int] = set()
        self._began = time.time()
        self._made = self._looked = self._next_look = -math.inf
        self._asked = self._cut = False
        self._outputs: dict[int, Callable[[bytes], None]] = {}
        self._wake, wake_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ask)
        self._poll = select.poll()
        self._poll.register(self._wake, select.POLLIN)
        self._poll.register(lifeline.fileno(), select.POLLIN | select.POLLRDHUP)
        self._news = _news_of(_SHARED_MEMORY)
        if self._news is not None:
            self._poll.register(self._news, select.POLLIN)

    def copy(self, fd: int, sink: Callable[[bytes], None]) -> None:
        """Hand what can be read from ``fd`` to ``sink``, until its end."""
        os.set_blocking(fd, False)
        self._outputs[fd] = sink
        self._poll.register(fd, select.POLLIN)

    def hold(self, child: int) -> None:
        """Return when every descendant is gone; ``status`` (of the child), ``why`` and ``left`` then say how."""
        self._child = child
        while self.status is None and self.why == "exited":
            self._step(self._look_within_ms())
            self._look_for_shared_memory()
            if self._cut:
                self.why = "starter gone"
            elif os.getppid() != self._parent:
                self.why = "parent gone"
            elif self._asked:
                self.why = "asked"
        self._end_all()
        for fd in list(self._outputs):
            self._drain(fd)

    def remove_shared_memory(self) -> None:
        """Unlink what descendants shared and left (SGLang does at every end), unless anyone else has it mapped."""
        if not self._shared:
            return
        everyone = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        orphaned = self._shared - shared_memory(everyone)
        for path in _SHARED_MEMORY.iterdir():
            with contextlib.suppress(OSError):
                status = path.lstat()
                if status.st_ino in orphaned and status.st_ctime >= self._began:
                    path.unlink()

    def _look_for_shared_memory(self, now: bool = False) -> None:
        """Once something was made in /dev/shm until it must be mapped, and at the end: whoever dies at once is not seen
        there. Reading the maps of large processes takes a while: it gets a fiftieth of a core, and where nothing tells
        of what is made, one look every ten seconds."""
        at = time.monotonic()
        if self._news is None:
            self._made = at
        if now or (at >= self._next_look and self._is_to_look()):
            self._shared |= shared_memory(descendants(os.getpid()))
            self._looked = at
            self._next_look = at + max(50 * (time.monotonic() - at), 0.0 if self._news is not None else _UNTOLD_S)

    def _is_to_look(self) -> bool:
        return self._looked < self._made + _MAPPED_WITHIN_S

    def _look_within_ms(self) -> int:
        if not self._is_to_look():
            return _PARENT_CHECK_MS
        return int(min(max(1000 * (self._next_look - time.monotonic()) + 1, 0), _PARENT_CHECK_MS))

    def _end_all(self) -> None:
        self._look_for_shared_memory(now=True)
        kill_at = time.monotonic() + self.grace_s
        if self.status is None:
            _send([self._child], signal.SIGTERM)
            _send(descendants(os.getpid()), signal.SIGCONT)  # a stopped process could not act on it
        orphans_told = False
        while rest := descendants(os.getpid()):
            now = time.monotonic()
            if self.status is not None and not orphans_told:
                orphans_told = True
                _send(rest, signal.SIGTERM)
                kill_at = min(kill_at, now + ORPHANS_S)
            if now >= kill_at:
                _send(rest, signal.SIGKILL)
            if now >= kill_at + GIVE_UP_S:
                self.left = rest
                return
            self._step(20)

    def _step(self, timeout_ms: int) -> None:
        for fd, _ in self._poll.poll(timeout_ms):
            if fd == self._wake:
                os.read(fd, 4096)
            elif fd == self._news:
                os.read(fd, 4096)
                self._made = time.monotonic()
            elif fd in self._outputs:
                self._drain(fd)
            else:
                self._cut = True  # the starter never writes: anything here is its end
                self._poll.unregister(fd)
        self._reap()

    def _drain(self, fd: int) -> None:
        """Copy what is there now; forget the descriptor at its end."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(fd, 1 << 16):
                self._outputs[fd](data)
            self._poll.unregister(fd)
            del self._outputs[fd]

    def _reap(self) -> None:
        """Collect every child that has ended, adopted ones too."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == self._child:
                    self.status = ended[1]
                    self.on_exit(ended[1])

    def _ask(self, number: int, frame: object) -> None:
        self._asked = True


def main(arguments: list[str] | None = None) -> int:
    """Keep one server; exit with its status (128 + N for signal N), or 127 if it could not be started."""
    parser = argparse.ArgumentParser(description="Hold a server so that it dies with the process that started it.")
    parser.add_argument("--parent", type=int, required=True, help="process id of the starter")
    parser.add_argument("--lifeline", type=int, required=True, help="descriptor of the socket to the starter")
    parser.add_argument("--grace", type=float, default=10.0, help="seconds between SIGTERM and SIGKILL")
    parser.add_argument("--log", type=Path, required=True, help="file for the server's output")
    parser.add_argument("--log-limit", type=int, default=64 << 20, help="bytes after which the log starts anew")
    parser.add_argument("--record", type=Path, help="file that says what runs, removed at the end")
    parser.add_argument("--scratch", type=Path, required=True, help="folder that is removed at the end")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args(arguments)
    lifeline = socket.socket(fileno=options.lifeline)
    lifeline.set_inheritable(False)
    keeper = os.getpid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    warden = os.fork()
    if warden == 0:
        os._exit(_guarded(lambda: _warden(options, lifeline, keeper)))
    # The warden needs the grace and perhaps the time to give up before it can end of itself.
    holder = Holder(options.parent, lifeline, options.grace + GIVE_UP_S + 5)
    holder.hold(warden)
    code = os.waitstatus_to_exitcode(holder.status or 0)
    if code < 0:
        holder.remove_shared_memory()
        _tell(lifeline, event="ended", why=f"warden killed by signal {-code}", left=holder.left)
    _clean(options)
    return code if code >= 0 else 128 - code


def _warden(options: argparse.Namespace, lifeline: socket.socket, keeper: int) -> int:
    os.setsid()
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _die_with(keeper, signal.SIGTERM)
    holder = Holder(keeper, lifeline, options.grace)
    try:
        log = BoundedLog(options.log, options.log_limit)
        server = _start(options.command)
    except OSError as error:
        _tell(lifeline, event="failed", text=f"{error.strerror or error}: {error.filename or options.command[0]}")
        return 127
    assert server.stdout is not None
    holder.copy(server.stdout.fileno(), log.write)
    holder.on_exit = lambda status: _tell(lifeline, event="exited", **_how(status))
    if options.record:
        _write_record(options, keeper, server.pid)
    _tell(lifeline, event="started", pid=server.pid)
    holder.hold(server.pid)
    holder.remove_shared_memory()
    if holder.why in ("starter gone", "parent gone"):
        log.write(b"\n[breakeven] the process that started this server is gone: the server was ended\n")
    if os.getppid() != keeper:  # it would have cleaned up
        _clean(options)
    _tell(lifeline, event="ended", why=holder.why, left=holder.left)
    code = os.waitstatus_to_exitcode(holder.status or 0)
    return code if code >= 0 else 128 - code


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    """The server in a process group of its own; it is killed if this process is."""
    warden = os.getpid()

    def prepare() -> None:
        os.setpgid(0, 0)
        _die_with(warden, signal.SIGKILL)

    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=prepare
    )


def _write_record(options: argparse.Namespace, keeper: int, server: int) -> None:
    roles = {"starter": options.parent, "keeper": keeper, "warden": os.getpid(), "server": server}
    record = {role: identity(pid) for role, pid in roles.items()}
    content = {"marker": os.environ.get(MARKER), **record, "command": options.command, "scratch": str(options.scratch)}
    half = options.record.with_name(f".{options.record.name}.{os.getpid()}")
    with contextlib.suppress(OSError):  # a full disk must not keep a server from running: the keeper still holds it
        half.write_text(json.dumps(content, indent=1))
        half.replace(options.record)


def _clean(options: argparse.Namespace) -> None:
    if options.record:
        options.record.unlink(missing_ok=True)
    shutil.rmtree(options.scratch, ignore_errors=True)


def _how(status: int) -> dict[str, int | None]:
    code = os.waitstatus_to_exitcode(status)
    return {"exit_code": code if code >= 0 else None, "signal": -code if code < 0 else None}


def _tell(lifeline: socket.socket, **event: Any) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        lifeline.sendall(json.dumps(event).encode() + b"\n")


def _send(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _die_with(parent: int, number: int) -> None:
    """Be sent ``number`` when the parent dies; end at once if that has happened already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def _news_of(folder: Path) -> int | None:
    """A descriptor that can be read whenever a file is made in the folder; None where the kernel does not tell."""
    libc = ctypes.CDLL(None)
    fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:
        return None
    if libc.inotify_add_watch(fd, os.fsencode(folder), _IN_CREATE) < 0:
        os.close(fd)
        return None
    return fd


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed; this needs Linux")


def _guarded(run: Callable[[], int]) -> int:
    """The forked half must never return into the code of the other."""
    try:
        return run()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1


if __name__ == "__main__":
    sys.exit(main())
