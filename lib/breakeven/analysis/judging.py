"""Which arm is held against which baseline, and what comes of it.

Within one condition the arms of a variant are compared with that variant's baseline: that is what a drafter does. What
to serve with is told by all of them beside the fastest baseline, whatever its variant; and the other variants stand
beside the first one's baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import pandas as pd

from breakeven.analysis.arms import Arm, baselines_of, in_words
from breakeven.launch.design import DEFAULT_VARIANT, Condition
from breakeven.stats.comparing import Question, compare, compare_together
from breakeven.stats.conclusions import without_data
from breakeven.stats.samples import looping, usable

Row = Mapping[str, Any]
OUTCOMES = {
    "pays": "faster",
    "does-not-pay": "slower",
    "not-distinguishable": "not-distinguishable",
    "needs-more": "needs-more",
}
"""What a verdict says of a variant, which pays for nothing."""


def compare_all(
    samples: pd.DataFrame, arms: Mapping[str, Arm], *, level: float, by_kind: bool = False
) -> list[dict[str, Any]]:
    """`stats.compare` for every speculating arm against the baseline of its own variant and condition, with intervals
    wide enough for all of them together.

    Conditions are judged apart (their launches are the same servers, so that pooling them would count noise twice);
    each row also says what the arm is, what it was compared with, and how accept length spreads over prompts.
    """
    sets = []
    for here, baselines in _by_condition(arms):
        for variant in dict.fromkeys(arm.variant for arm in here):
            sets.append((baselines.get(variant), [arm for arm in here if arm.variant == variant and arm.speculates]))
    return _compared(samples, arms, sets, level, by_kind)


def against_the_fastest(
    samples: pd.DataFrame, arms: Mapping[str, Arm], *, level: float, by_kind: bool = False
) -> list[dict[str, Any]]:
    """The same against the fastest baseline of each condition, which ``reference`` names where there are several."""
    good = usable(samples)
    sums = good.assign(tokens=good["completion_tokens"] - 1).groupby("cell")[["tokens", "decode_s"]].sum()
    rates = (sums["tokens"] / sums["decode_s"]).to_dict()
    sets: list[tuple[Arm | None, Sequence[Arm]]] = []
    named = {}
    for here, baselines in _by_condition(arms):
        measured = [arm for arm in baselines.values() if arm.name in rates]
        fastest = max(measured, key=lambda arm: rates[arm.name], default=None)
        if fastest and len(measured) > 1:
            named[fastest.name] = f"the fastest baseline (variant {fastest.variant})"
        sets.append((fastest, [arm for arm in here if arm.speculates]))
    rows = _compared(samples, arms, sets, level, by_kind)
    return [{**row, "reference": named.get(row["against"], "the baseline")} for row in rows]


def compare_variants(samples: pd.DataFrame, arms: Mapping[str, Arm], *, level: float) -> list[dict[str, Any]]:
    """Every arm of another variant, its baseline included, against the baseline of the first variant."""
    first = next((arm.variant for arm in arms.values()), DEFAULT_VARIANT)
    measured, words = set(samples["cell"]), in_words(arms)
    sets = []
    for here, baselines in _by_condition(arms):
        others = [arm for arm in here if arm.variant != first and not arm.is_twin and arm.name in measured]
        if first in baselines and baselines[first].name in measured:
            sets.append((baselines[first], others))
    rows = _compared(samples, arms, sets, level, by_kind=False)
    return [{**row, "against": words[row["against"]], "outcome": OUTCOMES[row["verdict"]]} for row in rows]


def rivals(
    samples: pd.DataFrame, arms: Mapping[str, Arm], best: Row, comparisons: Sequence[Row], *, level: float
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


def _by_condition(arms: Mapping[str, Arm]) -> Iterable[tuple[list[Arm], dict[str, Arm]]]:
    """The arms of each condition, and the baseline of each variant among them."""
    for condition in dict.fromkeys(arm.condition for arm in arms.values()):
        yield [arm for arm in arms.values() if arm.condition == condition], baselines_of(arms, condition)


def _compared(
    samples: pd.DataFrame,
    arms: Mapping[str, Arm],
    sets: Iterable[tuple[Arm | None, Sequence[Arm]]],
    level: float,
    by_kind: bool,
) -> list[dict[str, Any]]:
    """The arms of each set against its baseline, all of them one family; an arm that can't be compared (its baseline
    was never launched, say) has a row too, unless it is asked ``by_kind``."""
    words = in_words(arms)
    questions, about, missing = [], [], []
    for baseline, cells in sets:
        if not cells:
            continue
        here, ready = _of_condition(samples, arms, cells[0].condition), []
        if baseline:
            twins = [arm.name for arm in arms.values() if arm.is_twin and arm.variant == baseline.variant]
            here = _stood_in_for(here, baseline.name, twins)
            measured = set(here["cell"])
            ready = [arm.name for arm in cells if {arm.name, baseline.name} <= measured]
        if baseline and ready:
            pairs = _same_servers(arms, baseline.condition, measured)
            questions.append(Question(here, baseline.name, ready, pairs))
            about.append((baseline, here))
        missing += [(arm, baseline, here) for arm in cells if arm.name not in ready and not by_kind]
    found = compare_together(questions, by=["kind"] if by_kind else [], level=level)
    rows = [
        _described(row, arms[row["cell"]], words, baseline, here)
        for (baseline, here), of_question in zip(about, found, strict=True)
        for row in of_question
    ]
    for arm, baseline, here in missing:
        row = without_data({}, arm.name, baseline.name if baseline else "its baseline")
        rows.append(_described(row, arm, words, baseline, here))
    return rows


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
        "speculates": arm.speculates,
        "drafts": arm.drafts,
        "accept_length_pinned": arm.pinned_length,
        "concurrency": arm.condition.concurrency,
        "temperature": arm.condition.temperature,
        "context_tokens": arm.condition.context_tokens,
        "against": baseline.name if baseline else None,
    }
    lengths = {"accept_length": _possible(row["accept_length"], arm)} if row["accept_length"] else {}
    if not row["speedup"] and (loops := _all_loop(samples, arm.name)):
        what["note"] = loops
    if arm.pinned_length and row["break_even"]:
        note = f"accept length pinned to {arm.pinned_length:g}: the cost is real, the speed-up is not"
        what |= {"verdict": "needs-more", "verdict_same_prompts": "needs-more", "p_pays": None, "note": note}
    return {**row, **what, **lengths, "prompts_accept_length": accept_lengths(samples, arm.name, row)}


def _all_loop(samples: pd.DataFrame, cell: str) -> str | None:
    """Why a cell has no usable answer, if it is that each of them repeats itself."""
    mine = samples[(samples["cell"] == cell) & (samples["phase"] == "measure")]
    if mine.empty or not looping(mine).all():
        return None
    return "every answer loops, which is easy to predict and says nothing of other texts: none is used"


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
