"""Where a cycle's milliseconds go: SGLang's profiler annotations in a Kineto (Chrome) trace, on GPU and CPU.

SGLang marks the parts of a cycle on the host: ``step[TARGET_VERIFY bs=N]``, ``draft``, ``draft_extend`` and, without
speculation, ``step[DECODE bs=N]``. A GPU runs them later, and a CUDA graph runs hundreds of kernels for one launch, so
a part's time on the GPU is not its annotation's: each kernel is traced back by its correlation id to the call that
launched it (a graph's kernels all carry the id of the graph's launch), and that call lies inside the annotation.

A profiler slows the host down, most of all with Python stacks: a cycle of a trace is longer than one of the log. The
parts of the GPU's work stay comparable, and so does what one call launched, from its first kernel to the end of its
last (``launched_ms``). What lies between them (``other_ms``) does not, until it was held against the cycle from rate
and accept length.
"""

from __future__ import annotations

import bisect
import itertools
import re
import statistics
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ijson

from breakeven.errors import UserError, one_line
from breakeven.telemetry.kernel_names import is_fused, work_kind
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


@dataclass(frozen=True)
class _Part:
    kind: str  # verify | draft | draft_extend | decode | prefill
    batch: int | None
    start_us: float
    end_us: float
    work: list[Span]


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


def _kind(name: str) -> tuple[str, int | None] | None:
    """Which part of a cycle an annotation names, and its batch size."""
    if name in ("draft", "draft_extend"):
        return name, None
    found = _STEP.match(name)
    kind = _STEP_KINDS.get(found[1]) if found else None
    return (kind, int(found[2]) if found[2] else None) if found and kind else None


def _outermost(events: list[dict[str, Any]]) -> tuple[list[Span], int | None]:
    """Parts that lie in no other part (a drafter's own steps lie in ``draft``), on the busiest scheduler thread."""
    parts = [event for event in events if _kind(event["name"])]
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


def _parts(trace: Trace) -> list[_Part]:
    """The parts as the device ran them, by start: on a GPU from the first kernel of each to the end of its last."""
    launched: dict[int, list[Span]] = defaultdict(list)
    for span, index in trace.work:
        if index is not None:
            launched[index].append(span)
    parts = []
    speculative = any(part.name.startswith(("step[TARGET_VERIFY", "step[VERIFY")) for part in trace.annotations)
    for index, annotation in enumerate(trace.annotations):
        kind, batch = _kind(annotation.name) or ("prefill", None)
        if kind == "decode" and speculative:
            kind = "draft"  # before 0.5.23 a drafter's own step has the name of a decode step
        work = launched.get(index, [])
        if trace.device == "cpu":
            parts.append(_Part(kind, batch, annotation.start_us, annotation.end_us, work))
        elif work:
            parts.append(_Part(kind, batch, work[0].start_us, max(span.end_us for span in work), work))
    return sorted(parts, key=lambda part: part.start_us)


def cycle_parts(trace: Trace) -> dict[str, Any]:
    """Median milliseconds of the parts of a cycle, from one target forward to the next, and their spread.

    Without speculation the cycle is a decode step and ``verify_ms`` is its target forward. Cycles with a prefill in
    between are left out, and so is the last forward, whose end is not in the trace. ``other_ms`` is what the medians
    of the parts leave of the median cycle, so the parts add up to it. What is in it was measured as well:
    ``outside_ms``, the device's work beside all parts, and ``host_gap_ms``, when nothing ran; ``sum_residual`` is what
    all five leave of the cycle, as a share. ``idle_ms`` is how long the device did nothing, within parts or between;
    ``launched_ms`` how long anything was under way that the host had launched, gaps within a CUDA graph included (and
    among several GPUs the wait for a late one).
    ``work_ms`` splits the device's busy time of each part by kind. Raises UserError when the trace holds no whole
    cycle.
    """
    parts = _parts(trace)
    anchor = "verify" if any(part.kind == "verify" for part in parts) else "decode"
    cycles = []
    for first, following in _between(parts, anchor):
        inside = [part for part in parts if first.start_us <= part.start_us < following.start_us]
        if not any(part.kind == "prefill" for part in inside):
            cycles.append(_cycle(trace, inside, first.start_us, following.start_us))
    if not cycles:
        raise UserError("the trace holds no whole cycle; profile at least three decode steps without a new request")
    middle = {name: statistics.median(cycle[name] for cycle in cycles) for name in cycles[0]}
    named = ("draft_ms", "verify_ms", "draft_extend_ms")
    in_parts_ms = sum(middle[name] for name in named)
    work = _work_by_kind([part for part in parts if part.kind != "prefill"])
    return {
        "device": trace.device,
        "speculative": anchor == "verify",
        "batches": sorted({part.batch for part in parts if part.kind == anchor and part.batch is not None}),
        "n": len(cycles),
        **middle,
        "other_ms": middle["cycle_ms"] - in_parts_ms,
        "sum_residual": 1.0 - (in_parts_ms + middle["outside_ms"] + middle["host_gap_ms"]) / middle["cycle_ms"],
        "spread": {name: [min(c[name] for c in cycles), max(c[name] for c in cycles)] for name in cycles[0]},
        "work_ms": work,
    }


def _between(parts: list[_Part], anchor: str) -> Iterable[tuple[_Part, _Part]]:
    return itertools.pairwise(part for part in parts if part.kind == anchor)


