"""The files of a sweep: ``samples.jsonl`` grows by a line per request, ``cells.json`` by a launch's rows.

What a crash leaves behind is complete: a launch that was cut off has samples and no row, and its repetition gets
another name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Set
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from breakeven import artifacts, machine
from breakeven.errors import UserError
from breakeven.hosts import LOCAL, Host
from breakeven.launch.design import Launch
from breakeven.launch.serving import file_name
from breakeven.progress import clock

FILES = (
    *("cells.json", "samples.jsonl", "forecast.json", "launches.csv", "launches.parquet", "requests.parquet"),
    *("units.json", "fastest.sh", "adaptive.json"),
)
"""What notebook 04 leaves in a run folder, but for logs and traces: these carry the name of their launch."""
PARTS: dict[str, type] = {"plan": dict, "machine": dict, "cells": list, "search": list}
"""What of ``cells.json`` a sweep goes on from, and its type."""
ROW_KEYS = frozenset(("arm", "cell", "launch", "order", "restart", "seconds", "status"))


class Store:
    """What a run folder holds of one sweep; ``plan`` is what has to be equal for results to stand in one table.

    With ``resume`` it goes on from what is there; without, earlier results are set aside. Raises UserError for results
    that are no sweep's, another sweep's or another machine's.
    """

    def __init__(self, run_dir: Path, plan: Mapping[str, Any], *, resume: bool, host: Host = LOCAL) -> None:
        self._run_dir = run_dir
        self._cells = run_dir / "cells.json"
        self._samples = run_dir / "samples.jsonl"
        self._plan = json.loads(json.dumps(plan))
        self._machine = json.loads(json.dumps(machine.fingerprint(machine.describe(artifacts.project_root(), host))))
        self.rows: list[dict[str, Any]] = []
        self.decisions: list[dict[str, Any]] = []
        self.predictions: list[dict[str, Any]] = []
        self.time: dict[str, float] = {}
        self._sampled: list[dict[str, Any]] = []
        """What ``samples.jsonl`` holds."""
        if resume and self._cells.exists():
            self._keep_what_is_there()
        else:
            self._set_aside()
            self._write()  # the plan is on disk before the first launch

    def holds(self, launch: Launch) -> bool:
        """Whether the launch was measured under every condition. A failed one may be tried again."""
        rows = [row for row in self.rows if (row["arm"], row["restart"]) == (launch.arm.name, launch.restart)]
        return bool(rows) and all(row["status"] == "ok" for row in rows)

    def new_attempt(self, launch: Launch) -> str:
        """A name for this launch that no earlier attempt has, nor one of a sweep that was set aside: what a crash left
        behind is never mixed in, and no log is overwritten."""
        known = {row["launch"] for row in (*self.rows, *self._sampled)}
        names = (f"{launch.key}.{number}" for number in itertools.count(1))
        logs = self._run_dir / "logs"
        return next(name for name in names if name not in known and not (logs / f"{file_name(name)}.log").exists())

    def add(self, launch: Launch, rows: list[dict[str, Any]]) -> None:
        """Replace what the launch left before, and write."""
        unit = (launch.arm.name, launch.restart)
        self.rows = [old for old in self.rows if (old["arm"], old["restart"]) != unit]
        order = max((row["order"] for row in self.rows), default=-1) + 1
        self.rows += [{**row, "order": order} for row in rows]
        self._write()

    def decide(self, decision: Mapping[str, Any]) -> None:
        """Note why the next launch happens, once: one that a crash cut off is decided again."""
        unit = (decision["cell"], decision["restart"])
        self.decisions = [each for each in self.decisions if (each["cell"], each.get("restart")) != unit]
        self.decisions.append({"after_launches": self.launches, **decision})
        self._write()

    def conclude_for(
        self, baseline: str, dropped: Iterable[Mapping[str, Any]], predictions: Iterable[Mapping[str, Any]]
    ) -> None:
        """Note what the search under a baseline leaves unmeasured as things stand, and what it expects of it."""
        now = {"after_launches": self.launches, "action": "drop", "baseline": baseline}
        self.decisions = [each for each in self.decisions if each.get("baseline") != baseline]
        self.decisions += [{**now, **each} for each in dropped]
        self.predictions = [each for each in self.predictions if each["baseline"] != baseline]
        self.predictions += [{"baseline": baseline, **each} for each in predictions]
        self._write()

    def account(self, whole_s: float, launches: Iterable[str]) -> None:
        """Note where ``whole_s`` seconds went that these launches were made in, one after the other.

        ``own_s`` is what neither a server's start or stop, nor the measurement, nor a failed launch took: the suite's
        own time.
        """
        rows = {row["launch"]: row for row in self.rows if row["launch"] in set(launches)}.values()
        good = [row for row in rows if row["status"] == "ok"]
        columns = {"starting_s": "ready_s", "measuring_s": "measured_s", "stopping_s": "stop_s"}
        spent = {part: sum(row[column] for row in good) for part, column in columns.items()}
        spent["failed_s"] = sum(row["seconds"] for row in rows if row["status"] != "ok")
        parts = {"whole_s": whole_s, **spent, "own_s": whole_s - sum(spent.values())}
        self.time = {name: round(seconds, 1) for name, seconds in parts.items()}
        self._write()

    def add_sample(self, sample: Mapping[str, Any]) -> None:
        artifacts.append_jsonl(self._samples, dict(sample))
        self._sampled.append(dict(sample))

    def samples(self) -> list[dict[str, Any]]:
        """The measured requests of complete launches."""
        complete = {row["launch"] for row in self.rows if row["status"] == "ok"}
        mine = (row for row in self._sampled if row["launch"] in complete)
        return [row for row in mine if row["phase"] == "measure" and not row.get("error")]

    def outputs(self, cell: str) -> dict[str, list[int]]:
        """Greedy outputs of a cell's first complete launch, by prompt."""
        first = next((row["launch"] for row in self.rows if row["cell"] == cell and row["status"] == "ok"), None)
        mine = [row for row in self.samples() if row["launch"] == first and row["cell"] == cell]
        return {row["prompt_id"]: row["output_ids"] for row in mine}

    @property
    def launches(self) -> int:
        return len({row["launch"] for row in self.rows})

    def time_left(self, launches: int, how: str = "about") -> str:
        """How long so many launches will take, from those so far."""
        spent = [row["seconds"] for row in {row["launch"]: row for row in self.rows}.values()]
        return f", {how} {clock(launches * sum(spent) / len(spent))} left" if spent else ""

    def content(self) -> dict[str, Any]:
        return {
            "plan": self._plan,
            "machine": self._machine,
            "cells": sorted(self.rows, key=lambda row: row["order"]),
            "search": self.decisions,
            "predictions": self.predictions,
            "time": self.time,
        }

    def _write(self) -> None:
        artifacts.write_json(self._cells, self.content())

    def _keep_what_is_there(self) -> None:
        before, sampled = artifacts.read_json(self._cells), artifacts.read_jsonl(self._samples)
        if wrong := [name for name, kind in PARTS.items() if not isinstance(before.get(name), kind)]:
            raise UserError(f"{self._cells} lacks {', '.join(wrong)}: no sweep can go on from it; use a new run_dir")
        if not (_holds(before["cells"], ROW_KEYS) and _holds(before["search"], {"cell"})):
            raise UserError(f"{self._cells} holds rows that no sweep wrote; restore it, or use a new run_dir")
        if not _holds(sampled, {"launch", "phase"}):
            raise UserError(f"{self._samples} holds lines that no sweep wrote; restore it, or use a new run_dir")
        if changed := _differing(self._plan, before["plan"]):
            raise UserError(f"{self._cells} holds a sweep with another {changed}; use a new run_dir")
        if changed := _differing(self._machine, before["machine"]):
            raise UserError(
                f"{self._cells} was measured on another machine or with other packages ({changed} differ); use a new "
                "run_dir"
            )
        self.rows, self.decisions, self._sampled = before["cells"], before["search"], sampled

    def _set_aside(self) -> None:
        """Earlier results of this folder are renamed, never overwritten."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S.%f")
        for path in (self._run_dir / name for name in FILES):
            if path.exists():
                path.rename(path.with_name(f"{path.stem}.before-{stamp}{path.suffix}"))


def _holds(rows: Iterable[Any], keys: Set[str]) -> bool:
    """Whether each is an object with these keys."""
    return all(isinstance(row, dict) and row.keys() >= keys for row in rows)


def _differing(now: Mapping[str, Any], then: Mapping[str, Any]) -> str:
    """The keys in which they differ, in words."""
    return ", ".join(sorted(key for key in {*now, *then} if now.get(key) != then.get(key)))
