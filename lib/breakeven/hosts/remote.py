"""Another machine as a ``Host``: every request goes to an ``attendant`` there, over whatever transport reaches it.

The connection is made at the first request, kept alive, and made again when it drops: requests that were under way are
sent again, and the attendant does none of them twice. Beyond the lease it has ended everything; then ``HostLost``
says so, and the next request begins a new session.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from breakeven import artifacts
from breakeven.errors import UserError, one_line
from breakeven.hosts import desk, processes, supervise
from breakeven.hosts.interface import Completed
from breakeven.hosts.links import Link, LinkLost, Pipe, open_link

T = TypeVar("T")

LEASE_S = 120.0
"""Seconds without a sign of life after which everything that was started on the other machine is ended there."""
_ANSWER_WITHIN_S = 60.0
_PING_ANSWER_WITHIN_S = 15.0


class HostLost(ConnectionError):  # noqa: N818 - what happened, and not by our fault
    """The machine is out of reach, or what was started on it is gone."""


class Transport(Protocol):
    """A way to a machine. ``start`` and ``connect`` raise OSError, and UserError where only a person can help."""

    name: str

    async def start(self, command: Sequence[str]) -> Pipe: ...

    async def connect(self, port: int) -> tuple[Any, Any]:
        """A stream reader and writer to a loopback port of the machine."""

    async def close(self) -> None: ...


class Remote:
    """A machine behind a transport; ``prefix`` and ``python`` start SGLang's Python there, in its container if any.

    They start the attendant, within which all other commands run: as a ``Host`` it has no prefix.
    """

    prefix: tuple[str, ...] = ()

    def __init__(
        self, transport: Transport, *, python: str = "python3", prefix: Sequence[str] = (), lease_s: float = LEASE_S
    ) -> None:
        self.name = transport.name
        self.reconnects = 0
        self._transport = transport
        self._command = [*prefix, python]
        self._lease_s = lease_s
        self._session = _new_session()
        self._about: dict[str, Any] = {}
        self._link: Link | None = None
        self._given_up = False
        self._connecting = asyncio.Lock()
        self._heart: asyncio.Task[None] | None = None
        atexit.register(self.close)

    # ---------------------------------------------------------------- the interface of a host

    @property
    def library(self) -> Path:
        return Path(self._hello()["library"])

    @property
    def cache(self) -> Path:
        return Path(self._hello()["cache"])

    @property
    def python(self) -> str:
        return str(self._hello()["python"])

    @property
    def session(self) -> str:
        """The id by which the attendant is found again."""
        return self._session

    def package(self, name: str, folder: str | None) -> bytes:
        """The Python files and metadata of a package there, as a ZIP file; empty if there is none.

        Without a folder it is the one that SGLang's Python would import.
        """
        return self._call("package", name=name, folder=folder, answer_within_s=300)[1]

    def environ(self) -> dict[str, str]:
        return dict(self._hello()["environ"])

    def cores(self) -> int:
        return int(self._hello()["cores"])

    def place(self, path: Path) -> Path:
        return Path(self._hello()["session"], "files", *path.absolute().parts[1:])

    def bring(self, path: Path) -> None:
        there = self.place(path)
        names = self.names(there)
        if not names and self.size(there):
            artifacts.write_bytes(path, self.read(there))
        for name in names:
            artifacts.write_bytes(path / name, self.read(there / name))

    def ship(self, folder: Path) -> Path:
        wanted = desk.Desk(folder).digests(b"", str(folder))
        digest = hashlib.sha256(json.dumps(wanted).encode()).hexdigest()[:16]
        there = self.cache / "shipped" / f"{folder.name}-{digest}"
        found = self._value("digests", folder=str(there))
        for name, sha256 in wanted.items():
            if found.get(name) != sha256:
                self._send(folder / name, there / name, sha256)
        return there

    def names(self, folder: Path) -> list[str]:
        return list(self._value("names", folder=str(folder)))

    def read(self, path: Path, start: int = 0) -> bytes:
        return b"".join(self._pieces(path, start))

    def size(self, path: Path) -> int:
        return int(self._value("size", path=str(path)))

    def lines(self, path: Path) -> Iterator[str]:
        cut = b""
        for piece in self._pieces(path, 0):
            *whole, cut = (cut + piece).split(b"\n")
            yield from (line.decode(errors="replace") for line in whole)
        if cut:
            yield cut.decode(errors="replace")

    def write(self, path: Path, content: bytes) -> None:
        self._call("write", content, path=str(path))

    def remove(self, path: Path) -> None:
        self._value("remove", path=str(path))

    def run(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float) -> Completed:
        environment = None if env is None else dict(env)
        within_s = timeout_s + _ANSWER_WITHIN_S
        done, _ = self._call("run", answer_within_s=within_s, command=[*command], env=environment, timeout_s=timeout_s)
        return Completed(**done)

    def start(
        self, command: Sequence[str], *, env: Mapping[str, str], log_path: Path, record_path: Path | None = None
    ) -> Far:
        """``record_path`` is a file of this machine, by which ``end_leftover`` finds the session."""
        told = self._value("start", command=[*command], env=dict(env), log_path=str(log_path))
        far = Far(self, self._session, told["id"], told["pid"], record_path)
        if record_path:
            starter = supervise.identity(os.getpid())
            artifacts.write_json(record_path, {"host": self.name, "session": self._session, "starter": starter})
        return far

    def free_ports(self, count: int) -> list[int]:
        return list(self._value("free_ports", count=count))

    def port_is_free(self, port: int) -> bool:
        return bool(self._value("port_is_free", port=port))

    @contextlib.contextmanager
    def forward(self, port: int) -> Iterator[int]:
        server = _run(self._listen(port))
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            _loop().call_soon_threadsafe(server.close)

    def end_leftover(self, record_path: Path) -> str | None:
        with contextlib.suppress(UserError):
            record = artifacts.read_json(record_path)
            ours = record.get("host") == self.name and record.get("session") != self._session
            if ours and not processes.of_a_run_in_progress(record):
                record_path.unlink()
                if _run(self._end_session(str(record["session"]))):
                    return f"the session on {self.name}"
        return None

    def close(self) -> None:
        """End everything that was started there, and the connection. Out of reach, the lease does it."""
        atexit.unregister(self.close)
        with contextlib.suppress(OSError, UserError, RuntimeError):
            _run(self._close())

    # ---------------------------------------------------------------- requests

    def _hello(self) -> dict[str, Any]:
        if not self._about:
            self._about = self._value("hello")
        return self._about

    def _value(self, op: str, **arguments: Any) -> Any:
        return self._call(op, **arguments)[0]

    def _call(
        self, op: str, payload: bytes = b"", *, answer_within_s: float = _ANSWER_WITHIN_S, **arguments: Any
    ) -> tuple[Any, bytes]:
        return _run(self._ask(op, arguments, payload, answer_within_s))

    def _pieces(self, path: Path, start: int) -> Iterator[bytes]:
        while True:
            _, piece = self._call("read", path=str(path), start=start, limit=desk.CHUNK_BYTES)
            if not piece:
                return
            yield piece
            start += len(piece)

    def _send(self, here: Path, there: Path, sha256: str) -> None:
        with here.open("rb") as file:
            start = 0
            while piece := file.read(desk.CHUNK_BYTES):
                self._call("write_part", piece, path=str(there), start=start)
                start += len(piece)
            if not start:
                self._call("write_part", path=str(there), start=0)
        self._value("write_end", path=str(there), sha256=sha256)

    async def _ask(
        self, op: str, arguments: dict[str, Any], payload: bytes, answer_within_s: float
    ) -> tuple[Any, bytes]:
        """Ask until there is an answer, over as many connections as it takes while the lease runs."""
        key, session = secrets.token_hex(8), self._session
        give_up = time.monotonic() + (0 if self._given_up else self._lease_s)
        pause_s = 0.1
        while True:
            link = None
            try:
                link = await self._connected()
                if self._session != session:  # another request found it gone, and began anew
                    raise HostLost(self._gone())
                return await link.ask(key, op, arguments, payload, answer_within_s)
            except LinkLost as lost:
                if self._link is link:
                    self._link = None
                if time.monotonic() >= give_up:
                    self._given_up = True  # the next requests need not wait as long again
                    raise HostLost(f"{self.name} is out of reach since {self._lease_s:g} s: {lost}") from None
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, 5.0)

    async def _connected(self) -> Link:
        """The connection, made (again) where there is none. Raises UserError the first time, LinkLost later."""
        async with self._connecting:
            if self._link and self._link.open:
                return self._link
            again = self._heart is not None
            try:
                self._link = await self._open(self._session, start=not again)
            except (OSError, UserError) as error:
                if not again or isinstance(error, HostLost):
                    raise
                raise LinkLost(one_line(error)) from None
            if self._link is None:
                self._heart.cancel() if self._heart else None
                self._heart, self._session, self._about = None, _new_session(), {}
                raise HostLost(self._gone())
            self.reconnects += again
            self._given_up = False
            if not again:
                self._heart = asyncio.create_task(self._beat())
            return self._link

    def _gone(self) -> str:
        return (
            f"what was started on {self.name} is gone: it had no sign of life from here for {self._lease_s:g} s and "
            "ended it, or was started anew"
        )

    async def _open(self, session: str, *, start: bool) -> Link | None:
        return await open_link(self._transport.start, self._command, self.name, session, self._lease_s, start=start)

    async def _beat(self) -> None:
        """Signs of life; they also notice a dead connection, and make it again."""
        while True:
            await asyncio.sleep(self._lease_s / 6)
            with contextlib.suppress(HostLost, OSError, UserError):
                await self._ask("ping", {}, b"", min(_PING_ANSWER_WITHIN_S, self._lease_s / 4))

    async def _listen(self, port: int) -> asyncio.Server:
        async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                far_reader, far_writer = await self._transport.connect(port)
            except (OSError, UserError):
                writer.close()
                return
            try:
                await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
            finally:
                for each in (writer, far_writer):
                    each.close()

        return await asyncio.start_server(pass_on, "127.0.0.1", 0)

    async def _end_session(self, session: str) -> bool:
        link = await self._open(session, start=False)
        if link is None:
            return False
        try:
            await link.ask(secrets.token_hex(8), "bye", {}, b"", _ANSWER_WITHIN_S)
        finally:
            link.close()
        return True

    async def _close(self) -> None:
        if self._heart:
            self._heart.cancel()
            try:
                async with asyncio.timeout(_ANSWER_WITHIN_S):
                    link = (
                        self._link if self._link and self._link.open else await self._open(self._session, start=False)
                    )
                    if link:
                        await link.ask(secrets.token_hex(8), "bye", {}, b"", _ANSWER_WITHIN_S)
                        link.close()
            except (LinkLost, TimeoutError):
                pass  # the lease ends it
            self._heart, self._link, self._session, self._about = None, None, _new_session(), {}
        await self._transport.close()


class Far:
    """A command that was started on another machine."""

    def __init__(self, host: Remote, session: str, id: str, pid: int, record_path: Path | None) -> None:
        self.pid = pid
        self._host = host
        self._session = session
        self._id = id
        self._record_path = record_path
        self._ended: processes.Ending | None = None

    def alive(self) -> bool:
        return self._ended is None and bool(self._ask("alive"))

    def ending(self) -> processes.Ending | None:
        if self._ended is None:
            self._ended = _ending(self._ask("ending"))
        return self._ended

    def wait(self, timeout_s: float) -> processes.Ending:
        deadline = time.monotonic() + timeout_s
        while (ending := self.ending()) is None:
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {self.pid} of {self._host.name} still runs after {timeout_s:g} s")
            time.sleep(0.2)
        return ending

    def stop(self) -> processes.Ending:
        """End it. Where the machine is out of reach, or has ended it of itself, that is the ending's ``why``."""
        try:
            self._ended = self._ended or _ending(self._ask("stop"))
        except HostLost as lost:
            self._ended = processes.Ending(None, None, one_line(lost))
        if self._record_path:
            self._record_path.unlink(missing_ok=True)
        assert self._ended is not None
        return self._ended

    def activity(self) -> tuple[object, ...]:
        return tuple(self._ask("activity"))

    def unhealthy(self) -> list[str]:
        return list(self._ask("unhealthy"))

    def _ask(self, op: str) -> Any:
        if self._host.session != self._session:
            raise HostLost(self._host._gone())
        return self._host._value(op, id=self._id)


def _ending(told: dict[str, Any] | None) -> processes.Ending | None:
    return processes.Ending(**{**told, "left": tuple(told["left"])}) if told else None


async def _pump(reader: Any, writer: Any) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


# ---------------------------------------------------------------- the loop that all connections share


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="breakeven-remote", daemon=True).start()
    return loop


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result, from any thread; an interrupt while waiting cancels it."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _new_session() -> str:
    return secrets.token_hex(6)
