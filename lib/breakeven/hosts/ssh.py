"""SSH to the machine that serves: ``~/.ssh/config`` is honoured, and a host key that is not known is refused."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
from collections.abc import Sequence
from typing import Any

import asyncssh

from breakeven.errors import UserError, one_line

CONNECT_WITHIN_S = 30.0
KEEPALIVE_S = 10.0
_LOST_AFTER = 3  # keep-alives without an answer
_DESTINATION = re.compile(
    r"(?:ssh://)?(?:(?P<user>[^@\s:/]+)@)?(?P<host>\[[0-9A-Fa-f:]+\]|[^-@\s:/\[][^@\s:/]*)(?::(?P<port>\d+))?/?"
)


class Ssh:
    """A transport (see ``remote``) to an SSH destination: an alias of ``~/.ssh/config``, or ``[user@]host[:port]``.

    ``secret_env`` is the name of the environment variable with a password or a key's passphrase, where the agent and
    unprotected keys are not enough. Raises UserError for what is no destination.
    """

    def __init__(self, destination: str, secret_env: str = "") -> None:
        found = _DESTINATION.fullmatch(destination)
        if not found:
            raise UserError(
                f"host is {destination!r}; give local, an SSH destination (alias, user@host:port) or attach:URL"
            )
        self.name = destination
        self._host = found["host"].strip("[]")
        self._options: dict[str, Any] = {"username": found["user"], "port": found["port"] and int(found["port"])}
        self._secret_env = secret_env
        self._connection: asyncssh.SSHClientConnection | None = None
        self._connecting = asyncio.Lock()

    async def start(self, command: Sequence[str]) -> _Program:
        connection = await self._connected()
        try:
            return _Program(await connection.create_process(shlex.join(command), encoding=None))
        except asyncssh.Error as error:
            raise ConnectionError(f"{self.name}: {one_line(error)}") from None

    async def connect(self, port: int) -> tuple[asyncssh.SSHReader[bytes], asyncssh.SSHWriter[bytes]]:
        try:
            return await (await self._connected()).open_connection("127.0.0.1", port)
        except asyncssh.Error as error:
            raise ConnectionError(f"{self.name}, port {port}: {one_line(error)}") from None

    async def close(self) -> None:
        if self._connection:
            self._connection.close()
            with contextlib.suppress(asyncssh.Error, OSError):
                await self._connection.wait_closed()
        self._connection = None

    async def _connected(self) -> asyncssh.SSHClientConnection:
        async with self._connecting:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._open()
            return self._connection

    async def _open(self) -> asyncssh.SSHClientConnection:
        options = {name: value for name, value in self._options.items() if value is not None}
        if self._secret_env:
            secret = os.environ.get(self._secret_env)
            if secret is None:
                raise UserError(
                    f"secret_env: the environment has no variable {self._secret_env!r}; set it and try again"
                )
            options |= {"password": secret, "passphrase": secret}
        try:
            async with asyncio.timeout(CONNECT_WITHIN_S):
                return await asyncssh.connect(
                    self._host, keepalive_interval=KEEPALIVE_S, keepalive_count_max=_LOST_AFTER, **options
                )
        except asyncssh.HostKeyNotVerifiable:
            raise UserError(
                f"the host key of {self.name} is not the one in known_hosts, or there is none yet: run "
                f"`ssh {self.name}` once and compare the fingerprint; it is never accepted unseen"
            ) from None
        except asyncssh.PermissionDenied:
            raise UserError(
                f"{self.name} does not let you in: it takes none of your keys; name one in ~/.ssh/config "
                "(IdentityFile), load it into the agent, or give a password by secret_env"
            ) from None
        except (asyncssh.KeyImportError, asyncssh.KeyEncryptionError, asyncssh.ConfigParseError) as error:
            raise UserError(
                f"{self.name}: SSH configuration or key: {one_line(error)}; the agent (ssh-add) opens any key"
            ) from None
        except TimeoutError:
            raise ConnectionError(f"{self.name} did not answer within {CONNECT_WITHIN_S:g} s") from None
        except (OSError, asyncssh.Error) as error:
            raise ConnectionError(f"{self.name} can't be reached: {one_line(error)}") from None


class _Program:
    """A program on the other side, as a ``remote.Pipe``."""

    def __init__(self, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._process = process

    async def read(self, most: int) -> bytes:
        try:
            return await self._process.stdout.read(most)
        except asyncssh.Error as error:
            raise ConnectionError(one_line(error)) from None

    async def write(self, data: bytes) -> None:
        try:
            self._process.stdin.write(data)
            await self._process.stdin.drain()
        except asyncssh.Error as error:
            raise ConnectionError(one_line(error)) from None

    async def last_words(self) -> str:
        with contextlib.suppress(asyncssh.Error, OSError):
            text = (await self._process.stderr.read(1 << 16)).decode(errors="replace").strip()
            return text.splitlines()[-1] if text else ""
        return ""

    def close(self) -> None:
        self._process.close()
