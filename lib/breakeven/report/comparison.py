"""Two runs side by side: what differs in machine and parameters, and which cells changed by more than their spread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from breakeven.errors import UserError

Run = tuple[Mapping[str, Any], Mapping[str, Any]]
NOT_OF_THE_MEASUREMENT = ("run_dir", "resume", "records")


def compare(first: Run, second: Run) -> dict[str, Any]:
    """Rows for a page: machine and parameters that differ, cells of both runs, cells of one alone, both answers.

    A run is its ``run.json`` and its ``breakeven.json``. Where the machines differ, or one is not recorded, no cell
    gets a verdict. Raises UserError when a run holds no results.
    """
    for run, result in (first, second):
        if not result:
            raise UserError(f"run {run.get('run_id', 'given')} has no breakeven.json: there is nothing to compare")
    differing = _machine(first[1]["machine"], second[1]["machine"])
    rates = [{row["cell"]: row for row in result["cells"] if row["kind"] == "all"} for _, result in (first, second)]
    speedups = [{row["cell"]: row for row in result["comparisons"]} for _, result in (first, second)]
    common = [cell for cell in rates[0] if cell in rates[1]]
    return {
        "machine": differing,
        "parameters": _parameters(first[0], second[0]),
        "answers": [result["answer"]["sentence"] for _, result in (first, second)],
        "cells": [_cell(cell, rates, speedups, alike=not differing) for cell in common],
        "only": sorted(set(rates[0]) ^ set(rates[1])),
    }


def _machine(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if not first or not second:
        return [{"name": "machine", "first": _known(first), "second": _known(second)}]
    return _differing(first, second)


def _known(machine: Mapping[str, Any] | None) -> str:
    return "recorded" if machine else "not recorded"


def _parameters(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[dict[str, Any]]:
    ours, theirs = (run.get("parameters", {}) for run in (first, second))
    return [row for row in _differing(ours, theirs) if row["name"] not in NOT_OF_THE_MEASUREMENT]


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = dict.fromkeys((*ours, *theirs))
    rows = [{"name": name, "first": ours.get(name), "second": theirs.get(name)} for name in names]
    return [
        {"name": row["name"], "first": str(row["first"]), "second": str(row["second"])}
        for row in rows
        if row["first"] != row["second"]
    ]


def _cell(cell: str, rates: list[dict[str, Any]], speedups: list[dict[str, Any]], *, alike: bool) -> dict[str, Any]:
    ours, theirs = (_interval(rate[cell]) for rate in rates)
    change = ours["estimate"] / theirs["estimate"]
    # Half widths of log rates add as squares: the two runs' restarts are independent of each other.
    half = math.hypot(*(math.log(each["high"] / each["low"]) / 2 for each in (ours, theirs)))
    low, high = change * math.exp(-half), change * math.exp(half)
    verdict = "faster" if low > 1 else "slower" if high < 1 else "can't be told apart"
    return {
        "cell": cell,
        "first": ours,
        "second": theirs,
        "change": {"estimate": change, "low": low, "high": high},
        "verdict": verdict if alike else "another machine",
        "first_speedup": (speedups[0].get(cell) or {}).get("speedup"),
        "second_speedup": (speedups[1].get(cell) or {}).get("speedup"),
    }


def _interval(row: Mapping[str, Any]) -> dict[str, float]:
    return {"estimate": row["tok_s"], "low": row["tok_s_low"], "high": row["tok_s_high"]}
