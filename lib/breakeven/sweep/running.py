"""Run a sweep: a grid in interleaved restarts, or a search that launches only what could win.

Every result is on disk as soon as it exists (`store`), and the order of launches follows from the results, so
that a sweep that was cut off goes on where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from breakeven.config import SweepSettings
from breakeven.costs import formulas
from breakeven.errors import UserError
from breakeven.holding import held
from breakeven.launch import preflight, unlaunched
from breakeven.launch.design import Arm, Launch, Variant, plan_arms, plan_conditions, plan_launches
from breakeven.launch.serving import Serving, end_leftovers
from breakeven.server import attach
from breakeven.sweep import cluster, expectations, forecast, search
from breakeven.sweep.load import Workload
from breakeven.sweep.measuring import MOST_ATTEMPTS, Measurement, lost_connection, pinned_length
from breakeven.sweep.store import Store

Say = Callable[[str], None]
Measure = Callable[[Launch], list[dict[str, Any]]]

COLUMNS = {
    "order": "order",
    "cell": "cell",
    "restart": "restart",
    "status": "status",
    "ready_s": "ready after, s",
    "requests": "requests",
    "tok_s": "tok/s per stream",
    "accept_length": "accept length",
    "cycle_ms": "cycle, ms",
    "step_ms": "step, ms",
}
CANARY_COLUMNS = {
    "launch": "launch",
    "compared": "texts compared",
    "parted": "texts that part",
    "gap_nats": "widest gap of the two likeliest tokens where they part, nats",
}
DECISION_COLUMNS = {"after_launches": "after launches", "action": "decision", "cell": "cell", "why": "why"}


def plan(settings: SweepSettings) -> list[Launch]:
    """Every launch of the grid in its order; a search takes some of them. Raises UserError for what can't be run.

    Of a server that runs already it is one, see `attach.as_it_runs`; how many requests it takes is for it to say.
    """
    if settings.host.startswith(attach.PREFIX):
        return plan_launches(plan_arms([]), restarts=1)
    if settings.workers and settings.search:
        raise UserError("workers: a search decides launch by launch; set search: false, or workers: 0")
    plan_conditions(settings.concurrency, settings.temperature, settings.context_tokens, settings.max_running_requests)
    return plan_launches(plan_arms(settings.drafters, settings.variants, aa_pair=settings.aa_pair), settings.restarts)


def run_sweep(settings: SweepSettings, run_dir: Path, say: Say = print) -> dict[str, Any]:
    """Measure every launch that the run folder does not hold yet; returns what ``cells.json`` holds.

    A launch that fails is a row with its failure class; the sweep goes on. One that was lost with the connection to
    its host is made again. Raises UserError for what can't be launched, before anything is, when another process works
    on the folder, and when it holds another sweep's results (with ``resume``);
    ConnectionError when the host is out of reach, and RuntimeError when no launch of a baseline succeeded.
    """
    if not unlaunched.serves(settings):
        return unlaunched.SWEEP
    with held(run_dir):
        return _run(settings, run_dir, say)


def _run(settings: SweepSettings, run_dir: Path, say: Say) -> dict[str, Any]:
    began = time.monotonic()
    settings = attach.as_it_runs(settings, say)
    launches = plan(settings)
    serving = Serving.prepare(settings, run_dir, say)
    arms = list({each.arm.name: each.arm for each in launches}.values())
    workload = Workload.chosen(settings, serving.encode)
    found = serving.preflight(arms)
    preflight.refuse_errors([each for each in found if not settings.workers or each.subject != "GPUs"])  # Ray counts
    serving.refuse_unbuildable(arms)
    refuse_pinned(arms, serving.whole_environment, search=settings.search)
    end_leftovers(run_dir, say, serving.host)
    store = Store(run_dir, _plan(settings), resume=settings.resume, host=serving.host)
    measurement = Measurement(settings, serving, workload, store, say)
    if settings.workers:
        cluster.measure_all(settings, launches, workload, store, run_dir, say)
    else:
        measure = foretold(measurement.run, launches[0].arm.variant, run_dir)
        made = measure_all(settings, launches, store, measure, say)
        store.account(time.monotonic() - began, made)
    if not any(row["drafter"] == "none" and row["status"] == "ok" for row in store.rows):
        failure = next(row["failure"] for row in store.rows if row["drafter"] == "none")
        raise RuntimeError(f"the baseline could not be measured: {failure['class']}: {failure['text']}")
    return store.content()


def foretold(measure: Measure, first: Variant, run_dir: Path) -> Measure:
    """The same; before the first launch of another variant, what fusing will bring is written down, if it can be."""

    def foretell_and_measure(launch: Launch) -> list[dict[str, Any]]:
        is_due = launch.arm.variant != first and not (run_dir / forecast.FILE).exists()
        if is_due and (run_dir / "allreduce.json").exists() and (run_dir / "cells.json").exists():
            forecast.write(run_dir)
        return measure(launch)

    return foretell_and_measure


def measure_all(
    settings: SweepSettings, launches: Sequence[Launch], store: Store, measure: Measure, say: Say
) -> list[str]:
    """Measure what the store does not hold, one launch after the other; each is stored before the next is chosen.

    ``measure`` gives the rows of a launch. Returns the names of the launches that were made.
    """
    chosen = _searched(settings, launches, store, say) if settings.search else _grid(launches, store, say)
    made = []
    for launch in chosen:
        rows = _connected(launch, measure, say)
        store.add(launch, rows)
        made.append(rows[0]["launch"])
    return made


def _connected(launch: Launch, measure: Measure, say: Say) -> list[dict[str, Any]]:
    """The rows of a launch. What was lost with the connection tells nothing of it, so that it is measured again."""
    for _ in range(MOST_ATTEMPTS):
        rows = measure(launch)
        lost = lost_connection(rows)
        if lost is None:
            return rows
        say(f"{launch.key}: {lost}; it is measured again")
    raise ConnectionError(f"{launch.key} lost its connection {MOST_ATTEMPTS} times; the last: {lost}")


def _plan(settings: SweepSettings) -> dict[str, Any]:
    """What has to be equal for two sweeps' results to stand in one table; restarts may be added later."""
    return settings.model_dump(
        exclude={"run_dir", "resume", "restarts", "workers", "ready_timeout_s", "request_timeout_s"}
    )


