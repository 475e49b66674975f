"""What to do next, as one ranked list.

Where the verdict is open, the measurement that would decide it comes first: no gain can be ranked before one knows
which arm is the faster. Where it is decided, using the answer comes first. Changes follow, ranked by `plan`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from breakeven.analysis import columns
from breakeven.analysis.ranking import BASELINE, DECIDED, reference_of
from breakeven.analysis.wording import range_of
from breakeven.display.show import digits_for
from breakeven.stats.conclusions import FEWEST_PROMPTS

Row = Mapping[str, Any]
JUDGED = (
    "What share an option saves, the days and the chance that nothing comes of it are an engineer's judgement, the "
    "same in every report; the gain is what follows for these figures. Ranked by likely gain times the chance of any."
)


def next_steps(
    answer: Row,
    comparisons: Sequence[Row],
    ahead: Row | None,
    told: Row | None,
    setting: Row,
    *,
    noise: Sequence[Row] = (),
    fastest: str | None = None,
    rivals: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """The list: rank, step, kind (use | measure | change), brings, how, evidence, judged, refuted_by, as text.

    ``noise``: cells whose launches differ (`cautions.launch_spreads`); ``fastest``: the cell that the launch script of
    the run is for; ``rivals``: arms that can't be told from the best; ``told``: recorded figures, whose measurements
    come first where nothing was measured.
    """
    best = answer["best"]
    pinned = [row for row in comparisons if row["accept_length_pinned"] and row["break_even"]]
    rows: list[dict[str, Any]] = []
    undecided = answer.get("open") or (best if best and best["verdict"] not in DECIDED else None)
    if undecided:
        rows += _decide(undecided, setting, noise)
    if best and best["verdict"] in DECIDED:
        rows += _use(best, fastest, rivals, "Until then, serve" if undecided else "Serve")
    elif pinned:
        rows += [_unpin(setting), *_steady(noise)]
    elif told and not comparisons:
        rows += _meanwhile(answer, told)
        rows += [
            _step(each["measurement"], "measure", f"settles {each['settles']}", how=each["how"]) for each in
            told["measurements"]
        ]  # fmt: skip
    rows += [_change(row) for row in (ahead or {}).get("plan", ())]
    return [{"rank": rank, **row} for rank, row in enumerate(rows, 1)]


def _meanwhile(answer: Row, told: Row) -> Iterable[dict[str, Any]]:
    """What recorded figures already say to do, until something is measured: each rate beside its own baseline."""
    if answer["verdict"] != "does-not-pay":
        return
    slower: dict[tuple[Any, ...], list[Row]] = {}
    for row in told["rows"]:
        if row["verdict"] == "does-not-pay" and row["speedup"]:
            box = (row["notes"].get(name) for name in ("hardware", "model", "tp"))
            slower.setdefault((row["given"]["base_tok_s"], row["batch"], *box), []).append(row)
    brings = "; ".join(_instead_of(rows, named=len(slower) > 1) for rows in slower.values())
    yield _step("Until it is measured, serve without speculation", "use", f"{brings}, as reported", evidence="reported")


def _instead_of(rows: Sequence[Row], *, named: bool) -> str:
    rates = " and ".join(f"{row['spec_tok_s']:g}" + (f" ({row['name']})" if named else "") for row in rows)
    return f"{rows[0]['given']['base_tok_s']:g} tok/s instead of {rates}"


def _step(step: str, kind: str, brings: str, **others: str) -> dict[str, Any]:
    empty = {"how": "", "evidence": "", "judged": "", "refuted_by": ""}
    return {"step": step, "kind": kind, "brings": brings, **empty, **others}


def _use(best: Row, fastest: str | None, rivals: Sequence[str], serve: str) -> Iterable[dict[str, Any]]:
    """To serve what is faster; where launch noise was assumed, only until it is measured."""
    ratio, reference = best["speedup"], reference_of(best)
    if best["assumed_launch_sd"] is not None:
        brings = f"tells whether fresh servers differ by more than the {best['assumed_launch_sd']:.0%} assumed"
        yield _step("Measure on 3 fresh servers each", "measure", brings, how="the same file with -p restarts=3")
        serve = "Until then, serve"
    if best["verdict"] == "pays":
        digits = digits_for(ratio["low"], ratio["high"]) - 2
        gain, low, high = (f"{ratio[name] - 1:+.{digits}%}" for name in ("estimate", "low", "high"))
        brings = f"{gain} ({low} to {high}) over {reference}"
        if rivals:
            named = " and ".join(rivals)
            if len(rivals) > 2:
                named = f"{', '.join(rivals[:2])} and {len(rivals) - 2} more"
            named += f", which {'pays' if len(rivals) == 1 else 'pay'} on these prompts too"
            brings += f"; not shown to be faster than {named}: take what costs you least"
        how = f"launch it by {_launcher(best['cell'], fastest)}; watch the accept length on your own traffic"
        yield _step(f"{serve} with {best['drafter']}", "use", brings, how=how, evidence="measured")
        return
    brings, how = f"speculation is at {range_of(ratio)} of the rate of {reference}", "leave the drafter's flags out"
    if reference != BASELINE:
        serve, how = f"{serve} {reference},", f"launch it by {_launcher(best['against'], fastest)}"
    yield _step(f"{serve} without speculation", "use", brings, how=how, evidence="measured")


def _launcher(cell: str, fastest: str | None) -> str:
    return "fastest.sh in the run's folder" if fastest == cell else "its command line in cells.json"


def _decide(row: Row, setting: Row, noise: Sequence[Row]) -> Iterable[dict[str, Any]]:
    """The measurement that would decide an open verdict."""
    effect = f"whether the {row['speedup']['estimate'] - 1:+.0%} of {row['drafter']} is real"
    restarts, prompts = row["repeats_to_decide"], row["prompts_to_decide"]
    more_prompts = "or a file of your own with prompts: my.jsonl"
    if prompts:
        more_prompts = f"-p prompts_per_kind={math.ceil(prompts / setting['kinds'])}, {more_prompts}"
    if row["prompts"] < FEWEST_PROMPTS:
        brings = f"fewer than {FEWEST_PROMPTS} say nothing about others"
        yield _step(f"Measure {prompts} prompts or more", "measure", brings, how=more_prompts)
    elif restarts:
        step = f"Measure {row['drafter']} and {reference_of(row)} on {restarts} fresh servers each"
        how = f"the same file with -p restarts={restarts}"
        yield _step(step, "measure", f"decides, 4 times in 5, {effect}", how=how)
    elif prompts:
        step = f"Measure about {prompts} prompts of these kinds"
        yield _step(step, "measure", f"decides, 4 times in 5, {effect}", how=more_prompts)
    elif "treat it as none" in row["note"]:
        yield _step("Serve what is simpler", "use", f"{row['note']}", evidence="measured")
    else:
        how = "raise prompts_per_kind, or give your own with prompts: my.jsonl; -p restarts=3 or more"
        yield _step("Measure more prompts of each kind", "measure", f"tells {effect}: {row['note']}", how=how)
    yield from _steady(noise)


def _unpin(setting: Row) -> dict[str, Any]:
    trained = ", with trained weights for model and drafter" if setting.get("random_weights") else ""
    return _step(
        f"Measure the accept length in the same sweep without the pin{trained}", "measure",
        "it pays where the accept length is above the bar",
        how="in the parameter file, take SGLANG_SIMULATE_ACC_LEN out of server_env"
        + (", --load-format=dummy out of server_flags, and name trained checkpoints" if trained else ""),
    )  # fmt: skip


def _steady(noise: Sequence[Row]) -> Iterable[dict[str, Any]]:
    """Launches of one cell that differ by more than a tenth hide any smaller effect."""
    loud = [row for row in noise if row["spread"] > 0.1]
    if loud:
        worst = max(loud, key=lambda row: (not row["explained"], row["spread"]))
        differ = f"launches of {worst['drafter']} differ by {worst['spread']:.0%}"
        how = "more restarts, nothing else on the machine, the server bound to cores of one socket"
        if worst["explained"]:
            brings = f"figures in which the slow launch weighs less: {worst['rates']}"
            yield _step(f"Measure more restarts: {differ}", "measure", brings, how=how)
        else:
            brings = f"how far one launch can be trusted: {worst['rates']}"
            yield _step(f"Find out why {differ}", "measure", brings, how=f"{how}; compare traces")


def _change(row: Row) -> dict[str, Any]:
    low, gain, high = (f"{row[name]:+.0%}" for name in ("gain_low", "gain", "gain_high"))
    ranging = {"measured": f"{gain} ({low} to {high})", "assumed": f"{low} to {high}"}
    brings = ranging.get(row["evidence"], f"about {gain} (judged: {low} to {high})") + " for "
    if row["arm"] == "speculation":
        brings += "speculation"
    else:
        speculation = f"{row['spec_gain']:+.0%} for speculation"
        brings += f"the baseline; where both save the same milliseconds it stays the faster arm ({speculation})"
    judged = f"{row['effort_days']:g} d, {row['risk']:.0%}"
    named = {name: row[name] for name in ("evidence", "refuted_by")}
    return _step(_capital(row["option"]), "change", brings, how=row["how_to_try"], judged=judged, **named)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def left_out_in_words(ahead: Row | None) -> str:
    """One line on what was not ranked; empty where nothing was left out."""
    rows = (ahead or {}).get("left_out", ())
    if not rows:
        return ""
    return (
        "Left out, since nothing is likely to be gained: "
        + "; ".join(f"{row['option']} ({row['why']})" for row in rows)
        + "."
    )


def markdown(steps: Sequence[Row], ahead: Row | None, source: str) -> str:
    """The list as a file of its own."""
    lines = ["# What to do next", "", f"Source: {source}."]
    if ahead and ahead["point"]:
        point = ahead["point"]
        lines += [
            "",
            f"Changes start from {ahead['cell']}: accept length {point['accept_length']:.2f}, cycle "
            f"{point['cycle_ms']:.2f} ms, baseline step {point['step_ms']:.2f} ms, batch {point['batch']:g}.",
        ]
    lines += ["", JUDGED, *(["", ahead["premise"]] if ahead and ahead["premise"] else []), ""]
    lines += ["| " + " | ".join(columns.STEPS.values()) + " |", "|" + " --- |" * len(columns.STEPS)]
    lines += ["| " + " | ".join(_cell(row[name]) for name in columns.STEPS) + " |" for row in steps]
    others = left_out_in_words(ahead)
    return "\n".join([*lines, *(["", others] if others else []), ""])


def _cell(value: Any) -> str:
    return " ".join(str(value).replace("|", "\\|").split())
