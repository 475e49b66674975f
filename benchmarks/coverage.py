"""Do intervals cover, verdicts hold and predictions come true? Simulated sweeps whose truth is known.

    nice python benchmarks/coverage.py [SWEEPS]        (500 by default; about two minutes per thousand sweeps and core)

Half of the sweeps have prompts that differ a lot (the choice of prompts dominates), half have prompts alike (restarts
dominate); the spread of a launch is between 1 and 3 %. Prints one table per question, by number of restarts.

Intervals are those that a report shows: Holm's over the cells of a sweep, that of the speed-up no narrower than its A/A
pair. So they cover more often than their level says; the bootstrap beside them is at the level itself.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np
import pandas as pd

from breakeven import stats
from breakeven.costs import formulas
from breakeven.costs.whatif import Point, apply, target_forward
from breakeven.stats import simulate
from breakeven.stats.simulate import AGAIN, BASELINE, World

RESTARTS = (2, 3, 4, 6)
WORLDS = {
    "prompts differ": World(),
    "prompts alike": World(acceptance_spread=400.0, prompts_per_kind=8),
    "small sweep": World(cycle_ms={2: 17.4, 5: 24.0}, prompts_per_kind=8),
}
RUN_FOR_PREDICTION = (1, 3, 5, 7)
SAVED_SHARE = 0.15
LEVEL = 0.95


def cover(world: World, truth: pd.DataFrame, restarts: int, rng: np.random.Generator) -> list[dict[str, float | str]]:
    """One sweep, one row per cell: which intervals cover the truth, and how the verdict stands."""
    samples, _ = simulate.measure(replace(world, launch_sd=rng.uniform(0.01, 0.03)), rng, restarts)
    cells = [name for name, chain in world.cells.items() if chain]
    rows = []
    for found in stats.compare(samples, BASELINE, cells, aa_pairs=[(BASELINE, AGAIN)], level=LEVEL):
        true = truth.loc[found["cell"]]
        opposite = "does-not-pay" if true["speedup"] > 1 else "pays"
        covered = {
            name: found[name]["low_alone"] <= true[name] <= found[name]["high_alone"]
            for name in ("speedup", "accept_length", "break_even", "margin")
        }
        deciding = found["speedup"]["low"] <= true["speedup"] <= found["speedup"]["high"]
        boot = found["bootstrap"]
        rows.append(
            {
                **covered,
                "speedup, interval that decides": deciding,
                "bootstrap speedup": boot["low"] <= true["speedup"] <= boot["high"],
                "half width": (found["speedup"]["high"] / found["speedup"]["low"]) ** 0.5 - 1,
                "wrong verdict": found["verdict"] == opposite,
                "not distinguishable": found["verdict"] == "not-distinguishable",
                "decided, true effect >= 10 %": _decided_when_large(found["verdict"], true["speedup"]),
            }
        )
    return rows


def _decided_when_large(verdict: str, speedup: float) -> float:
    return float(verdict != "not-distinguishable") if abs(np.log(speedup)) >= np.log(1.1) else np.nan


def false_difference(world: World, restarts: int, rng: np.random.Generator) -> bool:
    """Whether two runs of the same cell are called different (no other pair of runs to learn the floor from)."""
    samples, _ = simulate.measure(replace(world, launch_sd=rng.uniform(0.01, 0.03)), rng, restarts)
    return stats.compare(samples, BASELINE, [AGAIN])[0]["verdict"] != "not-distinguishable"


def predict(world: World, restarts: int, rng: np.random.Generator) -> list[dict[str, float | str]]:
    """Relative errors of what-if predictions made from one sweep, against the truth for the same prompts.

    A predicted rate carries the noise of the measured one that it starts from; what is predicted is the gain. Both are
    compared, beside the error of the measured rate itself.
    """
    samples, prompts = simulate.measure(world, rng, restarts, RUN_FOR_PREDICTION)
    cells = stats.summarise_cells(samples.drop(columns="kind")).set_index("cell")
    step_ms = 1000 / cells.loc[[BASELINE, AGAIN], "tok_s"].mean()
    rows: list[dict[str, float | str]] = []

    saved = SAVED_SHARE * world.step_ms
    faster = replace(
        world, step_ms=world.step_ms - saved, cycle_ms={k: cycle - saved for k, cycle in world.cycle_ms.items()}
    )
    now, after = simulate.table(world, prompts), simulate.table(faster, prompts)
    for chain in RUN_FOR_PREDICTION:
        measured = cells.loc[f"chain-{chain}"]
        before = Point(measured["accept_length"], measured["cycle_ms"], step_ms)
        point = apply(before, target_forward("faster forward", saved))
        true = after.loc[f"chain-{chain}"]
        true_before = 1000 * now.loc[f"chain-{chain}", "accept_length"] / world.cycle_ms[chain]
        true_rate = 1000 * true["accept_length"] / faster.cycle_ms[chain]
        gain, true_gain = point.spec_tok_s / before.spec_tok_s, true_rate / true_before
        star, true_star = (
            point.break_even / before.break_even,
            true["break_even"] / now.loc[f"chain-{chain}", "break_even"],
        )
        rows += [
            {"prediction": "tok/s as measured, nothing predicted", "error": before.spec_tok_s / true_before - 1},
            {"prediction": "tok/s after a saving", "error": point.spec_tok_s / true_rate - 1},
            {"prediction": "what the saving gains, in tok/s", "error": gain / true_gain - 1},
            {"prediction": "AL* after a saving", "error": point.break_even / true["break_even"] - 1},
            {"prediction": "what the saving does to AL*", "error": star / true_star - 1},
        ]

    longest = samples[samples["cell"] == f"chain-{max(RUN_FOR_PREDICTION)}"]
    lengths = formulas.accept_length_by_chain_over_requests(
        longest["correct_drafts_histogram"].tolist(), (longest["completion_tokens"] - 1).tolist()
    )
    measured_cycle = {chain: cells.loc[f"chain-{chain}", "cycle_ms"] for chain in RUN_FOR_PREDICTION}
    for chain in formulas.chain_table(lengths, measured_cycle, step_ms):
        true = now.loc[f"chain-{chain.draft_tokens}"]
        rows.append({"prediction": "AL of a shorter chain", "error": chain.accept_length / true["accept_length"] - 1})
        assert chain.spec_tok_s is not None
        true_rate = 1000 * true["accept_length"] / world.cycle_ms[chain.draft_tokens]
        rows.append(
            {"prediction": f"tok/s of a chain, cycle {chain.cycle_source}", "error": chain.spec_tok_s / true_rate - 1}
        )
    return rows


def main(sweeps: int) -> None:
    rng = np.random.default_rng(20261129)
    start = time.perf_counter()
    truths = {name: simulate.truth(world, prompts_per_kind=20_000) for name, world in WORLDS.items()}
    coverage, false, predictions = [], [], []
    for restarts in RESTARTS:
        for index in range(sweeps):
            name = list(WORLDS)[index % len(WORLDS)]
            coverage += [
                {"restarts": restarts, "world": name, **row} for row in cover(WORLDS[name], truths[name], restarts, rng)
            ]
            if index % 4 == 0:
                false.append(
                    {"restarts": restarts, "called different": false_difference(WORLDS["small sweep"], restarts, rng)}
                )
                predictions += [
                    {"restarts": restarts, **row} for row in predict(WORLDS["prompts differ"], restarts, rng)
                ]
    pd.set_option("display.width", 160, "display.max_columns", 20, "display.float_format", "{:.3f}".format)
    table = pd.DataFrame(coverage)
    print(f"{sweeps} sweeps per number of restarts, {LEVEL:.0%} intervals: share that covers the truth, verdicts\n")
    print(table.drop(columns="world").groupby("restarts").mean().T, "\n")
    print(
        table.groupby(["world", "restarts"])[["speedup", "margin", "bootstrap speedup", "wrong verdict"]].mean(), "\n"
    )
    print("two runs of the same cell called different\n")
    print(pd.DataFrame(false).groupby("restarts")["called different"].agg(["mean", "size"]), "\n")
    errors = pd.DataFrame(predictions)
    errors["within 3 %"] = errors["error"].abs() <= 0.03
    errors["size"] = errors["error"].abs()
    print("what-if predictions\n")
    print(
        errors.groupby(["prediction", "restarts"]).agg(
            bias=("error", "mean"), median=("size", "median"), p95=("size", lambda size: size.quantile(0.95)),
            within=("within 3 %", "mean"), n=("error", "size"),
        )
    )  # fmt: skip
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
