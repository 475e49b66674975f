"""What arithmetic can say against a set of figures: contradictions, impossible values, figures that mean something
else.

A warning is data (a code for programs, a sentence for people, the columns it rests on). None of them changes a figure.
"""

from __future__ import annotations

from collections.abc import Iterable

from breakeven.costs import readings
from breakeven.costs.baselines import origin
from breakeven.costs.figures import Figures, Finding
from breakeven.costs.formulas import accept_length, baseline_step_ms, cycle_ms
from breakeven.costs.readings import EXACT, TIE_BAND, Reading, apart, percent

IDLE_DRAFTER = 1.02


def examine(figures: Figures) -> list[Finding]:
    """Every finding about one row; what the figures are computed with is said by `readings.as_meant`."""
    read = readings.as_meant(figures)
    batch, length = read.figures.batch or 1.0, read.figures.accept_length
    step = baseline_step_ms(batch, figures.base_tok_s) if figures.base_tok_s else None
    implied = readings.implied_cycle_ms(read.figures)
    return [
        *_units(figures, read),
        *_given_length(figures, length, step),
        *_implied_length(read.figures),
        *_cycle(figures, read, implied, step),
        *_parts(figures, read, implied, step),
        *_allreduce(figures, read, implied, step),
        *_speedup(figures, length),
        *origin(figures),
    ]


def _units(figures: Figures, read: Reading) -> Iterable[Finding]:
    for column, unit in read.units.items():
        text = (
            f"{column} is {figures.given[column]:g}: its value is that of {unit}, and milliseconds are wanted. It is "
            "left out"
        )
        yield Finding("another-unit", text, (column,))


def _given_length(figures: Figures, meant: float | None, step: float | None) -> Iterable[Finding]:
    """Findings about the accept length as it was given, and as it is ``meant`` per stream."""
    length, drafts, batch = figures.accept_length, figures.draft_tokens, figures.batch or 1.0
    if length is None or meant is None:
        return
    if length < 1 - EXACT:
        with_bonus = f"AL {length + 1:.4g}"
        if figures.spec_tok_s:
            cycle = cycle_ms(batch, length + 1, figures.spec_tok_s)
            with_bonus += f", cycle {cycle:.4g} ms" + (f", AL* {cycle / step:.3g}" if step else "")
        text = (
            f"accept_length {length:.4g} is below 1, though each verify emits at least the bonus token: it is either "
            f"the accepted drafts without the bonus (then {with_bonus}) or a rate of acceptance (then the accept "
            "length is not known)"
        )
        yield Finding("accept-length-out-of-range", text, ("accept_length",))
    elif not readings.possible_length(length, drafts):
        yield _beyond_the_drafts(f"accept_length {length:.4g}", length, figures, ("accept_length", "draft_tokens"))
    if meant != length:
        text = (
            f"accept_length {length:g} is the total over {batch:g} streams, not tokens per verify of one stream; "
            f"{meant:.4g} is used"
        )
        yield Finding("accept-length-over-batch", text, ("accept_length", "batch"))
    elif readings.doubtful_length(figures):
        text = (
            f"accept_length {length:g} is long for one stream: if it is the total over {batch:g} streams, it is "
            f"{length / batch:.4g} each, and what follows from it is smaller by the same factor"
        )
        yield Finding("accept-length-in-doubt", text, ("accept_length", "batch"))
    yield from _drafter(meant, drafts, f"accept length {meant:.4g}", ("accept_length",))


def _implied_length(figures: Figures) -> Iterable[Finding]:
    """The same of the accept length that rate and cycle imply, where none is given."""
    if figures.accept_length or not figures.spec_tok_s or not figures.cycle_ms:
        return
    batch, drafts, columns = figures.batch or 1.0, figures.draft_tokens, ("spec_tok_s", "cycle_ms")
    length = accept_length(batch, figures.spec_tok_s, figures.cycle_ms)
    what = f"the accept length that spec_tok_s and cycle_ms imply, {length:.4g},"
    if length < 1 - EXACT:
        of_one = f", or the rate is that of one of {batch:g} streams" if length * batch >= 1 else ""
        text = f"{what} is below 1, though each verify emits at least the bonus token: they are of two runs{of_one}"
        yield Finding("accept-length-out-of-range", text, columns)
        return
    if not readings.possible_length(length, drafts):
        yield _beyond_the_drafts(what, length, figures, (*columns, "draft_tokens"))
    yield from _drafter(length, drafts, what, columns)


