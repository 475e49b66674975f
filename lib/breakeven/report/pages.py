"""HTML pages: one file each that opens offline. Style, script and pictures are inline, nothing is fetched.

Whatever comes from outside (names, logs, error texts) is escaped, and a content security policy lets no script run but
our own and no request leave the page.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import nbformat
from markupsafe import Markup
from nbconvert import HTMLExporter

from breakeven.analysis import arms, columns
from breakeven.analysis.setting import machine_in_words
from breakeven.display import show

ANSI_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


def render(template: str, **values: Any) -> str:
    """A page from one of the library's templates."""
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return _environment().get_template(template).render(**values, policy=policy, script=Markup(script), columns=columns)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("breakeven.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    environment.filters["table"] = table
    environment.filters["filled"] = show.filled
    environment.filters["launches"] = launches_table
    environment.filters["runs"] = runs_table
    environment.filters["machine"] = machine_in_words
    return environment


@cache
def _script() -> str:
    return (Path(__file__).parent / "templates" / "table.js").read_text(encoding="utf-8")


def table(rows: Sequence[Mapping[str, Any]], heads: Mapping[str, str]) -> Markup:
    """Rows under the given headings, as notebooks show them."""
    return Markup(f'<div class="scroll" tabindex="0">{show.table_html(rows, heads)}</div>')


def launches_table(cells: Sequence[Mapping[str, Any]]) -> Markup:
    """Every launch with its fate, linked to its server's log and its trace where they are kept."""
    rows = arms.launches(cells)
    heads = columns.with_streams(columns.LAUNCHES, rows)
    lines = []
    for row, launch in zip(cells, rows, strict=True):
        links = [_link(f"../logs/{row['log']}", "log")] if row.get("log") else []
        trace = (row.get("profile") or {}).get("trace")
        links += [_link(f"../{trace}", "trace")] if trace else []
        shown = {key: html.escape(show.cell(launch.get(key))) for key in heads}
        line = "".join(
            f'<th scope="row">{text}</th>' if key == "cell" else f"<td{_to_the_right(launch.get(key))}>{text}</td>"
            for key, text in shown.items()
        )
        lines.append(f"<tr>{line}<td>{' '.join(links) or '–'}</td></tr>\n")
    return _with_heads((*heads.values(), "raw"), lines)


def _to_the_right(value: Any) -> str:
    return ' class="number"' if isinstance(value, float) else ""


def runs_table(runs: Sequence[Mapping[str, Any]]) -> Markup:
    """Runs, each linked to its report."""
    lines = []
    for run in runs:
        row = f'<th scope="row">{_link(run["link"], run["name"])}</th>'
        row += "".join(f"<td>{html.escape(show.cell(run[key]))}</td>" for key in ("started", "machine", "status"))
        row += f"<td>{html.escape(run['verdict'])}</td><td>{html.escape(run['sentence'])}</td>"
        lines.append(f"<tr>{row}</tr>\n")
    return _with_heads(("run", "started", "machine", "status", "verdict", "answer"), lines)


def _with_heads(heads: Sequence[str], lines: Sequence[str]) -> Markup:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in heads)
    body = "".join(lines)
    long = " long" if len(lines) > show.LONG else ""
    start = f'<div class="scroll" tabindex="0"><table class="data{long}">\n<thead><tr>{head}</tr></thead>'
    return Markup(f"{start}\n<tbody>\n{body}</tbody>\n</table></div>")


def _link(target: str, text: str) -> str:
    """A relative link; what could be read as a scheme or a query is quoted."""
    safe = "/".join(_quoted(part) for part in target.split("/"))
    return f'<a href="{html.escape(safe, quote=True)}">{html.escape(text)}</a>'


def _quoted(part: str) -> str:
    from urllib.parse import quote

    return part if part in ("..", ".") else quote(part)


# --- notebooks ------------------------------------------------------------------------------------------------------


def notebook_body(path: Path) -> tuple[str, str]:
    """Title and HTML body of an executed notebook: inputs hidden, logs folded away, no script and no request."""
    try:
        book = nbformat.read(path, as_version=4)
        nbformat.validate(book)  # reading only logs what is wrong
    except (OSError, ValueError, KeyError, AttributeError, nbformat.ValidationError) as error:
        return path.stem, f"<p class='bad'>This notebook's output can't be read: {html.escape(str(error))}</p>"
    book.metadata.pop("widgets", None)  # a widget needs a kernel; the table above it says the same
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = _fold_streams(each for each in cell.outputs if WIDGET_VIEW not in each.get("data", {}))
    exporter = HTMLExporter(
        template_name="basic", exclude_input=True, exclude_output_prompt=True, exclude_anchor_links=True
    )
    body, _ = exporter.from_notebook_node(book)
    body = re.sub(r"<script\b.*?</script>", "", body, flags=re.DOTALL | re.IGNORECASE)
    return _title(book, path.stem), body.replace(' id="cell-id=', ' id="cell-')  # "=" is no good in an id


def _fold_streams(outputs: Any) -> list[Any]:
    """Printed lines become one folded block: there for whoever wants them, out of the reader's way."""
    outputs = list(outputs)
    text = "".join("".join(each.text) for each in outputs if each.output_type == "stream")
    kept = [each for each in outputs if each.output_type != "stream"]
    lines = ANSI_CODES.sub("", text).strip().splitlines()
    if not lines:
        return kept
    log = html.escape("\n".join(lines))
    block = f"<details class='log'><summary>Log of this step ({len(lines)} lines)</summary><pre>{log}</pre></details>"
    return [*kept, nbformat.v4.new_output("display_data", data={"text/html": block})]


def _title(book: Any, fallback: str) -> str:
    for cell in book.cells:
        heading = re.match(r"#\s+(.+)", cell.source) if cell.cell_type == "markdown" else None
        if heading:
            return heading[1].strip()
    return fallback
