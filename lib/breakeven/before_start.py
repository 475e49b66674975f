"""What can be told of a suite's parameters before anything starts; of a server that runs already it is asked itself."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import Any

from breakeven import sweep
from breakeven.artifacts import from_root, located
from breakeven.config import BreakEvenSettings, Settings, SweepSettings
from breakeven.costs.figures import read_csv
from breakeven.errors import UserError
from breakeven.launch import unlaunched
from breakeven.launch.design import Arm
from breakeven.server import attach, surroundings
from breakeven.sweep import running
from breakeven.sweep.load import Workload

_KEYWORDS = {
    "model": ("embedded", "none"),
    "prompts": ("shipped",),
    "records": ("none",),
    "sglang": ("installed",),
    "flashinfer": ("pinned", "installed"),
}
_OF_THE_HOST = ("model", "sglang", "flashinfer")


def counted_from_root(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters with their paths as the notebooks find them, which run in the project's root, not where we are.

    What exists nowhere, and what is another machine's, stays as it is.
    """
    host = values.get("host", "local")
    own = [name for name in _KEYWORDS if _is_here(host) or name not in _OF_THE_HOST]
    told = {name: _from_root(values[name], _KEYWORDS[name]) for name in own if name in values}
    if _is_here(host) and isinstance(drafters := values.get("drafters"), list):
        told["drafters"] = [_drafter_from_root(each) for each in drafters]
    return {**values, **told}


def check_before_start(settings: Mapping[str, Settings]) -> None:
    """Raises UserError for drafters, variants, conditions, prompts, records and models that no sweep can be made of,
    and for a running server that can't be measured."""
    wanted, judged = settings["04_sweep_drafters"], settings["05_break_even"]
    assert isinstance(wanted, SweepSettings) and isinstance(judged, BreakEvenSettings)
    if judged.records != "none":
        read_csv(located(judged.records))
    if not unlaunched.serves(wanted):
        return
    wanted = attach.as_it_runs(wanted, say=lambda text: None)
    arms = {launch.arm.name: launch.arm for launch in sweep.plan(wanted)}
    running.refuse_pinned(arms.values(), functools.partial(_environment_of, wanted), search=wanted.search)
    Workload.chosen(wanted, _words)
    if wanted.host == "local":
        models = {"model": wanted.model} | {
            f"drafters: the model of {name}": arm.drafter.model
            for name, arm in arms.items()
            if arm.drafter and arm.drafter.model
        }
        for name, folder in models.items():
            if folder != "embedded" and not (located(folder) / "config.json").is_file():
                raise UserError(f"{name}: {folder} holds no config.json; give a model's folder, or embedded")


def _environment_of(settings: SweepSettings, arm: Arm) -> dict[str, str]:
    """The variables of an arm's server as far as they are known here. Raises UserError for a ``$NAME`` that is not."""
    here = os.environ if settings.host == "local" else {}
    return surroundings.environment(here, {**settings.server_env, **arm.variant.env, **arm.env})


def _words(text: str) -> list[int]:
    """Instead of a tokenizer: at least as many tokens as words, so that what is too long by words is too long."""
    return [0] * len(text.split())


def _is_here(host: Any) -> bool:
    return host == "local" or str(host).startswith(attach.PREFIX)


def _from_root(value: Any, keywords: tuple[str, ...] = ("embedded",)) -> Any:
    if not isinstance(value, str) or value in keywords or value.startswith("pypi:") or not value.strip():
        return value
    path = located(value)
    return from_root(path) if path.exists() else value


def _drafter_from_root(entry: Any) -> Any:
    if not isinstance(entry, Mapping) or "model" not in entry:
        return entry
    given = entry["model"]
    model = [_from_root(each) for each in given] if isinstance(given, list) else _from_root(given)
    return {**entry, "model": model}
