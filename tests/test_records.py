"""Recorded figures: published reports, golden values, what follows from which figures, contradictions, bad files."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.costs import records
from breakeven.costs.figures import NUMBERS, Figures
from breakeven.errors import UserError

REPORTS = Path(__file__).parent / "data" / "public_reports.csv"
CODES = {
    "cycle-below-target-step",
    "accept-length-out-of-range",
    "verify-is-not-the-cycle",
    "allreduce-exceeds-baseline-step",
    "drafter-not-working",
}


def row(**figures: float) -> dict[str, Any]:
    return records.analyze(Figures(id="r", **figures))


def codes(result: dict[str, Any]) -> set[str]:
    return {warning["code"] for warning in result["warnings"]}


def text(result: dict[str, Any]) -> str:
    return " ".join(warning["text"] for warning in result["warnings"])


@pytest.mark.parametrize(("cycle_ms", "unit"), [(0.0333, "seconds"), (33333.0, "microseconds")])
def test_a_cycle_in_another_unit_is_told_by_its_size(cycle_ms: float, unit: str) -> None:
    assert f"that of {unit}" in text(row(base_tok_s=82, spec_tok_s=60, accept_length=2.0, cycle_ms=cycle_ms))


# --- published reports and golden values ----------------------------------------------------------------------------


def test_every_published_report_comes_out_within_rounding() -> None:
    with REPORTS.open() as file:
        expected = {report["id"]: report for report in csv.DictReader(file)}
    rows = records.analyze_csv(REPORTS)["rows"]
    assert len(rows) == len(expected) == 37
    for result in rows:
        report = expected[result["id"]]
        assert f"{result['cycle_ms']:.2f}" == report["expected_cycle_ms"]
        assert f"{result['break_even_accept_length']:.2f}" == report["expected_break_even"]
        assert f"{result['speedup']:.2f}" == report["expected_speedup"]


def test_of_the_published_reports_exactly_the_suspect_ones_are_warned_of() -> None:
    warned = {result["id"]: codes(result) for result in records.analyze_csv(REPORTS)["rows"] if result["warnings"]}
    assert warned == {
        "R50": {"cycle-below-target-step"},
        "R54": {"baseline-of-another-run"},
        "R56": {"baseline-of-another-run"},
    }


def test_columns_of_their_own_are_carried_verbatim() -> None:
    output = records.analyze_csv(REPORTS)
    assert output["rows"][0]["notes"]["model"] == "Qwen3-30B-A3B"
    assert "expected_cycle_ms" in output["other_columns"]


@pytest.mark.parametrize(("cycle_ms", "break_even"), [(30, 2.46), (28, 2.30), (22, 1.80)])
def test_a_cycle_and_a_baseline_give_the_break_even_without_any_accept_length(
    cycle_ms: float, break_even: float
) -> None:
    result = row(batch=1, base_tok_s=82, cycle_ms=cycle_ms)
    assert round(result["break_even_accept_length"], 2) == break_even
    assert result["verdict"] == "needs-more" and result["needs"] == ["accept_length"]


def test_the_sample_that_pays() -> None:
    result = row(batch=1, base_tok_s=206, spec_tok_s=305, accept_length=2.0, draft_tokens=3)
    assert round(result["cycle_ms"], 2) == 6.56
    assert round(result["break_even_accept_length"], 2) == 1.35
    assert result["verdict"] == "pays" and result["warnings"] == [] and result["needs"] == []


def test_the_story_of_kimi(tmp_path: Path) -> None:
    table = tmp_path / "kimi.csv"
    table.write_text(
        "id,batch,base_tok_s,spec_tok_s,accept_length,draft_tokens,cycle_ms,verify_ms,draft_ms,allreduce_count,allreduce_ms\n"
        "eagle3,1,82,60,2.0,,,30,,122,0.2\n"
        "ngram,1,82,41,,,,,,,\n"
        "if-30,1,82,,,,30,,,,\n"
        "saves-2,1,82,,,,28,,,,\n"
        "saves-8,1,82,,,,22,,,,\n"
    )
    rows = {result["id"]: result for result in records.analyze_csv(table)["rows"]}
    eagle = rows["eagle3"]
    assert eagle["verdict"] == "does-not-pay" and round(eagle["break_even_accept_length"], 2) == 2.73
    assert round(eagle["cycle_ms"], 1) == 33.3 and round(eagle["not_verify_ms"], 1) == 3.3
    assert codes(eagle) == {"verify-is-not-the-cycle", "allreduce-exceeds-baseline-step"}
    for figure in ("33.3 ms", "3.3 ms", "2.46", "2.73", "24.4 ms", "12.2 ms", "10.0 %"):
        assert figure in text(eagle)
    assert [round(rows[name]["break_even_accept_length"], 2) for name in ("if-30", "saves-2", "saves-8")] == [
        2.46,
        2.30,
        1.80,
    ]
    ngram = rows["ngram"]
    assert ngram["verdict"] == "does-not-pay" and ngram["speedup"] == 0.5
    assert ngram["break_even_accept_length"] is None and ngram["break_even_over_accept_length"] == 2.0
    assert ngram["needs"] == ["accept_length"] and "relative" in ngram["needs_text"]


# --- traps ----------------------------------------------------------------------------------------------------------


def test_an_accept_length_without_the_bonus_is_recognised_and_corrected_in_words() -> None:
    result = row(batch=1, base_tok_s=64.85, spec_tok_s=117.10, accept_length=1.621)
    assert codes(result) == {"cycle-below-target-step"}
    assert "2.621" in text(result) and "22.38" in text(result) and "1.45" in text(result)
    assert result["verdict"] == "pays"  # by the rates, whatever the accept length


def test_an_impossible_accept_length_decides_nothing() -> None:
    by_rates = row(batch=1, base_tok_s=63.3, spec_tok_s=150, accept_length=3.69, draft_tokens=2)
    assert "accept-length-out-of-range" in codes(by_rates) and by_rates["verdict"] == "pays"
    by_cycle = row(batch=1, base_tok_s=63.3, cycle_ms=20, accept_length=3.69, draft_tokens=2)
    assert by_cycle["verdict"] == "needs-more" and by_cycle["needs"] == ["accept_length"]
    assert by_cycle["margin"] is None
    assert "accept-length-out-of-range" not in codes(row(accept_length=3.0, draft_tokens=2))


@pytest.mark.parametrize(
    "figures",
    [
        {"accept_length": 24.28 / 24, "spec_tok_s": 957, "verify_ms": 24.61},
        {"accept_length": 24.28, "spec_tok_s": 957, "verify_ms": 24.61},
        {"accept_length": 24.28, "spec_tok_s": 957, "cycle_ms": 24.61},
        {"accept_length": 24.28, "cycle_ms": 24.61},
        {"accept_length": 24.28, "verify_ms": 24.61},
        {"accept_length": 24.28 / 24, "verify_ms": 24.61},
    ],
)
def test_24_tokens_of_24_streams_do_not_pay_however_they_are_written(figures: dict[str, float]) -> None:
    result = row(batch=24, base_tok_s=1435, **figures)
    assert result["verdict"] == "does-not-pay"
    assert result["accept_length"] == pytest.approx(24.28 / 24)
    assert ("accept-length-over-batch" in codes(result)) == (figures["accept_length"] > 2)
    if "spec_tok_s" in figures:
        assert codes(result) & {"verify-is-not-the-cycle", "cycle-contradicts-rate"}
        assert result["rate_over_implied"] == pytest.approx(-0.03, abs=0.001)


def test_rates_of_one_stream_beside_a_batch_are_pointed_out() -> None:
    result = row(batch=8, base_tok_s=40, spec_tok_s=60, accept_length=2, cycle_ms=33.3)
    assert {"rate-not-of-the-batch", "cycle-contradicts-rate"} <= codes(result)


def test_without_a_baseline_the_cycle_is_all_that_follows() -> None:
    result = row(batch=1, spec_tok_s=60, accept_length=2.0)
    assert result["cycle_ms"] == pytest.approx(33.33, abs=0.01)
    assert result["verdict"] == "needs-more" and result["needs"] == ["base_tok_s"]
    assert result["speedup"] is None and result["break_even_accept_length"] is None


def test_a_baseline_of_another_run_shows_in_the_parts() -> None:
    too_slow = row(batch=1, base_tok_s=100, spec_tok_s=150, accept_length=2, verify_ms=8)
    assert "verify-below-baseline-step" in codes(too_slow) and "another run" in text(too_slow)
    given = row(batch=1, base_tok_s=100, cycle_ms=8)
    assert codes(given) == {"cycle-below-target-step"} and "another run" in text(given)
    beyond = row(batch=1, base_tok_s=50, spec_tok_s=300, draft_tokens=3)
    assert codes(beyond) == {"speedup-out-of-range"}


def test_a_baseline_of_another_run_shows_between_rows(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(
        "id,source,model,batch,base_tok_s,spec_tok_s\n"
        "a,bench,M,1,100,150\nb,bench,M,1,90,150\nc,bench,M,4,100,300\nd,bench,N,1,70,150\n"
    )
    warned = {result["id"]: codes(result) for result in records.analyze_csv(table)["rows"]}
    assert warned["a"] == warned["b"] == {"baselines-differ"} and not warned["d"]
    assert warned["c"] == {"baseline-of-another-run"}


def test_the_tie_band_is_three_percent_on_both_sides() -> None:
    verdicts = [row(base_tok_s=100, spec_tok_s=rate)["verdict"] for rate in (96.9, 97, 100, 103, 103.1)]
    assert verdicts == ["does-not-pay", *["not-distinguishable"] * 3, "pays"]


def test_a_drafter_that_does_nothing_is_named() -> None:
    assert "drafter-not-working" in codes(row(accept_length=1.02))
    assert "drafter-not-working" not in codes(row(accept_length=1.03))
    assert {"drafter-not-working", "accept-length-out-of-range"} == codes(row(accept_length=0.4))
    assert codes(row(accept_length=4.0, draft_tokens=3)) == {"every-draft-accepted"}


# --- what follows from what -----------------------------------------------------------------------------------------


def test_cycle_and_accept_length_give_the_rate() -> None:
    result = row(batch=4, base_tok_s=400, cycle_ms=10, accept_length=2)
    assert result["spec_tok_s"] == 800 and result["verdict"] == "pays" and result["speedup"] == 2


def test_cycle_and_rate_give_the_accept_length() -> None:
    result = row(batch=1, base_tok_s=100, spec_tok_s=150, cycle_ms=20)
    assert result["accept_length"] == 3 and result["accept_length_source"] == "implied"
    assert result["margin"] == pytest.approx(1)
    assert "accept-length-out-of-range" in codes(
        row(batch=1, base_tok_s=100, spec_tok_s=150, cycle_ms=20, draft_tokens=1)
    )


def test_a_given_cycle_goes_before_the_implied_one_and_opposite_answers_decide_nothing() -> None:
    result = row(batch=1, base_tok_s=100, spec_tok_s=150, accept_length=2, cycle_ms=30)
    assert result["cycle_ms"] == 30 and "cycle-contradicts-rate" in codes(result)
    assert result["verdict"] == "needs-more" and "1.5" in result["because"] and "0.667" in result["because"]
    agreeing = row(batch=1, base_tok_s=100, spec_tok_s=150, accept_length=2, cycle_ms=15)
    assert agreeing["verdict"] == "pays" and "cycle-contradicts-rate" in codes(agreeing)


def test_verify_alone_bounds_the_break_even_from_below() -> None:
    open_end = row(batch=1, base_tok_s=82, verify_ms=30, draft_ms=2, accept_length=3.0)
    assert open_end["verdict"] == "needs-more" and open_end["cycle_source"] == "lower-bound"
    assert round(row(batch=1, base_tok_s=82, verify_ms=30)["break_even_accept_length"], 2) == 2.46
    closed = row(batch=1, base_tok_s=82, verify_ms=30, accept_length=2.0)
    assert closed["verdict"] == "does-not-pay" and closed["margin"] is None


def test_a_break_even_beyond_every_draft_accepted_needs_no_accept_length() -> None:
    result = row(batch=1, base_tok_s=82, cycle_ms=30, draft_tokens=1)
    assert result["verdict"] == "does-not-pay" and codes(result) == {"break-even-out-of-reach"}


def test_parts_and_allreduces_have_to_fit_into_what_holds_them() -> None:
    assert "parts-exceed-cycle" in codes(row(cycle_ms=20, verify_ms=18, draft_ms=5))
    assert "parts-exceed-cycle" not in codes(row(cycle_ms=20, verify_ms=15, draft_ms=4))
    assert codes(row(verify_ms=20, cycle_ms=30, allreduce_count=122, allreduce_ms=0.2)) == {"allreduce-exceeds-verify"}
    assert codes(row(cycle_ms=20, allreduce_count=122, allreduce_ms=0.2)) == {"allreduce-exceeds-cycle"}
    assert not codes(row(batch=1, base_tok_s=82, allreduce_count=122, allreduce_ms=0.05))


def test_a_verify_within_three_percent_of_the_cycle_is_no_contradiction() -> None:
    assert "verify-is-not-the-cycle" not in codes(row(spec_tok_s=60, accept_length=2, verify_ms=32.8))
    longer = row(spec_tok_s=60, accept_length=2, verify_ms=36)
    assert "can't be longer than its cycle" in text(longer)


def test_an_empty_batch_is_one_stream_and_says_so() -> None:
    result = row(base_tok_s=82, cycle_ms=30)
    assert result["batch"] == 1 and "batch is empty" in result["assumptions"][0]
    assert row(batch=1)["assumptions"] == []


def test_an_id_alone_needs_everything() -> None:
    result = row()
    assert result["verdict"] == "needs-more" and result["needs"] == ["base_tok_s", "spec_tok_s", "accept_length"]


figure = st.one_of(st.none(), st.floats(1e-9, 1e12))


@given(st.fixed_dictionaries(dict.fromkeys(NUMBERS, figure)))
def test_any_combination_of_figures_is_answered(figures: dict[str, float | None]) -> None:
    result = records.analyze(Figures(id="r", **figures))
    json.dumps(result, allow_nan=False)
    assert result["verdict"] in {"pays", "does-not-pay", "not-distinguishable", "needs-more"}
    assert (result["verdict"] == "needs-more") <= bool(result["needs"])
    assert result["needs"] == [] or result["needs_text"]
    if result["break_even_accept_length"] and result["cycle_source"] == "implied":
        ratio = result["accept_length"] / result["break_even_accept_length"]
        assert math.isclose(ratio, result["speedup"], rel_tol=1e-9)


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty; it needs a header"),
        (b"\n \n", "is empty"),
        (b"id,batch\n", "a header and no rows"),
        (b"batch,base_tok_s\n1,82\n", "no column 'id'"),
        (b"82,60\n1,2\n", "no column 'id'"),
        (b"id,batch,batch\na,1,1\n", "the column 'batch' twice"),
        (b"id;batch;base_tok_s\na;1;82\n", "separated by semicolons"),
        (b"id\tbatch\na\t1\n", "separated by tabs"),
        (b"id,accept_lenght\na,2\n", "did you mean 'accept_length'"),
        (b"id,batch\na,1\n,2\n", "line 3, column 'id': is empty"),
        (b"id,batch\na,1\na,2\n", "line 3, column 'id': 'a' stands in line 2 already"),
        (b"id,base_tok_s\na,fast\n", "line 2 (id 'a'), column 'base_tok_s': 'fast' is not a number; leave the cell"),
        (b"id,base_tok_s\na,82 tok/s\n", "write 1435.5, without separators or units"),
        (b"id,base_tok_s\na,1_435\n", "'1_435' is not a number"),
        (b'id,base_tok_s\na,"1,435"\n', "'1,435' is not a number"),
        (b"id,base_tok_s\na,1,435\n", "3 cells for 2 columns; a number with a thousands separator"),
        (b"id,base_tok_s\na,nan\n", "'nan' is not a number"),
        (b"id,base_tok_s\na,-inf\n", "'-inf' is not a number"),
        (b"id,base_tok_s\na,1e999\n", "out of range"),
        (b"id,base_tok_s\na,-82\n", "-82 is negative"),
        (b"id,spec_tok_s\na,0\n", "column 'spec_tok_s': is zero"),
        (b"id,draft_tokens\na,0.0\n", "column 'draft_tokens': is zero"),
        (b"id,source\na,caf\xe9\n", "line 2 is not UTF-8 (byte 0xe9"),
        (b"\xff\xfei\x00d\x00", "UTF-16"),
        (b"id,batch\na\0,1\n", "NUL byte"),
        (b'id,batch\n"a,1\n', "is no CSV"),
    ],
)
def test_a_bad_file_is_refused_in_one_line_that_says_where(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        records.analyze_csv(path)
    assert words in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        records.analyze_csv(tmp_path / "absent.csv")
    with pytest.raises(UserError, match="can't be read"):
        records.analyze_csv(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbfid,base_tok_s,spec_tok_s\r\na,100,150\r\n",  # a spreadsheet's byte-order mark and line ends
        b" ID , Base_tok_s ,spec_tok_s\na, 100 ,1.5e2\n",
        b"spec_tok_s,id,base_tok_s,note\n150,a,100,\n\n",
        b"id,base_tok_s,spec_tok_s,accept_length\na,100,150\n",  # trailing cells left out
        b'id,base_tok_s,spec_tok_s,note\n"a",100,150,"two\nlines"\n',
    ],
)
def test_harmless_differences_of_form_are_read(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    path.write_bytes(content)
    assert [(r["id"], r["speedup"]) for r in records.analyze_csv(path)["rows"]] == [("a", 1.5)]


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    path = tmp_path / "records.csv"
    path.write_text('id,model\n"<script>alert(1)</script>","=cmd()|\'x\'"\n')
    result = records.analyze_csv(path)["rows"][0]
    assert result["id"] == "<script>alert(1)</script>" and result["notes"]["model"] == "=cmd()|'x'"
