"""What a machine has to offer: files, commands, background processes and ports, one interface for all.

``local.Local`` is this machine, ``remote.Remote`` another one. Whatever reads or launches takes a ``Host``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from breakeven.hosts import processes


@dataclass(frozen=True)
class Completed:
    """What a command left: its exit code (negative for a signal) and its two outputs."""

    exit_code: int
    stdout: str
    stderr: str


class Background(Protocol):
    """A command that was started and still may run. It ends when this process does."""

    pid: int

    def alive(self) -> bool: ...

    def ending(self) -> processes.Ending | None: ...

    def wait(self, timeout_s: float) -> processes.Ending: ...

    def stop(self) -> processes.Ending: ...

    def activity(self) -> tuple[object, ...]: ...

    def unhealthy(self) -> list[str]: ...


class Host(Protocol):
    """A machine. Paths are that machine's; every method raises OSError when the machine does not do it."""

    name: str

    @property
    def reconnects(self) -> int:
        """How often the connection to it has dropped and was made again."""

    @property
    def library(self) -> Path:
        """The folder that holds this package there."""

    @property
    def cache(self) -> Path:
        """The folder there for what is made once (`artifacts.cache_root`)."""

    @property
    def python(self) -> str:
        """The interpreter that runs this package there: SGLang's, on another machine."""

    @property
    def prefix(self) -> tuple[str, ...]:
        """What a command of that interpreter needs before it; on another machine everything runs within it already."""

    def environ(self) -> dict[str, str]:
        """The environment that a command has there if nothing else is said."""

    def cores(self) -> int:
        """The processors that a process may use there."""

    def place(self, path: Path) -> Path:
        """Where it keeps what belongs at ``path`` of this machine's run folder, until ``bring``."""

    def bring(self, path: Path) -> None:
        """Copy what it keeps for ``path``, a file or a folder of files, to this machine; nothing there is no error."""

    def ship(self, folder: Path) -> Path:
        """The place there of a folder of this machine whose files do not change, sent if it is not there yet."""

    def names(self, folder: Path) -> list[str]:
        """Names of the files in a folder, sorted; none if there is no folder."""

    def read(self, path: Path, start: int = 0) -> bytes:
        """Content of a file from byte ``start`` on."""

    def size(self, path: Path) -> int:
        """Bytes in a file; 0 if there is none."""

    def lines(self, path: Path) -> Iterator[str]:
        """Lines of a text file, one at a time, without their ends."""

    def write(self, path: Path, content: bytes) -> None:
        """Replace a file as a whole: a reader sees the old content or the new."""

    def remove(self, path: Path) -> None:
        """Delete a file; none there is no error."""

    def run(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float) -> Completed:
        """Run to the end. Raises TimeoutError, with the command ended."""

    def start(
        self, command: Sequence[str], *, env: Mapping[str, str], log_path: Path, record_path: Path | None
    ) -> Background:
        """Start in the background, output to a log of bounded size. It does not outlive this process."""

    def end_leftover(self, record_path: Path) -> str | None:
        """End what an earlier run of this suite started there and left, by its record; in words, None if nothing."""

    def free_ports(self, count: int) -> list[int]:
        """Ports that nothing listens on, each given once by this process."""

    def port_is_free(self, port: int) -> bool:
        """Whether a server could listen on this loopback port."""

    def forward(self, port: int) -> AbstractContextManager[int]:
        """Make a loopback port of the host reachable here: the port to use here."""
