"""From the samples of a run to its answer: what notebook 05 shows and ``breakeven.json`` holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from breakeven import arms, artifacts, cautions, curves, cycle, machine, outlook, reported, stats, wording
from breakeven.config import BreakEvenSettings
from breakeven.errors import UserError
from breakeven.plots import Figure

EXAMPLE = Path(__file__).parent / "embedded" / "example"


@dataclass(frozen=True)
class Measured:
    """Samples of complete launches, every launch's row, where they come from, and what else the sweep told.

    ``here``: whether they were measured on this machine, so that its bandwidths may stand beside them.
    """

    samples: pd.DataFrame
    cells: list[dict[str, Any]]
    source: str
    machine: Mapping[str, Any]
    here: bool = False
    predictions: Sequence[Mapping[str, Any]] = ()

    @property
    def arms(self) -> dict[str, arms.Arm]:
        return arms.arms_of(self.cells)


def load(run_dir: Path, records: str = "none") -> Measured | None:
    """What notebook 04 left in a run folder; without any, the example that ships with the library, labelled as such.

    None where nothing was measured and there are recorded figures to judge instead. Raises UserError when the folder's
    files can't be read or hold no complete launch of the baseline.
    """
    folder = run_dir
    if not (run_dir / "cells.json").exists():
        if records != "none":
            return None
        folder = EXAMPLE
    content = artifacts.read_json(folder / "cells.json")
    cells = content["cells"]
    complete = {(row["launch"], row["cell"]) for row in cells if row["status"] == "ok"}
    rows = [row for row in artifacts.read_jsonl(folder / "samples.jsonl") if not row.get("error")]
    rows = [row for row in rows if (row["launch"], row["cell"]) in complete]
    baselines = {arm.name for arm in arms.arms_of(cells).values() if not arm.speculates}
    if not any(row["cell"] in baselines for row in rows):
        raise UserError(f"{folder} holds no complete launch of the baseline; run notebook 04 first")
    now = machine.fingerprint(machine.describe(artifacts.project_root()))
    here = folder == run_dir and content["machine"] == json.loads(json.dumps(now))
    source, predictions = _source(folder, content), content.get("predictions") or ()
    return Measured(pd.DataFrame(rows), cells, source, content["machine"], here, predictions)


def _source(folder: Path, content: Mapping[str, Any]) -> str:
    if folder != EXAMPLE:
        return "measured in this run"
    on = content["machine"]
    return f"a recorded example, measured on {on['cpu']} with {on['cores']} cores, not on this machine"


def analyse(measured: Measured | None, settings: BreakEvenSettings) -> dict[str, Any]:
    """Break-even per arm and kind of prompt, verdicts with intervals, curves, outlook, warnings, the answer in "
    "words."""
    told = None
    if settings.records != "none":
        told = reported.read(artifacts.project_root() / settings.records)
    if measured is None:
        if told is None:
            raise UserError("nothing was measured and no records are given: there is nothing to analyse")
        return _recorded_only(told)
    samples, arms_by_name = measured.samples, measured.arms
    comparisons = arms.compare_all(samples, arms_by_name, level=settings.level)
    comparisons.sort(key=lambda row: -((row["speedup"] or {}).get("estimate") or 0))
    by_kind = arms.compare_all(samples, arms_by_name, level=settings.level, by_kind=True)
    cycles = _named(cycle.cycle_rows(samples, measured.cells), arms_by_name)
    crossings = curves.by_concurrency(arms_by_name, comparisons)
    answer = wording.answer(comparisons, measured.source, settings.level)
    best = answer["best"]
    return {
        "source": measured.source,
        "machine": measured.machine,
        "answer": answer,
        "comparisons": comparisons,
        "by_kind": by_kind,
        "variants": arms.compare_variants(samples, arms_by_name, level=settings.level),
        "cells": stats.summarise_cells(samples, level=settings.level).to_dict("records"),
        "cycle": cycles,
        "floors": _floors(measured, cycles),
        "curves": {
            "draft_length": curves.by_draft_length(samples, arms_by_name, comparisons),
            "positions": _named(curves.by_position(samples, arms_by_name, comparisons), arms_by_name),
            "concurrency": crossings,
        },
        "theory": _named(curves.theory(samples, arms_by_name, comparisons, cycles), arms_by_name),
        "predictions": list(measured.predictions),
        "outlook": outlook.outlook(best, arms_by_name, comparisons, cycles) if best and best["break_even"] else None,
        "reported": told,
        "launches": launches(measured.cells),
        "warnings": [*cautions.warn(samples, measured.cells, comparisons), *_reported_warnings(told)],
        "findings": [
            *wording.findings(comparisons, by_kind, measured.cells, crossings),
            *(reported.findings(told) if told else []),
        ],
    }


