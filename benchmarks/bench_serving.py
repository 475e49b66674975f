"""The suite's client against ``sglang.bench_serving``: the same prompts, the same server, in turn.

    python benchmarks/bench_serving.py [--rounds 3] [--steps 3] [--per-kind 2] [--tokens 96] [--run-dir DIR]

One server with EAGLE-3 (it remembers no text, unlike an n-gram table), its prefix cache emptied before every round, one
request at a time, greedy, answers that may end by themselves. The server computes with one thread less than there are
CPUs, so that each client has a core for itself: compared are clients, not how they fight with the server.
bench_serving gets the prompts with the chat template in them: its own ``--apply-chat-template`` removes every BOS
token, which in SmolLM2 opens each turn, and so asks something else (accept length 2.52 instead of 2.44). Compared are
tokens per second over the whole requests (prefill and HTTP included: bench_serving divides by its wall time) and the
accept length as SGLang counts it, with the token of the prefill. The suite's own figures, which leave out that token,
the prefill and HTTP, are shown beside them with the share of time that is left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from transformers import AutoTokenizer

from breakeven import workload
from breakeven.config import SweepSettings
from breakeven.embedded import engine
from breakeven.launch.design import Arm
from breakeven.launch.serving import Serving
from breakeven.server import Drafter

EVERY_STEP_COUNTS = ["--decode-log-interval", "1"]
"""SGLang's own average leaves out the steps since its last line of log, as a rule up to 39."""


def ours(url: str, encode: Callable[[str], list[int]], prompts: list[workload.Prompt]) -> dict[str, float]:
    """One round of the suite's client."""
    rows: list[dict[str, Any]] = []
    with workload.Client(url, encode) as client:
        workload.run_requests(client, prompts, baseline=False, on_sample=rows.append)
    wall_s = sum(row["client_s"] for row in rows)  # as there, without the chat template and the tokenizer
    tokens = sum(row["completion_tokens"] for row in rows)
    decoded = sum(row["completion_tokens"] - 1 for row in rows)
    decode_s = sum(row["decode_s"] for row in rows)
    return {
        "prompt_tokens": sum(row["prompt_tokens"] for row in rows),
        "tokens": tokens,
        "tok_s": tokens / wall_s,
        "accept_length": tokens / sum(row["verify_ct"] for row in rows),
        "accept_length_without_first_token": decoded / sum(row["verify_ct"] for row in rows),
        "decode_tok_s": decoded / decode_s,
        "outside_decode": 1 - decode_s / wall_s,
    }


def theirs(url: str, model: Path, data: Path, count: int, tokens: int, result: Path) -> dict[str, float]:
    """One round of bench_serving."""
    port = url.rsplit(":", 1)[1]
    command = [sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang", "--host", "127.0.0.1"]
    command += ["--port", port, "--model", str(model), "--dataset-name", "custom", "--dataset-path", str(data)]
    command += ["--num-prompts", str(count), "--max-concurrency", "1"]
    command += [
        "--sharegpt-output-len",
        str(tokens),
        "--warmup-requests",
        "0",
        "--disable-ignore-eos",
        "--disable-stream",  # as the suite's client: streaming costs the server's own cores something
        "--output-file",
        str(result),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"bench_serving failed:\n{done.stderr[-2000:]}")
    row = json.loads(result.read_text().splitlines()[-1])
    if row["completed"] != count:
        raise SystemExit(f"bench_serving completed {row['completed']} of {count} requests")
    return {
        "tok_s": row["output_throughput"],
        "accept_length": row["accept_length"],
        "prompt_tokens": row["total_input_tokens"],
        "tokens": row["total_output_tokens"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--per-kind", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--run-dir", type=Path, default=Path(tempfile.mkdtemp(prefix="bench-serving-")))
    given = parser.parse_args()
    given.run_dir.mkdir(parents=True, exist_ok=True)
    threads = str(max(1, engine.default_threads() - 1))
    settings = {"server_flags": EVERY_STEP_COUNTS, "server_env": {"OMP_NUM_THREADS": threads}}
    serving = Serving.prepare(SweepSettings.checked(settings), given.run_dir)
    prompts = workload.choose(workload.load_prompts(), given.per_kind)
    prompts = [workload.Prompt(each.id, each.kind, each.prompt, given.tokens) for each in prompts]
    data = given.run_dir / "prompts.jsonl"
    decode = AutoTokenizer.from_pretrained(serving.model_path).decode
    asked = [decode(serving.encode(each.prompt)) for each in prompts]
    turns = [[{"role": "user", "content": text}, {"role": "assistant", "content": "-"}] for text in asked]
    data.write_text("".join(json.dumps({"conversations": both}) + "\n" for both in turns))
    arm = Arm("eagle3", Drafter("EAGLE3", "embedded", steps=given.steps, topk=1))
    rounds = []
    with serving.launch("bench-serving", arm) as server:
        for number in range(given.rounds):
            pair = {}
            for name in ("ours", "theirs") if number % 2 == 0 else ("theirs", "ours"):
                httpx.post(f"{server.base_url}/flush_cache", timeout=30).raise_for_status()
                if name == "ours":
                    pair[name] = ours(server.base_url, serving.encode, prompts)
                else:
                    result = given.run_dir / f"round{number}.json"
                    pair[name] = theirs(server.base_url, serving.model_path, data, len(prompts), given.tokens, result)
            same = {key: (pair["ours"][key], pair["theirs"][key]) for key in ("prompt_tokens", "tokens")}
            if any(mine != other for mine, other in same.values()):
                raise SystemExit(f"the two did not ask or answer the same, ours against theirs: {same}")
            rounds.append(pair)
            print(json.dumps(pair), flush=True)
    for key in ("tok_s", "accept_length"):
        ratios = [pair["ours"][key] / pair["theirs"][key] for pair in rounds]
        print(f"{key}: ours over theirs {statistics.median(ratios):.4f} ({min(ratios):.4f} to {max(ratios):.4f})")


if __name__ == "__main__":
    main()
