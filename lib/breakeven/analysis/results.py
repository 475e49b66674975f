"""From the samples of a run to its answer: what notebook 05 shows and ``breakeven.json`` holds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from breakeven import artifacts, machine, stats
from breakeven.analysis import (
    arms,
    cautions,
    curves,
    cycle,
    disturbances,
    findings,
    judging,
    left_out,
    next_steps,
    outlook,
    reported,
    setting,
    wording,
)
from breakeven.config import BreakEvenSettings
from breakeven.errors import UserError
from breakeven.launch import four_facts
from breakeven.sweep import exports, forecast

if TYPE_CHECKING:  # matplotlib takes seconds to import
    from breakeven.display.plots import Figure

EXAMPLE = Path(__file__).parents[1] / "embedded" / "example"
HERE, RECORDED_EXAMPLE = "measured in this run", "a recorded example"


@dataclass(frozen=True)
class Measured:
    """Samples of complete launches, every launch's row, where they come from, and what else the sweep told.

    ``folder`` holds the sweep's files; ``here``: whether they were measured on this machine, so that its bandwidths may
    stand beside them.
    """

    samples: pd.DataFrame
    cells: list[dict[str, Any]]
    source: str
    machine: Mapping[str, Any]
    folder: Path
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
    now = json.loads(json.dumps({**now, "packages": None}))  # those are the server's Python's, which may be another
    here = folder == run_dir and {**content["machine"], "packages": None} == now
    source, predictions = _source(folder, content), content.get("predictions") or ()
    return Measured(pd.DataFrame(rows), cells, source, content["machine"], folder, here, predictions)


def is_example(result: Mapping[str, Any]) -> bool:
    """Whether a result shows the example that ships with the library, since its run measured nothing."""
    return str(result["source"]).startswith(RECORDED_EXAMPLE)


def _source(folder: Path, content: Mapping[str, Any]) -> str:
    if folder != EXAMPLE:
        return HERE
    on = content["machine"]
    return f"{RECORDED_EXAMPLE}, measured on {on['cpu']} with {on['cores']} cores, not on this machine"


def analyse(measured: Measured | None, settings: BreakEvenSettings) -> dict[str, Any]:
    """Break-even per arm and kind of prompt, verdicts with intervals, curves, outlook, next steps, warnings, the answer
    in words."""
    told = None
    if settings.records != "none":
        told = reported.read(artifacts.located(settings.records))
    if measured is None:
        if told is None:
            raise UserError("nothing was measured and no records are given: there is nothing to analyse")
        return _recorded_only(told)
    samples, arms_by_name = measured.samples, measured.arms
    cells = _summary(samples, settings.level)
    comparisons, by_kind = _compared(judging.compare_all, samples, arms_by_name, settings.level)
    contest, contest_by_kind = comparisons, by_kind
    if len({arm.variant for arm in arms_by_name.values()}) > 1:
        contest, contest_by_kind = _compared(judging.against_the_fastest, samples, arms_by_name, settings.level)
    cycles = _cycles(samples, measured)
    crossings = curves.by_concurrency(arms_by_name, comparisons)
    variants = judging.compare_variants(samples, arms_by_name, level=settings.level)
    unmeasured = [row for row in measured.predictions if row["source"] != "measured"]
    noise = cautions.launch_spreads(measured.cells, arms_by_name)
    answer = wording.answer(contest, measured.source, settings.level, noise)
    answer["how"] += findings.of_search(unmeasured)
    answer["elsewhere"] += [*findings.of_slow_variants(comparisons, contest), *findings.of_variants(variants)]
    if answer["best"]:
        answer["elsewhere"] += findings.by_kind_in_words(answer["best"], contest_by_kind)
    floors = _floors(measured, cycles)
    forecasts = forecast.beside_measured(measured.folder)
    best = answer["best"]
    ahead = None
    if best and best["break_even"]:
        saved_ms = {row["cell"]: row["saved_ms"] for row in forecasts if "saved_ms" in row}
        ahead = outlook.outlook(best, arms_by_name, contest, cycles, saved_ms)
    forward_ms = curves.forwards(measured.cells)
    quiet, disturbed = disturbances.calm(samples)
    lengths = left_out.left_out(
        quiet, arms_by_name, comparisons, _summary(quiet, settings.level), _cycles(quiet, measured), forward_ms, noise
    )
    rivals = judging.rivals(samples, arms_by_name, best, contest, level=settings.level) if best else []
    about = setting.of_sweep(measured.cells, measured.machine, *_prompts(samples))
    if measured.folder == EXAMPLE:
        about["words"] = f"A recorded example, not this run: {about['words']}"
    fastest = (exports.fastest_row(measured.cells) or {}).get("cell") if measured.source == HERE else None
    return {
        "source": measured.source,
        "machine": measured.machine,
        "setting": about,
        "answer": answer,
        "next_steps": next_steps.next_steps(
            answer, comparisons, ahead, told, about, noise=noise, fastest=fastest, rivals=rivals
        ),
        "comparisons": comparisons,
        "by_kind": by_kind,
        "variants": variants,
        "arm_facts": four_facts.of_arms(measured.folder, measured.cells),
        "cells": cells,
        "cycle": cycles,
        "floors": floors,
        "curves": {
            "draft_length": curves.by_draft_length(samples, arms_by_name, comparisons, forward_ms),
            "positions": _named(curves.by_position(samples, arms_by_name, comparisons), arms_by_name),
            "concurrency": crossings,
        },
        "theory": _named(curves.theory(samples, arms_by_name, comparisons, cycles), arms_by_name),
        "left_out": lengths,
        "left_out_notes": left_out.notes(lengths, noise, forward_ms, disturbed),
        "forecast": forecasts,
        "predictions": unmeasured,
        "outlook": ahead,
        "reported": told,
        "launches": arms.launches(measured.cells),
        "warnings": [
            *cautions.warn(samples, measured.cells, comparisons, floors, noise),
            *_reported_warnings(told),
        ],
        "findings": [
            *findings.findings(comparisons, by_kind, measured.cells, crossings),
            *(reported.findings(told) if told else []),
        ],
    }


def _summary(samples: pd.DataFrame, level: float) -> list[dict[str, Any]]:
    rows = stats.summarise_cells(samples, level=level).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in rows]


def _cycles(samples: pd.DataFrame, measured: Measured) -> list[dict[str, Any]]:
    return _named(cycle.cycle_rows(samples, measured.cells), measured.arms)


def _compared(
    compare: Callable[..., list[dict[str, Any]]],
    samples: pd.DataFrame,
    arms_by_name: Mapping[str, arms.Arm],
    level: float,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Comparisons, the fastest arm first, each with both rates over all streams beside those of one; and the same by
    kind of prompt, of what was compared at an accept length of its own."""
    rows = compare(samples, arms_by_name, level=level)
    for row in rows:
        for name in ("spec_tok_s", "base_tok_s"):
            row[f"{name}_all"] = row[name] * row["concurrency"] if row[name] else None
    rows.sort(key=lambda row: -((row["speedup"] or {}).get("estimate") or 0))
    place = {row["cell"]: number for number, row in enumerate(rows)}
    by_kind = compare(samples, arms_by_name, level=level, by_kind=True)
    told_of = [row for row in by_kind if row["speedup"] and not row["accept_length_pinned"]]
    return rows, sorted(told_of, key=lambda row: place[row["cell"]])


