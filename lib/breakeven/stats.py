"""Verdicts from samples: what each cell gives, whether it beats the baseline, how sure that is, what would decide it.

Figures are ratios of sums over requests; the first token of a request comes from the prefill and counts nowhere.
Speed-up, AL* and margin compare a cell with the baseline on the (restart, prompt) pairs that both have. How intervals
come about stands in `breakeven.variance`; a hierarchical bootstrap over restarts and prompts is reported beside them,
but with few restarts it is too narrow (benchmarks/coverage.py has the coverage of both), so verdicts rest on the
former.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from breakeven.errors import UserError, did_you_mean
from breakeven.samples import Sweep, arrange, extent, share, usable
from breakeven.variance import Interval, Launches, Spread, holm, paired_spread, single_spread

MOST_RESTARTS = 64
POWER = 0.8
BOOTSTRAP_DRAWS = 1000


# --- one cell -------------------------------------------------------------------------------------------------------


def summarise_cells(samples: pd.DataFrame, *, level: float = 0.95) -> pd.DataFrame:
    """One row per cell (kind "all") and per cell and kind of prompt.

    Columns: cell, kind, restarts, prompts, requests, degenerate, and for each of tok_s (per stream), accept_length,
    cycle_ms and step_ms the estimate and its ``_low`` and ``_high``; method. accept_length and cycle_ms are NaN without
    speculation, step_ms (ms per token) with it.
    """
    rows = []
    measured = samples[samples["phase"] == "measure"]
    for kind, group in _groups(measured, ["kind"] if "kind" in samples.columns else [], with_all=True):
        good = usable(group)
        sweep = arrange(good)
        launches = sweep.launches()
        requests = good.groupby("cell").size()
        degenerate = group["degenerate"].fillna(False).astype(bool) if "degenerate" in group.columns else None
        for index, cell in enumerate(sweep.cells):
            row: dict[str, Any] = {"cell": cell, "kind": kind.get("kind", "all"), "requests": int(requests[cell])}
            row["degenerate"] = int(degenerate[group["cell"] == cell].sum()) if degenerate is not None else 0
            row |= _cell_figures(sweep, launches, index, level)
            rows.append(row)
    return pd.DataFrame(rows)


def _cell_figures(sweep: Sweep, launches: Launches, index: int, level: float) -> dict[str, Any]:
    tokens, cycles, seconds = sweep.tokens[index], sweep.cycles[index], sweep.seconds[index]
    speculates = bool(sweep.speculates[index])
    total_tokens, total_cycles, total_seconds = np.nansum(tokens), np.nansum(cycles), np.nansum(seconds)
    everything = np.ones(len(launches.cell), bool)
    alike = sweep.speculates[launches.cell] == speculates
    restarts, prompts = extent(seconds)
    rate = share(tokens) - share(seconds)
    figures = {
        "tok_s": (total_tokens / total_seconds, rate, 1.0, 1.0, everything),
        "accept_length": (total_tokens / total_cycles, share(tokens) - share(cycles), 1.0, 0.0, alike),
        "cycle_ms": (1000 * total_seconds / total_cycles, share(cycles) - share(seconds), 0.0, 1.0, everything),
        "step_ms": (1000 * total_seconds / total_tokens, rate, 1.0, 1.0, everything),
    }
    absent = {"step_ms"} if speculates else {"accept_length", "cycle_ms"}
    row: dict[str, Any] = {"restarts": restarts, "prompts": prompts}
    for name, (estimate, influence, length, time, pool) in figures.items():
        if name in absent:
            row |= {name: math.nan, f"{name}_low": math.nan, f"{name}_high": math.nan}
            continue
        spread = single_spread(launches, influence, sweep.strata, length, time, restarts, pool)
        half = spread.quantile((1 + level) / 2)
        row |= {name: estimate, f"{name}_low": estimate * math.exp(-half), f"{name}_high": estimate * math.exp(half)}
        if name == "tok_s":
            row["method"] = f"ratio of sums; {spread}"
    return row


# --- a cell against the baseline ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Comparison:
    """A cell beside the baseline on their common pairs. ``floor``: the largest ``|log ratio|`` of an A/A pair."""

    key: dict[str, Any]
    cell: str
    log_speedup: float
    spread: Spread
    floor: float | None
    figures: dict[str, Interval]
    bootstrap: Interval

    @property
    def same_prompts(self) -> Spread:
        """What restarts add, for these very prompts."""
        return Spread(self.spread.components[:1])

    def verdict(self, p_adjusted: float, level: float) -> str:
        """What an adjusted p value says of this difference; one inside the A/A floor is none."""
        inside_floor = self.floor is not None and abs(self.log_speedup) <= self.floor
        if p_adjusted >= 1 - level or inside_floor:
            return "not-distinguishable"
        return "pays" if self.log_speedup > 0 else "does-not-pay"


def compare(
    samples: pd.DataFrame,
    baseline: str,
    cells: Sequence[str],
    *,
    by: Sequence[str] = (),
    aa_pairs: Sequence[tuple[str, str]] = (),
    level: float = 0.95,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Does each cell pay against the baseline, over all prompts or per group of ``by`` (e.g. ["kind"])?

    One dict per group and cell: cell, kind (and other ``by``), speedup, speedup_same_prompts (for these very prompts:
    narrower, it leaves out what other prompts would change), accept_length, break_even, margin (AL - AL*), each an
    `Interval` as a dict (None without speculation or without data), p_pays, p_adjusted, verdict (pays | does-not-pay |
    not-distinguishable | needs-more), verdict_same_prompts (the same question for these very prompts),
    share_of_prompts (of the speed-up's variance: what the choice of prompts adds, 0 to 1), noise_floor (largest A/A
    difference, as a ratio), detectable (the smallest speed-up that this many restarts would find 4 times in 5),
    repeats_to_decide (restarts needed for that, None when decided or out of reach), bootstrap (the hierarchical
    bootstrap's speed-up interval; ``seed`` is its seed), restarts, prompts, method, note.

    A verdict other than not-distinguishable needs Holm's adjusted p over all comparisons of this call below ``1 -
    level`` and, where there is an A/A pair, a difference larger than A/A's. Intervals are not adjusted. Raises
    UserError for an unknown cell.
    """
    measured = usable(samples)
    known = [str(name) for name in samples["cell"].unique()]
    for name in (baseline, *cells, *(half for pair in aa_pairs for half in pair)):
        if name not in known:
            raise UserError(f"no cell {name!r} in the samples{did_you_mean(name, known)}")
    unknown = [name for name in by if name not in samples.columns]
    if unknown:
        raise UserError(
            f"the samples have no column {unknown[0]!r} to group "
            f"by{did_you_mean(unknown[0], map(str, samples.columns))}"
        )
    _same_concurrency(samples, [baseline, *cells])
    if not 0 < level < 1:
        raise UserError(f"level {level} is no confidence level; give one between 0 and 1, such as 0.95")

    rng = np.random.default_rng(seed)
    comparisons: list[Comparison | tuple[dict[str, Any], str]] = []
    for key, group in _groups(measured, by, with_all=not by):
        sweep = arrange(group)
        launches = sweep.launches(aa_pairs)
        floor = _noise_floor(sweep, aa_pairs)
        for cell in cells:
            found = _compare_one(sweep, launches, baseline, cell, level, floor, key, rng)
            comparisons.append(found if found is not None else (key, cell))
    made = [item for item in comparisons if isinstance(item, Comparison)]
    adjusted = iter(holm([item.spread.p_value(item.log_speedup) for item in made]))
    adjusted_same = iter(holm([item.same_prompts.p_value(item.log_speedup) for item in made]))
    return [
        _conclude(item, float(next(adjusted)), float(next(adjusted_same)), level, len(made))
        if isinstance(item, Comparison)
        else without_data(*item, baseline)
        for item in comparisons
    ]


