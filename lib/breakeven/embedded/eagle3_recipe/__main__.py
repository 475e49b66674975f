"""Make the EAGLE-3 head: write a corpus, train, score, save.

    python -m breakeven.embedded.eagle3_recipe --model DIR --prompts prompts.jsonl --out DIR

MODEL is the converted model's folder; PROMPTS are the prompts that the suite measures on: they are kept out of
training and only scored. One H200 takes about 8 minutes and 80 GB of its memory. A run that is stopped, or stops
itself after ``--minutes``, goes on where it was when started again with the same arguments.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

from breakeven.artifacts import write_json, write_text
from breakeven.embedded.eagle3_recipe import acceptance, generate, train
from breakeven.embedded.eagle3_recipe.corpus import Dialogue, Measured
from breakeven.embedded.eagle3_recipe.decode import Decoder
from breakeven.embedded.eagle3_recipe.head import Head
from breakeven.embedded.eagle3_recipe.packing import pack
from breakeven.embedded.eagle3_recipe.prompts import Prompt
from breakeven.embedded.eagle3_recipe.target import Target
from breakeven.errors import UserError, one_line

DRAFT_VOCAB = 10_240
INTERMEDIATE = 1_920
HELD_OUT = 600
SCORED_STEPS = 4
NOT_SCORED = "warm-up"
"""Prompts of this kind are kept out of training like the others, but no figure of the suite rests on them."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the converted target model")
    parser.add_argument("--prompts", type=Path, required=True, help="the measured prompts (JSONL)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the corpus, checkpoints and the head")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dialogues", type=int, default=72_000)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--minutes", type=float, default=24.0, help="stop, resumably, after this long")
    try:
        make(parser.parse_args())
    except TimeoutError as stopped:
        print(f"{stopped}; run the same command again to go on")
        return 1
    except UserError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


def make(args: argparse.Namespace) -> None:
    """All stages; see the module's docstring."""
    began = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {line}", flush=True)

    def out_of_time() -> bool:
        return time.monotonic() - began > 60 * args.minutes

    args.out.mkdir(parents=True, exist_ok=True)
    gpu = torch.cuda.is_available()
    target = Target.load(args.model, "cuda" if gpu else "cpu", torch.bfloat16 if gpu else torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    measured = read_prompts(args.prompts)

    rows = min(generate.ROWS, args.dialogues)
    writer = generate.Writer(Decoder(target, rows, generate.COLUMNS, tokenizer.eos_token_id), tokenizer)
    unseen = Measured(prompt.text for prompt, _ in measured)
    dialogues = generate.dialogues(writer, args.dialogues, args.seed, args.out / "corpus", unseen, log, out_of_time)
    scored = [(prompt, limit) for prompt, limit in measured if prompt.kind != NOT_SCORED]
    measured_dialogues = generate.greedy(writer, scored)
    del writer  # its cache takes the memory that features need
    random.Random(args.seed).shuffle(dialogues)
    split = min(HELD_OUT, len(dialogues) // 8)
    held_out, training = dialogues[:split], dialogues[split:]
    answer_tokens = sum(len(d.answer) for d in training)
    log(f"corpus: {len(training)} dialogues with {answer_tokens} answer tokens, {len(held_out)} held out")

    torch.manual_seed(args.seed)
    vocab = target.shape.vocab_size
    draft_ids, coverage = train.draft_vocabulary(training, vocab, min(DRAFT_VOCAB, vocab))
    store = train.observe(target, pack(training), draft_ids)
    log(f"features of {len(store.rows)} rows are in memory; the draft vocabulary covers {coverage:.2%} of answers")
    head = train.new_head(target, store, INTERMEDIATE)
    train.train(head, store, args.epochs, args.seed, args.out / "checkpoint.pt", log, out_of_time)
    save_head(args.out, head, draft_ids, json.loads((args.model / "config.json").read_text()))
    del store

    scores = {
        "self-generated": score(target, head, held_out, draft_ids),
        "measured": score(target, head, measured_dialogues, draft_ids),
    }
    facts = {
        "seed": args.seed,
        "epochs": args.epochs,
        "dialogues": len(training),
        "answer_tokens": answer_tokens,
        "draft_vocab_coverage": round(coverage, 4),
        "steps": SCORED_STEPS,
        "seconds": round(time.monotonic() - began),
        "accept_length": scores,
    }
    write_json(args.out / "scores.json", facts)
    for name, kinds in scores.items():
        for kind, figures in kinds.items():
            log(f"{name}, {kind}: {figures}")


def read_prompts(path: Path) -> list[tuple[Prompt, int]]:
    """The measured prompts and their token limits: JSON lines with ``kind``, ``prompt`` and ``max_new_tokens``.

    Raises UserError when a line lacks one of them.
    """
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    try:
        return [(Prompt(line["kind"], line["prompt"]), line["max_new_tokens"]) for line in lines]
    except KeyError as error:
        raise UserError(f"{path}: a prompt has no {error}; a line needs kind, prompt and max_new_tokens") from error


def score(target: Target, head: Head, dialogues: list[Dialogue], draft_ids: torch.Tensor) -> dict[str, Any]:
    """Accept length and acceptance by position, by kind of prompt, at SCORED_STEPS."""
    store = train.observe(target, pack(dialogues), draft_ids)
    chains = train.chain_lengths(head, store, len(dialogues))
    return dict(acceptance.by_kind([d.kind for d in dialogues], chains, SCORED_STEPS))


def save_head(folder: Path, head: Head, draft_ids: torch.Tensor, target_config: dict[str, Any]) -> None:
    """Write model.safetensors and config.json as SGLang reads them.

    ``d2t`` [draft vocabulary] is added to a draft id to get the target's id; ``t2d`` [vocabulary] marks what is there.
    """
    t2d = torch.zeros(target_config["vocab_size"], dtype=torch.bool)
    t2d[draft_ids] = True
    mapping = {"d2t": draft_ids - torch.arange(len(draft_ids)), "t2d": t2d}
    weights = {name: w.detach().to("cpu", torch.bfloat16).contiguous() for name, w in head.served_weights().items()}
    save_file(weights | mapping, folder / "model.safetensors", metadata={"format": "pt"})
    left_out = {"_model_name_or_path", "transformers_version"}
    config = {key: value for key, value in target_config.items() if key not in left_out} | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "intermediate_size": head.shape.intermediate_size,
        "draft_vocab_size": len(draft_ids),
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    write_text(folder / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
