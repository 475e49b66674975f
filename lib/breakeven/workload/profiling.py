"""A short traced window of a running server: which share of a cycle each of its parts takes."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set
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
from breakeven.workload.untraced import (
    HOST_STEPS,
    UNMEASURED,
    Measured,
    Stretch,
    before_recording,
    cycles_of,
    held_against,
    long_answer,
    stretches_of,
)

TRACE_TIMEOUT_S = 60.0
STOPS_BY_ITSELF_S = 5.0
_NAMES = {"draft_ms": "draft", "verify_ms": "verify", "draft_extend_ms": "draft extend", "other_ms": "other"}


def cycle_shares(
    base_url: str,
    client: Client,
    prompt: Prompt,
    steps: int,
    folder: Path,
    host: Host = LOCAL,
    *,
    measured: Measured = UNMEASURED,
    context_length: int | None = None,
) -> dict[str, Any]:
    """Trace ``steps`` forward passes of one request (its prefill is the first) and split the cycle into its parts.

    Returns ``{"profile": {"shares": {part: 0..1}, "cycle_ms", "host_gap_ms", "n", "device", "work_ms", "launched_ms",
    "work_residual", "traced_cycle_ms", "allreduce", "fused", "trace"}}``; see `traces`. Recording stretches the cycle:
    a GPU's kernels by 1.01 to 2.2 on an H200, and even the host alone by up to 1.37, where it is nearly as slow as the
    device. So ``cycle_ms`` is that of the same cycles without a profiler (`untraced`), the parts are the device's
    work, and ``host_gap_ms`` is how much of the cycle nothing was under way that the host had launched. Two windows are
    held against such cycles in ``untraced``, see `held_against`: the full one, and a longer one of the host alone,
    whose period is ``host_window_ms``. All of it lies behind as much text as the measured cycles had, of short answers
    up to a few cycles later, see `untraced`. Where no answers tell the cycle (an older release reports no times) it is
    the host's period. On a CPU, and where there is neither, shares and cycle are those of the one full window;
    ``host_window`` says why the host's shows no cycle.

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
            prompt, sample = long_answer(client, prompt, measured.text_tokens, context_length)
            stretches = stretches_of(sample, steps, measured.text_tokens)
            untraced = before_recording(client, prompt, stretches, measured)
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
        "work_residual": parts["work_residual"],
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
            sample = self.client.generate(rest, baseline=False, after=after, ignore_eos=True)
            deadline = time.monotonic() + TRACE_TIMEOUT_S
            is_whole = 1 + cycles_of(sample) >= steps  # the prefill counts as one
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
