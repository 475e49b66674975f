"""Plan the cells of a sweep, run each on fresh servers, and keep every result as soon as it exists.

A launch is one fresh server for one cell. Restarts interleave the cells, every second one in reverse order, so that a
drift of the machine falls on all of them alike. What a crash leaves behind is complete: ``samples.jsonl`` grows by a
line per request and ``cells.json`` by a row per launch.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from breakeven import artifacts, machine, profiling, telemetry, workload
from breakeven.config import SweepSettings
from breakeven.errors import UserError, did_you_mean, one_line
from breakeven.launching import Serving, end_leftovers
from breakeven.progress import clock
from breakeven.server import Drafter, LaunchFailure, effective_drafter

Say = Callable[[str], None]
DRAFTER_KEYS = ("algorithm", "model", "steps", "topk", "draft_tokens", "breadth", "depth")
BASELINE = "baseline"


@dataclass(frozen=True)
class Cell:
    """One thing to measure: a drafter with its effective settings, or none."""

    name: str
    drafter: Drafter | None


@dataclass(frozen=True)
class Launch:
    """One fresh server for one cell; ``order`` counts launches over the whole sweep from 0."""

    cell: Cell
    restart: int
    order: int

    @property
    def key(self) -> str:
        return f"{self.cell.name}.restart{self.restart}"


@dataclass(frozen=True)
class Prompts:
    """What a server is sent: prompts of their own for the warm-up and the trace, and the measured ones, each once."""

    warm_up: list[workload.Prompt]
    measured: list[workload.Prompt]
    traced: workload.Prompt

    @classmethod
    def chosen(cls, settings: SweepSettings) -> Prompts:
        """The same prompts for every cell and restart. Raises UserError for a bad file or an unknown kind."""
        shipped = settings.prompts == "shipped"
        prompts = workload.load_prompts(None if shipped else artifacts.project_root() / settings.prompts)
        measured = workload.choose(prompts, settings.prompts_per_kind, kinds=settings.kinds or None)
        *warm_up, traced = workload.warm_up(prompts)
        return cls(warm_up or [traced], measured, traced)


def plan_cells(drafters: Iterable[dict[str, Any]], *, aa_pair: bool = False) -> list[Cell]:
    """The baseline and every combination of the drafters' lists, those that SGLang makes equal merged into one.

    Raises UserError for an unknown key, a missing algorithm or settings that no server can run.
    """
    cells = [Cell(BASELINE, None)]
    for entry in drafters:
        unknown = [key for key in entry if key not in DRAFTER_KEYS]
        if unknown:
            raise UserError(f"drafters: no setting {unknown[0]!r}{did_you_mean(unknown[0], DRAFTER_KEYS)}")
        if "algorithm" not in entry:
            raise UserError(f"drafters: {entry} names no algorithm; for example algorithm: NGRAM")
        grid = {key: value if isinstance(value, list) else [value] for key, value in entry.items()}
        for values in itertools.product(*grid.values()):
            drafter = effective_drafter(Drafter(**dict(zip(grid, values, strict=True))))
            cell = Cell(drafter.label(), drafter)
            if cell not in cells:
                _refuse_namesake(cell, cells)
                cells.append(cell)
    if aa_pair:
        cells.append(Cell(f"{BASELINE}-again", None))
    return cells


def _refuse_namesake(cell: Cell, cells: list[Cell]) -> None:
    if any(other.name == cell.name for other in cells):
        raise UserError(f"drafters: two cells would be called {cell.name!r}; measure the second model in another run")


COLUMNS = {
    "order": "order",
    "cell": "cell",
    "restart": "restart",
    "status": "status",
    "ready_s": "ready after, s",
    "requests": "requests",
    "tok_s": "tok/s",
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


def plan_launches(cells: list[Cell], restarts: int) -> list[Launch]:
    """Every cell once per restart, each second restart in reverse order (A B C, C B A)."""
    rounds = [(restart, cells if restart % 2 == 0 else cells[::-1]) for restart in range(restarts)]
    ordered = [(restart, cell) for restart, round_ in rounds for cell in round_]
    return [Launch(cell, restart, order) for order, (restart, cell) in enumerate(ordered)]


def run_sweep(settings: SweepSettings, run_dir: Path, say: Say = print) -> dict[str, Any]:
    """Measure every launch that the run folder does not hold yet; returns what ``cells.json`` holds.

    A launch that fails is a row with its failure class; the sweep goes on. Raises UserError when the folder holds
    another sweep's results (with ``resume``), and RuntimeError when no launch of the baseline succeeded.
    """
    cells = plan_cells(settings.drafters, aa_pair=settings.aa_pair)
    launches = plan_launches(cells, settings.restarts)
    prompts = Prompts.chosen(settings)
    serving = Serving.prepare(settings, run_dir, say)
    end_leftovers(run_dir, say)
    store = _Store(run_dir, _plan(settings), resume=settings.resume)
    for done, each in enumerate(launches):
        if store.holds(each):
            say(f"{each.key}: kept from before")
            continue
        say(f"launch {done + 1} of {len(launches)}: {each.key}{store.time_left(len(launches) - done)}")
        store.add(measure(each, serving, settings, prompts, store, say))
    if not any(row["cell"] == BASELINE and row["status"] == "ok" for row in store.rows):
        failure = next(row["failure"] for row in store.rows if row["cell"] == BASELINE)
        raise RuntimeError(f"the baseline could not be measured: {failure['class']}: {failure['text']}")
    return store.content()


def measure(
    each: Launch, serving: Serving, settings: SweepSettings, prompts: Prompts, store: _Store, say: Say
) -> dict[str, Any]:
    """One launch from start to stop: the row of ``cells.json``, whatever happens on the way."""
    attempt = store.new_attempt(each)
    row: dict[str, Any] = {"cell": each.cell.name, "restart": each.restart, "order": each.order, "launch": attempt}
    row |= {"variant": "default", "concurrency": settings.concurrency, **_drafter_columns(each.cell.drafter)}
    began = time.monotonic()
    try:
        with serving.launch(attempt, each.cell.drafter, say) as server:
            row |= {"startup_s": server.startup_s, "ready_s": sum(server.startup_s.values())}
            row["effective"] = telemetry.server_settings(server.info())
            try:
                row |= _measure_on(server.base_url, each, attempt, serving, settings, prompts, store, say)
            except workload.ServerGone as error:
                raise LaunchFailure.of(server) from error
        row |= {"status": "ok", "failure": None}
    except LaunchFailure as error:
        row |= {"status": "failed", "failure": error.failure.as_dict()}
        say(f"{attempt} failed: {one_line(error)}")
    return row | {"seconds": round(time.monotonic() - began, 1), "log": serving.log_path(attempt).name}


def _measure_on(
    base_url: str,
    each: Launch,
    attempt: str,
    serving: Serving,
    settings: SweepSettings,
    prompts: Prompts,
    store: _Store,
    say: Say,
) -> dict[str, Any]:
    """Warm up, measure, compare texts, trace: in this order, so that nothing disturbs what is measured."""
    fixed = {"cell": each.cell.name, "restart": each.restart, "launch": attempt, "concurrency": settings.concurrency}
    samples: list[dict[str, Any]] = []

    def keep(phase: str, sample: dict[str, Any]) -> None:
        store.add_sample({**fixed, "phase": phase, **sample})
        if phase == "measure":
            samples.append(sample)
            say(f"{attempt}: {len(samples)} of {len(prompts.measured)} prompts ({sample['kind']})")

    with workload.Client(base_url, serving.encode, settings.request_timeout_s) as client:
        for phase, batch in (("warm-up", prompts.warm_up), ("measure", prompts.measured)):
            workload.run_requests(
                client,
                batch,
                baseline=each.cell.drafter is None,
                on_sample=partial(keep, phase),
                concurrency=settings.concurrency,
                temperature=settings.temperature,
            )
        row = summary(samples)
        if each.cell.drafter is not None and settings.temperature == 0:
            row |= _canaries(client, samples, store)
        traces = serving.run_dir / "traces" / attempt
        return row | profiling.cycle_shares(base_url, client, prompts.traced, settings.profile_steps, traces)


def summary(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Figures of one launch from its measured requests, as ratios of sums.

    The first token of a request comes from its prefill and counts nowhere; answers that loop are counted and left out.
    Keys: requests, errors, degenerate, tok_s, and accept_length with cycle_ms, or step_ms without speculation.
    """
    answered = [each for each in samples if not each.get("error")]
    good = [each for each in answered if not each["degenerate"] and each["decode_s"] and each["completion_tokens"] > 1]
    counts = {"requests": len(samples), "errors": len(samples) - len(answered)}
    counts["degenerate"] = sum(each["degenerate"] for each in answered)
    if not good:
        return counts
    tokens = sum(each["completion_tokens"] - 1 for each in good)
    verifies = sum(each["verify_ct"] or 0 for each in good)
    decode_ms = 1000 * sum(each["decode_s"] for each in good)
    figures: dict[str, Any] = {"tok_s": 1000 * tokens / decode_ms}
    if verifies:
        figures |= {"accept_length": tokens / verifies, "cycle_ms": decode_ms / verifies}
    else:
        figures |= {"step_ms": decode_ms / tokens}
    return counts | figures


