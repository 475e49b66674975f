"""How a notebook shows things: words as Markdown, rows as a table. Text from outside is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from IPython.display import HTML, Markdown

LONG = 200  # rows from which a table is printed in part
WORDY = 48  # characters from which a column gets room for sentences
VERDICTS = ("pays", "does-not-pay", "not-distinguishable", "needs-more")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_MARKDOWN_SIGNS = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_[]<>#|$~"})


def words(*sentences: str) -> Markdown:
    """Sentences of our own as a paragraph, one bullet each when there are several."""
    if len(sentences) == 1:
        return Markdown(sentences[0])
    return Markdown("\n".join(f"* {sentence}" for sentence in sentences))


def sentences(texts: Iterable[str], empty: str = "Nothing to tell.") -> Markdown:
    """Sentences that may hold text from outside, one bullet each, none for an empty one; ``empty`` without any."""
    lines = [" ".join(plain(text).split()) for text in texts if text]
    return words(*lines) if lines else words(empty)


def plain(text: object) -> str:
    """Text from outside, made safe for Markdown; an address in it becomes no link."""
    return printable(str(text)).translate(_MARKDOWN_SIGNS).replace("://", ":\\//")


def printable(text: str) -> str:
    """The text without control characters, which neither a page nor a picture can show."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def table(
    rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] | None = None, empty: str = "Nothing to show."
) -> HTML:
    """Rows as an HTML table. ``columns`` maps keys to headings with units and fixes their order.

    A missing figure is a dash; intervals (``estimate``, ``low``, ``high``) are written as ``1.23 (1.10 to 1.36)``, and
    with ``too_few`` instead where they say nothing.
    Without rows the sentence ``empty`` stands instead.
    """
    if not rows:
        return HTML(f"<p>{html.escape(empty)}</p>")
    return HTML(f'<div class="scroll" tabindex="0">{table_html(rows, columns)}</div>')


def table_html(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] | None = None) -> str:
    """The ``table`` element alone: headings with scope, figures to the right, everything escaped."""
    columns = columns or {key: key for row in rows for key in row}
    numeric = {key for key in columns if all(_is_figure(row.get(key)) for row in rows)}
    wordy = {key for key in columns if any(len(cell(row.get(key))) > WORDY for row in rows)} - numeric

    def number(key: str) -> str:
        return ' class="number"' if key in numeric else ' class="wordy"' if key in wordy else ""

    head = "".join(f'<th scope="col"{number(key)}>{html.escape(name)}</th>' for key, name in columns.items())
    lines = []
    for row in rows:
        first, *others = columns
        line = f'<th scope="row"{number(first)}>{html.escape(cell(row.get(first)))}</th>'
        line += "".join(f"<td{number(key)}>{_cell_html(row.get(key))}</td>" for key in others)
        lines.append(f"<tr>{line}</tr>\n")
    long = " long" if len(rows) > LONG else ""
    return f'<table class="data{long}">\n<thead><tr>{head}</tr></thead>\n<tbody>\n{"".join(lines)}</tbody>\n</table>'


def _cell_html(value: Any) -> str:
    text = html.escape(cell(value))
    if isinstance(value, Mapping) and " (" in text and not value.get("too_few"):
        estimate, interval = text.split(" ", 1)
        return f'{estimate} <span class="interval">{interval}</span>'
    return f'<strong class="{text}">{text}</strong>' if isinstance(value, str) and value in VERDICTS else text


def _is_figure(value: Any) -> bool:
    return value is None or (isinstance(value, int | float | Mapping) and not isinstance(value, bool))


def code(text: str) -> HTML:
    """A block of code or a diff, as it is."""
    return HTML(f"<pre>{html.escape(text)}</pre>")


def cell(value: Any, digits: int = 2) -> str:
    """One value as a reader wants it: rounded, with its interval, a dash where there is none."""
    if isinstance(value, Mapping):
        if "p50" in value:
            return " · ".join(cell(value[name], digits) for name in ("p10", "p50", "p90"))
        if cell(value.get("estimate")) == "–":
            return "–"
        estimate, low, high = estimate_of(value, digits), value.get("low"), value.get("high")
        if value.get("too_few"):
            return f"{estimate} ({value['too_few']})"
        return estimate if low is None or high is None else f"{estimate} ({ends(low, high, digits)})"
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    if isinstance(value, list | tuple):
        return ", ".join(cell(item, digits) for item in value)
    return printable(str(value))


def estimate_of(interval: Mapping[str, Any], digits: int = 2) -> str:
    """An interval's estimate, with as many digits as its `ends`."""
    low, high = interval.get("low"), interval.get("high")
    if not (interval.get("too_few") or low is None or high is None):
        digits = digits_for(low, high, digits)
    return f"{interval['estimate']:.{digits}f}"


def ends(low: float, high: float, digits: int = 2) -> str:
    """``1.10 to 1.36``: the ends of an interval, with the decimals that it needs, see `digits_for`."""
    digits = digits_for(low, high, digits)
    return f"{low:.{digits}f} to {high:.{digits}f}"


def digits_for(low: float, high: float, digits: int = 2) -> int:
    """So many decimals, or up to two more, that another figure can be written between an interval's ends; more still
    where an end would round to 1, the place that decides a verdict."""
    digits = next((more for more in (digits, digits + 1) if high - low >= 1.99 * 10**-more), digits + 2)
    while digits < 6 and any(round(end, digits) == 1 != end for end in (low, high)):
        digits += 1
    return digits


def filled(columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The columns that hold anything in any row."""
    known = {key for row in rows for key, value in row.items() if value not in (None, "")}
    return {key: name for key, name in columns.items() if key in known}
