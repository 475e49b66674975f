"""From a comparison to its verdict: intervals, what they say, and what would decide what they leave open.

A verdict is what its interval says, and says nothing else: that is why both are made in one place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scipy import special

from breakeven.stats.variance import Interval, Spread

MOST_RESTARTS = 64
FEWEST_PROMPTS = 4
"""With fewer prompts nothing can be said about how other prompts would do."""
WIDEST = 9.0
"""An undecided interval whose ends are further apart than this factor says nothing, and is not shown."""
POWER = 0.8


@dataclass(frozen=True)
class Noise:
    """What runs of the very same server differ by, as log ratios of rates.

    ``floor``: what that makes of a mean over the restarts; ``widest``: any two launches of them.
    """

    floor: float
    widest: float


@dataclass(frozen=True)
class Comparison:
    """A cell beside the baseline on their common pairs.

    ``figures`` maps a name to its estimate, its spread and whether it is a ratio; intervals come later, since their
    level depends on how many comparisons there are.
    """

    key: dict[str, Any]
    cell: str
    log_speedup: float
    spread: Spread
    noise: Noise | None
    figures: dict[str, tuple[float, Spread, bool]]
    bootstrap: Interval
    restarts: int
    prompts: int
    tok_s: tuple[float, float]  # of the cell and of the baseline, on the pairs that both have

    @property
    def same_prompts(self) -> Spread:
        """What restarts add, for these very prompts."""
        return Spread(self.spread.components[:1])


def conclude(
    found: Comparison, other: tuple[float, float], same: tuple[float, float], level: float, family: int
) -> dict[str, Any]:
    """One row of `compare`; ``other`` and ``same``: Holm's adjusted p and factor, for other prompts and for these."""
    effect, floor = found.log_speedup, found.noise.floor if found.noise else 0.0
    half_same = max(found.same_prompts.quantile(_tail(level, same[1])), floor)
    half = max(found.spread.quantile(_tail(level, other[1])), half_same)
    p_adjusted = float(max(other[0], same[0]))  # what is shown for other prompts too has to be shown for these
    verdict_same = _verdict(effect, half_same)
    verdict = _verdict(effect, half) if found.prompts >= FEWEST_PROMPTS else "needs-more"
    share_of_prompts = 1 - (found.same_prompts.se / found.spread.se) ** 2 if found.spread.se else 0.0
    undecided = verdict in ("not-distinguishable", "needs-more")
    repeats = None
    if undecided:
        repeats = restarts_to_decide(effect, found.spread, found.restarts, 1 - (1 - level) / family, floor)
    too_wide = "launches differ too much to say" if repeats else "prompts differ too much to say"
    if found.prompts < FEWEST_PROMPTS:
        too_wide = f"too few prompts to say: n={found.prompts}"
    intervals = {
        "speedup": _interval(math.exp(effect), half, found, found.spread, level, verdict, too_wide),
        "speedup_same_prompts": _interval(
            math.exp(effect), half_same, found, found.same_prompts, level, verdict_same,
            "launches differ too much to say",
        ),
    }  # fmt: skip
    for name, (estimate, spread, ratio) in found.figures.items():
        width = max(spread.quantile(_tail(level, 1)), floor if name == "break_even" else 0.0)  # the bar is two rates
        intervals[name] = _interval(estimate, width, found, spread, level, verdict, too_wide, ratio=ratio)
    more_prompts, notes = None, _thin(found)
    if undecided:
        if floor and abs(effect) <= floor:
            notes.append("the difference is inside what runs of the same server differ by")
        if repeats is None:
            more_prompts, why = _out_of_reach(effect, found.spread, found.prompts, level)
            notes.append(why)
    return {
        "cell": found.cell,
        "kind": None,
        **found.key,
        **{name: intervals[name].as_dict() if name in intervals else None for name in FIGURES},
        "spec_tok_s": found.tok_s[0],
        "base_tok_s": found.tok_s[1],
        "p_pays": 1 - p_adjusted / 2 if effect > 0 else p_adjusted / 2,
        "p_adjusted": p_adjusted,
        "verdict": verdict,
        "verdict_same_prompts": verdict_same,
        "family": family,
        "share_of_prompts": share_of_prompts,
        "noise_floor": math.expm1(floor) if found.noise else None,
        "noise_widest": math.expm1(found.noise.widest) if found.noise else None,
        "detectable": math.expm1(_detectable(found.spread, level)),
        "repeats_to_decide": repeats,
        "prompts_to_decide": more_prompts,
        "bootstrap": found.bootstrap.as_dict(),
        "restarts": found.restarts,
        "prompts": found.prompts,
        "method": intervals["speedup"].method
        + f"; Holm over {family} comparisons"
        + ("; no narrower than the A/A pairs" if found.noise else ""),
        "note": "; ".join(notes),
    }


