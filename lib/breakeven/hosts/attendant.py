"""This machine at the service of a suite that runs on another one: a daemon that lives on its owner's signs of life.

::

    owner ──SSH, docker exec, any pipe──> join ──socket──> serve ──supervise──> server

* ``serve`` starts and holds what the owner asks for. When it has not heard of the owner for the time of the lease, or
  the owner says goodbye, it ends all of it, removes its folder, and ends. So a connection may drop and be made again,
  and a laptop that never wakes leaves nothing behind.
* ``join`` relays between its own input and output and the daemon's socket. A connection that drops ends ``join``
  alone; the next one finds the daemon by its session folder.
* A frame is two lengths (4 bytes each, big-endian), a JSON object and raw bytes. Every request has a key: one that is
  sent again, because the connection dropped before its answer came, is not done again.

Runs in SGLang's own Python, 3.10 or newer: the standard library and psutil (which SGLang needs itself).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from breakeven import artifacts
from breakeven.hosts.desk import Desk

MOST_BYTES = 64 << 20
"""A longer frame is no frame of ours."""
HEADER = struct.Struct(">II")

_ANSWERS_KEPT = 256
_START_WITHIN_S = 20.0


def frame(content: dict[str, Any], payload: bytes = b"") -> bytes:
    """One message as it goes over the line."""
    head = json.dumps(content).encode()
    return HEADER.pack(len(head), len(payload)) + head + payload


class Daemon:
    """Answers on the session's socket until the owner says goodbye or is not heard of for ``lease_s`` seconds."""

    def __init__(self, session: Path, lease_s: float) -> None:
        self._desk = Desk(session)
        self._lease_s = lease_s
        self._heard = time.monotonic()
        self._over = threading.Event()
        self._answers: OrderedDict[str, Future[bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def serve(self, listener: socket.socket) -> None:
        """Return when it is over and all that was started has ended."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: self._over.set())
        while not self._over.is_set() and time.monotonic() - self._heard < self._lease_s:
            if select.select([listener], [], [], 0.2)[0]:
                connection, _ = listener.accept()
                threading.Thread(target=self._talk, args=(connection,), daemon=True).start()
        listener.close()
        self._desk.bye(b"")

    def _talk(self, connection: socket.socket) -> None:
        sending = threading.Lock()
        with connection, contextlib.suppress(OSError, EOFError, ValueError):
            while True:
                request, payload = _receive(connection)
                self._heard = time.monotonic()
                # Each in a thread of its own: a command that takes minutes must not keep a sign of life waiting.
                work = (connection, sending, request, payload)
                threading.Thread(target=self._answer, args=work, daemon=True).start()

    def _answer(
        self, connection: socket.socket, sending: threading.Lock, request: dict[str, Any], payload: bytes
    ) -> None:
        key = request["key"]
        with self._lock:
            first = key not in self._answers
            answer = self._answers.setdefault(key, Future())
            while len(self._answers) > _ANSWERS_KEPT:
                self._answers.popitem(last=False)
        if first:
            answer.set_result(self._do(key, request, payload))
        with sending, contextlib.suppress(OSError):  # the connection may be gone: it is asked again on the next
            connection.sendall(answer.result())
        if request["op"] == "bye":
            self._over.set()

    def _do(self, key: str, request: dict[str, Any], payload: bytes) -> bytes:
        try:
            value = getattr(self._desk, _checked(request["op"]))(payload, **request["args"])
        except OSError as error:
            told = {"errno": error.errno, "text": error.strerror or str(error), "path": _text(error.filename)}
            return frame({"key": key, "error": {"type": type(error).__name__, **told}})
        except Exception as error:
            return frame({"key": key, "error": {"type": type(error).__name__, "text": str(error)}})
        value, content = value if isinstance(value, tuple) else (value, b"")
        return frame({"key": key, "value": value}, content)


def _checked(op: str) -> str:
    if op.startswith("_") or op not in vars(Desk):
        raise ValueError(f"no request {op!r}")
    return op


def _receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    head_bytes, payload_bytes = HEADER.unpack(_exactly(connection, HEADER.size))
    if max(head_bytes, payload_bytes) > MOST_BYTES:
        raise ValueError("no frame of ours")
    return json.loads(_exactly(connection, head_bytes)), _exactly(connection, payload_bytes)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(min(count - len(data), 1 << 20))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _text(value: object) -> str | None:
    return None if value is None else os.fsdecode(value) if isinstance(value, bytes) else str(value)


# ---------------------------------------------------------------- sessions


def sessions_folder() -> Path:
    """Where each session has a folder, named after its id, with what belongs to it alone."""
    return artifacts.cache_root() / "sessions"


def serve(name: str, lease_s: float) -> None:
    """Be the daemon of a new session; its folder is removed at the end, and those of dead daemons are now."""
    remove_dead_sessions()
    session = sessions_folder() / name
    session.mkdir(parents=True, mode=0o700)
    with _locked(session):
        os.chdir(session)  # the path of a socket has 108 bytes at most: its name alone fits
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("socket.new")
            listener.listen()
            Path("socket.new").rename("socket")  # whoever sees it can connect
            Daemon(session, lease_s).serve(listener)
        os.chdir("/")
        shutil.rmtree(session, ignore_errors=True)


def remove_dead_sessions() -> None:
    """Remove the folders of daemons that were killed: a living one holds a lock in its own."""
    with contextlib.suppress(OSError):
        for session in list(sessions_folder().iterdir()):
            with contextlib.suppress(OSError), _locked(session):
                shutil.rmtree(session)


@contextlib.contextmanager
def _locked(session: Path) -> Iterator[None]:
    """Hold the session's lock. Raises BlockingIOError where another process does."""
    with (session / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def join(name: str, lease_s: float, start: bool, say: Callable[[str], None]) -> None:
    """Relay between this process's input and output and a session's daemon, started first if ``start`` says so.

    ``say`` is told ``joined`` once it is connected, or ``gone`` where there is no such daemon.
    """
    if start:
        _spawn(name, lease_s)
    link = _connect(sessions_folder() / name, time.monotonic() + (_START_WITHIN_S if start else 0))
    say("joined" if link else "gone")
    if link is None:
        return
    with link:
        while True:
            ready = select.select([0, link.fileno()], [], [])[0]
            if link.fileno() in ready:
                if not (data := link.recv(1 << 18)):
                    return
                while data:
                    data = data[os.write(1, data) :]
            if 0 in ready:
                if not (data := os.read(0, 1 << 18)):
                    return
                link.sendall(data)


def _spawn(name: str, lease_s: float) -> None:
    """Start the daemon: in a session of its own, so that the end of the connection is no end of it."""
    library = str(Path(__file__).parents[2])
    program = (
        f"import sys; sys.path[0] = {library!r}; "
        f"from breakeven.hosts import attendant; attendant.serve(*{(name, lease_s)})"
    )
    subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )


def _connect(session: Path, deadline: float) -> socket.socket | None:
    while True:
        link = socket.socket(socket.AF_UNIX)
        try:
            os.chdir(session)
            link.connect("socket")
            return link
        except OSError:
            link.close()
            if time.monotonic() >= deadline:
                return None
            time.sleep(0.05)
