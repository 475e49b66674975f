"""The map of verdicts, architecture by release."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from breakeven import __version__, artifacts
from breakeven.errors import UserError, one_line
from breakeven.gates.verdict import Reading, make_context

ATLAS_ARCHS = ("sm80", "sm89", "sm90", "sm100", "sm103", "sm110", "sm120", "sm121")


def atlas(
    archs: Sequence[str],
    releases: Sequence[str],
    *,
    model_arch: str = "DeepseekV3ForCausalLM",
    tp: int = 8,
    cache: Path | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """One row per release and architecture: ``release``, ``arch``, ``verdict``, and ``reason`` where there is none.

    Releases are versions of SGLang on the package registry. A release's row is cached; one that can't be read has the
    verdict ``unknown`` and says why, and the others are not affected.
    """
    rows = []
    for release in releases:
        on_progress(f"SGLang {release}")
        verdicts = _verdicts(release, archs, model_arch, tp, cache or artifacts.cache_root())
        rows += [{"release": release, "arch": arch, **verdicts[arch]} for arch in archs]
    return rows


def _verdicts(release: str, archs: Sequence[str], model_arch: str, tp: int, cache: Path) -> dict[str, dict[str, Any]]:
    known_at = cache / "atlas" / f"{__version__}-{release}-{model_arch}-tp{tp}.json"
    known = artifacts.read_json(known_at) if known_at.exists() else {"verdicts": {}}
    verdicts: dict[str, dict[str, Any]] = known["verdicts"]
    missing = [arch for arch in archs if arch not in verdicts]
    if not missing:
        return verdicts
    try:
        reading = Reading.of(f"pypi:{release}", cache=cache)
        for arch in missing:
            verdict = reading.judge(arch, make_context(arch, model_arch, tp))
            verdicts[arch] = {"verdict": verdict["verdict"]}
    except UserError as error:
        return {arch: verdicts.get(arch, {"verdict": "unknown", "reason": one_line(error)}) for arch in archs}
    artifacts.write_json(known_at, {"verdicts": verdicts})
    return verdicts
