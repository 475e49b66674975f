"""Intervals and verdicts from samples of few server starts. Knows nothing of SGLang."""

from breakeven.stats.comparing import Question, bootstrap_speedups, compare, compare_together, summarise_cells
from breakeven.stats.conclusions import Comparison, without_data

__all__ = [
    "Comparison",
    "Question",
    "bootstrap_speedups",
    "compare",
    "compare_together",
    "summarise_cells",
    "without_data",
]
