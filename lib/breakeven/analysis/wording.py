"""The answer of a sweep in sentences, each with its own numbers, and its comparisons as tables show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from breakeven.analysis.ranking import (
    BASELINE,
    DECIDED,
    Row,
    best_of,
    by_condition,
    decided_key,
    deciding_interval,
    reference_of,
    still_open,
)
from breakeven.display.show import ends, estimate_of

VERDICT_WORDS = {
    "pays": "pays",
    "does-not-pay": "does not pay",
    "not-distinguishable": "can't be told from the baseline",
    "needs-more": "needs more data",
}


def answer(contest: Sequence[Row], source: str, level: float, noise: Sequence[Row] = ()) -> dict[str, Any]:
    """The answer in one sentence with its interval, how sure it is, how it was found, and where it differs.

    ``contest``: every arm beside the baseline that it has to beat, the fastest of its condition; ``noise`` is that of
    `cautions.launch_spreads`. Of the keys, ``best`` is the row that the sentence is about, ``open`` that of a drafter
    which may still pay where the best one does not, or looks faster than an undecided one and rests on fewer servers.
    """
    judged = [row for row in contest if row["speedup"] and not row["accept_length_pinned"]]
    pinned = [row for row in contest if row["break_even"] and row["accept_length_pinned"]]
    if not judged and pinned:
        alone = _costs_alone(pinned, _how(pinned, source), level, noise)
        return alone | {"elsewhere": [*alone["elsewhere"], *not_compared(contest)]}
    how = _how(judged, source) + _intervals(judged, level)
    if not judged:
        sentence = "No answer: no drafter could be compared with the baseline."
        nothing: dict[str, Any] = {"best": None, "open": None, "elsewhere": not_compared(contest)}
        nothing["uncertainty"] = "Nothing could be compared."
        return {"sentence": sentence, "verdict": "needs-more", "how": how, **nothing}
    best = best_of(judged)
    others = still_open(judged, best)
    return {
        "sentence": sentence_of(best, others, level),
        "verdict": others[0]["verdict"] if others and best["verdict"] in DECIDED else best["verdict"],
        "best": best,
        "open": others[0] if others else None,
        "uncertainty": uncertainty(best),
        "how": how,
        "elsewhere": [*elsewhere(judged, best), *not_compared(contest)],
    }


def _how(rows: Sequence[Row], source: str) -> str:
    restarts = sorted({row["restarts"] for row in rows} or {0})
    prompts = max((row["prompts"] for row in rows), default=0)
    servers = "1 fresh server" if restarts[-1] == 1 else f"{restarts[-1]} fresh servers"
    servers = servers if len(restarts) == 1 else f"{restarts[0]} to {servers}"
    among = " (its own: others' fall into a request)" if any(row["concurrency"] > 1 for row in rows) else ""
    return (
        f"Source: {source}. Each figure comes from {servers} per cell with the same {prompts} prompts each, cells "
        f"interleaved, prefill{among} and warm-up excluded; rates are tokens over seconds, summed over them."
    )


def _intervals(rows: Sequence[Row], level: float) -> str:
    family = max((row["family"] for row in rows), default=0)
    together = f", wide enough for {family} comparisons at once (Holm)" if family > 1 else ""
    has_floor = any(row["noise_floor"] is not None for row in rows)
    floor = " and no narrower than what two runs of the baseline differ by" if has_floor else ""
    launches = ""
    assumed = [row["assumed_launch_sd"] for row in rows if row["assumed_launch_sd"] is not None]
    if assumed:
        launches = f" What launches differ by is assumed ({max(assumed):.0%}): none was repeated."
    elif any(row["restarts"] == 1 for row in rows) and any(row["restarts"] > 1 for row in rows):
        launches = " What launches differ by is estimated from all cells together, those of one launch included."
    return (
        f" In parentheses stands the {100 * level:g} % interval that the verdict rests on{together}{floor}: it pays "
        "where the interval lies above 1. Other prompts are others of the same kinds in the same mix: what prompts of "
        f"one kind differ by is in their interval, what kinds differ by is not.{launches}"
    )


def _costs_alone(pinned: Sequence[Row], how: str, level: float, noise: Sequence[Row]) -> dict[str, Any]:
    """The answer where every accept length was simulated: the bar is known, whether a drafter clears it is not."""

    def lowest_of(rows: Sequence[Row]) -> Row:
        """The lowest bar among the cells that rest on most servers: of single launches the lowest is luck."""
        most = max(row["restarts"] for row in rows)
        return min((row for row in rows if row["restarts"] == most), key=lambda each: each["break_even"]["estimate"])

    def bar(rows: Sequence[Row]) -> str:
        row = lowest_of(rows)
        needed = row["break_even"]
        sure = "" if needed["too_few"] else f" ({range_of(needed)})"
        beside = "" if reference_of(row) == BASELINE else f" with {reference_of(row)}"
        return f"{row['drafter']} breaks even{beside} at {estimate_of(needed)} tokens per verify{sure}"

    first, *others = by_condition(pinned)
    lengths = ", ".join(f"{each:g}" for each in sorted({row["accept_length_pinned"] for row in pinned}))
    lowest = lowest_of(first)
    several = " that rests on several servers" if lowest["restarts"] > 1 else ""
    servers = f"{lowest['restarts']} fresh server{'s' if lowest['restarts'] != 1 else ''}"
    sure = f"It rests on {servers}, and {lowest['break_even']['too_few']}."
    if not lowest["break_even"]["too_few"]:
        sd = lowest["assumed_launch_sd"]
        assumed = "" if sd is None else f", launch noise assumed {sd:.0%}"
        sure = f"In parentheses its {100 * level:g} % interval, from {servers}{assumed}."
    if noise:
        sure += (
            f" Launches of one and the same cell differed by up to {noise[0]['spread']:.0%} ({noise[0]['drafter']})."
        )
    return {
        "sentence": (
            f"Not decided: accept lengths were pinned to {lengths}, so costs were measured and the drafters' quality "
            f"was not. The lowest bar{several}: {bar(first)}; a drafter of this cost that reaches more pays."
        ),
        "verdict": "needs-more",
        "how": f"{how} In parentheses stands the {100 * level:g} % interval of the bar.",
        "best": None,
        "open": None,
        "uncertainty": f"What a real drafter reaches, nothing here tells. The bar itself: {sure[:1].lower()}{sure[1:]}",
        "elsewhere": [f"{bar(rows)}." for rows in others],
    }


def sentence_of(best: Row, others: Sequence[Row], level: float) -> str:
    """Does it pay, by how much, how sure: for prompts of this kind where that is known, else for these very prompts.

    ``others`` are those of `still_open`: a plain no is said only where every drafter loses.
    """
    name, ratio, same, reference = best["drafter"], best["speedup"], best["speedup_same_prompts"], reference_of(best)
    told = f"{_rates(best)}{_lengths(best)}{_open_in_words(others, best)}"
    if best["verdict"] == "pays":
        return f"Yes{_if_quiet(best)}. {name} decodes {_times(ratio, level)} as fast as {reference}{told}."
    if best["verdict"] == "does-not-pay":
        no = "Not shown. None is seen to pay: the" if others else f"No{_if_quiet(best)}. Even the"
        return f"{no} best drafter measured, {name}, decodes at {_times(ratio, level)} the rate of {reference}{told}."
    if best["verdict_same_prompts"] == "pays":
        return (
            f"On these {best['prompts']} prompts, yes{_if_quiet(best)}: {name} decodes {_times(same, level)} as fast "
            f"as {reference}{told}. For other prompts it is not shown: {_open(ratio)}."
        )
    if best["verdict_same_prompts"] == "does-not-pay":
        no = " none is seen to pay" if others else f", no{_if_quiet(best)}"
        return (
            f"On these {best['prompts']} prompts{no}: the best drafter measured, {name}, decodes at "
            f"{_times(same, level)} the rate of {reference}{told}. For other prompts it is open: {_open(ratio)}."
        )
    fewer = "" if not others else f" on {best['restarts']} servers"
    return (
        f"Not shown. The best drafter measured{fewer}, {name}, decodes at {_times(ratio, level)} the rate of "
        f"{reference}{_rates(best)}: it may be faster or slower{_open_in_words(others, best)}."
    )


def _if_quiet(best: Row) -> str:
    """What a verdict takes for granted where no launch was repeated."""
    sd = best["assumed_launch_sd"]
    return "" if sd is None else f", if fresh servers differ by no more than the {sd:.0%} assumed"


def _open_in_words(others: Sequence[Row], best: Row) -> str:
    """``; open: NGRAM (0.88 times, 0.57 to 1.34)``; empty where none is."""
    if not others:
        return ""
    shown = [(row["drafter"], deciding_interval(row, decided_key(best))) for row in others[:2]]
    told = [f"{name} ({estimate_of(each)} times, {range_of(each)})" for name, each in shown]
    told += [f"{len(others) - 2} more"] if len(others) > 2 else []
    return f"; open: {', '.join(told)}"


def uncertainty(best: Row) -> str:
    """How sure the answer is, what makes it unsure, and what the baseline differed by when it was measured twice."""
    texts, estimated = [], best["assumed_launch_sd"] is None
    if best["verdict"] in DECIDED and estimated:
        among = f" after {best['family']} comparisons" if best["family"] > 1 else ""
        p = f"= {best['p_adjusted']:.2g}" if best["p_adjusted"] >= 0.001 else "below 0.001"
        texts.append(f"Against no difference p {p}{among} (Student's t, launches pooled over all cells).")
    if best["verdict"] in DECIDED:
        texts.append(
            f"On these very {best['prompts']} prompts the interval is {range_of(best['speedup_same_prompts'])}."
        )
    if best["family"] > 1:
        texts.append(f"As the best of {best['family']} its own figure is somewhat flattered.")
    if estimated:
        who = "Prompts" if best["share_of_prompts"] >= 0.5 else "Fresh servers"
        texts.append(f"{who} make most of the uncertainty.")
    if best["noise_widest"] is not None:
        texts.append(f"Launches of the baseline itself differed by up to {100 * best['noise_widest']:.1f} %.")
    if best["note"]:
        texts.append(f"Note: {best['note']}.")
    return " ".join(texts)


def elsewhere(judged: Sequence[Row], best: Row) -> list[str]:
    """One sentence per other condition (concurrency, temperature, prompt length)."""
    others = [best_of(rows) for rows in by_condition(judged) if best not in rows]
    return [
        f"{row['drafter']} {verdict_in_words(row)}: {_judged_range(row)}{_rates(row)}"
        f"{_open_in_words(still_open(judged, row), row)}."
        for row in others
    ]


def not_compared(rows: Sequence[Row]) -> list[str]:
    """Which arms say nothing beside a baseline, one sentence per reason."""
    why: dict[str, list[str]] = {}
    for row in rows:
        if not row["speedup"]:
            why.setdefault(row["note"], []).append(row["drafter"])
    return [f"Not compared: {'; '.join(names)}: {note}." for note, names in why.items()]


def verdict_in_words(row: Row) -> str:
    """The verdict; where it is open for other prompts but not for these, both halves of it."""
    key = decided_key(row)
    return VERDICT_WORDS[row[key]] + ("" if key == "verdict" else " on these prompts, not shown for others")


def judged_and_pinned(comparisons: Sequence[Row]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the two tables of comparisons show: arms with an accept length of their own, and the bar of pinned ones."""
    pinned = [row for row in comparisons if row["break_even"] and row["accept_length_pinned"]]
    judged = [row for row in comparisons if row not in pinned]
    in_order = [_with_times(row) for rows in by_condition(pinned) for row in rows]
    return table_rows(judged) if any(row["speedup"] for row in judged) else [], in_order


