"""A short traced window of a running server: which share of a cycle each of its parts takes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx

from breakeven import readiness, traces
from breakeven.errors import UserError, one_line
from breakeven.workload import Client, Prompt, RequestFailed, ServerGone

TRACE_TIMEOUT_S = 60.0
STOPS_BY_ITSELF_S = 5.0
_NAMES = {"draft_ms": "draft", "verify_ms": "verify", "draft_extend_ms": "draft extend", "other_ms": "other"}


def cycle_shares(base_url: str, client: Client, prompt: Prompt, steps: int, folder: Path) -> dict[str, Any]:
    """Trace ``steps`` forward passes of one request (its prefill is the first) and split the cycle into its parts.

    Returns ``{"profile": {"shares": {part: 0..1}, "cycle_ms", "n", "trace"}}``; shares of the *traced* cycle, because
    a profiler slows the host down. A window that could not be traced is ``{"profile": {"error": ...}}``: it costs the
    split, not the measurement. With ``steps`` 0 nothing is traced.
    """
    if not steps:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    try:
        trace_path = _trace(base_url, client, prompt, steps, folder)
        parts = traces.cycle_parts(traces.read_trace(trace_path))
    except (httpx.HTTPError, ServerGone, RequestFailed, UserError, TimeoutError) as error:
        return {"profile": {"error": f"{type(error).__name__}: {one_line(error)}"}}
    names = _NAMES if parts["speculative"] else {**_NAMES, "verify_ms": "target forward"}
    shares = {name: parts[key] / parts["cycle_ms"] for key, name in names.items() if parts[key]}
    return {
        "profile": {
            "shares": shares,
            "cycle_ms": parts["cycle_ms"],
            "n": parts["n"],
            "trace": str(trace_path.relative_to(folder.parent.parent)),
        }
    }


def _trace(base_url: str, client: Client, prompt: Prompt, steps: int, folder: Path) -> Path:
    options = {
        "output_dir": str(folder),
        "num_steps": steps,
        "activities": ["CPU", "GPU"],
        "with_stack": False,
        "record_shapes": False,
    }
    with readiness.client(base_url, timeout_s=TRACE_TIMEOUT_S) as http:
        http.post("/start_profile", json=options).raise_for_status()
        client.generate(prompt, baseline=True)
        deadline = time.monotonic() + TRACE_TIMEOUT_S
        if not _appears(folder, time.monotonic() + STOPS_BY_ITSELF_S):
            http.post("/stop_profile").raise_for_status()  # the answer was shorter than the window
    if not _appears(folder, deadline):
        raise TimeoutError(f"no trace appeared in {folder.name} within {TRACE_TIMEOUT_S:.0f} s")
    return _complete(_found(folder)[0], deadline)


def _found(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.trace.json.gz"))


def _appears(folder: Path, deadline: float) -> bool:
    while not _found(folder):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _complete(path: Path, deadline: float) -> Path:
    """Wait until the file has stopped growing: the server writes it after it appears."""
    size = -1
    while (now := path.stat().st_size) != size or not size:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{path.name} is still being written")
        size = now
        time.sleep(0.5)
    return path
