"""Samples of a sweep as arrays of sums, and the launches that they came from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from breakeven.errors import UserError
from breakeven.stats.variance import Launches

COLUMNS = ("cell", "restart", "phase", "prompt_id", "completion_tokens", "verify_ct", "decode_s")


@dataclass(frozen=True)
class Sweep:
    """Sums per cell, restart and prompt: arrays of shape (cells, restarts, prompts), NaN where nothing was measured.

    ``cycles`` are verifies, or tokens where a cell does not speculate (a step is its cycle).
    """

    cells: list[str]
    speculates: np.ndarray
    strata: np.ndarray  # (prompts,): the kind of each prompt, as a code
    tokens: np.ndarray
    cycles: np.ndarray
    seconds: np.ndarray

    def launches(self, aa_pairs: Sequence[tuple[str, str]] = ()) -> Launches:
        """Log figures of every launch, over the prompts that all cells of its restart have (where there are any)."""
        if not self.cells:
            return Launches(np.empty(0, int), np.empty(0, int), np.empty((0, 2)))
        there = ~np.isnan(self.seconds)
        size = there.sum(axis=(1, 2))
        whole = size >= np.median(size) / 2  # a cell that lost most of its requests does not cut down the others
        common = np.asarray((there[whole] | ~there[whole].any(axis=2, keepdims=True)).all(axis=0))
        twin = {second: first for first, second in aa_pairs}
        rows: list[tuple[int, int, float, float]] = []
        for c, r in zip(*np.nonzero(there.any(axis=2)), strict=True):
            use = there[c, r] & common[r] if (there[c, r] & common[r]).any() else there[c, r]
            tokens, cycles, seconds = (x[c, r, use].sum() for x in (self.tokens, self.cycles, self.seconds))
            code = self.cells.index(twin.get(self.cells[c], self.cells[c]))
            rows.append((code, int(r), math.log(tokens / cycles), math.log(seconds / cycles)))
        table = np.array(rows, dtype=float).reshape(-1, 4)
        return Launches(table[:, 0].astype(int), table[:, 1].astype(int), table[:, 2:])


def looping(samples: pd.DataFrame) -> pd.Series:
    """Which rows are answers that repeat themselves; none where nobody looked."""
    if "degenerate" not in samples.columns:
        return pd.Series(False, index=samples.index)
    return samples["degenerate"].fillna(False).astype(bool)


def usable(samples: pd.DataFrame) -> pd.DataFrame:
    """The rows that count: measured (no warm-up), not degenerate, with tokens after the prefill's and a decode time.

    Raises UserError when a column is missing or a row names no cell, restart or prompt.
    """
    absent = [name for name in COLUMNS if name not in samples.columns]
    if absent:
        raise UserError(
            f"the samples lack the columns {', '.join(absent)}; they have {', '.join(map(str, samples.columns))}"
        )
    for name in ("cell", "restart", "prompt_id"):
        if samples[name].isna().any():
            raise UserError(f"{int(samples[name].isna().sum())} samples have no {name}; every request names its own")
    keep = (samples["phase"] == "measure") & (samples["completion_tokens"] > 1) & (samples["decode_s"] > 0)
    return samples[keep & ~looping(samples)]


def arrange(samples: pd.DataFrame) -> Sweep:
    """Sum usable samples per (cell, restart, prompt). A cell without any verify count does not speculate."""
    tokens = samples["completion_tokens"].to_numpy(float) - 1
    verifies = pd.to_numeric(samples["verify_ct"]).to_numpy(float)
    cell, cells = pd.factorize(samples["cell"], sort=True)
    restart, restarts = pd.factorize(samples["restart"], sort=True)
    prompt, prompts = pd.factorize(samples["prompt_id"], sort=True)
    shape = (len(cells), len(restarts), len(prompts))
    flat = np.ravel_multi_index((cell, restart, prompt), shape)
    speculates = np.bincount(cell, np.nan_to_num(verifies), len(cells)) > 0
    counted = np.where(speculates[cell], verifies, tokens)
    keep = counted > 0  # a speculating request without a verify count can't be placed

    def sums(values: np.ndarray) -> np.ndarray:
        total = np.bincount(flat[keep], values[keep], math.prod(shape))
        return np.where(np.bincount(flat[keep], minlength=math.prod(shape)) > 0, total, np.nan).reshape(shape)

    strata = np.zeros(len(prompts), int)
    if "kind" in samples.columns:
        strata[prompt] = pd.factorize(samples["kind"])[0]
    seconds = samples["decode_s"].to_numpy(float)
    return Sweep([str(name) for name in cells], speculates, strata, sums(tokens), sums(counted), sums(seconds))


def share(values: np.ndarray) -> np.ndarray:
    """Each pair's share of a sum: differences of shares are the influence of a pair on a log ratio of sums."""
    return values / np.nansum(values)


def extent(values: np.ndarray) -> tuple[int, int]:
    there = ~np.isnan(values)
    return int(there.any(axis=1).sum()), int(there.any(axis=0).sum())
