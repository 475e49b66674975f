"""Answers that are stuck in a loop: an n-gram drafter predicts them at a rate that no real text has."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MAX_PERIOD = 64
MIN_LOOP_TOKENS = 24
MIN_LOOP_ROUNDS = 1.5
MIN_SLIP_COST = 6.0


def repetition(output_ids: Sequence[int]) -> float:
    """Share of an answer, 0 to 1, that only repeats what stood one period before it, for the worst period up to 64.

    Counted in the best contiguous stretch, less what its slips cost (see `_repeated_tokens`).
    """
    return max(_repeated_tokens(output_ids), default=0.0) / max(len(output_ids), 1)


def is_degenerate(output_ids: Sequence[int]) -> bool:
    """Whether an answer is stuck in a loop of up to 64 tokens, or was for a while.

    True when the repetition of some period lasts for 24 tokens and for one and a half rounds after the first. What is
    said twice lasts for one round; rows of a table or list share a frame, but differ in two places or more, and then
    nothing adds up. Seen with a small model (SmolLM2-135M, greedy, 146 answers): those that ended by themselves
    reached at most 0.7 of the threshold, those stuck until the token limit 1.2 to 4.5 of it.
    """
    repeated = _repeated_tokens(output_ids)
    return any(tokens >= max(MIN_LOOP_TOKENS, MIN_LOOP_ROUNDS * period) for period, tokens in enumerate(repeated, 1))


def _repeated_tokens(ids: Sequence[int]) -> list[float]:
    """For each period p from 1: matches ``ids[i] == ids[i - p]`` less the cost of slips, in the best stretch.

    A slip costs half a period, and at least six tokens: one in a round of eight or more, such as a counter that runs
    on, still leaves a gain, two in a round never do.
    """
    tokens = np.asarray(ids, dtype=np.int64)
    best = []
    for period in range(1, min(MAX_PERIOD, len(tokens) - 1) + 1):
        gain = np.where(tokens[period:] == tokens[:-period], 1.0, -max(MIN_SLIP_COST, period / 2))
        total = np.concatenate(([0.0], np.cumsum(gain)))
        best.append(float((total - np.minimum.accumulate(total)).max()))
    return best