def _same_concurrency(samples: pd.DataFrame, cells: Sequence[str]) -> None:
    if "concurrency" not in samples.columns:
        return
    ran = samples[samples["cell"].isin(cells)].groupby("cell")["concurrency"].unique()
    for cell in cells[1:]:
        if set(ran[cell]) != set(ran[cells[0]]):
            raise UserError(
                f"{cell} ran at concurrency {', '.join(map(str, ran[cell]))} and {cells[0]} at "
                f"{', '.join(map(str, ran[cells[0]]))}; compare with a baseline of the same concurrency"
            )


def _groups(
    samples: pd.DataFrame, by: Sequence[str], *, with_all: bool
) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    if with_all:
        yield {}, samples
    if by:
        for values, group in samples.groupby(list(by), sort=True):
            yield dict(zip(by, values, strict=True)), group


def _compare_one(
    sweep: Sweep,
    launches: Launches,
    baseline: str,
    cell: str,
    level: float,
    floor: float | None,
    key: dict[str, Any],
    rng: np.random.Generator,
) -> Comparison | None:
    if cell not in sweep.cells or baseline not in sweep.cells:
        return None
    arm, base = sweep.cells.index(cell), sweep.cells.index(baseline)
    both = ~np.isnan(sweep.seconds[arm]) & ~np.isnan(sweep.seconds[base])
    if not both.any():
        return None
    tokens, cycles, seconds, base_tokens, base_seconds = (
        np.where(both, values, np.nan)
        for values in (
            sweep.tokens[arm],
            sweep.cycles[arm],
            sweep.seconds[arm],
            sweep.tokens[base],
            sweep.seconds[base],
        )
    )
    restarts, prompts = extent(seconds)
    length = np.nansum(tokens) / np.nansum(cycles)
    step = np.nansum(base_seconds) / np.nansum(base_tokens)
    needed = np.nansum(seconds) / np.nansum(cycles) / step
    influence_length = share(tokens) - share(cycles)
    influence_needed = share(seconds) - share(cycles) - share(base_seconds) + share(base_tokens)

    def interval(estimate: float, spread: Spread, *, log: bool) -> Interval:
        half = spread.quantile((1 + level) / 2)
        low, high = (
            (estimate * math.exp(-half), estimate * math.exp(half)) if log else (estimate - half, estimate + half)
        )
        return Interval(float(estimate), float(low), float(high), level, f"ratio of sums; {spread}", restarts, prompts)

    spread = paired_spread(launches, influence_length - influence_needed, sweep.strata, 1.0, 1.0, restarts)
    figures = {
        "speedup": interval(length / needed, spread, log=True),
        "speedup_same_prompts": interval(length / needed, Spread(spread.components[:1]), log=True),
    }
    if sweep.speculates[arm]:
        alike = sweep.speculates[launches.cell]
        margin = paired_spread(
            launches, length * influence_length - needed * influence_needed, sweep.strata, length, needed, restarts
        )
        figures |= {
            "accept_length": interval(
                length, single_spread(launches, influence_length, sweep.strata, 1.0, 0.0, restarts, alike), log=True
            ),
            "break_even": interval(
                needed, paired_spread(launches, influence_needed, sweep.strata, 0.0, 1.0, restarts), log=True
            ),
            "margin": interval(length - needed, margin, log=False),
        }
    draws = bootstrap_speedups(tokens, seconds, base_tokens, base_seconds, sweep.strata, rng)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    method = f"hierarchical bootstrap over restarts and prompts, {BOOTSTRAP_DRAWS} draws, percentiles"
    bootstrap = Interval(float(length / needed), float(low), float(high), level, method, restarts, prompts)
    return Comparison(key, cell, math.log(length / needed), spread, floor, figures, bootstrap)


