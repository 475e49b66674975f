"""The arms of a sweep: what each cell is, under which condition it ran, and which baseline it is compared with.

A cell of ``cells.json`` is a variant of the server, a drafter with its settings (or none) and a condition. Within one
condition the arms of a variant are compared with that variant's baseline, and the other variants with the first one's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import pandas as pd

from breakeven.launch.design import DEFAULT_VARIANT, TWIN, Condition
from breakeven.stats.comparing import compare
from breakeven.stats.conclusions import without_data
from breakeven.stats.samples import usable

OUTCOMES = {
    "pays": "faster",
    "does-not-pay": "slower",
    "not-distinguishable": "not-distinguishable",
    "needs-more": "needs-more",
}
"""What a verdict says of a variant, which pays for nothing."""


def condition_in_words(condition: Condition) -> str:
    """``concurrency 4, temperature 0.7, prompts of about 2000 tokens``; empty for the plain condition."""
    parts = [f"concurrency {condition.concurrency}"] if condition.concurrency != 1 else []
    parts += [f"temperature {condition.temperature:g}"] if condition.temperature else []
    parts += [f"prompts of about {condition.context_tokens} tokens"] if condition.context_tokens else []
    return ", ".join(parts)


@dataclass(frozen=True)
class Arm:
    """One cell: its name in the files, and what it is. ``draft_tokens`` counts the root, as SGLang's flag does."""

    name: str
    variant: str
    condition: Condition
    algorithm: str  # none: the baseline
    steps: int | None
    topk: int | None
    draft_tokens: int | None
    pinned_length: float | None = None  # an accept length that SGLang was told to simulate: costs are real, it is not

    @property
    def speculates(self) -> bool:
        return self.algorithm != "none"

    @property
    def is_twin(self) -> bool:
        """The baseline measured a second time, for the noise floor."""
        return not self.speculates and TWIN in self.name

    @property
    def drafts(self) -> int | None:
        """What the drafter proposes per verify, without the root; the depth of a chain."""
        return self.draft_tokens - 1 if self.draft_tokens else self.steps

    @property
    def is_chain(self) -> bool:
        return self.topk in (None, 1)

    @property
    def family(self) -> tuple[Any, ...]:
        """Arms that differ in the length of the draft alone."""
        return (self.variant, self.condition, self.algorithm, self.topk)

    def words(self, *, one_of_several_loads: bool = False) -> str:
        """``EAGLE3 with 3 steps, variant fused, concurrency 4``; concurrency 1 is named beside others alone."""
        if not self.speculates:
            name = "baseline, second time" if self.is_twin else "baseline"
        elif self.steps:
            tree = f", topk {self.topk}" if not self.is_chain else ""
            name = f"{self.algorithm} with {self.steps} step{'s' if self.steps != 1 else ''}{tree}"
        else:
            name = f"{self.algorithm} with {self.draft_tokens} draft tokens"
        variant = f"variant {self.variant}" if self.variant != DEFAULT_VARIANT else ""
        load = "concurrency 1" if one_of_several_loads and self.condition.concurrency == 1 else ""
        return ", ".join(part for part in (name, variant, load, condition_in_words(self.condition)) if part)


def arms_of(cells: Iterable[Mapping[str, Any]]) -> dict[str, Arm]:
    """Every cell of ``cells.json`` by its name, in the order in which they were first launched."""
    arms: dict[str, Arm] = {}
    for row in cells:
        condition = Condition(
            int(row.get("concurrency") or 1), float(row.get("temperature") or 0.0), int(row.get("context_tokens") or 0)
        )
        variant = row.get("variant") or DEFAULT_VARIANT
        shape = (row.get(key) for key in ("steps", "topk", "draft_tokens", "accept_length_pinned"))
        arms.setdefault(row["cell"], Arm(row["cell"], variant, condition, row["drafter"], *shape))
    return arms


