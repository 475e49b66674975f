"""From a comparison to its verdict: intervals, what they say, and what would decide what they leave open.

A verdict is what its interval says, and says nothing else: that is why both are made in one place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scipy import special

from breakeven.stats.noise import Noise
from breakeven.stats.variance import Interval, Spread

MOST_RESTARTS = 64
FEWEST_PROMPTS = 4
"""With fewer prompts nothing can be said about how other prompts would do."""
WIDEST = 9.0
"""An undecided interval whose ends are further apart than this factor says nothing, and is not shown."""
POWER = 0.8


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

    @property
    def assumed_launch_sd(self) -> float | None:
        return self.spread.assumed_launch_sd(2 / self.restarts)


def conclude(
    found: Comparison, other: tuple[float, float], same: tuple[float, float], level: float, family: int
) -> dict[str, Any]:
    """One row of `compare`; ``other`` and ``same``: Holm's adjusted p and factor, for other prompts and for these."""
    effect, floor = found.log_speedup, found.noise.floor if found.noise else 0.0
    half_same = max(found.same_prompts.quantile(_tail(level, same[1])), floor)
    half = max(found.spread.quantile(_tail(level, other[1])), half_same)
    p_adjusted = float(max(other[0], same[0]))  # what is shown for other prompts too has to be shown for these
    verdict_same = _verdict(effect, half_same)
    few = found.prompts < FEWEST_PROMPTS
    verdict = "needs-more" if few else _verdict(effect, half)
    share_of_prompts = 1 - (found.same_prompts.se / found.spread.se) ** 2 if found.spread.se else 0.0
    undecided = verdict in ("not-distinguishable", "needs-more")
    deciding = 1 - (1 - level) / family
    repeats = None
    if undecided and not few:  # no restart tells of prompts that were not measured
        repeats = restarts_to_decide(effect, found.spread, found.restarts, deciding, floor)
    too_wide = "launches differ too much to say" if repeats else "prompts differ too much to say"
    if few:
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
            more_prompts, why = _out_of_reach(effect, found.spread, found.prompts, deciding)
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
        "assumed_launch_sd": found.assumed_launch_sd,
        "noise_floor": math.expm1(floor) if found.noise else None,
        "noise_widest": math.expm1(found.noise.widest) if found.noise else None,
        "detectable": math.expm1(_detectable(found.spread, deciding)),
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
    notes, sd = [], found.assumed_launch_sd
    if found.restarts == 1 or sd is not None:
        one = "one restart: " if found.restarts == 1 else ""
        changes = "what a restart changes was not measured"
        notes = [one + (changes if sd is None else f"launch noise assumed {sd:.0%}, not measured")]
    return notes + (["one prompt: what another prompt would change was not measured"] if found.prompts == 1 else [])


FIGURES = ("speedup", "speedup_same_prompts", "accept_length", "break_even", "margin")


def without_data(key: dict[str, Any], cell: str, baseline: str) -> dict[str, Any]:
    """The row of a cell that can't be compared: every figure None, the reason as its note."""
    absent = (
        "p_pays", "p_adjusted", "share_of_prompts", "assumed_launch_sd", "noise_floor", "noise_widest", "detectable",
        "repeats_to_decide", "prompts_to_decide", "bootstrap", "spec_tok_s", "base_tok_s",
    )  # fmt: skip
    note = f"no restart and prompt in common with {baseline} that can be used (failed, degenerate or missing requests)"
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
    needed = _detectable(Spread(spread.components[1:]), level)
    wanted = math.ceil(prompts * (needed / max(abs(effect), 1e-4)) ** 2)
    if prompts < FEWEST_PROMPTS:
        wanted = max(wanted, FEWEST_PROMPTS) if wanted < 10 * prompts + 1000 else FEWEST_PROMPTS
        return wanted, f"from fewer than {FEWEST_PROMPTS} prompts nothing follows about others"
    out_of_reach = 0 < needed >= abs(effect)
    if out_of_reach and wanted < 10 * prompts + 1000:
        return wanted, f"more restarts alone can't decide: prompts differ too much; about {wanted} prompts could"
    if out_of_reach:
        return None, f"more restarts alone can't decide: {prompts} prompts are too few to tell how much prompts differ"
    return None, (
        f"a difference of {abs(math.expm1(effect)):.1%} would take more than {MOST_RESTARTS} restarts: treat it as none"
    )
