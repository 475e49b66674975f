"""From a run's settings to a server: host, model, engine, command, environment."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from breakeven import server, workload
from breakeven.artifacts import located
from breakeven.config import ServingSettings
from breakeven.embedded import engine, model
from breakeven.errors import UserError
from breakeven.hosts import LOCAL, Host, Local
from breakeven.launch import preflight
from breakeven.launch.design import BASELINE, Arm, Variant
from breakeven.launch.gpu_checks import Finding
from breakeven.launch.reach import open_host, tokenizer_folder
from breakeven.machine import gpus
from breakeven.server import attach, surroundings
from breakeven.server.flags import ranks_here

Say = Callable[[str], None]
PLAIN = Arm(BASELINE, None)
OVERLAY = "overlay"
"""The folder of a run that notebook 02 writes its overlay to."""


@dataclass(frozen=True)
class Serving:
    """Everything about a server that does not change from cell to cell."""

    settings: ServingSettings
    run_dir: Path
    host: Host
    model_path: Path
    """The model's folder on the host."""
    environment: Mapping[str, str]
    engine_flags: tuple[str, ...]
    encode: Callable[[str], list[int]]

    @classmethod
    def prepare(cls, settings: ServingSettings, run_dir: Path, say: Say = print) -> Serving:
        """Find or make the model, choose the engine. Raises UserError in one line when either can't be had."""
        if settings.host.startswith(attach.PREFIX):
            return cls(settings, run_dir, LOCAL, *_attached(settings))
        if settings.host == "local" and settings.python == "auto" and importlib.util.find_spec("sglang") is None:
            raise UserError(
                "SGLang is not installed for this Python; run `make setup`, or choose its kernel in Jupyter"
            )
        host = open_host(settings)
        embedded = settings.engine == "embedded" or (settings.engine == "auto" and not gpus(host))
        model_path = located(settings.model) if isinstance(host, Local) else Path(settings.model)
        if settings.model == "embedded":
            shipped = model.ensure_model(progress=say)
            model_path = host.ship(shipped)
        readable = shipped if settings.model == "embedded" else tokenizer_folder(host, model_path, run_dir)
        ranks = ranks_here(settings.tp, settings.server_flags)
        environment = _embedded_environment(host, ranks) if embedded else host.environ()
        flags = tuple(engine.server_flags()) if embedded else ()
        return cls(settings, run_dir, host, model_path, environment, flags, workload.chat_encoder(readable))

    @property
    def is_attached(self) -> bool:
        """Whether the server runs already and is what it is, whatever the arm."""
        return self.settings.host.startswith(attach.PREFIX)

    def spec(self, arm: Arm = PLAIN) -> server.LaunchSpec:
        """The launch of one arm; the limits are the same in every arm."""
        variant = arm.variant
        return server.LaunchSpec(
            python=self.host.python if self.settings.python == "auto" else self.settings.python,
            model_path=str(self.model_path),
            drafter=resolve_drafter(arm.drafter, self.host),
            tp=self.settings.tp,
            dtype=self.settings.dtype,
            context_length=self.settings.context_length,
            max_running_requests=self.settings.max_running_requests,
            fusion=variant.fusion,
            extra={"enable_metrics": True},  # without it a request's meta has no time of the prefill's end
            defaults=self.engine_flags,
            flags=(*self.settings.server_flags, *variant.flags),
            env=self.variables_of(arm),
            # another machine's prefix stands before its attendant, which starts the server within it
            prefix=tuple(self.settings.command_prefix) if isinstance(self.host, Local) else (),
        )

    def launch(self, name: str, arm: Arm = PLAIN, say: Say = print) -> server.Server:
        """A ready server; use it in a ``with`` block. Raises UserError or server.LaunchFailure."""
        if self.is_attached:
            return attach.attach(self.settings.host.removeprefix(attach.PREFIX), self.log_path(name))
        return server.launch(
            self.spec(arm),
            self.log_path(name),
            engine_env=self.environment_of(arm.variant),
            ready_timeout_s=self.settings.ready_timeout_s,
            on_progress=say,
            record_path=self.run_dir / "logs" / f"{file_name(name)}.pid.json",
            host=self.host,
        )

    def preflight(self, arms: Sequence[Arm] = (PLAIN,)) -> list[Finding]:
        """What can be told of launching these arms before anything is loaded. Raises OSError, UserError."""
        if self.is_attached:
            return []
        return preflight.check(self.host, [self.spec(arm) for arm in arms], self.environment)

    def refuse_unbuildable(self, arms: Sequence[Arm]) -> None:
        """Raises UserError for the first arm whose command or environment can't be made for the release that is there.

        What only a launch would refuse would come after others were measured.
        """
        if self.is_attached:
            return
        releases: dict[frozenset[tuple[str, str]], dict[str, Any]] = {}
        for arm in arms:
            try:
                spec, environment = self.spec(arm), self.whole_environment(arm)
                found_in = frozenset(environment.items())
                if found_in not in releases:
                    releases[found_in] = surroundings.installed_release(spec, self.host, environment)
                server.build_command(spec, releases[found_in]["version"], releases[found_in]["flags"])
            except UserError as error:
                raise UserError(f"{arm.name}: {error}") from None

    def variables_of(self, arm: Arm) -> dict[str, str]:
        """The variables that the parameters set for an arm's server: the suite's, the variant's, the drafter's."""
        return {**self.settings.server_env, **arm.variant.env, **arm.env}

    def whole_environment(self, arm: Arm) -> dict[str, str]:
        """What an arm's server finds: its host's variables or the engine's, the overlay, what the parameters set.

        Of an attached one nothing is known. Raises UserError for an overlay or a ``$NAME`` that is not there.
        """
        if self.is_attached:
            return {}
        return surroundings.environment(self.environment_of(arm.variant), self.variables_of(arm))

    def own_variables(self, arm: Arm) -> dict[str, str]:
        """What a shell has to set to launch the arm's server as the suite does: the engine's variables and these."""
        if self.is_attached:
            return {}
        shell, wanted = self.host.environ(), self.environment_of(arm.variant)
        return {name: value for name, value in wanted.items() if shell.get(name) != value} | self.variables_of(arm)

    def environment_of(self, variant: Variant) -> dict[str, str]:
        """The server's environment, the overlay of notebook 02 first where it is wanted.

        Raises UserError when there is none.
        """
        environment = dict(self.environment)
        if self.settings.use_overlay or variant.use_overlay:
            overlay = self.run_dir / OVERLAY
            if not overlay.is_dir():
                raise UserError(f"use_overlay: {overlay} does not exist; run notebook 02 on this run_dir first")
            there = str(self.host.ship(overlay))
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [there, environment.get("PYTHONPATH")]))
        return environment

    def log_path(self, name: str) -> Path:
        """Where a launch's log stands in the run folder."""
        folder = self.run_dir / "logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{file_name(name)}.log"


