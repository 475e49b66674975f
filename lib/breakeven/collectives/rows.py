"""What the blocks of an all-reduce bench say: latencies, verdicts, crossovers, and what fusing would save."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from breakeven.costs.whatif import Change
from breakeven.errors import UserError

Row = dict[str, Any]
Blocks = Mapping[tuple[str, int], list[float]]
"""Iterations by operation and size, in microseconds."""

ALLREDUCE, WITH_NORM = "all-reduce", "all-reduce + add + RMSNorm"


def blocks_of(reference: str, raw: Iterable[Row]) -> Blocks:
    """The reference's own iterations, by operation and size."""
    rows = [row for row in raw if row["setting"] == reference and row["status"] == "ok"]
    return {(row["operation"], row["bytes"]): row["times_us"][1] for row in rows}


def between(row: Row, first: Blocks, last: Blocks) -> Row:
    """A row that was measured in processes of its own, between the reference's blocks of two other starts."""
    if row["status"] != "ok":
        return row
    place = (row["operation"], row["bytes"])
    if place not in first or place not in last:
        return {**row, "status": "failed", "reason": "the reference has no figure at this size"}
    return {**row, "times_us": [first[place], row["times_us"][1], last[place]]}


def judged(raw: Iterable[Row], reference: str) -> list[Row]:
    """Rows with latencies and verdicts from the blocks A, B, A of iterations (each the slowest rank's time).

    ``us`` is the median of B, ``ratio`` that over the mean of the two A medians, ``floor`` the widest difference of two
    blocks of A at that operation and size, as a share; the reference's own B is one of them. Inside the floor a setting
    is not-distinguishable from A.
    """
    rows = [dict(row) for row in raw]
    floors: dict[tuple[str, int], float] = {}
    for row in rows:
        if row["status"] != "ok":
            continue
        before, us, after = (statistics.median(block) for block in row["times_us"])
        low, _, high = statistics.quantiles(row.pop("times_us")[1], n=4)
        mean = (before + after) / 2
        row |= {"us": us, "us_low": low, "us_high": high, "reference_us": mean, "ratio": us / mean}
        place = (row["operation"], row["bytes"])
        apart = abs(before - after) / mean
        floors[place] = max(floors.get(place, 0.0), apart, abs(row["ratio"] - 1) if row["setting"] == reference else 0)
    for row in rows:
        if row["status"] == "ok":
            row["floor"] = floors[row["operation"], row["bytes"]]
            row["verdict"] = _verdict(row["ratio"], row["floor"])
    return rows


def _verdict(ratio: float, floor: float) -> str:
    if abs(ratio - 1) <= floor:
        return "not-distinguishable"
    return "faster" if ratio < 1 else "slower"


def crossovers(rows: Iterable[Row]) -> list[Row]:
    """Where the fastest setting changes with size: operation, from, to and the bytes at which their lines cross.

    Between two measured sizes the lines are straight in log size and log time. A change counts where each of the two
    leads by more than the noise floor at its own end.
    """
    tables: dict[str, dict[int, dict[str, Row]]] = {}
    for row in rows:
        if row["status"] == "ok":
            tables.setdefault(row["operation"], {}).setdefault(row["bytes"], {})[row["setting"]] = row
    found = []
    for operation, by_size in tables.items():
        leader, since = "", 0
        for size in sorted(by_size):
            here = by_size[size]
            best = min(here.values(), key=lambda row: row["us"])
            if leader not in here:
                leader, since = best["setting"], size
                continue
            if best["us"] * (1 + best["floor"]) >= here[leader]["us"]:
                since = size if best["setting"] == leader else since
                continue
            crossing = _crossing(by_size, leader, best["setting"], since, size)
            found.append({"operation": operation, "from": leader, "to": best["setting"], "bytes": crossing})
            leader, since = best["setting"], size
    return found


def _crossing(by_size: Mapping[int, Mapping[str, Row]], one: str, other: str, since: int, size: int) -> int:
    """Bytes at which the two lines meet between the sizes ``since`` and ``size``."""
    if other not in by_size[since]:
        return size
    lead_before = math.log(by_size[since][other]["us"] / by_size[since][one]["us"])
    lead_after = math.log(by_size[size][other]["us"] / by_size[size][one]["us"])
    share = lead_before / (lead_before - lead_after) if lead_before > 0 else 0.0
    return round(math.exp(math.log(since) + share * (math.log(size) - math.log(since))))


def fusion_saves(
    rows: Iterable[Mapping[str, Any]], *, fused: str, unfused: str, count: int, batch: int, width: int
) -> Change:
    """The what-if of fusing ``count`` all-reduces of a target forward, from the bench: modelled.

    A verify sends ``batch x width`` tokens, a baseline step ``batch``. Each all-reduce is counted with its norm.
    Raises UserError where the bench has no figure of that size.
    """
    us = {
        (row["setting"], row["bytes"]): row["us"]
        for row in rows
        if row["status"] == "ok" and row["operation"] == WITH_NORM
    }
    per_token = {row["bytes"] // (row["batch"] * row["width"]) for row in rows if row["status"] == "ok"}
    saved = {}
    for name, tokens in (("verify", batch * width), ("step", batch)):
        size = tokens * max(per_token, default=0)
        for setting in (fused, unfused):
            if (setting, size) not in us:
                sizes = sorted(bytes_ for each, bytes_ in us if each == setting)
                has = f"it has {sizes}" if sizes else f"it has {', '.join(sorted({each for each, _ in us}))}"
                raise UserError(f"the bench has no figure of {setting} at {size} bytes; {has}")
        saved[name] = count * (us[unfused, size] - us[fused, size]) / 1000
    return Change(f"{fused} instead of {unfused}", verify_saved_ms=saved["verify"], step_saved_ms=saved["step"])
