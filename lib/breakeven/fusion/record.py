"""Puts a change on disk, beside the installed package or into it, so that it can be taken back byte for byte.

Both ways keep a record, ``record.json``, that names every file with its hashes before and after, and is there before
anything takes effect. For an overlay it lies in the overlay folder, which appears and goes as a whole. For a change in
place it lies in ``.breakeven-fusion`` beside the package, with the backups: whatever happens in between (a
crash, a full disk), each file is either as before or as after, and ``take_back`` restores it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from breakeven import artifacts
from breakeven.errors import UserError
from breakeven.fusion import overlay_hook

RECORD_NAME = "record.json"
IN_PLACE_FOLDER = ".breakeven-fusion"
HOOK_NAME = "sitecustomize.py"
NEW_SUFFIX = ".breakeven-new"


@dataclass(frozen=True)
class ChangedFile:
    """One file of a package: its path below the package's parent folder, and its bytes before and after."""

    file: str
    before: bytes
    after: bytes

    @property
    def module(self) -> str:
        """The name that the file is imported by."""
        parts = PurePosixPath(self.file).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sha256(content: bytes) -> str:
    """The SHA-256 of some bytes, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def write_overlay(folder: Path, changed: Iterable[ChangedFile], about: dict[str, Any]) -> bool:
    """Make the overlay folder; False when it already holds exactly this change.

    It is built beside its place and then renamed, so that it stands there whole or not at all. Raises UserError, with
    nothing left behind, when the folder holds anything else or can't be written.
    """
    changed = list(changed)
    record = {
        "mode": "overlay",
        **about,
        "files": [_entry(file, f"changed/{file.file}") for file in changed],
        "hook_sha256": sha256(_hook_source()),
    }
    building = _beside(folder, "building")
    try:
        if folder.is_dir() and any(folder.iterdir()):
            if _holds(folder, record):
                return False
            raise UserError(f"{folder} holds something else; name another folder, or take it back: breakeven revert")
        _remove(building)
        for file in changed:
            artifacts.write_bytes(building / "changed" / file.file, file.after)
        artifacts.write_bytes(building / HOOK_NAME, _hook_source())
        artifacts.write_json(building / RECORD_NAME, record)
        os.replace(building, folder)
    except OSError as error:
        shutil.rmtree(building, ignore_errors=True)
        raise UserError(f"the overlay can't be made at {folder}: {error.strerror}") from None
    return True


def write_in_place(package_parent: Path, changed: Iterable[ChangedFile], about: dict[str, Any]) -> Path:
    """Replace files of an installed package, backups and record first; returns the record's folder.

    Raises UserError, with nothing changed and nothing left behind, when a folder can't be written, a file is a link or
    is no longer what the change was made from, or another change is recorded there.
    """
    changed = list(changed)
    folder = package_parent / IN_PLACE_FOLDER
    for file in changed:
        _refuse_unwritable((package_parent / file.file).parent)
        _refuse_unexpected(package_parent / file.file, file.before)
    _refuse_unwritable(package_parent)
    try:
        folder.mkdir()
    except FileExistsError:
        raise UserError(f"{folder} holds a change already; `breakeven revert {package_parent}` takes it back") from None
    try:
        for file in changed:
            backup = artifacts.write_bytes(folder / "backup" / file.file, file.before)
            _copy_times((package_parent / file.file), backup)
        entries = [_entry(file, f"backup/{file.file}") for file in changed]
        artifacts.write_json(folder / RECORD_NAME, {"mode": "in-place", **about, "files": entries})
        for file in changed:
            _replace(package_parent / file.file, file.after)
    except OSError as error:
        _take_back_in_place(folder)
        raise UserError(f"{package_parent} can't be changed ({error.strerror}); it is as it was") from None
    return folder


def take_back(path: Path) -> dict[str, Any]:
    """Undo the change recorded at ``path``: an overlay folder, or the folder of a package changed in place.

    Returns ``{"status": "reverted" | "nothing-to-do" | "refused", "path", "mode", "files": [...], "reasons": [...]}``.
    Refuses, touching nothing, when one of the files was edited since the change. Works on a change that was cut short,
    and a second time. Raises UserError when ``path`` is a file or can't be written.
    """
    if path.is_file():
        raise UserError(f"{path} is a file; name the overlay's folder, or the folder that holds the changed package")
    path = path.resolve()
    folder = path / IN_PLACE_FOLDER if (path / IN_PLACE_FOLDER).is_dir() else path
    if folder.name == IN_PLACE_FOLDER:
        return _take_back_in_place(folder)
    if (folder / RECORD_NAME).is_file():
        return _take_back_overlay(folder)
    cut_short = [rest for rest in (_beside(path, "building"), _beside(path, "leaving")) if rest.is_dir()]
    for rest in cut_short:
        _remove(rest)
    if cut_short:
        return _outcome("reverted", path, "overlay")
    return _outcome("nothing-to-do", path, None, reasons=[f"no change is recorded at {path}"])


def _take_back_overlay(folder: Path) -> dict[str, Any]:
    record = _read_record(folder / RECORD_NAME, "mode", "files", "hook_sha256")
    expected = {folder / item["kept_in"]: item["sha256_after"] for item in record["files"]}
    expected[folder / HOOK_NAME] = record["hook_sha256"]
    present = {file for file in folder.rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    edited = [file for file, digest in expected.items() if file in present and sha256(file.read_bytes()) != digest]
    strange = sorted(present - set(expected) - {folder / RECORD_NAME})
    reasons = [f"{file} was edited since the overlay was made" for file in edited]
    reasons += [f"{file} is not part of the overlay" for file in strange]
    if reasons:
        return _outcome("refused", folder, "overlay", reasons=reasons)
    leaving = _beside(folder, "leaving")
    try:
        _remove(leaving)
        os.replace(folder, leaving)  # from here on it has no effect
        _remove(leaving)
    except OSError as error:
        raise UserError(f"{folder} can't be removed: {error.strerror}") from None
    return _outcome("reverted", folder, "overlay", files=[item["file"] for item in record["files"]])


def _take_back_in_place(folder: Path) -> dict[str, Any]:
    package_parent = folder.parent
    _refuse_unwritable(package_parent)
    restored = []
    if (folder / RECORD_NAME).is_file():  # without it the change ended before it touched the package
        files = _read_record(folder / RECORD_NAME, "mode", "files")["files"]
        reasons = [reason for item in files for reason in _why_not_restorable(folder, item)]
        if reasons:
            return _outcome("refused", package_parent, "in-place", reasons=reasons)
        for item in files:
            file, backup = package_parent / item["file"], folder / item["kept_in"]
            _new_name(file).unlink(missing_ok=True)
            if sha256(file.read_bytes()) != item["sha256_before"]:
                _refuse_unwritable(file.parent)
                _replace(file, backup.read_bytes(), times_of=backup)
                restored.append(item["file"])
        (folder / RECORD_NAME).unlink()
    shutil.rmtree(folder)
    return _outcome("reverted", package_parent, "in-place", files=restored)


def _read_record(file: Path, *keys: str) -> dict[str, Any]:
    record = artifacts.read_json(file)
    if not set(keys) <= record.keys():
        raise UserError(f"{file} is no record of a change to SGLang; nothing was touched")
    return record


def _why_not_restorable(folder: Path, item: dict[str, str]) -> list[str]:
    file, backup = folder.parent / item["file"], folder / item["kept_in"]
    if not file.is_file():
        return [f"{file} is gone since the change; install SGLang again and remove {folder}"]
    digest = sha256(file.read_bytes())
    if digest not in (item["sha256_before"], item["sha256_after"]):
        return [f"{file} was edited since the change (sha256 {digest}); the file as it was is kept in {backup}"]
    if digest == item["sha256_after"] and (
        not backup.is_file() or sha256(backup.read_bytes()) != item["sha256_before"]
    ):
        return [f"the backup {backup} is not the file that was changed; install SGLang again"]
    return []


def _replace(file: Path, content: bytes, times_of: Path | None = None) -> None:
    """Put new bytes in a file's place in one step, with its mode and owner (and another file's times)."""
    before = file.stat()
    new = _new_name(file)
    with new.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    new.chmod(before.st_mode & 0o7777)
    if os.geteuid() == 0:
        os.chown(new, before.st_uid, before.st_gid)
    if times_of is not None:
        _copy_times(times_of, new)
    os.replace(new, file)


def _copy_times(source: Path, target: Path) -> None:
    """Compiled files are matched to their source by its time: one that comes back should find its own again."""
    times = source.stat()
    os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))


def _beside(folder: Path, state: str) -> Path:
    return folder.with_name(f".{folder.name}.{state}")


def _remove(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)


def _new_name(file: Path) -> Path:
    return file.with_name(f".{file.name}{NEW_SUFFIX}")


def _refuse_unwritable(folder: Path) -> None:
    """Try it: permission bits tell nothing of a read-only mount, nor of what root may do."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".breakeven-try."):
            pass
    except OSError as error:
        raise UserError(
            f"{folder} can't be written ({error.strerror}); nothing was changed. Use --mode overlay, which leaves the "
            "package untouched, or run as the owner of that folder"
        ) from None


