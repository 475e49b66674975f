"""What arithmetic can say against a set of figures: contradictions, impossible values, figures that mean something
else.

A warning is data (a code for programs, a sentence for people, the columns it rests on). None of them changes a figure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from breakeven.costs.figures import Figures
from breakeven.costs.formulas import accept_length, baseline_step_ms, cycle_ms

TIE_BAND = 0.03
"""Relative difference that two figures from the field may show and still mean the same: 3 %, unless an interval is
known."""

EXACT = 1e-9
"""Slack for comparisons that are meant literally, so that rounding in the last bit decides nothing."""

IDLE_DRAFTER = 1.02
LONGEST_CHAIN = 16
"""No public drafter emits more than this many tokens per verify and stream; more is a total over several streams."""


@dataclass(frozen=True)
class Finding:
    code: str
    text: str
    columns: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"columns": list(self.columns)}


def reads_as_batch_total(figures: Figures) -> bool:
    """Whether the given accept length can only be the tokens of all streams together.

    Two signs: the implied cycle is as many times too long as there are streams (against a cycle or a verify given on
    its own), or the value is beyond any drafter's chain. In both it has to be at least one token per stream.
    """
    batch, length = figures.batch or 1.0, figures.accept_length
    if batch < 2 or length is None or length < batch:
        return False
    return length > max(LONGEST_CHAIN, (figures.draft_tokens or 0) + 1) or _implied_is_batch_times_too_long(figures)


def _implied_is_batch_times_too_long(figures: Figures) -> bool:
    seen = figures.cycle_ms or figures.verify_ms
    if seen is None or figures.spec_tok_s is None or not figures.accept_length or (figures.batch or 1.0) < 2:
        return False
    return abs(cycle_ms(1.0, figures.accept_length, figures.spec_tok_s) / seen - 1) <= 0.1


def examine(figures: Figures) -> list[Finding]:
    """Every finding about one row; the accept length is taken per stream (see `reads_as_batch_total`)."""
    found: list[Finding] = []
    batch, length = figures.batch or 1.0, figures.accept_length
    if reads_as_batch_total(figures):
        assert length is not None
        found += [*_out_of_range(length, figures.draft_tokens, "accept_length"), _batch_total(length, batch)]
        length = length / batch
    elif length is not None:
        found += _out_of_range(length, figures.draft_tokens, "accept_length")
    step = baseline_step_ms(batch, figures.base_tok_s) if figures.base_tok_s else None
    implied = cycle_ms(batch, length, figures.spec_tok_s) if length and figures.spec_tok_s else None
    return [
        *found,
        *_drafter(length, figures, batch),
        *_cycle(figures, length, implied, step, batch),
        *_parts(figures, implied, step),
        *_allreduce(figures, implied, step),
        *_baseline(figures, length),
    ]


def _batch_total(length: float, batch: float) -> Finding:
    return Finding(
        "accept-length-over-batch",
        f"accept_length {length:g} is the total over {batch:g} streams, not tokens per verify of one stream; "
        f"{length / batch:.4g} is used",
        ("accept_length", "batch"),
    )


def _out_of_range(length: float, drafts: float | None, what: str) -> Iterable[Finding]:
    code = "accept-length-out-of-range"
    if length < 1 - EXACT:
        text = (
            f"{what} {length:.4g} is below 1: each verify emits at least the bonus token, so this is no accept length "
            f"(a rate, or accepted drafts without the bonus?)"
        )
        yield Finding(code, text, ("accept_length",))
    elif drafts is not None and length > (drafts + 1) * (1 + EXACT):
        text = (
            f"{what} {length:.4g} is more than {drafts:g} draft tokens and the bonus token can give ({drafts + 1:g}): "
            f"one of the two is wrong, or draft_tokens is of another setting"
        )
        yield Finding(code, text, ("accept_length", "draft_tokens"))


def _drafter(length: float | None, figures: Figures, batch: float) -> Iterable[Finding]:
    drafts = figures.draft_tokens
    if length is not None and length <= IDLE_DRAFTER + EXACT:
        yield Finding(
            "drafter-not-working",
            f"accept length {length:.4g}: practically no draft is accepted; look for a draft model of another target, "
            f"a wrong tokenizer or chat template, or an n-gram table that never matches, before thinking of cost",
            ("accept_length",),
        )
    elif (
        length is not None and drafts is not None and drafts >= 3 and drafts + 1 - 0.05 <= length <= drafts + 1 + EXACT
    ):
        yield Finding(
            "every-draft-accepted",
            f"accept length {length:.4g} is the most that {drafts:g} draft tokens can give: text that repeats itself, "
            f"or a pinned acceptance, rather than a drafter's quality",
            ("accept_length", "draft_tokens"),
        )
    if length is None and figures.spec_tok_s and figures.cycle_ms:
        implied = accept_length(batch, figures.spec_tok_s, figures.cycle_ms)
        yield from _out_of_range(implied, drafts, "the accept length that spec_tok_s and cycle_ms imply,")


def _cycle(
    figures: Figures, length: float | None, implied: float | None, step: float | None, batch: float
) -> Iterable[Finding]:
    if figures.cycle_ms and implied and _apart(figures.cycle_ms, implied):
        if _implied_is_batch_times_too_long(figures) and not reads_as_batch_total(figures):
            yield Finding(
                "rate-not-of-the-batch",
                f"the given cycle fits spec_tok_s only as the rate of one stream; rates here are of all {batch:g} "
                f"streams: multiply both by {batch:g} if so",
                ("batch", "spec_tok_s", "cycle_ms"),
            )
        assert length is not None and figures.spec_tok_s is not None
        yield Finding(
            "cycle-contradicts-rate",
            f"cycle_ms {figures.cycle_ms:.4g} differs by {_percent(figures.cycle_ms, implied)} from the {implied:.4g} "
            f"ms that {figures.spec_tok_s:g} tok/s at accept length {length:.4g} imply: they are of another run, "
            f"another batch or another setting{_unit_hint(figures.cycle_ms, implied)}. The given cycle is used for "
            f"AL*, the rates for the speed-up",
            ("cycle_ms", "spec_tok_s", "accept_length"),
        )
    if step is None:
        return
    if implied and implied < step * (1 - EXACT):
        assert length is not None and figures.spec_tok_s is not None
        corrected = cycle_ms(batch, length + 1, figures.spec_tok_s)
        yield Finding(
            "cycle-below-target-step",
            f"accept length {length:.4g} at {figures.spec_tok_s:g} tok/s implies a cycle of {implied:.4g} ms, below "
            f"the baseline step of {step:.4g} ms that every cycle contains (a speed-up can't exceed the accept "
            f"length): the accept length probably leaves out the bonus token. With it: AL {length + 1:.4g}, cycle "
            f"{corrected:.4g} ms, AL* {corrected / step:.3g}. Otherwise the baseline is of another run",
            ("accept_length", "spec_tok_s", "base_tok_s"),
        )
    elif figures.cycle_ms and figures.cycle_ms < step * (1 - EXACT):
        yield Finding(
            "cycle-below-target-step",
            f"cycle_ms {figures.cycle_ms:.4g} is below the baseline step of {step:.4g} ms, though a cycle contains at "
            "least one target forward: the cycle leaves something out, or the baseline is of another run, server or "
            "batch",
            ("cycle_ms", "base_tok_s"),
        )
    cycle = figures.cycle_ms or implied
    drafts = figures.draft_tokens
    if cycle and drafts is not None and cycle / step > (drafts + 1) * (1 + EXACT):
        yield Finding(
            "break-even-out-of-reach",
            f"AL* {cycle / step:.3g} is above {drafts + 1:g}, the most that {drafts:g} draft tokens can give: with "
            f"this cycle speculation can't pay however good the drafter is",
            ("draft_tokens", "base_tok_s"),
        )


def _parts(figures: Figures, implied: float | None, step: float | None) -> Iterable[Finding]:
    verify, draft = figures.verify_ms, figures.draft_ms
    cycle = figures.cycle_ms or implied
    if verify and implied and _apart(verify, implied):
        where = "above" if verify > implied else "below"
        rest = (
            "a verify can't be longer than its cycle, so one of rate, accept length and verify is wrong or of another "
            "run"
            if verify > implied
            else f"{implied - verify:.1f} ms of the cycle are not verify (draft, sampling, scheduling, gaps)"
        )
        wrong = (
            f"; taking verify for the cycle would give AL* {verify / step:.2f}, not {implied / step:.2f}"
            if step
            else ""
        )
        yield Finding(
            "verify-is-not-the-cycle",
            f"verify_ms {verify:.4g} is {_percent(verify, implied)} {where} the cycle of {implied:.1f} ms that rate "
            f"and accept length imply: {rest}{_unit_hint(verify, implied)}. The cycle is used{wrong}",
            ("verify_ms", "spec_tok_s", "accept_length"),
        )
    parts = (verify or 0.0) + (draft or 0.0)
    if cycle and parts > cycle * (1 + TIE_BAND) and (draft or figures.cycle_ms):
        yield Finding(
            "parts-exceed-cycle",
            f"draft and verify add up to {parts:.4g} ms, more than the cycle of {cycle:.4g} ms: the parts overlap, or "
            f"they are of another run or batch",
            ("verify_ms", "draft_ms", "cycle_ms"),
        )
    if cycle is None and parts and verify:
        yield Finding(
            "cycle-is-a-lower-bound",
            f"no cycle is given or implied: {parts:.4g} ms of {'draft and verify' if draft else 'verify'} stand in for "
            f"it, and what happens between two verifies is missing, so the true AL* is higher",
            ("verify_ms", "draft_ms"),
        )
    if verify and step and verify < step * (1 - TIE_BAND):
        yield Finding(
            "verify-below-baseline-step",
            f"verify_ms {verify:.4g} is below the baseline step of {step:.4g} ms, though a verify does the same "
            "forward for more tokens: the baseline is of another run, server or batch, or holds host gaps that the "
            "verify time leaves out",
            ("verify_ms", "base_tok_s"),
        )


def _allreduce(figures: Figures, implied: float | None, step: float | None) -> Iterable[Finding]:
    if not figures.allreduce_count or not figures.allreduce_ms:
        return
    total = figures.allreduce_count * figures.allreduce_ms
    said = f"{figures.allreduce_count:g} all-reduces of {figures.allreduce_ms:g} ms are {total:.4g} ms"
    columns = ("allreduce_count", "allreduce_ms")
    if step and total > step * (1 + EXACT):
        yield Finding(
            "allreduce-exceeds-baseline-step",
            f"{said}, more than a whole baseline step of {step:.1f} ms, which does the same all-reduces: the figure "
            f"can't hold for both. At most {step / figures.allreduce_count:.3g} ms each in the baseline; if the "
            f"verify's really cost more, payload or waiting does it, and that has to be measured",
            (*columns, "base_tok_s"),
        )
    cycle = figures.cycle_ms or implied
    if figures.verify_ms and total > figures.verify_ms * (1 + EXACT):
        text = f"{said}, more than the verify of {figures.verify_ms:.4g} ms that holds them"
        yield Finding("allreduce-exceeds-verify", text, (*columns, "verify_ms"))
    elif cycle and total > cycle * (1 + EXACT):
        text = f"{said}, more than the cycle of {cycle:.4g} ms that holds them"
        yield Finding("allreduce-exceeds-cycle", text, (*columns, "cycle_ms"))


def _baseline(figures: Figures, length: float | None) -> Iterable[Finding]:
    if length is None and figures.base_tok_s and figures.spec_tok_s and figures.draft_tokens is not None:
        ratio = figures.spec_tok_s / figures.base_tok_s
        if ratio > (figures.draft_tokens + 1) * (1 + EXACT):
            yield Finding(
                "speedup-out-of-range",
                f"a speed-up of {ratio:.3g} is more than {figures.draft_tokens:g} draft tokens and the bonus token can "
                f"give: the baseline is of another run, server or batch, or draft_tokens is of another setting",
                ("base_tok_s", "spec_tok_s", "draft_tokens"),
            )
    source, base_source = figures.notes.get("source", ""), figures.notes.get("base_source", "")
    mixed = re.search(r"[+&,;/]\s*[^+&,;/]*\bbaseline\b|\bbaseline\b.*\b(from|of|in|by)\b", source, re.IGNORECASE)
    if base_source and source and base_source != source:
        yield _of_another_run(f"base_source is {base_source!r} and source is {source!r}", "base_source")
    elif mixed:
        yield _of_another_run(f"source says {source!r}", "source")


def _of_another_run(evidence: str, column: str) -> Finding:
    text = (
        f"{evidence}: the baseline is of another run, so speed-up and AL* compare two machines or set-ups, not two arms"
    )
    return Finding("baseline-of-another-run", text, ("base_tok_s", column))


def examine_together(rows: Sequence[Figures]) -> dict[str, list[Finding]]:
    """Findings that only a comparison of rows can show, by row id.

    Rows that name the same source, hardware, model and TP share one server, so that per batch there is one baseline,
    and not the same one at two batches. Rows that name none of these are left alone.
    """
    found: dict[str, list[Finding]] = {}
    groups: dict[tuple[str, ...], list[Figures]] = {}
    for row in rows:
        key = tuple(row.notes.get(name, "") for name in ("source", "hardware", "model", "tp"))
        if row.base_tok_s and row.notes.get("source") and row.notes.get("model"):
            groups.setdefault(key, []).append(row)
    for group in groups.values():
        for row in group:
            for other in group:
                same_batch = (row.batch or 1.0) == (other.batch or 1.0)
                assert row.base_tok_s is not None and other.base_tok_s is not None
                if same_batch and _apart(row.base_tok_s, other.base_tok_s):
                    text = f"row {other.id!r} of the same source, model and batch has {other.base_tok_s:g} tok/s"
                elif not same_batch and row.base_tok_s == other.base_tok_s:
                    text = f"row {other.id!r} has the same baseline at another batch ({other.batch or 1:g})"
                else:
                    continue
                found.setdefault(row.id, []).append(_of_another_run(text, "batch"))
                break
    return found


def _unit_hint(given_ms: float, implied_ms: float) -> str:
    """A factor of about a thousand is a unit, not a measurement."""
    for factor, unit in ((1e-3, "seconds"), (1e3, "microseconds")):
        if abs(given_ms / implied_ms / factor - 1) < 0.2:
            return f"; its value is that of {unit}, and milliseconds are wanted"
    return ""


def _apart(left: float, right: float) -> bool:
    return max(left, right) / min(left, right) - 1 > TIE_BAND


def _percent(left: float, right: float) -> str:
    return f"{100 * abs(left / right - 1):.1f} %"
