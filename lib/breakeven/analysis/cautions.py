"""Doubts about a measurement, as data: everything that a reader has to know before trusting its figures."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from breakeven.analysis import disturbances
from breakeven.analysis.arms import Arm, arms_of, in_words, launch_in_words
from breakeven.costs.audit import IDLE_DRAFTER, TIE_BAND
from breakeven.launch.design import DEFAULT_VARIANT
from breakeven.launch.four_facts import asks_for_fusion

NEAR_TIE_NATS = 0.25
"""Largest gap of the two highest log-probabilities that bfloat16 rounding may bridge.

bfloat16 has 8 bits of significand: logits of 16 to 32, usual for the model of the default, stand 0.125 apart, so two
of them may each be off by one step.
"""


def warn(
    samples: pd.DataFrame,
    cells: Sequence[Mapping[str, Any]],
    comparisons: Sequence[Mapping[str, Any]],
    floors: Sequence[Mapping[str, Any]] = (),
    noise: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, str]]:
    """Every doubt about a sweep: ``code`` for programs, ``text`` for people.

    ``floors`` as of `cycle.held_against`, ``noise`` as of `launch_spreads`.
    """
    return [
        *_failed_launches(cells),
        *_launches_differ(noise, comparisons),
        *disturbances.warnings(samples),
        *_shorter_for_longer(comparisons, arms_of(cells)),
        *_cycles_below_a_step(comparisons),
        *_unequal_limits(cells),
        *({"code": "floor-above-step", "text": row["how"]} for row in floors if row.get("above_step")),
        *_fusion_that_did_not_run(cells),
        *disturbances.slow_hosts(cells),
        *disturbances.slow_while_measured(cells),
        *_cycle_estimates_differ(cells),
        *_parts_do_not_add_up(cells),
        *_pinned(cells),
        *_degenerate(samples, cells),
        *_reused(samples),
        *_texts_that_part(cells),
        *_without_verify_counts(comparisons),
        *_idle_drafters(comparisons),
        *_impossible_lengths(comparisons),
        *_cut_off(samples, cells),
    ]


def launch_spreads(cells: Sequence[Mapping[str, Any]], arms: Mapping[str, Arm]) -> list[dict[str, Any]]:
    """Per cell with several launches (both halves of the baseline's A/A pair are one): ``spread``, the fastest over the
    slowest less 1, and the ``rates`` in words, among them that the machine was slow while the slowest was measured;
    ``explained`` where that is all of the spread but a tie. The widest first."""
    launches: dict[str, list[Mapping[str, Any]]] = {}
    slow = {(each["cell"], each["restart"]): each for each in disturbances.slow_launches(cells)}
    names, words = {}, in_words(arms)
    baselines = {
        (arm.variant, arm.condition): arm.name for arm in arms.values() if not arm.speculates and not arm.is_twin
    }
    for row in cells:
        arm = arms[row["cell"]]
        cell = baselines.get((arm.variant, arm.condition), arm.name) if arm.is_twin else arm.name
        names[cell] = words[cell]
        if row["status"] == "ok" and row.get("tok_s"):
            launches.setdefault(cell, []).append(row)
    found = []
    for cell, rows in launches.items():
        if len(rows) > 1:
            slowest, fastest = (pick(rows, key=lambda row: row["tok_s"]) for pick in (min, max))
            told = f"{slowest['tok_s']:.1f} to {fastest['tok_s']:.1f} tok/s per stream on {len(rows)} servers"
            spread = fastest["tok_s"] / slowest["tok_s"] - 1
            explained = False
            if then := slow.get((slowest["cell"], slowest["restart"])):
                told += f", the machine being slow while {then['launch']}, was measured"
                explained = (1 + spread) * (1 + then["usual"]) / (1 + then["more"]) - 1 <= TIE_BAND
            found.append(
                {"cell": cell, "drafter": names[cell], "spread": spread, "rates": told, "explained": explained}
            )
    return sorted(found, key=lambda row: -row["spread"])


def _launches_differ(
    noise: Sequence[Mapping[str, Any]], comparisons: Sequence[Mapping[str, Any]]
) -> Iterable[dict[str, str]]:
    loud = [row for row in noise if row["spread"] > TIE_BAND]
    if not loud:
        return
    told = "; ".join(f"{row['drafter']} by {row['spread']:.1%} ({row['rates']})" for row in loud[:2])
    more = f"; and {len(loud) - 2} more" if len(loud) > 2 else ""
    smaller = [
        row["drafter"]
        for row in comparisons
        if row["speedup"] and row["verdict"] in ("pays", "does-not-pay")
        and abs(row["speedup"]["estimate"] - 1) < loud[0]["spread"]
    ]  # fmt: skip
    text = (
        f"fresh servers of one and the same cell did not run alike: {told}{more}. A difference below "
        f"{loud[0]['spread']:.0%} between single launches proves nothing"
    )
    if smaller:
        text += f", and what is claimed of {', '.join(smaller)} is less than that: it rests on several launches"
    yield {"code": "launches-differ", "text": f"{text}."}


def _cycles_below_a_step(comparisons: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    """A cycle holds at least the forward of one step: a bar below 1 says that the machine changed between the two."""
    for row in comparisons:
        if row["break_even"] and row["break_even"]["estimate"] < 1:
            text = (
                f"{row['drafter']} breaks even at {row['break_even']['estimate']:.2f}, which no drafter can: its cycle "
            )
            text += "came out shorter than a step of the baseline, so the machine was faster while it ran"
            yield {"code": "cycle-below-step", "text": text}


def _fusion_that_did_not_run(cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    """Variants that ask for the fused all-reduce and whose traces, all of them, show other ones alone."""
    by_variant: dict[str, list[Mapping[str, Any]]] = {}
    for row in cells:
        traced = (row.get("profile") or {}).get("allreduce")
        if traced and traced["count"] and asks_for_fusion(row.get("command") or ()):
            by_variant.setdefault(row["variant"], []).append(row["profile"])
    for variant, profiles in by_variant.items():
        if not any(profile["fused"] for profile in profiles):
            text = (
                f"variant {variant} asks for the fused all-reduce, and no traced launch ran it "
                f"({profiles[0]['allreduce']['count']:g} others in a target forward): what it differs by is not fusion"
            )
            yield {"code": "fusion-did-not-run", "text": text}


def _cycle_estimates_differ(cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    for row in cells:
        off = ((row.get("profile") or {}).get("untraced") or {}).get("off")
        if off is not None and abs(off) > TIE_BAND and row.get("tok_s"):  # without a rate nothing rests on its cycle
            text = (
                f"{launch_in_words(row)}: what the trace tells of the cycle and the one that rate and accept length of "
                f"the same request give differ by {abs(off):.1%} at best: what sets the pace there is not known"
            )
            yield {"code": "cycle-estimates-differ", "text": text}


def _parts_do_not_add_up(cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    for row in cells:
        left = (row.get("profile") or {}).get("work_residual")
        if left is not None and abs(left) > TIE_BAND and row.get("tok_s"):
            text = (
                f"{launch_in_words(row)}: the work in a traced cycle's parts, the work beside them and the idle time "
                f"come to {1 - left:.1%} of it: some ran at the same time, so that parts of that cycle look too large"
            )
            yield {"code": "cycle-parts-differ", "text": text}


def _failed_launches(cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    for row in {row["launch"]: row for row in cells if row["status"] != "ok"}.values():
        if row["failure"]:
            failure = row["failure"]
            text = f"{launch_in_words(row)} failed with {failure['class']}: {failure['text']}. {failure['advice']}"
            yield {"code": "launch-failed", "text": text}


def _pinned(cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    pinned = {row["cell"]: row["accept_length_pinned"] for row in cells if row.get("accept_length_pinned")}
    if pinned:
        lengths = ", ".join(f"{length:g}" for length in sorted(set(pinned.values())))
        whose = ", ".join(pinned) if len(pinned) < 4 else f"{len(pinned)} cells"
        text = (
            f"{whose}: SGLang was told to simulate accept length {lengths}; the costs are real, the speed-ups are not"
        )
        yield {"code": "accept-length-pinned", "text": text}


def _degenerate(samples: pd.DataFrame, cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    measured = samples[samples["phase"] == "measure"]
    loops = measured.groupby("cell", sort=False)["degenerate"].agg(["sum", "size"])
    loops = loops[loops["sum"] > 0]
    if len(loops):
        told = ", ".join(f"{cell} {int(row['sum'])} of {int(row['size'])}" for cell, row in loops.iterrows())
        text = f"answers that loop: {told}; they are left out, since a loop is easy to predict"
        canaries = [row["canary"] for row in cells if row["cell"] in loops.index and row.get("canary")]
        if canaries and not any(each["parted"] for each in canaries):
            text += ". The baseline gives the same texts; its rate does not depend on what it says"
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
            arms_by_value: dict[str, dict[str, None]] = {}
            for row in of_variant:
                if row.get("effective"):
                    arm = row.get("arm") or row["cell"]
                    arms_by_value.setdefault(str(row["effective"].get(name)), {})[arm] = None
            if len(arms_by_value) > 1:
                told = "; ".join(f"{value} in {', '.join(arms)}" for value, arms in sorted(arms_by_value.items()))
                text = f"{name} differs between arms: {told}. Set it explicitly, or costs differ for that reason too"
                yield {"code": "unequal-limits", "text": text}


def _shorter_for_longer(comparisons: Sequence[Mapping[str, Any]], arms: Mapping[str, Arm]) -> Iterable[dict[str, str]]:
    """Chains whose cycle gets clearly shorter by drafting more: the launches differ, or a kernel does."""
    families: dict[Any, list[tuple[int, Mapping[str, Any]]]] = {}
    for row in comparisons:
        arm = arms.get(row["cell"])
        if arm and arm.is_chain and arm.drafts and row["break_even"]:
            families.setdefault(arm.family, []).append((arm.drafts, row))
    told = []
    for members in families.values():
        members.sort(key=lambda member: member[0])
        for (_, short), (_, long) in itertools.pairwise(members):
            ratio = long["break_even"]["estimate"] / short["break_even"]["estimate"]
            if ratio < 1 - TIE_BAND:
                told.append(f"{long['drafter']} {1 - ratio:.0%} below {short['drafter']}")
    if told:
        text = (
            f"more drafts at a shorter cycle: {'; '.join(told)}. A drafter gets no cheaper by drafting more: these "
            "launches differ by something else, or a kernel suits one number of rows better than another"
        )
        yield {"code": "cycle-falls-with-length", "text": text}


def _texts_that_part(cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    for row in cells:
        far = [each for each in row.get("canary", {}).get("parted", []) if (each["gap_nats"] or 0.0) > NEAR_TIE_NATS]
        if far:
            worst = max(far, key=lambda each: each["gap_nats"])
            text = (
                f"{launch_in_words(row)}: {len(far)} texts part from the baseline's where the choice was clear (up to "
                f"{worst['gap_nats']:.2f} nats, prompt {worst['prompt_id']}); greedy decoding must not do that"
            )
            yield {"code": "output-differs", "text": text}


def _without_verify_counts(comparisons: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    cells = [row["cell"] for row in comparisons if row["speedup"] and not row["accept_length"]]
    if cells:
        text = (
            f"{', '.join(cells)}: the server reported no verify counts; accept length and break-even (AL*) are unknown"
        )
        yield {"code": "no-verify-counts", "text": text}


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
