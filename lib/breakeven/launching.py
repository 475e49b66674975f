"""From a run's settings to a server: model, engine, command, environment; and notebook 03's proof that it starts."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from breakeven import artifacts, processes, server, show, telemetry, workload
from breakeven.config import ServingSettings
from breakeven.embedded import engine, model
from breakeven.errors import UserError
from breakeven.machine import gpus

Say = Callable[[str], None]


@dataclass(frozen=True)
class Serving:
    """Everything about a server that does not change from cell to cell."""

    settings: ServingSettings
    run_dir: Path
    model_path: Path
    environment: Mapping[str, str]
    engine_flags: tuple[str, ...]
    encode: Callable[[str], list[int]]

    @classmethod
    def prepare(cls, settings: ServingSettings, run_dir: Path, say: Say = print) -> Serving:
        """Find or make the model, choose the engine. Raises UserError in one line when either can't be had."""
        if importlib.util.find_spec("sglang") is None:
            raise UserError(
                "SGLang is not installed for this Python; run `make setup`, or choose its kernel in Jupyter"
            )
        embedded = settings.engine == "embedded" or (settings.engine == "auto" and not gpus())
        model_path = model.ensure_model(progress=say) if settings.model == "embedded" else Path(settings.model)
        if not (model_path / "config.json").is_file():
            raise UserError(f"model: {model_path} holds no config.json; give a model's folder, or embedded")
        environment = engine.server_environment(os.environ) if embedded else dict(os.environ)
        if settings.use_overlay:
            overlay = run_dir / "overlay"
            if not overlay.is_dir():
                raise UserError(f"use_overlay: {overlay} does not exist; run notebook 02 on this run_dir first")
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(overlay), environment.get("PYTHONPATH")]))
        flags = tuple(engine.server_flags()) if embedded else ()
        return cls(settings, run_dir, model_path, environment, flags, workload.chat_encoder(model_path))

    def spec(self, drafter: server.Drafter | None = None) -> server.LaunchSpec:
        """The launch of one cell; the limits are the same in every arm."""
        return server.LaunchSpec(
            python=sys.executable,
            model_path=str(self.model_path),
            drafter=resolve_drafter(drafter),
            tp=self.settings.tp,
            dtype=self.settings.dtype,
            context_length=self.settings.context_length,
            max_running_requests=self.settings.max_running_requests,
            extra={"enable_metrics": True},  # without it a request's meta has no time of the prefill's end
            defaults=self.engine_flags,
            flags=tuple(self.settings.server_flags),
            env=self.settings.server_env,
        )

    def launch(self, name: str, drafter: server.Drafter | None = None, say: Say = print) -> server.Server:
        """A ready server; use it in a ``with`` block. Raises UserError or server.LaunchFailure."""
        return server.launch(
            self.spec(drafter),
            self.log_path(name),
            engine_env=self.environment,
            ready_timeout_s=self.settings.ready_timeout_s,
            on_progress=say,
            record_path=self.run_dir / "logs" / f"{name}.pid.json",
        )

    def log_path(self, name: str) -> Path:
        """Where a launch's log stands in the run folder."""
        folder = self.run_dir / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.log"


def resolve_drafter(drafter: server.Drafter | None) -> server.Drafter | None:
    """``model: embedded`` stands for the shipped EAGLE-3 head, or for the target itself with STANDALONE."""
    if drafter is None or drafter.model != "embedded":
        return drafter
    if drafter.algorithm == "EAGLE3":
        from breakeven.embedded.drafter import ensure_drafter

        folder = ensure_drafter()
    else:
        folder = model.ensure_model()
    return server.Drafter(**{**vars(drafter), "model": str(folder)})


def end_leftovers(run_dir: Path, say: Say = print) -> None:
    """End servers of this run folder that outlived a killed runner; those of a run in progress are left alone."""
    for record in sorted((run_dir / "logs").glob("*.pid.json")):
        ended = processes.end_leftover(record)
        if ended:
            say(f"ended {len(ended)} processes of {record.name.removesuffix('.pid.json')}, left by an earlier run")


def prove(settings: ServingSettings, run_dir: Path, say: Say = print) -> dict[str, Any]:
    """Launch once without speculation, generate, stop; writes ``server.json`` whether that went well or badly.

    Returns what it wrote. Raises server.LaunchFailure, after writing its class and advice, when the server did not
    come up.
    """
    serving = Serving.prepare(settings, run_dir, say)
    end_leftovers(run_dir, say)
    try:
        with serving.launch("launch-proof", say=say) as running:
            effective = telemetry.server_settings(running.info())
        record = running.record() | {
            "effective": effective,
            "command_line": shlex.join(running.command),
            "stop_s": running.stop_seconds,
            "ready_s": round(sum(running.startup_s.values()), 1),
        }
    except server.LaunchFailure as failure:
        artifacts.write_json(run_dir / "server.json", failure.record())
        raise
    artifacts.write_json(run_dir / "server.json", record)
    return record


def in_words(record: Mapping[str, Any]) -> str:
    """What the launch showed, in one paragraph of Markdown."""
    generation = record["readiness"]["generation"]
    return (
        f"SGLang {record['sglang_version']} was ready after **{record['ready_s']:.0f} s** and generated "
        f"{generation['tokens']} tokens: “{show.plain(generation['text'].strip())}”. It was stopped again in "
        f"{record['stop_s']:.1f} s."
    )


def findings(record: Mapping[str, Any]) -> list[str]:
    """The findings of notebook 03 in words."""
    startup = record["startup_s"]
    longest = max(startup, key=lambda phase: startup[phase])
    requested, effective = record["requested"], record["effective"]
    sentences = [
        f"The server starts on this machine in {record['ready_s']:.0f} s; the longest phase is *{longest}* with "
        f"{startup[longest]:.0f} s. A sweep pays this once per launch."
    ]
    for name in ("max_running_requests", "context_length", "tp", "dtype"):
        asked, got = requested.get(name), effective.get(name)
        if asked is not None and got is not None and str(asked) != str(got):
            sentences.append(f"Asked for {name} {show.plain(asked)}, got {show.plain(got)}.")
    if len(sentences) == 1:
        sentences.append("Every limit that was asked for is in effect.")
    return sentences
