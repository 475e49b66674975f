"""What fusing the all-reduces would bring, from the unfused arms and the bench alone; then what it brought.

The unfused arm's trace says how many all-reduces a target forward makes and whose they are, the bench what one costs
with its norm, as it is and fused. A forecast made before the fused arm ran can be wrong, and says so beside it.
"""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from breakeven import artifacts
from breakeven.collectives.rows import fusion_saves
from breakeven.errors import UserError
from breakeven.launch.four_facts import backend_of
from breakeven.telemetry.kernel_names import is_fused

Row = Mapping[str, Any]

FILE = "forecast.json"
FUSED = "flashinfer fused"
SETTINGS = {"custom": "sglang custom", "NCCL": "nccl", "Gloo": "gloo"}
"""The bench's setting for a backend that a trace shows."""
NEVER_FUSED = 2
"""Of a forward's all-reduces: the embedding's and the last layer's are followed by no layer's norm."""
COLUMNS = {
    "cell": "cell",
    "basis": "basis",
    "before_ms": "unfused when predicted, ms",
    "unfused_ms": "unfused in all, ms",
    "predicted_ms": "predicted, ms",
    "measured_ms": "measured, ms",
    "measured_range": "of launches",
    "predicted_saving": "saving predicted, %",
    "measured_saving": "saving measured, %",
    "off": "off, %",
    "made": "predicted at, fused launches by then",
}


def forecast(rows: Iterable[Row], bench_rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One row per cell that ran unfused: its step or cycle as it is and as predicted, in ms, and the basis of that.

    ``rows`` are those of ``cells.json``. A cell that the bench has no figure for has a ``reason`` and no prediction.
    """
    measured = [row for row in rows if row["status"] == "ok" and (row.get("step_ms") or row.get("cycle_ms"))]
    found = []
    for cell in dict.fromkeys(row["cell"] for row in measured):
        mine = [row for row in measured if row["cell"] == cell]
        reduced = _reduced(mine[0], measured)
        if not reduced or any(is_fused(kernel) for kernel in reduced["kernels"]):
            continue
        tokens = mine[0]["concurrency"] * (mine[0]["draft_tokens"] or 1)
        row = {"cell": cell, "key": _key(mine[0]), "before_ms": _mean_ms(mine), "launches": len(mine)}
        found.append(row | _predicted(row["before_ms"], reduced, bench_rows, tokens))
    return found


def _reduced(row: Row, rows: Sequence[Row]) -> Mapping[str, Any] | None:
    """The all-reduces of a target forward of the row's arm; where it was not traced, of its baseline's."""
    for arm in (row["arm"], row["baseline"].partition("@")[0]):
        traced = (each["profile"] for each in rows if each["arm"] == arm and "allreduce" in each.get("profile", {}))
        if (profile := next(traced, None)) is not None:
            return profile["allreduce"] if profile["allreduce"]["count"] > NEVER_FUSED else None
    return None


def _predicted(before_ms: float, reduced: Mapping[str, Any], bench_rows: Sequence[Row], tokens: int) -> dict[str, Any]:
    kernels = reduced["kernels"]
    backend = backend_of(max(kernels, key=kernels.__getitem__))
    unfused, count = SETTINGS.get(backend, backend), round(reduced["count"]) - NEVER_FUSED
    try:
        saves = fusion_saves(bench_rows, fused=FUSED, unfused=unfused, count=count, batch=tokens, width=1)
    except UserError as error:
        return {"reason": str(error)}
    each_us = 1000 * saves.step_saved_ms / count
    each = f"{count} of {reduced['count']:g} all-reduces of {tokens} token{'s' if tokens != 1 else ''}, norm included"
    basis = f"{each}: fused saves {each_us:+.2f} µs each over {unfused}"
    return {"predicted_ms": before_ms - saves.step_saved_ms, "saved_ms": saves.step_saved_ms, "basis": basis}


def _key(row: Row) -> list[Any]:
    """What an arm's cell has in common with the same cell of another variant."""
    return [row["arm"].rpartition("/")[2], row["condition"]]


def _mean_ms(rows: Iterable[Row]) -> float:
    return statistics.mean(_ms(row) for row in rows)


def _ms(row: Row) -> float:
    return float(row.get("cycle_ms") or row["step_ms"])


def write(run_dir: Path) -> dict[str, Any]:
    """Make the forecast from what the run folder holds now and keep it, with the time, in ``forecast.json``.

    ``fused_launches`` counts the fused launches that were measured by then: 0 for a forecast worth its name. Raises
    UserError where ``cells.json`` or ``allreduce.json`` is missing.
    """
    rows = artifacts.read_json(run_dir / "cells.json")["cells"]
    made: dict[str, Any] = {
        "made_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "fused_launches": len({row["launch"] for row in rows if row.get("profile", {}).get("fused")}),
        "rows": forecast(rows, artifacts.read_json(run_dir / "allreduce.json")["rows"]),
    }
    artifacts.write_json(run_dir / FILE, made)
    return made


def beside_measured(run_dir: Path) -> list[dict[str, Any]]:
    """The forecast of a run folder beside what the fused arms measured; empty where there is neither.

    Shares are in percent. Without ``forecast.json`` it is computed now, from the same arms, and ``made`` says so.
    """
    cells, bench, kept = (run_dir / name for name in ("cells.json", "allreduce.json", FILE))
    if not cells.exists() or not bench.exists():
        return []
    rows = artifacts.read_json(cells)["cells"]
    if kept.exists():
        made = artifacts.read_json(kept)
        at = made["made_at"][:16].replace("T", " ")
        when, predictions = f"{at} UTC, {made['fused_launches']}", made["rows"]
    else:
        when, predictions = "afterwards", forecast(rows, artifacts.read_json(bench)["rows"])
    fused = {row["variant"] for row in rows if row.get("profile", {}).get("fused")}
    measured = [row for row in rows if row["status"] == "ok" and row["variant"] in fused]
    return [_beside(row, measured, rows, when) for row in predictions]


def _beside(prediction: Row, fused: Sequence[Row], rows: Sequence[Row], when: str) -> dict[str, Any]:
    row = {**prediction, "basis": prediction.get("basis") or prediction["reason"], "made": when}
    if "predicted_ms" in row:
        row["predicted_saving"] = 100 * (1 - row["predicted_ms"] / row["before_ms"])
    if mine := [each for each in fused if _key(each) == row["key"] and (each.get("step_ms") or each.get("cycle_ms"))]:
        all_ms = [_ms(each) for each in mine]
        spread = f"{min(all_ms):.2f} to {max(all_ms):.2f}, {len(all_ms)} launches" if len(all_ms) > 1 else "1 launch"
        row |= {"measured_ms": statistics.mean(all_ms), "measured_range": spread}
        same = [each for each in rows if each["cell"] == row["cell"] and (each.get("step_ms") or each.get("cycle_ms"))]
        row["unfused_ms"] = _mean_ms(same)
        row["measured_saving"] = 100 * (1 - row["measured_ms"] / row["unfused_ms"])
        if "predicted_ms" in row:
            row["off"] = 100 * (row["measured_ms"] / row["predicted_ms"] - 1)
    return row