def _beyond_the_drafts(what: str, length: float, figures: Figures, columns: tuple[str, ...]) -> Finding:
    batch, drafts = figures.batch or 1.0, figures.draft_tokens or 0.0
    total = f", or it is the total over {batch:g} streams ({length / batch:.4g} each)"
    text = (
        f"{what} is more than {drafts:g} draft tokens and the bonus token can give ({drafts + 1:g}): one of the two is "
        f"wrong, or draft_tokens is of another setting{total if readings.may_be_total(figures) else ''}"
    )
    return Finding("accept-length-out-of-range", text, columns)


def _drafter(length: float, drafts: float | None, what: str, columns: tuple[str, ...]) -> Iterable[Finding]:
    most = (drafts or 0.0) + 1
    if length < 1 - EXACT:
        yield Finding("drafter-not-working", f"{what} as it stands would be that of a drafter without use", columns)
    elif length <= IDLE_DRAFTER + EXACT:
        text = (
            f"{what} says that practically no draft is accepted; look for a draft model of another target, a wrong "
            "tokenizer or chat template, or an n-gram table that never matches, before thinking of cost"
        )
        yield Finding("drafter-not-working", text, columns)
    elif most >= 4 and most - 0.05 <= length <= most + EXACT:
        text = (
            f"{what} is the most that {most - 1:g} draft tokens can give: text that repeats itself, or a pinned "
            "acceptance, rather than a drafter's quality"
        )
        yield Finding("every-draft-accepted", text, (*columns, "draft_tokens"))


def _cycle(figures: Figures, read: Reading, implied: float | None, step: float | None) -> Iterable[Finding]:
    given, length = figures.cycle_ms, read.figures.accept_length
    if given and implied and apart(given, implied) and "cycle_ms" not in read.units:
        assert length is not None and figures.spec_tok_s is not None
        if read.batch_fold:
            yield _batch_fold(read.figures, given, implied, step)
        used = "The given cycle is used for AL*, the rates for the speed-up"
        if read.batch_fold:
            used = "The rates are used"
        yield Finding(
            "cycle-contradicts-rate",
            f"cycle_ms {given:.4g} differs by {percent(given, implied)} from the {implied:.4g} ms that "
            f"{figures.spec_tok_s:g} tok/s at accept length {length:.4g} imply: they are of another run, another batch "
            f"or another setting. {used}",
            ("cycle_ms", "spec_tok_s", "accept_length"),
        )
    if step is None:
        return
    if implied and implied < step * (1 - EXACT):
        yield _below_the_step(read.figures, implied, step)
    elif given and given < step * (1 - EXACT):
        why = "the cycle leaves something out, or the baseline is of another run, server or batch"
        if "cycle_ms" in read.left_out:
            why = "see " + ("rate-not-of-the-batch" if read.batch_fold else "another-unit")
        yield Finding(
            "cycle-below-target-step",
            f"cycle_ms {given:.4g} is below the baseline step of {step:.4g} ms, though a cycle contains at least one "
            f"target forward: {why}",
            ("cycle_ms", "base_tok_s"),
        )
    cycle = read.figures.cycle_ms or implied
    drafts = figures.draft_tokens
    if cycle and drafts is not None and cycle / step > (drafts + 1) * (1 + EXACT):
        yield Finding(
            "break-even-out-of-reach",
            f"AL* {cycle / step:.3g} is above {drafts + 1:g}, the most that {drafts:g} draft tokens can give: with "
            f"this cycle speculation can't pay however good the drafter is",
            ("draft_tokens", "base_tok_s"),
        )


def _batch_fold(figures: Figures, given: float, implied: float, step: float | None) -> Finding:
    """The given cycle fits rate and accept length with a factor of the batch: either of the two may be at fault."""
    batch, length = figures.batch or 1.0, figures.accept_length or 0.0
    of_one = f"rates are wanted of all {batch:g} streams, and these are of one: multiply both by {batch:g}"
    of_all = f"accept_length is the total over the streams, {length / batch:.4g} each"
    if step:
        of_one += f" (AL* {implied / step:.3g})"
        of_all += f" (AL* {implied / batch / step:.3g})"
    text = f"cycle_ms {given:.4g} fits spec_tok_s and accept_length with a factor of {batch:g}: "
    if readings.may_be_total(figures):
        text += f"either {of_one}; or {of_all}. The ratio of the rates is the same"
    else:
        text += of_one
    return Finding("rate-not-of-the-batch", text, ("batch", "spec_tok_s", "accept_length", "cycle_ms"))


