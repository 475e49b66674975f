"""Two runs side by side: what differs in machine and parameters, and which cells changed by more than their spread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from breakeven.analysis import results
from breakeven.errors import UserError

Run = tuple[Mapping[str, Any], Mapping[str, Any]]
NOT_OF_THE_MEASUREMENT = ("run_dir", "resume", "records")
SERVED = ("model", "dtype", "tp")
OF_THE_MEASUREMENT = (*SERVED, "context_length", "prompts", "kinds")
"""Parameters in which a cell of one name is another cell; SERVED: as the servers told them."""


def compare(first: Run, second: Run) -> dict[str, Any]:
    """Rows for a page: machine and parameters that differ, cells of both runs, cells of one alone, both answers.

    A run is its ``run.json`` and its ``breakeven.json``. Where the machines differ, or one is not recorded, or the runs
    did not measure the same (``unlike``), no cell gets a verdict. Raises UserError when a run holds no results of its
    own.
    """
    for run, result in (first, second):
        if not result:
            raise UserError(f"run {run.get('run_id', 'given')} has no breakeven.json: there is nothing to compare")
        if results.is_example(result):
            raise UserError(f"run {run.get('run_id', 'given')} measured nothing itself: there is nothing to compare")
    differing = _machine(first[1]["machine"], second[1]["machine"])
    unlike = _unlike(first, second)
    rates = [{row["cell"]: row for row in result["cells"] if row["kind"] == "all"} for _, result in (first, second)]
    speedups = [{row["cell"]: row for row in result["comparisons"]} for _, result in (first, second)]
    common = [cell for cell in rates[0] if cell in rates[1]]
    refused = "another machine" if differing else f"not comparable: {unlike}" if unlike else ""
    return {
        "machine": differing,
        "unlike": unlike,
        "parameters": _parameters(first[0], second[0]),
        "answers": [result["answer"]["sentence"] for _, result in (first, second)],
        "cells": [_cell(cell, rates, speedups, refused) for cell in common],
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


def _unlike(first: Run, second: Run) -> str:
    """Names of what makes two runs measure different things, as far as both tell; empty where nothing does."""
    asked = [run.get("parameters", {}) for run, _ in (first, second)]
    served = [{name: (result["setting"] or {}).get(name) for name in SERVED} for _, result in (first, second)]
    found = [
        name
        for ours, theirs in (asked, served)
        for name in OF_THE_MEASUREMENT
        if name in ours and name in theirs and ours[name] != theirs[name]
    ]
    return ", ".join(dict.fromkeys(found))


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = dict.fromkeys((*ours, *theirs))
    rows = [{"name": name, "first": ours.get(name), "second": theirs.get(name)} for name in names]
    return [
        {"name": row["name"], "first": str(row["first"]), "second": str(row["second"])}
        for row in rows
        if row["first"] != row["second"]
    ]


def _cell(cell: str, rates: list[dict[str, Any]], speedups: list[dict[str, Any]], refused: str) -> dict[str, Any]:
    ours, theirs = (_interval(rate[cell]) for rate in rates)
    change = ours["estimate"] / theirs["estimate"]
    # Half widths of log rates add as squares: the two runs' restarts are independent of each other.
    half = math.hypot(*(math.log(each["high"] / each["low"]) / 2 for each in (ours, theirs)))
    low, high = change * math.exp(-half), change * math.exp(half)
    verdict = "faster" if low > 1 else "slower" if high < 1 else "can't be told apart"
    if any(rate[cell].get("launch_noise_assumed") for rate in rates):
        verdict += ", launch noise assumed"
    return {
        "cell": cell,
        "first": ours,
        "second": theirs,
        "change": {"estimate": change, "low": low, "high": high},
        "verdict": refused or verdict,
        "first_speedup": (speedups[0].get(cell) or {}).get("speedup"),
        "second_speedup": (speedups[1].get(cell) or {}).get("speedup"),
    }


def _interval(row: Mapping[str, Any]) -> dict[str, float]:
    return {"estimate": row["tok_s"], "low": row["tok_s_low"], "high": row["tok_s_high"]}
