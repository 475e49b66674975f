"""Dialogues as token ids: what is kept, what is dropped, and how they lie on disk."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

OVERLAP_WORDS = 8
"""A training prompt that shares this many consecutive words with a measured prompt is dropped."""
LONGEST_PERIOD = 32
REPEATS_KEPT = 3


@dataclass(frozen=True)
class Dialogue:
    """One prompt and its answer; ``ids[:start]`` is the prompt as the chat template renders it."""

    kind: str
    ids: list[int]
    start: int

    @property
    def answer(self) -> list[int]:
        return self.ids[self.start :]


def word_ngrams(text: str, n: int = OVERLAP_WORDS) -> set[tuple[str, ...]]:
    """All runs of ``n`` consecutive words, lower-case, punctuation aside."""
    found = re.findall(r"\w+", text.lower())
    return {tuple(found[i : i + n]) for i in range(len(found) - n + 1)}


class Measured:
    """The prompts that the suite measures on, which training must not have seen."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = {_plain(text) for text in texts}
        self.ngrams = set().union(*map(word_ngrams, self.texts))

    def overlaps(self, text: str) -> bool:
        """Whether a text is a measured prompt, but for case and punctuation, or shares a long run of words with one."""
        return _plain(text) in self.texts or not self.ngrams.isdisjoint(word_ngrams(text))


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def without_loop(answer: Sequence[int]) -> list[int]:
    """The answer up to where it has said the same thing three times in a row.

    A greedy small model falls into loops; they are easy to predict, teach nothing, and would fill the corpus.
    """
    tokens = np.asarray(answer)
    if len(tokens) < 16 or len({*zip(answer, answer[1:], answer[2:], answer[3:], strict=False)}) > 0.6 * len(tokens):
        return list(answer)  # most answers: too varied to hold a loop worth cutting
    end = len(tokens)
    for period in range(1, min(LONGEST_PERIOD, len(tokens) // REPEATS_KEPT) + 1):
        needed = max(period * (REPEATS_KEPT - 1), 8)  # equal pairs in a row that make a loop
        run = 0
        for i, same in enumerate(tokens[period:] == tokens[:-period]):
            run = run + 1 if same else 0
            if run >= needed:
                end = min(end, i + period + 1)
                break
    return list(answer[:end])


def save(path: Path, dialogues: Sequence[Dialogue]) -> None:
    """Write one shard atomically: an interrupted run leaves whole shards only."""
    temporary = path.with_suffix(".partial")
    with temporary.open("wb") as file:
        np.savez(
            file,
            ids=np.concatenate([np.asarray(d.ids, dtype=np.int32) for d in dialogues]),
            lengths=np.asarray([len(d.ids) for d in dialogues], dtype=np.int32),
            starts=np.asarray([d.start for d in dialogues], dtype=np.int32),
            kinds=np.asarray([d.kind for d in dialogues]),
        )
    os.replace(temporary, path)


def load(path: Path) -> list[Dialogue]:
    """Read a shard that ``save`` wrote."""
    with np.load(path) as shard:
        parts = np.split(shard["ids"], np.cumsum(shard["lengths"])[:-1])
        rows = zip(shard["kinds"].tolist(), parts, shard["starts"].tolist(), strict=True)
        return [Dialogue(kind, ids.tolist(), start) for kind, ids, start in rows]
