"""The fusion change: open SGLang's gates for an architecture, prove that it took, take it back."""

from breakeven.fusion.change import patch, revert
from breakeven.fusion.compiled import prove_compiled
from breakeven.fusion.grades import all_grades
from breakeven.fusion.proof import prove_active, prove_imported
from breakeven.fusion.proving import prove
from breakeven.fusion.reports import evidence
from breakeven.fusion.static import prove_static
from breakeven.fusion.words import commands, explain, findings

__all__ = [
    "all_grades",
    "commands",
    "evidence",
    "explain",
    "findings",
    "patch",
    "prove",
    "prove_active",
    "prove_compiled",
    "prove_imported",
    "prove_static",
    "revert",
]
