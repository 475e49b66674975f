"""What speculation costs and yields, as formulas: cycle, break-even, chains, cost curve, theory.

Every function takes plain numbers or arrays and returns plain numbers; none measures, reads or guesses. Rates are those
of the whole batch (tokens per second summed over its streams), times are milliseconds, accept lengths count the bonus
token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.optimize import brentq

from breakeven.errors import UserError

MS_PER_S = 1000.0


# --- the identities -------------------------------------------------------------------------------------------------


def cycle_ms(batch: float, accept_length: float, spec_tok_s: float) -> float:
    """Milliseconds from one verify to the next, implied by a rate: ``1000 B AL / r``.

    Each stream of the batch emits ``accept_length`` tokens per cycle, so B AL tokens leave the server every cycle.
    """
    return MS_PER_S * batch * accept_length / spec_tok_s


def spec_tok_s(batch: float, accept_length: float, cycle_ms: float) -> float:
    """The rate that a cycle implies: ``1000 B AL / cycle_ms``; `cycle_ms` turned round."""
    return MS_PER_S * batch * accept_length / cycle_ms


def accept_length(batch: float, spec_tok_s: float, cycle_ms: float) -> float:
    """Tokens per verify and stream that a rate and a cycle imply: ``r cycle_ms / (1000 B)``."""
    return spec_tok_s * cycle_ms / (MS_PER_S * batch)


def baseline_step_ms(batch: float, base_tok_s: float) -> float:
    """Milliseconds of one decode step without speculation, one token per stream: ``1000 B / r0``."""
    return MS_PER_S * batch / base_tok_s


def break_even_accept_length(cycle_ms: float, step_ms: float) -> float:
    """AL*, the accept length at which speculation breaks even: one cycle has to yield the tokens of the baseline
    steps that would fit into it, ``cycle_ms / step_ms`` (the same as ``cycle_ms r0 / (1000 B)``)."""
    return cycle_ms / step_ms


def speedup(accept_length: float, cycle_ms: float, step_ms: float) -> float:
    """Rate with speculation over rate without: ``AL / AL* = AL step_ms / cycle_ms``."""
    return accept_length * step_ms / cycle_ms


def break_even_after(cycle_ms: float, step_ms: float, saved_cycle_ms: float, saved_step_ms: float) -> float:
    """AL*' after a change that shortens the cycle and the baseline step: ``(cycle - s_cycle) / (step - s_step)``.

    A saving in the target forward shortens both, and raises AL* wherever ``AL* > s_cycle / s_step``: tokens per second
    rise while the bar for the drafter rises too. Savings may be negative (a loss). Raises ValueError when a saving
    leaves nothing over.
    """
    if saved_cycle_ms >= cycle_ms or saved_step_ms >= step_ms:
        raise ValueError(
            f"a saving of {saved_cycle_ms:g} ms per cycle and {saved_step_ms:g} ms per baseline step "
            f"leaves nothing of {cycle_ms:g} ms and {step_ms:g} ms"
        )
    return (cycle_ms - saved_cycle_ms) / (step_ms - saved_step_ms)


# --- acceptance by position: one run at the longest chain tells about all shorter ones -------------------------------


def accept_length_by_chain(histogram: Sequence[float]) -> np.ndarray:
    """Accept length of every chain up to the one that was run; entry k is that of k drafted tokens (entry 0 is 1).

    ``histogram[j]`` counts the verifies in which j drafts were right. A chain cut to k drafts accepts ``min(j, k)`` of
    them, so ``AL(k) = 1 + sum_j min(j, k) h_j / sum_j h_j``. Holds for chains (topk 1) under greedy decoding, where
    what a drafter proposes at a position does not depend on the chain's length. Raises UserError for an empty or
    negative histogram.
    """
    return 1.0 + np.concatenate(([0.0], np.cumsum(_survival(histogram))))


def accept_length_by_chain_over_requests(histograms: Sequence[Sequence[float]], tokens: Sequence[float]) -> np.ndarray:
    """The same for a workload: entry k is ``sum T / sum(T / AL(k))`` over requests of T tokens, each with its own
    histogram.

    One histogram over all requests would weigh a prompt by the verifies that it took at the longest chain; at a shorter
    one the easy prompts take more of them. On prompts of mixed difficulty that is 2 % of accept length. ``tokens`` are
    those after the prefill's. Raises UserError when nothing is given, or the two do not match.
    """
    if len(histograms) == 0 or len(histograms) != len(tokens):
        raise UserError(
            f"{len(histograms)} histograms of correct drafts for {len(tokens)} requests; one each is needed"
        )
    longest = max(len(histogram) for histogram in histograms)
    padded = [[*histogram, *[0.0] * (longest - len(histogram))] for histogram in histograms]
    lengths = np.stack([accept_length_by_chain(histogram) for histogram in padded])
    weights = np.asarray(tokens, dtype=float)
    return weights.sum() / (weights[:, None] / lengths).sum(axis=0)


def acceptance_by_position(histogram: Sequence[float]) -> np.ndarray:
    """Entry i: share of accepted drafts at position i + 1 among the verifies that accepted all before it.

    NaN where no verify got so far. Raises UserError for an empty or negative histogram.
    """
    survival = np.concatenate(([1.0], _survival(histogram)))
    with np.errstate(invalid="ignore", divide="ignore"):
        return survival[1:] / survival[:-1]


def _survival(histogram: Sequence[float]) -> np.ndarray:
    """P(at least i drafts right) for i = 1 .. len(histogram) - 1."""
    counts = np.asarray(histogram, dtype=float)
    if counts.ndim != 1 or counts.size == 0 or not np.all(np.isfinite(counts)) or counts.min() < 0 or counts.sum() == 0:
        raise UserError("the histogram of correct drafts has to be a list of counts, at least one above zero")
    at_least = np.cumsum(counts[::-1])[::-1]
    return at_least[1:] / counts.sum()


# --- theory ---------------------------------------------------------------------------------------------------------


def expected_accept_length(acceptance: float, draft_tokens: float) -> float:
    """``(1 - a^(k+1)) / (1 - a)``: tokens per verify, bonus included, when each draft is accepted with the same
    independent probability a. Leviathan, Kalman and Matias 2023, "Fast Inference from Transformers via Speculative
    Decoding", equation 1."""
    if acceptance == 1.0:
        return draft_tokens + 1.0
    return (1.0 - acceptance ** (draft_tokens + 1.0)) / (1.0 - acceptance)


