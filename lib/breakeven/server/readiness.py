"""What tells that a starting server gets on: its log, the phase it is in, and answers to real requests."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx

from breakeven.hosts import LOCAL, Host

PROMPT = "Name the days of the week, one to a line, and then stop."
"""The readiness generation's prompt; it belongs to no workload, because an n-gram drafter remembers what it saw."""
PROMPT_TOKENS = 8

GENERATING_HEALTH = "/health_generate"
"""Answers only when a token came back from the scheduler; /health does not in every release."""

PHASES = ("import", "load", "pool", "capture", "http", "warm-up", "generation")
"""Phases of a start, in the order in which they are first entered. A drafter's model loads after the target's pools."""
_MILESTONES = (
    (re.compile(r"Init torch distributed begin|Load weight begin"), "load"),
    (re.compile(r"Load weight end"), "pool"),
    (re.compile(r"Capture\b.*\bgraphs? begin", re.IGNORECASE), "capture"),
    (re.compile(r"Capture\b.*\bgraphs? end", re.IGNORECASE), "pool"),
    (re.compile(r"max_total_num_tokens=\d"), "http"),
    (re.compile(r"Uvicorn running on"), "warm-up"),
    (re.compile(r"The server is fired up"), "generation"),
)
_LINE_END = re.compile(rb"\r\n|\n|\r")  # progress bars end their lines with a carriage return


class Phases:
    """Seconds spent per phase, from the log lines that mark a change (wording of SGLang 0.4.6 to 0.5.23).

    Ranks write the same lines one after the other: time goes to the phase that the last line began.
    """

    def __init__(self, now_s: float) -> None:
        self.current = PHASES[0]
        self._since = now_s
        self._spent: defaultdict[str, float] = defaultdict(float)

    def feed(self, now_s: float, lines: Iterable[str]) -> bool:
        """Take in lines that appeared at ``now_s``; whether the phase changed."""
        before = self.current
        for line in lines:
            entered = next((phase for pattern, phase in _MILESTONES if pattern.search(line)), None)
            # A draft worker's pools are announced after the target's: nothing before "http" follows it.
            if entered and not (PHASES.index(entered) < PHASES.index("http") <= PHASES.index(self.current)):
                self.enter(entered, now_s)
        return self.current != before

    def seconds(self, now_s: float) -> dict[str, float]:
        """Seconds per phase so far, their sum being the time since the start; phases not entered are left out."""
        self.enter(self.current, now_s)
        return {phase: round(self._spent[phase], 3) for phase in PHASES if phase in self._spent}

    def enter(self, phase: str, now_s: float) -> None:
        """Say that ``phase`` begins now."""
        self._spent[self.current] += now_s - self._since
        self._since = now_s
        self.current = phase


class LogTail:
    """New lines of a log that grows and is now and then renamed to NAME.1 and begun anew."""

    def __init__(self, host: Host, path: Path) -> None:
        self._host = host
        self._path = path
        self._offset = 0
        self._cut = b""

    def new_lines(self) -> list[str]:
        """Whole lines since the last call; a line still being written waits for its end."""
        data = b""
        if self._host.size(self._path) < self._offset:
            data = self._host.read(log_parts(self._path)[0], self._offset)
            self._offset = 0
        if self._host.size(self._path) > self._offset:
            fresh = self._host.read(self._path, self._offset)
            self._offset += len(fresh)
            data += fresh
        *whole, self._cut = _LINE_END.split(self._cut + data)
        return [line.decode(errors="replace") for line in whole]


def log_parts(path: Path) -> tuple[Path, Path]:
    """The files of a log, oldest first."""
    return path.with_name(path.name + ".1"), path


def log_lines(path: Path) -> Iterator[str]:
    """All lines of a log of this machine that are kept, oldest first."""
    for part in log_parts(path):
        if LOCAL.size(part):
            yield from LOCAL.lines(part)


def client(base_url: str, timeout_s: float) -> httpx.Client:
    """An HTTP client for a loopback address: no proxy, and no certificates to load for plain HTTP."""
    return httpx.Client(base_url=base_url, timeout=timeout_s, trust_env=False, verify=False)


def is_healthy(base_url: str, timeout_s: float, path: str = "/health") -> bool:
    """Whether the path answers 200. Necessary, not enough: releases differ in what they check for /health."""
    with client(base_url, timeout_s) as http:
        try:
            return http.get(path).status_code == 200
        except httpx.HTTPError:
            return False


def generate(base_url: str, timeout_s: float) -> dict[str, Any]:
    """One real generation: ``{"text", "tokens", "seconds"}``.

    Raises httpx.HTTPError when the server does not answer it, ValueError when it answers without a token.
    """
    request = {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": PROMPT_TOKENS}}
    began = time.monotonic()
    with client(base_url, timeout_s) as http:
        answer = http.post("/generate", json=request).raise_for_status().json()
    tokens = answer.get("meta_info", {}).get("completion_tokens") if isinstance(answer, dict) else None
    if not tokens:
        raise ValueError(f"/generate answered without a token: {str(answer)[:200]}")
    return {"text": answer.get("text"), "tokens": tokens, "seconds": round(time.monotonic() - began, 3)}