def _refuse_unexpected(file: Path, before: bytes) -> None:
    if file.is_symlink():
        raise UserError(f"{file} is a link into another place, which other environments may share; use --mode overlay")
    if file.read_bytes() != before:
        raise UserError(f"{file} changed while it was being worked on; run the command again")


def _entry(changed: ChangedFile, kept_in: str) -> dict[str, str]:
    return {
        "module": changed.module,
        "file": changed.file,
        "kept_in": kept_in,
        "sha256_before": sha256(changed.before),
        "sha256_after": sha256(changed.after),
    }


def _holds(folder: Path, record: dict[str, Any]) -> bool:
    """Whether a whole overlay of just this change, with this hook, is there."""
    if not (folder / RECORD_NAME).is_file():
        return False
    found = artifacts.read_json(folder / RECORD_NAME)
    kept = {item["kept_in"]: item["sha256_after"] for item in record["files"]} | {HOOK_NAME: record["hook_sha256"]}
    return all(found.get(key) == record[key] for key in ("files", "hook_sha256")) and all(
        (folder / file).is_file() and sha256((folder / file).read_bytes()) == digest for file, digest in kept.items()
    )


def _hook_source() -> bytes:
    return Path(overlay_hook.__file__).read_bytes()


def _outcome(
    status: str, path: Path, mode: str | None, *, files: list[str] | None = None, reasons: list[str] | None = None
) -> dict[str, Any]:
    return {"status": status, "path": str(path), "mode": mode, "files": files or [], "reasons": reasons or []}
