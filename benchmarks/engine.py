"""Speed of the embedded CPU engine: the cost of a speculative cycle, and the gain over transformers.

    python benchmarks/engine.py [--repeats 6] [--tokens 48] [--threads N] [--json FILE]

Four arms generate from the same fresh prompts in turn: the server without speculation, the server with NGRAM at 4 draft
tokens, and transformers' ``generate`` in bf16 and in float32, all with the same weights and threads. Every prompt gives
one value per arm, so each ratio is paired; printed are the median over the prompts and the range. Two figures count:

* cycle / step: an NGRAM cycle (draft, verify, everything between) over a step of the baseline;
* gain: the baseline's tokens per second over those of the faster transformers arm.

Prefill is left out everywhere: the servers report when it ended, and transformers is timed twice, with and without the
further tokens. Run it on a quiet machine; the load average before and after is in the result.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from breakeven import server, workload
from breakeven.embedded import engine
from breakeven.embedded.model import ensure_model
from breakeven.workload.prompts import WARM_UP, Prompt, load_prompts

NGRAM = server.Drafter("NGRAM", draft_tokens=4, breadth=1)


class Transformers:
    """``generate`` of transformers in one precision, timed without its prefill."""

    def __init__(self, folder: Path, precision: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, precision))

    def step_ms(self, ids: list[int], tokens: int) -> float:
        """Milliseconds per token after the first, over exactly ``tokens`` greedy tokens."""
        return 1000 * (self._seconds(ids, tokens) - self._seconds(ids, 1)) / (tokens - 1)

    def _seconds(self, ids: list[int], tokens: int) -> float:
        import torch

        given = torch.tensor([ids])
        began = time.perf_counter()
        self.model.generate(
            given,
            attention_mask=torch.ones_like(given),
            do_sample=False,
            min_new_tokens=tokens,
            max_new_tokens=tokens,
        )
        return time.perf_counter() - began


def measure(folder: Path, threads: int, repeats: int, tokens: int) -> list[dict[str, Any]]:
    """One row per prompt: ``step_ms``, ``cycle_ms``, ``accept_length``, and the two steps of transformers."""
    import torch

    torch.set_num_threads(threads)
    encode = workload.chat_encoder(folder)
    warm_up, prompts = choose_prompts(repeats, tokens)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        clients = {}
        for name, drafter in (("baseline", None), ("ngram", NGRAM)):
            say(f"starting the server: {name}")
            spec = server.LaunchSpec(
                python=sys.executable,
                model_path=str(folder),
                drafter=drafter,
                context_length=2048,
                max_running_requests=8,
                extra={"enable_metrics": True},
                flags=tuple(engine.server_flags()),
            )
            environment = engine.server_environment(os.environ, threads)
            started = stack.enter_context(server.launch(spec, logs / f"{name}.log", engine_env=environment))
            say(f"ready after {sum(started.startup_s.values()):.0f} s")
            clients[name] = stack.enter_context(workload.Client(started.base_url, encode))
        models = {name: Transformers(folder, name) for name in ("bfloat16", "float32")}
        rows = []
        for prompt in [*warm_up, *prompts]:
            row = one_prompt(prompt, clients, models, encode(prompt.prompt), tokens)
            if prompt.kind != WARM_UP:
                rows.append(row)
                say(json.dumps(row))
        return rows


def choose_prompts(repeats: int, tokens: int) -> tuple[list[Prompt], list[Prompt]]:
    """One prompt to warm up with, and ``repeats`` others of different kinds, each to ``tokens`` tokens at most."""
    shipped = [Prompt(p.id, p.kind, p.prompt, tokens) for p in load_prompts()]
    warm_up = [prompt for prompt in shipped if prompt.kind == WARM_UP]
    by_kind: dict[str, list[Prompt]] = {}
    for prompt in shipped:
        if prompt.kind != WARM_UP:
            by_kind.setdefault(prompt.kind, []).append(prompt)
    in_turn = [prompt for row in zip(*by_kind.values(), strict=False) for prompt in row]
    return warm_up[:1], in_turn[:repeats]


def one_prompt(
    prompt: Prompt,
    clients: dict[str, workload.Client],
    models: dict[str, Transformers],
    ids: list[int],
    tokens: int,
) -> dict[str, Any]:
    """All arms on one prompt that none of them has seen."""
    base = clients["baseline"].generate(prompt, baseline=True)
    spec = clients["ngram"].generate(prompt, baseline=False)
    return {
        "prompt_id": prompt.id,
        "step_ms": 1000 * base["decode_s"] / (base["completion_tokens"] - 1),
        "cycle_ms": 1000 * spec["decode_s"] / spec["verify_ct"],
        "accept_length": (spec["completion_tokens"] - 1) / spec["verify_ct"],
        **{f"transformers_{name}_ms": model.step_ms(ids, tokens) for name, model in models.items()},
    }


def ratios(row: dict[str, Any]) -> dict[str, float]:
    """The two figures of one prompt."""
    faster_ms = min(row["transformers_bfloat16_ms"], row["transformers_float32_ms"])
    return {"cycle / step": row["cycle_ms"] / row["step_ms"], "gain": faster_ms / row["step_ms"]}


def spread(values: list[float]) -> dict[str, float]:
    """Median and range of a figure over the prompts."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def say(text: str) -> None:
    """Progress goes to standard error."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=6, help="prompts, each used once per arm")
    parser.add_argument("--tokens", type=int, default=48, help="tokens to generate per prompt")
    parser.add_argument("--threads", type=int, default=engine.default_threads(), help="threads of every arm")
    parser.add_argument("--json", type=Path, help="write every value and the summary here")
    given = parser.parse_args()

    load_before = os.getloadavg()[0]
    rows = measure(ensure_model(progress=say), given.threads, given.repeats, given.tokens)
    figures = [name for name in rows[0] if name != "prompt_id"]
    summary = {name: spread([row[name] for row in rows]) for name in figures}
    summary |= {name: spread([ratios(row)[name] for row in rows]) for name in ratios(rows[0])}
    print(f"{'figure':28} {'median':>8} {'lowest':>8} {'highest':>8}   n = {len(rows)}, {given.threads} threads")
    for name, values in summary.items():
        print(f"{name:28} {values['median']:8.2f} {values['lowest']:8.2f} {values['highest']:8.2f}")
    if given.json:
        load = {"before": load_before, "after": os.getloadavg()[0]}
        content = {"threads": given.threads, "load_average": load, "summary": summary, "rows": rows}
        given.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
