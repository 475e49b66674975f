"""What a saving that somebody hopes for would do to recorded figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from breakeven.costs import formulas, records

Row = Mapping[str, Any]
SAVING = ("saving_low_ms", "saving_high_ms")
"""Columns of a records file beside those of `breakeven analyze`: what an optimisation is hoped to save per verify."""


def saving_ms(row: Row) -> tuple[float, float] | None:
    """Least and most ms that an optimisation is hoped to save per verify; None where the row does not say."""
    try:
        low, high = (float(row["notes"][name]) for name in SAVING)
    except (KeyError, ValueError):
        return None
    return (low, high) if 0 < low <= high else None


def in_words(row: Row) -> Iterable[str]:
    """What a hoped saving would do: to the verify alone, to the whole cycle, and to the baseline step too."""
    savings, step = saving_ms(row), row["baseline_step_ms"]
    cycle, verify = row["cycle_ms"], records.used_ms(row, "verify_ms")
    if not savings or not step or not cycle or row["cycle_source"] == "lower-bound":
        return
    low, high = savings
    if verify and high < verify:
        yield (
            f"A saving of {low:g} to {high:g} ms, taken off a verify that is mistaken for the cycle, lowers the "
            f"break-even from {verify / step:.2f} to {(verify - low) / step:.2f} ({verify - low:g} ms) or "
            f"{(verify - high) / step:.2f} ({verify - high:g} ms). Taken off the real cycle it is "
            f"{cycle / step:.2f} to "
            f"{(cycle - low) / step:.2f} or {(cycle - high) / step:.2f}, and even that holds only if the baseline "
            "gains nothing."
        )
    if high < step < cycle:
        ends = [formulas.break_even_after(cycle, step, saved, saved) for saved in savings]
        text = (
            "The baseline runs the same target forward, so what is saved there is saved in its step too: the "
            "break-even "
            f"then rises from {cycle / step:.2f} to {ends[0]:.2f} ({low:g} ms) or {ends[1]:.2f} ({high:g} ms)"
        )
        if row["accept_length"]:
            text += ", while both rates rise: " + "; ".join(_rates(row, saved) for saved in savings)
        text += f". That is worth having {_what_a_saving_leaves(row, ends)}"
        if high > step / 2:
            text += f", and {high:g} ms would be {high / step:.0%} of the baseline's step, which is hard to believe"
        yield text + "."


def _what_a_saving_leaves(row: Row, ends: Sequence[float]) -> str:
    """For whom a saving in the target forward is worth having, and whether speculation pays after it."""
    if not row["accept_length"] or not row["speedup"]:
        return "for either arm; a drafter then has to yield more to pay"
    low, high = (row["accept_length"] / end for end in ends)
    if row["accept_length"] * row["baseline_step_ms"] < row["cycle_ms"]:
        return "for the baseline; it does not make speculation pay"
    if high < 1:
        return f"for both arms, but speculation then runs at {low:.2f} or {high:.2f} of the baseline's rate"
    return f"for both arms: speculation still runs at {low:.2f} or {high:.2f} of the baseline's rate"


def _rates(row: Row, saved_ms: float) -> str:
    base = formulas.MS_PER_S * row["batch"] / (row["baseline_step_ms"] - saved_ms)
    spec = formulas.spec_tok_s(row["batch"], row["accept_length"], row["cycle_ms"] - saved_ms)
    return f"baseline {base:.0f} and speculation {spec:.0f} tok/s at {saved_ms:g} ms"
