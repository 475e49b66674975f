"""The plan: what to try next, ranked by what the figures say it would bring, with what would refute it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from breakeven.costs.formulas import Chain
from breakeven.costs.whatif import Change, Point, apply, target_forward
from breakeven.errors import UserError

NO_GAIN = 0.0005
NEAR_TIE = 0.005
"""Expected gains closer than this are ranked by effort."""


@dataclass(frozen=True)
class Option:
    """Something to try. ``least``, ``likely``, ``most``: its effect and the range of it; ``risk``: chance that nothing
    comes of it."""

    least: Change
    likely: Change
    most: Change
    effort_days: float
    risk: float
    how_to_try: str
    refuted_by: str

    @staticmethod
    def ranging(
        change: Change, least: float, most: float, effort_days: float, risk: float, how_to_try: str, refuted_by: str
    ) -> Option:
        """An option whose effect lies between ``least`` and ``most`` times that of ``change``."""
        return Option(change.scaled(least), change, change.scaled(most), effort_days, risk, how_to_try, refuted_by)


def plan(point: Point, options: Iterable[Option]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Options that are likely to gain anything, ranked, and those that are not, each with ``why``.

    Ranked by expected gain in tokens per second of the better arm, ``(1 - risk) x likely gain``; where two are within
    half a percentage point, the one with less effort goes first. Gains are fractions; ``arm`` is the one that would be
    the faster. Effort and risk are judged, not measured.
    """
    rows: list[dict[str, Any]] = []
    for option in options:
        likely = apply(point, option.likely)
        least, most = sorted(apply(point, end).best_tok_s / point.best_tok_s - 1 for end in (option.least, option.most))
        gain = likely.best_tok_s / point.best_tok_s - 1
        rows.append(
            {
                "option": option.likely.name,
                "arm": "speculation" if likely.speedup > 1 else "baseline",
                "gain": gain,
                "gain_low": least,
                "gain_high": most,
                "expected_gain": (1 - option.risk) * gain,
                "base_gain": likely.base_tok_s / point.base_tok_s - 1,
                "spec_gain": likely.spec_tok_s / point.spec_tok_s - 1,
                "break_even_after": likely.break_even,
                "pays_after": likely.speedup > 1,
                "effort_days": option.effort_days,
                "risk": option.risk,
                "evidence": option.likely.evidence,
                "how_to_try": option.how_to_try,
                "refuted_by": option.refuted_by,
            }
        )

    def order(row: dict[str, Any]) -> tuple[float, float, float]:
        return (-round(row["expected_gain"] / NEAR_TIE), row["effort_days"], -row["expected_gain"])

    gaining = sorted((row for row in rows if row["gain"] > NO_GAIN), key=order)
    others = [{**row, "why": _why_left_out(row)} for row in rows if row["gain"] <= NO_GAIN]
    return [{"rank": rank, **row} for rank, row in enumerate(gaining, 1)], others


def _why_left_out(row: dict[str, Any]) -> str:
    if row["spec_gain"] > NO_GAIN and not row["pays_after"]:
        return f"speculation {row['spec_gain']:+.1%} and still slower than the baseline"
    return f"{row['evidence']}, {row['gain']:+.1%} ({row['gain_low']:+.1%} to {row['gain_high']:+.1%})"


def usual_options(
    point: Point,
    *,
    allreduce_ms: float | None = None,
    chain: int | None = None,
    chains: Sequence[Chain] = (),
    trained: bool = True,
    fused: Change | None = None,
) -> list[Option]:
    """The optimisations that come up for speculation on several GPUs, with effects from this point's own figures.

    ``allreduce_ms`` is the all-reduce time in one target forward, from a trace (None: options on it are left out, since
    nothing is known to save); ``chain`` and ``chains`` are the chain in use and the table of `formulas.chain_table`;
    ``trained`` is False for a drafter that is no model (an n-gram table); ``fused`` is what an all-reduce bench says of
    fusing, in place of a share. The shares of the all-reduce time that an
    option may save are ranges to be replaced by a measurement: everything is modelled, but for a chain whose cycle was
    measured. Raises UserError when the all-reduces are longer than the step that holds them.
    """
    options = []
    if allreduce_ms:
        if allreduce_ms >= point.step_ms:
            raise UserError(
                f"all-reduces of {allreduce_ms:g} ms do not fit into a baseline step of {point.step_ms:g} ms; measure "
                f"them in a trace of the baseline"
            )
        options += [
            Option.ranging(
                fused if fused and name == fused.name else _all_reduces_saved(name, share, allreduce_ms),
                least, most, days, risk, how, refuted,
            )
            for name, share, least, most, days, risk, how, refuted in ALLREDUCE_OPTIONS
        ]  # fmt: skip
    options += _drafter_options(point, chain, chains, trained)
    return options