def _canaries(client: workload.Client, samples: list[dict[str, Any]], store: _Store) -> dict[str, Any]:
    """Compare greedy outputs with those of the first complete baseline; measure the gap where they part.

    ``gap_nats`` is the difference of the two highest log-probabilities at the first differing token.
    """
    reference = store.outputs(BASELINE)
    parted = []
    compared = 0
    for sample in samples:
        expected = reference.get(sample["prompt_id"])
        if expected is None or sample.get("error"):
            continue
        compared += 1
        place = workload.first_difference(expected, sample["output_ids"])
        if place is not None:
            parted.append(
                {"prompt_id": sample["prompt_id"], "token": place, "gap_nats": _gap(client, sample, expected[:place])}
            )
    return {"canary": {"compared": compared, "parted": parted}}


def _gap(client: workload.Client, sample: dict[str, Any], prefix: list[int]) -> float | None:
    """Nats between the two likeliest tokens where the texts part; None where the server can't say."""
    try:
        return client.top_two_gap(sample["prompt_id"], prefix)
    except workload.RequestFailed:
        return None


def _drafter_columns(drafter: Drafter | None) -> dict[str, Any]:
    if drafter is None:
        return {"drafter": "none", "steps": None, "topk": None, "draft_tokens": None}
    return {
        "drafter": drafter.algorithm,
        "steps": drafter.steps,
        "topk": drafter.topk,
        "draft_tokens": drafter.draft_tokens,
    }


