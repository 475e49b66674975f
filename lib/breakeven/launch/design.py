"""The design of a sweep: arms (a variant of the server with a drafter or none) under conditions, in which order.

An arm needs a server of its own. A condition (requests in flight, temperature, prompt length) does not: it is measured
on whatever server runs. A cell is one arm under one condition.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from breakeven.errors import UserError, did_you_mean
from breakeven.server.command import FUSION, Drafter, effective_drafter

SHAPE_KEYS = ("algorithm", "model", "steps", "topk", "draft_tokens", "breadth", "depth")
DRAFTER_KEYS = (*SHAPE_KEYS, "env")
VARIANT_KEYS = ("flags", "env", "fusion", "use_overlay")
BASELINE = "baseline"
TWIN = "baseline-again"
DEFAULT_VARIANT = "default"


@dataclass(frozen=True)
class Variant:
    """Settings of the server that are compared with others: more flags, environment, fusion, the overlay."""

    name: str = DEFAULT_VARIANT
    flags: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    fusion: str = "default"
    use_overlay: bool = False


@dataclass(frozen=True)
class Arm:
    """One server: a variant, and a drafter with its effective settings or none."""

    name: str
    drafter: Drafter | None
    variant: Variant = Variant()
    env: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Environment of this drafter's server alone, on top of the variant's."""

    @property
    def baseline(self) -> str:
        """Name of the arm of the same variant that does not speculate."""
        return _named(self.variant, BASELINE)


@dataclass(frozen=True)
class Condition:
    """How a running server is used. ``context_tokens`` is 0 for prompts as they are written."""

    concurrency: int = 1
    temperature: float = 0.0
    context_tokens: int = 0

    @property
    def suffix(self) -> str:
        """What a cell's name ends in; nothing for one greedy request at a time with the prompts as written."""
        parts = [f"@c{self.concurrency}"] if self.concurrency != 1 else []
        parts += [f"@t{self.temperature:g}"] if self.temperature else []
        parts += [f"@x{self.context_tokens}"] if self.context_tokens else []
        return "".join(parts)


@dataclass(frozen=True)
class Launch:
    """One fresh server for one arm."""

    arm: Arm
    restart: int

    @property
    def key(self) -> str:
        return f"{self.arm.name}.restart{self.restart}"


def plan_arms(
    drafters: Iterable[Mapping[str, Any]],
    variants: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    aa_pair: bool = False,
) -> list[Arm]:
    """For each variant the baseline and every combination of the drafters' lists, equal ones merged; the twin last.

    Raises UserError for an unknown key, a missing algorithm or settings that no server can run.
    """
    shapes = _drafters(drafters)
    arms = []
    for variant in _variants(variants or {}):
        arms.append(Arm(_named(variant, BASELINE), None, variant))
        arms += [Arm(_named(variant, shape.label()), shape, variant, env) for shape, env in shapes]
    if aa_pair:
        arms.append(Arm(_named(arms[0].variant, TWIN), None, arms[0].variant))
    return arms


def plan_conditions(
    concurrency: Iterable[int], temperature: Iterable[float], context_tokens: Iterable[int], max_running_requests: int
) -> list[Condition]:
    """Every combination, each once. Raises UserError for an empty list and for values no server can take.

    More in flight than a server runs at once is refused: the rest would wait, and no figure would be of so many.
    """
    lists: dict[str, tuple[list[Any], int]] = {
        "concurrency": (list(concurrency), 1),
        "temperature": (list(temperature), 0),
        "context_tokens": (list(context_tokens), 0),
    }
    for name, (values, least) in lists.items():
        if not values:
            raise UserError(f"{name} is an empty list; give at least one value, such as [{least}]")
        wrong = [value for value in values if value < least]
        if wrong:
            raise UserError(f"{name} holds {wrong[0]!r}; each value has to be {least} or more")
    most = max(lists["concurrency"][0])
    if most > max_running_requests:
        raise UserError(
            f"concurrency holds {most}, and a server runs {max_running_requests} requests at once: the rest would "
            f"wait; set max_running_requests: {most}, or give {max_running_requests} at most"
        )
    product = itertools.product(*(values for values, _ in lists.values()))
    return list(dict.fromkeys(Condition(int(c), float(t), int(p)) for c, t, p in product))


def plan_launches(arms: list[Arm], restarts: int) -> list[Launch]:
    """Every arm once per restart, each second restart in reverse order (A B C, C B A).

    A drift of the machine then falls on all arms alike.
    """
    return [Launch(arm, restart) for restart in range(restarts) for arm in (arms if restart % 2 == 0 else arms[::-1])]


def _drafters(entries: Iterable[Mapping[str, Any]]) -> list[tuple[Drafter, Mapping[str, str]]]:
    shapes: dict[str, tuple[Drafter, Mapping[str, str]]] = {}
    for entry in entries:
        _known(entry, DRAFTER_KEYS, "drafters")
        if "algorithm" not in entry:
            raise UserError(f"drafters: {entry} names no algorithm; for example algorithm: NGRAM")
        env = _environment(entry.get("env", {}), "drafters")
        grid = {key: entry[key] if isinstance(entry[key], list) else [entry[key]] for key in SHAPE_KEYS if key in entry}
        if empty := [key for key, values in grid.items() if not values]:
            raise UserError(
                f"drafters: {empty[0]} of {entry['algorithm']} is an empty list; give a value or leave it out"
            )
        for values in itertools.product(*grid.values()):
            drafter = effective_drafter(Drafter(**dict(zip(grid, values, strict=True))))
            if shapes.setdefault(drafter.label(), (drafter, env)) != (drafter, env):
                raise UserError(
                    f"drafters: two cells would be called {drafter.label()!r}; measure the second in another run"
                )
    return list(shapes.values())


def _environment(env: Any, where: str) -> Mapping[str, str]:
    if not (isinstance(env, Mapping) and all(isinstance(value, str) for value in env.values())):
        raise UserError(f"{where}: env is {env!r}; give names and texts, numbers in quotes")
    return env


def _variants(entries: Mapping[str, Mapping[str, Any]]) -> list[Variant]:
    made = []
    for name, entry in entries.items():
        if not name or any(not (char.isalnum() or char in "-_.") for char in name):
            raise UserError(f"variants: the name {name!r} has to be letters, digits, '-', '_' and '.'")
        if not isinstance(entry, Mapping):
            raise UserError(f"variants: {name} is {entry!r}; give any of {', '.join(VARIANT_KEYS)}")
        _known(entry, VARIANT_KEYS, f"variants: {name}")
        flags, fusion = entry.get("flags", []), entry.get("fusion", "default")
        env = _environment(entry.get("env", {}), f"variants: {name}")
        if not (isinstance(flags, list) and all(isinstance(flag, str) for flag in flags)):
            raise UserError(f"variants: {name}: flags is {flags!r}; give a list of texts")
        if fusion not in FUSION:
            raise UserError(f"variants: {name}: fusion is {fusion!r}{did_you_mean(str(fusion), FUSION)}")
        if not isinstance(overlay := entry.get("use_overlay", False), bool):
            raise UserError(f"variants: {name}: use_overlay is {overlay!r}; give true or false")
        made.append(Variant(name, tuple(flags), env, fusion, overlay))
    return made or [Variant()]


def _known(entry: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    unknown = [key for key in entry if key not in keys]
    if unknown:
        raise UserError(f"{where}: no setting {unknown[0]!r}{did_you_mean(str(unknown[0]), keys)}")


def _named(variant: Variant, name: str) -> str:
    return name if variant.name == DEFAULT_VARIANT else f"{variant.name}/{name}"
