"""Another machine for tests: a real OpenSSH server on loopback, with a user, a home and a view of the disk of its own.

As root the user is made for the test and removed after it, and the server runs in a mount namespace in which that user
can reach this Python even where it lies in a private home. Anyone else logs in as himself, with another HOME.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from breakeven import artifacts
from breakeven.hosts import LOCAL

SSHD = "/usr/sbin/sshd"
ALIAS = "the-box"

CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
PidFile none
LogLevel VERBOSE
AllowUsers {user}
SetEnv HOME={home}
"""


@dataclass
class Box:
    """The machine: how it is reached (``client_home`` holds the ``.ssh`` that knows it) and how it is troubled."""

    folder: Path
    home: Path
    client_home: Path
    user: str
    port: int
    server: subprocess.Popen[bytes]

    @property
    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")

    def connections(self) -> list[psutil.Process]:
        """The server's processes for the connections that are open."""
        return psutil.Process(self.server.pid).children()

    def everything(self) -> list[psutil.Process]:
        """The server's processes for the connections, the halves without privileges too."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [each for each in psutil.Process(self.server.pid).children(recursive=True) if each.name() == "sshd"]
        return []

    def cut(self) -> int:
        """End every connection as a broken network would: at once, with no word. How many processes that took."""
        cut = self.everything()
        for process in cut:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return len(cut)

    def vanish(self) -> None:
        """Be out of reach: no connection is left, and none can be made."""
        connections = self.everything()
        self.server.kill()
        self.server.wait(10)
        for process in connections:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def come_back(self) -> None:
        """Be in reach again, after ``vanish``."""
        self.server = _start_sshd(self.folder, self.port, os.geteuid() == 0)

    def processes(self) -> list[psutil.Process]:
        """What runs there, connections left out: all of the user's, or what has the home in its environment."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                there = process.environ().get("HOME") == str(self.home) and process.username() == self.user
                if there and process.name() != "sshd" and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def files(self) -> set[str]:
        """What lies in the home, the caches left out."""
        kept = {"library", "shipped", "models", "kernels"}
        below = (path.relative_to(self.home) for path in self.home.rglob("*") if path.is_file())
        return {str(path) for path in below if not kept & set(path.parts) and ".cache/sglang" not in str(path)}


@contextlib.contextmanager
def open_box() -> Iterator[Box]:
    """A running box; nothing of it is left afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="box-"))
    folder.chmod(0o755)
    user, home, client_home = f"box-{secrets.token_hex(4)}", folder / "home", folder / "client"
    home.mkdir()
    (client_home / ".ssh").mkdir(parents=True, mode=0o700)
    root = os.geteuid() == 0
    if root:
        _run("useradd", "--no-create-home", "--home-dir", home, "--shell", "/bin/bash", "--password", "*", user)
        shutil.chown(home, user, user)
    else:
        user = pwd.getpwuid(os.geteuid()).pw_name
    try:
        _make_keys(folder, client_home)
        (port,) = LOCAL.free_ports(1)
        write_client(client_home, port, user)
        (folder / "sshd_config").write_text(CONFIG.format(port=port, folder=folder, user=user, home=home))
        box = Box(folder, home, client_home, user, port, _start_sshd(folder, port, root))
        try:
            yield box
        finally:
            box.cut()
            box.server.terminate()
            box.server.wait(10)
            left = box.processes()
            for process in left:
                process.kill()
            psutil.wait_procs(left, 10)
    finally:
        shutil.rmtree(folder)
        if root:
            _run("userdel", "--force", user)  # a process that is just ending would keep it from going


def write_client(client_home: Path, port: int, user: str, key: str = "key") -> None:
    """The ``~/.ssh`` of whoever uses the box: an alias with port, user and key, and the host's key as known."""
    ssh = client_home / ".ssh"
    (ssh / "config").write_text(
        f"Host {ALIAS}\n  HostName 127.0.0.1\n  Port {port}\n  User {user}\n  IdentityFile {ssh / key}\n"
        "  IdentitiesOnly yes\n"
    )
    public = (client_home.parent / "host_key.pub").read_text()
    (ssh / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}")


def _make_keys(folder: Path, client_home: Path) -> None:
    for path in (folder / "host_key", client_home / ".ssh" / "key", client_home / ".ssh" / "other_key"):
        _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path)
    shutil.copy(client_home / ".ssh" / "key.pub", folder / "authorized_keys")


def _start_sshd(folder: Path, port: int, root: bool) -> subprocess.Popen[bytes]:
    command = f"exec {SSHD} -D -e -f {folder}/sshd_config"
    if root:
        Path("/run/sshd").mkdir(exist_ok=True)
        command = f"{_reveal(folder / 'kept')}\n{command}"
    with (folder / "sshd.log").open("wb") as log:
        program = [*(["unshare", "--mount"] if root else []), "sh", "-ec", command]
        server = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + 20
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return server
        assert server.poll() is None and time.monotonic() < deadline, (folder / "sshd.log").read_text()
        time.sleep(0.05)


def _reveal(kept: Path) -> str:
    """Shell commands that make this Python and this checkout reachable for another user, in a namespace of its own.

    The originals are kept at hand while an empty folder hides what nobody else may enter; then they come back in it.
    """
    keep, hide, show = [], [], []
    for number, path in enumerate(
        (Path(sys.executable).resolve().parents[1], Path(sys.prefix), artifacts.project_root())
    ):
        closed = next((each for each in reversed(path.parents) if not each.stat().st_mode & 0o001), None)
        if closed is not None:
            original, aside = shlex.quote(str(path)), shlex.quote(f"{kept}/{number}")
            keep += [f"mkdir -p {aside}", f"mount --bind {original} {aside}"]
            hide += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(closed))}"]
            show += [f"mkdir -p {original}", f"mount --bind {aside} {original}"]
    return "\n".join([*keep, *dict.fromkeys(hide), *show])


def _run(*command: str | Path) -> None:
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=30)