def refuse_pinned(arms: Iterable[Arm], environment_of: Callable[[Arm], Mapping[str, str]], *, search: bool) -> None:
    """A pinned accept length can't be searched with; one that is no number is refused whatever is planned."""
    for arm in arms:
        if pinned_length(environment_of(arm)) is not None and arm.drafter is not None and search:
            raise UserError(
                f"search: the accept length of {arm.name} is pinned, so its longest chain tells nothing about shorter "
                "ones; set search: false"
            )


def _grid(launches: Sequence[Launch], store: Store, say: Say) -> Iterator[Launch]:
    for done, launch in enumerate(launches):
        if store.holds(launch):
            say(f"{launch.key}: kept from before")
            continue
        say(f"launch {done + 1} of {len(launches)}: {launch.key}{store.time_left(len(launches) - done)}")
        yield launch


def _searched(settings: SweepSettings, launches: Sequence[Launch], store: Store, say: Say) -> Iterator[Launch]:
    """Ask the search of every variant in turn, the one with the fewest launches first, until all are done."""
    arms = {launch.arm.name: launch.arm for launch in launches}
    baselines = list(dict.fromkeys(arm.baseline for arm in arms.values()))
    tried: set[tuple[str, int]] = set()
    while True:
        measured = {(row["arm"], row["restart"]) for row in store.rows if row["status"] == "ok"}
        lost = {arm for arm, restart in tried | measured if not _has_figure(store, arm, restart)}
        results = results_of(store)
        decisions = []
        for baseline in baselines:
            rivals = expectations.candidates(arm for arm in arms.values() if arm.baseline == baseline)
            own = [each for each in results if arms[each.arm].baseline == baseline]
            twin = settings.aa_pair and baseline == baselines[0]
            decision = search.decide(baseline, rivals, own, lost, settings.restarts, twin=twin)
            store.conclude_for(
                baseline, search.dropped(rivals, own, lost), map(asdict, expectations.outlook(rivals, own))
            )
            if decision is not None:
                decisions.append((len(own), decision))
        if not decisions:
            return
        decision = min(decisions, key=lambda each: each[0])[1]
        launch = Launch(arms[decision.arm], decision.restart)
        if (launch.arm.name, launch.restart) in tried:
            raise RuntimeError(f"the search asks for {launch.key} again, which has just been measured")
        tried.add((launch.arm.name, launch.restart))
        left = store.time_left(sum(not store.holds(each) for each in launches), "at most about")
        say(f"launch {store.launches + 1}, of at most {len(launches)}: {launch.key}{left}; {decision.why}")
        store.decide(
            {"action": decision.action, "cell": decision.arm, "restart": decision.restart, "why": decision.why}
        )
        yield launch


