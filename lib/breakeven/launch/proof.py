"""Notebook 03: one launch that proves itself, what was asked of it and what it does."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from breakeven import artifacts, server, telemetry, workload
from breakeven.display import show
from breakeven.errors import UserError, one_line
from breakeven.holding import held
from breakeven.hosts import LOCAL
from breakeven.launch import four_facts, preflight
from breakeven.launch.gpu_checks import Finding
from breakeven.launch.serving import Serving, end_leftovers
from breakeven.server import attach
from breakeven.workload import profiling

Say = Callable[[str], None]
TRACED_STEPS = 4


def prove(serving: Serving, findings: Sequence[Finding], say: Say = print) -> dict[str, Any]:
    """Launch once without speculation, generate, stop; writes ``server.json`` whether that went well or badly.

    Returns what it wrote. Raises UserError for an error of the preflight or where another process works on the folder,
    before anything is loaded; LaunchFailure, after writing its class and advice, when the server did not come up.
    """
    with held(serving.run_dir):
        return _prove(serving, findings, say)


def _prove(serving: Serving, findings: Sequence[Finding], say: Say) -> dict[str, Any]:
    rows = [finding.as_dict() for finding in findings]
    preflight.refuse_errors(findings)
    end_leftovers(serving.run_dir, say, serving.host)
    path = serving.run_dir / "server.json"
    try:
        with serving.launch("launch-proof", say=say) as running:
            effective = telemetry.server_settings(running.info())
            kernels = _kernels(serving, running, effective)
        record = running.record() | {
            "effective": effective,
            "command_line": shlex.join(running.command) or "none: the server was running already",
            "stop_s": running.stop_seconds,
            "ready_s": round(sum(running.startup_s.values()), 1),
            "preflight": rows,
            "facts": _facts(serving, running, effective, kernels),
        }
    except server.LaunchFailure as failure:
        artifacts.write_json(path, failure.record() | {"preflight": rows})
        raise
    artifacts.write_json(path, record)
    return record


def _kernels(
    serving: Serving, running: server.Server, effective: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]] | None:
    """A short trace's all-reduces and the names of its fused kernels; None where nothing is reduced or traced."""
    if int(effective.get("tp") or 1) < 2 or isinstance(running, attach.Attached):
        return None
    prompt = workload.warm_up(workload.load_prompts(None))[-1]
    folder = serving.run_dir / "traces" / "launch-proof"
    with workload.Client(running.base_url, serving.encode) as client:
        return profiling.target_kernels(running.base_url, client, prompt, TRACED_STEPS, folder, serving.host)


def _facts(
    serving: Serving,
    running: server.Server,
    effective: Mapping[str, Any],
    kernels: tuple[dict[str, Any], list[str]] | None,
) -> list[dict[str, str]]:
    gates_path = serving.run_dir / "gates.json"
    gates = artifacts.read_json(gates_path) if gates_path.exists() else None
    log = LOCAL.lines(running.log_path) if running.log_path.is_file() else iter(())
    all_reduces, fused = kernels or (None, None)
    return four_facts.four_facts(running.command, effective, gates, log, all_reduces, fused)


def in_words(record: Mapping[str, Any]) -> str:
    """What the launch showed, in one paragraph of Markdown."""
    generation = record["readiness"]["generation"]
    said = f"generated {generation['tokens']} tokens: “{show.plain(generation['text'].strip())}”"
    if record["host"].startswith(attach.PREFIX):
        return f"SGLang {record['sglang_version']} at {show.plain(record['base_url'])} was running already and {said}."
    return (
        f"SGLang {record['sglang_version']} was ready after **{record['ready_s']:.0f} s** and {said}. It was stopped "
        f"again in {record['stop_s']:.1f} s."
    )


def findings(record: Mapping[str, Any]) -> list[str]:
    """The findings of notebook 03 in words."""
    if record["host"].startswith(attach.PREFIX):
        return ["The server is somebody else's: it was asked, and left running as it is."]
    startup = record["startup_s"]
    longest = max(startup, key=lambda phase: startup[phase])
    requested, effective = record["requested"], record["effective"]
    where = "this machine" if record["host"] == "local" else show.plain(record["host"])
    sentences = [
        f"The server starts on {where} in {record['ready_s']:.0f} s; the longest phase is *{longest}* with "
        f"{startup[longest]:.0f} s. A sweep pays this once per launch."
    ]
    warnings = [row for row in record["preflight"] if row["severity"] == "warning"]
    sentences += [f"Before the launch: {show.plain(row['found'])}. {row['means']}" for row in warnings]
    rewritten = []
    for name in ("max_running_requests", "context_length", "tp", "dtype"):
        asked, got = requested.get(name), effective.get(name)
        if asked is not None and got is not None and str(asked) != str(got):
            rewritten.append(f"Asked for {name} {show.plain(asked)}, got {show.plain(got)}.")
    return [*sentences, *(rewritten or ["Every limit that was asked for is in effect."])]


def preflight_of(serving: Serving) -> list[Finding]:
    """What is known before the launch; of an attached server, what does not apply to it."""
    if serving.settings.host.startswith(attach.PREFIX):
        return [Finding("note", "attached", text, "") for text in attach.what_is_skipped(serving.settings)]
    try:
        return serving.preflight()
    except ConnectionError as lost:
        raise UserError(one_line(lost)) from None
