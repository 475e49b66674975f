"""Every grade of proof that this machine allows, for one change."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from breakeven.fusion.compiled import prove_compiled
from breakeven.fusion.grades import all_grades, graded
from breakeven.fusion.proof import prove_active, prove_imported


def prove(
    change: dict[str, Any],
    *,
    trace: Path | None = None,
    pythonpath: Sequence[Path] = (),
    build: bool = True,
    progress: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> list[dict[str, Any]]:
    """The grades of a change that ``patch`` made, in their order: what was reached, and why the others were not.

    ``trace`` is a profile of a server that ran with the change; ``pythonpath`` is what ``prove_imported`` takes.
    ``build`` and ``progress`` are those of ``prove_compiled``: a build takes minutes the first time. Raises UserError
    for no such trace.
    """
    if change["path"] is None:  # nothing was written
        return all_grades(change["proof"])
    found = [row for row in change["proof"] if row["proven"] is not None]
    found.append(_imported(change, pythonpath))
    found.append(_compiled(change, build, progress))
    if trace is not None:
        found.append(prove_active(trace))
    else:
        found.append(graded("active", None, ["it takes a trace of a server that ran with the change on such a GPU"]))
    return all_grades(found)


def _compiled(change: dict[str, Any], build: bool, progress: Callable[[str], None]) -> dict[str, Any]:
    origin = change["flashinfer"]["origin"]
    if origin is None:
        return graded("compiled", None, ["it is not known which FlashInfer goes with this SGLang"])
    return prove_compiled(change["arch"], origin, build=build, progress=progress)


def _imported(change: dict[str, Any], pythonpath: Sequence[Path]) -> dict[str, Any]:
    sglang = change["sglang"]
    if change["mode"] != "overlay":
        return graded("imported", None, ["the files were changed in place: there is no overlay to import them from"])
    if sglang["origin"] != "installed":
        return graded("imported", None, [f"it was made for {sglang['origin']}, which is not what this Python imports"])
    return prove_imported(Path(change["path"]), change["arch"], pythonpath=pythonpath)