def expected_speedup(acceptance: float, draft_tokens: float, draft_cost: float) -> float:
    """``(1 - a^(k+1)) / ((1 - a) (k c + 1))``: speed-up when verifying costs one baseline step and each draft costs c
    of it. Leviathan et al. 2023, theorem 3.8. What a measurement falls short of it is the verify's own growth and the
    gaps."""
    return expected_accept_length(acceptance, draft_tokens) / (draft_tokens * draft_cost + 1.0)


def expected_tree_speedup(expected_tokens: float, verify_steps: float, depth: float, draft_cost: float) -> float:
    """``G(n, d) / (t(n) + d c)``: speed-up of a tree of n tokens and depth d, with t(n) the measured verify time and c
    the time of one draft level, both in baseline steps. Chen et al. 2024, "Sequoia", section 4."""
    return expected_tokens / (verify_steps + depth * draft_cost)


def required_acceptance(accept_length: float, draft_tokens: float) -> float | None:
    """The acceptance per position that gives this accept length with this chain: `expected_accept_length` solved for a.

    With AL* in place of the accept length it is what a drafter needs to break even. 0 when none is needed; None when
    even a chain that is always accepted stays below (``accept_length > draft_tokens + 1``).
    """
    if accept_length <= 1.0:
        return 0.0
    if accept_length > draft_tokens + 1.0:
        return None
    return float(brentq(lambda a: expected_accept_length(a, draft_tokens) - accept_length, 0.0, 1.0))


