"""The files of a run: atomic writes, checked reads, schema versions. Knows nothing of what is in them."""

from __future__ import annotations

import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

from breakeven.errors import UserError

SCHEMA_VERSION = 1
_OWN_FOLDERS = {"notebooks", "lib", "parameters", "tests", "benchmarks", "docs", ".git", ".ci", ".venv"}
_FILES_OF_A_RUN = {"samples.jsonl"} | {
    f"{name}.json" for name in ("run", "gates", "fusion", "server", "allreduce", "cells", "breakeven")
}
_FOLDERS_OF_A_RUN = {"notebooks", "logs", "report", "figures", "traces", "overlay", "model-without-weights"}
"""What a run makes before its first file, and what a notebook that is run by hand may be written to."""


def project_root() -> Path:
    """The folder that holds ``notebooks/`` and ``outputs/``, wherever a notebook or command was started.

    The working directory and its parents are tried first, then the checkout that the library was installed from.
    Raises UserError where neither holds the suite.
    """
    here = Path.cwd().resolve()
    for folder in (here, *here.parents, *Path(__file__).resolve().parents):
        if _holds_the_suite(folder):
            return folder
    raise UserError(f"{here} is not inside a checkout of the suite (no notebooks/01_read_gating.ipynb on the way up)")


def _holds_the_suite(folder: Path) -> bool:
    """A run folder has executed notebooks of the same names, and no ``parameters/``."""
    return (folder / "notebooks" / "01_read_gating.ipynb").is_file() and (folder / "parameters").is_dir()


def located(given: str | Path, *also_below: str) -> Path:
    """Where a path of the parameters or of the command line leads, absolute: one rule for all of them.

    A relative one counts from the working directory if it exists there, else from the project's root, else from the
    folders ``also_below`` the root. One that exists nowhere counts from the root.
    """
    path = Path(os.path.expanduser(given))  # noqa: PTH111 Path.expanduser raises for a user that is not known
    here = Path.cwd() / path
    if path.is_absolute() or os.path.exists(here):  # noqa: PTH110 Path.exists raises for names that no file can have
        return here
    try:
        root = project_root()
    except UserError:
        return here
    places = [root / path, *(root / folder / path for folder in also_below)]
    return next((place for place in places if os.path.exists(place)), places[0])  # noqa: PTH110


def from_root(path: Path) -> str:
    """An absolute path as the notebooks, which run in the project's root, are told it."""
    root = project_root()
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def cache_root() -> Path:
    """The folder for what is made once: $BREAKEVEN_CACHE, else breakeven/ in $XDG_CACHE_HOME or in ~/.cache."""
    if chosen := os.environ.get("BREAKEVEN_CACHE"):
        return Path(chosen).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "breakeven"


def run_path(run_dir: str | Path, *also_below: str) -> Path:
    """The folder that a run is in or would be in (see ``located``).

    Raises UserError for what can't be one: no name, the checkout, what it lies in, and its own folders.
    """
    if not str(run_dir).strip() or "\0" in str(run_dir):
        raise UserError(f"run_dir is {str(run_dir)!r}; give the folder of a run, such as outputs/my-run")
    folder = located(run_dir, *also_below).resolve()
    root = project_root()
    top = folder.relative_to(root).parts[:1] if folder.is_relative_to(root) else ()
    if folder in (root, *root.parents, root / "outputs") or _OWN_FOLDERS.intersection(top) or _holds_the_suite(folder):
        raise UserError(f"{folder} is the suite's own folder, or holds it; give one for a run, such as outputs/my-run")
    return folder


def run_folder(run_dir: str | Path) -> Path:
    """The folder of a run, created where it is new.

    Raises UserError for a folder that is not a run's (it holds other things, which a run could write over), and when
    it can't be created or written.
    """
    folder = run_path(run_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    except (OSError, ValueError) as error:
        raise UserError(f"the run folder {folder} can't be created: {getattr(error, 'strerror', error)}") from None
    others = sorted(name for name in names - _FOLDERS_OF_A_RUN if not name.endswith(".ipynb"))
    if others and not names & _FILES_OF_A_RUN:
        raise UserError(f"run_dir: {folder} holds {others[0]!r} and no run; give a folder that is new or empty")
    if not os.access(folder, os.W_OK):
        raise UserError(f"the run folder {folder} is not writable; choose another run_dir")
    return folder


def write_bytes(path: Path, content: bytes) -> Path:
    """Write a file so that a reader sees the old content or the new, never a half.

    Raises OSError (disk full, no permission) with nothing left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return path


def write_text(path: Path, text: str) -> Path:
    """Write UTF-8 text atomically."""
    return write_bytes(path, text.encode())


def write_json(path: Path, content: dict[str, Any]) -> Path:
    """Write one JSON object atomically, stamped with ``schema_version``; NaN and infinities become null."""
    stamped = {"schema_version": SCHEMA_VERSION, **_finite(content)}
    return write_text(path, json.dumps(stamped, indent=1, ensure_ascii=False, default=str) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a file that ``write_json`` wrote.

    Raises UserError when it is missing, is no JSON object, or has another schema version.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: run the notebook that writes it first") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object")
    version = content.get("schema_version")
    if version != SCHEMA_VERSION:
        raise UserError(f"{path} has schema_version {version!r}; this release reads {SCHEMA_VERSION}")
    return content


def append_jsonl(path: Path, row: dict[str, Any]) -> None:
    """Append one row to a JSON Lines file and force it to disk: a crash loses at most the row in flight.

    A row that an earlier crash cut off is removed first, so that it can't swallow this one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"schema_version": SCHEMA_VERSION, **_finite(row)}, ensure_ascii=False, default=str) + "\n"
    with path.open("ab+") as file:
        _drop_torn_row(file)
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON Lines file; a last line cut off by a crash is left out. A missing file has no rows."""
    if not path.exists():
        return []
    rows = []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError:
            if number == len(lines):
                break
            raise UserError(f"{path}:{number} is no JSON; restore the file or delete that line") from None
    return rows


def _drop_torn_row(file: BinaryIO) -> None:
    size = keep = file.seek(0, os.SEEK_END)
    while keep:
        start = max(0, keep - 4096)
        file.seek(start)
        newline = file.read(keep - start).rfind(b"\n")
        keep = start + newline + 1
        if newline >= 0:
            break
    if keep < size:
        file.truncate(keep)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _finite(value: Any) -> Any:
    """JSON has no NaN: a figure that does not exist is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
