"""How many launches a search would have needed on a grid that was measured in full, and what its choice costs.

    python benchmarks/search.py RUN_DIR [--orders 200] [--forwards OTHER_RUN_DIR]

RUN_DIR holds a sweep with ``search: false``. The search decides from that grid's own launches, in the order in which it
asks for them; regret is the rate of the grid's best cell over that of its choice, both as means over all restarts.
First it is replayed on the restarts as they were, launch by launch; then so many times with every cell's restarts in
another random order: each is a search that might as well have happened. ``--forwards`` takes the target's forward by
its rows from another run of the same machine, where the grid's own baseline did not measure it.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from breakeven import artifacts, sweep
from breakeven.config import SweepSettings
from breakeven.launch.design import plan_arms
from breakeven.sweep import expectations, search
from breakeven.sweep.store import Store


@dataclass(frozen=True)
class Grid:
    """A measured grid: the baseline, its rivals and the result of every launch."""

    baseline: str
    rivals: list[expectations.Candidate]
    results: list[expectations.Result]
    restarts: int

    @property
    def launches(self) -> int:
        """As many as measuring it in full took."""
        return self.restarts * (len(self.rivals) + 1)

    @property
    def best(self) -> str:
        """The fastest rival over all restarts."""
        return expectations.fastest(self.rivals, self.results, "") or ""

    def regret(self, chosen: str) -> float:
        """What choosing this rival costs, as a share of the best one's rate."""
        return expectations.rate(self.results, self.best, "") / expectations.rate(self.results, chosen, "") - 1

    def reordered(self, rng: np.random.Generator) -> Grid:
        """The same launches with every cell's restarts in another order."""
        order = {arm: rng.permutation(self.restarts) for arm in (self.baseline, *(each.arm for each in self.rivals))}
        moved = [replace(each, restart=int(order[each.arm][each.restart])) for each in self.results]
        return replace(self, results=moved)


def measured(run_dir: Path, forwards: Path | None) -> Grid:
    """The grid of a run folder."""
    cells = artifacts.read_json(run_dir / "cells.json")
    settings = SweepSettings.checked(cells["plan"])
    if settings.search:
        raise SystemExit(f"{run_dir} was searched, not measured in full; run its parameters with -p search=false")
    results = sweep.results_of(Store(run_dir, cells["plan"], resume=True))
    arms = plan_arms(settings.drafters, settings.variants)
    if forwards:
        rows = artifacts.read_json(forwards / "cells.json")["cells"]
        known = {int(n): ms for n, ms in next(row["forward_ms"] for row in rows if row.get("forward_ms")).items()}
        results = [replace(each, forward_ms=known) if each.arm == arms[0].name else each for each in results]
    return Grid(arms[0].name, expectations.candidates(arms), results, 1 + max(each.restart for each in results))


def replay(grid: Grid) -> tuple[list[search.Decision], list[expectations.Result]]:
    """What the search asks for on a grid, and what it has seen at its end."""
    seen: list[expectations.Result] = []
    decisions: list[search.Decision] = []
    while decision := search.decide(grid.baseline, grid.rivals, seen, (), grid.restarts):
        seen += [each for each in grid.results if (each.arm, each.restart) == (decision.arm, decision.restart)]
        decisions.append(decision)
    return decisions, seen


def as_it_was(grid: Grid) -> str:
    """The search on the restarts as they were, in words."""
    decisions, seen = replay(grid)
    lines = [
        f"{number:3d} {each.arm} (restart {each.restart}): {each.why}" for number, each in enumerate(decisions, start=1)
    ]
    chosen = expectations.fastest(grid.rivals, seen, "") or ""
    lines.append(f"chosen {chosen}, best of the grid {grid.best}, regret {grid.regret(chosen):.2%}")
    lines.append(f"{len(decisions)} launches of {grid.launches} ({len(decisions) / grid.launches:.0%})")
    for each in expectations.outlook(grid.rivals, seen):
        real = expectations.rate(grid.results, each.arm, each.condition)
        if each.source != "measured" and each.tok_s and real:
            off = each.tok_s / real - 1
            lines.append(f"    {each.arm}: {each.source} {each.tok_s:.2f} tok/s, measured {real:.2f} ({off:+.1%})")
    return "\n".join(lines)


def in_other_orders(grid: Grid, orders: int) -> str:
    """Launches and regret of the search over random orders of the restarts."""
    rng = np.random.default_rng(0)
    made: list[int] = []
    regrets: list[float] = []
    for _ in range(orders):
        decisions, seen = replay(grid.reordered(rng))
        made.append(len(decisions))
        regrets.append(grid.regret(expectations.fastest(grid.rivals, seen, "") or ""))
    return (
        f"{orders} other orders: launches {_counted(made)}, of {grid.launches} (a third: {grid.launches / 3:g}); "
        f"median {np.median(made):g}; regret {np.median(regrets):.2%} in the median, {max(regrets):.2%} at most, "
        f"above 2 % in {sum(regret > 0.02 for regret in regrets)}"
    )


def _counted(values: Sequence[int]) -> str:
    return ", ".join(f"{value} ({times}x)" for value, times in sorted(Counter(values).items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--orders", type=int, default=200)
    parser.add_argument("--forwards", type=Path)
    arguments = parser.parse_args()
    of_run = measured(arguments.run_dir, arguments.forwards)
    print(as_it_was(of_run))
    print(in_other_orders(of_run, arguments.orders))
