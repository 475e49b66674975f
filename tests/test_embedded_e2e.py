"""The real SGLang on the embedded engine: every drafter's output equals the baseline's, and that equals transformers'.

In float32 the outputs are equal token for token. So they are in bf16 as long as the compiled kernels compute them;
where a pass has more rows it rounds differently, and a first difference has to be a near tie between the two highest
logits.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from breakeven.embedded import engine
from breakeven.embedded.model import ensure_model
from breakeven.hosts import processes

pytestmark = pytest.mark.e2e

NEW_TOKENS = 32
START_LIMIT_S = 300
# bf16 keeps 8 bits: logits of 16 to 32 lie 0.125 apart, and the rounding of 30 layers adds up to a few such steps.
NEAR_TIE = 0.5

PROMPTS = (
    "What is the capital of France?",
    "Write a short poem about the sea and the moon.",
    "List five fruits, each with a colour.",
    "Repeat this three times: the quick brown fox jumps over the lazy dog.",
    "Return this function with the name f changed to g:\ndef f(x):\n    y = x + 1\n    z = y + 1\n    return z\n",
    "Explain in two sentences how a bicycle stays upright.",
)


class Server:
    """A server on the embedded engine, and what was asked of it."""

    def __init__(self, port: int, tokenizer: Any) -> None:
        self.port, self.tokenizer = port, tokenizer

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as response:
            return json.load(response)

    def generate(self, prompt: str) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": NEW_TOKENS}
        return self.ask("/generate", {"input_ids": prompt_ids(self.tokenizer, prompt), "sampling_params": sampling})

    def answers(self, prompts: tuple[str, ...] = PROMPTS, at_once: int = 1) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(self.generate, prompts))


def prompt_ids(tokenizer: Any, prompt: str) -> list[int]:
    messages = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]


def accept_length(answers: list[dict[str, Any]]) -> float:
    """Tokens per verify; the first token of a request comes from its prefill."""
    tokens = sum(answer["meta_info"]["completion_tokens"] - 1 for answer in answers)
    return tokens / sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)


def tokens_of(answers: list[dict[str, Any]]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


@contextlib.contextmanager
def serving(
    model: Path, tokenizer: Any, log: Path, *flags: str, environment: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server with these flags, ready to answer; nothing of it is left afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(model), "--port", str(port)]
    command += [*engine.server_flags(max_total_tokens=4096), "--context-length", "1024", "--max-running-requests", "8"]
    own = engine.server_environment(os.environ) | (environment or {})
    with processes.start([*command, *flags], env=own, log_path=log) as running:
        server = Server(port, tokenizer)
        deadline = time.monotonic() + START_LIMIT_S
        while not is_healthy(port):
            assert running.alive(), f"the server ended: {log.read_text(errors='replace')[-3000:]}"
            assert time.monotonic() < deadline, f"the server is not ready after {START_LIMIT_S} s"
            time.sleep(0.5)
        assert server.ask("/server_info")["attention_backend"] == "intel_amx"
        yield server


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as response:
            return response.status == 200
    except (urllib.error.URLError, OSError):
        return False


# --- the models ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def model() -> Path:
    return ensure_model()


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


@pytest.fixture(scope="session")
def reference(model: Path) -> Iterator[Any]:
    """The same weights in transformers, float32. On one thread: several wait for each other where a machine is busy."""
    from transformers import AutoModelForCausalLM

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def baseline(model: Path, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """What the float32 server answers without speculation, one request at a time and then several at once."""
    log = tmp_path_factory.mktemp("float32") / "log"
    with serving(model, tokenizer, log, "--dtype", "float32") as server:
        alone, together = tokens_of(server.answers()), tokens_of(server.answers(at_once=3))
        assert "embedded engine: compiled kernels ready after" in log.read_text()
        said = server.ask(
            "/v1/chat/completions",
            {
                "model": "default",
                "messages": [{"role": "user", "content": PROMPTS[0]}],
                "max_tokens": 8,
                "temperature": 0,
            },
        )
    assert together == alone
    assert said["usage"]["prompt_tokens"] == len(prompt_ids(tokenizer, PROMPTS[0]))
    assert "Paris" in said["choices"][0]["message"]["content"]
    return alone


def random_head(folder: Path, model: Path, kind: str) -> Path:
    """An EAGLE or EAGLE-3 head of the right shape with random weights: it proposes, and is next to never right."""
    config = json.loads((model / "config.json").read_text())
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    kv = config["num_key_value_heads"] * config["head_dim"]
    eagle3 = kind == "EAGLE3"
    layer, seen = ("midlayer", 2 * hidden) if eagle3 else ("layers.0", hidden)
    shapes = {"fc": (hidden, 3 * hidden if eagle3 else 2 * hidden)}
    shapes |= {f"{layer}.self_attn.{name}_proj": (rows, seen) for name, rows in (("q", hidden), ("k", kv), ("v", kv))}
    shapes |= {f"{layer}.self_attn.o_proj": (hidden, hidden), f"{layer}.mlp.down_proj": (hidden, inner)}
    shapes |= {f"{layer}.mlp.{name}_proj": (inner, hidden) for name in ("gate", "up")}
    norms = [f"{layer}.post_attention_layernorm"]
    config |= {"architectures": ["LlamaForCausalLMEagle"], "num_hidden_layers": 1, "tie_word_embeddings": False}
    generator = torch.Generator().manual_seed(0)
    weights = {"fc.bias": torch.zeros(hidden)}
    if eagle3:
        proposed = 4096  # the head proposes from a part of the vocabulary: token i is token i + d2t[i] of the target
        config |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": proposed}
        shapes["lm_head"] = (proposed, hidden)
        norms += ["norm", f"{layer}.hidden_norm", f"{layer}.input_layernorm"]
        kept = torch.arange(proposed) * (vocabulary // proposed)
        weights = {"d2t": kept - torch.arange(proposed), "t2d": torch.zeros(vocabulary, dtype=torch.bool)}
        weights["t2d"][kept] = True
    weights |= {f"{name}.weight": 0.02 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    weights |= {f"{name}.weight": torch.ones(hidden) for name in norms}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


# --- float32: token for token --------------------------------------------------------------------------------------


def test_float32_output_equals_that_of_transformers(baseline: list[list[int]], reference: Any, tokenizer: Any) -> None:
    for prompt, tokens in zip(PROMPTS, baseline, strict=True):
        ids = torch.tensor([prompt_ids(tokenizer, prompt)])
        generated = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
        )
        assert tokens == generated[0, ids.shape[1] :].tolist(), prompt


def test_without_compiled_kernels_pytorch_serves_the_same_tokens(
    baseline: list[list[int]], model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    no_compiler = {"NUMBA_DISABLE_JIT": "1", "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    with serving(model, tokenizer, log, "--dtype", "float32", environment=no_compiler) as server:
        assert tokens_of(server.answers(at_once=3)) == baseline
    assert "embedded engine: no compiled kernels (" in log.read_text()


@pytest.mark.parametrize(("draft_tokens", "breadth"), [pytest.param(4, 1, id="chain"), pytest.param(8, 4, id="tree")])
def test_ngram_output_equals_the_baselines(
    draft_tokens: int, breadth: int, baseline: list[list[int]], model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    flags = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(draft_tokens)]
    flags += ["--speculative-ngram-max-bfs-breadth", str(breadth)]
    with serving(model, tokenizer, tmp_path / "log", "--dtype", "float32", *flags) as server:
        fresh = server.answers()
        known = server.answers(at_once=3)
    assert tokens_of(fresh) == baseline
    assert tokens_of(known) == baseline
    # The table has seen these prompts: nearly all that it proposes now is right.
    assert accept_length(known) > accept_length(fresh) > 1
    assert accept_length(known) > 2


def test_standalone_chain_accepts_exactly_what_the_drafter_gets_right(
    baseline: list[list[int]], reference: Any, model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    """The target as its own drafter, so that long chains are accepted, and their number can be worked out."""
    # A prefix shared with another prompt would bring that prompt's next token into the shifted drafter's cache.
    flags = [*drafter_flags("STANDALONE", model, steps=3, topk=1, draft_tokens=4), "--disable-radix-cache"]
    with serving(model, tokenizer, tmp_path / "log", "--dtype", "float32", *flags) as server:
        answers = server.answers(at_once=3)
    assert tokens_of(answers) == baseline
    verifies = [answer["meta_info"]["spec_verify_ct"] for answer in answers]
    prompts = [prompt_ids(tokenizer, prompt) for prompt in PROMPTS]
    assert verifies == [expected_verifies(reference, *pair, steps=3) for pair in zip(prompts, baseline, strict=True)]
    assert accept_length(answers) > 3


def test_standalone_tree_output_equals_the_baselines(
    baseline: list[list[int]], model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    flags = drafter_flags("STANDALONE", model, steps=2, topk=3, draft_tokens=6)
    with serving(model, tokenizer, tmp_path / "log", "--dtype", "float32", *flags) as server:
        answers = server.answers(at_once=3)
    assert tokens_of(answers) == baseline
    assert accept_length(answers) > 2.4


def expected_verifies(reference: Any, prompt: list[int], output: list[int], steps: int) -> int:
    """Verifies that a chain needs when the target drafts for itself as SGLang lets it: without the first token.

    SGLang shifts every drafter's input left by one, STANDALONE's too (``eagle_worker_v2.py``, draft extend).
    """
    context = prompt + output
    with torch.inference_mode():
        drafted = reference(torch.tensor([context[1:]])).logits[0].argmax(-1).tolist()
    right = [drafted[position - 2] == context[position] for position in range(len(prompt), len(context))]
    made, verifies = 1, 0  # the prefill makes the first token
    while made < len(output):
        proposals = right[made : made + steps]
        made += (proposals.index(False) if False in proposals else steps) + 1
        verifies += 1
    return verifies


@pytest.mark.parametrize(
    ("kind", "steps", "topk", "draft_tokens"),
    [
        pytest.param("EAGLE", 2, 2, 4, id="eagle-tree"),
        pytest.param("EAGLE3", 3, 1, 4, id="eagle3-chain"),
        pytest.param("EAGLE3", 3, 4, 8, id="eagle3-tree"),
    ],
)
def test_random_heads_output_equals_the_baselines(
    kind: str,
    steps: int,
    topk: int,
    draft_tokens: int,
    baseline: list[list[int]],
    model: Path,
    tokenizer: Any,
    tmp_path: Path,
) -> None:
    head = random_head(tmp_path / "head", model, kind)
    flags = drafter_flags(kind, head, steps, topk, draft_tokens)
    with serving(model, tokenizer, tmp_path / "log", "--dtype", "float32", *flags) as server:
        answers = server.answers(at_once=3)
    assert tokens_of(answers) == baseline
    assert accept_length(answers) >= 1


def drafter_flags(kind: str, drafter: Path, steps: int, topk: int, draft_tokens: int) -> list[str]:
    return [
        *("--speculative-algorithm", kind),
        *("--speculative-draft-model-path", str(drafter)),
        *("--speculative-num-steps", str(steps)),
        *("--speculative-eagle-topk", str(topk)),
        *("--speculative-num-draft-tokens", str(draft_tokens)),
    ]


# --- bf16: equal, or parted at a near tie --------------------------------------------------------------------------


def part_at_a_near_tie(reference: Any, prompt: list[int], one: list[int], other: list[int]) -> bool:
    """Whether two outputs are equal, or at their first difference took the two highest logits, nearly equal."""
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    if at is None:
        return len(one) == len(other)
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + one[:at]])).logits[0, -1]
    highest = logits.topk(2)
    gap = float(highest.values[0] - highest.values[1])
    return set(highest.indices.tolist()) == {one[at], other[at]} and gap <= NEAR_TIE


def test_judge_of_near_ties_refuses_a_plain_difference(reference: Any, tokenizer: Any) -> None:
    prompt = prompt_ids(tokenizer, PROMPTS[0])
    with torch.inference_mode():
        order = reference(torch.tensor([prompt])).logits[0, -1].argsort(descending=True).tolist()
    assert part_at_a_near_tie(reference, prompt, order[:1], order[:1])
    assert not part_at_a_near_tie(reference, prompt, order[:1], order[5:6])
    assert not part_at_a_near_tie(reference, prompt, order[:1], [])


def test_bf16_outputs_are_equal_alone_and_part_together_only_at_near_ties(
    reference: Any, model: Path, tokenizer: Any, tmp_path: Path
) -> None:
    """The compiled kernels give a verify the bits of single steps, up to 16 rows. Six requests at once have 24."""
    with serving(model, tokenizer, tmp_path / "baseline.log") as server:
        baseline = tokens_of(server.answers())
    flags = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4"]
    flags += ["--speculative-ngram-max-bfs-breadth", "1"]
    with serving(model, tokenizer, tmp_path / "ngram.log", *flags) as server:
        alone, together = tokens_of(server.answers()), tokens_of(server.answers(at_once=len(PROMPTS)))
    assert alone == baseline
    for prompt, one, other in zip(PROMPTS, baseline, together, strict=True):
        assert part_at_a_near_tie(reference, prompt_ids(tokenizer, prompt), one, other), (prompt, one, other)
