"""A profiler's Kineto (Chrome) trace: SGLang's annotations on the host, and the work that each of them launched.

SGLang marks the parts of a cycle on the host: ``step[TARGET_VERIFY bs=N]``, ``draft``, ``draft_extend`` and, without
speculation, ``step[DECODE bs=N]``. A GPU runs them later, and a CUDA graph runs hundreds of kernels for one launch, so
a part's time on the GPU is not its annotation's: each kernel is traced back by its correlation id to the call that
launched it (a graph's kernels all carry the id of the graph's launch), and that call lies inside the annotation.
"""

from __future__ import annotations

import bisect
import itertools
import math
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ijson

from breakeven.errors import UserError, one_line
from breakeven.telemetry.normal_form import open_plain_or_gzip

GPU_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
LAUNCHES = frozenset({"cuda_runtime", "cuda_driver"})
READ = GPU_WORK | LAUNCHES | {"user_annotation", "cpu_op"}  # python_function is nine tenths of a trace with stacks

_STEP = re.compile(r"step\[(\w+)(?: bs=(\d+))?")
_STEP_KINDS = {  # 0.5.23 calls them VERIFY and DRAFT
    "TARGET_VERIFY": "verify",
    "VERIFY": "verify",
    "DECODE": "decode",
    "DRAFT": "draft",
    "DRAFT_EXTEND": "draft_extend",
    "DRAFT_EXTEND_V2": "draft_extend",
    "EXTEND": "prefill",
    "MIXED": "prefill",
    "SPLIT_PREFILL": "prefill",
}


@dataclass(frozen=True)
class Span:
    """Something with a start and an end, in microseconds of the trace's clock."""

    name: str
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Trace:
    """What is needed of one rank's trace. ``work`` are kernels and copies, or a CPU's outermost operators."""

    device: str  # gpu | cpu
    annotations: list[Span]  # outermost parts only, on the host, by start
    work: list[tuple[Span, int | None]]  # by start, with the index of the annotation that launched it
    launches: list[Span]  # by start, what one call set going: a kernel, or all of a CUDA graph's; a CPU's operators


def read_trace(path: str | Path) -> Trace:
    """A trace of one rank (``.json`` or ``.json.gz``), streamed: only what ``Trace`` holds stays in memory.

    Raises UserError when the file is missing, is cut off, or holds no annotation of SGLang.
    """
    return trace_of(_events(Path(path), READ), name=str(path))


def _events(path: Path, categories: frozenset[str]) -> list[dict[str, Any]]:
    """A trace's events of some categories, streamed. Raises UserError when it is missing or cut off."""
    try:
        with open_plain_or_gzip(path) as file:
            return [e for e in ijson.items(file, "traceEvents.item", use_float=True) if e.get("cat") in categories]
    except FileNotFoundError:
        raise UserError(f"no trace at {path}; profile a few steps first (start_profile)") from None
    except (OSError, EOFError, zlib.error, ijson.JSONError) as error:
        reason = one_line(error)
        raise UserError(f"the trace {path} can't be read ({reason}); profile again, it may be cut off") from None


def trace_of(events: Iterable[dict[str, Any]], *, name: str = "the trace") -> Trace:
    """A trace from Kineto's events: finds the outermost parts and which of them launched each piece of work."""
    by_category: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and "ts" in event:
            by_category[event["cat"]].append(event)
    annotations, thread = _outermost(by_category["user_annotation"])
    if not annotations:
        raise UserError(
            f"{name} holds no step[...] annotation of SGLang; profile with the scheduler's process included"
        )
    starts = [span.start_us for span in annotations]

    def within(moment_us: float) -> int | None:
        index = bisect.bisect_right(starts, moment_us) - 1
        return index if index >= 0 and moment_us < annotations[index].end_us else None

    gpu = [event for category in sorted(GPU_WORK) for event in by_category[category]]
    if gpu:
        launched_us = {
            event["args"]["correlation"]: event["ts"]
            for category in sorted(LAUNCHES)
            for event in by_category[category]
            if event.get("tid") == thread and "correlation" in event.get("args", {})
        }
        launches = [launched_us.get(event.get("args", {}).get("correlation")) for event in gpu]
        work = [
            (_span(event), None if moment is None else within(moment))
            for event, moment in zip(gpu, launches, strict=True)
        ]
        set_going = _set_going(gpu)
    else:
        operators = _top_operators(event for event in by_category["cpu_op"] if event.get("tid") == thread)
        operators = _waited_for(operators, by_category["user_annotation"])
        work = [(span, within(span.start_us)) for span in operators]
        set_going = operators
    work.sort(key=lambda item: item[0].start_us)
    return Trace("gpu" if gpu else "cpu", annotations, work, set_going)


def _set_going(gpu: list[dict[str, Any]]) -> list[Span]:
    """What each call of the host launched, from its first kernel to the end of its last, by start."""
    by_call: dict[Any, list[Span]] = defaultdict(list)
    for number, event in enumerate(gpu):
        by_call[event.get("args", {}).get("correlation", ("unknown", number))].append(_span(event))
    launches = [
        Span(spans[0].name, min(span.start_us for span in spans), max(span.end_us for span in spans))
        for spans in by_call.values()
    ]
    return sorted(launches, key=lambda span: span.start_us)


def _span(event: dict[str, Any]) -> Span:
    return Span(event["name"], event["ts"], event["ts"] + event.get("dur", 0.0))


def kind_of(name: str) -> tuple[str, int | None] | None:
    """Which part of a cycle an annotation names, and its batch size."""
    if name in ("draft", "draft_extend"):
        return name, None
    found = _STEP.match(name)
    kind = _STEP_KINDS.get(found[1]) if found else None
    return (kind, int(found[2]) if found[2] else None) if found and kind else None


def _outermost(events: list[dict[str, Any]]) -> tuple[list[Span], int | None]:
    """Parts that lie in no other part (a drafter's own steps lie in ``draft``), on the busiest scheduler thread."""
    parts = [event for event in events if kind_of(event["name"])]
    if not parts:
        return [], None
    thread = Counter(event.get("tid") for event in parts).most_common(1)[0][0]
    spans: list[Span] = []
    for event in sorted(parts, key=lambda e: (e["ts"], -e.get("dur", 0.0))):
        if event.get("tid") == thread and (not spans or event["ts"] >= spans[-1].end_us):
            spans.append(_span(event))
    return spans, thread


def _top_operators(events: Iterable[dict[str, Any]]) -> list[Span]:
    """Operators that no other called: their times do not overlap, so they add up."""
    spans: list[Span] = []
    for event in sorted(events, key=lambda e: (e["ts"], -e.get("dur", 0.0))):
        if not spans or event["ts"] >= spans[-1].end_us:
            spans.append(_span(event))
    return spans


def _waited_for(operators: list[Span], annotations: Iterable[dict[str, Any]]) -> list[Span]:
    """All-reduces of PyTorch's process group with the time that the thread then waited: Gloo does the work on a thread
    of its own, which its annotation tells, and the operator only sets it going."""
    done = sorted((_span(e) for e in annotations if e["name"] == "gloo:all_reduce"), key=lambda span: span.start_us)
    starts = [span.start_us for span in done]
    waited = []
    for span, following in itertools.zip_longest(operators, operators[1:]):
        ends_us = following.start_us if following else math.inf
        first = bisect.bisect_left(starts, span.start_us)
        if span.name == "c10d::allreduce_" and first < len(done) and starts[first] < ends_us:
            span = Span(span.name, span.start_us, max(span.end_us, min(done[first].end_us, ends_us)))
        waited.append(span)
    return waited
