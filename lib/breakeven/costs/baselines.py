"""Whose baseline it is: what the texts of a row, and rows beside each other, say about where a baseline comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from breakeven.costs.figures import Figures, Finding
from breakeven.costs.readings import apart, percent

ADDRESS = re.compile(r"(?:https?://|www\.)\S+|\b[\w-]+(?:\.[\w-]+)+/\S*", re.IGNORECASE)
PLACE = r"(?:run|session|server|box|machine|host|node|gpu|day|release|version|set-?up|source|paper|repo)s?"
ANOTHER = re.compile(
    rf"\b(?:another|other|different|separate)\s+{PLACE}\b|\bnot\b[^,;.]*\b(?:same|own)\b", re.IGNORECASE
)
OWN = re.compile(rf"\b(?:same|own|identical|paired|ours)\b|\b(?:one|this)[\s-]+{PLACE}\b", re.IGNORECASE)
FROM = re.compile(r"\bbaseline\b[^+&;,]*\b(?:from|of|by)\b(?!\W*(?:\d|us\b|hand\b))", re.IGNORECASE)
"""``baseline from X``; an amount (``baseline of 82 tok/s``) is no source."""
SOURCE = re.compile(r"\b(?:docs?|documentation|readme|blog|paper|issue|pr|card|repo|wiki|forum|thread|report)\b|#\d")
PLAIN = {
    *("a", "the", "its", "and", "with", "without", "no", "vs", "versus", "measured", "reference"),
    *("plain", "vanilla", "greedy", "autoregressive", "no-spec", "non-spec", "non-speculative"),
}
"""Words before "baseline" that name no source."""


def origin(figures: Figures) -> Iterable[Finding]:
    """Whether the texts of a row say that its baseline is of another run than its rate with speculation."""
    source, base_source = (figures.notes.get(name, "") for name in ("source", "base_source"))
    told_apart = base_source and source and _plain(base_source) != _plain(source) and not _says_one_run(base_source)
    if told_apart or _says_another(base_source):
        yield _of_another_run(f"base_source is {base_source!r} and source is {source!r}", "base_source")
    elif _says_another(source) and "baseline" in source.casefold():
        yield _of_another_run(f"source says {source!r}", "source")
    elif _names_two(source):
        yield _of_another_run(f"source says {source!r}", "source", sure=False)


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.casefold()))


def _says_another(text: str) -> bool:
    return bool(ANOTHER.search(ADDRESS.sub(" ", text)))


def _says_one_run(text: str) -> bool:
    return bool(OWN.search(ADDRESS.sub(" ", text))) and not _says_another(text)


def _names_two(source: str) -> bool:
    """``X + docs baseline``, ``X, docs baseline``, ``baseline from X``; not where it says that they are of one run."""
    text = ADDRESS.sub(" ", source).casefold()
    return not _says_one_run(source) and (bool(FROM.search(text)) or _joins_another_source(text))


def _joins_another_source(text: str) -> bool:
    pieces = re.findall(r"(^|[+&;,(])([^+&;,()]*)", text)
    for joint, piece in pieces:
        before, baseline, _ = piece.partition("baseline")
        if not baseline or len(pieces) == 1:
            continue
        if SOURCE.search(before) or (joint in ("+", "&") and set(re.findall(r"[\w-]+", before)) - PLAIN):
            return True
    return False


def _of_another_run(evidence: str, column: str, *, sure: bool = True) -> Finding:
    what = "the baseline is of another run, so" if sure else "the baseline seems to be of another run; if it is,"
    text = f"{evidence}: {what} speed-up and AL* compare two machines or set-ups, not two arms"
    return Finding("baseline-of-another-run", text, ("base_tok_s", column))


def examine_together(rows: Sequence[Figures]) -> dict[str, list[Finding]]:
    """Findings that only a comparison of rows can show, by row id.

    Rows that name the same source, hardware, model and TP share one server, so that per batch and workload there is one
    baseline, and not the same one at two batches. Rows that name none of these are left alone.
    """
    groups: dict[tuple[str, ...], list[Figures]] = {}
    for row in rows:
        key = tuple(row.notes.get(name, "") for name in ("source", "hardware", "model", "tp"))
        if row.base_tok_s and row.notes.get("source") and row.notes.get("model"):
            groups.setdefault(key, []).append(row)
    found = {row.id: list(_beside(row, group))[:1] for group in groups.values() for row in group}
    return {name: findings for name, findings in found.items() if findings}


def _beside(row: Figures, group: Iterable[Figures]) -> Iterable[Finding]:
    for other in group:
        assert row.base_tok_s is not None and other.base_tok_s is not None
        if (row.batch or 1.0) == (other.batch or 1.0):
            if apart(row.base_tok_s, other.base_tok_s):
                text = (
                    f"base_tok_s {row.base_tok_s:g} differs by {percent(row.base_tok_s, other.base_tok_s)} from row "
                    f"{other.id!r} of the same source, model and batch: another workload, or another run? A speed-up "
                    "holds only against a baseline of its own workload and run"
                )
                yield Finding("baselines-differ", text, ("base_tok_s",))
        elif row.base_tok_s == other.base_tok_s:
            evidence = f"row {other.id!r} has the same baseline at another batch ({other.batch or 1:g})"
            yield _of_another_run(evidence, "batch")
