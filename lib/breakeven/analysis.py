"""From the samples of a run to its answer: what notebook 05 shows and ``breakeven.json`` holds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from breakeven import artifacts, records, stats
from breakeven.config import BreakEvenSettings
from breakeven.errors import UserError
from breakeven.plots import Figure

BASELINE = "baseline"
EXAMPLE = Path(__file__).parent / "embedded" / "example"
COLUMNS = {
    "cell": "drafter",
    "verdict": "verdict",
    "speedup": "speed-up",
    "accept_length": "accept length",
    "break_even": "break-even accept length",
    "p_pays": "P(it pays)",
    "restarts": "restarts",
    "prompts": "prompts",
    "note": "note",
}
NOT_WORKING_BELOW = 1.02  # accept length under which a drafter contributes nothing
NEAR_TIE_NATS = 0.25
"""Largest gap of the two highest log-probabilities that bfloat16 rounding may bridge.

bfloat16 has 8 bits of significand: logits of 16 to 32, usual for the model of the default, stand 0.125 apart, so two
of them may each be off by one step.
"""


@dataclass(frozen=True)
class Measured:
    """Samples of complete launches, every launch's row, and where they come from."""

    samples: pd.DataFrame
    cells: list[dict[str, Any]]
    source: str


def load(run_dir: Path) -> Measured:
    """What notebook 04 left in a run folder; without any, the example that ships with the library, labelled as such.

    Raises UserError when the folder's files can't be read or hold no complete launch of the baseline.
    """
    folder, source = run_dir, "measured in this run"
    if not (run_dir / "cells.json").exists():
        folder = EXAMPLE
        machine = artifacts.read_json(EXAMPLE / "cells.json")["machine"]
        source = f"a recorded example, measured on {machine['cpu']} with {machine['cores']} cores, not on this machine"
    cells = artifacts.read_json(folder / "cells.json")["cells"]
    complete = {row["launch"] for row in cells if row["status"] == "ok"}
    rows = [row for row in artifacts.read_jsonl(folder / "samples.jsonl") if row["launch"] in complete]
    rows = [row for row in rows if not row.get("error")]
    if not any(row["cell"] == BASELINE for row in rows):
        raise UserError(f"{folder} holds no complete launch of the baseline; run notebook 04 first")
    return Measured(pd.DataFrame(rows), cells, source)


def analyse(measured: Measured, settings: BreakEvenSettings) -> dict[str, Any]:
    """Break-even per drafter and kind of prompt, verdicts with intervals, warnings, and the answer in words."""
    samples = measured.samples
    twin = f"{BASELINE}-again"
    aa_pairs = [(BASELINE, twin)] if twin in set(samples["cell"]) else []
    cells = [name for name in dict.fromkeys(samples["cell"]) if name not in (BASELINE, twin)]
    comparisons = stats.compare(samples, BASELINE, cells, aa_pairs=aa_pairs, level=settings.level)
    by_kind = stats.compare(samples, BASELINE, cells, by=["kind"], level=settings.level)
    warnings = [*warn(measured, comparisons), *_recorded(settings)]
    return {
        "source": measured.source,
        "answer": answer(comparisons, measured, settings.level),
        "comparisons": sorted(comparisons, key=lambda row: -((row["speedup"] or {}).get("estimate") or 0)),
        "by_kind": by_kind,
        "cells": stats.summarise_cells(samples, level=settings.level).to_dict("records"),
        "cycle": cycle_parts(samples, measured.cells),
        "warnings": warnings,
        "findings": findings(comparisons, by_kind, measured),
    }


def save(result: dict[str, Any], figures: Sequence[Figure], run_dir: Path) -> None:
    """Write ``breakeven.json``, its tables as CSV and the figures."""
    described = [{"name": each.name, "title": each.title, "alt": each.alt} for each in figures]
    for each in figures:
        each.save(run_dir / "figures")
    for name in ("comparisons", "by_kind", "cells"):
        artifacts.write_text(run_dir / f"{name}.csv", pd.json_normalize(result[name]).to_csv(index=False))
    artifacts.write_json(run_dir / "breakeven.json", {**result, "figures": described})


