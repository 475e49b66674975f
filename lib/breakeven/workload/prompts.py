"""Sets of prompts: one JSON object a line, each of a named kind, checked before anything is measured with them."""

from __future__ import annotations

import itertools
import json
import random
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from breakeven.errors import UserError, did_you_mean, one_line

SHIPPED = Path(__file__).parents[1] / "embedded" / "prompts.jsonl"
WARM_UP = "warm-up"
MAX_PROMPT_CHARS = 1_000_000  # about 250,000 tokens: more is a file put in by mistake
MAX_NEW_TOKENS = 32_768


@dataclass(frozen=True)
class Prompt:
    """One user message; ``max_new_tokens`` bounds the answer, which should end by itself before."""

    id: str
    kind: str
    prompt: str
    max_new_tokens: int


_FIELDS: dict[str, type] = {"id": str, "kind": str, "prompt": str, "max_new_tokens": int}
_FORM = f"one object with {', '.join(_FIELDS)}"


def load_prompts(path: Path | None = None) -> list[Prompt]:
    """Prompts of a JSON Lines file in its order (None: the shipped set), warm-up prompts included.

    A file without prompts of the kind ``warm-up`` gets those of the shipped set. Raises UserError, with the line's
    number, for a line that is no prompt and for an id or a text that stands twice (an n-gram drafter remembers the
    answer to a text: accept length 1.2 on first sight, 4.0 on second), and for a file with nothing to measure.
    """
    source = path or SHIPPED
    try:
        content = source.read_text(encoding="utf-8-sig")  # some editors begin a file with a byte-order mark
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"prompts: {source} can't be read: {one_line(error)}") from None
    placed = [
        (f"{source}:{number}", _parse(line, f"{source}:{number}"))
        for number, line in enumerate(content.split("\n"), 1)  # splitlines() would also cut at U+2028 inside a text
        if line.strip()
    ]
    if all(prompt.kind == WARM_UP for _, prompt in placed):
        raise UserError(f"prompts: {source} holds no prompt to measure; each line is {_FORM}")
    if not warm_up(prompt for _, prompt in placed):
        origin = f"{source}: a warm-up prompt of the shipped set, added because the file has none,"
        placed += [(origin, prompt) for prompt in warm_up(load_prompts())]
    _refuse_repeated(placed)
    return [prompt for _, prompt in placed]


def _parse(line: str, where: str) -> Prompt:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"prompts: {where} is no JSON ({one_line(error)}); a line is {_FORM}") from None
    if not isinstance(row, dict):
        raise UserError(f"prompts: {where} is {_shown(row)}; a line is {_FORM}")
    for field, kind in _FIELDS.items():
        if field not in row:
            raise UserError(f"prompts: {where} has no {field!r}; a line is {_FORM}")
        value = row[field]
        if type(value) is not kind:  # isinstance would take true for 1
            wanted = "a whole number" if kind is int else "a text"
            raise UserError(f"prompts: {where} has {field} {_shown(value)}; it has to be {wanted}")
        if isinstance(value, str) and not value.strip():
            raise UserError(f"prompts: {where} has an empty {field}")
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise UserError(f"prompts: {where} has half a character in {field} (an escape \\ud800 to \\udfff alone)")
    if not 1 <= row["max_new_tokens"] <= MAX_NEW_TOKENS:
        raise UserError(f"prompts: {where} has max_new_tokens {row['max_new_tokens']}; allowed: 1 to {MAX_NEW_TOKENS}")
    if len(row["prompt"]) > MAX_PROMPT_CHARS:
        raise UserError(f"prompts: {where} has {len(row['prompt'])} characters; allowed: up to {MAX_PROMPT_CHARS}")
    return Prompt(**{field: row[field] for field in _FIELDS})


def _refuse_repeated(placed: Iterable[tuple[str, Prompt]]) -> None:
    ids: set[str] = set()
    id_of_text: dict[str, str] = {}
    for where, prompt in placed:
        if prompt.id in ids:
            raise UserError(f"prompts: {where} repeats the id {prompt.id!r}; give each prompt its own")
        if prompt.prompt in id_of_text:
            first = id_of_text[prompt.prompt]
            raise UserError(f"prompts: {where} repeats the text of {first!r}; a server may see each text only once")
        ids.add(prompt.id)
        id_of_text[prompt.prompt] = prompt.id


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def warm_up(prompts: Iterable[Prompt]) -> list[Prompt]:
    """The prompts that a server gets before it is measured."""
    return [prompt for prompt in prompts if prompt.kind == WARM_UP]


def choose(
    prompts: Iterable[Prompt],
    n_per_kind: int,
    kinds: Sequence[str] | None = None,
    seed: int | None = None,
    skip: int = 0,
) -> list[Prompt]:
    """``n_per_kind`` prompts of each kind (None: all but warm-up), one of each kind in turn.

    Without a seed they are the first of each kind in the file's order after ``skip``, with one a draw that the seed
    alone decides. Raises UserError for an unknown kind and for a kind with too few prompts.
    """
    by_kind: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        if prompt.kind != WARM_UP:
            by_kind.setdefault(prompt.kind, []).append(prompt)
    wanted = list(by_kind) if kinds is None else list(dict.fromkeys(kinds))
    drawn = []
    for kind in wanted:
        if kind not in by_kind:
            raise UserError(f"no prompts of the kind {kind!r}{did_you_mean(kind, by_kind)}")
        of_kind = by_kind[kind]
        if not 1 <= n_per_kind <= len(of_kind) - skip:
            used = f" and {skip} of them are used under other conditions" if skip else ""
            raise UserError(
                f"{n_per_kind} prompts per kind: there are {len(of_kind)} of the kind {kind!r}{used}, and a server may "
                f"see each only once; allowed: 1 to {max(1, len(of_kind) - skip)}"
            )
        order = of_kind if seed is None else random.Random(f"{seed}/{kind}").sample(of_kind, len(of_kind))
        drawn.append(order[skip : skip + n_per_kind])
    return [prompt for turn in zip(*drawn, strict=True) for prompt in turn]


def lengthened(prompt: Prompt, tokens: int, encode: Callable[[str], list[int]], texts: Sequence[str]) -> Prompt:
    """The prompt behind so much other text that it has about ``tokens`` tokens; as it is when it is longer already.

    The text is words of ``texts`` from a place of the prompt's own on: no two prompts share a start that the prefix
    cache would know.
    """
    lacking = tokens - len(encode(prompt.prompt))
    words = " ".join(texts).split()
    if lacking <= 0 or not words:
        return prompt
    per_word = len(encode(" ".join(words[:500]))) / len(words[:500])
    start = zlib.crc32(prompt.id.encode()) % len(words)
    endless = itertools.islice(itertools.cycle(words), start, start + max(1, round(lacking / per_word)))
    return replace(prompt, prompt=f"Notes: {' '.join(endless)}\n\n{prompt.prompt}")
