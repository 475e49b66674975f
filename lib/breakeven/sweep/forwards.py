"""The target's forward by its rows, measured where nothing speculates: with as many requests in flight as rows.

A verify of k drafts is one forward over k + 1 rows of every stream, a decode step with n requests in flight one over n
rows. What a verify costs, and at which length it jumps, can thus be read off the baseline's server, before any drafter
runs. Not the same to the last: a verify's rows share one context, and sampling differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median
from typing import Any

from breakeven import workload
from breakeven.config import SweepSettings
from breakeven.launch.design import Arm, plan_arms
from breakeven.sweep import expectations

ANSWER_TOKENS = 48
FEWEST_TOKENS = 16  # an answer that ends before says little about a step


def wanted_rows(arms: Iterable[Arm], streams: Iterable[int], most: int) -> list[int]:
    """Rows of the forwards that verify the chains of these arms, ``most`` at the most."""
    lengths = {each.drafts for each in expectations.candidates(arms) if each.drafts}
    return sorted({n * (drafts + 1) for n in streams for drafts in lengths if n * (drafts + 1) <= most})


def runnable_rows(rows: Sequence[int], effective: Mapping[str, Any]) -> list[int]:
    """What a server can run for these rows without padding: with CUDA graphs the captured numbers next to each.

    ``effective`` are the settings of a running server, see `telemetry.server_settings`.
    """
    captured = effective.get("cuda_graph_batch_sizes")
    if effective.get("cuda_graph_disabled") or not captured:
        return list(rows)
    below = {max((each for each in captured if each <= n), default=None) for n in rows}
    above = {min((each for each in captured if each >= n), default=None) for n in rows}
    most = effective.get("max_running_requests") or max(captured)
    return sorted(each for each in below | above if each is not None and each <= most)


def of_target(
    effective: Mapping[str, Any],
    settings: SweepSettings,
    client: workload.Client,
    prompts: Sequence[workload.Prompt],
    say: Callable[[str], None],
) -> dict[str, float]:
    """`measure` of a baseline's server with these ``effective`` settings, for what the verifies of a sweep need. Raises
    ServerGone."""
    arms = plan_arms(settings.drafters, settings.variants)
    rows = wanted_rows(arms, settings.concurrency, settings.max_running_requests)
    rows = runnable_rows(rows, effective)
    if not rows or int(effective.get("dp") or 1) > 1:  # replicas share the requests: no forward has as many rows
        return {}
    say(f"the target's forward over {', '.join(map(str, rows))} rows: what a verify costs by its length")
    return measure(client, prompts, rows)


def measure(client: workload.Client, prompts: Sequence[workload.Prompt], rows: Sequence[int]) -> dict[str, float]:
    """Milliseconds of a decode step by requests in flight (as text, for JSON), the median over them.

    ``prompts`` were sent before, so that the prefix cache spares their prefill. Up and down again, so that a drift of
    the machine falls on all alike; the two are averaged. A request that fails counts nowhere. Raises ServerGone.
    """
    short = [replace(each, max_new_tokens=min(each.max_new_tokens, ANSWER_TOKENS)) for each in prompts]
    steps: dict[int, list[float]] = {n: [] for n in rows}
    for n in [*rows, *reversed(rows)]:
        answers: list[dict[str, Any]] = []
        together = [short[i % len(short)] for i in range(n)]
        workload.run_requests(
            client, together, baseline=True, on_sample=answers.append, concurrency=n, company=short if n > 1 else ()
        )
        step_ms = [
            1000 * each["decode_s"] / (each["completion_tokens"] - 1)
            for each in answers
            if not each["error"] and each["completion_tokens"] >= FEWEST_TOKENS
        ]
        steps[n] += [median(step_ms)] if step_ms else []
    return {str(n): fmean(values) for n, values in steps.items() if values}
