"""Uncertainty of log ratios of sums measured on few server starts and some prompts.

The model. A launch (one server start of one cell) has a random effect of its own, and so has the restart round that it
belongs to; a prompt has an effect that comes back in every restart; a request has noise. With two or three restarts per
cell, a bootstrap over restarts is too narrow (it resamples two values), and a t interval per cell too wide (one degree
of freedom). So:

* the launch variance is pooled over all cells of a sweep: the residual mean square of ``log value ~ cell + restart``,
  in which both halves of an A/A pair count as one cell;
* the prompt variance is the covariance of a prompt's influence between restarts, which leaves out request noise (that
  is in the launch variance already) and is zero where no prompt comes back;
* the two are added, with Satterthwaite's degrees of freedom and Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from scipy import special

ASSUMED_LAUNCH_SD = 0.02
"""Relative, of one launch's times. Stands in where a single restart leaves nothing to estimate it from."""


@dataclass(frozen=True)
class Interval:
    """A figure with its confidence interval, how it was made, and what it rests on.

    ``low`` to ``high`` is the interval that a verdict rests on: wide enough for all comparisons made together.
    ``low_alone`` to ``high_alone`` is that of this figure by itself, the one whose coverage is ``level``; for a figure
    without a verdict the two are one. ``too_few``: why the interval says nothing and is not to be shown; empty where it
    does.
    """

    estimate: float
    low: float
    high: float
    level: float
    method: str
    restarts: int
    prompts: int
    too_few: str = ""
    low_alone: float | None = None
    high_alone: float | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Component:
    """One summand of a variance, with the degrees of freedom of its estimate (infinite: assumed, not estimated)."""

    name: str
    value: float
    df: float


@dataclass(frozen=True)
class Spread:
    """A variance as the sum of its components."""

    components: tuple[Component, ...]

    @property
    def se(self) -> float:
        return math.sqrt(sum(part.value for part in self.components))

    @property
    def df(self) -> float:
        """Satterthwaite's: ``V^2 / sum(V_i^2 / df_i)``."""
        weight = sum(part.value**2 / part.df for part in self.components if part.value > 0)
        return self.se**4 / weight if weight > 0 else math.inf

    def quantile(self, p: float) -> float:
        """Of Student's t with these degrees of freedom, in units of the quantity."""
        quantile = special.stdtrit(self.df, p) if math.isfinite(self.df) else special.ndtri(p)
        return float(quantile) * self.se

    def assumed_launch_sd(self, share: float) -> float | None:
        """Relative, of one launch, ``share`` of whose variance is the first component; None where it was estimated."""
        launch = self.components[0]
        return math.sqrt(launch.value / share) if math.isinf(launch.df) else None

    def probability_above_zero(self, estimate: float) -> float:
        """Confidence that the true value is above zero, read as a probability (flat prior)."""
        if self.se == 0:
            return 0.5 if estimate == 0 else float(estimate > 0)
        ratio = estimate / self.se
        return float(special.stdtr(self.df, ratio) if math.isfinite(self.df) else special.ndtr(ratio))

    def p_value(self, estimate: float) -> float:
        """Two-sided, of the hypothesis that the true value is zero."""
        above = self.probability_above_zero(estimate)
        return 2 * min(above, 1 - above)

    def __str__(self) -> str:
        parts = ", ".join(
            f"{part.name} {'assumed' if math.isinf(part.df) else f'{part.df:.0f} df'}" for part in self.components
        )
        return f"{parts}; Satterthwaite t, {self.df:.1f} df" if math.isfinite(self.df) else parts


@dataclass(frozen=True)
class Launches:
    """Log values of every launch of a sweep (a row), in two channels: ``log AL`` (0 for cells without speculation) and
    ``log ms per cycle`` (per step where there is no cycle). Their difference is the log rate."""

    cell: np.ndarray  # int codes; both halves of an A/A pair share one
    restart: np.ndarray  # int codes
    values: np.ndarray  # (launches, 2)
    _fitted: dict[tuple[bytes, bool], tuple[np.ndarray, float]] = field(default_factory=dict, repr=False)

    def paired(self, length: float, cycle: float) -> tuple[float, float]:
        """Launch variance: mean square and df of ``length * log AL - cycle * log cycle`` within cells and restarts."""
        residuals, df = self._residuals(np.ones(len(self.cell), bool), rounds=True)
        return _mean_square(residuals @ [length, -cycle], df), df

    def single(self, length: float, cycle: float, of: np.ndarray) -> list[tuple[float, float]]:
        """(mean square, df) summands of one launch's variance, restart rounds included; ``of``: launches to pool."""
        residuals, pooled_df = self._residuals(of, rounds=False)
        centred = residuals @ [length, -cycle]
        pooled = [(_mean_square(centred, pooled_df), pooled_df)]
        within_residuals, within_df = self._residuals(of, rounds=True)
        if pooled_df < 1 or within_df < 1:
            return pooled
        rounds = np.unique(self.restart[of], return_inverse=True)[1]
        per_round = np.bincount(rounds)
        cells = len(centred) / len(per_round)
        between = float(((np.bincount(rounds, centred) / per_round) ** 2).sum() / (len(per_round) - 1))
        within = _mean_square(within_residuals @ [length, -cycle], within_df)
        if between * cells <= within:  # rounds differ no more than launches do
            return pooled
        return [(between, len(per_round) - 1.0), (within * (1 - 1 / cells), within_df)]

    def _residuals(self, of: np.ndarray, *, rounds: bool) -> tuple[np.ndarray, float]:
        """Both channels less cell means (and restart means), and what is left of the degrees of freedom."""
        key = (of.tobytes(), rounds)
        if key not in self._fitted:
            design, values = _dummies(self.cell[of]), self.values[of]
            if rounds:
                design = np.hstack([design, _dummies(self.restart[of])])
            fit, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
            self._fitted[key] = (values - design @ fit, float(len(values) - rank))
        return self._fitted[key]


