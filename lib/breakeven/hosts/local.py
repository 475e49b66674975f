"""This machine as a ``Host``."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from breakeven import artifacts
from breakeven.hosts import processes
from breakeven.hosts.interface import Completed


class Local:
    """This machine, with this Python or with another of it: ``prefix`` is what stands before that one."""

    name = "local"
    reconnects = 0
    library = Path(__file__).parents[2]

    def __init__(self, python: str = sys.executable, prefix: Sequence[str] = ()) -> None:
        self.python = python
        self.prefix = tuple(prefix)
        self._given_ports: set[int] = set()

    @property
    def cache(self) -> Path:
        return artifacts.cache_root()

    def environ(self) -> dict[str, str]:
        return dict(os.environ)

    def cores(self) -> int:
        return len(os.sched_getaffinity(0))

    def place(self, path: Path) -> Path:
        return path

    def bring(self, path: Path) -> None:
        """It is there already."""

    def ship(self, folder: Path) -> Path:
        return folder

    def names(self, folder: Path) -> list[str]:
        return sorted(path.name for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []

    def read(self, path: Path, start: int = 0) -> bytes:
        with path.open("rb") as file:
            file.seek(start)
            return file.read()

    def size(self, path: Path) -> int:
        return path.stat().st_size if path.exists() else 0

    def lines(self, path: Path) -> Iterator[str]:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                yield line.rstrip("\n")

    def write(self, path: Path, content: bytes) -> None:
        artifacts.write_bytes(path, content)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def run(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float) -> Completed:
        try:
            done = subprocess.run(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{command[0]} did not end within {timeout_s:g} s") from None
        return Completed(done.returncode, done.stdout, done.stderr)

    def start(
        self, command: Sequence[str], *, env: Mapping[str, str], log_path: Path, record_path: Path | None = None
    ) -> processes.Supervised:
        return processes.start(command, env=env, log_path=log_path, record_path=record_path)

    def end_leftover(self, record_path: Path) -> str | None:
        ended = processes.end_leftover(record_path)
        return f"{len(ended)} processes" if ended else None

    def free_ports(self, count: int) -> list[int]:
        # A server binds its ports a minute after they are chosen. Below the ephemeral range the kernel gives them to
        # nobody else meanwhile.
        below = range(20000, min(30000, _first_ephemeral_port()))
        found: list[int] = []
        for port in random.sample(below, len(below)):
            if len(found) == count:
                break
            if port not in self._given_ports and self.port_is_free(port):
                found.append(port)
        if len(found) < count:
            raise OSError(f"no {count} free ports from {below.start} to {below.stop - 1}")
        self._given_ports.update(found)
        return found

    def port_is_free(self, port: int) -> bool:
        with socket.socket() as probe:
            # As servers do: connections that linger after a close do not count.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
        return True

    def forward(self, port: int) -> AbstractContextManager[int]:
        return nullcontext(port)


LOCAL = Local()


def _first_ephemeral_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return 32768
