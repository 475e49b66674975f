"""A cycle without a profiler, measured where the profiler's windows will lie, and how far these are off it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from breakeven.workload.client import Client
from breakeven.workload.prompts import Prompt

HOST_STEPS = 64
"""The host's window is longer: it is a mean, and its file is small."""
LONG_TOKENS = 256
"""Of the traced answer on a GPU: enough for the host's window."""
PAIRS = {"device": 8, "host": 4}
"""Of a long and a short answer, before anything is recorded: more where they differ by a few cycles only."""
ROUNDS = 3
"""Of such pairs at most, while the host is slower than it was for the measured requests: a slow spell lasts seconds."""
BETWEEN_ROUNDS_S = 2.0
SLOWED = 1.02
"""Times the measured cycle: within it two measurements of one cycle differ anyway."""
LEAD = 8
"""Cycles of both answers of a pair, at least, before those between their ends. Where the short answer was of one cycle,
on H200s, pairs told up to 3.5 % less than the requests and the trace did; eight cycles later they agree (on one server,
interleaved, medians of 8 pairs: 6.34 to 6.50 ms against 6.56 to 6.57, the requests 6.54)."""


@dataclass(frozen=True)
class Measured:
    """What the requests told that were measured just before: ``cycle_ms``, in which is what each costs once, and
    ``text_tokens``, how many stood before a cycle in the mean, the prompt's among them."""

    cycle_ms: float | None = None
    text_tokens: float | None = None


UNMEASURED = Measured()


@dataclass(frozen=True)
class Stretch:
    """Cycles amid an answer: the ``after`` that was answered before them, where a recorder goes on, and the mean
    ``text_tokens`` before each. ``long`` and ``short`` are the tokens of two answers between whose ends they lie, both
    going on from ``pair_after``, up to ``LEAD`` cycles earlier."""

    after: Sequence[int] = ()
    pair_after: Sequence[int] = ()
    long: int = 0
    short: int = 0
    text_tokens: float = 0.0


@dataclass(frozen=True)
class Answer:
    """How many cycles an answer took (steps without speculation), and its decode time."""

    cycles: int
    decode_ms: float


