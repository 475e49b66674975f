"""The ranks of the all-reduce bench: a program that starts one process a rank and measures setting after setting.

``allreduce.py`` starts it, reads its rows as they are written, and starts it anew when a setting takes it down.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from breakeven.collectives.reducers import EPS, Reducer

MOST_ERROR = 0.02
"""Relative error of a right sum: bfloat16 rounds by up to 2^-9 at each addition, and once more in a norm."""
OPERATIONS_PER_REPLAY = 20
"""One launch of a captured graph costs microseconds itself: it is spread over as many all-reduces."""
WARM_UP = 10


# ---------------------------------------------------------------- correct first


def made_input(rank: int, tokens: int, hidden: int) -> torch.Tensor:
    """What a rank brings to the sum: every rank can make every other's, so that each knows the right answer."""
    generator = torch.Generator().manual_seed(7919 * rank + tokens)
    return torch.randn(tokens, hidden, generator=generator).to(torch.bfloat16)


def relative_error(output: torch.Tensor, expected: torch.Tensor) -> float:
    """``|output - expected| / |expected|`` in float64; NaN counts as infinitely wrong."""
    difference = torch.linalg.vector_norm(output.double().cpu() - expected) / torch.linalg.vector_norm(expected)
    return float(torch.nan_to_num(difference, nan=float("inf")))


def checked_error(reducer: Reducer, operation: str, tokens: int, job: Mapping[str, Any], rank: int) -> float:
    """Relative error of one fresh call, computed against a sum in float64."""
    device, hidden = _device(job, rank), job["hidden"]
    expected = torch.stack([made_input(r, tokens, hidden).double() for r in range(job["ranks"])]).sum(dim=0)
    x = made_input(rank, tokens, hidden).to(device)
    if operation == "reduce":
        return relative_error(reducer.reduce(x), expected)
    residual = made_input(job["ranks"], tokens, hidden)
    weight = made_input(job["ranks"] + 1, 1, hidden)[0]
    expected = torch.nn.functional.rms_norm(residual.double() + expected, (hidden,), weight.double(), EPS)
    return relative_error(reducer.reduce_and_norm(x, residual.to(device), weight.to(device)), expected)


# ---------------------------------------------------------------- then fast


