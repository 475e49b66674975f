"""How many launches a search would have needed on a grid that was measured in full, and what its choice costs.

    python benchmarks/search.py RUN_DIR [--restarts N]

RUN_DIR holds a sweep with ``search: false``. The search decides from that grid's own launches, in the order in which it
asks for them; regret is the rate of the grid's best cell over that of its choice, both as means over all restarts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from breakeven import artifacts, search, sweep
from breakeven.config import SweepSettings
from breakeven.design import plan_arms
from breakeven.store import Store


def replay(run_dir: Path, restarts: int | None) -> str:
    """The search on a measured grid, in words."""
    cells = artifacts.read_json(run_dir / "cells.json")
    settings = SweepSettings.checked(cells["plan"])
    if settings.search:
        raise SystemExit(f"{run_dir} was searched, not measured in full; run its parameters with -p search=false")
    store = Store(run_dir, cells["plan"], resume=True)
    grid = sweep.results_of(store)
    restarts = restarts or 1 + max(each.restart for each in grid)
    arms = plan_arms(settings.drafters, settings.variants)
    rivals = search.candidates(arms)
    seen: list[search.Result] = []
    lines: list[str] = []
    while decision := search.decide(arms[0].baseline, rivals, seen, (), restarts):
        seen += [each for each in grid if (each.arm, each.restart) == (decision.arm, decision.restart)]
        lines.append(f"{len(lines) + 1:3d} {decision.arm} (restart {decision.restart}): {decision.why}")
    chosen, best = (search.fastest(rivals, results, "") for results in (seen, grid))
    assert chosen and best
    regret = search.rate(grid, best, "") / search.rate(grid, chosen, "") - 1
    launches = restarts * len(arms)
    lines.append(f"chosen {chosen}, best of the grid {best}, regret {regret:.2%}")
    lines.append(f"{len(lines) - 1} launches of {launches} ({(len(lines) - 1) / launches:.0%})")
    for each in search.outlook(rivals, seen):
        if each.source == "interpolated" and each.tok_s and (real := search.rate(grid, each.arm, each.condition)):
            lines.append(
                f"    {each.arm}: predicted {each.tok_s:.2f} tok/s, measured {real:.2f} ({each.tok_s / real - 1:+.1%})"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--restarts", type=int, help="restarts that the search may use; without it all of the grid's")
    arguments = parser.parse_args()
    print(replay(arguments.run_dir, arguments.restarts))
