"""The figures of a run: colour-blind palette, a second channel beside colour, units on every axis, alt text.

Each function takes rows (lists of dicts as they stand in breakeven.json) and returns a ``Figure`` that carries its
own title and alt text; ``save`` writes the SVG, and a notebook that ends a cell with a ``Figure`` shows it.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.figure
import matplotlib.patches
import matplotlib.text
import seaborn

from breakeven import artifacts
from breakeven.display import show

PALETTE = seaborn.color_palette("colorblind").as_hex()
VERDICT_MARKS = {
    "pays": ("^", PALETTE[2]),
    "does-not-pay": ("v", PALETTE[3]),
    "not-distinguishable": ("o", PALETTE[7]),
}
PART_STYLES = {
    "step": (PALETTE[7], ""),
    "draft": (PALETTE[1], "//"),
    "target forward": (PALETTE[0], ""),
    "verify": (PALETTE[0], "xx"),
    "all-reduce": (PALETTE[3], "xx"),
    "attention": (PALETTE[2], "--"),
    "matrix products": (PALETTE[0], ""),
    "rest of the forward": (PALETTE[9], "++"),
    "draft extend": (PALETTE[4], "\\\\"),
    "sampling and scheduling": (PALETTE[7], ".."),
    "host and gaps": (PALETTE[7], ".."),
    "host gaps": ("#ffffff", "oo"),
    "not verify": (PALETTE[1], "//"),
    "cycle": (PALETTE[0], "xx"),
}
MOST_CELLS = 24
"""Cells that one figure shows; a picture of hundreds can't be read, and tables hold them all."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """An SVG picture with its name, its title and the words that stand for it when it can't be seen."""

    name: str
    title: str
    alt: str
    svg: str

    def save(self, folder: Path) -> Path:
        """Write ``<name>.svg`` into the folder."""
        return artifacts.write_text(folder / f"{self.name}.svg", self.svg)

    def to_html(self) -> str:
        """A ``figure`` element with the picture inline, its alt text and its title."""
        label = html.escape(self.alt, quote=True)
        picture = self.svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
        caption = f"<figcaption>{html.escape(self.title)}</figcaption>"
        return f'<figure class="plot" id="figure-{html.escape(self.name)}">{picture}{caption}</figure>'

    def _repr_html_(self) -> str:
        return self.to_html()


def speedup_figure(comparisons: Sequence[Row]) -> Figure:
    """Speed-up over the baseline per cell with the intervals that its two verdicts rest on; 1 is break-even.

    An interval that says nothing is not drawn. Where accept lengths were pinned see `bars_figure`.
    """
    comparisons, of_how_many = foremost([row for row in comparisons if row["speedup"]])
    rows = list(reversed(comparisons))
    figure, axes = canvas(height=1.1 + 0.42 * len(rows))
    axes.axvline(1.0, color="#333333", linewidth=1.2, linestyle="--")
    for place, row in enumerate(rows):
        ratio, same = row["speedup"], row.get("speedup_same_prompts")
        mark, colour = VERDICT_MARKS.get(row["verdict"], ("s", PALETTE[7]))
        same_colour = VERDICT_MARKS.get(row.get("verdict_same_prompts", ""), ("s", PALETTE[7]))[1]
        _line(axes, ratio, place, colour, 1.6)
        if same:
            _line(axes, same, place, same_colour, 6)
        axes.plot(ratio["estimate"], place, marker=mark, markersize=9, color=colour, markeredgecolor="black")
        _above(axes, f"{ratio['estimate']:.2f}", ratio["estimate"], place)
    axes.set_yticks(range(len(rows)), [label(row) for row in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.margins(x=0.12)
    axes.set_xlabel("speed-up over the baseline (ratio of tokens per second)")
    verdict_legend(axes, {row["verdict"] for row in rows})
    alt = "Speed-up over the baseline: " + "; ".join(
        f"{label(row)} {show.cell(row['speedup'])}, {row['verdict']}{_same_in_words(row)}" for row in comparisons
    )
    title = "Speed-up over the baseline; thick: interval for these prompts, thin: for others; dashed: break-even"
    return to_figure("speedup", title + of_how_many, alt, figure)


def _line(axes: Any, interval: Row, place: float, colour: str, width: float) -> None:
    """An interval as a line; nothing for one that says nothing."""
    if not interval.get("too_few"):
        ends, alpha = [interval["low"], interval["high"]], 0.55 if width > 2 else 1
        axes.plot(ends, [place, place], color=colour, linewidth=width, solid_capstyle="butt", alpha=alpha)


def _above(axes: Any, text: str, x: float, y: float) -> None:
    """A figure over its mark, where nobody takes it for the end of its interval."""
    axes.annotate(text, (x, y), (0, 10), textcoords="offset points", ha="center", fontsize=9)


def bars_figure(comparisons: Sequence[Row]) -> Figure:
    """The accept length from which each cell pays, with its interval: all that is known where they were pinned."""
    comparisons, of_how_many = foremost([row for row in comparisons if row["break_even"]])
    rows = list(reversed(comparisons))
    figure, axes = canvas(height=1.1 + 0.42 * len(rows))
    for place, row in enumerate(rows):
        needed = row["break_even"]
        _line(axes, needed, place, PALETTE[0], 1.6)
        axes.plot(needed["estimate"], place, marker="|", markersize=14, markeredgewidth=3, color=PALETTE[0])
        _above(axes, f"{needed['estimate']:.2f}", needed["estimate"], place)
    axes.set_yticks(range(len(rows)), [label(row) for row in rows])
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.margins(x=0.12)
    axes.set_xlabel("accept length that breaks even (tokens per verify)")
    alt = "Accept length that breaks even: " + "; ".join(f"{label(row)} {show.cell(row['break_even'])}" for row in rows)
    return to_figure("bars", "Accept length from which each drafter would pay" + of_how_many, alt, figure)


def _same_in_words(row: Row) -> str:
    same = row.get("speedup_same_prompts")
    if not same or same.get("too_few"):
        return ""
    ends = show.ends(same["low"], same["high"])
    return f", on these prompts {ends}, {row.get('verdict_same_prompts')}"


def accept_length_figure(by_kind: Sequence[Row]) -> Figure:
    """Accept length against break-even accept length, one panel a cell, one line a kind of prompt.

    Small dots are single prompts (each over its restarts): the distribution behind the mean.
    """
    by_kind = [row for row in by_kind if row["accept_length"]]
    cells, of_how_many = foremost(list(dict.fromkeys(row["cell"] for row in by_kind)), most=4)
    by_kind = [row for row in by_kind if row["cell"] in cells]
    kinds = list(dict.fromkeys(row["kind"] for row in by_kind))
    height = 0.9 + max(len(cells), 1) * (0.35 + 0.3 * len(kinds))
    figure = matplotlib.figure.Figure(figsize=(8.0, height), layout="constrained")
    panels = figure.subplots(max(len(cells), 1), 1, sharex=True, squeeze=False)[:, 0]
    for axes, cell in zip(panels, cells, strict=False):
        for row in (row for row in by_kind if row["cell"] == cell):
            _accept_length_line(axes, row, len(kinds) - 1 - kinds.index(row["kind"]))
        axes.set_yticks(range(len(kinds)), [show.printable(kind) for kind in reversed(kinds)])
        axes.set_ylim(-0.6, len(kinds) - 0.4)
        axes.set_title(
            next(label(row) for row in by_kind if row["cell"] == cell), loc="left", fontsize=10, fontweight="bold"
        )
        tidy(axes)
    panels[-1].set_xlabel("accept length (tokens per verify): got ●, single prompts ·, break-even |")
    alt = "Accept length got against break-even accept length: " + "; ".join(
        f"{label(row)}, {row['kind']}: {show.cell(row['accept_length']['estimate'])} against "
        f"{show.cell(row['break_even']['estimate'])}"
        for row in by_kind
    )
    title = "Accept length by kind of prompt (circle) against the one that breaks even (bar)"
    return to_figure("accept-length", title + of_how_many, alt, figure)


def _accept_length_line(axes: Any, row: Row, place: int) -> None:
    got, needed = row["accept_length"]["estimate"], row["break_even"]["estimate"]
    colour = VERDICT_MARKS["pays" if got > needed else "does-not-pay"][1]
    singles = (row.get("prompts_accept_length") or {}).get("values", [])
    axes.plot(singles, [place - 0.22] * len(singles), ".", markersize=3.5, color="#555555")
    axes.plot([needed, got], [place, place], color=colour, linewidth=2)
    axes.plot(needed, place, marker="|", markersize=13, markeredgewidth=2.5, color="black")
    axes.plot(got, place, marker="o", markersize=7, color=colour, markeredgecolor="black")


def cycle_figure(parts: Sequence[Row], floors: Sequence[Row] = ()) -> Figure:
    """Where the milliseconds go: the baseline's step and each cell's cycle, stacked, physical floors as lines.

    Rows: cell, and ``parts``: a mapping of part name to milliseconds. Floors: name and ms of one target forward.
    """
    parts, of_how_many = foremost(parts)
    rows = list(reversed(parts))
    figure, axes = canvas(height=1.6 + 0.45 * len(rows))
    shown = stacked_bars(axes, rows)
    known = [floor for floor in floors if floor["ms"]]
    lines = [
        axes.axvline(floor["ms"], color="black", linewidth=1.6, linestyle=style, label=f"floor: {floor['name']}")
        for floor, style in zip(known, ("--", ":"), strict=False)
    ]
    axes.margins(x=0.14)
    axes.set_xlabel("milliseconds per step (baseline) or per cycle (speculation)")
    part_legend(axes, shown, lines)
    alt = "Where the milliseconds go: " + "; ".join(
        f"{label(row)}: " + ", ".join(f"{part} {ms:.1f} ms" for part, ms in row["parts"].items()) for row in parts
    )
    alt += "".join(f"; floor of one target forward, {floor['name']}: {floor['ms']:.2f} ms" for floor in known)
    title = "Where the cycle goes: the baseline's step beside each drafter's cycle"
    return to_figure("cycle", title + of_how_many, alt, figure)


def stacked_bars(axes: Any, rows: Sequence[Row]) -> list[str]:
    """One bar a row, its ``parts`` stacked and its total beside it; the names of the parts that appear."""
    shown: dict[str, None] = {}
    for place, row in enumerate(rows):
        left = 0.0
        for part, part_ms in row["parts"].items():
            colour, hatch = _style(part)
            axes.barh(place, part_ms, left=left, color=colour, hatch=hatch, edgecolor="black", linewidth=0.6)
            left += part_ms
            shown[part] = None
        beside(axes, f"{left:.1f} ms", left, place)
    axes.set_yticks(range(len(rows)), [label(row) for row in rows])
    return list(shown)


def part_legend(axes: Any, shown: Sequence[str], lines: Sequence[Any] = ()) -> None:
    """What the colours and hatches of stacked bars mean."""
    handles = [
        matplotlib.patches.Patch(facecolor=colour, hatch=hatch, edgecolor="black", label=part)
        for part, (colour, hatch) in ((part, _style(part)) for part in shown)
    ]
    axes.legend(
        handles=[*handles, *lines], loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=3, frameon=False, fontsize=9
    )


def gates_figure(gates: Sequence[Row]) -> Figure:
    """The chain of gates from the flag to the kernel: open, closed or depends."""
    marks = {"open": ("o", PALETTE[2]), "closed": ("X", PALETTE[3]), "depends": ("D", PALETTE[1])}
    rows = list(reversed(gates))
    figure, axes = canvas(height=0.8 + 0.4 * len(rows))
    axes.plot([0, 0], [0, max(len(rows) - 1, 0)], color="#999999", linewidth=1.5, zorder=0)
    for place, gate in enumerate(rows):
        mark, colour = marks.get(gate["result"], ("s", PALETTE[7]))
        axes.plot(0, place, marker=mark, markersize=11, color=colour, markeredgecolor="black")
        where = f"{Path(gate['file']).name}:{gate['line']}"
        beside(axes, f"{gate['result']}: {gate['id']} ({where})", 0, place, points=14)
    axes.set_xlim(-0.05, 1)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.axis("off")
    alt = "Gates from the flag to the kernel, in order: " + "; ".join(
        f"{gate['id']} {gate['result']}" for gate in gates
    )
    return to_figure("gates", "Gates between the fusion flag and the fused kernel, from top to bottom", alt, figure)


def atlas_figure(rows: Sequence[Row]) -> Figure:
    """Verdict by release and architecture; each box carries its verdict in words as well as in colour."""
    verdicts = ["runs", "denied-by-sglang", "denied-by-both", "denied-by-flashinfer", "crashes", "absent", "unknown"]
    shades = [PALETTE[2], PALETTE[1], PALETTE[7], PALETTE[4], PALETTE[3], "#ffffff", "#eeeeee"]
    short = ["runs", "SGLang\ncloses", "both\nclose", "FlashInfer\ncloses", "crashes", "absent", "?"]
    releases = list(dict.fromkeys(row["release"] for row in rows))
    archs = list(dict.fromkeys(row["arch"] for row in rows))
    figure = matplotlib.figure.Figure(
        figsize=(1.6 + 1.0 * len(archs), 0.9 + 0.55 * len(releases)), layout="constrained"
    )
    axes = figure.subplots()
    for row in rows:
        number = verdicts.index(row["verdict"]) if row["verdict"] in verdicts else len(verdicts) - 1
        x, y = archs.index(row["arch"]), releases.index(row["release"])
        axes.add_patch(
            matplotlib.patches.Rectangle((x, y), 1, 1, facecolor=shades[number], edgecolor="black", linewidth=0.6)
        )
        axes.text(x + 0.5, y + 0.5, short[number], ha="center", va="center", fontsize=8)
    axes.set_xlim(0, len(archs))
    axes.set_ylim(len(releases), 0)
    axes.set_xticks([x + 0.5 for x in range(len(archs))], archs)
    axes.set_yticks([y + 0.5 for y in range(len(releases))], releases)
    axes.tick_params(length=0)
    axes.xaxis.tick_top()
    alt = "Verdict by SGLang release and architecture: " + "; ".join(
        f"{row['release']} {row['arch']} {row['verdict']}" for row in rows
    )
    return to_figure("atlas", "Does fused all-reduce run? By SGLang release and GPU architecture", alt, figure)


def label(row: Row) -> str:
    """What a reader knows a cell by: its drafter in words, else its name."""
    return show.printable(str(row.get("drafter") or row["cell"]))


def foremost(rows: Sequence[Any], most: int = MOST_CELLS) -> tuple[list[Any], str]:
    """The first ``most`` rows, and the words for a title when there are more."""
    more = f" (the first {most} of {len(rows)})" if len(rows) > most else ""
    return list(rows[:most]), more


def _style(part: str) -> tuple[str, str]:
    return PART_STYLES.get(part, (PALETTE[7], ""))


def canvas(height: float) -> tuple[matplotlib.figure.Figure, Any]:
    """A figure of the report's width with one set of axes."""
    figure = matplotlib.figure.Figure(figsize=(8.0, height), layout="constrained")
    axes = figure.subplots()
    tidy(axes)
    return figure, axes


def beside(axes: Any, text: str, x: float, y: float, points: int = 6) -> None:
    """Text to the right of a place in the data."""
    axes.annotate(text, (x, y), (points, 0), textcoords="offset points", va="center")


def tidy(axes: Any) -> None:
    """No frame, a faint grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)


def verdict_legend(axes: Any, verdicts: set[str]) -> None:
    """What the marks of verdicts mean."""
    for verdict, (mark, colour) in VERDICT_MARKS.items():
        if verdict in verdicts:
            axes.plot([], [], linestyle="none", marker=mark, color=colour, markeredgecolor="black", label=verdict)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)


def to_figure(name: str, title: str, alt: str, figure: matplotlib.figure.Figure) -> Figure:
    """Draw to SVG with text kept as text (searchable, small) and ids that can't collide on one page."""
    for text in figure.findobj(matplotlib.text.Text):
        text.set_parse_math(False)  # a dollar sign in a name is a dollar sign
    buffer = io.StringIO()
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "font.size": 10}
    with matplotlib.rc_context(options):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    svg = re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), count=1, flags=re.DOTALL)
    return Figure(name, title, alt, svg)