def _mean_square(residuals: np.ndarray, df: float) -> float:
    return float((residuals**2).sum() / df) if df >= 1 else 0.0


def _dummies(codes: np.ndarray) -> np.ndarray:
    return (codes[:, None] == np.unique(codes)[None, :]).astype(float)


def prompt_component(influence: np.ndarray, strata: np.ndarray) -> Component:
    """Variance that the choice of prompts adds to a log ratio of sums, the mix of kinds being as it is.

    ``influence`` (restarts, prompts) holds each pair's share of the deviation (NaN where it was not measured);
    ``strata`` the kind of each prompt. Prompts vary around the mean of their kind; kinds with a single prompt are taken
    together. With several restarts the products of a prompt's influences in different restarts are used, so that
    request noise drops out; with one restart the squares.
    """
    there = ~np.isnan(influence)
    several = int(there.any(axis=1).sum()) > 1
    here = there.any(axis=0)
    names, sizes = np.unique(strata[here], return_counts=True)
    strata = np.where(np.isin(strata, names[sizes > 1]), strata, -1)
    value, df, weight = 0.0, 0, 0.0
    for name in np.unique(strata[here]):
        part, known = influence[:, here & (strata == name)], there[:, here & (strata == name)]
        prompts = part.shape[1]
        if prompts < 2:
            continue
        means = np.where(known, part, 0.0).sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
        centred = np.where(known, part - means, 0.0)
        squares = (centred**2).sum(axis=0)
        if several:
            times = known.sum(axis=0)
            unbiased = np.where(times > 1, times / np.maximum(times - 1, 1), 0.0)
            squares = (centred.sum(axis=0) ** 2 - squares) * unbiased
        share = float(squares.sum()) * prompts / (prompts - 1)
        value += share
        df += prompts - 1
        weight += share**2 / (prompts - 1)
    # Kinds differ in how much their prompts vary, so fewer degrees of freedom than prompts less kinds are at work.
    effective = min(df, value**2 / weight) if weight > 0 else df
    return Component("prompts", max(0.0, value), max(effective, 1.0))


def paired_spread(
    launches: Launches, influence: np.ndarray, strata: np.ndarray, length: float, cycle: float, restarts: int
) -> Spread:
    """Of a difference of two cells that ran in the same ``restarts``; see the module's text."""
    square, df = launches.paired(length, cycle)
    if len(np.unique(launches.restart)) > 1 and df >= 1:
        launch = Component("restarts pooled over cells", 2 * square / restarts, df)
    else:  # an A/A pair in one round is a single difference: it may show more noise than assumed, never less
        assumed = (cycle * ASSUMED_LAUNCH_SD) ** 2
        launch = Component("restarts", 2 * max(square, assumed) / restarts, math.inf)
    return Spread((launch, prompt_component(influence, strata)))


def single_spread(
    launches: Launches,
    influence: np.ndarray,
    strata: np.ndarray,
    length: float,
    cycle: float,
    restarts: int,
    of: np.ndarray,
) -> Spread:
    """Of one cell's own figure."""
    parts = [
        Component("restarts pooled over cells", square / restarts, df)
        for square, df in launches.single(length, cycle, of)
        if df >= 1
    ]
    if not parts:
        # Accept length hardly depends on the launch; a time does.
        parts = [Component("restarts", (cycle * ASSUMED_LAUNCH_SD) ** 2 / restarts, math.inf)]
    return Spread((*parts, prompt_component(influence, strata)))


def holm(p_values: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Holm's step-down adjustment: comparisons whose adjusted value is below 1 - level hold together at that level.

    The second array says by how much each p value was multiplied. An interval at level ``1 - (1 - level) / factor``
    excludes "no difference" exactly where the adjusted value is below ``1 - level``.
    """
    order = np.argsort(p_values)
    count = len(p_values)
    in_order = np.asarray(p_values, dtype=float)[order]
    steps = count - np.arange(count, dtype=float)
    adjusted = np.maximum.accumulate(steps * in_order)
    known = in_order > 0
    factors = np.where(known, adjusted / np.where(known, in_order, 1.0), steps)
    result, factor = np.empty(count), np.empty(count)
    result[order], factor[order] = np.minimum(adjusted, 1.0), factors
    return result, factor
