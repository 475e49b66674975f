"""Sets of prompts: what the shipped one promises, and what is refused in a user's."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import UserError
from breakeven.workload.prompts import MAX_PROMPT_CHARS, WARM_UP, Prompt, choose, load_prompts, warm_up

KINDS = ["open chat", "code edit", "rewrite with changes", "extraction", "list and table", "summary"]


def measured(prompts: list[Prompt]) -> list[Prompt]:
    return [prompt for prompt in prompts if prompt.kind != WARM_UP]


def line(**changes: Any) -> str:
    row = {"id": "a-1", "kind": "a", "prompt": "Say yes.", "max_new_tokens": 8} | changes
    return json.dumps({key: value for key, value in row.items() if value is not ...})


def write(folder: Path, *lines: str) -> Path:
    path = folder / "mine.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


class TestShippedSet:
    def test_has_as_many_prompts_of_each_of_six_kinds_and_at_least_48(self) -> None:
        counts = Counter(prompt.kind for prompt in measured(load_prompts()))
        assert set(counts) == set(KINDS)
        assert len(set(counts.values())) == 1
        assert counts.total() >= 48

    def test_any_prefix_is_balanced_over_the_kinds(self) -> None:
        counts = Counter({kind: 0 for kind in KINDS})
        for prompt in measured(load_prompts()):
            counts[prompt.kind] += 1
            assert max(counts.values()) - min(counts.values()) <= 1

    def test_ids_and_texts_are_unique_and_ids_name_the_kind(self) -> None:
        prompts = load_prompts()
        assert len({prompt.id for prompt in prompts}) == len({prompt.prompt for prompt in prompts}) == len(prompts)
        assert all(prompt.id.rsplit("-", 1)[0] == prompt.kind.replace(" ", "-") for prompt in prompts)

    def test_keeps_at_least_two_warm_up_prompts_apart(self) -> None:
        prompts = load_prompts()
        assert len(warm_up(prompts)) >= 2
        assert not {p.prompt for p in warm_up(prompts)} & {p.prompt for p in measured(prompts)}

    def test_leaves_answers_room_to_end_and_fits_a_small_context(self) -> None:
        for prompt in load_prompts():
            assert 64 <= prompt.max_new_tokens <= 160
            assert len(prompt.prompt) < 1_400  # under about 350 tokens


class TestUsersFile:
    def test_without_warm_up_prompts_gets_those_of_the_shipped_set(self, tmp_path: Path) -> None:
        prompts = load_prompts(write(tmp_path, line()))
        assert [prompt.id for prompt in measured(prompts)] == ["a-1"]
        assert warm_up(prompts) == warm_up(load_prompts())

    def test_with_warm_up_prompts_keeps_its_own(self, tmp_path: Path) -> None:
        own = line(id="w", kind=WARM_UP, prompt="Warm up.")
        assert [prompt.id for prompt in warm_up(load_prompts(write(tmp_path, line(), own)))] == ["w"]

    def test_may_have_blank_lines_a_byte_order_mark_line_separators_and_fields_of_its_own(self, tmp_path: Path) -> None:
        path = write(
            tmp_path, "\ufeff" + line(source="mail"), "", json.dumps(json.loads(line(id="b", prompt="x\u2028y")))
        )
        assert [prompt.prompt for prompt in measured(load_prompts(path))] == ["Say yes.", "x\u2028y"]

    @pytest.mark.parametrize(
        ("second", "complaint"),
        [
            ("{'id': 1}", ":2 is no JSON"),
            ('["a"]', r':2 is \["a"\]; a line is one object with id, kind, prompt, max_new_tokens'),
            (line(id=...), ":2 has no 'id'"),
            (line(id="b", max_new_tokens=...), ":2 has no 'max_new_tokens'"),
            (line(id=7), ":2 has id 7; it has to be a text"),
            (line(id="b", max_new_tokens="64"), ':2 has max_new_tokens "64"; it has to be a whole number'),
            (line(id="b", max_new_tokens=64.0), ":2 has max_new_tokens 64.0"),
            (line(id="b", max_new_tokens=True), ":2 has max_new_tokens true"),
            (line(id="b", max_new_tokens=0), ":2 has max_new_tokens 0; allowed: 1 to"),
            (line(id="b", prompt="  "), ":2 has an empty prompt"),
            (line(id="b", prompt="\ud83d"), ":2 has half a character in prompt"),
            (line(id="b", prompt="x" * (MAX_PROMPT_CHARS + 1)), ":2 has 1000001 characters; allowed: up to 1000000"),
            (line(prompt="Say no."), ":2 repeats the id 'a-1'"),
            (line(id="b"), ":2 repeats the text of 'a-1'"),
            ("[" * 100_000, ":2 is no JSON"),
        ],
    )
    def test_is_refused_with_the_line_and_the_reason(self, tmp_path: Path, second: str, complaint: str) -> None:
        with pytest.raises(UserError, match=complaint) as refusal:
            load_prompts(write(tmp_path, line(), second))
        assert "\n" not in str(refusal.value)
        assert len(str(refusal.value)) < 400

    @pytest.mark.parametrize("lines", [[], ["", " "], [line(kind=WARM_UP)]])
    def test_with_nothing_to_measure_is_refused(self, tmp_path: Path, lines: list[str]) -> None:
        with pytest.raises(UserError, match="holds no prompt to measure"):
            load_prompts(write(tmp_path, *lines))

    def test_that_is_missing_a_folder_or_not_text_is_refused(self, tmp_path: Path) -> None:
        binary = tmp_path / "model.safetensors"
        binary.write_bytes(b"\x80\xff\x00")
        for path in (tmp_path / "nowhere.jsonl", tmp_path, binary):
            with pytest.raises(UserError, match="can't be read"):
                load_prompts(path)

    def test_that_takes_an_id_of_an_added_warm_up_prompt_is_refused(self, tmp_path: Path) -> None:
        taken = warm_up(load_prompts())[0].id
        with pytest.raises(UserError, match=f"added because the file has none, repeats the id '{taken}'"):
            load_prompts(write(tmp_path, line(id=taken)))


THREE_KINDS = (
    Prompt("w", WARM_UP, "warm", 8),
    *(Prompt(f"{kind}{n}", kind, f"{kind} {n}", 8) for kind in "abc" for n in range(4)),
)


class TestChoice:
    def test_takes_the_first_of_each_kind_in_turn(self) -> None:
        assert [prompt.id for prompt in choose(THREE_KINDS, 2)] == ["a0", "b0", "c0", "a1", "b1", "c1"]

    def test_of_some_kinds_keeps_their_given_order(self) -> None:
        assert [prompt.id for prompt in choose(THREE_KINDS, 1, kinds=["c", "a"])] == ["c0", "a0"]

    @given(st.integers(), st.integers(1, 4))
    def test_with_a_seed_is_repeatable_balanced_and_without_repeats(self, seed: int, n_per_kind: int) -> None:
        chosen = choose(THREE_KINDS, n_per_kind, seed=seed)
        assert chosen == choose(THREE_KINDS, n_per_kind, seed=seed)
        assert Counter(prompt.kind for prompt in chosen) == dict.fromkeys("abc", n_per_kind)
        assert len(set(chosen)) == len(chosen)

    def test_of_too_many_or_none_is_refused(self) -> None:
        for n_per_kind in (0, 5):
            with pytest.raises(UserError, match="allowed: 1 to 4"):
                choose(THREE_KINDS, n_per_kind)

    def test_of_an_unknown_kind_is_refused_with_a_suggestion(self) -> None:
        with pytest.raises(UserError, match="did you mean 'code edit'"):
            choose(load_prompts(), 1, kinds=["code edits"])
