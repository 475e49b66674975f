"""What a drafter is worth: accept length by walking through answers as a server does, cycle by cycle."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def cycle_chains(chains: Sequence[int], steps: int) -> list[int]:
    """Correct drafts of each cycle when one answer is decoded.

    ``chains[i]`` is how many drafts in a row are right when answer token ``i`` is the last one known. A cycle with c
    right drafts emits c + 1 tokens (the bonus token included), so the next one starts at i + c + 1. Averaging over
    positions instead would count easy stretches too often: there a server needs few cycles.
    """
    taken = []
    i = 0
    while i < len(chains):
        taken.append(min(chains[i], steps))
        i += taken[-1] + 1
    return taken


def summary(answers: Iterable[Sequence[int]], steps: int) -> dict[str, Any]:
    """Pooled over answers: accept length (tokens after the first over cycles) and acceptance by position.

    ``by_position[k]`` is the share of cycles whose first k + 1 drafts were all accepted, ``given_previous[k]`` the
    share among those whose first k were. Without any cycle the figures are None.
    """
    tokens, taken = 0, []
    for chains in answers:
        tokens += len(chains)
        taken += cycle_chains(chains, steps)
    reached = [sum(c >= k for c in taken) for k in range(steps + 1)]
    return {
        "tokens": tokens,
        "cycles": len(taken),
        "accept_length": round(tokens / len(taken), 3) if taken else None,
        "by_position": [round(n / len(taken), 3) if taken else None for n in reached[1:]],
        "given_previous": [round(n / m, 3) if m else None for m, n in itertools.pairwise(reached)],
    }


def by_kind(kinds: Sequence[str], answers: Sequence[Sequence[int]], steps: int) -> Mapping[str, dict[str, Any]]:
    """``summary`` for each kind of prompt and for ``all``."""
    grouped: dict[str, list[Sequence[int]]] = {"all": list(answers)}
    for kind, chains in zip(kinds, answers, strict=True):
        grouped.setdefault(kind, []).append(chains)
    return {kind: summary(chains, steps) for kind, chains in grouped.items()}
