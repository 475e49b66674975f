"""A short traced window of a running server: which share of a cycle each of its parts takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from breakeven import telemetry
from breakeven.errors import UserError, one_line
from breakeven.hosts import LOCAL, Host
from breakeven.server import readiness
from breakeven.telemetry import trace_files, traces
from breakeven.workload.client import Client, RequestFailed, ServerGone
from breakeven.workload.prompts import Prompt

TRACE_TIMEOUT_S = 60.0
STOPS_BY_ITSELF_S = 5.0
HOST_STEPS = 64
"""The host's window is longer: it is a mean, and its file is small."""
LONG_TOKENS = 256
"""Of the traced answer on a GPU: enough for the host's window."""
PAIRS = {"device": 8, "host": 4}
"""Of a long and a short answer, before anything is recorded: more where they differ by a few cycles only."""
ROUNDS = 3
"""Of such pairs at most, while the host is slower than it was for the measured requests: a slow spell lasts seconds."""
BETWEEN_ROUNDS_S = 2.0
_NAMES = {"draft_ms": "draft", "verify_ms": "verify", "draft_extend_ms": "draft extend", "other_ms": "other"}


@dataclass(frozen=True)
class Measured:
    """What the requests told that were measured just before: ``cycle_ms``, in which is what each costs once, and
    ``text_tokens``, how many stood before a cycle in the mean, the prompt's among them."""

    cycle_ms: float | None = None
    text_tokens: float | None = None


@dataclass(frozen=True)
class Stretch:
    """Cycles amid an answer: the ``after`` that was answered before them, the tokens of a long and a short answer from
    there, between which they lie, and the mean ``text_tokens`` before each."""

    after: Sequence[int] = ()
    long: int = 0
    short: int = 0
    text_tokens: float = 0.0


def cycle_shares(
    base_url: str,
    client: Client,
    prompt: Prompt,
    steps: int,
    folder: Path,
    host: Host = LOCAL,
    *,
    measured: Measured = Measured(),
    context_length: int | None = None,
) -> dict[str, Any]:
    """Trace ``steps`` forward passes of one request (its prefill is the first) and split the cycle into its parts.

    Returns ``{"profile": {"shares": {part: 0..1}, "cycle_ms", "host_gap_ms", "n", "device", "work_ms", "launched_ms",
    "sum_residual", "traced_cycle_ms", "allreduce", "fused", "trace"}}``; see `traces`. Recording stretches the cycle: a
    GPU's kernels by 1.01 to 2.2 on an H200, and even the host alone by up to 1.37, where it is nearly as slow as the
    device. So ``cycle_ms`` is that of the same cycles without a profiler (`untraced_cycle`), the parts are the device's
    work, and ``host_gap_ms`` is how much of the cycle nothing was under way that the host had launched. Two windows are
    held against such cycles in ``untraced``, see `held_against`: the full one, and a longer one of the host alone,
    whose period is ``host_window_ms``. All of it lies behind as much text as the measured cycles had, see `_stretches`.
    A release that reports no times leaves the host's period as the cycle. On a CPU, and where there is neither, shares
    and cycle are those of the one full window; ``host_window`` says why the host's shows no cycle.

    A window that could not be traced is ``{"profile": {"error": ...}}``: it costs the split, not the measurement. With
    ``steps`` 0 nothing is traced. ``host`` is where the server writes the trace; it comes back into ``folder``.
    Prompt and answer stay within ``context_length`` tokens.
    """
    if not steps:
        return {}
    host_window: dict[str, Any] = {}
    untraced: dict[str, Any] = {}
    stretches: dict[str, Stretch] = {}
    recorder = _Recorder(base_url, client, host)
    try:
        if _on_gpu(base_url):
            prompt, sample = _long_answer(client, prompt, measured.text_tokens, context_length)
            stretches = _stretches(sample, steps, measured.text_tokens)
            untraced = _before_recording(client, prompt, stretches, measured)
            host_window = _host_window(recorder, prompt, stretches.get("host", Stretch()), folder / "host")
        after = stretches.get("device", Stretch()).after
        trace_path = recorder.window(prompt, after, steps, folder, ["CPU", "GPU"])
        trace = trace_files.read_trace(trace_path)
        parts = traces.cycle_parts(trace)
    except _NOT_TRACED as error:
        return {"profile": {"error": _why(error)}}
    profile = _as_traced(parts) | {
        "n": parts["n"],
        "device": parts["device"],
        "work_ms": parts["work_ms"],
        "launched_ms": parts["launched_ms"],
        "sum_residual": parts["sum_residual"],
        "traced_cycle_ms": parts["cycle_ms"],
        "allreduce": traces.allreduce(trace),
        "fused": traces.fused_kernels(trace),
        "trace": str(trace_path.relative_to(folder.parent.parent)),
    }
    if measured_ms := untraced.get("cycle_ms") or host_window.get("cycle_ms"):
        profile |= _unstretched(parts, measured_ms)
    if "cycle_ms" in host_window:
        profile |= {"host_window": host_window["n"], "host_window_ms": host_window["cycle_ms"]}
        profile["host_operator_us"] = host_window["operator_us"]
    elif "why" in host_window:
        profile["host_window"] = host_window["why"]
    if untraced:
        untraced |= held_against(untraced, parts["launched_ms"], host_window.get("cycle_ms"))
        profile["untraced"] = untraced
    return {"profile": profile}


