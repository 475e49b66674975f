"""Publish a run: an index page with the answer first, and one page per executed notebook.

Every page is one file that opens offline: style and pictures are inline, nothing is fetched. Whatever comes from
outside (names, logs, error texts) is escaped.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import jinja2
import nbformat
from markupsafe import Markup
from nbconvert import HTMLExporter

from breakeven import artifacts, show
from breakeven.errors import UserError

ANSI_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
DATA_FILES = {
    "run.json": "status, parameters as resolved, machine, packages",
    "gates.json": "every gate with file, line, expression and result",
    "fusion.json": "what was changed and how to undo it",
    "fusion.diff": "the change as a diff",
    "server.json": "effective settings, start-up seconds, readiness",
    "samples.jsonl": "one line per request",
    "cells.json": "one row per cell and restart",
    "breakeven.json": "results, intervals, verdicts, warnings",
}


def publish(run_dir: Path) -> Path:
    """Write ``report/`` of a run from whatever exists there; returns the path of its index.

    A run that is not whole is published too, and says so on its first screen. Raises UserError when the folder holds
    no run at all.
    """
    if not run_dir.is_dir():
        raise UserError(f"no run folder {run_dir}; runs are the folders under outputs/")
    run = _optional(run_dir / "run.json")
    executed = sorted((run_dir / "notebooks").glob("*.ipynb"))
    if not run and not executed and not (run_dir / "breakeven.json").exists():
        raise UserError(f"{run_dir} holds no run: neither run.json nor executed notebooks")
    folder = run_dir / "report"
    pages = []
    for path in executed:
        title, body = notebook_body(path)
        pages.append({"name": path.stem, "title": title, "file": f"{path.stem}.html"})
        text = _render("page.html.j2", title=title, body=Markup(body), run_id=run_dir.name)
        artifacts.write_text(folder / f"{path.stem}.html", text)
    result = _optional(run_dir / "breakeven.json")
    text = _render(
        "index.html.j2",
        run=run,
        run_id=run_dir.name,
        result=result,
        gates=_optional(run_dir / "gates.json"),
        fusion=_optional(run_dir / "fusion.json"),
        server=_optional(run_dir / "server.json"),
        cells=_optional(run_dir / "cells.json").get("cells", []),
        figures=[figure_html(run_dir, each) for each in result.get("figures", [])],
        pages=pages,
        data_files=[(name, what) for name, what in DATA_FILES.items() if (run_dir / name).exists()],
    )
    return artifacts.write_text(folder / "index.html", text)


def notebook_body(path: Path) -> tuple[str, str]:
    """Title and HTML body of an executed notebook: inputs hidden, logs folded away, no script and no request."""
    try:
        book = nbformat.read(path, as_version=4)
    except (OSError, ValueError) as error:
        return path.stem, f"<p class='bad'>This notebook's output can't be read: {html.escape(str(error))}</p>"
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = _fold_streams(cell.outputs)
    exporter = HTMLExporter(
        template_name="basic", exclude_input=True, exclude_output_prompt=True, exclude_anchor_links=True
    )
    body, _ = exporter.from_notebook_node(book)
    return _title(book, path.stem), re.sub(r"<script\b.*?</script>", "", body, flags=re.DOTALL | re.IGNORECASE)


def figure_html(run_dir: Path, figure: dict[str, str]) -> dict[str, Any]:
    """The figure as an inline element; a file that is gone is named instead of shown."""
    from breakeven.plots import Figure  # matplotlib takes seconds to import: only where a picture is shown

    try:
        svg = (run_dir / "figures" / f"{figure['name']}.svg").read_text(encoding="utf-8")
    except OSError:
        return {"name": figure["name"], "html": Markup(f"<p>Figure missing: {html.escape(figure['alt'])}</p>")}
    picture = Figure(figure["name"], figure["title"], figure["alt"], svg)
    return {"name": figure["name"], "html": Markup(picture.to_html())}


def _fold_streams(outputs: list[Any]) -> list[Any]:
    """Printed lines become one folded block: there for whoever wants them, out of the reader's way."""
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


def _optional(path: Path) -> dict[str, Any]:
    return artifacts.read_json(path) if path.exists() else {}


def _render(template: str, **values: Any) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("breakeven"), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    environment.filters["figure_of"] = show.cell
    return environment.get_template(template).render(**values)
