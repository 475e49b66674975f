"""Find the Python source of SGLang or FlashInfer: installed, a folder, or a release read without installing it.

A release (``pypi:0.5.23``) is fetched once into a cache folder; only the Python files and the metadata are unpacked.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from breakeven.artifacts import cache_root, located
from breakeven.errors import UserError, did_you_mean
from breakeven.sources.fetching import DISTRIBUTIONS, fetched

_MARKS = {"sglang": ("srt",), "flashinfer": ("comm", "jit", "__init__.py")}
"""What a folder of that name must hold: any folder may be called so."""


@dataclass(frozen=True)
class Source:
    """A package's source tree. ``root`` is the folder that holds the package folder (as site-packages does)."""

    package: str
    version: str
    root: Path
    origin: str

    @property
    def folder(self) -> Path:
        """The package folder itself: ``root / package``."""
        return self.root / self.package

    def read(self, rel: str) -> bytes:
        """A file's content, by its path below the root. Raises UserError where it can't be read."""
        file = os.path.join(self.root, rel)  # noqa: PTH118 thousands of files: a Path each would cost more than reading
        try:
            with open(file, "rb") as handle:  # noqa: PTH123
                return handle.read()
        except OSError as error:
            raise UserError(f"{file} can't be read: {error.strerror}") from None


def python_files(source: Source) -> list[str]:
    """The package's Python files, by their path below the root, with ``/``. Raises UserError where a folder is shut."""

    def refuse(error: OSError) -> None:
        raise UserError(f"{error.filename} can't be read: {error.strerror}") from None

    found = []
    for folder, _, names in os.walk(source.folder, onerror=refuse):
        below = folder.removeprefix(f"{source.root}{os.sep}").replace(os.sep, "/")
        found += [f"{below}/{name}" for name in names if name.endswith(".py")]
    return sorted(found, key=lambda rel: rel.split("/"))


def open_source(package: str, spec: str, *, cache: Path | None = None) -> Source:
    """Open the source that ``spec`` names: ``installed``, a folder, or ``pypi:VERSION``.

    A folder may be a site-packages folder, a git checkout (SGLang keeps its package under ``python/``), or the
    package folder itself. Raises UserError where there is no such source.
    """
    if package not in DISTRIBUTIONS:
        raise UserError(f"no source is known for the package {package!r}{did_you_mean(package, DISTRIBUTIONS)}")
    if spec == "installed":
        return _installed(package)
    if spec.startswith("pypi:"):
        version = spec.removeprefix("pypi:")
        return Source(package, version, fetched(package, version, cache or cache_root()), spec)
    return _folder(package, located(spec))


def lying_beside(package: str, source: Source) -> Source | None:
    """The package where the running Python, or the folder that was named, has it too; None for a release's source."""
    if source.origin.startswith("pypi:"):
        return None
    try:
        return _installed(package) if source.origin == "installed" else _folder(package, source.root)
    except UserError:
        return None


def pinned_flashinfer(source: Source) -> str | None:
    """The FlashInfer version that a SGLang source pins in its metadata or pyproject, or None."""
    for text in _requirement_texts(source):
        if match := re.search(r"flashinfer[-_]python(?:\[[^\]]*\])?\s*\(?\s*==\s*([0-9][^\s;\"',)]*)", text):
            return match.group(1)
    return None


def _requirement_texts(source: Source) -> Iterator[str]:
    for info in _dist_infos(source.root, DISTRIBUTIONS[source.package]):
        yield "\n".join(line for line in _read(info / "METADATA").splitlines() if line.startswith("Requires-Dist:"))
    for name in ("pyproject.toml", "PKG-INFO"):
        if (source.root / name).is_file():
            yield _read(source.root / name)


def _installed(package: str) -> Source:
    found = importlib.util.find_spec(package)
    locations = list(found.submodule_search_locations or []) if found else []
    if not locations:
        raise UserError(
            f"{package} is not installed in {sys.prefix}; install it there, or name a folder or pypi:VERSION"
        )
    return _folder(package, Path(locations[0]), origin="installed")


def _folder(package: str, path: Path, origin: str | None = None) -> Source:
    try:
        if not path.exists():
            raise UserError(
                f"{path} does not exist; a {package} source is 'installed', a folder, or a release such as pypi:0.5.23"
            )
        if not path.is_dir():
            raise UserError(f"{path} is a file; give the folder that holds the {package} package")
        candidates = [path.parent] if path.name == package and (path / "__init__.py").is_file() else []
        candidates += [path, path / "python", path / "src"]
        root = next((root for root in candidates if _holds(root, package)), None)
    except PermissionError as error:
        raise UserError(f"{error.filename or path} can't be read: permission denied") from None
    if root is None:
        raise UserError(
            f"{path} holds no {package} package; expected {package}/{_MARKS[package][0]} in it, in its python/ or "
            f"src/, or the package folder itself"
        )
    return Source(package, _version(root, package), root.resolve(), origin or str(path))


def _holds(root: Path, package: str) -> bool:
    if not (root / package).is_dir():
        return False
    os.listdir(root / package)  # noqa: PTH208 an unreadable folder must say so, not look empty
    return any((root / package / mark).exists() for mark in _MARKS[package])


def _version(root: Path, package: str) -> str:
    """The version by metadata, by a version file, by pyproject, by git tag; ``unknown`` where none of them says."""
    for info in _dist_infos(root, DISTRIBUTIONS[package]):
        if match := re.search(r"^Version:\s*(\S+)", _read(info / "METADATA"), re.M):
            return match.group(1)
    for name in ("version.py", "_version.py", "_build_meta.py"):
        path = root / package / name
        if path.is_file() and (
            match := re.search(
                r"^(?:__version__|version)[^=\n]*=(?:[^=\n\"']*=)?\s*[\"'](\d[^\"']*)", _read(path), re.M
            )
        ):
            return match.group(1)
    for path in (root / "PKG-INFO", root / "pyproject.toml", root / "version.txt", root.parent / "version.txt"):
        if not path.is_file():
            continue
        text = _read(path)
        if path.suffix == ".txt":
            return text.strip()
        if path.suffix == ".toml":
            stated = tomllib.loads(text).get("project", {}).get("version") if _is_toml(text) else None
            if stated:
                return str(stated)
        elif match := re.search(r"^Version:\s*(\S+)", text, re.M):
            return match.group(1)
    return _git_version(root) or "unknown"


def _git_version(root: Path) -> str | None:
    top = next((folder for folder in (root, root.parent) if (folder / ".git").exists()), None)
    if top is None or shutil.which("git") is None:
        return None
    done = subprocess.run(
        ["git", "-C", str(top), "describe", "--tags", "--always"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip().removeprefix("v") or None


def _dist_infos(root: Path, distribution: str) -> Iterator[Path]:
    wanted = re.sub(r"[-_.]+", "-", distribution).lower()
    for info in sorted(root.glob("*.dist-info")):
        stem = info.name.removesuffix(".dist-info").rpartition("-")[0]
        if re.sub(r"[-_.]+", "-", stem).lower() == wanted and (info / "METADATA").is_file():
            yield info


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror}") from None


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True