def target_kernels(
    base_url: str, client: Client, prompt: Prompt, steps: int, folder: Path, host: Host = LOCAL
) -> tuple[dict[str, Any], list[str]] | None:
    """The all-reduces of a target forward and the names of its fused kernels, see `traces`; None where none was traced.

    Traces ``steps`` forward passes of one request into ``folder``.
    """
    try:
        path = _Recorder(base_url, client, host).window(prompt, (), steps, folder, ["CPU", "GPU"])
        trace = trace_files.read_trace(path)
        return traces.allreduce(trace), traces.fused_kernels(trace)
    except _NOT_TRACED:
        return None


@dataclass(frozen=True)
class Answer:
    """How many cycles an answer took (steps without speculation), and its decode time."""

    cycles: int
    decode_ms: float


def untraced_cycle(answers: Sequence[Answer]) -> dict[str, Any]:
    """The cycle that pairs of a long and a short answer to one prompt give, without a profiler.

    ``cycle_ms`` is the median over the pairs of ``(long - short) / (their cycles' difference)``: the cycles between the
    two lengths alone, so that what a request costs once (its first cycles, its end being noticed) drops out.
    ``cycles_ms``: each pair's; ``n``: the cycles between all pairs. Empty where no long answer took more cycles.
    """
    pairs = [
        (long, short) for long, short in zip(answers[::2], answers[1::2], strict=True) if long.cycles > short.cycles
    ]
    if not pairs:
        return {}
    cycles_ms = [(long.decode_ms - short.decode_ms) / (long.cycles - short.cycles) for long, short in pairs]
    return {
        "cycle_ms": statistics.median(cycles_ms),
        "cycles_ms": cycles_ms,
        "n": sum(long.cycles - short.cycles for long, short in pairs),
    }


def _before_recording(
    client: Client, prompt: Prompt, stretches: Mapping[str, Stretch], measured: Measured
) -> dict[str, Any]:
    """`untraced_cycle` of a server that recorded nothing yet: a recorder can slow its host after it has stopped (on one
    H200 server 18 of 31 answers within 40 s after a full window took 3 to 22 % longer, none of 133 without one).

    It is that of the device's stretch, with the mean ``text_tokens`` before it and before the measured cycles;
    ``host_cycle_ms`` is that of the host's. A cycle longer than the measured ones may be one of a host that slowed down
    since. Both are measured again, up to ``ROUNDS`` times in all (``rounds``), and the shortest is kept: a disturbance
    makes no cycle shorter.
    """
    if not stretches:
        return {}
    found: list[dict[str, dict[str, Any]]] = []
    while len(found) < ROUNDS:
        time.sleep(BETWEEN_ROUNDS_S if found else 0.0)
        again = {whose: _untraced(client, prompt, stretch, PAIRS[whose]) for whose, stretch in stretches.items()}
        if not all(again.values()):
            return {}
        found.append(again)
        if measured.cycle_ms is None or again["device"]["cycle_ms"] <= measured.cycle_ms:
            break
    device, alone = (
        min((again[whose] for again in found), key=lambda each: each["cycle_ms"]) for whose in ("device", "host")
    )
    texts = {"text_tokens": stretches["device"].text_tokens, "measured_text_tokens": measured.text_tokens}
    return device | texts | {"host_cycle_ms": alone["cycle_ms"], "rounds": len(found)}


