"""The arms of a sweep: what each cell is and under which condition it ran.

A cell of ``cells.json`` is a variant of the server, a drafter with its settings (or none) and a condition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from breakeven.launch.design import DEFAULT_VARIANT, TWIN, Condition


def condition_in_words(condition: Condition) -> str:
    """``concurrency 4, temperature 0.7, prompts of about 2000 tokens``; empty for the plain condition."""
    parts = [f"concurrency {condition.concurrency}"] if condition.concurrency != 1 else []
    parts += [f"temperature {condition.temperature:g}"] if condition.temperature else []
    parts += [f"prompts of about {condition.context_tokens} tokens"] if condition.context_tokens else []
    return ", ".join(parts)


@dataclass(frozen=True)
class Arm:
    """One cell: its name in the files, and what it is. ``draft_tokens`` counts the root, as SGLang's flag does."""

    name: str
    variant: str
    condition: Condition
    algorithm: str  # none: the baseline
    steps: int | None
    topk: int | None
    draft_tokens: int | None
    pinned_length: float | None = None  # an accept length that SGLang was told to simulate: costs are real, it is not

    @property
    def speculates(self) -> bool:
        return self.algorithm != "none"

    @property
    def is_twin(self) -> bool:
        """The baseline measured a second time, for the noise floor."""
        return not self.speculates and TWIN in self.name

    @property
    def drafts(self) -> int | None:
        """What the drafter proposes per verify, without the root; the depth of a chain."""
        return self.draft_tokens - 1 if self.draft_tokens else self.steps

    @property
    def is_chain(self) -> bool:
        return self.topk in (None, 1)

    @property
    def family(self) -> tuple[Any, ...]:
        """Arms that differ in the length of the draft alone."""
        return (self.variant, self.condition, self.algorithm, self.topk)

    def words(self, *, one_of_several_loads: bool = False) -> str:
        """``EAGLE3 with 3 steps, variant fused, concurrency 4``; concurrency 1 is named beside others alone."""
        if not self.speculates:
            name = "baseline, second time" if self.is_twin else "baseline"
        elif self.steps:
            tree = f", topk {self.topk}" if not self.is_chain else ""
            name = f"{self.algorithm} with {self.steps} step{'s' if self.steps != 1 else ''}{tree}"
        else:
            name = f"{self.algorithm} with {self.draft_tokens} draft tokens"
        variant = f"variant {self.variant}" if self.variant != DEFAULT_VARIANT else ""
        load = "concurrency 1" if one_of_several_loads and self.condition.concurrency == 1 else ""
        return ", ".join(part for part in (name, variant, load, condition_in_words(self.condition)) if part)


def arms_of(cells: Iterable[Mapping[str, Any]]) -> dict[str, Arm]:
    """Every cell of ``cells.json`` by its name, in the order in which they were first launched."""
    arms: dict[str, Arm] = {}
    for row in cells:
        condition = Condition(
            int(row.get("concurrency") or 1), float(row.get("temperature") or 0.0), int(row.get("context_tokens") or 0)
        )
        variant = row.get("variant") or DEFAULT_VARIANT
        shape = (row.get(key) for key in ("steps", "topk", "draft_tokens", "accept_length_pinned"))
        arms.setdefault(row["cell"], Arm(row["cell"], variant, condition, row["drafter"], *shape))
    return arms


def launch_in_words(row: Mapping[str, Any]) -> str:
    """A launch as people count: restarts from 1."""
    return f"{row['cell']}, restart {row['restart'] + 1}"


def launches(cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every row of ``cells.json`` as a reader wants it: in order, counted from 1, its fate in words."""
    rows = []
    for row in cells:
        failure, streams = row.get("failure"), row.get("concurrency") or 1
        names = ("cell", "ready_s", "requests", "tok_s", "accept_length")
        rows.append(
            {
                **{name: row.get(name) for name in names},
                "order": row["order"] + 1,
                "restart": row["restart"] + 1,
                "concurrency": streams,
                "fate": f"{row['status']}: {failure['class']}, {failure['text']}" if failure else _fate(row),
                "tok_s_all": row["tok_s"] * streams if row.get("tok_s") else None,
                "cycle_ms": row.get("cycle_ms") or row.get("step_ms"),
            }
        )
    return rows


def _fate(row: Mapping[str, Any]) -> str:
    looped = row.get("degenerate") and row["degenerate"] == row.get("requests")
    return f"{row['status']}; every answer loops, none is used" if looped else str(row["status"])


def in_words(arms: Mapping[str, Arm]) -> dict[str, str]:
    """Each arm by its name in words; the name goes with them where two would read the same (n-gram breadths, say)."""
    several = len({arm.condition.concurrency for arm in arms.values()}) > 1
    words = {name: arm.words(one_of_several_loads=several) for name, arm in arms.items()}
    times = Counter(words.values())
    return {name: text if times[text] == 1 else f"{text} ({name})" for name, text in words.items()}


def baselines_of(arms: Mapping[str, Arm], condition: Condition) -> dict[str, Arm]:
    """The baseline of each variant under a condition."""
    return {
        arm.variant: arm
        for arm in arms.values()
        if arm.condition == condition and not arm.speculates and not arm.is_twin
    }