def _tail(level: float, factor: float) -> float:
    """The quantile at which a two-sided interval ends that answers for ``factor`` comparisons together."""
    return float(1 - (1 - level) / factor / 2)


def _verdict(effect: float, half: float) -> str:
    if abs(effect) <= half:
        return "not-distinguishable"
    return "pays" if effect > 0 else "does-not-pay"


def _interval(
    estimate: float, half: float, found: Comparison, spread: Spread, level: float, verdict: str, too_wide: str,
    *, ratio: bool = True,
) -> Interval:  # fmt: skip
    """An interval, marked as saying nothing where it is undecided and its ends are further apart than `WIDEST`."""
    low, high = _ends(estimate, half, ratio)
    alone = _ends(estimate, spread.quantile(_tail(level, 1)), ratio)
    wide = verdict == "not-distinguishable" and (half > math.log(WIDEST) / 2 if ratio else half > WIDEST / 2)
    too_few = too_wide if wide or verdict == "needs-more" else ""
    method = f"ratio of sums; {spread}"
    return Interval(float(estimate), low, high, level, method, found.restarts, found.prompts, too_few, *alone)


def _ends(estimate: float, half: float, ratio: bool) -> tuple[float, float]:
    half = min(half, 50.0)  # e^50 is as good as boundless, and can be written down
    if ratio:
        return float(estimate * math.exp(-half)), float(estimate * math.exp(half))
    return float(estimate - half), float(estimate + half)


def _thin(found: Comparison) -> list[str]:
    notes = ["one restart: what a restart changes was not measured"] if found.restarts == 1 else []
    return notes + (["one prompt: what another prompt would change was not measured"] if found.prompts == 1 else [])


FIGURES = ("speedup", "speedup_same_prompts", "accept_length", "break_even", "margin")


def without_data(key: dict[str, Any], cell: str, baseline: str) -> dict[str, Any]:
    """The row of a cell that can't be compared: every figure None, the reason as its note."""
    absent = (
        "p_pays", "p_adjusted", "share_of_prompts", "noise_floor", "noise_widest", "detectable", "repeats_to_decide",
        "prompts_to_decide", "bootstrap", "spec_tok_s", "base_tok_s",
    )  # fmt: skip
    note = (
        f"{cell} and {baseline} have no restart and prompt in common that can be used (failed, degenerate or missing "
        "requests)"
    )
    return {
        "cell": cell,
        "kind": None,
        **key,
        **dict.fromkeys((*FIGURES, *absent)),
        "verdict": "needs-more",
        "verdict_same_prompts": "needs-more",
        "family": 0,
        "restarts": 0,
        "prompts": 0,
        "method": "",
        "note": note,
    }


# --- what would decide it -------------------------------------------------------------------------------------------


def _detectable(spread: Spread, level: float) -> float:
    return spread.quantile((1 + level) / 2) + float(special.ndtri(POWER)) * spread.se


def restarts_to_decide(effect: float, spread: Spread, restarts: int, level: float, floor: float = 0.0) -> int | None:
    """The restarts at which a true log ratio of this size would be found 4 times in 5; None above 64.

    More restarts shrink the launch part of the variance, the A/A ``floor`` with it, and add degrees of freedom; the
    prompt part stays.
    """
    for more in range(restarts + 1, MOST_RESTARTS + 1):
        lowered = floor * math.sqrt(restarts / more)
        if abs(effect) > max(_detectable(_with_restarts(spread, restarts, more), level), lowered):
            return more
    return None


def _with_restarts(spread: Spread, now: int, then: int) -> Spread:
    launch, *rest = spread.components
    df = launch.df * (then - 1) / (now - 1) if now > 1 else launch.df
    return Spread((type(launch)(launch.name, launch.value * now / then, df), *rest))


def _out_of_reach(effect: float, spread: Spread, prompts: int, level: float) -> tuple[int | None, str]:
    """How many prompts would decide what restarts can't (None where none would), and the sentence on it."""
    by_prompts = Spread(spread.components[1:])
    if by_prompts.se and abs(effect) <= _detectable(by_prompts, level):
        wanted = math.ceil(prompts * (_detectable(by_prompts, level) / max(abs(effect), 1e-4)) ** 2)
        if wanted < 10 * prompts + 1000:
            text = f"more restarts alone can't decide: prompts differ too much; about {wanted} prompts could"
            return wanted, text
        return None, f"more restarts alone can't decide: {prompts} prompts are too few to tell how much prompts differ"
    return None, (
        f"a difference of {abs(math.expm1(effect)):.1%} would take more than {MOST_RESTARTS} restarts: treat it as none"
    )
