"""Wheels and source archives: which of their files are needed, and unpacking just those.

Nothing is ever written outside the folder that is named, whatever the archive says.
"""

from __future__ import annotations

import re
import stat
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

from breakeven.errors import UserError, one_line

# Reading the gates needs neither the tests nor the image and video half of SGLang, and of FlashInfer only the
# communication kernels' Python side. Where these are missing the whole package is unpacked.
_NEEDED = {
    "sglang": re.compile(r"sglang/(?!test/|multimodal_gen/|eval/|benchmark/|lang/).*\.py"),
    "flashinfer": re.compile(r"flashinfer/([^/]+|comm/.*|jit/.*)\.py"),
}
_METADATA = re.compile(r"[^/]+\.dist-info/(METADATA|entry_points\.txt)|PKG-INFO|pyproject\.toml")
_MAX_UNPACKED_BYTES = 1 << 30


def is_needed(package: str, name: str) -> bool:
    """Whether a file (its path below the root, with ``/``) belongs to what the gates are read from."""
    return _NEEDED[package].fullmatch(name) is not None


def unpack(package: str, archive: Path, tree: Path) -> None:
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
