"""Decode lines of SGLang's log: one normal form over releases 0.4.4 to 0.5.23, and their inverse.

A key-value parser, not a fixed order: keys come and go between releases, ``block accept len`` is not ``accept len``,
and the accept *rate* is never read, because its formula changed three times.
"""

from __future__ import annotations

import math
import re
from collections import deque
from typing import Any

from breakeven.telemetry.log_lines import HEADER, clean, pieces
from breakeven.telemetry.releases import version_key

KEPT_ROWS = 10_000  # decode rows kept from each end of a log; the summary always covers all of them
PAUSE_FACTOR = 5.0  # a cycle this many times its predecessor's, at no larger batch, holds a pause

_DECODE = re.compile(r"Decode batch(?:\s*\[\d+\])?[\s.,:]")
_PAIR = re.compile(r"([#A-Za-z][^:,]*?)\s*:\s*(?:full=)?([^\s,]+)")
# A wrapper may add to a line's end. Longer numbers, exponents and second points are no release's but damage.
_NUMBER = re.compile(r"[-+]?\d{1,15}(?:\.\d{1,9})?(?![\d.]|e[-+]?\d)", re.IGNORECASE)
_GRAPH_LABEL = re.compile(r"^\w+ graph$")  # cuda, cpu, npu, musa: the device decides
PREFILL_FROM_IDLE = re.compile(r"Prefill batch.*?#running-req:\s*0\b")

_KEYS: dict[str, tuple[str, type]] = {
    "running req": ("running", int),
    "token": ("tokens", int),
    "full token": ("tokens", int),  # hybrid models count full-attention and other tokens apart
    "token usage": ("token_usage", float),
    "full token usage": ("token_usage", float),
    "swa token": ("swa_tokens", int),
    "swa token usage": ("swa_token_usage", float),
    "mamba num": ("mamba_num", int),
    "mamba usage": ("mamba_usage", float),
    "accept len": ("accept_length", float),
    "block accept len": ("block_accept_length", float),
    "cap len": ("cap_length", float),
    "gen throughput (token/s)": ("gen_tok_s", float),
    "queue req": ("queue", int),
    "retracted req": ("retracted", int),
}
_NEEDED = ("running", "gen_tok_s", "queue")  # every release's line ends with the queue: without it, it was cut off
_ALWAYS = ("time", "rank", "running", "tokens", "token_usage", "accept_length", "gen_tok_s", "graph", "queue")


def parse_decode_line(text: str, line: int | None = None) -> dict[str, Any] | None:
    """One decode line in normal form, or None when the text is no whole decode line.

    ``running`` requests, ``accept_length`` tokens per verify (None without speculation), ``gen_tok_s`` tokens per
    second summed over the batch, ``graph`` whether a captured graph ran (None when the release does not say).
    Keys that only some releases print (``block_accept_length``, ``mamba_num``, ...) are present when printed.
    Of several decode lines run together the last whole one is read; ``log_lines.pieces`` gives them one by one.
    """
    rows = [row for piece in pieces(clean(text)) if (row := _row(piece, line))]
    return rows[-1] if rows else None


def _row(text: str, line: int | None) -> dict[str, Any] | None:
    label = _DECODE.search(text)
    if not label:
        return None
    row: dict[str, Any] = {"line": line, **dict.fromkeys(_ALWAYS)}
    if header := HEADER.search(text[: label.start()]):
        row["time"], row["rank"] = header["time"] + (header["fraction"] or ""), header["rank"].strip() or None
    for raw_key, value in _PAIR.findall(text[label.end() :]):
        key = " ".join(re.sub(r"[#_-]", " ", raw_key).lower().split())
        if _GRAPH_LABEL.match(key):
            row["graph"] = value.lower().startswith("true")
        elif key in _KEYS:
            name, kind = _KEYS[key]
            row[name] = _number(value, kind)
            if name == "accept_length" and row[name] is None:
                return None  # it speculated: a cycle without the accept length would be wrong
    return row if all(row[name] is not None for name in _NEEDED) else None


def _number(text: str, kind: type) -> float | int | None:
    """The number that the text begins with, or None: logs print nan and inf after an empty interval."""
    found = _NUMBER.match(text)
    return kind(float(found[0])) if found else None


