"""Figures that somebody wrote down, in words: what follows from them, what does not, what contradicts, what to measure.

The arithmetic is that of `records`; every sentence here carries its own numbers, so that it can be checked by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from breakeven.analysis import hoped, outlook, setting
from breakeven.costs import plan, records
from breakeven.costs.plan import Option
from breakeven.costs.whatif import Change, Point, target_forward

Row = Mapping[str, Any]
NO_CONTRADICTION = {
    *("drafter-not-working", "every-draft-accepted", "break-even-out-of-reach", "cycle-is-a-lower-bound"),
    *("baselines-differ", "accept-length-in-doubt"),
}
"""Warnings of figures that can be true together."""
LABEL = "reported figures, not measured in this run"


def read(path: Path) -> dict[str, Any]:
    """Rows of a records file with their sentences, the measurements that would settle the case, and an outlook for
    the first row that gives cycle, baseline and accept length. Raises UserError for a file that is no such table."""
    rows = records.analyze_csv(path)["rows"]
    told = [
        {
            **row,
            "name": row["notes"].get("what", row["id"]),
            "follows": [*_assumed(row), *_cycle(row), *_speedup(row), *hoped.in_words(row)],
            "does_not_follow": list(_does_not_follow(row)),
            "contradictions": [warning["text"] for warning in row["warnings"]],
        }
        for row in rows
    ]
    whole = next((row for row in told if _point(row) is not None), None)
    return {
        "file": path.name,
        "label": LABEL,
        "setting": setting.of_records(rows, path.name),
        "rows": told,
        "measurements": measurements(told),
        "outlook": _outlook(whole) if whole else None,
        "chart": [_chart_row(row) for row in told if row["cycle_ms"] and row["baseline_step_ms"]],
    }


def answer(reported: Row) -> dict[str, Any]:
    """The answer of a report that rests on recorded figures alone, in the form of `wording.answer`."""
    rows = sorted((row for row in reported["rows"] if row["speedup"]), key=lambda row: -row["speedup"])
    how = f"Source: {reported['file']}, {LABEL}. A difference below 3 % is called a tie: no spread is known."
    base: dict[str, Any] = {"how": how, "best": None, "elsewhere": []}
    if not rows:
        sentence = "No answer: no row of the recorded figures carries a comparison with a baseline."
        return base | {"sentence": sentence, "verdict": "needs-more", "uncertainty": "Nothing could be compared."}
    best = rows[0]
    word = {"pays": "yes", "does-not-pay": "no"}.get(best["verdict"], "not shown")
    sentence = f"As reported, {word}: {'; '.join(_rate_of(row) for row in rows)}"
    contradicted = [row["name"] for row in reported["rows"] if _codes(row) - NO_CONTRADICTION]
    uncertainty = "These are single figures without spread; nothing here was measured by the suite." + (
        f" Those of the {' and the '.join(contradicted)} do not fit together." if contradicted else ""
    )
    uncertainty += "".join(f" {text}" for row in reported["rows"] for text in _impossible_allreduce(row))
    return base | {"sentence": sentence + ".", "verdict": best["verdict"], "uncertainty": uncertainty}


def _rate_of(row: Row) -> str:
    text = (
        f"{row['name']} runs at {row['speedup']:.2f} of the baseline's rate ({row['spec_tok_s']:g} against "
        f"{row['given']['base_tok_s']:g} tok/s"
    )
    if row["break_even_accept_length"] and row["accept_length"]:
        return (
            f"{text}; accept length {row['accept_length']:.2f} where {row['break_even_accept_length']:.2f} breaks even)"
        )
    return f"{text}; its accept length is not known)"


def findings(reported: Row) -> list[str]:
    """Every sentence of the recorded figures, each with the row that it belongs to."""
    sentences = []
    for row in reported["rows"]:
        sentences += [f"{row['name']} (reported): {text}" for text in (*row["follows"], *row["does_not_follow"])]
    return sentences


# --- what follows ---------------------------------------------------------------------------------------------------


def _assumed(row: Row) -> Iterable[str]:
    if row["assumptions"]:
        yield f"Assumed: {'; '.join(row['assumptions'])}."


def _cycle(row: Row) -> Iterable[str]:
    if not row["cycle_ms"] or not row["baseline_step_ms"]:
        return
    step, cycle, needed = row["baseline_step_ms"], row["cycle_ms"], row["break_even_accept_length"]
    of_batch = f" at batch {row['batch']:g}" if row["batch"] != 1 else ""
    text = f"{row['given']['base_tok_s']:g} tok/s{of_batch} is a baseline step of {step:.1f} ms. "
    if row["cycle_source"] == "implied":
        text += (
            f"{row['spec_tok_s']:g} tok/s at accept length {row['accept_length']:g} is a cycle of {cycle:.1f} ms, so "
        )
    elif row["cycle_source"] == "given":
        text += f"With a cycle of {cycle:.4g} ms "
    else:
        text += f"The cycle is at least {cycle:.4g} ms, so at best "
    yield text + f"speculation breaks even at accept length {needed:.2f}."
    if row["not_verify_ms"] is not None and row["not_verify_ms"] > 0:
        verify = records.used_ms(row, "verify_ms")
        yield (
            f"Of that cycle {verify:g} ms are reported as the verify; {row['not_verify_ms']:.1f} ms are not verify "
            "(draft, draft extend, sampling, scheduling, gaps). Taking the verify for the cycle gives "
            f"{verify / step:.2f} instead of {needed:.2f}, which is too kind to speculation."
        )


def _speedup(row: Row) -> Iterable[str]:
    if not row["speedup"]:
        return
    text = f"Speculation runs at {row['speedup']:.2f} of the baseline's rate"
    text += {"pays": ": it pays.", "does-not-pay": ": it does not pay."}.get(row["verdict"], ": no more than a tie.")
    if row["margin"] is not None and row["margin"] < 0:
        short_ms = row["cycle_ms"] - row["accept_length"] * row["baseline_step_ms"]
        text += (
            f" To pay it needs {-row['margin']:.2f} more tokens per verify at the same cycle, or a cycle shorter by "
            f"{short_ms:.1f} ms with the baseline untouched."
        )
    yield text


def _does_not_follow(row: Row) -> Iterable[str]:
    if row["speedup"] and row["accept_length"] is None:
        yield (
            "Which accept length or cycle lies behind this rate does not follow: the accept length is not known, "
            "so there "
            "is no break-even for it, only the ratio of the two rates."
        )
    for text in _impossible_allreduce(row):
        yield f"{text} So neither the share of the verify that they take nor what a faster one saves follows."
    if row["needs_text"]:
        yield f"To complete this row: {row['needs_text']}."


def _impossible_allreduce(row: Row) -> Iterable[str]:
    if "allreduce-exceeds-baseline-step" in _codes(row):
        count, each_ms = row["given"]["allreduce_count"], row["given"]["allreduce_ms"]
        yield (
            f"{count:g} all-reduces of {each_ms:g} ms would be {count * each_ms:.1f} ms, more than the whole baseline "
            f"step of {row['baseline_step_ms']:.1f} ms, which does the same all-reduces."
        )


# --- what would settle it -------------------------------------------------------------------------------------------


def measurements(rows: Sequence[Row]) -> list[dict[str, str]]:
    """The measurements that would settle what the figures leave open, the one that settles most first."""
    contradicted = [row for row in rows if "allreduce-exceeds-baseline-step" in _codes(row)]
    parts = [row for row in rows if "verify-is-not-the-cycle" in _codes(row)]
    unknown = [row for row in rows if row["spec_tok_s"] and row["accept_length_source"] != "given"]
    hoping = [row for row in rows if hoped.saving_ms(row)]
    found = []
    if contradicted or parts:
        what = "A trace of a few decode steps of the baseline and a few verifies, from one session on one box"
        text = "where the cycle's milliseconds go"
        if contradicted:
            text = f"how many all-reduces there are in either and how long they take, and {text}"
        how = "notebook 04 with profile_steps: 8; it splits both into draft, verify, all-reduce, sampling and gaps"
        found.append((len(contradicted) + len(parts), what, text, how))
    if rows:
        names = " and ".join(row["name"] for row in (unknown or rows))
        what = f"The accept length of the {names} from the server's own counts, on fresh prompts by kind"
        text = "whether the drafter or the cycle is at fault: a better drafter cures the one, engineering the other"
        found.append((len(unknown), what, text, "notebook 04 with this drafter: completion tokens over verifies"))
    if hoping:
        what = "Both arms with and without the hoped saving, on fresh servers in turn (A B A B)"
        text = "what it saves per target forward, and in which arm"
        how = "variants: {off: {fusion: 'off'}, on: {fusion: trtllm}}; the trace has to name the fused kernel"
        found.append((len(hoping), what, text, how))
    ordered = sorted(found, key=lambda each: -each[0])
    return [{"measurement": what, "settles": text, "how": how} for _, what, text, how in ordered]


def _codes(row: Row) -> set[str]:
    return {warning["code"] for warning in row["warnings"]}


# --- the same pictures as for measured figures ----------------------------------------------------------------------


def _point(row: Row) -> Point | None:
    if not row["cycle_ms"] or not row["baseline_step_ms"] or not row["accept_length"] or row["margin"] is None:
        return None
    verify_ms, draft_ms, batch = records.used_ms(row, "verify_ms"), records.used_ms(row, "draft_ms"), row["batch"]
    return Point(row["accept_length"], row["cycle_ms"], row["baseline_step_ms"], batch, verify_ms, draft_ms)


def _outlook(row: Row) -> dict[str, Any]:
    """What-if and plan of a recorded point. Where an all-reduce time contradicts the baseline step, the share of the
    verify that was put down to it is all that is left of the figure, and the plan says that it builds on it."""
    point, savings = _point(row), hoped.saving_ms(row)
    assert point is not None
    hopes = []
    if savings and savings[1] < point.step_ms:
        hopes = [target_forward(f"hoped: {saved:g} ms off every target forward", saved) for saved in savings]
        hopes += [Change(f"hoped: {saved:g} ms off the verify alone", verify_saved_ms=saved) for saved in savings]
    allreduce_ms, premise = _allreduces_ms(row), ""
    if allreduce_ms and allreduce_ms >= point.step_ms:
        share = allreduce_ms / point.verify_ms if point.verify_ms else 1.0
        allreduce_ms = share * point.step_ms if share < 1 else None
        premise = (
            "The reported all-reduce time can't be true of the baseline. What options on all-reduces bring is "
            f"therefore assumed: no more than if the share that was reported of the verify ({share:.0%}) held for the "
            "baseline's step too. A trace decides."
        )
    rest_ms = point.cycle_ms - point.verify_ms if point.verify_ms else None
    options = plan.usual_options(point, allreduce_ms=allreduce_ms)
    if premise:
        options = [_unconfirmed(option) if option.likely.step_saved_ms else option for option in options]
    if rest_ms and rest_ms > 0:
        change = Change("half of the cycle outside the verify", other_saved_ms=rest_ms / 2)
        how = "a trace: draft, draft extend, sampling, gaps; then the largest of them"
        options.append(Option.ranging(change, 0.0, 1.6, 3.0, 0.4, how, "the trace shows no part that can be cut"))
    return outlook.of_point(row["name"], point, options, hopes, premise=premise, evidence="reported")


def _allreduces_ms(row: Row) -> float | None:
    return row["given"].get("allreduce_count", 0.0) * (records.used_ms(row, "allreduce_ms") or 0.0) or None


def _unconfirmed(option: Option) -> Option:
    """An option that builds on a figure that can't be true: it may bring nothing (or the loss that it may always
    bring), and no more than by that figure; half of its chance is the figure's."""
    likely = replace(option.likely, evidence="assumed")
    least = option.least if option.least.step_saved_ms < 0 else likely.scaled(0.0)
    return replace(option, least=least, likely=likely, most=likely, risk=1 - (1 - option.risk) / 2)


def _chart_row(row: Row) -> dict[str, Any]:
    """Cycle and baseline step as bars, and the all-reduce time that was claimed for both as a mark."""
    given = row["given"]
    verify, rest = records.used_ms(row, "verify_ms"), row["not_verify_ms"]
    parts = {"verify": verify, "not verify": rest} if verify and rest and rest > 0 else {"cycle": row["cycle_ms"]}
    claimed = _allreduces_ms(row)
    mark = {"name": f"{given['allreduce_count']:g} all-reduces as reported", "ms": claimed} if claimed else None
    return {"name": row["name"], "step_ms": row["baseline_step_ms"], "parts": parts, "mark": mark}