def launches(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every row of ``cells.json`` as a reader wants it: in order, counted from 1, its fate in words."""
    rows = []
    for row in cells:
        failure, streams = row.get("failure"), row.get("concurrency") or 1
        names = ("cell", "ready_s", "requests", "tok_s", "accept_length")
        rows.append(
            {
                **{name: row.get(name) for name in names},
                "order": row["order"] + 1,
                "restart": row["restart"] + 1,
                "concurrency": streams,
                "fate": f"{row['status']}: {failure['class']}, {failure['text']}" if failure else _fate(row),
                "tok_s_all": row["tok_s"] * streams if row.get("tok_s") else None,
                "cycle_ms": row.get("cycle_ms") or row.get("step_ms"),
            }
        )
    return rows


def _fate(row: Mapping[str, Any]) -> str:
    looped = row.get("degenerate") and row["degenerate"] == row.get("requests")
    return f"{row['status']}; every answer loops, none is used" if looped else str(row["status"])


def in_words(arms: Mapping[str, Arm]) -> dict[str, str]:
    """Each arm by its name in words; the name goes with them where two would read the same (n-gram breadths, say)."""
    several = len({arm.condition.concurrency for arm in arms.values()}) > 1
    words = {name: arm.words(one_of_several_loads=several) for name, arm in arms.items()}
    times = Counter(words.values())
    return {name: text if times[text] == 1 else f"{text} ({name})" for name, text in words.items()}


def baselines_of(arms: Mapping[str, Arm], condition: Condition) -> dict[str, Arm]:
    """The baseline of each variant under a condition."""
    return {
        arm.variant: arm
        for arm in arms.values()
        if arm.condition == condition and not arm.speculates and not arm.is_twin
    }


def compare_all(
    samples: pd.DataFrame, arms: Mapping[str, Arm], *, level: float, by_kind: bool = False
) -> list[dict[str, Any]]:
    """`stats.compare` for every speculating arm against the baseline of its own variant and condition.

    Conditions are judged apart (their launches are the same servers, so that pooling them would count noise twice);
    each row also says what the arm is, what it was compared with, and how accept length spreads over prompts.
    """
    rows, words = [], in_words(arms)
    for condition, variant, baseline, cells in _sets(arms):
        here = _of_condition(samples, arms, condition)
        twins = [arm.name for arm in arms.values() if arm.is_twin and arm.variant == variant]
        if baseline:
            here = _stood_in_for(here, baseline.name, twins)
        measured = set(here["cell"])
        pairs = _same_servers(arms, condition, measured)
        ready = [arm.name for arm in cells if arm.name in measured and baseline and baseline.name in measured]
        found = (
            compare(here, baseline.name, ready, by=["kind"] if by_kind else [], aa_pairs=pairs, level=level)
            if ready and baseline
            else []
        )
        missing = [arm.name for arm in cells if arm.name not in ready]
        if not by_kind:
            found += [without_data({}, name, baseline.name if baseline else "its baseline") for name in missing]
        rows += [_described(row, arms[row["cell"]], words, baseline, here) for row in found]
    return rows


def rivals(
    samples: pd.DataFrame,
    arms: Mapping[str, Arm],
    best: Mapping[str, Any],
    comparisons: Sequence[Mapping[str, Any]],
    *,
    level: float,
) -> list[str]:
    """The other arms of the best one's condition that pay too and, on the prompts measured, can't be told from it, in
    words."""
    arm, words = arms[best["cell"]], in_words(arms)
    here = _of_condition(samples, arms, arm.condition)
    measured = set(here["cell"])
    paying = {row["cell"] for row in comparisons if row["verdict_same_prompts"] == "pays"}
    others = [each.name for each in arms.values() if each.condition == arm.condition and each.name in paying & measured]
    others = [name for name in others if name != arm.name]
    pairs = _same_servers(arms, arm.condition, measured)
    found = compare(here, arm.name, others, aa_pairs=pairs, level=level) if others else []
    found = [row for row in found if row["verdict_same_prompts"] == "not-distinguishable"]
    return [words[row["cell"]] for row in sorted(found, key=lambda row: -row["speedup"]["estimate"])]


def compare_variants(samples: pd.DataFrame, arms: Mapping[str, Arm], *, level: float) -> list[dict[str, Any]]:
    """Every arm of another variant, its baseline included, against the baseline of the first variant."""
    rows, words = [], in_words(arms)
    first = next((arm.variant for arm in arms.values()), DEFAULT_VARIANT)
    for condition in dict.fromkeys(arm.condition for arm in arms.values()):
        here = _of_condition(samples, arms, condition)
        measured = set(here["cell"])
        default = baselines_of(arms, condition).get(first)
        others = [
            arm.name for arm in arms.values() if arm.condition == condition and arm.variant != first and not arm.is_twin
        ]
        others = [name for name in others if name in measured]
        if default is None or default.name not in measured or not others:
            continue
        pairs = _same_servers(arms, condition, measured)
        found = compare(here, default.name, others, aa_pairs=pairs, level=level)
        rows += [_described(row, arms[row["cell"]], words, default, here) for row in found]
    return [{**row, "against": words[row["against"]], "outcome": OUTCOMES[row["verdict"]]} for row in rows]


def _sets(arms: Mapping[str, Arm]) -> Iterable[tuple[Condition, str, Arm | None, Sequence[Arm]]]:
    """Condition, variant, its baseline (None where it was never launched) and the arms to compare with it."""
    for condition in dict.fromkeys(arm.condition for arm in arms.values()):
        here = [arm for arm in arms.values() if arm.condition == condition]
        baselines = baselines_of(arms, condition)
        for variant in dict.fromkeys(arm.variant for arm in here):
            cells = [arm for arm in here if arm.variant == variant and arm.speculates]
            if cells:
                yield condition, variant, baselines.get(variant), cells


def _same_servers(arms: Mapping[str, Arm], condition: Condition, measured: Set[str]) -> list[tuple[str, str]]:
    """Cells that are one and the same server under a condition: what they differ by is noise, whatever is compared."""
    baselines = baselines_of(arms, condition)
    twins = [arm for arm in arms.values() if arm.is_twin and arm.condition == condition and arm.name in measured]
    pairs = [(baselines[arm.variant].name, arm.name) for arm in twins if arm.variant in baselines]
    return [pair for pair in pairs if pair[0] in measured]


def _stood_in_for(samples: pd.DataFrame, baseline: str, twins: Sequence[str]) -> pd.DataFrame:
    """The baseline's second half stands in for it in restarts that lack the first (a run that was cut off)."""
    there = set(samples.loc[samples["cell"] == baseline, "restart"])
    if not there:
        return samples
    lacking = samples["cell"].isin(twins) & ~samples["restart"].isin(there)
    return samples.assign(cell=samples["cell"].mask(lacking, baseline))


def _of_condition(samples: pd.DataFrame, arms: Mapping[str, Arm], condition: Condition) -> pd.DataFrame:
    names = [arm.name for arm in arms.values() if arm.condition == condition]
    return samples[samples["cell"].isin(names)]


def _described(
    row: dict[str, Any], arm: Arm, words: Mapping[str, str], baseline: Arm | None, samples: pd.DataFrame
) -> dict[str, Any]:
    what = {
        "variant": arm.variant,
        "drafter": words[arm.name],
        "drafts": arm.drafts,
        "accept_length_pinned": arm.pinned_length,
        "concurrency": arm.condition.concurrency,
        "temperature": arm.condition.temperature,
        "context_tokens": arm.condition.context_tokens,
        "against": baseline.name if baseline else None,
    }
    lengths = {"accept_length": _possible(row["accept_length"], arm)} if row["accept_length"] else {}
    if arm.pinned_length:
        note = f"accept length pinned to {arm.pinned_length:g}: the cost is real, the speed-up is not"
        what |= {"verdict": "needs-more", "verdict_same_prompts": "needs-more", "p_pays": None, "note": note}
    return {**row, **what, **lengths, "prompts_accept_length": accept_lengths(samples, arm.name, row)}


def _possible(interval: Mapping[str, Any], arm: Arm) -> dict[str, Any]:
    """An interval of accept length without what no verify can give: less than 1, or more than its drafts and one."""
    most = arm.drafts + 1.0 if arm.drafts else float(interval["high"])
    low, high = max(interval["low"], 1.0), min(interval["high"], max(most, interval["estimate"]))
    return {**interval, "low": low, "high": high}


def accept_lengths(samples: pd.DataFrame, cell: str, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """How accept length spreads over prompts (each over its restarts): the 10th, 50th and 90th percentile, the values,
    and the share of prompts above break-even. None without speculation or data."""
    if not row.get("break_even"):
        return None
    good = usable(samples[samples["cell"] == cell])
    good = good if row["kind"] is None else good[good["kind"] == row["kind"]]
    sums = good.assign(tokens=good["completion_tokens"] - 1).groupby("prompt_id")[["tokens", "verify_ct"]].sum()
    lengths = sums["tokens"] / sums["verify_ct"]
    low, middle, high = lengths.quantile([0.1, 0.5, 0.9])
    return {
        "p10": float(low),
        "p50": float(middle),
        "p90": float(high),
        "above_break_even": float((lengths > row["break_even"]["estimate"]).mean()),
        "values": [round(float(value), 4) for value in sorted(lengths)],
    }