def _prompts(samples: pd.DataFrame) -> tuple[int, int]:
    """How many prompts of how many kinds a cell was measured with."""
    of_cells = samples[samples["phase"] == "measure"].groupby("cell")
    return int(of_cells["prompt_id"].nunique().max()), int(of_cells["kind"].nunique().max())


def _named(rows: Sequence[Mapping[str, Any]], arms_by_name: Mapping[str, arms.Arm]) -> list[dict[str, Any]]:
    words = arms.in_words(arms_by_name)
    return [{**row, "drafter": words[row["cell"]]} for row in rows]


def _recorded_only(told: dict[str, Any]) -> dict[str, Any]:
    """The same keys where nothing was measured: tables that stay empty are there, and empty."""
    tables = (
        "comparisons", "by_kind", "variants", "arm_facts", "cells", "cycle", "floors", "launches", "theory", "left_out",
        "left_out_notes", "forecast", "predictions",
    )  # fmt: skip
    answer = reported.answer(told)
    return {
        "source": f"{told['file']}: {told['label']}",
        "machine": None,
        "setting": told["setting"],
        "answer": answer,
        "next_steps": next_steps.next_steps(answer, [], told["outlook"], told, told["setting"]),
        **{name: [] for name in tables},
        "curves": {"draft_length": [], "positions": [], "concurrency": []},
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
    for name in ("comparisons", "by_kind", "variants", "cells", "theory", "left_out"):
        if result[name]:
            artifacts.write_text(run_dir / f"{name}.csv", pd.json_normalize(result[name]).to_csv(index=False))
    if result["next_steps"]:
        text = next_steps.markdown(result["next_steps"], result["outlook"], result["source"])
        artifacts.write_text(run_dir / "plan.md", text)
    artifacts.write_json(run_dir / "breakeven.json", {**result, "figures": described})
