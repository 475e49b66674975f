"""Which comparisons an answer is about: the best of a condition, what is still open beside it, which verdict counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
DECIDED = ("pays", "does-not-pay")
BASELINE = "the baseline"
_CONDITION = ("concurrency", "temperature", "context_tokens")


def by_condition(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by concurrency, temperature and prompt length, in the order in which these were measured."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=_condition_of):
        groups.setdefault(_condition_of(row), []).append(row)
    return list(groups.values())


def of_one_condition(first: Row, second: Row) -> bool:
    """Whether two rows were measured at the same concurrency, temperature and prompt length."""
    return _condition_of(first) == _condition_of(second)


def _condition_of(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _CONDITION)


def best_of(judged: Sequence[Row]) -> Row:
    """The fastest of the cells that pay; where none does, of those that pay on these prompts; else of all, but for
    undecided ones that rest on fewer servers than another: of single launches the fastest is luck."""
    for key in ("verdict", "verdict_same_prompts"):
        paying = [row for row in judged if row[key] == "pays"]
        if paying:
            return max(paying, key=_speedup)
    most = max((row["restarts"] for row in judged if not _is_decided(row)), default=0)
    return max((row for row in judged if _is_decided(row) or row["restarts"] == most), key=_speedup)


def still_open(judged: Sequence[Row], best: Row) -> list[Row]:
    """Which of its condition may pay beside a best arm that is not seen to, the most promising first: where it does not
    pay, all of which that is not shown; where it is undecided, what looks faster and rests on fewer servers."""
    key = decided_key(best)
    if best[key] == "pays":
        return []
    alike = next(rows for rows in by_condition(judged) if best in rows)
    others = [row for row in alike if row is not best and row[key] not in DECIDED]
    if best[key] not in DECIDED:
        others = [row for row in others if _speedup(row) > _speedup(best)]
    return sorted(others, key=_speedup, reverse=True)


def _is_decided(row: Row) -> bool:
    return row[decided_key(row)] in DECIDED


def _speedup(row: Row) -> float:
    return float(row["speedup"]["estimate"])


def reference_of(row: Row) -> str:
    """The baseline that a row is compared with, in words."""
    return str(row.get("reference", BASELINE))


def decided_key(row: Row) -> str:
    """The verdict that words rest on: for other prompts where that is known, else for these very prompts."""
    these = row["verdict"] not in DECIDED and row["verdict_same_prompts"] in DECIDED
    return "verdict_same_prompts" if these else "verdict"


def deciding_interval(row: Row, key: str) -> Row:
    """The interval that a verdict of this key (`decided_key`) rests on."""
    return row["speedup" if key == "verdict" else "speedup_same_prompts"]  # type: ignore[no-any-return]
