"""Intervals and verdicts from samples of few server starts. Knows nothing of SGLang."""

from breakeven.stats.comparing import bootstrap_speedups, compare, summarise_cells
from breakeven.stats.conclusions import Comparison, without_data

__all__ = [
    "Comparison",
    "bootstrap_speedups",
    "compare",
    "summarise_cells",
    "without_data",
]