# --- the cost curve -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """One point of a cost curve. ``source`` says how it is known; ``cycle_ms`` is None where it is not."""

    draft_tokens: int
    cycle_ms: float | None
    source: Literal["measured", "interpolated", "outside"]


def cost_at(measured: Mapping[int, float], draft_tokens: int, forward_ms: Mapping[int, float] | None = None) -> Cost:
    """The cycle at a chain length, from measured ones (``{draft tokens: cycle_ms}``).

    Between two neighbours it is interpolated and says so. Outside of what was measured it is unknown: the curve is
    jagged (kernels change with the shape), so that neither a fitted line nor monotony may be assumed. Where
    ``forward_ms``, the target's forward by the drafts that it verifies, holds the three lengths, its jumps are in the
    cycle and the rest alone (drafts and the host) is interpolated. That may be less than nothing: many requests, in
    which the forward was measured, can cost more than a verify with as many rows.
    """
    if draft_tokens in measured:
        return Cost(draft_tokens, float(measured[draft_tokens]), "measured")
    if not measured or not min(measured) < draft_tokens < max(measured):
        return Cost(draft_tokens, None, "outside")
    left, right = max(k for k in measured if k < draft_tokens), min(k for k in measured if k > draft_tokens)
    known = forward_ms if forward_ms and {left, draft_tokens, right} <= forward_ms.keys() else {}
    rest = [measured[k] - known.get(k, 0.0) for k in (left, right)]
    between = float(np.interp(draft_tokens, (left, right), rest))
    return Cost(draft_tokens, known.get(draft_tokens, 0.0) + between, "interpolated")


def forward_by_drafts(forward_ms_by_rows: Mapping[int, float], streams: int) -> dict[int, float]:
    """Milliseconds of the target's forward by the drafts that it verifies for each of ``streams`` requests.

    A verify of k drafts is a forward of ``streams * (k + 1)`` rows. Between two measured numbers of rows it is
    interpolated.
    """
    if not forward_ms_by_rows:
        return {}
    most = max(forward_ms_by_rows)
    rows = (n for n in range(min(forward_ms_by_rows), most + 1) if n % streams == 0)
    return {n // streams - 1: ms for n in rows if (ms := cost_at(forward_ms_by_rows, n).cycle_ms) is not None}


@dataclass(frozen=True)
class Chain:
    """What a chain of ``draft_tokens`` drafts gives. Rates are of the batch; None where the cycle is unknown."""

    draft_tokens: int
    accept_length: float
    cycle_ms: float | None
    cycle_source: str
    break_even_accept_length: float | None
    spec_tok_s: float | None
    speedup: float | None
    required_acceptance: float | None


def chain_table(
    accept_lengths: Sequence[float] | np.ndarray,
    measured_cycle_ms: Mapping[int, float],
    step_ms: float,
    batch: float = 1.0,
    forward_ms: Mapping[int, float] | None = None,
) -> list[Chain]:
    """Every chain from 1 draft on: cycle measured or interpolated, and what follows. ``accept_lengths[k]`` is that of k
    drafts (see `accept_length_by_chain_over_requests`); ``forward_ms`` as for `cost_at`."""
    chains = []
    for drafts, length in list(enumerate(accept_lengths))[1:]:
        cost = cost_at(measured_cycle_ms, drafts, forward_ms)
        if cost.cycle_ms is None:
            chains.append(Chain(drafts, float(length), None, cost.source, None, None, None, None))
            continue
        needed = break_even_accept_length(cost.cycle_ms, step_ms)
        chains.append(
            Chain(
                drafts,
                float(length),
                cost.cycle_ms,
                cost.source,
                needed,
                spec_tok_s(batch, float(length), cost.cycle_ms),
                float(length) / needed,
                required_acceptance(needed, drafts),
            )
        )
    return chains