def long_answer(
    client: Client, prompt: Prompt, text_tokens: float | None, context_length: int | None
) -> tuple[Prompt, dict[str, Any]]:
    """The prompt with an answer long enough for both windows behind so much text, and such an answer's sample.

    It is the second answer: a drafter that learns from what it sees, as n-grams do, drafts better from then on, and the
    windows come later still.
    """
    behind = client.prompt_tokens(prompt)
    wanted = max(prompt.max_new_tokens, LONG_TOKENS, round((text_tokens or 0) - behind) + LONG_TOKENS // 2)
    if context_length:
        wanted = max(1, min(wanted, context_length - behind - 1))
    prompt = replace(prompt, max_new_tokens=wanted)
    client.generate(prompt, baseline=False, ignore_eos=True)
    return prompt, client.generate(prompt, baseline=False, ignore_eos=True)


def stretches_of(sample: Mapping[str, Any], steps: int, text_tokens: float | None) -> dict[str, Stretch]:
    """The stretch of the full window (device) and of the host's, each of the cycles that the window counts.

    A cycle grows with the text before it (on an H200, where the verify's attention is not split along the text, by 6 %
    over 160 tokens, in steps): only the same stretch can be compared, and only behind ``text_tokens``, as many as the
    measured cycles had in the mean, is it as long as theirs. Of short answers, where the window would begin within the
    first ``LEAD`` cycles, it lies behind these; without ``text_tokens`` in the middle of the answer. Empty from a
    release that reports no times.
    """
    cycles = cycles_of(sample)
    if not sample["decode_s"] or cycles < 1:
        return {}
    per_cycle = (sample["completion_tokens"] - 1) / cycles
    middle = (text_tokens - sample["prompt_tokens"]) / per_cycle if text_tokens else cycles / 2

    def stretch(window: int, left_out: int) -> Stretch:
        lead = max(0, LEAD - left_out)
        before = int(min(max(lead, middle - (left_out + window) / 2), max(0, cycles - window)))
        lead = min(lead, before)
        last = min(window, cycles - before)
        first = max(1, left_out * last // window)
        after, pair_after = (sample["output_ids"][: round(per_cycle * count)] for count in (before, before - lead))
        whole = sample["completion_tokens"] - len(pair_after)
        long, short = (min(whole, 1 + max(1, round(per_cycle * (lead + count)))) for count in (last, first))
        behind = sample["prompt_tokens"] + per_cycle * (before + (first + last) / 2)
        return Stretch(after, pair_after, long, short, behind)

    # one step of the full window is the prefill; the host's leaves out its first quarter, see `traces.host_cycle`
    return {"device": stretch(steps - 1, 0), "host": stretch(HOST_STEPS, HOST_STEPS // 4)}


def before_recording(
    client: Client, prompt: Prompt, stretches: Mapping[str, Stretch], measured: Measured
) -> dict[str, Any]:
    """`untraced_cycle` of a server that recorded nothing yet: a recorder can slow its host after it has stopped (on one
    H200 server 18 of 31 answers within 40 s after a full window took 3 to 22 % longer, none of 133 without one).

    It is that of the device's stretch, with the mean ``text_tokens`` before it and before the measured cycles;
    ``host_cycle_ms`` is that of the host's, None where its pairs tell none. A cycle longer than ``SLOWED`` times the
    measured one may be that of a host that slowed down since. Both are measured again, up to ``ROUNDS`` times in all
    (``rounds``), and the answers of the quickest round are kept: a disturbance makes no answer shorter.
    """
    rounds: list[dict[str, list[Answer]]] = []
    while stretches and len(rounds) < ROUNDS:
        time.sleep(BETWEEN_ROUNDS_S if rounds else 0.0)
        rounds.append({whose: _answers(client, prompt, each, PAIRS[whose]) for whose, each in stretches.items()})
        cycle_ms = untraced_cycle(rounds[-1]["device"]).get("cycle_ms")
        if cycle_ms is None or measured.cycle_ms is None or cycle_ms <= SLOWED * measured.cycle_ms:
            break
    quickest = {whose: min((each[whose] for each in rounds), key=_mean_ms) for whose in stretches}
    device, alone = (untraced_cycle(quickest.get(whose, [])) for whose in ("device", "host"))
    if not device:
        return {}
    texts = {"text_tokens": stretches["device"].text_tokens, "measured_text_tokens": measured.text_tokens}
    return device | texts | {"host_cycle_ms": alone.get("cycle_ms"), "rounds": len(rounds)}


def _answers(client: Client, prompt: Prompt, stretch: Stretch, pairs: int) -> list[Answer]:
    """A long and a short answer, so many times."""
    answers = []
    for tokens in [stretch.long, stretch.short] * pairs:
        asked = replace(prompt, max_new_tokens=tokens)
        sample = client.generate(asked, baseline=False, after=stretch.pair_after, ignore_eos=True)
        answers.append(Answer(max(1, cycles_of(sample)), 1000 * sample["decode_s"]))
    return answers


def _mean_ms(answers: Sequence[Answer]) -> float:
    return sum(each.decode_ms for each in answers) / sum(each.cycles for each in answers)


def untraced_cycle(answers: Sequence[Answer]) -> dict[str, Any]:
    """The cycle that pairs of a long and a short answer to one prompt give, without a profiler.

    ``cycle_ms`` is the median over the pairs of ``(long - short) / (their cycles' difference)``: the cycles between the
    two lengths alone, so that what a request costs once drops out, if it costs the short answer as much as the long
    one (see ``LEAD``). ``cycles_ms``: each pair's; ``n``: the cycles between all pairs. Empty where no long answer took
    more cycles.
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


def held_against(untraced: Mapping[str, Any], launched_ms: float, host_ms: float | None) -> dict[str, Any]:
    """How far two traced windows are off the same cycles untraced, as shares: ``device_off`` and ``host_off``.

    A cycle is as long as the slower of two takes: the device, to run what was launched, or the host, to launch it.
    Recording leaves a launch as long as it is and slows the host, so that a period of the recorded host that is longer
    than the cycle says nothing of the cycle; one as long as the cycle may be the host's own or its wait for the device.
    ``off`` is the lesser of the two and ``nearer`` whose it is, device or host. Where both are far off, the host
    without a recorder lies between the two, and the trace does not tell where. ``untraced`` is what
    `before_recording` found: ``cycle_ms`` and ``host_cycle_ms``.
    """
    off = {"device": launched_ms / untraced["cycle_ms"] - 1}
    if host_ms is not None and untraced["host_cycle_ms"] is not None:
        off["host"] = host_ms / untraced["host_cycle_ms"] - 1
    nearer = min(off, key=lambda whose: abs(off[whose]))
    return {**{f"{whose}_off": share for whose, share in off.items()}, "off": off[nearer], "nearer": nearer}


def cycles_of(sample: Mapping[str, Any]) -> int:
    """The cycles of an answer: its verifies, without speculation its steps after the prefill."""
    return int(sample["verify_ct"] or sample["completion_tokens"] - 1)
