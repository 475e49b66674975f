"""Which gates stand between a GPU and FlashInfer's fused all-reduce + RMSNorm in SGLang, and how they are set."""

from breakeven.gates.atlas import ATLAS_ARCHS, atlas
from breakeven.gates.verdict import read_gates
from breakeven.gates.words import COLUMNS, explain, headline

__all__ = ["ATLAS_ARCHS", "COLUMNS", "atlas", "explain", "headline", "read_gates"]