def _named(rows: Sequence[Mapping[str, Any]], arms_by_name: Mapping[str, arms.Arm]) -> list[dict[str, Any]]:
    words = arms.in_words(arms_by_name)
    return [{**row, "drafter": words[row["cell"]]} for row in rows]


def _recorded_only(told: dict[str, Any]) -> dict[str, Any]:
    """The same keys where nothing was measured: tables that stay empty are there, and empty."""
    empty: dict[str, Any] = {name: [] for name in ("comparisons", "by_kind", "variants", "cells", "cycle", "floors")}
    empty |= {
        "launches": [],
        "theory": [],
        "predictions": [],
        "curves": {"draft_length": [], "positions": [], "concurrency": []},
    }
    return {
        "source": f"{told['file']}: {told['label']}",
        "machine": None,
        "answer": reported.answer(told),
        **empty,
        "outlook": told["outlook"],
        "reported": told,
        "warnings": _reported_warnings(told),
        "findings": reported.findings(told),
    }


def _reported_warnings(told: Mapping[str, Any] | None) -> list[dict[str, str]]:
    return [
        {"code": warning["code"], "text": f"{row['name']} (reported): {warning['text']}"}
        for row in (told or {"rows": []})["rows"]
        for warning in row["warnings"]
    ]


def launches(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every row of ``cells.json`` as a reader wants it: in order, its fate in words."""
    rows = []
    for row in cells:
        failure = row.get("failure")
        fate = f"{row['status']}: {failure['class']}, {failure['text']}" if failure else row["status"]
        shown = {
            name: row.get(name) for name in ("order", "cell", "ready_s", "requests", "tok_s", "accept_length", "log")
        }
        cycle_ms = row.get("cycle_ms") or row.get("step_ms")
        rows.append({**shown, "restart": row["restart"] + 1, "fate": fate, "cycle_ms": cycle_ms})
    return rows


def _floors(measured: Measured, cycles: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Physical floors, where the sweep was measured on this machine and its model is still there."""
    effective: Mapping[str, Any] = next((row["effective"] for row in measured.cells if row.get("effective")), {})
    model = Path(effective.get("model_path") or "")
    if not measured.here or not effective.get("model_path") or not model.is_dir():
        return []
    rows = cycle.floors(model, effective.get("tp") or 1, cycle.memory_bandwidth_gb_s(), cycle.link_bandwidth_gb_s())
    steps = [row["total_ms"] for row in cycles if not measured.arms[row["cell"]].speculates]
    return cycle.held_against(rows, min(steps, default=None))


def save(result: dict[str, Any], figures: Sequence[Figure], run_dir: Path) -> None:
    """Write ``breakeven.json``, its tables as CSV, the plan as ``plan.md``, and the figures."""
    described = [{"name": each.name, "title": each.title, "alt": each.alt} for each in figures]
    for each in figures:
        each.save(run_dir / "figures")
    for name in ("comparisons", "by_kind", "variants", "cells", "theory"):
        if result[name]:
            artifacts.write_text(run_dir / f"{name}.csv", pd.json_normalize(result[name]).to_csv(index=False))
    if result["outlook"]:
        artifacts.write_text(run_dir / "plan.md", outlook.plan_markdown(result["outlook"], result["source"]))
    artifacts.write_json(run_dir / "breakeven.json", {**result, "figures": described})