def file_name(launch: str) -> str:
    """The name of a launch as that of a file: what its log is called, without the suffix, and its traces' folder."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", launch)


def resolve_drafter(drafter: server.Drafter | None, host: Host = LOCAL) -> server.Drafter | None:
    """``model: embedded`` stands for the shipped EAGLE-3 head, or for the target itself with STANDALONE."""
    if drafter is None or drafter.model is None:
        return drafter
    if drafter.model != "embedded":
        return replace(drafter, model=str(located(drafter.model))) if isinstance(host, Local) else drafter
    if drafter.algorithm == "EAGLE3":
        from breakeven.embedded.drafter import ensure_drafter

        folder = ensure_drafter()
    else:
        folder = model.ensure_model()
    return replace(drafter, model=str(host.ship(folder)))


def _embedded_environment(host: Host, ranks: int) -> dict[str, str]:
    """The embedded engine's environment on a host; another machine has its files in a copy of the library."""
    if host is LOCAL:
        return engine.server_environment(os.environ, ranks=ranks)
    base = host.environ()
    threads = int(base.get("OMP_NUM_THREADS") or engine.default_threads(host.cores(), ranks))
    there = host.library / engine.SITE.relative_to(LOCAL.library)
    mine = engine.server_environment(base, threads, ranks)
    path = mine["PYTHONPATH"].replace(str(engine.SITE), f"{there}:{host.library}")
    return {**mine, "PYTHONPATH": path, "NUMBA_CACHE_DIR": str(host.cache / "kernels")}


def _attached(settings: ServingSettings) -> tuple[Path, Mapping[str, str], tuple[str, ...], Callable[[str], list[int]]]:
    """Model, environment, flags and encoder for a server that runs: its own model, read where it is named or lies."""
    running = attach.look_at(settings.host.removeprefix(attach.PREFIX))
    named = settings.model != "embedded"
    folder = located(settings.model) if named else Path(str(running.effective["model_path"]))
    if not (folder / "config.json").is_file():
        raise UserError(
            f"model: the attached server's {folder} can't be read here; give a folder of this machine with its "
            "tokenizer as model"
        )
    return folder, {}, (), workload.chat_encoder(folder)


def end_leftovers(run_dir: Path, say: Say = print, host: Host = LOCAL) -> None:
    """End servers of this run folder that outlived a killed runner; those of a run in progress are left alone."""
    for record in sorted((run_dir / "logs").glob("*.pid.json")):
        ended = host.end_leftover(record)
        if ended:
            say(f"ended {ended} of {record.name.removesuffix('.pid.json')}, left by an earlier run")
