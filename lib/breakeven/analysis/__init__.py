"""From the samples of a run to its answer: arms compared, cycles taken apart, doubts, findings in words.

Knows nothing of pages.
"""

from breakeven.analysis.results import Measured, analyse, load, save

__all__ = [
    "Measured",
    "analyse",
    "load",
    "save",
]