def bootstrap_speedups(
    tokens: np.ndarray,
    seconds: np.ndarray,
    base_tokens: np.ndarray,
    base_seconds: np.ndarray,
    strata: np.ndarray,
    rng: np.random.Generator,
    draws: int = BOOTSTRAP_DRAWS,
) -> np.ndarray:
    """Speed-ups of resampled sweeps: restarts, and prompts within their kind, drawn with replacement.

    Arrays are (restarts, prompts), NaN where a pair is missing. A draw that holds no pair is left out.
    """
    restarts, prompts = seconds.shape
    restart_weight = rng.multinomial(restarts, np.full(restarts, 1 / restarts), draws).astype(float)
    prompt_weight = np.empty((draws, prompts))
    for kind in np.unique(strata):
        of_kind = strata == kind
        count = int(of_kind.sum())
        prompt_weight[:, of_kind] = rng.multinomial(count, np.full(count, 1 / count), draws)

    def total(values: np.ndarray) -> np.ndarray:
        return ((restart_weight @ np.nan_to_num(values)) * prompt_weight).sum(axis=1)

    there = total(seconds) > 0
    return (total(tokens)[there] / total(seconds)[there]) / (total(base_tokens)[there] / total(base_seconds)[there])


def _noise_floor(sweep: Sweep, aa_pairs: Sequence[tuple[str, str]]) -> float | None:
    """The largest ``|log ratio of rates|`` between two cells that are the same; None without such a pair."""
    floors = []
    for first, second in aa_pairs:
        if first not in sweep.cells or second not in sweep.cells:
            continue
        a, b = sweep.cells.index(first), sweep.cells.index(second)
        both = ~np.isnan(sweep.seconds[a]) & ~np.isnan(sweep.seconds[b])
        if both.any():
            rates = [sweep.tokens[c][both].sum() / sweep.seconds[c][both].sum() for c in (a, b)]
            floors.append(abs(math.log(rates[0] / rates[1])))
    return max(floors) if floors else None


