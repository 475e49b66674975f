"""Publish a run: an index page with the answer first, a one-page summary, one page per executed notebook, the index
over all runs, and on request a comparison with another run and a PDF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from breakeven import artifacts
from breakeven.analysis import left_out, next_steps, outlook, results, setting, wording
from breakeven.errors import UserError
from breakeven.report import comparison, pages, pdf
from breakeven.report.run_files import read, read_cells, read_run

DATA_FILES = {
    "run.json": "status, parameters as resolved, machine, packages",
    "gates.json": "every gate with file, line, expression and result",
    "fusion.json": "what was changed and how to undo it",
    "fusion.diff": "the change as a diff",
    "server.json": "effective settings, start-up seconds, readiness",
    "allreduce.json": "all-reduce latency by message size",
    "samples.jsonl": "one line per request",
    "cells.json": "one row per cell and restart",
    "forecast.json": "what fusing was predicted to bring, before it was measured",
    "breakeven.json": "results, intervals, verdicts, what-if, next steps, warnings",
    "plan.md": "what to do next, ranked",
    "fastest.sh": "launches the server of the cell with the highest mean rate",
    "comparisons.csv": "break-even per arm",
    "by_kind.csv": "break-even per arm and kind of prompt",
    "variants.csv": "variants of the server against the default",
    "cells.csv": "rates, accept lengths and cycles per cell",
    "theory.csv": "theory beside measurement",
    "left_out.csv": "settings left out of the fit: predicted beside measured",
}


def publish(run_dir: Path, *, compare_with: Path | None = None, as_pdf: bool = False) -> dict[str, str]:
    """Write ``report/`` of a run from whatever exists there; the paths of what was written.

    Keys: report and summary, runs (where the run lies among others in ``outputs/``), comparison, pdf. A run that is
    not whole is published too, and says so on its first screen. Raises UserError when the folder holds no run at all or
    a file lacks what a page needs, when the other run can't be compared, and when a PDF is asked for where no Chromium
    is installed.
    """
    if as_pdf:
        pdf.find_browser()  # before anything is written
    (run, result), cells = read_run(run_dir), read_cells(run_dir)
    folder = run_dir / "report"
    in_outputs = run_dir.resolve().parent == (artifacts.project_root() / "outputs").resolve()
    values = {
        "run": run,
        "run_id": run_dir.name,
        "result": result,
        **_tables(result),
        "judged_words": next_steps.JUDGED,
        "example": bool(result) and results.is_example(result),
        "recorded": bool(result and result["reported"] and not result["comparisons"]),
        "resumed": _resumed(run, cells),
        "gates": _relevant_gates(run, read(run_dir, "gates.json")),
        "runs_index": in_outputs,
        "cells": cells,
        "figures": [figure_html(run_dir, each) for each in result["figures"]] if result else [],
        "pages": _publish_notebooks(run_dir, folder),
        "data_files": [(name, what) for name, what in DATA_FILES.items() if (run_dir / name).exists()],
    }
    written = {"report": artifacts.write_text(folder / "index.html", pages.render("index.html.j2", **values))}
    values |= {"key_figures": _key_figures(result), "figures": values["figures"][:1]}
    written["summary"] = artifacts.write_text(folder / "summary.html", pages.render("summary.html.j2", **values))
    if compare_with is not None:
        found = comparison.compare(read_run(run_dir), read_run(compare_with))
        page = pages.render("compare.html.j2", found=found, first=run_dir.name, second=compare_with.name)
        written["comparison"] = artifacts.write_text(folder / f"compare-with-{compare_with.name}.html", page)
    if in_outputs:
        written["runs"] = publish_index(run_dir.resolve().parent)
    if as_pdf:
        written["pdf"] = pdf.print_page(folder / "index.html", folder / "report.pdf")
    return {name: str(path) for name, path in written.items()}


def _tables(result: Mapping[str, Any]) -> dict[str, Any]:
    """What the index page shows of a result, as tables want it."""
    if not result:
        names = ("what_if", "judged", "bars", "left_out", "not_ranked")
        return dict.fromkeys(names, ())
    judged, pinned = wording.judged_and_pinned(result["comparisons"])
    return {
        "what_if": outlook.what_if_rows(result["outlook"]["what_if"]) if result["outlook"] else [],
        "judged": judged,
        "bars": pinned,
        "left_out": left_out.table_rows(result["left_out"]),
        "not_ranked": next_steps.left_out_in_words(result["outlook"]),
    }


def _resumed(run: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> str:
    """What to know of a sweep that was continued: its servers took longer than its notebook's last start."""
    seconds = ((run.get("notebooks") or {}).get("04_sweep_drafters") or {}).get("seconds")
    ready_s = sum({row["launch"]: row.get("ready_s") or 0.0 for row in cells}.values())
    if seconds is None or ready_s <= seconds:
        return ""
    return (
        f"The servers alone took {ready_s:.0f} s to get ready, the last start of notebook 04 {seconds:.0f} s: the "
        "sweep was continued. Launches that had not ended were made anew, so that their numbers are missing, and the "
        "parameters below are those of the last start."
    )


