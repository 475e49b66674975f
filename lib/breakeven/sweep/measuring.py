"""One launch of a sweep from start to stop: warm up and measure every condition, compare texts, on the first baseline
measure the target's forward by its rows, trace.

In this order, so that nothing disturbs what is measured. Whatever happens on the way ends in rows of ``cells.json``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import httpx

from breakeven import telemetry, workload
from breakeven.config import SweepSettings
from breakeven.errors import UserError, one_line
from breakeven.launch.design import Arm, Condition, Launch
from breakeven.launch.serving import Serving, file_name
from breakeven.server import LaunchFailure, Server
from breakeven.sweep import forwards
from breakeven.sweep.load import Batch, Workload
from breakeven.workload import profiling
from breakeven.workload.untraced import UNMEASURED, Measured, cycles_of

Say = Callable[[str], None]
PINS = ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN")


MOST_ATTEMPTS = 3
"""Connections or workers that one launch may lose before the sweep ends."""


def lost_connection(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Why these rows tell nothing of their launch: the connection to its host dropped. None where it did not."""
    failures = [row["failure"] for row in rows if row["failure"]]
    return next((each["text"] for each in failures if each["class"] == "connection-lost"), None)


class Ledger(Protocol):
    """What a measurement needs of the place where results are kept; `store.Store` is one."""

    rows: list[dict[str, Any]]

    def new_attempt(self, launch: Launch) -> str: ...

    def outputs(self, cell: str) -> dict[str, list[int]]: ...

    def add_sample(self, sample: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Measurement:
    """What all launches of a sweep share."""

    settings: SweepSettings
    serving: Serving
    load: Workload
    store: Ledger
    say: Say

    def run(self, launch: Launch) -> list[dict[str, Any]]:
        """The rows of one launch, one per condition; of one that failed the rows say so."""
        attempt = self.store.new_attempt(launch)
        fixed = {"restart": launch.restart, "launch": attempt, **arm_columns(launch.arm)}
        pinned = pinned_length(self.serving.whole_environment(launch.arm))
        if launch.arm.drafter is not None and pinned is not None:
            fixed["accept_length_pinned"] = pinned
        rows = {batch.condition: cell_columns(launch.arm, batch.condition) | fixed for batch in self.load.batches}
        began = time.monotonic()
        shared: dict[str, Any] = {"log": self.serving.log_path(attempt).name}
        try:
            with self.serving.launch(attempt, launch.arm, self.say) as server:
                ready = time.monotonic()
                shared |= {"startup_s": server.startup_s, "ready_s": sum(server.startup_s.values())}
                shared |= {"command": server.command, "environment": self.serving.own_variables(launch.arm)}
                shared |= {"sglang_version": server.sglang_version}
                try:
                    shared["effective"] = telemetry.server_settings(server.info())
                    self._measure(server, launch.arm, rows, shared["effective"])
                except (workload.ServerGone, httpx.HTTPError, ConnectionError) as error:
                    raise LaunchFailure.of(server) from error
                shared["measured_s"] = round(time.monotonic() - ready, 1)
            shared |= {"stop_s": server.stop_seconds, "status": "ok", "failure": None}
        except LaunchFailure as error:
            shared |= {"status": "failed", "failure": error.failure.as_dict()}
            self.say(f"{attempt} failed: {one_line(error)}")
        shared["seconds"] = round(time.monotonic() - began, 1)
        return [row | shared for row in rows.values()]

    def _measure(
        self, server: Server, arm: Arm, rows: dict[Condition, dict[str, Any]], effective: Mapping[str, Any]
    ) -> None:
        """Fill the rows, one per condition."""
        alone: dict[str, Any] | None = None
        measured = UNMEASURED
        with workload.Client(server.base_url, self.serving.encode, self.settings.request_timeout_s) as client:
            for batch in self.load.batches:
                row = rows[batch.condition]
                self._send(client, arm, replace(batch, prompts=batch.warm_up, company=[]), row, "warm-up")
                samples = self._send(client, arm, batch, row, "measure")
                row |= summary(samples, batch.condition.concurrency)
                reference = reference_cell(arm, self.store, batch.condition)
                if reference and not batch.condition.temperature and "accept_length_pinned" not in row:
                    row |= {"canary": canaries(client, samples, self.store.outputs(reference))}
                if batch.condition.concurrency == 1 and alone is None:
                    alone, measured = row, _told(samples, row)
            if alone is not None:
                if arm.name == arm.baseline and not alone["restart"]:  # before a recorder slows the host
                    prompts = [each for batch in self.load.batches for each in batch.prompts]
                    alone["forward_ms"] = forwards.of_target(effective, self.settings, client, prompts, self.say)
                folder = self.serving.run_dir / "traces" / file_name(alone["launch"])
                alone |= profiling.cycle_shares(
                    server.base_url,
                    client,
                    self.load.traced,
                    self.settings.profile_steps,
                    folder,
                    self.serving.host,
                    measured=measured,
                    context_length=self.settings.context_length,
                )

    def _send(
        self, client: workload.Client, arm: Arm, batch: Batch, row: dict[str, Any], phase: str
    ) -> list[dict[str, Any]]:
        samples: list[dict[str, Any]] = []
        marks = {key: row[key] for key in SAMPLE_KEYS if key in row}

        def keep(sample: dict[str, Any]) -> None:
            if arm.drafter is None or ("accept_length_pinned" in row and arm.drafter.model is not None):
                sample["degenerate"] = False  # a loop is no advantage to who does not predict it
            self.store.add_sample({**marks, "phase": phase, **sample})
            samples.append(sample)
            if phase == "measure":
                self.say(f"{row['launch']}{batch.condition.suffix}: {len(samples)} of {len(batch.prompts)} prompts")

        workload.run_requests(
            client,
            batch.prompts,
            baseline=arm.drafter is None,
            on_sample=keep,
            concurrency=batch.condition.concurrency,
            temperature=batch.condition.temperature,
            company=batch.company,
        )
        return samples


SAMPLE_KEYS = (
    *("cell", "restart", "launch", "variant", "concurrency", "temperature", "context_tokens"),
    "accept_length_pinned",
)


def cell_columns(arm: Arm, condition: Condition) -> dict[str, Any]:
    """What a row says about its cell; ``baseline`` is the cell that it is compared with."""
    return {
        "cell": arm.name + condition.suffix,
        "arm": arm.name,
        "baseline": arm.baseline + condition.suffix,
        "condition": condition.suffix,
        "concurrency": condition.concurrency,
        "temperature": condition.temperature,
        "context_tokens": condition.context_tokens,
    }


def arm_columns(arm: Arm) -> dict[str, Any]:
    """What a row says about its server."""
    drafter = arm.drafter
    return {
        "variant": arm.variant.name,
        "drafter": drafter.algorithm if drafter else "none",
        "steps": drafter.steps if drafter else None,
        "topk": drafter.topk if drafter else None,
        "draft_tokens": drafter.draft_tokens if drafter else None,
    }


def pinned_length(environment: Mapping[str, str]) -> float | None:
    """The accept length that SGLang is told to simulate, None where it is the drafter's own."""
    for name in PINS:
        try:
            pinned = float(environment.get(name, "-1"))
        except ValueError:
            raise UserError(f"{name} is {environment[name]!r}; give a number such as 2.0, or -1 for none") from None
        if pinned > 0:
            return pinned
    return None


def summary(samples: Sequence[dict[str, Any]], concurrency: int = 1) -> dict[str, Any]:
    """Figures of one launch from its measured requests, as ratios of sums.

    The first token of a request comes from its prefill and counts nowhere; answers that loop are counted and left out.
    Keys: requests, errors, degenerate, tok_s of a stream, server_tok_s of all streams, and accept_length with
    cycle_ms, or step_ms without speculation.
    """
    answered = [each for each in samples if not each.get("error")]
    good = _usable(samples)
    counts = {"requests": len(samples), "errors": len(samples) - len(answered)}
    counts["degenerate"] = sum(each["degenerate"] for each in answered)
    if not good:
        return counts
    tokens = sum(each["completion_tokens"] - 1 for each in good)
    verifies = sum(each["verify_ct"] or 0 for each in good)
    decode_ms = 1000 * sum(each["decode_s"] for each in good)
    figures: dict[str, Any] = {"tok_s": 1000 * tokens / decode_ms}
    figures["server_tok_s"] = concurrency * figures["tok_s"]
    if verifies:
        figures |= {"accept_length": tokens / verifies, "cycle_ms": decode_ms / verifies}
    else:
        figures |= {"step_ms": decode_ms / tokens}
    return counts | figures


def _usable(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    answered = [each for each in samples if not each.get("error")]
    return [each for each in answered if not each["degenerate"] and each["decode_s"] and each["completion_tokens"] > 1]


def _told(samples: Sequence[dict[str, Any]], row: Mapping[str, Any]) -> Measured:
    """The cycle of a condition's requests, and the mean text before one."""
    good = _usable(samples)
    if not good:
        return UNMEASURED
    texts = [each["prompt_tokens"] + each["completion_tokens"] / 2 for each in good]
    cycle_ms = row.get("cycle_ms") or row.get("step_ms")
    return Measured(cycle_ms, statistics.fmean(texts, weights=[cycles_of(each) for each in good]))


def reference_cell(arm: Arm, store: Ledger, condition: Condition) -> str | None:
    """The cell whose greedy texts an arm's have to equal: its variant's baseline, for a baseline the first one's."""
    if arm.drafter is not None:
        return arm.baseline + condition.suffix
    alike = (row for row in store.rows if row["drafter"] == "none" and row["condition"] == condition.suffix)
    first = next((row["cell"] for row in alike), None)
    return None if first == arm.name + condition.suffix else first


def canaries(
    client: workload.Client, samples: Sequence[dict[str, Any]], reference: dict[str, list[int]]
) -> dict[str, Any]:
    """Compare greedy outputs with the reference's, by prompt; measure the gap where they part.

    ``gap_nats`` is the difference of the two highest log-probabilities at the first differing token.
    """
    parted = []
    compared = 0
    for sample in samples:
        expected = reference.get(sample["prompt_id"])
        if expected is None or sample.get("error"):
            continue
        compared += 1
        place = workload.first_difference(expected, sample["output_ids"])
        if place is not None:
            gap = _gap(client, sample, expected[:place])
            parted.append({"prompt_id": sample["prompt_id"], "token": place, "gap_nats": gap})
    return {"compared": compared, "parted": parted}


def _gap(client: workload.Client, sample: dict[str, Any], prefix: list[int]) -> float | None:
    """Nats between the two likeliest tokens where the texts part; None where the server can't say."""
    try:
        return client.top_two_gap(sample["prompt_id"], prefix)
    except workload.RequestFailed:
        return None
