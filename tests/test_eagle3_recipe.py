"""The recipe of the embedded drafter, on models small enough for a unit test."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st
from torch.func import functional_call
from transformers import LlamaConfig, LlamaForCausalLM

from breakeven.embedded.eagle3_recipe import acceptance, corpus, materials, prompts, templates, train
from breakeven.embedded.eagle3_recipe.corpus import Dialogue, Measured
from breakeven.embedded.eagle3_recipe.decode import Decoder, choose
from breakeven.embedded.eagle3_recipe.head import Head, captured_layers, losses
from breakeven.embedded.eagle3_recipe.packing import pack
from breakeven.embedded.eagle3_recipe.target import Shape, Target, rope_table, rotate

PROMPTS = Path(prompts.__file__).parents[1] / "prompts.jsonl"
VOCAB, DRAFT_VOCAB, END = 97, 40, 2


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=True,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
        eos_token_id=END,
        pad_token_id=END,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def target(reference: LlamaForCausalLM) -> Target:
    weights = {name: w.detach() for name, w in reference.state_dict().items()}
    return Target(weights, Shape.from_config(json.loads(reference.config.to_json_string(use_diff=False))))


def some_dialogues(count: int, seed: int = 0) -> list[Dialogue]:
    rng = random.Random(seed)
    return [
        Dialogue("chat", [rng.randrange(3, VOCAB) for _ in range(prompt + answer)], prompt)
        for prompt, answer in ((rng.randint(2, 7), rng.randint(2, 9)) for _ in range(count))
    ]


def test_features_of_packed_rows_are_those_of_transformers(reference: LlamaForCausalLM, target: Target) -> None:
    dialogues = some_dialogues(5)
    rows = pack(dialogues, tokens=32, slots=20)
    store = train.observe(target, rows, torch.arange(DRAFT_VOCAB))
    for number, dialogue in enumerate(dialogues):
        with torch.no_grad():
            states = reference(torch.tensor([dialogue.ids]), output_hidden_states=True).hidden_states
        expected = torch.cat([states[layer][0] for layer in captured_layers(8)], dim=-1)
        torch.testing.assert_close(store.features[rows.dialogue == number], expected, rtol=1e-3, atol=1e-3)
        slots = rows.slot_dialogue == number
        known = states[-1][0, dialogue.start : -1]
        torch.testing.assert_close(store.target_hidden[slots], known, rtol=1e-3, atol=1e-3)


def test_greedy_decoding_gives_what_transformers_gives(reference: LlamaForCausalLM, target: Target) -> None:
    asked = [dialogue.ids for dialogue in some_dialogues(5, seed=3)]
    made = Decoder(target, rows=6, columns=64, end_id=END).generate(asked, [0.0] * 5, new=12)
    for prompt, answer in zip(asked, made, strict=True):
        expected = reference.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False)[0, len(prompt) :]
        assert answer == expected.tolist()


def test_sampling_follows_the_softmax_at_its_temperature() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([2.0, 1.0, 0.0, -9.0]).expand(20_000, 4)
    drawn = torch.bincount(choose(logits, torch.full((20_000, 1), 0.8)), minlength=4) / 20_000
    kept = torch.softmax(torch.tensor([2.0, 1.0, 0.0]) / 0.8, dim=0)
    torch.testing.assert_close(drawn[:3], kept, rtol=0, atol=0.02)
    assert drawn[3] == 0
    assert choose(logits, torch.zeros(20_000, 1)).eq(0).all()


def test_training_steps_compute_what_a_server_computes_draft_by_draft(target: Target) -> None:
    dialogues = some_dialogues(4, seed=1)
    rows = pack(dialogues, tokens=40, slots=24)
    store = train.observe(target, rows, torch.arange(DRAFT_VOCAB))
    torch.manual_seed(1)
    head = train.new_head(target, store, intermediate=32)
    batch = store.batch(torch.arange(len(rows)))
    with torch.no_grad():
        unrolled = functional_call(head, head.served_weights(), (batch, 4))
        for row, slot in torch.nonzero(rows.slot_dialogue >= 0).tolist():
            dialogue = dialogues[rows.slot_dialogue[row, slot]]
            at = int(rows.position[row, rows.slot_at[row, slot]])
            features = store.features[row, rows.dialogue[row] == rows.slot_dialogue[row, slot]]
            for k, expected in enumerate(drafted(head, target, features, dialogue.ids, at, 4)):
                torch.testing.assert_close(unrolled[k][row, slot], expected, rtol=1e-3, atol=1e-3)


def drafted(
    head: Head, target: Target, features: torch.Tensor, ids: list[int], at: int, steps: int
) -> list[torch.Tensor]:
    """Draft logits from position ``at`` on: prefill with features, then one token at a time with a growing cache."""
    hidden = F.linear(features[: at + 1], head.served_weights()["fc.weight"])
    tokens, keys, values, logits = ids[1 : at + 2], [], [], []
    layer, attention = head.midlayer, head.midlayer.self_attn
    for k in range(steps):
        for i, token in enumerate(tokens):
            position = i if k == 0 else at + k
            embedding = target.embedding[token]
            x = torch.cat([layer.input_layernorm(embedding), layer.hidden_norm(hidden[i])])
            table = rope_table(torch.tensor([[position]]), 8, head.shape.rope_theta)
            keys.append(rotate(attention["k_proj"](x).view(1, 1, 2, 8), *table)[0, 0])
            values.append(attention["v_proj"](x).view(2, 8))
            query = rotate(attention["q_proj"](x).view(1, 1, 6, 8), *table)[0, 0]
        shared = [torch.stack(cache).repeat_interleave(3, dim=1) for cache in (keys, values)]
        shares = (torch.einsum("hd,thd->ht", query, shared[0]) * 8**-0.5).softmax(dim=-1)
        last = hidden[-1] + attention["o_proj"](torch.einsum("ht,thd->hd", shares, shared[1]).flatten())
        x = layer.post_attention_layernorm(last)
        last = last + layer.mlp["down_proj"](F.silu(layer.mlp["gate_proj"](x)) * layer.mlp["up_proj"](x))
        logits.append(head.lm_head(head.norm(last)))
        if at + k + 2 >= len(ids) - 1:  # nothing is drafted after the last token
            break
        hidden, tokens = last[None], [ids[at + k + 2]]
    return logits


def test_chains_end_at_the_first_wrong_draft_and_at_the_answers_end(target: Target) -> None:
    dialogues = [Dialogue("chat", list(range(10, 17)), 3)]  # answer tokens 13 14 15 16: three slots
    store = train.observe(target, pack(dialogues, tokens=8, slots=4), torch.arange(DRAFT_VOCAB))
    store.target_choice[0] = torch.tensor([5, 6, 7, -1])
    batch = store.batch(torch.tensor([0]))
    logits = torch.zeros(3, 1, 4, DRAFT_VOCAB)
    logits[0, 0, [0, 1, 2], [5, 6, 9]] = 1.0  # the third slot's first draft is wrong
    logits[1, 0, [0, 1], [6, 9]] = 1.0
    logits[2, 0, 0, 7] = 1.0
    _, chains = losses(list(logits), batch, store.draft_embedding)
    assert torch.stack(chains).sum(dim=0)[0].tolist() == [3, 1, 0, 0]


def test_training_lowers_the_loss_and_resumes_where_it_stopped(target: Target, tmp_path: Path) -> None:
    store = train.observe(target, pack(some_dialogues(12), tokens=48, slots=24), torch.arange(DRAFT_VOCAB))

    def trained(checkpoint: Path, stops: list[bool]) -> Head:
        torch.manual_seed(0)
        head = train.new_head(target, store, intermediate=32)
        train.train(head, store, 12, 0, checkpoint, lambda _: None, lambda: stops.pop(0) if stops else False)
        return head

    def loss(head: Head) -> float:
        return train.loss_and_chains(head, store.batch(torch.arange(2)), store.draft_embedding, 3)[0].item()

    whole = trained(tmp_path / "whole.pt", [])
    torch.manual_seed(0)
    assert loss(whole) < 0.9 * loss(train.new_head(target, store, intermediate=32))
    with pytest.raises(TimeoutError, match="after 5 of"):
        trained(tmp_path / "halves.pt", [False] * 5 + [True, True])
    resumed = trained(tmp_path / "halves.pt", [])
    torch.testing.assert_close(resumed.lm_head.weight, whole.lm_head.weight)


@given(st.lists(st.tuples(st.integers(1, 12), st.integers(2, 8)), min_size=1, max_size=30))
def test_packing_keeps_every_dialogue_whole(sizes: list[tuple[int, int]]) -> None:
    dialogues = [
        Dialogue("chat", list(range(i, i + prompt + answer)), prompt) for i, (prompt, answer) in enumerate(sizes)
    ]
    rows = pack(dialogues, tokens=24, slots=10)
    for number, dialogue in enumerate(dialogues):
        own = rows.dialogue == number
        assert rows.ids[own].tolist() == dialogue.ids
        assert rows.position[own].tolist() == list(range(len(dialogue.ids)))
        slots = rows.slot_dialogue == number
        assert rows.ids[slots.any(dim=1)][0][rows.slot_at[slots].long() + 1].tolist() == dialogue.answer[:-1]


def test_a_dialogue_longer_than_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="dialogue 0 has 9 tokens"):
        pack([Dialogue("chat", list(range(9)), 3)], tokens=8, slots=8)


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(1, 5))
def test_cycles_emit_every_token_once(chains: list[int], steps: int) -> None:
    taken = acceptance.cycle_chains(chains, steps)
    emitted = sum(c + 1 for c in taken)
    assert len(chains) <= emitted <= len(chains) + steps
    assert all(0 <= c <= steps for c in taken)


def test_accept_length_counts_cycles_and_not_positions() -> None:
    easy, hard = [3, 2, 1, 0], [0, 0, 0, 0]  # one cycle of four tokens; four cycles of one
    figures = acceptance.summary([easy, hard], steps=3)
    assert figures["accept_length"] == pytest.approx(8 / 5)
    assert figures["by_position"] == [0.2, 0.2, 0.2]
    assert acceptance.summary([], steps=3)["accept_length"] is None


def test_a_prompt_that_repeats_a_measured_one_is_found() -> None:
    measured = Measured(["Please list the three oldest bridges of the town and their builders."])
    assert measured.overlaps("please list the three oldest bridges of the town, and their builders")
    assert measured.overlaps("Tell me: THE three oldest bridges of the town and their architects?")
    assert not measured.overlaps("Please list the three oldest houses of the town and their builders.")


def test_no_template_or_material_shares_a_run_of_words_with_the_shipped_prompts() -> None:
    measured = Measured(json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines())
    wording = [t for kind in (templates.OF_TEXT, templates.OF_CODE, templates.FREE) for ts in kind.values() for t in ts]
    assert [text for text in wording + materials.RECORDS + materials.SNIPPETS if measured.overlaps(text)] == []


def test_loops_are_cut_after_the_third_round_and_other_text_stays() -> None:
    start, loop = list(range(100, 130)), [1, 2, 3, 4, 5]
    assert corpus.without_loop(start + loop * 20) == start + loop * 3
    rng = random.Random(1)
    varied = [rng.randrange(50) for _ in range(150)]
    assert corpus.without_loop(varied) == varied


def test_shards_come_back_as_they_were_written(tmp_path: Path) -> None:
    dialogues = some_dialogues(7)
    corpus.save(tmp_path / "shard.npz", dialogues)
    assert corpus.load(tmp_path / "shard.npz") == dialogues
    assert [path.name for path in tmp_path.iterdir()] == ["shard.npz"]


@pytest.mark.parametrize("kind", prompts.SHARES)
def test_every_kind_of_prompt_fills_all_its_slots(kind: str) -> None:
    rng = random.Random(0)
    for _ in range(200):
        prompt = prompts.compose(rng, kind, texts=["Ada went home. It rained."], codes=["x = 1"], turns=["How so?"])
        assert prompt.kind == kind
        assert not {mark for mark in prompts.slots(rng) if f"{{{mark}}}" in prompt.text}


def test_shares_of_kinds_add_up() -> None:
    assert np.isclose(sum(prompts.SHARES.values()), 1.0)


def test_material_is_whole_sentences_and_whole_lines() -> None:
    text = "The first sentence is long enough to count. The second is long enough, too, I think. The third is cu"
    assert prompts.as_text(text) == text.removesuffix(" The third is cu")
    assert prompts.as_text("Too short.") is None
    code = "def mean(numbers):\n    total = sum(numbers)\n    return total / len(numbers)\n"
    assert prompts.as_code(f"Sure:\n```python\n{code}```\nIt adds.") == code.strip("\n")
    assert prompts.as_code(code + "def broken(") == code.strip("\n")
