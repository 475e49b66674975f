"""Releases of SGLang and FlashInfer, fetched with pip into the cache and read without being installed.

pip's own configuration counts. A failed fetch leaves the cache as it was, and a damaged entry is fetched again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from breakeven.artifacts import read_json, write_json
from breakeven.errors import UserError, did_you_mean, one_line
from breakeven.sources.archives import unpack

DISTRIBUTIONS = {"sglang": "sglang", "flashinfer": "flashinfer-python"}
_PIP_TIMEOUT_S = 600


def fetched(package: str, version: str, cache: Path) -> Path:
    """The folder that holds a release's package, fetched where the cache has it not. Raises UserError."""
    distribution = DISTRIBUTIONS[package]
    if not re.fullmatch(r"[0-9][0-9A-Za-z.+!_-]*", version):
        raise UserError(f"pypi:{version} names no release; write a version, such as pypi:0.5.23")
    home = cache / "sources" / f"{distribution}-{version}"
    if not _intact(home):
        _fetch(package, version, home)
    return (home / "tree").resolve()


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
        unpack(package, archive, tree)
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
    known = list(dict.fromkeys(listed for reason in reasons for listed in _versions_listed(reason)))
    if known and version not in known:
        near = did_you_mean(version, known)
        suggestion = near if "did you mean" in near else f"; the newest are {', '.join(known[-5:])}"
        return f"{distribution} has no release {version}{suggestion}"
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


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tree_sha256(tree: Path) -> str:
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(tree):
        folders.sort()
        for name in sorted(names):
            file = f"{folder}/{name}"
            with open(file, "rb") as handle:  # noqa: PTH123 as in Source.read
                content = handle.read()
            digest.update(f"{file.removeprefix(f'{tree}/')}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()
