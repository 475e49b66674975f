"""Doubts about a measurement, as data: everything that a reader has to know before trusting its figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from breakeven.audit import IDLE_DRAFTER
from breakeven.design import DEFAULT_VARIANT

NEAR_TIE_NATS = 0.25
"""Largest gap of the two highest log-probabilities that bfloat16 rounding may bridge.

bfloat16 has 8 bits of significand: logits of 16 to 32, usual for the model of the default, stand 0.125 apart, so two
of them may each be off by one step.
"""


def warn(
    samples: pd.DataFrame, cells: Sequence[Mapping[str, Any]], comparisons: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Every doubt about a sweep: ``code`` for programs, ``text`` for people."""
    return [
        *_failed_launches(cells),
        *_pinned(cells),
        *_degenerate(samples),
        *_reused(samples),
        *_unequal_limits(cells),
        *_texts_that_part(cells),
        *_idle_drafters(comparisons),
        *_impossible_lengths(comparisons),
        *_cut_off(samples, cells),
    ]


def _failed_launches(cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    for row in {row["launch"]: row for row in cells if row["status"] != "ok"}.values():
        if row["failure"]:
            failure = row["failure"]
            text = f"{row['launch']} failed with {failure['class']}: {failure['text']}. {failure['advice']}"
            yield {"code": "launch-failed", "text": text}


def _pinned(cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    pinned = {row["cell"]: row["accept_length_pinned"] for row in cells if row.get("accept_length_pinned")}
    if pinned:
        lengths = ", ".join(f"{length:g}" for length in sorted(set(pinned.values())))
        text = (
            f"{', '.join(pinned)}: SGLang was told to simulate accept length {lengths}; the costs are real, the "
            "speed-ups are not"
        )
        yield {"code": "accept-length-pinned", "text": text}


def _degenerate(samples: pd.DataFrame) -> Iterable[dict[str, str]]:
    measured = samples[samples["phase"] == "measure"]
    for cell, group in measured.groupby("cell", sort=False):
        looping = int(group["degenerate"].sum())
        if looping:
            text = f"{cell}: {looping} of {len(group)} answers loop; they are left out, since a loop is easy to predict"
            yield {"code": "degenerate-output", "text": text}


def _reused(samples: pd.DataFrame) -> Iterable[dict[str, str]]:
    measured = samples[samples["phase"] == "measure"]
    # the chat template's first turn is shared by all prompts; the user's own turn must not have been seen before
    shared = measured[measured["cached_tokens"] >= 0.9 * measured["prompt_tokens"]]
    if len(shared):
        text = f"{len(shared)} of {len(measured)} prompts were mostly in the prefix cache: they were not fresh"
        yield {"code": "prompt-not-fresh", "text": text}


def _unequal_limits(cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    for variant in dict.fromkeys(row.get("variant") or DEFAULT_VARIANT for row in cells):
        of_variant = [row for row in cells if (row.get("variant") or DEFAULT_VARIANT) == variant]
        for name in ("max_running_requests", "context_length", "cuda_graph_batch_sizes", "attention_backend"):
            values = {str(row["effective"].get(name)) for row in of_variant if row.get("effective")}
            if len(values) > 1:
                text = f"{name} differs between arms: {', '.join(sorted(values))}; set it explicitly"
                yield {"code": "unequal-limits", "text": text}


def _texts_that_part(cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    for row in cells:
        far = [each for each in row.get("canary", {}).get("parted", []) if (each["gap_nats"] or 0.0) > NEAR_TIE_NATS]
        if far:
            worst = max(far, key=lambda each: each["gap_nats"])
            text = (
                f"{row['launch']}: {len(far)} texts part from the baseline's where the choice was clear (up to "
                f"{worst['gap_nats']:.2f} nats, prompt {worst['prompt_id']}); greedy decoding must not do that"
            )
            yield {"code": "output-differs", "text": text}


def _idle_drafters(comparisons: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    for row in comparisons:
        if row["accept_length"] and row["accept_length"]["estimate"] <= IDLE_DRAFTER:
            text = (
                f"{row['cell']}: accept length {row['accept_length']['estimate']:.2f}; the drafter contributes nothing"
            )
            yield {"code": "drafter-not-working", "text": text}


def _impossible_lengths(comparisons: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    """The audit of recorded figures, on measured ones: what a chain can't give, and a cycle shorter than its step."""
    for row in comparisons:
        length, needed, drafts = row["accept_length"], row["break_even"], row.get("drafts")
        if length and drafts and length["estimate"] > drafts + 1 + 1e-9:
            text = f"{row['cell']}: accept length {length['estimate']:.2f} is more than {drafts} drafts can give"
            yield {"code": "accept-length-out-of-range", "text": text}
        if needed and needed["high"] < 1:
            text = (
                f"{row['cell']}: its cycle is {needed['estimate']:.2f} baseline steps, though every cycle holds one "
                "target forward: the two arms did not run alike (batch, CUDA graphs, limits)"
            )
            yield {"code": "cycle-below-target-step", "text": text}


def _cut_off(samples: pd.DataFrame, cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    baselines = {row["cell"] for row in cells if row["drafter"] == "none"}
    base = samples[(samples["phase"] == "measure") & samples["cell"].isin(baselines)]
    cut = int((base["finish"] == "length").sum())
    if cut > 0.5 * len(base):
        text = f"{cut} of {len(base)} baseline answers reached their token limit before they ended"
        yield {"code": "answers-cut-off", "text": text}
