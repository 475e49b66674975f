"""Find the Python source of SGLang or FlashInfer: installed, a folder, or a release read without installing it.

A release (``pypi:0.5.23``) is fetched once by pip, with pip's own configuration, into a cache folder; only the
Python files and the metadata are unpacked. Nothing is ever written outside the cache, and a failed fetch leaves
the cache as it was.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from breakeven.artifacts import cache_root, read_json, write_json
from breakeven.errors import UserError, did_you_mean, one_line

DISTRIBUTIONS = {"sglang": "sglang", "flashinfer": "flashinfer-python"}

# Reading the gates needs neither the tests nor the image and video half of SGLang, and of FlashInfer only the
# communication kernels' Python side. Where these are missing the whole package is unpacked.
_NEEDED = {
    "sglang": re.compile(r"sglang/(?!test/|multimodal_gen/|eval/|benchmark/|lang/).*\.py"),
    "flashinfer": re.compile(r"flashinfer/([^/]+|comm/.*|jit/.*)\.py"),
}
_METADATA = re.compile(r"[^/]+\.dist-info/(METADATA|entry_points\.txt)|PKG-INFO|pyproject\.toml")
_MAX_UNPACKED_BYTES = 1 << 30
_PIP_TIMEOUT_S = 600


def is_needed(package: str, name: str) -> bool:
    """Whether a file (its path below the root, with ``/``) belongs to what the gates are read from."""
    return _NEEDED[package].fullmatch(name) is not None


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
        return _release(package, spec.removeprefix("pypi:"), cache or cache_root())
    return _folder(package, Path(spec).expanduser())


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
    if not path.exists():
        raise UserError(
            f"{path} does not exist; a {package} source is 'installed', a folder, or a release such as pypi:0.5.23"
        )
    if not path.is_dir():
        raise UserError(f"{path} is a file; give the folder that holds the {package} package")
    try:
        candidates = [path.parent] if path.name == package and (path / "__init__.py").is_file() else []
        candidates += [path, path / "python", path / "src"]
        root = next((root for root in candidates if _holds(root, package)), None)
    except PermissionError as error:
        raise UserError(f"{error.filename or path} can't be read: permission denied") from None
    if root is None:
        raise UserError(
            f"{path} holds no {package} package; expected {package}/__init__.py in it, in its python/ or src/, or "
            f"the package folder itself"
        )
    return Source(package, _version(root, package), root.resolve(), origin or str(path))


def _holds(root: Path, package: str) -> bool:
    if not (root / package).is_dir():
        return False
    marks = {"sglang": ("srt", "__init__.py"), "flashinfer": ("comm", "jit", "__init__.py")}[package]
    os.listdir(root / package)  # noqa: PTH208 an unreadable folder must say so, not look empty
    return any((root / package / mark).exists() for mark in marks)


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


# ---------------------------------------------------------------- releases


def _release(package: str, version: str, cache: Path) -> Source:
    distribution = DISTRIBUTIONS[package]
    if not re.fullmatch(r"[0-9][0-9A-Za-z.+!_-]*", version):
        raise UserError(f"pypi:{version} names no release; write a version, such as pypi:0.5.23")
    home = cache / "sources" / f"{distribution}-{version}"
    if not _intact(home):
        _fetch(package, version, home)
    return Source(package, version, (home / "tree").resolve(), f"pypi:{version}")


def _intact(home: Path) -> bool:
    """Whether the unpacked tree is still the one that its record describes."""
    record = home / "source.json"
    if not record.is_file():
        return False
    try:
        stated = read_json(record)
    except UserError:
        return False
    return bool(stated.get("tree_sha256") == _tree_sha256(home / "tree"))


def _fetch(package: str, version: str, home: Path) -> None:
    try:
        home.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=home.parent, prefix=".fetch-"))
    except OSError as error:
        raise UserError(
            f"the cache folder {home.parent} can't be written: {error.strerror}; point BREAKEVEN_CACHE elsewhere"
        ) from None
    try:
        archive = _download(DISTRIBUTIONS[package], version, scratch / "download")
        tree = scratch / "unpacked" / "tree"
        _unpack(package, archive, tree)
        write_json(
            tree.parent / "source.json",
            {
                "distribution": DISTRIBUTIONS[package],
                "version": version,
                "archive": archive.name,
                "archive_sha256": _file_sha256(archive),
                "tree_sha256": _tree_sha256(tree),
            },
        )
        _replace_folder(tree.parent, home, scratch / "old")
    except OSError as error:
        raise UserError(f"{package} {version} can't be stored in {home.parent}: {one_line(error)}") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _replace_folder(new: Path, home: Path, aside: Path) -> None:
    """Put ``new`` in place of ``home``; another process that was quicker with the same release wins."""
    if home.exists() and not _intact(home):
        os.replace(home, aside)
    try:
        os.replace(new, home)
    except OSError:
        if not _intact(home):
            raise


def _download(distribution: str, version: str, into: Path) -> Path:
    """Fetch the release's wheel with pip, of any Python and platform; its source archive where it has no wheel."""
    any_linux = [f"--platform={tag}_x86_64" for tag in ("manylinux_2_34", "manylinux_2_28", "manylinux2014")]
    attempts = [["--only-binary=:all:"]]
    attempts += [
        ["--only-binary=:all:", f"--python-version={python}", *any_linux, "--platform=any"]
        for python in ("3.11", "3.12")
        if python != f"{sys.version_info.major}.{sys.version_info.minor}"
    ]
    # pip asks a source archive for its metadata; without isolation that takes no build dependencies.
    source = f"--no-binary={distribution}"
    attempts += [[source, "--no-build-isolation"], [source]]
    reasons: list[str] = []
    for options in attempts:
        reason = _pip_download(f"{distribution}=={version}", options, into)
        if reason is None:
            return next(path for path in sorted(into.iterdir()) if path.is_file())
        reasons.append(reason)
        if "no matching distribution" not in reason.lower() and "--only-binary=:all:" in options:
            break  # the network, the index or the archive: another kind of archive would not help
        known = _versions_listed(reason)
        if source in options and version not in known:
            break
    raise UserError(_no_release(distribution, version, reasons))


