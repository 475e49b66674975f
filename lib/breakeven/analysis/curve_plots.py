"""The curves of a run: speed-up over accept length, break-even over draft length, acceptance, tornado."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.figure
import matplotlib.lines
import matplotlib.patches
import matplotlib.ticker

from breakeven.analysis import wording
from breakeven.display import show
from breakeven.display.plots import (
    PALETTE,
    VERDICT_MARKS,
    Figure,
    Row,
    beside,
    canvas,
    foremost,
    label,
    part_legend,
    stacked_bars,
    tidy,
    to_figure,
)

LINES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "D", "^", "v", "P")


def speedup_curve_figure(comparisons: Sequence[Row]) -> Figure:
    """Speed-up against accept length at each cell's own cycle: a line through the origin, the measured point on it and
    the break-even where it crosses 1."""
    rows, of_how_many = foremost([row for row in comparisons if row["accept_length"]], most=8)
    figure, axes = _square()
    axes.axhline(1.0, color="#333333", linewidth=1.2, linestyle="--")
    longest = 1.25 * max([row[name]["estimate"] for row in rows for name in ("accept_length", "break_even")] or [1.0])
    for place, row in enumerate(rows):
        got, needed = row["accept_length"]["estimate"], row["break_even"]["estimate"]
        colour, mark = PALETTE[place % len(PALETTE)], VERDICT_MARKS.get(row["verdict"], ("o", ""))[0]
        ends = [1.0, longest]
        line = LINES[place % len(LINES)]
        axes.plot(ends, [end / needed for end in ends], color=colour, linestyle=line, linewidth=1.4)
        axes.plot(needed, 1.0, marker="|", markersize=14, markeredgewidth=2.5, color=colour)
        axes.plot(
            got, got / needed, linestyle=line, color=colour, marker=mark, markersize=9, markeredgecolor="black",
            label=label(row),
        )  # fmt: skip
    axes.set_xlabel("accept length (tokens per verify), the cycle held as measured")
    axes.set_ylabel("speed-up over the baseline")
    _legend(axes)
    alt = "Speed-up against accept length: " + "; ".join(
        f"{label(row)} is at accept length {row['accept_length']['estimate']:.2f} with speed-up "
        f"{row['speedup']['estimate']:.2f} and breaks even at {row['break_even']['estimate']:.2f}"
        for row in rows
    )
    title = "Speed-up against accept length: measured point, and break-even (bar) where the line crosses 1"
    return to_figure("speedup-curve", title + of_how_many, alt, figure)


def draft_length_figure(rows: Sequence[Row]) -> Figure:
    """Break-even accept length and the one got, over the number of drafts; hollow marks are predicted."""
    families = list(dict.fromkeys(row["family"] for row in rows))
    figure = matplotlib.figure.Figure(figsize=(8.0, 0.6 + 3.0 * max(len(families), 1)), layout="constrained")
    panels = figure.subplots(max(len(families), 1), 1, squeeze=False)[:, 0]
    for axes, family in zip(panels, families, strict=False):
        of_family = [row for row in rows if row["family"] == family]
        _length_line(axes, of_family, "accept_length", "accept length got", PALETTE[0], "o", "-")
        _length_line(axes, of_family, "break_even", "break-even accept length", PALETTE[3], "s", "--")
        for row in of_family:
            if row["source"] == "measured" and not row["too_few"]:
                bounds = [row["break_even_low"], row["break_even_high"]]
                axes.plot([row["drafts"]] * 2, bounds, color=PALETTE[3], linewidth=1.5)
        axes.set_title(family, loc="left", fontsize=10, fontweight="bold")
        axes.set_ylabel("tokens per verify")
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        tidy(axes)
        _legend(axes)
    panels[-1].set_xlabel(
        "drafts per verify (the root not counted); filled: measured, hollow: predicted from measured lengths"
    )
    alt = "Accept length got and break-even accept length over the number of drafts: " + "; ".join(
        f"{row['family']}, {row['drafts']} drafts ({row['source']}): {show.cell(row['accept_length'])} got, "
        f"{row['break_even']:.2f} needed"
        for row in rows
    )
    return to_figure("draft-length", "Break-even accept length against draft length", alt, figure)


def _length_line(axes: Any, rows: Sequence[Row], key: str, label: str, colour: str, mark: str, line: str) -> None:
    rows = [row for row in rows if row[key] is not None]
    axes.plot([row["drafts"] for row in rows], [row[key] for row in rows], color=colour, linestyle=line, linewidth=1.4)
    for source, face in (("measured", colour), ("interpolated", "white")):
        some = [row for row in rows if row["source"] == source]
        shown = label if source == "measured" and some else None
        axes.plot(
            [row["drafts"] for row in some], [row[key] for row in some], mark, color=colour, markerfacecolor=face,
            markersize=7, label=shown,
        )  # fmt: skip


def concurrency_figure(rows: Sequence[Row]) -> Figure:
    """Speed-up over the number of concurrent requests, with the interpolated crossing of 1."""
    rows, of_how_many = foremost(rows, most=8)
    figure, axes = _square()
    axes.axhline(1.0, color="#333333", linewidth=1.2, linestyle="--")
    for place, row in enumerate(rows):
        colour = PALETTE[place % len(PALETTE)]
        places = [point["concurrency"] for point in row["points"]]
        axes.plot(
            places, [point["estimate"] for point in row["points"]], color=colour, linestyle=LINES[place % len(LINES)],
            marker=MARKS[place % len(MARKS)], markeredgecolor="black", label=row["drafter"],
        )  # fmt: skip
        for point in (point for point in row["points"] if not point["too_few"]):
            axes.plot([point["concurrency"]] * 2, [point["low"], point["high"]], color=colour, linewidth=1.5)
        if row["crossover"]:
            axes.plot(row["crossover"], 1.0, marker="x", markersize=10, markeredgewidth=2.5, color=colour)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(matplotlib.ticker.ScalarFormatter())
    axes.set_xlabel("concurrent requests (log scale); ×: where the answer changes, interpolated")
    axes.set_ylabel("speed-up over the baseline")
    _legend(axes)
    alt = "Speed-up over concurrency: " + "; ".join(
        f"{row['drafter']}: "
        + ", ".join(f"{show.cell(point)} at {point['concurrency']}" for point in row["points"])
        + (f", crossing 1 at about {row['crossover']:.1f}" if row["crossover"] else ", no crossing")
        for row in rows
    )
    return to_figure("concurrency", "Speed-up against concurrency" + of_how_many, alt, figure)


def positions_figure(rows: Sequence[Row]) -> Figure:
    """Acceptance got at each position of the chain, against the one that would break even if all were alike."""
    rows, of_how_many = foremost([row for row in rows if row["got"]], most=6)
    figure, axes = _square()
    for place, row in enumerate(rows):
        colour, line = PALETTE[place % len(PALETTE)], LINES[place % len(LINES)]
        got = [(number, share) for number, share in enumerate(row["got"], 1) if share is not None]
        axes.plot(
            [number for number, _ in got], [share for _, share in got], color=colour, linestyle=line,
            marker=MARKS[place % len(MARKS)], markeredgecolor="black", label=label(row),
        )  # fmt: skip
        if row["needed"] is not None:
            ends = [0.7, row["drafts"] + 0.3]
            axes.plot(ends, [row["needed"]] * 2, color=colour, linestyle=line, linewidth=3, alpha=0.35)
    axes.set_ylim(0, 1.05)
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    axes.set_xlabel("position of the draft")
    axes.set_ylabel("share accepted, given all before it were")
    _legend(axes)
    alt = "Acceptance by position: " + "; ".join(
        f"{label(row)}: got {', '.join(show.cell(share) for share in row['got'])}; needed "
        + (f"{row['needed']:.2f} at each" if row["needed"] is not None else "more than any acceptance gives")
        for row in rows
    )
    title = "Acceptance got at each position (marks) and needed at each to break even (wide pale line)"
    return to_figure("positions", title + of_how_many, alt, figure)


def tornado_figure(rows: Sequence[Row], cell: str) -> Figure:
    """The speed-up with one quantity at a time 10 % lower and higher; the widest bar matters most."""
    rows = [row for row in rows if row["swing"] > 0.001]  # a part that is not there moves nothing
    ordered = list(reversed(rows))
    figure, axes = canvas(height=1.3 + 0.42 * len(ordered))
    axes.axvline(1.0, color="#333333", linewidth=1.2, linestyle="--")
    for place, row in enumerate(ordered):
        ends = row["speedup_at_low"], row["speedup_at_high"]
        middle = sum(ends) / 2
        for end, hatch, colour in zip(ends, ("//", ""), (PALETTE[1], PALETTE[0]), strict=True):
            axes.barh(place, end - middle, left=middle, height=0.6, color=colour, hatch=hatch, edgecolor="black")
        beside(axes, f"{ends[0]:.2f} to {ends[1]:.2f}", max(ends), place)
    axes.set_yticks(range(len(ordered)), [QUANTITIES.get(row["quantity"], row["quantity"]) for row in ordered])
    axes.margins(x=0.22)
    axes.set_xlabel("speed-up over the baseline")
    handles = [
        matplotlib.patches.Patch(facecolor=colour, hatch=hatch, edgecolor="black", label=f"10 % {word}")
        for colour, hatch, word in ((PALETTE[1], "//", "less"), (PALETTE[0], "", "more"))
    ]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    alt = f"What moves the answer most, for {cell}: " + "; ".join(
        f"{QUANTITIES.get(row['quantity'], row['quantity'])} from {row['low']:.2f} to {row['high']:.2f} gives speed-up "
        f"{row['speedup_at_low']:.2f} to {row['speedup_at_high']:.2f}"
        for row in rows
    )
    return to_figure("tornado", f"What moves the answer most, one quantity at a time by 10 %: {cell}", alt, figure)


QUANTITIES = {
    "accept_length": "accept length",
    "step_ms": "baseline step alone",
    "target_forward": "target forward (verify and step)",
    "verify_ms": "verify alone",
    "draft_ms": "drafting",
    "other_ms": "rest of the cycle",
    "cycle_ms": "cycle",
}


def reported_figure(chart: Sequence[Row]) -> Figure:
    """Cycle and baseline step as reported; a dotted line is an all-reduce time that was claimed for both."""
    bars: list[Row] = []
    for row in chart:
        bars.append({"cell": f"{row['name']}: cycle", "parts": row["parts"], "mark": row["mark"]})
        bars.append(
            {"cell": f"baseline step beside {row['name']}", "parts": {"step": row["step_ms"]}, "mark": row["mark"]}
        )
    bars, of_how_many = foremost(bars)
    ordered = list(reversed(bars))
    figure, axes = canvas(height=1.4 + 0.45 * len(ordered))
    shown = stacked_bars(axes, ordered)
    for place, row in enumerate(ordered):
        if row["mark"]:
            ends = [place - 0.45, place + 0.45]
            axes.plot([row["mark"]["ms"]] * 2, ends, color="black", linestyle=":", linewidth=2.5)
    claimed = [row["mark"] for row in bars if row["mark"]]
    lines = [matplotlib.lines.Line2D([], [], color="black", linestyle=":", label=claimed[0]["name"])] if claimed else []
    axes.margins(x=0.14)
    axes.set_xlabel("milliseconds, from reported figures")
    part_legend(axes, shown, lines)
    alt = "Cycle and baseline step from reported figures: " + "; ".join(
        f"{row['cell']} {sum(row['parts'].values()):.1f} ms"
        + (f", with {row['mark']['name']} taking {row['mark']['ms']:.1f} ms" if row["mark"] else "")
        for row in bars
    )
    title = "Cycle and baseline step, as reported (only where the accept length was)"
    if claimed:
        title += "; dotted: the all-reduce time that was reported for a forward of either"
    return to_figure("reported", title + of_how_many, alt, figure)


def figures(result: Row) -> list[Figure]:
    """Every figure that the result has something for, in the order in which a reader wants them."""
    from breakeven.display import plots

    made = []
    _, pinned = wording.judged_and_pinned(result["comparisons"])
    judged = [row for row in result["comparisons"] if row["speedup"] and not row["accept_length_pinned"]]
    if judged:
        made.append(plots.speedup_figure(judged))
    if any(row["accept_length"] for row in judged):
        made += [plots.accept_length_figure(result["by_kind"]), speedup_curve_figure(judged)]
    if pinned:
        made.append(plots.bars_figure(pinned))
    if result["curves"]["draft_length"]:
        made.append(draft_length_figure(result["curves"]["draft_length"]))
    if result["curves"]["concurrency"]:
        made.append(concurrency_figure(result["curves"]["concurrency"]))
    if result["curves"]["positions"]:
        made.append(positions_figure(result["curves"]["positions"]))
    if result["cycle"]:
        made.append(plots.cycle_figure(result["cycle"], result["floors"]))
    if result["reported"] and result["reported"]["chart"]:
        made.append(reported_figure(result["reported"]["chart"]))
    if result["outlook"]:
        made.append(tornado_figure(result["outlook"]["tornado"], result["outlook"]["cell"]))
    return made


def _square() -> tuple[matplotlib.figure.Figure, Any]:
    figure = matplotlib.figure.Figure(figsize=(8.0, 4.4), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _legend(axes: Any) -> None:
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="best", frameon=False, fontsize=9)