def _below_the_step(figures: Figures, implied: float, step: float) -> Finding:
    batch, length, rate = figures.batch or 1.0, figures.accept_length, figures.spec_tok_s
    assert length is not None and rate is not None
    text = (
        f"accept length {length:.4g} at {rate:g} tok/s implies a cycle of {implied:.4g} ms, below the baseline step of "
        f"{step:.4g} ms that every cycle contains (a speed-up can't exceed the accept length)"
    )
    if length >= 1 - EXACT:  # below 1 the accept length itself is at fault, and that is said there
        corrected = cycle_ms(batch, length + 1, rate)
        text += (
            f": the accept length probably leaves out the bonus token. With it: AL {length + 1:.4g}, cycle "
            f"{corrected:.4g} ms, AL* {corrected / step:.3g}. Otherwise the baseline is of another run"
        )
    return Finding("cycle-below-target-step", text, ("accept_length", "spec_tok_s", "base_tok_s"))


def _parts(figures: Figures, read: Reading, implied: float | None, step: float | None) -> Iterable[Finding]:
    if figures.verify_ms and implied and apart(figures.verify_ms, implied):
        yield _verify_is_not_the_cycle(figures, read, implied, step)
    verify, draft = read.figures.verify_ms, read.figures.draft_ms
    cycle = read.figures.cycle_ms or implied
    parts = (verify or 0.0) + (draft or 0.0)
    if cycle and parts > cycle * (1 + TIE_BAND) and (draft or read.figures.cycle_ms):
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


def _verify_is_not_the_cycle(figures: Figures, read: Reading, implied: float, step: float | None) -> Finding:
    verify, batch = figures.verify_ms or 0.0, figures.batch or 1.0
    wrong = ""
    if step:
        wrong = f"; taking verify for the cycle would give AL* {verify / step:.2f}, not {implied / step:.2f}"
    if "verify_ms" in read.units:
        rest, wrong = "see another-unit", ""
    elif verify > implied:
        rest = (
            "a verify can't be longer than its cycle, so one of rate, accept length and verify is wrong or of another "
            "run"
        )
    else:
        rest = f"{implied - verify:.1f} ms of the cycle are not verify (draft, sampling, scheduling, gaps)"
        if readings.verify_fits_a_total(read.figures):
            rest += (
                f", or accept_length is the total over {batch:g} streams ({(figures.accept_length or 0.0) / batch:.4g} "
                f"each, a cycle of {implied / batch:.4g} ms)"
            )
    where = "above" if verify > implied else "below"
    text = (
        f"verify_ms {verify:.5g} is {percent(verify, implied)} {where} the cycle of {implied:.1f} ms that rate and "
        f"accept length imply: {rest}. The cycle is used{wrong}"
    )
    return Finding("verify-is-not-the-cycle", text, ("verify_ms", "spec_tok_s", "accept_length"))


def _allreduce(figures: Figures, read: Reading, implied: float | None, step: float | None) -> Iterable[Finding]:
    if not figures.allreduce_count or not figures.allreduce_ms:
        return
    total = figures.allreduce_count * figures.allreduce_ms
    said = f"{figures.allreduce_count:g} all-reduces of {figures.allreduce_ms:g} ms are {total:.5g} ms"
    columns, another_unit = ("allreduce_count", "allreduce_ms"), "allreduce_ms" in read.units
    if step and total > step * (1 + EXACT):
        yield Finding(
            "allreduce-exceeds-baseline-step",
            f"{said}, more than a whole baseline step of {step:.1f} ms, which does the same all-reduces: the figure "
            f"can't hold for both. At most {step / figures.allreduce_count:.3g} ms each in the baseline; if the "
            f"verify's really cost more, payload or waiting does it, and that has to be measured"
            + (" (see another-unit)" if another_unit else ""),
            (*columns, "base_tok_s"),
        )
    if another_unit:
        return
    verify, cycle = read.figures.verify_ms, read.figures.cycle_ms or implied
    if verify and total > verify * (1 + EXACT):
        text = f"{said}, more than the verify of {verify:.4g} ms that holds them"
        yield Finding("allreduce-exceeds-verify", text, (*columns, "verify_ms"))
    elif cycle and total > cycle * (1 + EXACT):
        text = f"{said}, more than the cycle of {cycle:.4g} ms that holds them"
        yield Finding("allreduce-exceeds-cycle", text, (*columns, "cycle_ms"))


def _speedup(figures: Figures, length: float | None) -> Iterable[Finding]:
    if length is None and figures.base_tok_s and figures.spec_tok_s and figures.draft_tokens is not None:
        ratio = figures.spec_tok_s / figures.base_tok_s
        if ratio > (figures.draft_tokens + 1) * (1 + EXACT):
            yield Finding(
                "speedup-out-of-range",
                f"a speed-up of {ratio:.3g} is more than {figures.draft_tokens:g} draft tokens and the bonus token can "
                f"give: the baseline is of another run, server or batch, or draft_tokens is of another setting",
                ("base_tok_s", "spec_tok_s", "draft_tokens"),
            )
