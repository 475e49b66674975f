"""One connection to an ``attendant``: how it is opened, and the requests and answers that go over it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import shlex
import zipfile
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from breakeven import __version__
from breakeven.embedded import plugin
from breakeven.errors import UserError, one_line
from breakeven.hosts import attendant, doorway

_GREETING_WITHIN_S = 60.0
_GREETING_BYTES = 1 << 20
_LEFT_OUT = (
    "embedded/eagle3",
    "embedded/eagle3_recipe",
    "embedded/example",
    "embedded/prompts.jsonl",
    "report/templates",
)


class LinkLost(ConnectionError):  # noqa: N818 - what happened, and not by our fault
    """This connection is dead; another one may do."""


class Pipe(Protocol):
    """A program on the other machine, by its input and output."""

    async def read(self, most: int) -> bytes:
        """What it has written, empty at the end."""

    async def write(self, data: bytes) -> None: ...

    async def last_words(self) -> str:
        """The end of what it wrote on standard error, once it has ended."""

    def close(self) -> None: ...


async def open_link(
    begin: Callable[[Sequence[str]], Awaitable[Pipe]],
    python: Sequence[str],
    name: str,
    session: str,
    lease_s: float,
    *,
    start: bool,
) -> Link | None:
    """A link to a session's attendant, begun if ``start`` says so, else None where there is none.

    ``begin`` starts a program on the machine called ``name``, ``python`` is the interpreter's command there. Raises
    OSError, and UserError where only a person can help.
    """
    content = _library()
    arguments = [hashlib.sha256(content).hexdigest(), str(len(content)), session, str(lease_s)]
    program = Path(doorway.__file__).read_text(encoding="utf-8")
    pipe = await begin([*python, "-c", program, *arguments, "start" if start else "join"])
    try:
        async with asyncio.timeout(_GREETING_WITHIN_S):
            return await _greeted(pipe, content, name, shlex.join(python))
    except TimeoutError:
        pipe.close()
        raise LinkLost(f"{name}: {shlex.join(python)} did not answer within {_GREETING_WITHIN_S:g} s") from None
    except BaseException:
        pipe.close()
        raise


async def _greeted(pipe: Pipe, content: bytes, name: str, python: str) -> Link | None:
    who = f"{name}: {python}"
    greeting = _Greeting(pipe)
    while told := await greeting.next():
        match told["word"]:
            case "send":
                await pipe.write(content)
            case "joined":
                return Link(pipe, greeting.rest, name)
            case "gone":
                pipe.close()
                return None
            case "failed" if told.get("errno"):
                raise OSError(told["errno"], f"{who}: {told['text']}")
            case "failed":
                raise UserError(f"{who}: {told['text']}; give the interpreter of SGLang as python")
    said = await pipe.last_words()
    raise UserError(
        f"{who} does not run there ({said or 'it said nothing'}); give the interpreter of SGLang as python, and "
        "command_prefix if it is in a container"
    )


class _Greeting:
    """The lines with which a doorway answers, past whatever login scripts print before."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.rest = b""
        self._seen = 0

    async def next(self) -> dict[str, Any] | None:
        while self._seen < _GREETING_BYTES:
            line, newline, rest = self.rest.partition(b"\n")
            if newline:
                self.rest = rest
                with contextlib.suppress(ValueError):  # whoever else writes the mark does not write JSON behind it
                    if b"breakeven:" in line:
                        return dict(json.loads(line.partition(b"breakeven:")[2]))
                continue
            data = await self._pipe.read(1 << 16)
            if not data:
                return None
            self._seen += len(data)
            self.rest += data
        return None


class Link:
    """A connection to the attendant: sends requests, hands each answer to whoever waits for it."""

    def __init__(self, pipe: Pipe, received: bytes, name: str) -> None:
        self.open = True
        self._name = name
        self._pipe = pipe
        self._data = bytearray(received)
        self._waiting: dict[str, asyncio.Future[tuple[dict[str, Any], bytes]]] = {}
        self._sending = asyncio.Lock()
        self._reader = asyncio.create_task(self._receive())

    async def ask(
        self, key: str, op: str, arguments: dict[str, Any], payload: bytes, within_s: float
    ) -> tuple[Any, bytes]:
        """Value and bytes of the answer. Raises LinkLost, and what the attendant raised where that is an OSError."""
        future = self._waiting.setdefault(key, asyncio.get_running_loop().create_future())
        try:
            async with asyncio.timeout(within_s):
                if not self.open:
                    raise LinkLost("the connection dropped")
                async with self._sending:
                    await self._pipe.write(attendant.frame({"key": key, "op": op, "args": arguments}, payload))
                answer, content = await future
        except TimeoutError:
            self.close()
            raise LinkLost(f"no answer within {within_s:g} s") from None
        except LinkLost:
            raise
        except OSError as error:
            self.close()
            raise LinkLost(one_line(error)) from None
        finally:
            self._waiting.pop(key, None)
        if told := answer.get("error"):
            raise _raised(told, self._name)
        return answer["value"], content

    def close(self) -> None:
        self.open = False
        self._reader.cancel()
        self._pipe.close()
        self._fail("the connection was closed")

    async def _receive(self) -> None:
        try:
            while True:
                head_bytes, payload_bytes = attendant.HEADER.unpack(await self._take(attendant.HEADER.size))
                answer = json.loads(await self._take(head_bytes))
                content = await self._take(payload_bytes)
                future = self._waiting.get(answer["key"])
                if future and not future.done():
                    future.set_result((answer, content))
        except (OSError, EOFError, ValueError) as error:
            self.open = False
            self._pipe.close()
            self._fail(one_line(error))

    async def _take(self, count: int) -> bytes:
        while len(self._data) < count:
            data = await self._pipe.read(1 << 18)
            if not data:
                raise EOFError("the connection dropped")
            self._data += data
        taken = bytes(self._data[:count])
        del self._data[:count]
        return taken

    def _fail(self, why: str) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LinkLost(why))


def _raised(error: dict[str, Any], name: str) -> Exception:
    """What the attendant raised, with the machine's name. An OSError is one here too."""
    text = f"{name}: {error['text']}"
    if error["type"] == "TimeoutError":
        return TimeoutError(text)
    if "errno" not in error:
        return RuntimeError(f"{name}: {error['type']}: {error['text']}")
    path = [error["path"]] if error.get("path") else []
    return OSError(error["errno"], text, *path) if error["errno"] else OSError(text)


@cache
def _library() -> bytes:
    """This package as a ZIP file, the same bytes each time, with what makes SGLang find the embedded engine."""
    package = Path(__file__).parents[1]
    packed = io.BytesIO()

    def add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
        archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)  # ZipInfo's date is fixed

    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*")):
            name = path.relative_to(package).as_posix()
            if path.suffix in (".py", ".jsonl") and not any(PurePosixPath(name).is_relative_to(o) for o in _LEFT_OUT):
                add(archive, f"{package.name}/{name}", path.read_bytes())
        info = f"breakeven-{__version__}.dist-info"
        point = f"[{plugin.GROUP}]\n{plugin.NAME} = {plugin.__name__}:{plugin.load.__name__}\n"
        add(archive, f"{info}/entry_points.txt", point.encode())
        metadata = f"Metadata-Version: 2.1\nName: breakeven\nVersion: {__version__}\n"
        add(archive, f"{info}/METADATA", metadata.encode())
    return packed.getvalue()