def answer(comparisons: Sequence[Mapping[str, Any]], measured: Measured, level: float) -> dict[str, Any]:
    """The answer in one sentence, how sure it is, and how it was found."""
    judged = [row for row in comparisons if row["speedup"]]
    if not judged:
        sentence, verdict, best = "No answer: no drafter could be compared with the baseline.", "needs-more", None
    else:
        best = max(judged, key=lambda row: row["speedup"]["estimate"])
        paying = [row for row in judged if row["verdict"] == "pays"]
        best = max(paying, key=lambda row: row["speedup"]["estimate"]) if paying else best
        verdict = best["verdict"]
        sentence = _sentence(best, cell_in_words(best["cell"], measured.cells))
    restarts = max((row["restarts"] for row in judged), default=0)
    prompts = max((row["prompts"] for row in judged), default=0)
    return {
        "sentence": sentence,
        "verdict": verdict,
        "best": best,
        "uncertainty": _uncertainty(best, level),
        "how": (
            f"Source: {measured.source}. Each figure comes from {restarts} fresh servers per cell with the same "
            f"{prompts} prompts each, cells interleaved, prefill and warm-up excluded; in parentheses the "
            f"{level:.0%} interval over restarts and prompts."
        ),
    }


def cell_in_words(name: str, cells: Iterable[Mapping[str, Any]]) -> str:
    """``NGRAM with 4 draft tokens`` for ``ngram-d4``."""
    row = next((row for row in cells if row["cell"] == name), None)
    if row is None or row["drafter"] == "none":
        return name
    if row["steps"]:
        shape = f"{row['steps']} steps" if row["topk"] == 1 else f"{row['steps']} steps, topk {row['topk']}"
        return f"{row['drafter']} with {shape}"
    return f"{row['drafter']} with {row['draft_tokens']} draft tokens"