class Stretch:
    """Some all-reduces of one payload, captured as a graph on a GPU; ``times_us`` runs it."""

    def __init__(self, reducer: Reducer, operation: str, tokens: int, job: Mapping[str, Any], rank: int) -> None:
        self.device = _device(job, rank)
        self.source = made_input(rank, tokens, job["hidden"]).to(self.device)
        self.x, self.residual = self.source.clone(), self.source.clone()
        self.weight = torch.ones(job["hidden"], dtype=torch.bfloat16, device=self.device)
        self.step: Callable[[], object] = (
            (lambda: reducer.reduce(self.x))
            if operation == "reduce"
            else (lambda: reducer.reduce_and_norm(self.x, self.residual, self.weight))
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        self.operations = OPERATIONS_PER_REPLAY if self.device.type == "cuda" else 1
        if self.device.type == "cuda":
            self._capture(reducer)

    def _capture(self, reducer: Reducer) -> None:
        self.step()  # makes connections and workspaces, which a capture must not
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with (
            reducer.capture(),
            torch.cuda.graph(graph, capture_error_mode="thread_local"),
        ):  # NCCL has threads of its own
            for _ in range(self.operations):
                self.step()
        self.graph = graph

    def times_us(self, iterations: int) -> list[float]:
        """Microseconds per operation of each iteration, on this rank."""
        return self._on_gpu(iterations) if self.graph else self._on_cpu(iterations)

    def _on_gpu(self, iterations: int) -> list[float]:
        assert self.graph is not None
        marks = []
        for _ in range(WARM_UP + iterations):
            self.x.copy_(self.source)  # repeated in-place sums would overflow
            self.residual.copy_(self.source)
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()
            self.graph.replay()
            last.record()
            marks.append((first, last))
        torch.cuda.synchronize()
        return [1000 * first.elapsed_time(last) / self.operations for first, last in marks[WARM_UP:]]

    def _on_cpu(self, iterations: int) -> list[float]:
        times = []
        for _ in range(WARM_UP + iterations):
            self.x.copy_(self.source)
            dist.barrier()
            began = time.perf_counter()
            self.step()
            times.append(1e6 * (time.perf_counter() - began))
        return times[WARM_UP:]


def measure(
    setting: Mapping[str, Any], reference: Reducer, reducer: Reducer, job: Mapping[str, Any], rank: int
) -> list[dict[str, Any]]:
    """Rows of one setting, A-B-A against the reference: per operation and payload, or the reason why there is none.

    A capture that fails on any rank fails the row; what takes the process down is seen by whoever started it.
    """
    rows = []
    for operation in reducer.operations:
        for payload in job["payloads"]:
            row: dict[str, Any] = {"setting": setting["name"], "operation": operation, **payload}
            tokens = payload["batch"] * payload["width"]
            try:
                with _everywhere():
                    error = checked_error(reducer, operation, tokens, job, rank)
                row["error"] = max(_from_all(error))
                if row["error"] > MOST_ERROR:
                    raise _Refused(f"wrong result: relative error {row['error']:.2g}, at most {MOST_ERROR} is rounding")
                with _everywhere():
                    pair = [Stretch(each, operation, tokens, job, rank) for each in (reference, reducer)]
            except _Refused as refused:
                rows.append({**row, "status": "failed", "reason": str(refused)})
                continue
            a, b = pair
            blocks = [_max_over_ranks(each.times_us(job["iterations"])) for each in (a, b, a)]
            rows.append({**row, "status": "ok", "reason": None, "graph": b.graph is not None, "times_us": blocks})
    return rows


class _Refused(Exception):  # noqa: N818
    """A setting can't be measured, and every rank knows it."""


@contextmanager
def _everywhere() -> Any:
    """What is inside has to succeed on every rank; where it does not on one, all raise _Refused with its reason."""
    reason = None
    try:
        yield
    except Exception as error:  # any failure of a backend under test is a finding, not ours
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    if found := [each for each in _from_all(reason) if each]:
        raise _Refused(found[0])


def _from_all(value: Any) -> list[Any]:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _max_over_ranks(times_us: list[float]) -> list[float]:
    """Per iteration the slowest rank: an all-reduce is over when the last rank has the sum."""
    return [max(of_ranks) for of_ranks in zip(*_from_all(times_us), strict=True)]


def _device(job: Mapping[str, Any], rank: int) -> torch.device:
    return torch.device(f"cuda:{rank}" if job["device"] == "cuda" else "cpu")


def _made(setting: Mapping[str, Any], job: Mapping[str, Any], rank: int) -> Reducer:
    module, _, name = setting["reducer"].partition(":")
    return getattr(importlib.import_module(module), name)(job, rank)


def run_rank(rank: int, job: dict[str, Any]) -> None:
    """One rank, from start to end; rank 0 writes the rows."""
    if job["device"] == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    # A file as the meeting point: no port is opened. Default group: gloo, for what the ranks tell each other.
    dist.init_process_group("gloo", init_method=f"file://{job['meeting']}", rank=rank, world_size=job["ranks"])
    rows = Path(job["rows"])

    def write(row: dict[str, Any]) -> None:
        if rank == 0:
            with rows.open("a") as file:
                file.write(json.dumps(row) + "\n")

    reference = _made(job["reference"], job, rank)
    for setting in job["settings"]:
        write({"begin": setting["name"]})
        try:
            with _everywhere():
                reducer = reference if setting == job["reference"] else _made(setting, job, rank)
            found = measure(setting, reference, reducer, job, rank)
        except _Refused as refused:
            found = [{"setting": setting["name"], "status": "failed", "reason": str(refused)}]
        for row in found:
            write(row)
        write({"end": setting["name"]})
    # NCCL waits for the graphs that captured it before it lets go of a communicator (from 2.26 on, without end). A
    # Stretch is part of a cycle of references, so that only the collector frees its graph.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks and wait for them; one that dies ends the others."""
    job = json.loads(Path(sys.argv[1]).read_text())
    # Forked, not spawned: importing torch once is enough, and nothing here has touched a GPU before the fork.
    torch.multiprocessing.start_processes(run_rank, args=(job,), nprocs=job["ranks"], start_method="fork")


if __name__ == "__main__":
    main()
