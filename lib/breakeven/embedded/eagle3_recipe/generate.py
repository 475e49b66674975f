"""Let the target write the corpus: materials and users' turns first, then answers to prompts made of them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from breakeven.embedded.eagle3_recipe import corpus, prompts
from breakeven.embedded.eagle3_recipe.corpus import Dialogue, Measured
from breakeven.embedded.eagle3_recipe.decode import Decoder
from breakeven.embedded.eagle3_recipe.prompts import Prompt

PROMPT_TOKENS = 448
ANSWER_TOKENS = 192
MATERIAL_TOKENS = 144
COLUMNS = PROMPT_TOKENS + ANSWER_TOKENS
ROWS = 2048
"""Prompts decoded at once, and dialogues in a shard."""
MATERIALS_PER_DIALOGUE = 0.25
TEXT_SHARE, CODE_SHARE = 0.45, 0.2  # of the materials; the rest are users' turns
SAMPLED_SHARE = 0.15
"""Share of training answers sampled at SAMPLED_TEMPERATURE instead of greedily: a server does not only serve greedy."""
SAMPLED_TEMPERATURE = 0.6
SHORTEST_ANSWER = 4

Log = Callable[[str], None]


class Writer:
    """The target with its tokenizer: chat prompts in, text out."""

    def __init__(self, decoder: Decoder, tokenizer: PreTrainedTokenizerBase) -> None:
        self.decoder, self.tokenizer = decoder, tokenizer

    def render(self, text: str, answer_follows: bool = True) -> list[int]:
        """Token ids of one user's turn, exactly as a server renders it (the template adds its system message)."""
        turn = [{"role": "user", "content": text}]
        chat = str(self.tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=answer_follows))
        if not answer_follows:  # leave the turn open
            chat = chat.rstrip("\n").removesuffix(self.tokenizer.eos_token)
        return self.tokenizer(chat, add_special_tokens=False).input_ids

    def answer(
        self, rendered: Sequence[list[int]], temperatures: Sequence[float], new: int, seed: int
    ) -> list[list[int]]:
        """Answers to rendered prompts, in the order given; the longest prompts are decoded last."""
        torch.manual_seed(seed)
        order = sorted(range(len(rendered)), key=lambda i: len(rendered[i]))
        answers: dict[int, list[int]] = {}
        for start in range(0, len(order), self.decoder.rows):
            part = order[start : start + self.decoder.rows]
            made = self.decoder.generate([rendered[i] for i in part], [temperatures[i] for i in part], new)
            answers.update(zip(part, made, strict=True))
        return [answers[i] for i in range(len(order))]

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens as text, the end token and other special tokens left out."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True))


def materials(writer: Writer, count: int, seed: int, path: Path) -> dict[str, list[str]]:
    """About ``count`` pieces: ``texts``, ``codes`` and users' ``turns``; read from ``path`` where a run left them."""
    if path.exists():
        return json.loads(path.read_text())
    rng = random.Random(seed)
    texts, codes = round(count * TEXT_SHARE), round(count * CODE_SHARE)
    asked = [prompts.text_request(rng) for _ in range(texts)] + [prompts.code_request(rng) for _ in range(codes)]
    openings = [prompts.own_turn_opening(rng) for _ in range(count - texts - codes)]
    rendered = [writer.render(text) for text in asked]
    rendered += [writer.render(text, answer_follows=False) for text in openings]
    temperatures = [1.0] * texts + [0.7] * codes + [1.0] * len(openings)
    written = [writer.text(a) for a in writer.answer(rendered, temperatures, MATERIAL_TOKENS, seed)]
    turns = [f"{opening}{rest}" for opening, rest in zip(openings, written[texts + codes :], strict=True)]
    made = {
        "texts": _kept(map(prompts.as_text, written[:texts])),
        "codes": _kept(map(prompts.as_code, written[texts : texts + codes])),
        "turns": _kept(map(prompts.as_turn, turns)),
    }
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(made))
    os.replace(partial, path)
    return made


def dialogues(
    writer: Writer, count: int, seed: int, folder: Path, measured: Measured, log: Log, out_of_time: Callable[[], bool]
) -> list[Dialogue]:
    """About ``count`` dialogues for training, shard by shard; a shard that lies in ``folder`` is not made again.

    Raises TimeoutError between shards when ``out_of_time`` says so.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pieces = materials(writer, round(count * MATERIALS_PER_DIALOGUE), seed, folder / "materials.json")
    log(f"materials: {', '.join(f'{len(items)} {name}' for name, items in pieces.items())}")
    rng = random.Random(seed + 1)
    kinds = rng.choices(list(prompts.SHARES), list(prompts.SHARES.values()), k=count)
    wanted = [prompts.compose(rng, kind, **pieces) for kind in kinds]
    asked = [prompt for prompt in dict.fromkeys(wanted) if not measured.overlaps(prompt.text)]
    unseen = len(set(wanted)) - len(asked)
    rendered = [(prompt, ids) for prompt in asked if len(ids := writer.render(prompt.text)) <= PROMPT_TOKENS]
    log(
        f"prompts: {len(wanted)} composed, {unseen} dropped because they overlap with measured prompts, "
        f"{len(wanted) - len(set(wanted))} doubles, {len(asked) - len(rendered)} too long, {len(rendered)} kept"
    )
    rendered.sort(key=lambda item: len(item[1]))
    made: list[Dialogue] = []
    for shard, start in enumerate(range(0, len(rendered), ROWS)):
        path = folder / f"dialogues-{shard:03}.npz"
        if not path.exists():
            if out_of_time():
                raise TimeoutError(f"out of time after {shard} shards of dialogues")
            corpus.save(path, _answered(writer, rendered[start : start + ROWS], seed + 2 + shard))
        made += corpus.load(path)
    return made


def greedy(writer: Writer, asked: Sequence[tuple[Prompt, int]]) -> list[Dialogue]:
    """The target's greedy answers up to each prompt's token limit, loops and all: what a server would have to write."""
    rendered = [writer.render(prompt.text) for prompt, _ in asked]
    answers = writer.answer(rendered, [0.0] * len(asked), max(limit for _, limit in asked), seed=0)
    return [
        Dialogue(prompt.kind, ids + answer[:limit], len(ids))
        for (prompt, limit), ids, answer in zip(asked, rendered, answers, strict=True)
    ]


def _answered(writer: Writer, part: Sequence[tuple[Prompt, list[int]]], seed: int) -> list[Dialogue]:
    rng = random.Random(seed)
    temperatures = [SAMPLED_TEMPERATURE if rng.random() < SAMPLED_SHARE else 0.0 for _ in part]
    answers = writer.answer([ids for _, ids in part], temperatures, ANSWER_TOKENS, seed)
    cut = [
        Dialogue(prompt.kind, ids + corpus.without_loop(answer), len(ids))
        for (prompt, ids), answer in zip(part, answers, strict=True)
    ]
    return [dialogue for dialogue in cut if len(dialogue.answer) >= SHORTEST_ANSWER]


def _kept(pieces: map[str | None]) -> list[str]:
    return [piece for piece in pieces if piece is not None]