def cycle_parts(samples: pd.DataFrame, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Milliseconds per baseline step and per cycle of each cell, split as the traced window was where there is one."""
    rows = []
    for cell, group in stats.usable(samples).groupby("cell", sort=False):
        count = group["verify_ct"].sum() if group["verify_ct"].notna().any() else (group["completion_tokens"] - 1).sum()
        total_ms = 1000 * group["decode_s"].sum() / count
        profiles = [row.get("profile") or {} for row in cells if row["cell"] == cell]
        shares = next((each["shares"] for each in profiles if "shares" in each), None)
        whole = "step" if group["verify_ct"].isna().all() else "cycle"
        parts = {name: share * total_ms for name, share in shares.items()} if shares else {whole: total_ms}
        rows.append({"cell": cell, "parts": parts, "split": "traced window" if shares else "not traced"})
    return rows


def warn(measured: Measured, comparisons: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Everything about the measurement that a reader has to know before trusting it."""
    return [
        *_failed_launches(measured.cells),
        *_degenerate(measured.samples),
        *_reused(measured.samples),
        *_unequal_limits(measured.cells),
        *_texts_that_part(measured.cells),
        *_idle_drafters(comparisons),
        *_cut_off(measured.samples),
    ]


def findings(
    comparisons: Sequence[Mapping[str, Any]], by_kind: Sequence[Mapping[str, Any]], measured: Measured
) -> list[str]:
    """The findings of notebook 05, one sentence each."""
    sentences = []
    for row in comparisons:
        if not row["speedup"]:
            sentences.append(f"{row['cell']}: {row['note']}.")
            continue
        text = f"{cell_in_words(row['cell'], measured.cells)} {VERDICT_WORDS[row['verdict']]}: "
        text += f"{row['speedup']['estimate']:.2f} times the baseline's rate"
        if row["accept_length"]:
            text += (
                f", accept length {row['accept_length']['estimate']:.2f} against {row['break_even']['estimate']:.2f}"
            )
        kinds = [each for each in by_kind if each["cell"] == row["cell"] and each["speedup"]]
        if len(kinds) > 1:
            first = max(kinds, key=lambda each: each["speedup"]["estimate"])
            last = min(kinds, key=lambda each: each["speedup"]["estimate"])
            text += f"; from {last['speedup']['estimate']:.2f} ({last['kind']}) to "
            text += f"{first['speedup']['estimate']:.2f} ({first['kind']})"
        sentences.append(text + ".")
    compared = sum(row["canary"]["compared"] for row in measured.cells if row.get("canary"))
    parted = [each for row in measured.cells if row.get("canary") for each in row["canary"]["parted"]]
    if compared:
        sentences.append(_canary_sentence(compared, parted))
    return sentences


VERDICT_WORDS = {
    "pays": "pays",
    "does-not-pay": "does not pay",
    "not-distinguishable": "can't be told from the baseline",
    "needs-more": "needs more data",
}


def _sentence(best: Mapping[str, Any], name: str) -> str:
    ratio, length, needed = best["speedup"]["estimate"], best["accept_length"], best["break_even"]
    lengths = f"accept length {length['estimate']:.2f} where {needed['estimate']:.2f} breaks even" if length else ""
    if best["verdict"] == "pays":
        return f"Yes. {name} decodes {ratio:.2f} times as fast as the baseline: {lengths}."
    if best["verdict"] == "does-not-pay":
        return f"No. Even the best drafter measured, {name}, runs at {ratio:.2f} of the baseline's rate: {lengths}."
    return f"Not shown. The best drafter measured, {name}, is at {ratio:.2f} of the baseline's rate, within the noise."


def _uncertainty(best: Mapping[str, Any] | None, level: float) -> str:
    if not best:
        return "Nothing could be compared."
    ratio = best["speedup"]
    text = f"{level:.0%} interval of the speed-up: {ratio['low']:.2f} to {ratio['high']:.2f}; "
    text += f"probability that it pays: {_percent(best['p_pays'])}."
    if best["noise_floor"] is not None:
        text += f" The baseline measured twice differs by {best['noise_floor']:.1%} (the noise floor)."
    if best["repeats_to_decide"]:
        text += f" About {best['repeats_to_decide']} restarts would decide it."
    if best["note"]:
        text += f" Note: {best['note']}."
    return text


def _percent(probability: float) -> str:
    if probability > 0.995:
        return "above 99 %"
    if probability < 0.005:
        return "below 1 %"
    return f"{probability:.0%}"


def _failed_launches(cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    for row in cells:
        if row["status"] != "ok":
            failure = row["failure"]
            text = f"{row['launch']} failed with {failure['class']}: {failure['text']}. {failure['advice']}"
            yield {"code": "launch-failed", "text": text}


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
    for name in ("max_running_requests", "context_length", "cuda_graph_batch_sizes", "attention_backend"):
        values = {str(row["effective"].get(name)) for row in cells if row.get("effective")}
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
        if row["accept_length"] and row["accept_length"]["estimate"] <= NOT_WORKING_BELOW:
            text = (
                f"{row['cell']}: accept length {row['accept_length']['estimate']:.2f}; the drafter contributes nothing"
            )
            yield {"code": "drafter-not-working", "text": text}


def _cut_off(samples: pd.DataFrame) -> Iterable[dict[str, str]]:
    base = samples[(samples["phase"] == "measure") & (samples["cell"] == BASELINE)]
    cut = int((base["finish"] == "length").sum())
    if cut > 0.5 * len(base):
        text = f"{cut} of {len(base)} baseline answers reached their token limit before they ended"
        yield {"code": "answers-cut-off", "text": text}


def _canary_sentence(compared: int, parted: Sequence[Mapping[str, Any]]) -> str:
    if not parted:
        return f"All {compared} greedy texts equal the baseline's token for token."
    widest = max(each["gap_nats"] or 0.0 for each in parted)
    text = (
        f"{len(parted)} of {compared} greedy texts part from the baseline's; at the first difference the two likeliest "
    )
    text += f"tokens are at most {widest:.3f} nats apart. "
    if widest <= NEAR_TIE_NATS:
        return text + "That is rounding, no fault: a verify of several tokens rounds differently from single steps."
    return text + "That is more than rounding explains: see the warnings."


def _recorded(settings: BreakEvenSettings) -> Iterable[dict[str, str]]:
    """Warnings about figures that somebody wrote down, labelled as reported."""
    if settings.records == "none":
        return
    for row in records.analyze_csv(artifacts.project_root() / settings.records)["rows"]:
        for warning in row["warnings"]:
            yield {"code": warning["code"], "text": f"reported figures, {row['id']}: {warning['text']}"}
