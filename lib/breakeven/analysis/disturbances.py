"""Requests and launches that something else on the machine slowed down."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from breakeven.analysis.arms import launch_in_words
from breakeven.stats.samples import usable

DISTURBED = 1.5
"""Times the median of its launch that a request's cycle may take; more is a disturbance."""
HOSTS_DIFFER = 1.3
"""Between launches of one arm: where a host operator takes this many times as long, the host makes the difference."""
SLOWER = 0.05
"""By which a launch's measured cycle may exceed its later one more than is usual in the sweep: what a request costs
once is in the measured one, in all launches alike."""
SAME_TEXT = 32
"""Tokens by which the mean texts before two cycles may differ that are compared: 1 to 2 % of a cycle on an H200."""


def disturbed(samples: pd.DataFrame) -> pd.DataFrame:
    """Requests whose milliseconds per cycle stand out among those of their launch, by ``ratio`` to the median."""
    good = usable(samples)
    counted = pd.to_numeric(good["verify_ct"]).fillna(good["completion_tokens"] - 1)
    cycle_ms = 1000 * good["decode_s"] / counted
    ratio = cycle_ms / cycle_ms.groupby([good["cell"], good["restart"]]).transform("median")
    return good.assign(ratio=ratio)[ratio > DISTURBED].sort_values("ratio", ascending=False)


def calm(samples: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The samples without the prompts of a restart in which a request of any cell was disturbed, taken from all cells
    alike; and how many such prompts there were."""
    wild = disturbed(samples)
    lost = set(zip(wild["restart"], wild["prompt_id"], strict=True))
    keep = [pair not in lost for pair in zip(samples["restart"], samples["prompt_id"], strict=True)]
    return samples[keep], len(lost)


def warnings(samples: pd.DataFrame) -> Iterable[dict[str, str]]:
    """The doubt that they cast, as `cautions.warn` has it; the worst three are named."""
    wild = disturbed(samples)
    if len(wild):
        shown = [
            f"{row['cell']}, restart {row['restart'] + 1}, prompt {row['prompt_id']} {row['ratio']:.1f} times"
            for row in wild.head(3).to_dict("records")
        ]
        more = f", and {len(wild) - 3} more" if len(wild) > 3 else ""
        text = (
            f"requests that ran much slower per cycle than the median of their launch: {'; '.join(shown)}{more}. "
            "Something else ran meanwhile: such a cell looks slower than it is, above all for that kind of prompt"
        )
        yield {"code": "disturbed-requests", "text": text}


def slow_hosts(cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    """Launches of one arm whose host took longer for the same operators while it was traced, as one warning; the three
    that took the most times as long are named."""
    by_arm: dict[str, list[tuple[float, str, float]]] = {}
    for row in cells:
        if took_us := (row.get("profile") or {}).get("host_operator_us"):
            launch = (took_us, launch_in_words(row), row.get("tok_s") or 0.0)
            by_arm.setdefault(row.get("arm") or row["cell"], []).append(launch)
    found = []
    for launches in by_arm.values():
        (least, _, usual), (most, slow, rate) = min(launches), max(launches)
        if most > HOSTS_DIFFER * least:
            told = f"{slow}, {most:.1f} against {least:.1f} µs"
            if rate and usual:
                told += f" (its requests, before that, {rate:.1f} against {usual:.1f} tok/s)"
            found.append((most / least, told))
    if found:
        shown = "; ".join(told for _, told in sorted(found, reverse=True)[:3])
        more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
        text = f"while it was traced, a host operator took longer than in another launch of the same arm: {shown}{more}"
        yield {"code": "slow-host", "text": text}


def slow_launches(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Launches whose measured requests took longer per cycle than the same server did soon after, behind as much text
    and not yet recorded: ``cell``, ``restart``, ``launch`` in words, ``measured_ms``, ``later_ms``, ``more`` as a share
    and how much more is ``usual`` in this sweep.

    Told of requests that were alone in flight, and where there is another launch to go by.
    """
    both: list[dict[str, Any]] = []
    for row in cells:
        later = (row.get("profile") or {}).get("untraced") or {}
        later_ms, measured_ms = later.get("cycle_ms"), row.get("cycle_ms") or row.get("step_ms")
        behind, measured_behind = later.get("text_tokens"), later.get("measured_text_tokens")
        if later_ms and measured_ms and behind and measured_behind and abs(behind - measured_behind) < SAME_TEXT:
            launch = {"cell": row["cell"], "restart": row["restart"], "launch": launch_in_words(row)}
            more = measured_ms / later_ms - 1
            both.append(launch | {"measured_ms": measured_ms, "later_ms": later_ms, "more": more})
    usual = max(0.0, statistics.median_low(each["more"] for each in both)) if both else 0.0
    return [each | {"usual": usual} for each in both if each["more"] - usual > SLOWER]


def slow_while_measured(cells: Sequence[Mapping[str, Any]]) -> Iterable[dict[str, str]]:
    """`slow_launches` as warnings."""
    for each in slow_launches(cells):
        text = (
            f"{each['launch']}: its requests took {each['measured_ms']:.2f} ms a cycle, and the same server soon "
            f"after {each['later_ms']:.2f} ms ({each['more']:.1%} more; usual here: {each['usual']:.1%}). The machine "
            "was slower while it was measured: the cell looks slower than it is, and what it lost is counted as host "
            "and gaps"
        )
        yield {"code": "slow-while-measured", "text": text}
