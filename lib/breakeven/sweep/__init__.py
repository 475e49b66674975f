"""Which launches a sweep makes, each one measured, its rows kept. Knows nothing of break-even verdicts."""

from breakeven.sweep.running import (
    CANARY_COLUMNS,
    COLUMNS,
    DECISION_COLUMNS,
    canary_rows,
    findings,
    plan,
    plan_in_words,
    results_of,
    run_sweep,
)

__all__ = [
    "CANARY_COLUMNS",
    "COLUMNS",
    "DECISION_COLUMNS",
    "canary_rows",
    "findings",
    "plan",
    "plan_in_words",
    "results_of",
    "run_sweep",
]
