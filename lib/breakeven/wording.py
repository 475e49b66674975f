"""The answer and the findings of a sweep in sentences, each with its own numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from breakeven.cautions import NEAR_TIE_NATS

Row = Mapping[str, Any]
VERDICT_WORDS = {
    "pays": "pays",
    "does-not-pay": "does not pay",
    "not-distinguishable": "can't be told from the baseline",
    "needs-more": "needs more data",
}


def answer(comparisons: Sequence[Row], source: str, level: float) -> dict[str, Any]:
    """The answer in one sentence with its uncertainty, how sure it is, how it was found, and where it differs."""
    judged = [row for row in comparisons if row["speedup"] and not row["accept_length_pinned"]]
    restarts = sorted({row["restarts"] for row in comparisons if row["restarts"]} or {0})
    prompts = max((row["prompts"] for row in comparisons), default=0)
    servers = "1 fresh server" if restarts[-1] == 1 else f"{restarts[-1]} fresh servers"
    servers = servers if len(restarts) == 1 else f"{restarts[0]} to {servers}"
    how = (
        f"Source: {source}. Each figure comes from {servers} per cell with the same {prompts} prompts each, cells "
        f"interleaved, prefill and warm-up excluded; in parentheses the {100 * level:g} % interval over restarts and "
        "prompts."
    )
    pinned = [row for row in comparisons if row["break_even"] and row["accept_length_pinned"]]
    if not judged and pinned:
        return _costs_alone(pinned, how)
    if not judged:
        sentence = "No answer: no drafter could be compared with the baseline."
        nothing: dict[str, Any] = {"best": None, "uncertainty": "Nothing could be compared.", "elsewhere": []}
        return {"sentence": sentence, "verdict": "needs-more", "how": how, **nothing}
    best = best_of(judged)
    return {
        "sentence": sentence_of(best, level),
        "verdict": best["verdict"],
        "best": best,
        "uncertainty": uncertainty(best),
        "how": how,
        "elsewhere": elsewhere(judged, best),
    }


def _costs_alone(pinned: Sequence[Row], how: str) -> dict[str, Any]:
    """The answer where every accept length was simulated: the bar is known, whether a drafter clears it is not."""

    def lowest(rows: Sequence[Row]) -> str:
        row = min(rows, key=lambda each: each["break_even"]["estimate"])
        return (
            f"{row['drafter']} pays from accept length {row['break_even']['estimate']:.2f} "
            f"({_range(row['break_even'])}) on"
        )

    first, *others = _by_condition(pinned)
    return {
        "sentence": (
            "Not decided: the accept lengths were pinned, so costs are known and the drafters' quality is not. "
            f"The lowest bar: {lowest(first)}."
        ),
        "verdict": "needs-more",
        "how": how,
        "best": None,
        "uncertainty": "Run the same sweep without the pin to learn which accept lengths the drafters reach.",
        "elsewhere": [f"{lowest(rows)}." for rows in others],
    }


def _by_condition(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by concurrency, temperature and prompt length, in the order in which these were measured."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row["concurrency"], row["temperature"], row["context_tokens"])):
        groups.setdefault((row["concurrency"], row["temperature"], row["context_tokens"]), []).append(row)
    return list(groups.values())


def best_of(judged: Sequence[Row]) -> Row:
    """The fastest of the cells that pay; where none does, of those that pay on these prompts; else of all."""
    for key in ("verdict", "verdict_same_prompts"):
        paying = [row for row in judged if row[key] == "pays"]
        if paying:
            return max(paying, key=lambda row: row["speedup"]["estimate"])
    return max(judged, key=lambda row: row["speedup"]["estimate"])


def sentence_of(best: Row, level: float) -> str:
    """Does it pay, by how much, how sure: for prompts of this kind where that is known, else for these very prompts."""
    name, ratio, same = best["drafter"], best["speedup"], best["speedup_same_prompts"]
    lengths = _lengths(best)
    if best["verdict"] == "pays":
        return f"Yes. {name} decodes {_times(ratio, level)} as fast as the baseline{lengths}."
    if best["verdict"] == "does-not-pay":
        return (
            f"No. Even the best drafter measured, {name}, decodes at {_times(ratio, level)} the baseline's "
            f"rate{lengths}."
        )
    if best["verdict_same_prompts"] == "pays":
        return (
            f"On these {best['prompts']} prompts, yes: {name} decodes {_times(same, level)} as fast as the "
            f"baseline{lengths}. "
            f"For other prompts it is not shown: prompts differ so much that {_range(ratio)} is possible."
        )
    if best["verdict_same_prompts"] == "does-not-pay":
        return (
            f"On these {best['prompts']} prompts, no: the best drafter measured, {name}, decodes at "
            f"{_times(same, level)} the "
            f"baseline's rate{lengths}. For other prompts it is open: {_range(ratio)} is possible."
        )
    reason = "which is no more than restarts differ by"
    if best["noise_floor"] is not None and abs(ratio["estimate"] - 1) <= best["noise_floor"]:
        reason = f"and the baseline measured twice differs by {100 * best['noise_floor']:.1f} %"
    return (
        f"Not shown. The best drafter measured, {name}, decodes at {_times(ratio, level)} the baseline's rate, "
        f"{reason}."
    )


def uncertainty(best: Row) -> str:
    """How sure the answer is, what makes it unsure, and what would decide it."""
    text = f"Probability that it pays for prompts of these kinds: {percent(best['p_pays'])}."
    if best["verdict"] in ("pays", "does-not-pay"):
        text += f" On these very {best['prompts']} prompts: {_range(best['speedup_same_prompts'])}."
    share = best["share_of_prompts"]
    who = "prompts differ from each other" if share >= 0.5 else "restarts differ from each other"
    text += f" {100 * max(share, 1 - share):.0f} % of the uncertainty is that {who}."
    if best["noise_floor"] is not None:
        text += f" The baseline measured twice differs by {100 * best['noise_floor']:.1f} % (the noise floor)."
    if best["repeats_to_decide"]:
        text += f" About {best['repeats_to_decide']} restarts per cell would decide it."
    return text + (f" Note: {best['note']}." if best["note"] else "")


def elsewhere(judged: Sequence[Row], best: Row) -> list[str]:
    """One sentence per other condition (concurrency, temperature, prompt length)."""
    others = [best_of(rows) for rows in _by_condition(judged) if best not in rows]
    return [f"{row['drafter']} {verdict_in_words(row)}: {_range(row['speedup'])} times the baseline." for row in others]


def findings(
    comparisons: Sequence[Row], by_kind: Sequence[Row], cells: Sequence[Row], crossings: Sequence[Row]
) -> list[str]:
    """The findings of notebook 05, one sentence each."""
    sentences = [_finding(row, by_kind) for row in comparisons]
    for each in crossings:
        if each["crossover"]:
            text = f"{each['drafter']}: the answer changes at about {each['crossover']:.1f} concurrent requests"
            sentences.append(f"{text} (interpolated between measured neighbours).")
    canaries = [row["canary"] for row in cells if row.get("canary") and row["drafter"] != "none"]
    compared = sum(each["compared"] for each in canaries)
    parted = [place for each in canaries for place in each["parted"]]
    return [*sentences, _canary_sentence(compared, parted)] if compared else sentences


def verdict_in_words(row: Row) -> str:
    """The verdict; where it is open for other prompts but not for these, both halves of it."""
    if row["verdict"] == "not-distinguishable" and row["verdict_same_prompts"] in ("pays", "does-not-pay"):
        return f"{VERDICT_WORDS[row['verdict_same_prompts']]} on these prompts, not shown for others"
    return VERDICT_WORDS[row["verdict"]]


def _finding(row: Row, by_kind: Sequence[Row]) -> str:
    if not row["speedup"]:
        return f"{row['drafter']}: {row['note']}."
    text = f"{row['drafter']} {verdict_in_words(row)}: {row['speedup']['estimate']:.2f} times the baseline's rate"
    if row["accept_length"]:
        text += f", accept length {row['accept_length']['estimate']:.2f} against {row['break_even']['estimate']:.2f}"
    kinds = [each for each in by_kind if each["cell"] == row["cell"] and each["speedup"]]
    if len(kinds) > 1:
        first = max(kinds, key=lambda each: each["speedup"]["estimate"])
        last = min(kinds, key=lambda each: each["speedup"]["estimate"])
        text += f"; from {last['speedup']['estimate']:.2f} ({last['kind']}) to "
        text += f"{first['speedup']['estimate']:.2f} ({first['kind']})"
    return text + (f"; {row['note']}." if row["note"] else ".")


def _canary_sentence(compared: int, parted: Sequence[Row]) -> str:
    if not parted:
        return f"All {compared} greedy texts equal the baseline's token for token."
    widest = max(each["gap_nats"] or 0.0 for each in parted)
    text = (
        f"{len(parted)} of {compared} greedy texts part from the baseline's; at the first difference the two likeliest "
        f"tokens are at most {widest:.3f} nats apart. "
    )
    if widest <= NEAR_TIE_NATS:
        return text + "That is rounding, no fault: a verify of several tokens rounds differently from single steps."
    return text + "That is more than rounding explains: see the warnings."


def percent(probability: float) -> str:
    """A probability without false certainty."""
    if probability > 0.995:
        return "above 99 %"
    if probability < 0.005:
        return "below 1 %"
    return f"{100 * probability:.0f} %"


def _lengths(row: Row) -> str:
    if not row["accept_length"]:
        return ""
    return (
        f": accept length {row['accept_length']['estimate']:.2f} where {row['break_even']['estimate']:.2f} breaks even"
    )


def _times(interval: Row, level: float) -> str:
    low, high = interval["low"], interval["high"]
    return f"{interval['estimate']:.2f} times ({100 * level:g} % interval {low:.2f} to {high:.2f})"


def _range(interval: Row) -> str:
    return f"{interval['low']:.2f} to {interval['high']:.2f}"
