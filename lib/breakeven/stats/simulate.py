"""Sweeps whose truth is known: to check that intervals cover, verdicts hold and predictions come true.

The world: a baseline step and a cycle per chain length (a jagged curve), prompts of several kinds whose drafts are
accepted with a probability of their own, and noise as servers show it: every launch is a little faster or slower for as
long as it lives, every restart round too, the machine drifts within a round, every request has noise. Greedy decoding:
what a cell emits for a prompt is the same in every restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pandas as pd

BASELINE, AGAIN = "baseline", "baseline-again"


@dataclass(frozen=True)
class World:
    """Times in ms; sds relative (of log time)."""

    step_ms: float = 12.0
    cycle_ms: dict[int, float] = field(
        default_factory=lambda: {1: 18.0, 2: 17.4, 3: 20.5, 4: 20.9, 5: 24.0, 6: 25.9, 7: 26.3}
    )
    kind_acceptance: tuple[float, ...] = (0.35, 0.45, 0.5, 0.55, 0.65, 0.75)
    acceptance_spread: float = 12.0  # a + b of the beta distribution of acceptance within a kind
    prompts_per_kind: int = 4
    tokens: float = 120.0
    launch_sd: float = 0.02
    round_sd: float = 0.01
    drift_sd: float = 0.01
    request_sd: float = 0.04

    @property
    def cells(self) -> dict[str, int]:
        """Cell name to chain length; 0 does not speculate."""
        return {BASELINE: 0, AGAIN: 0, **{f"chain-{k}": k for k in self.cycle_ms}}

    def cost_ms(self, chain: int) -> float:
        return self.cycle_ms[chain] if chain else self.step_ms


@dataclass(frozen=True)
class Prompts:
    kind: np.ndarray
    acceptance: np.ndarray
    tokens: np.ndarray  # the prefill's token left out


def draw_prompts(world: World, rng: np.random.Generator, per_kind: int | None = None) -> Prompts:
    kind = np.repeat(np.arange(len(world.kind_acceptance)), per_kind or world.prompts_per_kind)
    mean = np.asarray(world.kind_acceptance)[kind]
    acceptance = rng.beta(mean * world.acceptance_spread, (1 - mean) * world.acceptance_spread)
    return Prompts(kind, acceptance, np.maximum(rng.poisson(world.tokens * rng.gamma(6, 1 / 6, kind.size)), 8))


def correct_drafts(acceptance: np.ndarray, chain: int) -> np.ndarray:
    """(prompts, chain + 1): probability that j drafts of a chain are right."""
    survival = acceptance[:, None] ** np.arange(chain + 1)
    return survival - np.hstack([survival[:, 1:], np.zeros((len(acceptance), 1))])


def mean_accept_length(prompts: Prompts, chain: int) -> float:
    """Tokens per verify over all prompts: every prompt weighs as many verifies as it takes."""
    lengths = 1 + correct_drafts(prompts.acceptance, chain) @ np.arange(chain + 1)
    return float(prompts.tokens.sum() / (prompts.tokens / lengths).sum())


def truth(world: World, seed: int = 1, prompts_per_kind: int = 100_000) -> pd.DataFrame:
    """Per speculating cell, over the population of prompts: accept_length, break_even, margin, speedup."""
    population = draw_prompts(world, np.random.default_rng(seed), prompts_per_kind)
    return table(world, population)


def table(world: World, prompts: Prompts) -> pd.DataFrame:
    """The same for given prompts, without noise."""
    rows = {}
    for cell, chain in world.cells.items():
        length = mean_accept_length(prompts, chain) if chain else 1.0
        needed = world.cost_ms(chain) / world.step_ms
        rows[cell] = {
            "accept_length": length,
            "break_even": needed,
            "margin": length - needed,
            "speedup": length / needed,
        }
    return pd.DataFrame(rows).T


def measure(
    world: World, rng: np.random.Generator, restarts: int, chains: tuple[int, ...] | None = None
) -> tuple[pd.DataFrame, Prompts]:
    """A sweep's samples, and the prompts that it drew. ``chains``: those to run (all)."""
    prompts = draw_prompts(world, rng)
    cells = {name: chain for name, chain in world.cells.items() if not chain or chains is None or chain in chains}
    count = prompts.kind.size
    sd = world.launch_sd * rng.uniform(0.7, 1.3, len(cells))  # some cells are noisier than others
    launch = rng.normal(0, 1, (len(cells), restarts)) * sd[:, None]
    drift = rng.normal(0, world.drift_sd, restarts)
    place = np.arange(len(cells)) / len(cells) - 0.5
    shared = launch + rng.normal(0, world.round_sd, restarts) + place[:, None] * drift
    frames = []
    for index, (name, chain) in enumerate(cells.items()):
        # Arms part after a near tie of two logits, and then end at different lengths.
        texts = np.maximum(np.round(prompts.tokens * rng.lognormal(-0.005, 0.1, count)), 4)
        histogram = rng.multinomial(np.maximum(texts, 1).astype(int), correct_drafts(prompts.acceptance, chain))
        emitted = (histogram @ (np.arange(chain + 1) + 1)).astype(float)
        verifies = np.maximum(np.round(texts * texts / emitted), np.ceil(texts / (chain + 1)))
        noise = rng.lognormal(-(world.request_sd**2) / 2, world.request_sd, (restarts, count))
        seconds = verifies * world.cost_ms(chain) / 1000 * np.exp(shared[index])[:, None] * noise
        scaled = np.round(histogram * (verifies / texts)[:, None])
        frames.append(
            pd.DataFrame(
                {
                    "cell": name,
                    "restart": np.repeat(np.arange(restarts), count),
                    "phase": "measure",
                    "prompt_id": np.tile([f"p{i:03d}" for i in range(count)], restarts),
                    "kind": np.tile([f"kind {k}" for k in prompts.kind], restarts),
                    "completion_tokens": np.tile(texts, restarts) + 1,
                    "verify_ct": np.tile(verifies, restarts) if chain else np.nan,
                    "decode_s": seconds.ravel(),
                    "correct_drafts_histogram": list(scaled) * restarts if chain else None,
                }
            )
        )
    return pd.concat(frames, ignore_index=True), prompts