def _with_times(row: Row) -> dict[str, Any]:
    """A pinned arm with its baseline's step and its own cycle in ms: a rate at a pinned length would be the pin's."""
    step_ms = 1000 / row["base_tok_s"]
    return {**row, "step_ms": step_ms, "cycle_ms": step_ms * row["break_even"]["estimate"]}


def table_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Comparisons as a table shows them: of accept lengths the estimate alone, so that each interval in a row is one
    that a verdict rests on."""
    return [
        {**row, **{name: row[name]["estimate"] if row[name] else None for name in ("accept_length", "break_even")}}
        for row in rows
    ]


def range_of(interval: Row) -> str:
    """``1.10 to 1.36``, or why there is no such range."""
    return interval.get("too_few") or ends(interval["low"], interval["high"])


def _rates(row: Row) -> str:
    """Both rates, per stream, and of all streams together where there are several."""
    spec, base, streams = row.get("spec_tok_s"), row.get("base_tok_s"), row["concurrency"]
    if not spec or not base:
        return ""
    if streams == 1:
        return f" ({spec:.1f} against {base:.1f} tok/s)"
    return (
        f" ({spec:.1f} against {base:.1f} tok/s per stream, {spec * streams:.0f} against {base * streams:.0f} over all "
        f"{streams} streams)"
    )


def _lengths(row: Row) -> str:
    if not row["accept_length"]:
        return ""
    return (
        f": accept length {row['accept_length']['estimate']:.2f} where {row['break_even']['estimate']:.2f} breaks even"
    )


def _judged_range(row: Row) -> str:
    """The interval that the verdict in words rests on."""
    interval = deciding_interval(row, decided_key(row))
    return f"{estimate_of(interval)} times {reference_of(row)} ({range_of(interval)})"


def _open(interval: Row) -> str:
    if interval.get("too_few"):
        return str(interval["too_few"])
    return f"prompts differ so much that {range_of(interval)} is possible"


def _times(interval: Row, level: float) -> str:
    sure = interval.get("too_few") or f"{100 * level:g} % interval {range_of(interval)}"
    return f"{estimate_of(interval)} times ({sure})"
