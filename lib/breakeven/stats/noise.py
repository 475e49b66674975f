"""What runs of the very same server differ by, learned from A/A pairs: two cells that are one and the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from breakeven.stats.samples import Sweep


@dataclass(frozen=True)
class Noise:
    """What runs of the very same server differ by, as log ratios of rates.

    ``floor``: what that makes of a mean over the restarts; ``widest``: any two launches of them.
    """

    floor: float
    widest: float


def noise_of(sweep: Sweep, aa_pairs: Sequence[tuple[str, str]]) -> Noise | None:
    """What two cells that are the same differ by; None without such a pair.

    The floor of a mean over n restarts is the larger of the two means' difference and of the widest single pair over
    the root of n: a quiet mean of two loud pairs is luck.
    """
    floors, widest = [], 0.0
    for first, second in aa_pairs:
        if first not in sweep.cells or second not in sweep.cells:
            continue
        a, b = sweep.cells.index(first), sweep.cells.index(second)
        both = ~np.isnan(sweep.seconds[a]) & ~np.isnan(sweep.seconds[b])
        if not both.any():
            continue
        rounds = np.nonzero(both.any(axis=1))[0]
        rates = np.array([[_log_rate(sweep, cell, r, both[r]) for r in rounds] for cell in (a, b)])
        whole = [math.log(sweep.tokens[cell][both].sum() / sweep.seconds[cell][both].sum()) for cell in (a, b)]
        pairs = np.abs(rates[0] - rates[1])
        floors.append(max(abs(whole[0] - whole[1]), float(pairs.max()) / math.sqrt(len(rounds))))
        widest = max(widest, float(np.ptp(rates)))
    return Noise(max(floors), widest) if floors else None


def _log_rate(sweep: Sweep, cell: int, restart: int, use: np.ndarray) -> float:
    return math.log(sweep.tokens[cell, restart, use].sum() / sweep.seconds[cell, restart, use].sum())
