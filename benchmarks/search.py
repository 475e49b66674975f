"""How many launches a search would have needed on a grid that was measured in full, and what its choice costs.

    python benchmarks/search.py RUN_DIR [--restarts N] [--reversed] [--forwards OTHER_RUN_DIR]

RUN_DIR holds a sweep with ``search: false``. The search decides from that grid's own launches, in the order in which it
asks for them; regret is the rate of the grid's best cell over that of its choice, both as means over all restarts.
``--reversed`` hands out the last restart first: another search on the same grid. ``--forwards`` takes the target's
forward by its rows from another run of the same machine, where the grid's own baseline did not measure it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from breakeven import artifacts, sweep
from breakeven.config import SweepSettings
from breakeven.launch.design import plan_arms
from breakeven.sweep import search
from breakeven.sweep.store import Store


def replay(run_dir: Path, restarts: int | None, backwards: bool, forwards: Path | None) -> str:
    """The search on a measured grid, in words."""
    cells = artifacts.read_json(run_dir / "cells.json")
    settings = SweepSettings.checked(cells["plan"])
    if settings.search:
        raise SystemExit(f"{run_dir} was searched, not measured in full; run its parameters with -p search=false")
    store = Store(run_dir, cells["plan"], resume=True)
    grid = sweep.results_of(store)
    restarts = restarts or 1 + max(each.restart for each in grid)
    if backwards:
        grid = [replace(each, restart=restarts - 1 - each.restart) for each in grid]
    if forwards:
        rows = artifacts.read_json(forwards / "cells.json")["cells"]
        known = next(row["forward_ms"] for row in rows if row.get("forward_ms"))
        grid = [replace(each, forward_ms={int(n): ms for n, ms in known.items()}) for each in grid]
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
        if each.source != "measured" and each.tok_s and (real := search.rate(grid, each.arm, each.condition)):
            off = each.tok_s / real - 1
            lines.append(f"    {each.arm}: {each.source} {each.tok_s:.2f} tok/s, measured {real:.2f} ({off:+.1%})")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--restarts", type=int, help="restarts that the search may use; without it all of the grid's")
    parser.add_argument("--reversed", action="store_true")
    parser.add_argument("--forwards", type=Path)
    arguments = parser.parse_args()
    print(replay(arguments.run_dir, arguments.restarts, arguments.reversed, arguments.forwards))
