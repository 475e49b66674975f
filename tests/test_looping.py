"""Loops are found, and text that repeats for good reason is left alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakeven.artifacts import read_jsonl
from breakeven.workload.looping import is_degenerate, repetition

# Answers of SmolLM2-135M-Instruct (float32, greedy): those to the shipped prompts, and loops that other prompts led to.
ANSWERS = read_jsonl(Path(__file__).parent / "data" / "smollm2-135m-answers.jsonl")

ITEMS = ["milk", "eggs", "flour", "salt", "rice", "tea", "oil", "figs", "nuts", "soap", "glue", "ink", "wax", "jam"]
GOOD_REASON = {
    "table": "| Number | Square |\n| --- | --- |\n" + "".join(f"| {n} | {n * n} |\n" for n in range(1, 25)),
    "calendar": "".join(f"| {week} | {7 * week + 1} | {7 * week + 2} | {7 * week + 3} |\n" for week in range(12)),
    "shopping list": "".join(f"- {item}\n" for item in ITEMS),
    "imports": "".join(f"import {item}\n" for item in ITEMS),
    "fields": "".join(f"        self.{item} = {item}\n" for item in ITEMS),
    "records": "".join(f'  {{"id": {n}, "name": "{item}", "price": {n * 7}.90}},\n' for n, item in enumerate(ITEMS)),
    "said twice": "The road was closed for five hours, and the police asked people in both villages for help. " * 2,
    "refrain": "".join(f"Row, row, row your boat, gently past the {place}.\n" for place in ("mill", "inn", "church")),
    "rulers": "Prices\n" + "=" * 20 + "\ntea 2\ncoffee 3\n" + "-" * 20 + "\n",
}


def token_ids(text: str) -> list[int]:
    """Words, runs of blanks and single marks as tokens: about what a subword tokenizer does to this kind of text."""
    vocabulary: dict[str, int] = {}
    return [vocabulary.setdefault(word, len(vocabulary)) for word in re.findall(r"\w+|[ ]+|[^\w ]", text)]


def named(answer: dict[str, Any]) -> str:
    return answer["id"]


@pytest.mark.parametrize("answer", [a for a in ANSWERS if not a["loops"]], ids=named)
def test_a_small_models_sound_answer_is_no_loop(answer: dict[str, Any]) -> None:
    assert not is_degenerate(answer["output_ids"])


@pytest.mark.parametrize("answer", [a for a in ANSWERS if a["loops"]], ids=named)
def test_a_small_models_loop_is_found(answer: dict[str, Any]) -> None:
    assert is_degenerate(answer["output_ids"])
    assert repetition(answer["output_ids"]) > 0.3


@pytest.mark.parametrize("text", GOOD_REASON.values(), ids=GOOD_REASON.keys())
def test_text_that_repeats_for_good_reason_is_no_loop(text: str) -> None:
    assert not is_degenerate(token_ids(text))


@given(st.integers(1, 50), st.lists(st.integers(0, 1000), max_size=60), st.integers(0, 40))
@settings(max_examples=60)
def test_a_loop_of_any_period_up_to_50_is_found_after_any_start(period: int, start: list[int], more: int) -> None:
    again = max(24, 3 * period // 2 + 1) + more  # tokens after the first round
    loop = [2000 + place % period for place in range(period + again)]
    assert is_degenerate(start + loop)
    assert is_degenerate([*start, *loop, 7, 8, 9])  # also when the model found its way out


@given(st.integers(11, 40))
def test_a_loop_with_a_counter_that_runs_on_is_found(period: int) -> None:
    assert is_degenerate(
        [1000 + place // period if place % period == 0 else place % period for place in range(10 * period)]
    )


@given(
    st.integers(2, 30).flatmap(lambda row: st.tuples(st.just(row), st.sets(st.integers(0, row - 1), min_size=2))),
    st.integers(1, 40),
)
@settings(max_examples=60)
def test_rows_that_differ_in_two_places_are_no_loop_however_many(
    row_and_cells: tuple[int, set[int]], rows: int
) -> None:
    row, cells = row_and_cells
    table = [1000 * (number + 1) + place if place in cells else place for number in range(rows) for place in range(row)]
    assert not is_degenerate(table)


@given(st.lists(st.integers(0, 5), max_size=200))
def test_repetition_is_a_share(ids: list[int]) -> None:
    assert 0.0 <= repetition(ids) <= 1.0


def test_repetition_of_a_whole_loop_is_nearly_one_and_of_no_repeat_zero() -> None:
    assert repetition([3, 4] * 50) == 0.98
    assert repetition(range(100)) == 0.0
    assert repetition([]) == 0.0
    assert not is_degenerate([])
    assert not is_degenerate([2])