ALLREDUCE_OPTIONS = (
    # name, share of the all-reduce time saved, least and most times that, days, risk, how to try, what refutes it
    (
        "NCCL tuning (algorithm, protocol, channels)", 0.15, 0.0, 2.0, 0.5, 0.4,
        "all-reduce bench at the verify's payload over NCCL_ALGO and NCCL_PROTO, the best as a variant of the sweep",
        "the bench shows no setting more than 5 % below the default",
    ),
    (
        "fused all-reduce and RMSNorm", 0.10, -0.5, 3.0, 1.0, 0.5,
        "open the gate, prove by a trace that it ran, measure both arms interleaved (public reports on SM120: a small "
        "gain at TP2, a loss at TP4, about nothing at TP8)",
        "the trace names no fused kernel, or the step is not shorter than A/A noise",
    ),
    (
        "another all-reduce backend", 0.20, 0.0, 2.0, 1.0, 0.5,
        "one variant per backend that the release admits on this GPU",
        "the backend is refused, or its latency at the verify's payload is not below NCCL's",
    ),
    (
        "fewer all-reduces per layer", 0.50, 0.5, 1.0, 15.0, 0.6,
        "count them in a trace; first data-parallel attention, or a smaller TP where the model fits: no new code",
        "time per all-reduce rises as their number falls (bound by bytes, not by latency)",
    ),
    (
        "topology (peer access, placement of ranks)", 0.50, 0.2, 1.6, 10.0, 0.4,
        "peer-to-peer and bandwidth tests between all pairs; then peer access switched on, ranks beside each other",
        "latency between the best pair equals that of the worst",
    ),
)  # fmt: skip


def _all_reduces_saved(name: str, share: float, allreduce_ms: float) -> Change:
    return target_forward(f"{name}, {share:.0%} of the all-reduce time", share * allreduce_ms)


def _drafter_options(point: Point, chain: int | None, chains: Sequence[Chain], trained: bool) -> list[Option]:
    options = []
    known = {row.draft_tokens: row for row in chains if row.cycle_ms is not None}
    if chain in known:
        now = known[chain]
        best = max(known.values(), key=lambda row: row.speedup or 0.0)
        if best.draft_tokens != chain and best.cycle_ms is not None and now.cycle_ms is not None:
            change = Change(
                f"{best.draft_tokens} draft tokens instead of {chain}",
                "measured" if best.cycle_source == now.cycle_source == "measured" else "modelled",
                other_saved_ms=now.cycle_ms - best.cycle_ms,
                accept_length_gained=best.accept_length - now.accept_length,
            )
            options.append(
                Option(
                    change.scaled(0.5), change, change, 0.2, 0.1 if change.evidence == "measured" else 0.3,
                    "a cell of that length in the next sweep", "its measured rate is not above the present one's",
                )
            )  # fmt: skip
    how = "train on the workload's own prompts, compare on prompts held back"
    if not trained:
        how = "more of the prompt in the table (its depth and breadth), then a trained head such as EAGLE-3"
    better = Change("a better drafter (10 % more accept length)", accept_length_gained=0.1 * point.accept_length)
    options.append(
        Option.ranging(
            better, 0.0, 2.5, 10.0 if trained else 1.0, 0.3 if trained else 0.6, how,
            "accept length on held-back prompts rises by less than 3 %",
        )
    )  # fmt: skip
    if point.draft_ms:
        faster = Change("a drafter twice as fast", draft_saved_ms=point.draft_ms / 2)
        options.append(
            Option.ranging(
                faster, 0.3, 1.4, 5.0, 0.4, "a smaller head or draft vocabulary; on a GPU all drafts in one graph",
                "a trace shows that drafting is bound by launches, not by the head's weights",
            )
        )  # fmt: skip
    return options
