"""Serves changed SGLang modules from the folder this file lies in, where it stands as ``sitecustomize.py``.

A folder that is first on PYTHONPATH can't hold a part of an installed package: Python takes a package whole, from the
first place that has it. What it can hold is ``sitecustomize``, which every interpreter started with that PYTHONPATH
runs before any other code: the server, and each child process that it spawns. This one puts a finder in front of the
import system that answers for the changed modules by their exact names, and for nothing else.

The finder fails loudly: when ``sglang`` is imported it checks that every file it stands in for is byte for byte the
file that the change was made from, and stops the import otherwise (an upgraded or edited SGLang would get stale
modules). It names each module that it serves on standard error, once a process: a server's log shows what took.

Nothing but the standard library: the server's Python may be another one than ours.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


class OverlayMismatchError(ImportError):
    """The SGLang that is being imported is not the one that this overlay was made from."""


class OverlayFinder:
    """A meta-path finder for the modules listed in ``record.json`` of a folder; every other name is left to Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changed: dict[str, Path] = {}  # module name -> the file that holds it

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The spec of a changed module, else None. Raises OverlayMismatchError where a file is not as recorded."""
        if name == "sglang" and not self.changed:
            self.changed = self._checked_files()
        file = self.changed.get(name)
        if file is None:
            return None
        print(f"breakeven overlay: pid {os.getpid()} imports {name} from {file}", file=sys.stderr, flush=True)
        return importlib.util.spec_from_file_location(name, file)

    def _checked_files(self) -> dict[str, Path]:
        record = self.folder / "record.json"
        try:
            files = json.loads(record.read_text(encoding="utf-8"))["files"]
        except (OSError, ValueError, KeyError) as error:
            raise OverlayMismatchError(f"breakeven overlay: {record} can't be read: {error}") from error
        package_parent = self._package_parent()
        if package_parent is None:
            return {}  # no SGLang here: Python says so itself
        for item in files:
            self._check(package_parent / item["file"], item["sha256_before"])
            self._check(self.folder / item["kept_in"], item["sha256_after"])
        return {item["module"]: self.folder / item["kept_in"] for item in files}

    def _package_parent(self) -> Path | None:
        """The folder that holds ``sglang``, as the other finders see it (an editable install brings its own)."""
        for finder in sys.meta_path:
            if type(finder).__name__ == type(self).__name__ or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec("sglang", None)
            if spec is not None and spec.submodule_search_locations:
                return Path(next(iter(spec.submodule_search_locations))).parent
        return None

    def _check(self, file: Path, expected: str) -> None:
        try:
            found = hashlib.sha256(file.read_bytes()).hexdigest()
        except OSError as error:
            found = f"unreadable, {error.strerror}"
        if found != expected:
            raise OverlayMismatchError(
                f"breakeven overlay: {file} is not the file that the overlay was made with (sha256 {found}, expected "
                f"{expected}): take {self.folder} off PYTHONPATH, or make it anew with `breakeven patch`"
            )


def run_hidden_sitecustomize(folder: Path) -> None:
    """Run the ``sitecustomize`` that ours hides: the first one in the places that come after ``folder``."""
    places = [Path(place).resolve() for place in sys.path]
    after = sys.path[places.index(folder) + 1 :] if folder in places else sys.path
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", after)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    here = Path(__file__).resolve().parent
    sys.meta_path.insert(0, OverlayFinder(here))
    run_hidden_sitecustomize(here)
