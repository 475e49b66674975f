"""Which gates stand between a GPU and FlashInfer's fused all-reduce + RMSNorm in SGLang, and how they are set."""

from breakeven.gates.archs import ARCHS
from breakeven.gates.atlas import atlas
from breakeven.gates.reading import Reading, make_context, read_gates
from breakeven.gates.words import COLUMNS, explain, headline, quote, remedies

__all__ = [
    "ARCHS",
    "COLUMNS",
    "Reading",
    "atlas",
    "explain",
    "headline",
    "make_context",
    "quote",
    "read_gates",
    "remedies",
]