def _untraced(client: Client, prompt: Prompt, stretch: Stretch, pairs: int) -> dict[str, Any]:
    lengths = [stretch.long, stretch.short] * pairs
    return untraced_cycle([_answer(client, prompt, stretch.after, tokens) for tokens in lengths])


def held_against(untraced: Mapping[str, float], launched_ms: float, host_ms: float | None) -> dict[str, Any]:
    """How far two traced windows are off the same cycles untraced, as shares: ``device_off`` and ``host_off``.

    A cycle is as long as the slower of two takes: the device, to run what was launched, or the host, to launch it.
    Recording leaves a launch as long as it is and slows the host, so that a period of the recorded host that is longer
    than the cycle says nothing of the cycle; one as long as the cycle may be the host's own or its wait for the device.
    ``off`` is the lesser of the two and ``nearer`` whose it is, device or host. Where both are far off, the host
    without a recorder lies between the two, and the trace does not tell where. ``untraced`` is what
    `_before_recording` found: ``cycle_ms`` and ``host_cycle_ms``.
    """
    off = {"device": launched_ms / untraced["cycle_ms"] - 1}
    if host_ms is not None:
        off["host"] = host_ms / untraced["host_cycle_ms"] - 1
    nearer = min(off, key=lambda whose: abs(off[whose]))
    return {**{f"{whose}_off": share for whose, share in off.items()}, "off": off[nearer], "nearer": nearer}


