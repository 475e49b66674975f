"""Verdicts from samples: what each cell gives, whether it beats the baseline, how sure that is, what would decide it.

Figures are ratios of sums over requests; the first token of a request comes from the prefill and counts nowhere.
Speed-up, AL* and margin compare a cell with the baseline on the (restart, prompt) pairs that both have. How intervals
come about stands in `variance`; a hierarchical bootstrap over restarts and prompts is reported beside them,
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

from breakeven.errors import UserError, did_you_mean
from breakeven.stats.conclusions import Comparison, conclude, without_data
from breakeven.stats.noise import Noise, noise_of
from breakeven.stats.samples import Sweep, arrange, extent, looping, share, usable
from breakeven.stats.variance import Interval, Launches, Spread, holm, paired_spread, single_spread

BOOTSTRAP_DRAWS = 1000


# --- one cell -------------------------------------------------------------------------------------------------------


def summarise_cells(samples: pd.DataFrame, *, level: float = 0.95) -> pd.DataFrame:
    """One row per cell (kind "all") and per cell and kind of prompt.

    Columns: cell, kind, restarts, prompts, requests, degenerate, and for each of tok_s (per stream), accept_length,
    cycle_ms and step_ms the estimate and its ``_low`` and ``_high``; method, launch_noise_assumed (for lack of
    restarts). accept_length and cycle_ms are NaN without speculation, step_ms (ms per token) with it.
    """
    rows = []
    measured = samples[samples["phase"] == "measure"]
    for kind, group in _groups(measured, ["kind"] if "kind" in samples.columns else [], with_all=True):
        good = usable(group)
        sweep = arrange(good)
        launches = sweep.launches()
        requests = good.groupby("cell").size()
        loops = looping(group)
        for index, cell in enumerate(sweep.cells):
            row: dict[str, Any] = {"cell": cell, "kind": kind.get("kind", "all"), "requests": int(requests[cell])}
            row["degenerate"] = int(loops[group["cell"] == cell].sum())
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
            assumed = spread.assumed_launch_sd(1 / restarts) is not None
            row |= {"method": f"ratio of sums; {spread}", "launch_noise_assumed": assumed}
    return row


# --- a cell against the baseline ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """Cells to hold against one baseline, the samples that tell, and the pairs of cells in them that are the same."""

    samples: pd.DataFrame
    baseline: str
    cells: Sequence[str]
    aa_pairs: Sequence[tuple[str, str]] = ()


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
    not-distinguishable | needs-more), verdict_same_prompts (the same question for these very prompts), spec_tok_s and
    base_tok_s (per stream, on the pairs that both have: their ratio is the speed-up), family (how many comparisons the
    intervals answer for together), share_of_prompts (of the speed-up's variance: what the choice of prompts adds, 0 to
    1), assumed_launch_sd (relative, where too few restarts leave nothing to estimate it from; else None), noise_floor
    (what the A/A pairs let a mean over the restarts differ by) and noise_widest (what any two of their launches differ
    by), both as a ratio less 1, detectable (the smallest speed-up that this many restarts would find 4 times in 5),
    repeats_to_decide and prompts_to_decide (restarts, prompts needed for that, None when decided or out of reach),
    bootstrap (the hierarchical bootstrap's speed-up interval; ``seed`` is its seed), restarts, prompts, method, note.

    The verdict is what the speed-up's interval says: pays where it lies above 1, does-not-pay below. The interval is
    Holm's over all comparisons of this call and no narrower than the A/A pairs' difference; for other prompts it is no
    narrower than for these. Beside it stands that of the comparison alone (``low_alone``, ``high_alone``). With fewer
    than 4 prompts nothing is said of others (needs-more). Raises UserError for an unknown cell.
    """
    return compare_together([Question(samples, baseline, cells, aa_pairs)], by=by, level=level, seed=seed)[0]


def compare_together(
    questions: Sequence[Question], *, by: Sequence[str] = (), level: float = 0.95, seed: int = 0
) -> list[list[dict[str, Any]]]:
    """`compare` for several baselines at once: the rows of each question, their intervals Holm's over all of them."""
    if not 0 < level < 1:
        raise UserError(f"level {level} is no confidence level; give one between 0 and 1, such as 0.95")
    rng = np.random.default_rng(seed)
    found = [list(_comparisons(question, by, level, rng)) for question in questions]
    made = [item for of_question in found for item in of_question if isinstance(item, Comparison)]
    others = zip(*holm([item.spread.p_value(item.log_speedup) for item in made]), strict=True)
    these = zip(*holm([item.same_prompts.p_value(item.log_speedup) for item in made]), strict=True)
    return [
        [
            conclude(item, next(others), next(these), level, len(made))
            if isinstance(item, Comparison)
            else without_data(*item)
            for item in of_question
        ]
        for of_question in found
    ]


def _comparisons(
    question: Question, by: Sequence[str], level: float, rng: np.random.Generator
) -> Iterator[Comparison | tuple[dict[str, Any], str, str]]:
    """Each group and cell: the comparison, or group, cell and baseline where there is nothing to compare."""
    samples, baseline, cells, aa_pairs = question.samples, question.baseline, question.cells, question.aa_pairs
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
    for key, group in _groups(measured, by, with_all=not by):
        sweep = arrange(group)
        launches = sweep.launches(aa_pairs)
        noise = noise_of(sweep, aa_pairs)
        for cell in cells:
            found = _compare_one(sweep, launches, baseline, cell, level, noise, key, rng)
            yield found if found is not None else (key, cell, baseline)


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
    noise: Noise | None,
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

    spread = paired_spread(launches, influence_length - influence_needed, sweep.strata, 1.0, 1.0, restarts)
    figures: dict[str, tuple[float, Spread, bool]] = {}
    if sweep.speculates[arm]:
        alike = sweep.speculates[launches.cell]
        margin = paired_spread(
            launches, length * influence_length - needed * influence_needed, sweep.strata, length, needed, restarts
        )
        lengths = single_spread(launches, influence_length, sweep.strata, 1.0, 0.0, restarts, alike)
        bars = paired_spread(launches, influence_needed, sweep.strata, 0.0, 1.0, restarts)
        figures = {
            "accept_length": (length, lengths, True),
            "break_even": (needed, bars, True),
            "margin": (length - needed, margin, False),
        }
    rates = (float(np.nansum(tokens) / np.nansum(seconds)), float(1 / step))
    draws = bootstrap_speedups(tokens, seconds, base_tokens, base_seconds, sweep.strata, rng)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    method = f"hierarchical bootstrap over restarts and prompts, {BOOTSTRAP_DRAWS} draws, percentiles"
    bootstrap = Interval(float(length / needed), float(low), float(high), level, method, restarts, prompts)
    return Comparison(key, cell, math.log(length / needed), spread, noise, figures, bootstrap, restarts, prompts, rates)


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
