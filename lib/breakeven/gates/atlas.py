"""The map of verdicts, architecture by release."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache as remembered
from pathlib import Path
from typing import Any

from breakeven import artifacts
from breakeven.errors import UserError, one_line
from breakeven.gates.facts import Context
from breakeven.gates.reading import Reading, make_context
from breakeven.sources import archives, trees


def atlas(
    archs: Sequence[str],
    releases: Sequence[str],
    *,
    model_arch: str | None = "DeepseekV3ForCausalLM",
    tp: int | None = None,
    nnodes: int = 1,
    cache: Path | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """One row per release and architecture: ``release``, ``arch``, ``verdict``, and ``reason`` where there is none.

    Releases are versions of SGLang on the package registry. Their rows are cached until the reader itself changes; one
    that can't be read has the verdict ``unknown`` and says why, and the others are not affected.
    """
    contexts = {arch: make_context(arch, model_arch, tp, nnodes) for arch in archs}
    rows = []
    for release in releases:
        on_progress(f"SGLang {release}")
        verdicts = _verdicts(release, contexts, cache or artifacts.cache_root())
        rows += [{"release": release, "arch": arch, **verdicts[arch]} for arch in archs]
    return rows


def _verdicts(release: str, contexts: dict[str, Context], cache: Path) -> dict[str, dict[str, Any]]:
    kept = {arch: cache / "atlas" / f"{_key(release, context)}.json" for arch, context in contexts.items()}
    verdicts = {arch: found for arch, file in kept.items() if (found := _kept(file)) is not None}
    missing = [arch for arch in contexts if arch not in verdicts]
    try:
        reading = Reading.of(f"pypi:{release}", cache=cache) if missing else None
        for arch in missing:
            assert reading is not None
            verdicts[arch] = {"verdict": reading.judge(contexts[arch])["verdict"]}
            artifacts.write_json(kept[arch], verdicts[arch])
    except UserError as error:
        return {arch: verdicts.get(arch, {"verdict": "unknown", "reason": one_line(error)}) for arch in contexts}
    return verdicts


def _kept(file: Path) -> dict[str, Any] | None:
    try:
        return {"verdict": artifacts.read_json(file)["verdict"]}
    except (UserError, KeyError):
        return None


def _key(release: str, context: Context) -> str:
    """A file name that is another one where the release, the launch or the reader is another."""
    about = f"{reader_sha256()} {release} {context}"
    return f"{release}-{hashlib.sha256(about.encode()).hexdigest()[:16]}"


@remembered
def reader_sha256() -> str:
    """A hash of what makes a verdict: this package's files, and what finds and unpacks sources."""
    digest = hashlib.sha256()
    for file in sorted(
        [*Path(__file__).parent.rglob("*.py"), *(Path(str(module.__file__)) for module in (trees, archives))]
    ):
        digest.update(file.read_bytes())
    return digest.hexdigest()
