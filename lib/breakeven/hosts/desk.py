"""What an ``attendant`` does for its owner: the requests, one method each, from JSON values and bytes to the same.

Runs in SGLang's own Python, 3.10 or newer: the standard library and psutil (which SGLang needs itself).
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import io
import os
import sys
import threading
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from breakeven import artifacts
from breakeven.hosts import processes
from breakeven.hosts.local import LOCAL

CHUNK_BYTES = 4 << 20
"""Most bytes of a file in one answer."""
_PART = ".part"  # behind the name of a file that is still being sent


class Desk:
    """The requests that the daemon answers; each takes JSON values and bytes, and gives JSON values and bytes."""

    def __init__(self, session: Path) -> None:
        self.session = session
        self._started: dict[str, processes.Supervised] = {}

    def hello(self, _payload: bytes) -> dict[str, Any]:
        return {
            "home": str(Path.home()),
            "cache": str(artifacts.cache_root()),
            "session": str(self.session),
            "library": str(Path(__file__).parents[2]),
            "python": sys.executable,
            "environ": dict(os.environ),
            "cores": len(os.sched_getaffinity(0)),
        }

    def ping(self, _payload: bytes) -> None:
        return None

    def read(self, _payload: bytes, path: str, start: int, limit: int) -> tuple[None, bytes]:
        with Path(path).open("rb") as file:
            file.seek(start)
            return None, file.read(min(limit, CHUNK_BYTES))

    def size(self, _payload: bytes, path: str) -> int:
        return LOCAL.size(Path(path))

    def names(self, _payload: bytes, folder: str) -> list[str]:
        return LOCAL.names(Path(folder))

    def digests(self, _payload: bytes, folder: str) -> dict[str, str]:
        """SHA-256 of every file below a folder, by its path from there; none of a folder that is not there."""
        root = Path(folder)
        files = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.endswith(_PART))
        return {path.relative_to(root).as_posix(): _sha256(path) for path in files}

    def package(self, _payload: bytes, name: str, folder: str | None) -> tuple[None, bytes]:
        """The Python files of a package and what tells its version, as a ZIP file; empty if there is none.

        Without a folder it is the installed one; the folder may be a checkout, or hold the package or be it.
        """
        parent = _parent_of(name, Path(folder).expanduser() if folder else None)
        if parent is None:
            return None, b""
        infos = parent.glob(f"{name}*.dist-info")
        about = [file for info in infos for file in (info / "METADATA", info / "entry_points.txt") if file.is_file()]
        about += [file for file in (parent / "pyproject.toml", parent / "PKG-INFO") if file.is_file()]
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            for file in [*sorted((parent / name).rglob("*.py")), *about]:
                archive.write(file, file.relative_to(parent).as_posix())
        return None, packed.getvalue()

    def write(self, payload: bytes, path: str) -> None:
        LOCAL.write(Path(path), payload)

    def write_part(self, payload: bytes, path: str, start: int) -> None:
        """A piece of a file that is too long for one frame; it appears with ``write_end``."""
        part = Path(path + _PART)
        part.parent.mkdir(parents=True, exist_ok=True)
        try:
            with part.open("r+b" if start else "wb") as file:
                file.seek(start)
                file.write(payload)
        except OSError:
            part.unlink(missing_ok=True)
            raise

    def write_end(self, _payload: bytes, path: str, sha256: str) -> None:
        part = Path(path + _PART)
        if _sha256(part) != sha256:
            part.unlink()
            raise OSError(errno.EIO, "it arrived damaged", path)
        os.replace(part, path)

    def remove(self, _payload: bytes, path: str) -> None:
        LOCAL.remove(Path(path))

    def run(self, _payload: bytes, command: list[str], env: dict[str, str] | None, timeout_s: float) -> dict[str, Any]:
        return asdict(LOCAL.run(command, env=env, timeout_s=timeout_s))

    def start(self, _payload: bytes, command: list[str], env: dict[str, str], log_path: str) -> dict[str, Any]:
        held = processes.start(command, env=env, log_path=Path(log_path))
        self._started[held.marker] = held
        return {"id": held.marker, "pid": held.pid}

    def alive(self, _payload: bytes, id: str) -> bool:
        return self._started[id].alive()

    def ending(self, _payload: bytes, id: str) -> dict[str, Any] | None:
        ending = self._started[id].ending()
        return asdict(ending) if ending else None

    def activity(self, _payload: bytes, id: str) -> list[Any]:
        return [str(part) for part in self._started[id].activity()]

    def unhealthy(self, _payload: bytes, id: str) -> list[str]:
        return self._started[id].unhealthy()

    def stop(self, _payload: bytes, id: str) -> dict[str, Any]:
        return asdict(self._started[id].stop())

    def free_ports(self, _payload: bytes, count: int) -> list[int]:
        return LOCAL.free_ports(count)

    def port_is_free(self, _payload: bytes, port: int) -> bool:
        return LOCAL.port_is_free(port)

    def bye(self, _payload: bytes) -> None:
        """End everything that was started; the daemon goes after the answer."""
        threads = [threading.Thread(target=held.stop) for held in self._started.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def _parent_of(package: str, folder: Path | None) -> Path | None:
    """The folder that holds the package's folder."""
    if folder is None:
        found = importlib.util.find_spec(package)
        places = list(found.submodule_search_locations or []) if found else []
        return Path(places[0]).parent if places else None
    candidates = [folder.parent] if folder.name == package else []
    candidates += [folder, folder / "python", folder / "src"]
    return next((each for each in candidates if (each / package).is_dir()), None)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