def _relevant_gates(run: Mapping[str, Any], gates: dict[str, Any]) -> dict[str, Any]:
    """The gates where this run is about all-reduces at all: several GPUs, or recorded figures of such a box."""
    parameters = run.get("parameters") or {}
    served = parameters.get("model") != "none"
    tp = parameters.get("tp" if served else "gate_tp") or 1
    concerned = tp > 1 and (not served or bool(run["environment"]["gpus"]))
    return gates if run and concerned else {}


def publish_index(outputs: Path) -> Path:
    """``index.html`` over all runs of a folder that have a report, newest first."""
    runs, comparisons = [], []
    for folder in outputs.iterdir():
        if not (folder / "report" / "index.html").exists():
            continue
        try:
            run, result = read_run(folder)
        except UserError:
            continue
        answer = result.get("answer", {})
        if result and results.is_example(result):
            answer = {"verdict": "none: example", "sentence": "Not measured here: the page shows a recorded example."}
        runs.append(
            {
                "name": folder.name,
                "link": f"{folder.name}/report/index.html",
                "started": run.get("started_at", "")[:16].replace("T", " ") or "by hand",
                "machine": setting.machine_in_words(run["environment"]) if run else "not recorded",
                "status": run.get("status", "by hand"),
                "verdict": answer.get("verdict", "none"),
                "sentence": answer.get("sentence", "The break-even analysis did not run."),
            }
        )
        for path in sorted((folder / "report").glob("compare-with-*.html")):
            other = path.stem.removeprefix("compare-with-")
            comparisons.append((f"{folder.name}/report/{path.name}", f"{folder.name} beside {other}"))
    runs.sort(key=lambda row: (row["started"] != "by hand", row["started"]), reverse=True)
    page = pages.render("runs.html.j2", runs=runs, comparisons=comparisons)
    return artifacts.write_text(outputs / "index.html", page)


def _publish_notebooks(run_dir: Path, folder: Path) -> list[dict[str, str]]:
    published = []
    for path in sorted((run_dir / "notebooks").glob("*.ipynb")):
        title, body = pages.notebook_body(path)
        text = pages.render("page.html.j2", title=title, body=Markup(body), run_id=run_dir.name)
        artifacts.write_text(folder / f"{path.stem}.html", text)
        published.append({"name": path.stem, "title": title, "file": f"{path.stem}.html"})
    return published


def figure_html(run_dir: Path, figure: Mapping[str, str]) -> dict[str, Any]:
    """The figure as an inline element; a file that is gone is named instead of shown."""
    from breakeven.display.plots import Figure  # matplotlib takes seconds to import: only where a picture is shown

    try:
        svg = (run_dir / "figures" / f"{figure['name']}.svg").read_text(encoding="utf-8")
    except OSError:
        return {"name": figure["name"], "html": Markup("<p>Figure missing: {}</p>").format(escape(figure["alt"]))}
    picture = Figure(figure["name"], figure["title"], figure["alt"], svg)
    return {"name": figure["name"], "html": Markup(picture.to_html())}


def _key_figures(result: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    """What a manager has to know, in five lines."""
    best = result["answer"]["best"] if result else None
    if not best:
        return []
    rows = [
        {
            "what": "speed-up on these prompts",
            "figure": best["speedup_same_prompts"],
            "meaning": f"times the baseline's rate on the {best['prompts']} prompts measured; above 1 is faster",
        },
        {
            "what": "speed-up for other prompts",
            "figure": best["speedup"],
            "meaning": "the same for others of these kinds",
        },
    ]
    lengths = (
        ("accept length", "accept_length", "tokens that one verify yields"),
        ("break-even accept length", "break_even", "what it has to yield to pay"),
    )
    rows += [
        {"what": what, "figure": best[name]["estimate"], "meaning": meaning}
        for what, name, meaning in lengths
        if best[name]
    ]
    streams = "" if best["concurrency"] == 1 else f", of {best['concurrency']} at once"
    for what, name in (("baseline, tok/s", "base_tok_s"), ("speculation, tok/s", "spec_tok_s")):
        rows.append({"what": what, "figure": best[name], "meaning": f"per stream{streams}, prefill left out"})
    return rows