def _long_answer(
    client: Client, prompt: Prompt, text_tokens: float | None, context_length: int | None
) -> tuple[Prompt, dict[str, Any]]:
    """The prompt with an answer long enough for both windows behind so much text, and such an answer's sample.

    It is the second answer: a drafter that learns from what it sees, as n-grams do, drafts better from then on.
    """
    prompt_tokens = client.generate(prompt, baseline=False)["prompt_tokens"]
    wanted = max(LONG_TOKENS, round((text_tokens or 0) - prompt_tokens) + LONG_TOKENS // 2)
    if context_length:
        wanted = min(wanted, context_length - prompt_tokens - 1)
    prompt = replace(prompt, max_new_tokens=max(prompt.max_new_tokens, wanted))
    return prompt, client.generate(prompt, baseline=False)


def _stretches(sample: Mapping[str, Any], steps: int, text_tokens: float | None) -> dict[str, Stretch]:
    """The stretch of the full window (device) and of the host's, each of the cycles that the window counts.

    A cycle grows with the text before it (on an H200, where the verify's attention is not split along the text, by 6 %
    over 160 tokens, in steps): only the same stretch can be compared, and only behind ``text_tokens``, as many as the
    measured cycles had in the mean, is it as long as theirs. Without them it is the middle of the answer. Empty from a
    release that reports no times.
    """
    cycles = _cycles(sample)
    if not sample["decode_s"] or cycles < 1:
        return {}
    per_cycle = (sample["completion_tokens"] - 1) / cycles
    middle = (text_tokens - sample["prompt_tokens"]) / per_cycle if text_tokens else cycles / 2

    def stretch(window: int, left_out: int) -> Stretch:
        before = int(min(max(0.0, middle - (left_out + window) / 2), max(0, cycles - window)))
        last = min(window, cycles - before)
        first = max(1, left_out * last // window)
        long, short = (1 + max(1, round(per_cycle * count)) for count in (last, first))
        behind = sample["prompt_tokens"] + per_cycle * (before + (first + last) / 2)
        return Stretch(sample["output_ids"][: round(per_cycle * before)], long, short, behind)

    # one step of the full window is the prefill; the host's leaves out its first quarter, see `traces.host_cycle`
    return {"device": stretch(steps - 1, 0), "host": stretch(HOST_STEPS, HOST_STEPS // 4)}


def _answer(client: Client, prompt: Prompt, after: Sequence[int], tokens: int) -> Answer:
    sample = client.generate(replace(prompt, max_new_tokens=tokens), baseline=False, after=after)
    return Answer(max(1, _cycles(sample)), 1000 * sample["decode_s"])


def _cycles(sample: Mapping[str, Any]) -> int:
    return int(sample["verify_ct"] or sample["completion_tokens"] - 1)


def _on_gpu(base_url: str) -> bool:
    with readiness.client(base_url, timeout_s=TRACE_TIMEOUT_S) as http:
        answer = http.get("/server_info")
        if answer.status_code == 404:  # before 0.5.6
            answer = http.get("/get_server_info")
        return telemetry.server_settings(answer.raise_for_status().json())["device"] == "cuda"


def _host_window(recorder: _Recorder, prompt: Prompt, stretch: Stretch, folder: Path) -> dict[str, Any]:
    """``traces.host_cycle`` of a window without the device's side, or ``why`` there is none."""
    try:
        return traces.host_cycle(
            trace_files.read_trace(recorder.window(prompt, stretch.after, HOST_STEPS, folder, ["CPU"]))
        )
    except _NOT_TRACED as error:
        return {"why": _why(error)}


_NOT_TRACED = (httpx.HTTPError, ServerGone, RequestFailed, UserError, TimeoutError)


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)}"


def _names(parts: dict[str, Any]) -> dict[str, str]:
    return _NAMES if parts["speculative"] else {**_NAMES, "verify_ms": "target forward"}


def _as_traced(parts: dict[str, Any]) -> dict[str, Any]:
    """Shares of the traced cycle itself."""
    shares = {name: parts[key] / parts["cycle_ms"] for key, name in _names(parts).items() if parts[key]}
    return {"shares": shares, "cycle_ms": parts["cycle_ms"], "host_gap_ms": parts["host_gap_ms"]}


def _unstretched(parts: dict[str, Any], cycle_ms: float) -> dict[str, Any]:
    """Shares of a cycle that was not stretched: the device's work in each part, and what is left."""
    work = parts["work_ms"]
    names = {"draft": "draft", "draft_extend": "draft extend"}
    names["verify" if parts["speculative"] else "decode"] = _names(parts)["verify_ms"]
    shares = {name: work[kind]["all"] / cycle_ms for kind, name in names.items() if kind in work}
    shares["other"] = max(0.0, 1.0 - sum(shares.values()))
    gap_ms = min(max(0.0, cycle_ms - parts["launched_ms"]), shares["other"] * cycle_ms)
    return {"shares": shares, "cycle_ms": cycle_ms, "host_gap_ms": gap_ms}


@dataclass(frozen=True)
class _Recorder:
    """A running server's profiler, the client that keeps it busy, and the host on which it writes."""

    base_url: str
    client: Client
    host: Host

    def window(self, prompt: Prompt, after: Sequence[int], steps: int, folder: Path, activities: Sequence[str]) -> Path:
        """Record so many forward passes of the prompt's answer, from ``after`` on; the trace's path in ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        there = self.host.place(folder)
        earlier = frozenset(self.host.names(there))
        options = {
            "output_dir": str(there),
            "num_steps": steps,
            "activities": list(activities),
            "with_stack": False,
            "record_shapes": False,
        }
        rest = replace(prompt, max_new_tokens=max(1, prompt.max_new_tokens - len(after)))
        with readiness.client(self.base_url, timeout_s=TRACE_TIMEOUT_S) as http:
            http.post("/start_profile", json=options).raise_for_status()
            sample = self.client.generate(rest, baseline=False, after=after)
            deadline = time.monotonic() + TRACE_TIMEOUT_S
            is_whole = 1 + _cycles(sample) >= steps  # the prefill counts as one
            if not _appears(self.host, there, earlier, time.monotonic() + (STOPS_BY_ITSELF_S if is_whole else 0)):
                http.post("/stop_profile").raise_for_status()  # the answer was shorter than the window
        if not _appears(self.host, there, earlier, deadline):
            raise TimeoutError(f"no trace appeared in {there} of {self.host.name} within {TRACE_TIMEOUT_S:.0f} s")
        name = _complete(self.host, there, earlier, deadline)
        self.host.bring(folder)
        return folder / name


def _found(host: Host, folder: Path, earlier: Set[str]) -> list[str]:
    """The traces in a folder that were not there before this window."""
    return [name for name in host.names(folder) if name.endswith(".trace.json.gz") and name not in earlier]


def _appears(host: Host, folder: Path, earlier: Set[str], deadline: float) -> bool:
    while not _found(host, folder, earlier):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _complete(host: Host, folder: Path, earlier: Set[str], deadline: float) -> str:
    """The trace's name, once its file has stopped growing: the server writes it after it appears."""
    name, size = _found(host, folder, earlier)[0], -1
    while (now := host.size(folder / name)) != size or not size:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{name} is still being written")
        size = now
        time.sleep(0.5)
    return name
