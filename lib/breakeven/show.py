"""How a notebook shows things: words as Markdown, rows as a table. Text from outside is escaped."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from IPython.display import HTML, Markdown

_MARKDOWN_SIGNS = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_[]<>#|$"})


def words(*sentences: str) -> Markdown:
    """Sentences of our own as a paragraph, one bullet each when there are several."""
    if len(sentences) == 1:
        return Markdown(sentences[0])
    return Markdown("\n".join(f"* {sentence}" for sentence in sentences))


def plain(text: object) -> str:
    """Text from outside, made safe for Markdown."""
    return str(text).translate(_MARKDOWN_SIGNS)


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] | None = None) -> HTML:
    """Rows as an HTML table. ``columns`` maps keys to headings with units and fixes their order.

    A missing figure is a dash; intervals (``estimate``, ``low``, ``high``) are written as ``1.23 (1.10 to 1.36)``.
    """
    frame = pd.DataFrame([{key: cell(value) for key, value in row.items()} for row in rows])
    if columns:
        frame = frame.reindex(columns=list(columns)).rename(columns=dict(columns)).fillna("–")
    return HTML(f'<div class="scroll">{frame.to_html(index=False, escape=True, border=0)}</div>')


def code(text: str) -> HTML:
    """A block of code or a diff, as it is."""
    return HTML(f"<pre>{html.escape(text)}</pre>")


def cell(value: Any, digits: int = 2) -> str:
    """One value as a reader wants it: rounded, with its interval, a dash where there is none."""
    if isinstance(value, Mapping):
        if value.get("estimate") is None:
            return "–"
        bounds = (value.get("low"), value.get("high"))
        estimate = cell(value["estimate"], digits)
        return estimate if None in bounds else f"{estimate} ({cell(bounds[0], digits)} to {cell(bounds[1], digits)})"
    if value is None or (isinstance(value, float) and value != value):
        return "–"
    if isinstance(value, float):
        return f"{value:.{digits}f}"
    if isinstance(value, list | tuple):
        return ", ".join(cell(item, digits) for item in value)
    return str(value)
