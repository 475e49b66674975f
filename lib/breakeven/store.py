"""The files of a sweep: ``samples.jsonl`` grows by a line per request, ``cells.json`` by a launch's rows.

What a crash leaves behind is complete: a launch that was cut off has samples and no row, and its repetition gets
another name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from breakeven import artifacts, machine
from breakeven.design import Launch
from breakeven.errors import UserError
from breakeven.hosts import LOCAL, Host
from breakeven.progress import clock


class Store:
    """What a run folder holds of one sweep; ``plan`` is what has to be equal for results to stand in one table."""

    def __init__(self, run_dir: Path, plan: Mapping[str, Any], *, resume: bool, host: Host = LOCAL) -> None:
        self._cells = run_dir / "cells.json"
        self._samples = run_dir / "samples.jsonl"
        self._plan = json.loads(json.dumps(plan))
        self._machine = json.loads(json.dumps(machine.fingerprint(machine.describe(artifacts.project_root(), host))))
        self.rows: list[dict[str, Any]] = []
        self.decisions: list[dict[str, Any]] = []
        self.predictions: list[dict[str, Any]] = []
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
        """A name for this launch that no earlier attempt has: what a crash left behind is never mixed in."""
        known = {row["launch"] for row in (*self.rows, *artifacts.read_jsonl(self._samples))}
        names = (f"{launch.key}.{number}" for number in itertools.count(1))
        return next(name for name in names if name not in known)

    def add(self, launch: Launch, rows: list[dict[str, Any]]) -> None:
        """Replace what the launch left before, and write."""
        unit = (launch.arm.name, launch.restart)
        self.rows = [old for old in self.rows if (old["arm"], old["restart"]) != unit]
        order = max((row["order"] for row in self.rows), default=-1) + 1
        self.rows += [{**row, "order": order} for row in rows]
        self._write()

    def decide(self, decision: Mapping[str, Any]) -> None:
        """Note why the next launch happens."""
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

    def add_sample(self, sample: Mapping[str, Any]) -> None:
        artifacts.append_jsonl(self._samples, dict(sample))

    def samples(self) -> list[dict[str, Any]]:
        """The measured requests of complete launches."""
        complete = {row["launch"] for row in self.rows if row["status"] == "ok"}
        rows = artifacts.read_jsonl(self._samples)
        return [row for row in rows if row["launch"] in complete and row["phase"] == "measure" and not row.get("error")]

    def outputs(self, cell: str) -> dict[str, list[int]]:
        """Greedy outputs of a cell's first complete launch, by prompt."""
        first = next((row["launch"] for row in self.rows if row["cell"] == cell and row["status"] == "ok"), None)
        mine = [row for row in self.samples() if row["launch"] == first and row["cell"] == cell]
        return {row["prompt_id"]: row["output_ids"] for row in mine}

    @property
    def launches(self) -> int:
        return len({row["launch"] for row in self.rows})

    def time_left(self, launches: int) -> str:
        """About how long so many launches will take, from those so far."""
        spent = [row["seconds"] for row in {row["launch"]: row for row in self.rows}.values()]
        return f", about {clock(launches * sum(spent) / len(spent))} left" if spent else ""

    def content(self) -> dict[str, Any]:
        return {
            "plan": self._plan,
            "machine": self._machine,
            "cells": sorted(self.rows, key=lambda row: row["order"]),
            "search": self.decisions,
            "predictions": self.predictions,
        }

    def _write(self) -> None:
        artifacts.write_json(self._cells, self.content())

    def _keep_what_is_there(self) -> None:
        before = artifacts.read_json(self._cells)
        if before["plan"] != self._plan:
            changed = sorted(key for key in self._plan if self._plan[key] != before["plan"].get(key))
            raise UserError(f"{self._cells} holds a sweep with another {', '.join(changed)}; use a new run_dir")
        if before["machine"] != self._machine:
            raise UserError(f"{self._cells} was measured on another machine or with other packages; use a new run_dir")
        self.rows, self.decisions = before["cells"], before["search"]

    def _set_aside(self) -> None:
        """Earlier results of this folder are renamed, never overwritten."""
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        for path in (self._cells, self._samples):
            if path.exists():
                path.rename(path.with_name(f"{path.stem}.before-{stamp}{path.suffix}"))
