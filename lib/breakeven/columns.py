"""The columns of notebook 05's tables: keys of the rows in ``breakeven.json``, and headings with units."""

"get."

COMPARISONS = {
    "drafter": "drafter",
    "verdict": "verdict",
    "speedup": "speed-up",
    "verdict_same_prompts": "verdict on these prompts",
    "speedup_same_prompts": "speed-up on these prompts",
    "accept_length": "accept length",
    "break_even": "break-even accept length",
    "margin": "margin",
    "p_pays": "P(it pays)",
    "restarts": "restarts",
    "prompts": "prompts",
}
VARIANTS = {
    "drafter": "arm",
    "against": "against",
    "verdict": "verdict",
    "speedup": "times its rate",
    "p_pays": "P(faster)",
    "restarts": "restarts",
    "note": "note",
}
KINDS = {
    "drafter": "drafter",
    "kind": "kind of prompt",
    "verdict": "verdict",
    "speedup": "speed-up",
    "accept_length": "accept length",
    "prompts_accept_length": "over prompts: 10 %, half, 90 % have less",
    "break_even": "break-even accept length",
    "margin": "margin",
    "p_pays": "P(it pays)",
    "prompts": "prompts",
}
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
    "base_tok_s": "baseline, tok/s",
    "base_gain": "baseline's gain",
    "spec_tok_s": "speculation, tok/s",
    "spec_gain": "speculation's gain",
    "accept_length": "accept length",
    "break_even_accept_length": "AL*",
    "break_even_change": "AL* moves by",
    "speedup": "speed-up",
    "pays": "pays",
}
LEVERS = {
    "lever": "lever",
    "needed": "needed (negative: may be lost)",
    "unit": "unit",
    "reachable": "within reach",
    "text": "in words",
}
PLAN = {
    "rank": "rank",
    "option": "optimisation",
    "gain": "gain of the better arm",
    "expected_gain": "expected gain",
    "pays_after": "pays after",
    "effort_days": "effort, days",
    "risk": "risk",
    "evidence": "evidence",
    "how_to_try": "how to try it",
    "refuted_by": "refuted by",
}
PREDICTIONS = {
    "arm": "arm, not measured",
    "condition": "condition",
    "source": "cycle",
    "accept_length": "accept length",
    "cycle_ms": "cycle, ms",
    "margin": "margin",
    "tok_s": "tok/s",
    "tok_s_at_best": "tok/s at best",
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
MEASUREMENTS = {"measurement": "what would settle it", "settles": "what it settles"}
LAUNCHES = {
    "order": "order",
    "cell": "cell",
    "restart": "restart",
    "fate": "fate",
    "ready_s": "ready after, s",
    "requests": "requests",
    "tok_s": "tok/s",
    "accept_length": "accept length",
    "cycle_ms": "cycle or step, ms",
    "log": "log",
}
WARNINGS = {"code": "code", "text": "what it means"}
