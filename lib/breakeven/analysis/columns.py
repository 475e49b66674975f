"""The columns of the report's tables: keys of the rows in ``breakeven.json``, and headings with units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from breakeven.launch import four_facts
from breakeven.sweep import forecast

FORECAST, ARM_FACTS = forecast.COLUMNS, four_facts.ARM_COLUMNS
COMPARISONS = {
    "drafter": "drafter",
    "speedup_same_prompts": "speed-up on these prompts",
    "verdict_same_prompts": "verdict on these",
    "speedup": "speed-up for other prompts of these kinds",
    "verdict": "verdict for others",
    "spec_tok_s": "tok/s per stream",
    "base_tok_s": "baseline's, per stream",
    "accept_length": "accept length",
    "break_even": "breaks even at",
    "restarts": "restarts",
    "prompts": "prompts",
}


def with_streams(heads: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The headings; where several requests were in flight, with the rate of all streams beside that of one."""
    if all((row.get("concurrency") or 1) == 1 for row in rows):
        return {key: name for key, name in heads.items() if not key.endswith("_all")}
    several: dict[str, str] = {}
    for key, name in heads.items():
        several |= {key: name}
        if key.endswith("tok_s"):
            several |= {f"{key}_all": name.replace("per stream", "of all streams")}
    return several


BARS = {
    "drafter": "drafter",
    "break_even": "breaks even at accept length",
    "cycle_ms": "cycle, ms",
    "step_ms": "baseline's step, ms",
    "base_tok_s": "baseline, tok/s per stream",
    "restarts": "restarts",
    "prompts": "prompts",
}
"""Instead of COMPARISONS where accept lengths were pinned: a rate or a speed-up would be that of the pin."""
VARIANTS = {
    "drafter": "arm",
    "against": "against",
    "outcome": "outcome",
    "speedup": "times its rate",
    "restarts": "restarts",
    "note": "note",
}
KINDS = {
    "drafter": "drafter",
    "kind": "kind of prompt",
    "prompts": "prompts",
    "speedup_same_prompts": "speed-up on these prompts",
    "verdict_same_prompts": "verdict on these",
    "speedup": "speed-up for others",
    "verdict": "verdict for others",
    "accept_length": "accept length",
    "prompts_accept_length": "over prompts: 10 %, half, 90 % have less",
    "break_even": "breaks even at",
}


def kinds(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """KINDS; without what concerns other prompts, or their spread, where every kind has too few to tell."""
    few = all(row["verdict"] == "needs-more" for row in rows)
    unknown = ("speedup", "verdict", "prompts_accept_length") if few else ()
    return {key: name for key, name in KINDS.items() if key not in unknown}


THEORY = {
    "drafter": "drafter",
    "acceptance": "acceptance of the first draft",
    "accept_length": "accept length measured",
    "leviathan_accept_length": "Leviathan's accept length",
    "accept_length_residual": "its residual",
    "verify_steps": "t(n): verify, in steps",
    "draft_cost": "c: one draft, in steps",
    "speedup": "speed-up measured",
    "leviathan_speedup": "Leviathan's speed-up",
    "leviathan_residual": "its residual",
    "sequoia_speedup": "Sequoia's speed-up",
    "sequoia_residual": "its residual",
}
FLOORS = {"name": "floor of one target forward", "ms": "ms", "how": "how it is known"}
WHAT_IF = {
    "change": "change",
    "evidence": "evidence",
    "base_tok_s": "baseline, tok/s of all streams (gain)",
    "spec_tok_s": "speculation, tok/s of all streams (gain)",
    "accept_length": "accept length",
    "break_even_accept_length": "AL*",
    "speedup": "speed-up",
}
LEVERS = {
    "lever": "lever",
    "text": "what brings it to break-even, or may be lost until then",
    "reachable": "within reach",
}
STEPS = {
    "rank": "#",
    "step": "step",
    "brings": "what it decides or brings",
    "how": "how",
    "evidence": "evidence",
    "judged": "judged: days, chance of nothing",
    "refuted_by": "drop it when",
}
LEFT_OUT = {
    "drafter": "left out of the fit",
    "rows": "rows a verify",
    "accept_length_predicted": "accept length predicted",
    "accept_length": "measured",
    "cycle_ms_predicted": "cycle predicted, ms",
    "cycle_ms": "measured",
    "tok_s_predicted": "tok/s per stream predicted",
    "tok_s": "measured",
    "residual": "residual",
    "accept_length_part": "of it by accept length",
    "cycle_part": "of it by cycle",
    "shaped_residual": "residual with a known shape",
}
PREDICTIONS = {
    "arm": "arm, not measured",
    "condition": "condition",
    "accept_length": "accept length",
    "cycle_ms": "cycle interpolated, ms",
    "margin": "margin",
    "tok_s": "tok/s per stream",
    "tok_s_at_best": "at best",
}
REPORTED = {
    "name": "row",
    "evidence": "evidence",
    "verdict": "verdict",
    "speedup": "speed-up",
    "accept_length": "accept length",
    "break_even_accept_length": "AL*",
    "cycle_ms": "cycle, ms",
    "baseline_step_ms": "baseline step, ms",
    "not_verify_ms": "not verify, ms",
    "needs_text": "what is missing",
}
LAUNCHES = {
    "order": "order",
    "cell": "cell",
    "restart": "restart",
    "fate": "fate",
    "ready_s": "ready after, s",
    "requests": "requests",
    "tok_s": "tok/s per stream",
    "accept_length": "accept length",
    "cycle_ms": "cycle or step, ms",
}
WARNINGS = {"code": "code", "text": "what it means"}