def _conclude(found: Comparison, p_adjusted: float, p_same_prompts: float, level: float, family: int) -> dict[str, Any]:
    effect, spread = found.log_speedup, found.spread
    speedup = found.figures["speedup"]
    inside_floor = found.floor is not None and abs(effect) <= found.floor
    p_adjusted = max(p_adjusted, p_same_prompts)  # what is shown for other prompts too has to be shown for these
    verdict = found.verdict(p_adjusted, level)
    decided = verdict != "not-distinguishable"
    repeats, notes = None, []
    if speedup.restarts == 1:
        notes.append("one restart: what a restart changes was not measured")
    if speedup.prompts == 1:
        notes.append("one prompt: what another prompt would change was not measured")
    if not decided:
        if inside_floor:
            notes.append("the difference is inside what two runs of the same cell differ by")
        elif speedup.low > 1 or speedup.high < 1:
            notes.append(f"the interval excludes 1, but not after accounting for {family} comparisons")
        repeats = restarts_to_decide(effect, spread, speedup.restarts, 1 - (1 - level) / family)
        if repeats is None:
            notes.append(_out_of_reach(effect, spread, speedup.prompts, level))
    return {
        "cell": found.cell,
        "kind": None,
        **found.key,
        **{name: found.figures[name].as_dict() if name in found.figures else None for name in FIGURES},
        "p_pays": spread.probability_above_zero(effect),
        "p_adjusted": p_adjusted,
        "verdict": verdict,
        "verdict_same_prompts": found.verdict(p_same_prompts, level),
        "share_of_prompts": 1 - (found.same_prompts.se / spread.se) ** 2 if spread.se else 0.0,
        "noise_floor": math.expm1(found.floor) if found.floor is not None else None,
        "detectable": math.expm1(_detectable(spread, level)),
        "repeats_to_decide": repeats,
        "bootstrap": found.bootstrap.as_dict(),
        "restarts": speedup.restarts,
        "prompts": speedup.prompts,
        "method": f"{speedup.method}; Holm over {family} comparisons"
        + ("; A/A floor" if found.floor is not None else ""),
        "note": "; ".join(notes),
    }


FIGURES = ("speedup", "speedup_same_prompts", "accept_length", "break_even", "margin")


def without_data(key: dict[str, Any], cell: str, baseline: str) -> dict[str, Any]:
    """The row of a cell that can't be compared: every figure None, the reason as its note."""
    absent = ("p_pays", "p_adjusted", "share_of_prompts", "noise_floor", "detectable", "repeats_to_decide", "bootstrap")
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
        "restarts": 0,
        "prompts": 0,
        "method": "",
        "note": note,
    }


# --- what would decide it -------------------------------------------------------------------------------------------


def _detectable(spread: Spread, level: float) -> float:
    return spread.quantile((1 + level) / 2) + float(special.ndtri(POWER)) * spread.se


def restarts_to_decide(effect: float, spread: Spread, restarts: int, level: float) -> int | None:
    """The restarts at which a true log ratio of this size would be found 4 times in 5; None above 64.

    More restarts shrink the launch part of the variance and add degrees of freedom; the prompt part stays.
    """
    for more in range(restarts + 1, MOST_RESTARTS + 1):
        if abs(effect) > _detectable(_with_restarts(spread, restarts, more), level):
            return more
    return None


def _with_restarts(spread: Spread, now: int, then: int) -> Spread:
    launch, *rest = spread.components
    df = launch.df * (then - 1) / (now - 1) if now > 1 else launch.df
    return Spread((type(launch)(launch.name, launch.value * now / then, df), *rest))


def _out_of_reach(effect: float, spread: Spread, prompts: int, level: float) -> str:
    by_prompts = Spread(spread.components[1:])
    if by_prompts.se and abs(effect) <= _detectable(by_prompts, level):
        wanted = prompts * (_detectable(by_prompts, level) / max(abs(effect), 1e-4)) ** 2
        if wanted < 10 * prompts + 1000:
            return f"more restarts alone can't decide: prompts differ too much; about {math.ceil(wanted)} prompts could"
        return f"more restarts alone can't decide: {prompts} prompts are too few to tell how much prompts differ"
    return (
        f"a difference of {abs(math.expm1(effect)):.1%} would take more than {MOST_RESTARTS} restarts: treat it as none"
    )