def _plan(settings: SweepSettings) -> dict[str, Any]:
    """What has to be equal for two sweeps' results to stand in one table; restarts may be added later."""
    return settings.model_dump(exclude={"run_dir", "resume", "restarts", "ready_timeout_s", "request_timeout_s"})


class _Store:
    """The sweep's files: samples.jsonl and cells.json."""

    def __init__(self, run_dir: Path, plan: dict[str, Any], *, resume: bool) -> None:
        self._cells = run_dir / "cells.json"
        self._samples = run_dir / "samples.jsonl"
        self._plan = json.loads(json.dumps(plan))
        self._machine = machine.fingerprint(machine.describe(artifacts.project_root()))
        self.rows: list[dict[str, Any]] = []
        if resume and self._cells.exists():
            self.rows = self._kept_rows()
        else:
            self._set_aside()
            artifacts.write_json(self._cells, self.content())  # the plan is on disk before the first launch

    def holds(self, each: Launch) -> bool:
        unit = (each.cell.name, each.restart)
        return any((row["cell"], row["restart"]) == unit and row["status"] == "ok" for row in self.rows)

    def new_attempt(self, each: Launch) -> str:
        """A name for this launch that no earlier attempt has: what a crash left behind is never mixed in."""
        known = {row["launch"] for row in (*self.rows, *artifacts.read_jsonl(self._samples))}
        names = (f"{each.key}.{number}" for number in itertools.count(1))
        return next(name for name in names if name not in known)

    def add(self, row: dict[str, Any]) -> None:
        unit = (row["cell"], row["restart"])
        self.rows = [old for old in self.rows if (old["cell"], old["restart"]) != unit] + [row]
        artifacts.write_json(self._cells, self.content())

    def add_sample(self, sample: dict[str, Any]) -> None:
        artifacts.append_jsonl(self._samples, sample)

    def outputs(self, cell: str) -> dict[str, list[int]]:
        """Greedy outputs of a cell's first complete launch, by prompt."""
        first = next((row["launch"] for row in self.rows if row["cell"] == cell and row["status"] == "ok"), None)
        rows = artifacts.read_jsonl(self._samples)
        return {
            row["prompt_id"]: row["output_ids"]
            for row in rows
            if row["launch"] == first and row["phase"] == "measure" and not row.get("error")
        }

    def time_left(self, launches: int) -> str:
        """About how long the rest will take, from the launches so far."""
        spent = [row["seconds"] for row in self.rows]
        return f", about {clock(launches * sum(spent) / len(spent))} left" if spent else ""

    def content(self) -> dict[str, Any]:
        return {"plan": self._plan, "machine": self._machine, "cells": sorted(self.rows, key=lambda row: row["order"])}

    def _kept_rows(self) -> list[dict[str, Any]]:
        before = artifacts.read_json(self._cells)
        if before["plan"] != self._plan:
            changed = sorted(key for key in self._plan if self._plan[key] != before["plan"].get(key))
            raise UserError(f"{self._cells} holds a sweep with another {', '.join(changed)}; use a new run_dir")
        if before["machine"] != json.loads(json.dumps(self._machine)):
            raise UserError(f"{self._cells} was measured on another machine or with other packages; use a new run_dir")
        return before["cells"]

    def _set_aside(self) -> None:
        """Earlier results of this folder are renamed, never overwritten."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        for path in (self._cells, self._samples):
            if path.exists():
                path.rename(path.with_name(f"{path.stem}.before-{stamp}{path.suffix}"))


def canary_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per launch whose texts were compared with the baseline's."""
    return [
        {
            "launch": row["launch"],
            "compared": row["canary"]["compared"],
            "parted": len(row["canary"]["parted"]),
            "gap_nats": max((each["gap_nats"] or 0.0 for each in row["canary"]["parted"]), default=None),
        }
        for row in result["cells"]
        if row.get("canary")
    ]


def findings(result: dict[str, Any]) -> list[str]:
    """The findings of notebook 04 in words: rates and their spread over restarts, no verdicts yet."""
    sentences = []
    for name in dict.fromkeys(row["cell"] for row in result["cells"]):
        rates = [row["tok_s"] for row in result["cells"] if row["cell"] == name and row.get("tok_s")]
        failed = sum(row["status"] != "ok" for row in result["cells"] if row["cell"] == name)
        text = f"{name}: " + (", ".join(f"{rate:.1f}" for rate in rates) + " tok/s" if rates else "no figure")
        sentences.append(text + (f"; {failed} launches failed" if failed else ""))
    return [*sentences, "Whether a difference is more than noise, notebook 5 decides."]