def _has_figure(store: Store, arm: str, restart: int) -> bool:
    return any((row["arm"], row["restart"]) == (arm, restart) and row.get("tok_s") for row in store.rows)


def results_of(store: Store) -> list[expectations.Result]:
    """What a search needs of the launches so far: rate, cycle, and the accept length of every shorter chain."""
    by_cell: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for sample in store.samples():
        if not sample["degenerate"] and sample.get("correct_drafts_histogram") and sample["completion_tokens"] > 1:
            by_cell.setdefault((sample["launch"], sample["cell"]), []).append(sample)
    results = []
    for row in store.rows:
        if row["status"] != "ok" or not row.get("tok_s"):
            continue
        mine = by_cell.get((row["launch"], row["cell"]), [])
        lengths: tuple[float, ...] = ()
        if mine:
            histograms = [each["correct_drafts_histogram"] for each in mine]
            tokens = [each["completion_tokens"] - 1 for each in mine]
            lengths = tuple(float(x) for x in formulas.accept_length_by_chain_over_requests(histograms, tokens))
        results.append(
            expectations.Result(
                row["arm"],
                row["restart"],
                row["condition"],
                row["tok_s"],
                row.get("cycle_ms"),
                lengths,
                row["concurrency"],
                {int(rows): ms for rows, ms in row.get("forward_ms", {}).items()},
            )
        )
    return results


def canary_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per launch whose texts were compared with the baseline's."""
    return [
        {
            "launch": row["launch"] + row["condition"],
            "compared": row["canary"]["compared"],
            "parted": len(row["canary"]["parted"]),
            "gap_nats": max((each["gap_nats"] or 0.0 for each in row["canary"]["parted"]), default=None),
        }
        for row in result["cells"]
        if row.get("canary")
    ]


def plan_in_words(settings: SweepSettings) -> str:
    """What will be launched, in which order, in a sentence."""
    if not unlaunched.serves(settings):
        return unlaunched.WORDS
    launches = plan(settings)
    if settings.host.startswith(attach.PREFIX):
        return "1 server, which runs already: its baseline is measured once; drafters, variants, restarts are left out."
    servers = f"{len({each.arm.name for each in launches})} servers to compare, {settings.restarts} restarts"
    if settings.search:
        return f"{servers}: the whole grid would be {len(launches)} launches; the search takes those that could matter."
    return f"{servers}, {len(launches)} launches, in this order: {', '.join(each.key for each in launches)}."


def findings(result: dict[str, Any]) -> list[str]:
    """The findings of notebook 04 in words: rates and their spread over restarts, no verdicts yet."""
    if not result["cells"]:
        return [unlaunched.WORDS]
    sentences = []
    for name in dict.fromkeys(row["cell"] for row in result["cells"]):
        rates = [row["tok_s"] for row in result["cells"] if row["cell"] == name and row.get("tok_s")]
        failed = sum(row["status"] != "ok" for row in result["cells"] if row["cell"] == name)
        text = f"{name}: " + (", ".join(f"{rate:.1f}" for rate in rates) + " tok/s" if rates else "no figure")
        sentences.append(text + (f"; {failed} launches failed" if failed else ""))
    left_out = [each for each in result["search"] if each["action"] == "drop"]
    if left_out:
        sentences.append(
            f"Left unmeasured, because they could not win: {', '.join(each['cell'] for each in left_out)}."
        )
    if spent := result.get("time"):
        sentences.append(
            f"Of {spent['whole_s']:.0f} s, starting servers took {spent['starting_s']:.0f}, measuring "
            f"{spent['measuring_s']:.0f}, stopping servers {spent['stopping_s']:.0f}, failed launches "
            f"{spent['failed_s']:.0f}; {spent['own_s'] / spent['whole_s']:.1%} were the suite's own."
        )
    return [*sentences, "Whether a difference is more than noise, notebook 5 decides."]
