"""Where a cycle's milliseconds go: the parts of a cycle in a profiler's trace (`trace_files`), on GPU and CPU.

A profiler slows the host down, most of all with Python stacks: a cycle of a trace is longer than one of the log. The
parts of the GPU's work stay comparable, and so does what one call launched, from its first kernel to the end of its
last (``launched_ms``). What lies between them (``other_ms``) does not, until it was held against the cycle from rate
and accept length.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from breakeven.errors import UserError
from breakeven.telemetry.kernel_names import is_fused, work_kind
from breakeven.telemetry.trace_files import Span, Trace, kind_of


@dataclass(frozen=True)
class _Part:
    kind: str  # verify | draft | draft_extend | decode | prefill
    batch: int | None
    start_us: float
    end_us: float
    work: list[Span]


def _kinds(trace: Trace) -> list[str]:
    """Of which part each annotation is: verify | draft | draft_extend | decode | prefill."""
    kinds = [(kind_of(annotation.name) or ("prefill", None))[0] for annotation in trace.annotations]
    # before 0.5.23 a drafter's own step has the name of a decode step
    return [kind if kind != "decode" or "verify" not in kinds else "draft" for kind in kinds]


def _parts(trace: Trace) -> list[_Part]:
    """The parts as the device ran them, by start: on a GPU from the first kernel of each to the end of its last."""
    launched: dict[int, list[Span]] = defaultdict(list)
    for span, index in trace.work:
        if index is not None:
            launched[index].append(span)
    parts = []
    for index, (annotation, kind) in enumerate(zip(trace.annotations, _kinds(trace), strict=True)):
        batch = (kind_of(annotation.name) or ("", None))[1]
        work = launched.get(index, [])
        if trace.device == "cpu":
            parts.append(_Part(kind, batch, annotation.start_us, annotation.end_us, work))
        elif work:
            parts.append(_Part(kind, batch, work[0].start_us, max(span.end_us for span in work), work))
    return sorted(parts, key=lambda part: part.start_us)


@dataclass(frozen=True)
class _Cycle:
    """From one target forward to the next, in ms."""

    times: dict[str, float]
    work: dict[str, dict[str, float]]  # of each part by kind of work, and beside all parts


BESIDE = "beside"
KINDS = ("allreduce", "attention", "matmul", "rest")


def cycle_parts(trace: Trace) -> dict[str, Any]:
    """Milliseconds of the parts of a typical cycle, from one target forward to the next, and their spread over all.

    Times are means over the same cycles, those of middle length, so that the parts add up to ``cycle_ms``: a host that
    slows down or gains speed within the window, which some do on an H200, leaves medians of each up to 5 % beside
    the median cycle. Without speculation the cycle is a decode step and ``verify_ms`` is its target forward. Cycles
    with a prefill in between are left out, and so is the last forward, whose end is not in the trace.

    ``other_ms`` is what the parts leave of the cycle: ``outside_ms``, the device's work beside all parts, and
    ``host_gap_ms``, when nothing ran. ``idle_ms`` is how long the device did nothing, within parts or between.

    What the device did hardly varies, but where one GPU waits for a late one: ``work_ms``, the work in a cycle of each
    part by kind, and ``launched_ms``, how long anything was under way that the host had launched (gaps within a CUDA
    graph included), rest on medians over all cycles. ``work_residual`` is what a cycle's work, that beside all parts
    included, and its ``idle_ms`` leave of it, as a share: below 0 where work ran at the same time and counts twice.
    Raises UserError when the trace holds no whole cycle.
    """
    parts = _parts(trace)
    anchor = "verify" if any(part.kind == "verify" for part in parts) else "decode"
    cycles = []
    for first, following in _between(parts, anchor):
        inside = [part for part in parts if first.start_us <= part.start_us < following.start_us]
        if inside and not any(part.kind == "prefill" for part in inside):
            cycles.append(_cycle(trace, inside, first.start_us, following.start_us))
    if not cycles:
        raise UserError("the trace holds no whole cycle; profile at least three decode steps without a new request")
    typical = _of_middle_length(cycles)
    mean = {name: statistics.fmean(cycle.times[name] for cycle in typical) for name in cycles[0].times}
    return {
        "device": trace.device,
        "speculative": anchor == "verify",
        "batches": sorted({part.batch for part in parts if part.kind == anchor and part.batch is not None}),
        "n": len(cycles),
        **mean,
        "other_ms": mean["cycle_ms"] - mean["draft_ms"] - mean["verify_ms"] - mean["draft_extend_ms"],
        "launched_ms": statistics.median(cycle.times["launched_ms"] for cycle in cycles),
        "work_residual": statistics.median(_residual(cycle) for cycle in cycles),
        "spread": {name: [f(cycle.times[name] for cycle in cycles) for f in (min, max)] for name in mean},
        "work_ms": _usual_work(cycles),
    }


def _of_middle_length(cycles: list[_Cycle]) -> list[_Cycle]:
    """The cycles without a third of them, rounded down, at either end of their lengths."""
    left_out = len(cycles) // 3
    return sorted(cycles, key=lambda cycle: cycle.times["cycle_ms"])[left_out : len(cycles) - left_out]


def _residual(cycle: _Cycle) -> float:
    worked_ms = sum(split["all"] for split in cycle.work.values())
    return 1.0 - (worked_ms + cycle.times["idle_ms"]) / cycle.times["cycle_ms"]


def _usual_work(cycles: list[_Cycle]) -> dict[str, dict[str, float]]:
    """Per part: milliseconds of device work in a cycle by kind and in ``all``, the median of the cycles that have such
    a part, times their share of all."""
    parts = dict.fromkeys(part for cycle in cycles for part in cycle.work if part != BESIDE)
    usual = {}
    for part in parts:
        splits = [cycle.work[part] for cycle in cycles if part in cycle.work]
        share = len(splits) / len(cycles)
        usual[part] = {kind: share * statistics.median(split[kind] for split in splits) for kind in splits[0]}
    return usual


def _between(parts: list[_Part], anchor: str) -> Iterable[tuple[_Part, _Part]]:
    return itertools.pairwise(part for part in parts if part.kind == anchor)


def _cycle(trace: Trace, inside: list[_Part], start_us: float, end_us: float) -> _Cycle:
    """One cycle. Parts that overlap on the device count once, for the earlier of them; work counts where it ran."""
    totals = dict.fromkeys(("draft_ms", "verify_ms", "draft_extend_ms"), 0.0)
    reached_us = start_us
    spans = []
    for part in inside:
        begin, end = max(part.start_us, reached_us), min(max(part.end_us, reached_us), end_us)
        name = "verify_ms" if part.kind in ("verify", "decode") else f"{part.kind}_ms"
        totals[name] += (end - begin) / 1000
        reached_us = end
        spans.append((begin, end))
    work = [
        (Span(span.name, max(span.start_us, start_us), min(span.end_us, end_us)), index)
        for span, index in trace.work
        if span.end_us > start_us and span.start_us < end_us
    ]
    busy = [(span.start_us, span.end_us) for span, _ in work]
    cycle_us = end_us - start_us
    launched = [
        (max(span.start_us, start_us), min(span.end_us, end_us))
        for span in trace.launches
        if span.end_us > start_us and span.start_us < end_us
    ]
    times = {
        "cycle_ms": cycle_us / 1000,
        **totals,
        "launched_ms": _covered(launched) / 1000,
        "idle_ms": (cycle_us - _covered(busy)) / 1000,
        "host_gap_ms": (cycle_us - _covered([*busy, *spans])) / 1000,
        "outside_ms": (_covered([*busy, *spans]) - _covered(spans)) / 1000,
    }
    return _Cycle(times, _work_by_kind(work, _kinds(trace)))


def _covered(spans: list[tuple[float, float]]) -> float:
    """Microseconds that at least one of the spans covers."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def _work_by_kind(work: Iterable[tuple[Span, int | None]], kinds: list[str]) -> dict[str, dict[str, float]]:
    """Per part, and beside all: milliseconds of work by kind (allreduce, attention, matmul, rest) and in all."""
    parts: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(KINDS, 0.0))
    for span, index in work:
        part = BESIDE if index is None or kinds[index] == "prefill" else kinds[index]
        parts[part][work_kind(span.name)] += (span.end_us - span.start_us) / 1000
    return {part: {**split, "all": sum(split.values())} for part, split in parts.items()}


def host_cycle(trace: Trace) -> dict[str, float]:
    """The mean period of the target's forwards on the host: ``cycle_ms`` over ``n`` cycles without a prefill.

    ``operator_us`` is the median length of an operator that the host ran, a yardstick of its speed: the same server
    runs the same operators, and where they take longer the host itself is slower (0 where none was recorded).

    In a steady state the host starts a cycle as often as the device ends one. A window without the device's side
    stretches this least: recording its kernels pulls those of a CUDA graph apart. The first quarter of the window is
    left out, in which the host still runs ahead. Raises UserError when the trace holds no whole cycle.
    """
    kinds = _kinds(trace)
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
