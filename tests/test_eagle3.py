"""The EAGLE-3 head that ships with the library: whole, of the right form, and worth having."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from breakeven.embedded.drafter import FOLDER, ensure_drafter
from breakeven.errors import UserError

MOST_BYTES = 24_000_000


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return load_file(ensure_drafter() / "model.safetensors")


@pytest.fixture(scope="module")
def config() -> dict[str, int]:
    return json.loads((ensure_drafter() / "config.json").read_text())


def test_the_weights_are_small_enough_to_ship() -> None:
    assert (FOLDER / "model.safetensors").stat().st_size <= MOST_BYTES


def test_the_checkpoint_has_the_tensors_that_sglang_loads(
    weights: dict[str, torch.Tensor], config: dict[str, int]
) -> None:
    h, inner, vocab = config["hidden_size"], config["intermediate_size"], config["draft_vocab_size"]
    q, kv = (config[name] * config["head_dim"] for name in ("num_attention_heads", "num_key_value_heads"))
    shapes = {
        "fc.weight": (h, 3 * h),
        "midlayer.self_attn.q_proj.weight": (q, 2 * h),
        "midlayer.self_attn.k_proj.weight": (kv, 2 * h),
        "midlayer.self_attn.v_proj.weight": (kv, 2 * h),
        "midlayer.self_attn.o_proj.weight": (h, q),
        "midlayer.mlp.gate_proj.weight": (inner, h),
        "midlayer.mlp.up_proj.weight": (inner, h),
        "midlayer.mlp.down_proj.weight": (h, inner),
        "midlayer.hidden_norm.weight": (h,),
        "midlayer.input_layernorm.weight": (h,),
        "midlayer.post_attention_layernorm.weight": (h,),
        "norm.weight": (h,),
        "lm_head.weight": (vocab, h),
    }
    floats = {name: tuple(w.shape) for name, w in weights.items() if w.dtype == torch.bfloat16}
    assert floats == shapes
    assert set(weights) - set(floats) == {"d2t", "t2d"}
    assert all(weights[name].isfinite().all() for name in floats)


def test_the_draft_vocabulary_maps_into_the_targets(weights: dict[str, torch.Tensor], config: dict[str, int]) -> None:
    target_ids = weights["d2t"] + torch.arange(config["draft_vocab_size"])
    assert target_ids.unique().tolist() == target_ids.tolist()
    assert weights["t2d"].nonzero()[:, 0].tolist() == target_ids.tolist()
    assert len(weights["t2d"]) == config["vocab_size"]
    assert config["eos_token_id"] in target_ids


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FOLDER, tmp_path / "drafter"))


def test_a_changed_file_is_refused(copy: Path) -> None:
    config = copy / "config.json"
    config.write_text(config.read_text().replace('"num_hidden_layers": 1', '"num_hidden_layers": 2'))
    with pytest.raises(UserError, match=r"config\.json has SHA-256 .*install breakeven again"):
        ensure_drafter(copy)


@pytest.mark.parametrize("missing", ["model.safetensors", "SHA256SUMS"])
def test_a_missing_file_is_refused(copy: Path, missing: str) -> None:
    (copy / missing).unlink()
    with pytest.raises(UserError, match=rf"can't read the drafter .*{missing}"):
        ensure_drafter(copy)


@pytest.mark.e2e
def test_the_head_runs_ahead_on_prompts_that_it_was_not_trained_on(
    weights: dict[str, torch.Tensor], config: dict[str, int]
) -> None:
    """The recipe's own scoring, with the shipped weights and the real target, on two prompts of each kind."""
    from dataclasses import replace

    from transformers import AutoTokenizer

    from breakeven.embedded.eagle3_recipe import __main__ as recipe
    from breakeven.embedded.eagle3_recipe import generate
    from breakeven.embedded.eagle3_recipe.decode import Decoder
    from breakeven.embedded.eagle3_recipe.head import Head
    from breakeven.embedded.eagle3_recipe.target import Target
    from breakeven.embedded.model import ensure_model

    folder = ensure_model()
    target = Target.load(folder, "cpu", torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    by_kind: dict[str, list[generate.Prompt]] = {}
    for prompt, _ in recipe.read_prompts(FOLDER.parent / "prompts.jsonl"):
        if prompt.kind != recipe.NOT_SCORED:
            by_kind.setdefault(prompt.kind, []).append(prompt)
    asked = [(prompt, 48) for prompts in by_kind.values() for prompt in prompts[:2]]
    writer = generate.Writer(Decoder(target, len(asked), generate.COLUMNS, tokenizer.eos_token_id), tokenizer)
    head = Head(replace(target.shape, intermediate_size=config["intermediate_size"]), config["draft_vocab_size"])
    head.load_state_dict({name: w.float() for name, w in weights.items() if name not in ("d2t", "t2d")})
    draft_ids = weights["d2t"] + torch.arange(config["draft_vocab_size"])
    scores = recipe.score(target, head, generate.greedy(writer, asked), draft_ids)
    assert scores["all"]["accept_length"] > 2.1
    assert all(figures["accept_length"] > 1.4 for figures in scores.values())  # two short answers a kind: wide margin
