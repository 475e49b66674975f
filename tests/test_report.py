"""The published report: pages that stand alone, hostile text as text, comparison, index, summary, PDF."""

from __future__ import annotations

import copy
import html.parser
import json
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
import pytest

from breakeven import analysis, artifacts, cli
from breakeven.analysis import arms, curve_plots
from breakeven.config import BreakEvenSettings
from breakeven.display import show
from breakeven.errors import UserError
from breakeven.report import comparison, pages, pdf, publishing
from tests import synthetic

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\n# h\n[x](http://evil.example) ${{7*7}} \x1b[31m"


def analysed(run_dir: Path, cells: dict[str, tuple[float, float]] | None = None, **options: Any) -> Path:
    """A run by hand: samples, cells, results and figures."""
    run_dir.mkdir(parents=True, exist_ok=True)
    synthetic.sweep(run_dir, cells or {"ngram-d4": (2.0, 1.25)}, **options)
    result = analysis.analyse(analysis.load(run_dir), BreakEvenSettings())
    analysis.save(result, curve_plots.figures(result), run_dir)
    return run_dir


def change(path: Path, **values: Any) -> None:
    artifacts.write_json(path, {**artifacts.read_json(path), **values})


class Elements(html.parser.HTMLParser):
    """Every start tag of a page with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def elements(path: Path) -> list[tuple[str, dict[str, str | None]]]:
    return Elements(path.read_text(encoding="utf-8")).found


def assert_inert(path: Path) -> None:
    """One script (our own, hashed), no handler, nothing that loads from anywhere."""
    tags = elements(path)
    assert [tag for tag, _ in tags].count("script") == 1
    assert not [tag for tag, _ in tags if tag in ("img", "iframe", "link", "object", "embed", "form", "base")]
    for tag, attributes in tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        assert not re.match(r"\s*(javascript|data|https?):", attributes.get("href") or "#"), attributes


def test_a_report_is_whole_pages_that_ask_for_nothing_from_outside(tmp_path: Path) -> None:
    written = publishing.publish(analysed(tmp_path / "run"))
    assert set(written) == {"report", "summary"}
    for path in (tmp_path / "run/report").glob("*.html"):
        assert_inert(path)
        assert "default-src" in path.read_text()


def test_the_answer_stands_first_with_its_uncertainty(tmp_path: Path) -> None:
    text = Path(publishing.publish(analysed(tmp_path / "run"))["report"]).read_text()
    main = text[text.index("<main>") :]
    places = ["imagined, 4 cores", "Yes. NGRAM with 4 draft tokens", "How sure.", "What next.", "<table"]
    assert [main.index(each) for each in places] == sorted(main.index(each) for each in places)
    assert "95 % interval" in main and "SGLang" in main and "one request at a time" in main


def test_every_picture_has_words_and_every_table_its_headings(tmp_path: Path) -> None:
    written = publishing.publish(analysed(tmp_path / "run"))
    tags = elements(Path(written["report"]))
    pictures = [attributes for tag, attributes in tags if tag == "svg"]
    assert len(pictures) >= 4
    assert all(each["role"] == "img" and len(each["aria-label"] or "") > 40 for each in pictures)
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in tags if tag == "th")


def test_hostile_names_logs_errors_and_parameters_show_up_as_text(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    synthetic.sweep(run_dir, {"ngram-d4": (2.0, 1.25)})
    content = json.loads((run_dir / "cells.json").read_text().replace("NGRAM", json.dumps(HOSTILE)[1:-1]))
    content["cells"].append(
        {**synthetic.launch_row("x" + HOSTILE, "x.restart0.1", 0, 9), "status": "failed", "log": HOSTILE}
        | {"failure": {"class": HOSTILE, "text": HOSTILE, "advice": HOSTILE}}
    )
    artifacts.write_json(run_dir / "cells.json", content)
    for row in (rows := artifacts.read_jsonl(run_dir / "samples.jsonl")):
        row["kind"] += HOSTILE
    (run_dir / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = analysis.analyse(analysis.load(run_dir), BreakEvenSettings())
    analysis.save(result, curve_plots.figures(result), run_dir)
    environment = {"host": HOSTILE, "cpu": HOSTILE, "cores": 2, "memory_gib": 1, "gpus": [], "python": HOSTILE}
    environment |= {"packages": {HOSTILE: HOSTILE}, "git_commit": None}
    run = {"status": "incomplete", "started_at": HOSTILE, "parameters_file": HOSTILE, "parameters": {"m": HOSTILE}}
    failed = {"exit_class": "cell-error", "failing_cell": 2, "error": HOSTILE, "seconds": 1.0}
    artifacts.write_json(run_dir / "run.json", {**run, "environment": environment, "notebooks": {"01": failed}})
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# T"), nbformat.v4.new_code_cell("1")])
    book.cells[1].outputs = [
        nbformat.v4.new_output("stream", name="stdout", text=HOSTILE),
        nbformat.v4.new_output("display_data", data={"text/html": show.table([{"a": HOSTILE}]).data}),
        nbformat.v4.new_output("display_data", data={"text/markdown": show.sentences([HOSTILE]).data}),
    ]
    (run_dir / "notebooks").mkdir()
    nbformat.write(book, run_dir / "notebooks" / "01.ipynb")
    other = analysed(tmp_path / "other")
    written = publishing.publish(run_dir, compare_with=other)
    texts = [Path(path).read_text() for path in written.values()] + [(run_dir / "report/01.html").read_text()]
    assert all("alert(1)" in text for text in texts)
    for path in (run_dir / "report").glob("*.html"):
        assert_inert(path)


def test_a_run_folder_with_a_hostile_name_is_linked_and_shown_as_text(tmp_path: Path) -> None:
    run_dir = analysed(tmp_path / 'a"><script>alert(1)<' / "b' onclick=x")
    publishing.publish(run_dir)
    publishing.publish_index(run_dir.parent)
    assert_inert(run_dir.parent / "index.html")
    assert_inert(run_dir / "report" / "index.html")


def test_a_report_of_500_cells_stays_small_and_its_tables_can_be_filtered(tmp_path: Path) -> None:
    run_dir = analysed(tmp_path / "run")
    result = artifacts.read_json(run_dir / "breakeven.json")
    result["comparisons"] = [{**result["comparisons"][0], "cell": f"c{number}"} for number in range(500)]
    result["findings"] = result["findings"] * 500
    artifacts.write_json(run_dir / "breakeven.json", result)
    cells = artifacts.read_json(run_dir / "cells.json")
    change(run_dir / "cells.json", cells=cells["cells"][:1] * 1000)
    page = Path(publishing.publish(run_dir)["report"])
    assert page.stat().st_size < 10_000_000 / 5
    assert "data long" in [attributes.get("class") for tag, attributes in elements(page) if tag == "table"]
    assert "findings in words" in page.read_text()


def test_a_widget_is_left_out_of_the_published_page(tmp_path: Path) -> None:
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1")], metadata={"widgets": {"x": {}}})
    data = {pages.WIDGET_VIEW: {"model_id": "m"}, "text/plain": "VBox(children=())"}
    book.cells[0].outputs = [nbformat.v4.new_output("display_data", data=data)]
    nbformat.write(book, tmp_path / "n.ipynb")
    _, body = pages.notebook_body(tmp_path / "n.ipynb")
    assert "VBox" not in body and "widget" not in body


def test_an_unreadable_notebook_is_a_sentence_and_not_the_end_of_the_report(tmp_path: Path) -> None:
    (tmp_path / "broken.ipynb").write_text("{<b>")
    assert "can't be read" in pages.notebook_body(tmp_path / "broken.ipynb")[1]


def test_a_figure_that_is_gone_is_named_by_its_words(tmp_path: Path) -> None:
    run_dir = analysed(tmp_path / "run")
    (run_dir / "figures/speedup.svg").unlink()
    assert "Figure missing: Speed-up over the baseline" in Path(publishing.publish(run_dir)["report"]).read_text()


def test_the_summary_fits_a_page_and_holds_the_answer_figures_and_next_steps(tmp_path: Path) -> None:
    text = Path(publishing.publish(analysed(tmp_path / "run"))["summary"]).read_text()
    body = re.sub(r"<svg.*?</svg>|<style>.*?</style>|<script>.*?</script>", "", text, flags=re.DOTALL)
    words = re.sub(r"<[^>]+>", " ", body).split()
    assert len(words) < 400
    for expected in ("Yes. NGRAM", "break-even accept length", "baseline, tok/s", "What to do next"):
        assert expected in body


def without_counts(run_dir: Path) -> Path:
    """A sweep whose server told no verify counts."""
    run_dir.mkdir(parents=True, exist_ok=True)
    synthetic.sweep(run_dir, {"ngram-d4": (2.0, 1.25)})
    rows = [{**row, "verify_ct": None} for row in artifacts.read_jsonl(run_dir / "samples.jsonl")]
    (run_dir / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result = analysis.analyse(analysis.load(run_dir), BreakEvenSettings())
    analysis.save(result, curve_plots.figures(result), run_dir)
    return run_dir


def test_publish_without_verify_counts(tmp_path: Path) -> None:
    written = publishing.publish(without_counts(tmp_path / "run"))
    report, summary = (Path(written[name]).read_text() for name in ("report", "summary"))
    assert "accept length and break-even (AL*) are unknown" in report and "no-verify-counts" in report
    assert "speed-up on these prompts" in summary and "break-even accept length" not in summary
    assert "Yes. NGRAM with 4 draft tokens decodes 1.6" in summary


def test_a_variants_drafter_without_verify_counts_is_no_baseline(tmp_path: Path) -> None:
    cells, baselines = {"fused/ngram-d4": (2.0, 1.25)}, {"baseline": 1.0, "fused/baseline": 0.8}
    synthetic.sweep(tmp_path, cells, baselines=baselines)
    rows = [{**row, "verify_ct": None} for row in artifacts.read_jsonl(tmp_path / "samples.jsonl")]
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = analysis.analyse(analysis.load(tmp_path), BreakEvenSettings())["answer"]["elsewhere"]
    assert [each.partition(" is faster")[0] for each in told if "times its rate" in each] == ["baseline, variant fused"]


def test_summary_tells_other_conditions(tmp_path: Path) -> None:
    cells = {"ngram-d4": (2.0, 1.4), "ngram-d4@c16": (2.0, 3.6)}
    run_dir = analysed(tmp_path / "run", cells, baselines={"baseline": 1.0, "baseline@c16": 1.2})
    text = Path(publishing.publish(run_dir)["summary"]).read_text()
    assert "concurrency 16 does not pay: 0.6" in text


def test_summary_and_index_label_the_example(tmp_path: Path) -> None:
    run_dir = tmp_path / "empty"
    run_dir.mkdir()
    analysis.save(analysis.analyse(analysis.load(run_dir), BreakEvenSettings()), [], run_dir)
    written = publishing.publish(run_dir)
    for name in ("report", "summary"):
        text = Path(written[name]).read_text()
        label = text.index("<strong>Not measured here.</strong>")
        assert label < text.index('class="sentence"') and "A recorded example, not this run: " in text
    index = publishing.publish_index(tmp_path).read_text()
    assert "none: example" in index and "NGRAM" not in index
    with pytest.raises(UserError, match="measured nothing itself"):
        results(run_dir, analysed(tmp_path / "other"))


GATES = {"arch": "sm120", "verdict": "denied-by-sglang", "headline": "A headline."}


@pytest.mark.parametrize(
    ("parameters", "gpus", "shown"),
    [
        ({"model": "m", "tp": 1, "gate_tp": 8}, [], False),
        ({"model": "m", "tp": 1, "gate_tp": 8}, [{"name": "G"}], False),
        ({"model": "m", "tp": 2}, [{"name": "G"}] * 2, True),
        ({"model": "none", "gate_tp": 8}, [], True),
        ({"model": "none", "gate_tp": 1}, [], False),
    ],
)
def test_the_fused_all_reduce_is_spoken_of_where_something_is_reduced(
    parameters: dict[str, Any], gpus: list[dict[str, str]], shown: bool
) -> None:
    run = {"parameters": parameters, "environment": {"gpus": gpus}}
    assert bool(publishing._relevant_gates(run, GATES)) == shown


def test_rates_say_per_stream_and_all_streams_where_there_are_several_and_restarts_count_from_1(
    tmp_path: Path,
) -> None:
    cells = {"ngram-d4": (2.0, 1.25), "ngram-d4@c4": (2.0, 1.25)}
    run_dir = analysed(tmp_path / "run", cells, baselines={"baseline": 1.0, "baseline@c4": 1.5})
    page = Path(publishing.publish(run_dir)["report"]).read_text()
    assert "tok/s per stream" in page and "tok/s of all streams" in page and "over all 4 streams" in page
    one = Path(publishing.publish(analysed(tmp_path / "one"))["report"]).read_text()
    heads = one[: one.index("What if?")]
    assert "tok/s per stream" in heads and "of all streams" not in heads
    launches = arms.launches(artifacts.read_json(run_dir / "cells.json")["cells"])
    assert {row["restart"] for row in launches} == {1, 2, 3} and min(row["order"] for row in launches) == 1


# --- two runs -------------------------------------------------------------------------------------------------------


def results(first: Path, second: Path) -> dict[str, Any]:
    return comparison.compare(publishing.read_run(first), publishing.read_run(second))


def test_runs_of_different_machines_get_no_verdict_and_are_flagged(tmp_path: Path) -> None:
    first, second = analysed(tmp_path / "a"), analysed(tmp_path / "b")
    change(second / "breakeven.json", machine={"cpu": "another", "cores": 4})
    found = results(first, second)
    assert found["machine"] == [{"name": "cpu", "first": "imagined", "second": "another"}]
    assert {row["verdict"] for row in found["cells"]} == {"another machine"}
    page = Path(publishing.publish(first, compare_with=second)["comparison"])
    assert "not of one machine" in page.read_text()


def test_on_one_machine_a_cell_that_changed_by_more_than_its_spread_is_called_so(tmp_path: Path) -> None:
    first = analysed(tmp_path / "a", {"ngram-d4": (2.0, 1.0), "ngram-d8": (2.0, 1.5)}, seed=1)
    second = analysed(tmp_path / "b", {"ngram-d4": (2.0, 1.5), "ngram-d6": (2.0, 1.5)}, seed=2)
    found = results(first, second)
    rows = {row["cell"]: row for row in found["cells"]}
    assert found["machine"] == [] and found["only"] == ["ngram-d6", "ngram-d8"]
    assert rows["ngram-d4"]["verdict"] == "faster"
    assert rows["ngram-d4"]["change"]["estimate"] == pytest.approx(1.5, rel=0.03)
    assert rows["baseline"]["verdict"] == "can't be told apart"


@pytest.mark.parametrize(
    ("name", "ours", "theirs"),
    [("model", "small", "big"), ("dtype", "bfloat16", "float16"), ("tp", 1, 2), ("kinds", [], ["code"]),
     ("prompts", "shipped", "mine.jsonl"), ("context_length", 2048, 4096)],
)  # fmt: skip
def test_compare_of_two_models_gives_no_verdict(tmp_path: Path, name: str, ours: Any, theirs: Any) -> None:
    first = analysed(tmp_path / "a", {"ngram-d4": (2.0, 1.0)}, seed=1)
    second = analysed(tmp_path / "b", {"ngram-d4": (2.0, 1.5)}, seed=2)
    (_, one), (_, two) = publishing.read_run(first), publishing.read_run(second)
    found = comparison.compare(({"parameters": {name: ours}}, one), ({"parameters": {name: theirs}}, two))
    assert {row["verdict"] for row in found["cells"]} == {f"not comparable: {name}"} and found["unlike"] == name
    assert "faster" in {row["verdict"] for row in results(first, second)["cells"]}


def test_two_runs_by_hand_of_different_models_get_no_verdict(tmp_path: Path) -> None:
    first, second = analysed(tmp_path / "a"), analysed(tmp_path / "b")
    about = artifacts.read_json(second / "breakeven.json")["setting"]
    change(second / "breakeven.json", setting={**about, "model": "another", "prompts": 99})
    page = Path(publishing.publish(first, compare_with=second)["comparison"]).read_text()
    assert "These runs differ in model:" in page and "not comparable: model" in page


def test_single_launches_are_compared_with_the_doubt_that_belongs_to_them(tmp_path: Path) -> None:
    first = analysed(tmp_path / "a", {"ngram-d4": (2.0, 1.0)}, restarts=1)
    second = analysed(tmp_path / "b", {"ngram-d4": (2.0, 1.5)}, restarts=1)
    assert "faster, launch noise assumed" in {row["verdict"] for row in results(first, second)["cells"]}


def test_parameters_that_differ_are_listed_and_the_folder_is_none(tmp_path: Path) -> None:
    first, second = analysed(tmp_path / "a"), analysed(tmp_path / "b")
    one, two = publishing.read_run(first), publishing.read_run(second)
    runs = [({"parameters": {"run_dir": name, "restarts": count}}, result) for name, count, (_, result) in
            (("a", 2, one), ("b", 3, two))]  # fmt: skip
    assert comparison.compare(*runs)["parameters"] == [{"name": "restarts", "first": "2", "second": "3"}]


def test_a_run_without_results_can_not_be_compared(tmp_path: Path) -> None:
    first = analysed(tmp_path / "a")
    with pytest.raises(UserError, match=r"no breakeven\.json"):
        comparison.compare(publishing.read_run(first), ({"run_id": "b"}, {}))


def test_the_index_lists_runs_newest_first_with_their_answers(tmp_path: Path) -> None:
    for name, day in (("old", 1), ("new", 2)):
        run_dir = analysed(tmp_path / name)
        environment = {"host": "h", "cpu": "c", "cores": 2, "memory_gib": 1, "gpus": [], "python": "3"}
        run = {"status": "whole", "started_at": f"2026-11-0{day}T10:00:00+00:00", "parameters_file": "p"}
        run |= {"parameters": {}, "notebooks": {}, "environment": {**environment, "packages": {}, "git_commit": None}}
        artifacts.write_json(run_dir / "run.json", run)
        publishing.publish(run_dir)
    (tmp_path / "half").mkdir()  # a folder without a report is none of the runs
    text = publishing.publish_index(tmp_path).read_text()
    assert text.index("new/report/index.html") < text.index("old/report/index.html") and "half" not in text
    assert "Yes. NGRAM" in text


# --- files that are half there --------------------------------------------------------------------------------------


WHOLE = {"status": "whole", "started_at": "2026-11-01T10:00:00+00:00", "parameters": {}, "environment": {}}
WHOLE |= {"notebooks": {"01_read_gating": {"exit_class": "dead-kernel"}}}


def half_written() -> dict[str, tuple[str, dict[str, Any]]]:
    lacking = {f"run.json without {key}": ("run.json", {**WHOLE, key: None}) for key in WHOLE}
    return lacking | {
        "empty run.json": ("run.json", {}),
        "notebooks as text": ("run.json", {**WHOLE, "notebooks": {"01": "x"}}),
        "empty breakeven.json": ("breakeven.json", {}),
        "an answer without its sentence": ("breakeven.json", {"source": "s", "answer": {}}),
        "cells without a launch": ("cells.json", {"cells": [{"cell": "x"}]}),
        "empty gates.json": ("gates.json", {}),
    }


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = analysed(tmp_path_factory.mktemp("published") / "run")
    publishing.publish(run_dir)
    return run_dir


@pytest.mark.parametrize("what", half_written())
def test_publish_survives_run_json_without_environment(what: str, published: Path, tmp_path: Path) -> None:
    good, bad = (shutil.copytree(published, tmp_path / name) for name in ("good", "bad"))
    name, content = half_written()[what]
    artifacts.write_json(bad / name, content)
    with pytest.raises(UserError, match=rf"{name} (lacks|holds)") as caught:
        publishing.publish(bad)
    assert "restore the file or remove it" in str(caught.value)
    index = publishing.publish_index(tmp_path).read_text()  # a bad run beside it is no obstacle
    assert f"{good.name}/report/index.html" in index
    assert ("bad/report/index.html" in index) == (name in ("cells.json", "gates.json"))


def test_a_run_json_of_an_earlier_release_is_published_with_what_it_has(published: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(published, tmp_path / "run")
    artifacts.write_json(run_dir / "run.json", {**WHOLE, "status": "incomplete"})
    page = Path(publishing.publish(run_dir)["report"]).read_text()
    assert "01_read_gating ended with dead-kernel" in page and "Yes. NGRAM" in page


@pytest.mark.parametrize(
    "content",
    ["", "{}", "[]", '{"cells": [', '{"nbformat":4,"nbformat_minor":5,"metadata":{},"cells":[{"cell_type":"code"}]}'],
)
def test_a_notebook_that_is_none_is_a_sentence_too(content: str, tmp_path: Path) -> None:
    (tmp_path / "n.ipynb").write_text(content)
    assert "can't be read" in pages.notebook_body(tmp_path / "n.ipynb")[1]


# --- PDF ------------------------------------------------------------------------------------------------------------


def test_a_pdf_without_a_browser_is_one_line_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = analysed(tmp_path / "run")
    monkeypatch.setattr(pdf.shutil, "which", lambda name: None)
    assert cli.main(["publish", str(run_dir), "--pdf"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and "chromium" in error and not (run_dir / "report").exists()


def test_a_browser_that_fails_is_told_with_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = tmp_path / "chromium"
    browser.write_text("#!/bin/sh\necho 'no display' >&2\nexit 3\n")
    browser.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    page = tmp_path / "page.html"
    page.write_text("<p>x</p>")
    with pytest.raises(UserError, match=r"exit 3.*no display"):
        pdf.print_page(page, tmp_path / "page.pdf")
    assert not (tmp_path / "page.pdf").exists()


def test_a_comparison_is_a_page_of_its_own_and_is_listed_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = analysed(tmp_path / "a"), analysed(tmp_path / "b")
    assert cli.main(["publish", str(first), "--compare", str(second), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["comparison"].endswith("compare-with-b.html") and Path(answer["comparison"]).exists()


def test_a_result_of_an_earlier_release_is_published_with_what_it_has(tmp_path: Path) -> None:
    run_dir = analysed(tmp_path / "run")
    result = artifacts.read_json(run_dir / "breakeven.json")
    old = {key: copy.deepcopy(result[key]) for key in ("answer", "comparisons", "warnings", "findings", "figures")}
    artifacts.write_json(run_dir / "breakeven.json", {**old, "source": result["source"]})
    assert "Yes. NGRAM" in Path(publishing.publish(run_dir)["report"]).read_text()


def test_a_sweep_that_was_continued_says_so() -> None:
    cells = [{"launch": "a", "ready_s": 40.0}, {"launch": "a", "ready_s": 40.0}, {"launch": "b", "ready_s": 30.0}]
    run = {"notebooks": {"04_sweep_drafters": {"seconds": 12.0}}}
    assert "took 70 s to get ready" in publishing._resumed(run, cells)
    assert publishing._resumed({"notebooks": {"04_sweep_drafters": {"seconds": 300.0}}}, cells) == ""
    assert publishing._resumed({}, cells) == ""


def test_recorded_figures_are_not_called_a_run_of_this_machine(tmp_path: Path) -> None:
    settings = BreakEvenSettings(records="parameters/kimi-k2.5-8x-rtx-pro-6000.csv")
    analysis.save(analysis.analyse(None, settings), [], tmp_path)
    environment = {"host": "h", "cpu": "THE MACHINE", "cores": 2, "memory_gib": 1, "gpus": [], "python": "3"}
    run = {"status": "whole", "started_at": "2026-11-30T10:00:00+00:00", "parameters_file": "p", "notebooks": {}}
    run |= {"parameters": {"model": "none", "gate_tp": 8}, "environment": {**environment, "packages": {}}}
    run["environment"]["git_commit"] = None
    artifacts.write_json(tmp_path / "run.json", run)
    artifacts.write_json(tmp_path / "gates.json", GATES)
    written = publishing.publish(tmp_path)
    head = Path(written["report"]).read_text().partition("How this page was made")[0]
    assert "THE MACHINE" not in head and "recorded figures" in head and "releases installed where" in head
    assert "THE MACHINE" not in Path(written["summary"]).read_text()
