"""How recorded figures may be meant: of one stream or of all, in which unit, against whose baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven import cli
from breakeven.costs import records
from breakeven.costs.figures import Figures
from breakeven.errors import UserError


def row(notes: dict[str, str] | None = None, **figures: float | None) -> dict[str, Any]:
    return records.analyze(Figures(id="r", notes=notes or {}, **figures))


def codes(result: dict[str, Any]) -> set[str]:
    return {warning["code"] for warning in result["warnings"]}


def text(result: dict[str, Any]) -> str:
    return " ".join(warning["text"] for warning in result["warnings"])


# --- one stream or all ----------------------------------------------------------------------------------------------


def test_batch_two_with_verify_half_of_the_cycle() -> None:
    ordinary = {"batch": 2, "base_tok_s": 210, "spec_tok_s": 250, "accept_length": 2.5, "draft_tokens": 3}
    for draft_ms in (None, 9):
        result = row(**ordinary, verify_ms=10, draft_ms=draft_ms)
        assert result["accept_length"] == 2.5 and result["cycle_ms"] == 20 and not result["assumptions"]
        assert result["break_even_accept_length"] == pytest.approx(2.1)
        assert codes(result) == {"verify-is-not-the-cycle"}
        assert "10.0 ms of the cycle are not verify" in text(result) and "1.25 each" in text(result)


@given(
    batch=st.integers(2, 64),
    step=st.floats(1, 100),
    length=st.floats(1, 4),
    break_even=st.floats(1, 10),
    part=st.floats(0.01, 1),
    column=st.sampled_from(["verify_ms", "cycle_ms"]),
)
def test_a_length_that_is_possible_per_stream_is_never_divided(
    batch: int, step: float, length: float, break_even: float, part: float, column: str
) -> None:
    rates = {"base_tok_s": 1000 * batch / step, "spec_tok_s": 1000 * batch * length / (step * break_even)}
    result = row(
        batch=batch, **rates, accept_length=length, draft_tokens=3, **{column: step * break_even * part}
    )  # fmt: skip
    assert result["accept_length"] == length and "accept-length-over-batch" not in codes(result)
    assert result["speedup"] == pytest.approx(length / break_even)


def test_a_cycle_that_fits_with_a_factor_of_the_batch_has_both_readings_told() -> None:
    result = row(batch=2, base_tok_s=100, spec_tok_s=110, accept_length=2.2, draft_tokens=3, cycle_ms=20)
    assert result["accept_length"] == 2.2 and result["verdict"] == "pays" and result["left_out"] == ["cycle_ms"]
    assert result["break_even_accept_length"] == pytest.approx(2.0)
    assert "rate-not-of-the-batch" in codes(result) and "accept-length-over-batch" not in codes(result)
    assert "either rates are wanted of all 2 streams" in text(result) and "(AL* 2)" in text(result)
    assert "or accept_length is the total over the streams, 1.1 each (AL* 1)" in text(result)
    slow = row(batch=2, base_tok_s=105, spec_tok_s=101, accept_length=2.02, draft_tokens=3, cycle_ms=20)
    assert slow["verdict"] == "does-not-pay" and "drafter-not-working" not in codes(slow)


def test_an_accept_length_below_the_batch_can_be_no_total() -> None:
    result = row(batch=8, base_tok_s=82, spec_tok_s=60, accept_length=2, cycle_ms=33.3)
    assert "rate-not-of-the-batch" in codes(result) and "total" not in text(result)
    assert result["verdict"] == "does-not-pay" and result["break_even_accept_length"] == pytest.approx(2.73, abs=0.01)


@pytest.mark.parametrize(
    ("batch", "figures", "per_stream"),
    [
        (8, {"accept_length": 19.28, "draft_tokens": 3}, 2.41),  # beyond any drafter
        (8, {"accept_length": 19.28}, 2.41),
        (4, {"accept_length": 7.44, "draft_tokens": 3, "cycle_ms": 16.61}, 1.86),  # beyond these drafts, and it fits
        (4, {"accept_length": 7.44, "draft_tokens": 3, "verify_ms": 16.0}, 1.86),
        (4, {"accept_length": 7.44, "draft_tokens": 3}, None),  # beyond these drafts alone: draft_tokens may be wrong
        (4, {"accept_length": 7.44, "cycle_ms": 66.4}, None),  # the cycle says that it is per stream
        (8, {"accept_length": 19.28, "cycle_ms": 147.7}, None),
    ],
)
def test_a_total_over_the_streams_is_divided_where_nothing_else_is_possible(
    batch: int, figures: dict[str, float], per_stream: float | None
) -> None:
    rates = {8: (795, 1044), 4: (566.21, 447.9)}[batch]
    result = row(batch=batch, base_tok_s=rates[0], spec_tok_s=rates[1], **figures)
    assert result["accept_length"] == pytest.approx(per_stream or figures["accept_length"])
    assert ("accept-length-over-batch" in codes(result)) == (per_stream is not None)
    if "draft_tokens" in figures:
        assert "accept-length-out-of-range" in codes(result) and f"({per_stream or 1.86:.4g} each)" in text(result)
    assert ("accept_length" in result["needs"]) == ("draft_tokens" in figures and per_stream is None)


def test_a_length_that_is_long_for_one_stream_is_doubted_and_not_divided() -> None:
    rates = {"batch": 4, "base_tok_s": 566.21, "spec_tok_s": 447.9}
    result = row(**rates, accept_length=7.44)
    assert codes(result) == {"accept-length-in-doubt"} and "1.86 each" in text(result)
    assert result["accept_length"] == 7.44 and result["verdict"] == "does-not-pay"
    assert not codes(row(**rates, accept_length=5.4)) and not codes(row(**rates, accept_length=7.44, cycle_ms=66.4))
    assert not codes(row(batch=1, base_tok_s=206, spec_tok_s=923, accept_length=7.6))


# --- units ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e-3, 1e3])
@pytest.mark.parametrize("given", [{"accept_length": 2.0}, {"draft_tokens": 3}, {"accept_length": 1.0}])
def test_cycle_in_seconds_does_not_decide(factor: float, given: dict[str, float]) -> None:
    result = row(batch=1, base_tok_s=82, spec_tok_s=60, cycle_ms=33.3 * factor, **given)
    without = row(batch=1, base_tok_s=82, spec_tok_s=60, **given)
    assert result["verdict"] == without["verdict"] == "does-not-pay"
    assert result["break_even_accept_length"] == without["break_even_accept_length"]
    assert "another-unit" in codes(result) and "cycle_ms is left out" in result["assumptions"][0]
    if given == {"accept_length": 2.0}:
        assert round(result["break_even_accept_length"], 2) == 2.73


def test_a_time_of_another_unit_gives_neither_rate_nor_bound() -> None:
    seconds = row(batch=1, base_tok_s=82, accept_length=2.0, cycle_ms=0.0333)
    assert seconds["verdict"] == "needs-more" and seconds["spec_tok_s"] is None and seconds["needs"] == ["spec_tok_s"]
    bound = row(batch=1, base_tok_s=82, accept_length=2.0, verify_ms=30000, draft_ms=3000)
    assert bound["verdict"] == "needs-more" and bound["break_even_accept_length"] is None
    parts = row(batch=1, base_tok_s=82, spec_tok_s=60, accept_length=2.0, verify_ms=30, draft_ms=3000)
    assert "parts-exceed-cycle" not in codes(parts) and parts["left_out"] == ["draft_ms"]
    reduced = row(batch=1, base_tok_s=82, spec_tok_s=60, accept_length=2.0, allreduce_count=122, allreduce_ms=200)
    assert codes(reduced) == {"another-unit", "allreduce-exceeds-baseline-step"}


def test_a_verify_of_another_unit_is_still_not_the_cycle_and_no_part_of_it() -> None:
    result = row(batch=1, base_tok_s=82, spec_tok_s=60, accept_length=2.0, verify_ms=30000)
    assert codes(result) == {"another-unit", "verify-is-not-the-cycle"} and result["not_verify_ms"] is None
    assert "2460" not in text(result)


@given(
    batch=st.integers(1, 64),
    step=st.floats(1, 100),
    length=st.floats(1, 4),
    break_even=st.floats(1.01, 10),
    factor=st.sampled_from([1e-3, 1e3]),
)
def test_a_cycle_of_another_unit_changes_nothing(
    batch: int, step: float, length: float, break_even: float, factor: float
) -> None:
    cycle = step * break_even
    rates = {"base_tok_s": 1000 * batch / step, "spec_tok_s": 1000 * batch * length / cycle}
    figures = {"batch": float(batch), **rates, "accept_length": length, "draft_tokens": 3.0}
    right, wrong = row(**figures, cycle_ms=cycle), row(**figures, cycle_ms=cycle * factor)
    assert right["verdict"] == wrong["verdict"] and not right["left_out"]
    assert wrong["break_even_accept_length"] == pytest.approx(right["break_even_accept_length"])


# --- impossible values ----------------------------------------------------------------------------------------------


def test_idle_drafter_from_rate_and_cycle() -> None:
    idle = row(batch=1, base_tok_s=82, spec_tok_s=82.5, draft_tokens=3, cycle_ms=12.2)
    assert idle["accept_length_source"] == "implied" and "drafter-not-working" in codes(idle)
    full = row(batch=1, base_tok_s=82, spec_tok_s=199, draft_tokens=3, cycle_ms=20)
    assert "every-draft-accepted" in codes(full)
    of_one_stream = row(batch=8, base_tok_s=82, spec_tok_s=60, cycle_ms=33.3)
    assert codes(of_one_stream) >= {"accept-length-out-of-range"} and "one of 8 streams" in text(of_one_stream)
    assert "accept_length" in of_one_stream["needs"]


@pytest.mark.parametrize(("length", "break_even"), [(0.62, 0.85), (4.1, 5.6)])
def test_impossible_accept_length_is_needed_again(length: float, break_even: float) -> None:
    result = row(batch=1, base_tok_s=82, spec_tok_s=60, accept_length=length, draft_tokens=3)
    assert result["needs"] == ["accept_length"] and "again" in result["needs_text"]
    assert round(result["break_even_accept_length"], 2) == break_even and result["margin"] is None
    assert result["verdict"] == "does-not-pay"


def test_both_readings_of_an_accept_length_below_1_are_said_once() -> None:
    result = row(batch=1, base_tok_s=82, spec_tok_s=60, accept_length=0.62, draft_tokens=3)
    assert text(result).count("bonus (then AL 1.62, cycle 27 ms, AL* 2.21)") == 1
    assert text(result).count("1.62") == 1 and text(result).count("rate of acceptance") == 1


# --- whose baseline -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "baseline in the same run",
        "blog, same-run baseline",
        "https://github.com/x/baseline/issues/3",
        "see github.com/x/baseline/issues/3, table 2",
        "docs + own baseline run",
        "vLLM blog (baseline and EAGLE3 in one session)",
        "blog, EAGLE3 vs baseline",
        "blog, vanilla baseline 82 tok/s",
        "issue #3, baseline of 82 tok/s",
    ],
)
def test_same_run_baseline_is_not_accused(source: str) -> None:
    assert not codes(row({"source": source}, batch=1, base_tok_s=82, spec_tok_s=60, accept_length=2))


@pytest.mark.parametrize(
    "source",
    [
        "sglang PR #4247 + docs baseline",
        "PR #4247, docs baseline",
        "PR #4247; baseline from the docs",
        "docs baseline + PR #4247",
        "PR #4247 + vLLM baseline",
        "baseline of another run",
        "PR #4247, baseline not from the same box",
    ],
)
def test_a_source_that_names_another_one_for_the_baseline_is_pointed_out(source: str) -> None:
    result = row({"source": source}, batch=1, base_tok_s=82, spec_tok_s=60, accept_length=2)
    assert codes(result) == {"baseline-of-another-run"}


@pytest.mark.parametrize(
    ("base_source", "accused"),
    [("docs", True), ("not the same run", True), ("Blog", False), ("same run", False), ("own run", False), ("", False)],
)
def test_a_source_of_the_baselines_own_counts_unless_it_says_the_same(base_source: str, accused: bool) -> None:
    result = row({"source": "blog", "base_source": base_source}, batch=1, base_tok_s=82, spec_tok_s=60)
    assert ("baseline-of-another-run" in codes(result)) == accused


def test_rows_of_one_source_with_other_baselines_are_asked_about_and_not_accused(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("id,source,model,batch,base_tok_s,spec_tok_s\nmt,docs,Q,1,149.9,257.5\ngsm,docs,Q,1,155.2,260\n")
    for result in records.analyze_csv(table)["rows"]:
        assert codes(result) == {"baselines-differ"} and "another workload, or another run?" in text(result)


# --- the reader and the command -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("num_draft_tokens", "counts the root in SGLang: subtract 1 and call it 'draft_tokens'"),
        ("speculative_num_draft_tokens", "subtract 1"),
        ("cycle_s", "convert it to milliseconds and call it 'cycle_ms'"),
        ("verify_us", "convert it to milliseconds and call it 'verify_ms'"),
        ("allreduce us", "call it 'allreduce_ms'"),
        ("base_tok_min", "convert it to tokens per second and call it 'base_tok_s'"),
    ],
)
def test_hint_names_root_and_unit(column: str, words: str, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text(f"id,{column}\na,4\n")
    with pytest.raises(UserError) as caught:
        records.analyze_csv(table)
    assert words in str(caught.value) and "did you mean" not in str(caught.value)


def test_a_count_of_draft_tokens_of_another_kind_is_carried_beside_the_one_that_is_wanted(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("id,draft_tokens,num_draft_tokens\na,3,4\n")
    assert records.analyze_csv(table)["other_columns"] == ["num_draft_tokens"]


def test_analyze_words_tell_what_was_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "t.csv"
    table.write_text("id,base_tok_s,spec_tok_s,accept_length\nb8,795,1044,2.41\n")
    assert cli.main(["analyze", str(table)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("reported figures")
    assert any(line.startswith("  assumes batch is empty: one stream") for line in lines)
