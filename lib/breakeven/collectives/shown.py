"""What an all-reduce bench showed, as notebook 03 shows it: columns, sentences and a figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.figure

from breakeven.collectives.rows import ALLREDUCE, WITH_NORM
from breakeven.display import plots

COLUMNS = {
    "setting": "setting",
    "operation": "operation",
    "batch": "batch",
    "width": "tokens per sequence",
    "bytes": "bytes",
    "us": "µs",
    "ratio": "over the reference",
    "floor": "noise floor",
    "verdict": "verdict",
    "graph": "graph",
    "error": "relative error",
    "status": "status",
    "reason": "reason",
}


def over(job: Mapping[str, Any]) -> str:
    """``2 ranks over nccl``, of a bench that is to run or has run."""
    return f"{job['ranks']} rank{'s' if job['ranks'] != 1 else ''} over {job['backend']}"


def findings(result: Mapping[str, Any]) -> list[str]:
    """What the bench showed, one sentence each."""
    rows = [row for row in result["rows"] if row["status"] == "ok"]
    where = f"{over(result)}, {result['iterations']} iterations"
    sentences = []
    if result["ranks"] == 1:
        sentences.append("One rank reduces nothing: this shows that the bench runs here, and what a call costs.")
    for operation in dict.fromkeys(row["operation"] for row in rows):
        own = [row for row in rows if row["operation"] == operation]
        for size in (min(row["bytes"] for row in own), max(row["bytes"] for row in own)):
            best = min((row for row in own if row["bytes"] == size), key=lambda row: row["us"])
            sentences.append(
                f"{operation} of {_size(size)}: {best['us']:.1f} µs with {best['setting']}, the fastest here ({where})."
            )
    for cross in result["crossovers"]:
        sentences.append(f"{cross['operation']}: from {_size(cross['bytes'])} on {cross['to']} beats {cross['from']}.")
    for row in result["rows"]:
        if row["status"] != "ok":
            sentences.append(f"{row['setting']} was not measured: {row['reason']}.")
    return list(dict.fromkeys(sentences))


def figure(result: Mapping[str, Any]) -> plots.Figure:
    """Latency by message size, a panel per operation, a line and a mark per setting, crossovers as vertical lines."""
    rows = [row for row in result["rows"] if row["status"] == "ok"]
    operations = [each for each in (ALLREDUCE, WITH_NORM) if any(row["operation"] == each for row in rows)]
    canvas = matplotlib.figure.Figure(figsize=(8.0, 3.4 * len(operations)), layout="constrained")
    for axes, operation in zip(canvas.subplots(len(operations), 1, squeeze=False)[:, 0], operations, strict=True):
        own = [row for row in rows if row["operation"] == operation]
        for place, setting in enumerate(dict.fromkeys(row["setting"] for row in rows)):
            line = sorted((row for row in own if row["setting"] == setting), key=lambda row: row["bytes"])
            if not line:
                continue
            look = {"marker": "osv^DPX*<>"[place % 10], "color": plots.PALETTE[place % len(plots.PALETTE)]}
            axes.plot([r["bytes"] / 1024 for r in line], [r["us"] for r in line], label=setting, **look)
        for cross in result["crossovers"]:
            if cross["operation"] == operation:
                axes.axvline(cross["bytes"] / 1024, color="#333333", linestyle="--", linewidth=1)
        axes.set_xscale("log", base=2)
        sizes_kib = sorted({row["bytes"] / 1024 for row in own})
        axes.set_xticks(sizes_kib, [f"{size:g}" for size in sizes_kib])
        axes.set_ylim(bottom=0)
        axes.set_title(operation, loc="left", fontsize=10, fontweight="bold")
        axes.set_xlabel("message, KiB")
        axes.set_ylabel("µs, slowest rank")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    alt = "All-reduce latency by message size: " + "; ".join(
        f"{row['operation']}, {row['setting']}, {_size(row['bytes'])}: {row['us']:.1f} µs" for row in rows
    )
    title = f"All-reduce latency with {over(result)}"
    title += "; dashed: the fastest changes" if result["crossovers"] else ""
    return plots.to_figure("allreduce", title, alt, canvas)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1024:g} KiB" if size_bytes % 512 == 0 else f"{size_bytes} bytes"