def _no_release(distribution: str, version: str, reasons: list[str]) -> str:
    known = sorted({listed for reason in reasons for listed in _versions_listed(reason)})
    if known and version not in known:
        return f"{distribution} has no release {version}{did_you_mean(version, known[-40:])}"
    last = reasons[-1]
    return f"{distribution} {version} can't be fetched: {re.sub(r' *[(]from versions:.*?[)]', '', last)}"


def _versions_listed(reason: str) -> list[str]:
    match = re.search(r"\(from versions: ([^)]*)\)", reason)
    return [] if not match or match.group(1) == "none" else match.group(1).split(", ")


def _pip_download(requirement: str, options: list[str], into: Path) -> str | None:
    """Run ``pip download``; None when it worked, else pip's own words on one line."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--no-input"]
    try:
        done = subprocess.run(
            [*command, "--progress-bar=off", f"--dest={into}", *options, requirement],
            capture_output=True,
            text=True,
            check=False,
            timeout=_PIP_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"pip took more than {_PIP_TIMEOUT_S} s"
    if done.returncode == 0 and into.is_dir() and any(into.iterdir()):
        return None
    if "No module named pip" in done.stderr:
        return f"{sys.executable} has no pip; install it there (python -m ensurepip), or give a folder"
    errors = [line.removeprefix("ERROR:").strip() for line in done.stderr.splitlines() if line.startswith("ERROR:")]
    return " ".join(errors or done.stderr.split("\n")[-3:]).strip() or f"pip ended with {done.returncode}"


def _unpack(package: str, archive: Path, tree: Path) -> None:
    """Unpack what reading the gates needs. Raises UserError for a damaged archive or one that leads outside."""
    try:
        with _open_archive(archive) as members:
            names = members.names()
            needed = [name for name in names if is_needed(package, name)]
            if not needed:
                needed = [name for name in names if name.startswith(f"{package}/") and name.endswith(".py")]
            wanted = needed + [name for name in names if _METADATA.fullmatch(name)]
            if not needed:
                raise UserError(f"{archive.name} holds no {package} package")
            if sum(members.size(name) for name in wanted) > _MAX_UNPACKED_BYTES:
                raise UserError(f"{archive.name} unpacks to more than {_MAX_UNPACKED_BYTES >> 20} MiB; refused")
            for name in wanted:
                target = tree / PurePosixPath(name)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(members.read(name))
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zipfile.LargeZipFile, NotImplementedError) as error:
        raise UserError(f"{archive.name} is damaged ({one_line(error)}); nothing was stored, fetch it again") from None


class _open_archive:  # noqa: N801 (used as a function)
    """A wheel or a source archive as names and contents; refuses names that would lead out of the folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._zip: zipfile.ZipFile | None = None
        self._tar: tarfile.TarFile | None = None
        self._members: dict[str, zipfile.ZipInfo | tarfile.TarInfo] = {}

    def __enter__(self) -> _open_archive:
        if self._path.suffix in (".whl", ".zip"):
            self._zip = zipfile.ZipFile(self._path)
            for info in self._zip.infolist():
                if not info.is_dir() and not stat.S_ISLNK(info.external_attr >> 16):
                    self._add(info.filename, info)
        else:
            self._tar = tarfile.open(self._path)
            for member in self._tar.getmembers():
                if member.isfile():
                    # a source archive has one folder at its top, and some keep the package under python/ or src/
                    inner = member.name.partition("/")[2]
                    self._add(inner.removeprefix("python/").removeprefix("src/"), member)
        return self

    def __exit__(self, *_: object) -> None:
        for handle in (self._zip, self._tar):
            if handle is not None:
                handle.close()

    def _add(self, name: str, member: zipfile.ZipInfo | tarfile.TarInfo) -> None:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in path.parts[0:1]:
            raise UserError(f"{self._path.name} holds a file name that leads out of its folder ({name!r}); refused")
        self._members[name] = member

    def names(self) -> list[str]:
        return sorted(self._members)

    def size(self, name: str) -> int:
        member = self._members[name]
        return member.file_size if isinstance(member, zipfile.ZipInfo) else member.size

    def read(self, name: str) -> bytes:
        member = self._members[name]
        if isinstance(member, zipfile.ZipInfo):
            assert self._zip is not None
            return self._zip.read(member)
        assert self._tar is not None
        handle = self._tar.extractfile(member)
        if handle is None:
            raise UserError(f"{self._path.name} is damaged: {name} can't be read")
        return handle.read()


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tree_sha256(tree: Path) -> str:
    digest = hashlib.sha256()
    for path in _files(tree):
        digest.update(f"{path.relative_to(tree).as_posix()}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _files(tree: Path) -> Iterable[Path]:
    return (Path(folder) / name for folder, folders, names in _walk(tree) for name in sorted(names))


def _walk(tree: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    for folder, folders, names in os.walk(tree):
        folders.sort()
        yield folder, folders, names


def installed_version(package: str) -> str | None:
    """The installed version of a package by its metadata, or None where it is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTIONS[package])
    except importlib.metadata.PackageNotFoundError:
        return None
