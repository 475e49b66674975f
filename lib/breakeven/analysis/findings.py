"""What a sweep shows beside its answer, one sentence each: arms, kinds of prompt, variants, the search, canaries."""

from __future__ import annotations

from collections.abc import Sequence

from breakeven.analysis.cautions import NEAR_TIE_NATS
from breakeven.analysis.ranking import Row, of_one_condition
from breakeven.analysis.wording import not_compared, range_of, verdict_in_words
from breakeven.display.show import estimate_of


def findings(
    comparisons: Sequence[Row], by_kind: Sequence[Row], cells: Sequence[Row], crossings: Sequence[Row]
) -> list[str]:
    """The findings of notebook 05, one sentence each."""
    sentences = [_finding(row, by_kind) for row in comparisons if row["speedup"] and not row["accept_length_pinned"]]
    sentences += not_compared(comparisons)
    for each in crossings:
        if each["crossover"]:
            text = f"{each['drafter']}: the answer changes at about {each['crossover']:.1f} concurrent requests"
            sentences.append(f"{text} (interpolated between the nearest two that are decided).")
    whose = [row for row in cells if row.get("canary") and row["canary"]["compared"] and row["drafter"] != "none"]
    canaries = [row["canary"] for row in whose]
    compared = sum(each["compared"] for each in canaries)
    parted = [place for each in canaries for place in each["parted"]]
    names = " and ".join(dict.fromkeys(row["drafter"] for row in whose))
    return [*sentences, _canary_sentence(compared, parted, names)] if compared else sentences


def _finding(row: Row, by_kind: Sequence[Row]) -> str:
    text = f"{row['drafter']} {verdict_in_words(row)}: {row['speedup']['estimate']:.2f} times the baseline's rate"
    if row["accept_length"]:
        text += f", accept length {row['accept_length']['estimate']:.2f} against {row['break_even']['estimate']:.2f}"
    kinds = [each for each in by_kind if each["cell"] == row["cell"] and each["speedup"]]
    if len(kinds) > 1:
        ends = [end(kinds, key=lambda each: each["speedup"]["estimate"]) for end in (min, max)]
        least, most = (
            f"{each['speedup']['estimate']:.2f} ({each['kind']}, {each['prompts']} prompts)" for each in ends
        )
        text += f"; from {least} to {most}"
    return text + (f"; {row['note']}." if row["note"] else ".")


def _canary_sentence(compared: int, parted: Sequence[Row], drafters: str) -> str:
    if not parted:
        return (
            f"All {compared} greedy texts of {drafters} equal the baseline's token for token; no others were compared."
        )
    widest = max(each["gap_nats"] or 0.0 for each in parted)
    text = (
        f"{len(parted)} of {compared} greedy texts of {drafters} part from the baseline's; at the first difference the "
        f"two likeliest tokens are at most {widest:.3f} nats apart. "
    )
    if widest <= NEAR_TIE_NATS:
        return text + "That is what rounding does: a verify of several tokens rounds differently from single steps."
    return text + "That is more than rounding explains: see the warnings."


def by_kind_in_words(best: Row, by_kind: Sequence[Row]) -> list[str]:
    """On which kinds of prompt the best arm pays and on which not, and where another arm of its condition is faster;
    these prompts. Rows are of the contest: each beside the baseline that ``best`` is compared with."""
    mine = sorted((row for row in by_kind if row["cell"] == best["cell"]), key=lambda row: -row["speedup"]["estimate"])
    if len(mine) < 2:
        return []
    told = []
    for verdict, word in (("pays", "pays on"), ("not-distinguishable", "open on"), ("does-not-pay", "loses on")):
        kinds = [
            f"{row['kind']} {row['speedup']['estimate']:.2f}" for row in mine if row["verdict_same_prompts"] == verdict
        ]
        told += [f"{word} {', '.join(kinds)}"] if kinds else []
    sentences = [f"By kind ({mine[0]['prompts']} prompts each, these alone): {best['drafter']} {'; '.join(told)}."]
    others = []
    for row in mine:
        alike = [each for each in by_kind if each["kind"] == row["kind"] and of_one_condition(each, row)]
        first = max(alike, key=lambda each: each["speedup"]["estimate"])
        if (
            first["verdict_same_prompts"] == "pays"
            and first["speedup_same_prompts"]["low"] > row["speedup"]["estimate"]
        ):
            others.append(f"{row['kind']}: {first['drafter']} at {first['speedup']['estimate']:.2f}")
    if others:
        prompts = f"on these {mine[0]['prompts']} prompts each of"
        sentences.append(f"Another drafter did better {prompts} {'; '.join(others)}: confirm it with more.")
    return sentences


def of_variants(variants: Sequence[Row]) -> list[str]:
    """One sentence per variant's baseline beside that of the first variant."""
    words = {"faster": "is faster than", "slower": "is slower than"}
    return [
        f"{row['drafter']} {words.get(row['outcome'], 'cannot be told from')} {row['against']}: "
        f"{estimate_of(row['speedup'])} times its rate ({range_of(row['speedup'])})"
        f"{_launch_noise(row)}."
        for row in variants
        if row["speedup"] and not row["speculates"]
    ]


def _launch_noise(row: Row) -> str:
    return "" if row["assumed_launch_sd"] is None else f", launch noise assumed {row['assumed_launch_sd']:.0%}"


def of_slow_variants(comparisons: Sequence[Row], contest: Sequence[Row]) -> list[str]:
    """Arms that pay beside the baseline of their own variant, but not beside the fastest one."""
    own = {(row["cell"], row["against"]) for row in comparisons}
    lost = [row for row in contest if row["verdict"] != "pays" and (row["cell"], row["against"]) not in own]
    rates = {row["cell"]: row["speedup"]["estimate"] for row in comparisons if row["verdict"] == "pays"}
    return [
        f"{row['drafter']} pays beside the baseline of its own variant ({rates[row['cell']]:.2f} times), but that "
        f"baseline is slow: it runs at {row['speedup']['estimate']:.2f} times the rate of {row['reference']}."
        for row in lost
        if row["cell"] in rates and row["speedup"]
    ]


def of_search(predictions: Sequence[Row]) -> str:
    """What a search did not launch; empty where everything was."""
    if not predictions:
        return ""
    told = [
        f"{row['arm']}{row['condition']}"
        + (f", at best {row['tok_s_at_best']:.1f} tok/s" if row["tok_s_at_best"] else "")
        for row in predictions[:3]
    ]
    more = f" and {len(predictions) - 3} more" if len(predictions) > 3 else ""
    why = "what was not expected to be 2 % faster than the best was not launched"
    return f" It was a search: {why} ({'; '.join(told)}{more})."
