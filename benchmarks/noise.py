"""Does the suite call equal servers equal, and does it find a slow-down of 5 %? On real launches of this machine.

    python benchmarks/noise.py RUN_DIR [--plain 12] [--throttled 12] [--share 0.05] [--prompts-per-kind 2]

Launches the baseline so many times, plain and with its processes stopped for a share of every 100 ms, interleaved. A
folder that holds such launches already is only judged. Then sweeps are put together from them at random: two cells of
plain launches (A/A: any verdict is false), and a plain against a throttled one (the verdict has to be does-not-pay),
each with 2 restarts, and where that does not decide with as many as the verdict itself asks for, until it does.
"""

from __future__ import annotations

import argparse
import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

from breakeven import stats
from breakeven.config import SweepSettings
from breakeven.launch.design import Arm, Condition, Launch
from breakeven.launch.serving import Serving
from breakeven.server import Server
from breakeven.sweep.load import Workload
from breakeven.sweep.measuring import Measurement
from breakeven.sweep.store import Store

PERIOD_S = 0.1
SWEEPS = 200
MOST_RESTARTS = 24  # a sweep that asks for more is left undecided
THROTTLED = "throttled"


@contextmanager
def throttled(root: psutil.Process, share: float) -> Iterator[None]:
    """Stop a process and its children for ``share`` of every 100 ms."""
    over = threading.Event()
    family = [root, *root.children(recursive=True)]

    def send(what: signal.Signals) -> None:
        for process in family:
            process.send_signal(what)

    def pulse() -> None:
        while not over.wait(PERIOD_S * (1 - share)):
            send(signal.SIGSTOP)
            time.sleep(PERIOD_S * share)
            send(signal.SIGCONT)

    thread = threading.Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Noisy(Measurement):
    """A measurement whose ``throttled`` arm runs on a server that is stopped again and again."""

    share = 0.05

    def _measure(self, server: Server, arm: Arm, rows: dict[Condition, dict[str, Any]]) -> None:
        if arm.name != THROTTLED:
            return super()._measure(server, arm, rows)
        with throttled(psutil.Process(server.pid), self.share):
            return super()._measure(server, arm, rows)


def launch_all(run_dir: Path, plain: int, slow: int, prompts_per_kind: int) -> pd.DataFrame:
    """Samples of all launches; those that the folder holds are not launched again."""
    given = {"run_dir": str(run_dir), "prompts_per_kind": prompts_per_kind, "profile_steps": 0, "resume": True}
    settings = SweepSettings.checked(given)
    serving = Serving.prepare(settings, run_dir)
    store = Store(run_dir, {"noise": prompts_per_kind}, resume=True)
    measurement = Noisy(settings, serving, Workload.chosen(settings, serving.encode), store, print)
    arms = [Arm("baseline", None), Arm(THROTTLED, None)]
    for restart, (arm, count) in itertools.product(range(max(plain, slow)), zip(arms, (plain, slow), strict=True)):
        launch = Launch(arm, restart)
        if restart < count and not store.holds(launch):
            print(launch.key, flush=True)
            store.add(launch, measurement.run(launch))
    return pd.DataFrame(store.samples())


def verdicts(samples: pd.DataFrame, other: str, rng: np.random.Generator) -> str:
    """Verdicts on a cell of ``other`` launches against plain ones, in words: with 2 restarts, and after every further
    restart that the verdict itself asked for.

    Launches are drawn with replacement, each cell on its own: sweeps of a machine whose launches are distributed as
    those of the pool.
    """
    pools = {cell: group["launch"].unique() for cell, group in samples.groupby("cell")}
    first: Counter[str] = Counter()
    last: Counter[str] = Counter()
    restarts_used = []
    for _ in range(SWEEPS):
        base, rest = (list(rng.choice(pools[cell], MOST_RESTARTS)) for cell in ("baseline", other))
        restarts, row = 2, _one(samples, base, rest, 2)
        first[row["verdict"]] += 1
        while restarts < (row["repeats_to_decide"] or 0) <= MOST_RESTARTS:
            restarts = row["repeats_to_decide"]
            row = _one(samples, base, rest, restarts)
        last[row["verdict"]] += 1
        restarts_used.append(restarts)
    middle, high = np.quantile(restarts_used, [0.5, 0.95])
    return (
        f"{SWEEPS} sweeps of 2 restarts: {dict(first)}; with the restarts that the verdicts asked for (median "
        f"{middle:g}, 95 % at most {high:g}): {dict(last)}"
    )


def _one(samples: pd.DataFrame, base: list[str], rest: list[str], restarts: int) -> dict[str, Any]:
    parts = [
        samples[samples["launch"] == launch].assign(cell=cell, restart=restart)
        for cell, launches in (("baseline", base), ("other", rest))
        for restart, launch in enumerate(launches[:restarts])
    ]
    return stats.compare(pd.concat(parts), "baseline", ["other"])[0]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--plain", type=int, default=12)
    parser.add_argument("--throttled", type=int, default=12)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--prompts-per-kind", type=int, default=2)
    given = parser.parse_args()
    Noisy.share = given.share
    given.run_dir.mkdir(parents=True, exist_ok=True)
    measured = launch_all(given.run_dir, given.plain, given.throttled, given.prompts_per_kind)
    generator = np.random.default_rng(0)
    for name, other in (("A/A", "baseline"), (f"stopped for {given.share:.0%}", THROTTLED)):
        print(f"{name}: {verdicts(measured, other, generator)}")
    rates = measured.groupby(["cell", "launch"])[["completion_tokens", "decode_s"]].sum()
    per_launch = (rates["completion_tokens"] / rates["decode_s"]).groupby("cell")
    print(per_launch.describe()[["count", "mean", "std", "min", "max"]].to_string())