def _cycle(trace: Trace, inside: list[_Part], start_us: float, end_us: float) -> dict[str, float]:
    """One cycle's times in ms. Parts that overlap on the device count once, for the earlier of them."""
    totals = dict.fromkeys(("draft_ms", "verify_ms", "draft_extend_ms"), 0.0)
    reached_us = start_us
    spans = []
    for part in inside:
        begin, end = max(part.start_us, reached_us), min(max(part.end_us, reached_us), end_us)
        name = "verify_ms" if part.kind in ("verify", "decode") else f"{part.kind}_ms"
        totals[name] += (end - begin) / 1000
        reached_us = end
        spans.append((begin, end))
    first = bisect.bisect_left(trace.work, start_us, key=lambda item: item[0].start_us)
    last = bisect.bisect_left(trace.work, end_us, key=lambda item: item[0].start_us)
    busy = [(span.start_us, min(span.end_us, end_us)) for span, _ in trace.work[first:last]]
    cycle_us = end_us - start_us
    launched = [
        (max(span.start_us, start_us), min(span.end_us, end_us))
        for span in trace.launches
        if span.end_us > start_us and span.start_us < end_us
    ]
    return {
        "cycle_ms": cycle_us / 1000,
        **totals,
        "launched_ms": _covered(launched) / 1000,
        "idle_ms": (cycle_us - _covered(busy)) / 1000,
        "host_gap_ms": (cycle_us - _covered([*busy, *spans])) / 1000,
        "outside_ms": (_covered([*busy, *spans]) - _covered(spans)) / 1000,
    }


def _covered(spans: list[tuple[float, float]]) -> float:
    """Microseconds that at least one of the spans covers."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _work_by_kind(parts: list[_Part]) -> dict[str, dict[str, float]]:
    """Per part: median milliseconds of device work by kind (allreduce, attention, matmul, rest) and in all."""
    rows: dict[str, list[dict[str, float]]] = defaultdict(list)
    for part in parts:
        split = dict.fromkeys(("allreduce", "attention", "matmul", "rest"), 0.0)
        for span in part.work:
            split[work_kind(span.name)] += (span.end_us - span.start_us) / 1000
        rows[part.kind].append({**split, "all": sum(split.values())})
    return {
        kind: {name: statistics.median(split[name] for split in splits) for name in splits[0]}
        for kind, splits in rows.items()
    }


def host_cycle(trace: Trace) -> dict[str, float]:
    """The mean period of the target's forwards on the host: ``cycle_ms`` over ``n`` cycles without a prefill.

    ``operator_us`` is the median length of an operator that the host ran, a yardstick of its speed: the same server
    runs the same operators, and where they take longer the host itself is slower (0 where none was recorded).

    In a steady state the host starts a cycle as often as the device ends one. A window without the device's side
    stretches this least: recording its kernels pulls those of a CUDA graph apart. The first quarter of the window is
    left out, in which the host still runs ahead. Raises UserError when the trace holds no whole cycle.
    """
    kinds = [(_kind(span.name) or ("prefill", None))[0] for span in trace.annotations]
    anchor = "verify" if "verify" in kinds else "decode"
    places = [place for place, kind in enumerate(kinds) if kind == anchor]
    periods_us = [
        trace.annotations[following].start_us - trace.annotations[first].start_us
        for first, following in itertools.pairwise(places)
        if "prefill" not in kinds[first:following]
    ]
    if not periods_us:
        raise UserError("the trace holds no whole cycle; profile at least three decode steps without a new request")
    steady_us = periods_us[len(periods_us) // 4 :]
    operators_us = [span.end_us - span.start_us for span, _ in trace.work] if trace.device == "cpu" else []
    operator_us = statistics.median(operators_us) if operators_us else 0.0
    return {"cycle_ms": statistics.mean(steady_us) / 1000, "n": len(steady_us), "operator_us": operator_us}


def against_log(parts: dict[str, Any], cycle_ms: float) -> dict[str, float]:
    """``cycle_parts`` beside a cycle that was measured without a profiler (from rate and accept length, in ms).

    ``stretch`` is how much longer the profiled cycle is. ``work_ms`` is the device's work in a cycle, which profiling
    hardly changes, and ``rest_ms`` what it leaves of the measured cycle: launches, gaps, waiting for the host.
    """
    work_ms = sum(split["all"] for split in parts["work_ms"].values())
    return {
        "cycle_ms": cycle_ms,
        "trace_cycle_ms": parts["cycle_ms"],
        "stretch": parts["cycle_ms"] / cycle_ms,
        "work_ms": work_ms,
        "rest_ms": cycle_ms - work_ms,
    }


def allreduce(trace: Trace) -> dict[str, Any]:
    """All-reduces in one target forward (verify, or decode without speculation): median count and milliseconds.

    ``kernels`` counts them by name over all ``n`` forwards. Raises UserError when there is no target forward.
    """
    parts = _parts(trace)
    kind = "verify" if any(part.kind == "verify" for part in parts) else "decode"
    forwards = [
        [span for span in part.work if work_kind(span.name) == "allreduce"] for part in parts if part.kind == kind
    ]
    if not forwards:
        raise UserError("the trace holds no target forward; profile while requests are decoded")
    return {
        "n": len(forwards),
        "count": statistics.median(len(spans) for spans in forwards),
        "ms": statistics.median(sum(span.end_us - span.start_us for span in spans) / 1000 for spans in forwards),
        "kernels": dict(Counter(span.name for spans in forwards for span in spans)),
    }


def fused_kernels(trace: Trace) -> list[str]:
    """Names of fused all-reduce + norm kernels that ran: the proof that fusion is active."""
    return sorted({span.name for span, _ in trace.work if is_fused(span.name)})