def format_decode_line(row: dict[str, Any], sglang_version: str) -> str:
    """The line that this release prints for a row of ``parse_decode_line`` (its inverse, up to two decimals)."""
    version = version_key(sglang_version)
    stamp = f"{row['time']} {row['rank']}" if row.get("rank") else row["time"]
    parts = [f"#running-req: {row['running']}"]
    if "mamba_num" in row:
        parts += [f"#full token: {row['tokens']}", f"full token usage: {row['token_usage']:.2f}"]
        parts += [f"mamba num: {row['mamba_num']}", f"mamba usage: {row['mamba_usage']:.2f}"]
    else:
        parts += [f"#token: {row['tokens']}", f"token usage: {row['token_usage']:.2f}"]
    if row["accept_length"] is not None:
        parts.append(f"accept len: {row['accept_length']:.2f}")
        if version >= (0, 5, 3, 3):
            parts.append("accept rate: 0.00")  # never read back
        for name, label in (("cap_length", "cap len"), ("block_accept_length", "block accept len")):
            if version >= (0, 5, 18) and name in row:
                parts.append(f"{label}: {row[name]:.2f}")
    if version > (0, 4, 6):
        parts.append(f"cuda graph: {row['graph']}")
    parts += [f"gen throughput (token/s): {row['gen_tok_s']:.2f}", f"#queue-req: {row['queue']}"]
    after_label = "," if version >= (0, 5, 5) else "."
    trailing = ", " if version < (0, 4, 6) or (0, 5, 2) <= version < (0, 5, 9) else ""
    return f"[{stamp}] Decode batch{after_label} " + ", ".join(parts) + trailing


def cycle_ms(row: dict[str, Any]) -> float | None:
    """Milliseconds per cycle at this row's batch: ``1000 * running * accept_length / gen_tok_s``.

    Without speculation the accept length is 1 and this is the decode step. None where one of the three is 0.
    """
    accept_length = 1.0 if row["accept_length"] is None else row["accept_length"]
    if not row["gen_tok_s"] or not row["running"] or not accept_length:
        return None
    return 1000.0 * row["running"] * accept_length / row["gen_tok_s"]


class DecodeRows:
    """Decode rows as they stream past: marks those that hold idle time, sums up the rest, keeps a bounded number."""

    def __init__(self) -> None:
        self.total = 0
        self.first: list[dict[str, Any]] = []
        self.last: deque[dict[str, Any]] = deque(maxlen=KEPT_ROWS)
        self.busy_before: dict[str | None, dict[str, Any] | None] = {}  # rank -> its last row without idle time
        self.idle_since: set[str | None] = set()  # ranks whose next row covers an idle gap
        self.sums: dict[int, dict[str, float]] = {}

    def note_idle(self, text: str) -> None:
        """A prefill that found nothing running: the interval under way holds the idle time before it."""
        header = HEADER.search(clean(text))
        self.idle_since.add((header["rank"].strip() or None) if header else None)

    def add(self, row: dict[str, Any]) -> None:
        rank = row["rank"]
        row["cycle_ms"] = cycle_ms(row)
        row["after_idle"] = self._holds_idle_time(row)
        self.idle_since.discard(rank)
        if not row["after_idle"] and row["cycle_ms"] is not None:
            self.busy_before[rank] = row
            self._sum_up(row)
        else:
            self.busy_before.setdefault(rank, None)
        self.total += 1
        if len(self.first) < KEPT_ROWS:
            self.first.append(row)
        else:
            self.last.append(row)

    def _holds_idle_time(self, row: dict[str, Any]) -> bool:
        rank = row["rank"]
        if rank not in self.busy_before or rank in self.idle_since:
            return True  # the first line counts from the start of the server
        before = self.busy_before[rank]
        if before is None or row["cycle_ms"] is None:
            return row["cycle_ms"] is None
        return row["running"] <= before["running"] and row["cycle_ms"] > PAUSE_FACTOR * before["cycle_ms"]

    def _sum_up(self, row: dict[str, Any]) -> None:
        zero = {"lines": 0.0, "spec": 0.0, "accept": 0.0, "cycle": 0.0, "square": 0.0, "min": math.inf, "max": 0.0}
        sums = self.sums.setdefault(row["running"], zero)
        sums["lines"] += 1
        sums["spec"] += row["accept_length"] is not None
        sums["accept"] += 1.0 if row["accept_length"] is None else row["accept_length"]
        sums["cycle"] += row["cycle_ms"]
        sums["square"] += row["cycle_ms"] ** 2
        sums["min"], sums["max"] = min(sums["min"], row["cycle_ms"]), max(sums["max"], row["cycle_ms"])

    def summary(self) -> list[dict[str, Any]]:
        """Per number of running requests, over lines without idle time. A line stands for a fixed number of cycles,
        so cycles and accept lengths average plainly and the rate follows from them."""
        rows = []
        for running, sums in sorted(self.sums.items()):
            lines, mean = sums["lines"], sums["cycle"] / sums["lines"]
            accept_length = sums["accept"] / lines
            rows.append(
                {
                    "running": running,
                    "lines": int(lines),
                    "accept_length": accept_length if sums["spec"] else None,
                    "gen_tok_s": 1000.0 * running * accept_length / mean,
                    "cycle_ms": mean,
                    "cycle_ms_sd": math.sqrt(max(0.0, sums["square"] / lines - mean**2)),
                    "cycle_ms_min": sums["min"],
                    "cycle_ms_max": sums["max"],
                }
            )
        return rows
