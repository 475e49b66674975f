"""What it means that two runs of the same parameters give the same verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from breakeven import analysis, artifacts
from breakeven.config import BreakEvenSettings

GATES = ("verdict", "patchable", "auto_enabled", "admitted", "available", "backend")
RULE = ("level", "method", "restarts", "prompts")
"""How an interval was made; the degrees of freedom in the method's words are estimates, and left out."""


def assert_the_same_gates(one: Path, other: Path) -> None:
    first, second = (artifacts.read_json(run / "gates.json") for run in (one, other))
    assert [first[key] for key in GATES] == [second[key] for key in GATES]


def assert_the_same_answers(one: Path, other: Path) -> None:
    """The same launches with the same fate, and of every request the same text after as many verifies."""
    assert _launches(one) == _launches(other)
    assert _answers(one) == _answers(other)


def assert_no_verdict_against_the_other(one: Path, other: Path) -> None:
    """The same arms, judged by the same rule on as many restarts and prompts, over all and by kind.

    Rates are measured anew each time. Near a boundary one run may decide what the other can't distinguish, and that is
    no contradiction; that an arm pays in one run and not in the other is, and so is a verdict in one alone.
    """
    first, second = _verdicts(one), _verdicts(other)
    assert first.keys() == second.keys() and first
    for arm, (verdict, rule) in first.items():
        other_verdict, other_rule = second[arm]
        assert rule == other_rule, arm
        assert {verdict, other_verdict} != {"pays", "does-not-pay"}, arm
        assert (verdict == "needs-more") == (other_verdict == "needs-more"), arm


def _launches(run: Path) -> list[tuple[Any, ...]]:
    rows = artifacts.read_json(run / "cells.json")["cells"]
    keys = ("cell", "restart", "status", "failure", "requests", "errors", "degenerate", "accept_length")
    return sorted(tuple(row.get(key) for key in keys) for row in rows)


def _answers(run: Path) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    complete = {row["launch"] for row in artifacts.read_json(run / "cells.json")["cells"]}
    rows = [row for row in artifacts.read_jsonl(run / "samples.jsonl") if row["launch"] in complete]
    return {(row["cell"], row["restart"], row["prompt_id"]): (row["output_ids"], row["verify_ct"]) for row in rows}


def _verdicts(run: Path) -> dict[tuple[str, str | None], tuple[str, Any]]:
    result = analysis.analyse(analysis.load(run), BreakEvenSettings(run_dir=str(run)))
    found = {}
    for row in [*result["comparisons"], *result["by_kind"]]:
        rule = {key: row["speedup"][key] for key in RULE} if row["speedup"] else {}
        rule["method"] = "".join(letter for letter in rule.get("method", "") if not letter.isdigit())
        found[row["cell"], row["kind"]] = (row["verdict"], rule)
    return found
