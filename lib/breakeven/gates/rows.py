"""The gates of a verdict as rows: one for each deciding expression."""

from __future__ import annotations

from typing import Any

from breakeven.gates.facts import CONTEXT_DEPS
from breakeven.gates.flow import Reach
from breakeven.gates.interpreter import Step
from breakeven.gates.question import Question
from breakeven.gates.values import Leaf

_WORSE = {"open": 0, "depends": 1, "unknown": 2, "closed": 3}


class Rows:
    """The gates of a verdict: one row per deciding expression, the same expression once."""

    def __init__(self, question: Question) -> None:
        self.question = question
        self._rows: dict[tuple[str, int, str, str], dict[str, Any]] = {}

    def add(self, identity: str, reach: Reach, *, is_switch: bool = False) -> None:
        for step in reach.closed:
            self._step(identity, reach, step, "open" if is_switch else "closed", is_switch)
        for step in [] if is_switch and reach.status == "closed" else reach.steps:
            concerns = "arch" in step.leaf.touched or f"setting:{self.question.flag}" in step.leaf.touched
            context = any(dep in CONTEXT_DEPS for dep in step.leaf.touched)
            if not (concerns or context or is_switch or (identity == "sglang.workspace" and not step.known)):
                continue
            result = "closed" if is_switch else "open" if step.known else "unknown" if step.opaque else "open"
            if not step.known and not step.opaque and identity == "sglang.workspace":
                result = "depends"
            self._step(identity, reach, step, result, is_switch)

    def _step(self, identity: str, reach: Reach, step: Step, result: str, is_switch: bool) -> None:
        atoms = step.leaf.deciders() if result == "closed" else step.leaf.atoms()
        context = self.question.context
        relevant = [leaf for leaf in atoms if leaf.is_device] or [
            leaf for leaf in atoms if leaf.deps & set(CONTEXT_DEPS) or any(d.startswith("setting:") for d in leaf.deps)
        ]
        focus = relevant[0] if relevant else atoms[0]
        unsettled = [leaf for leaf in step.leaf.atoms() if leaf.value is None]
        depends = [leaf.text for leaf in unsettled]
        depends += [
            "device name" for leaf in step.leaf.atoms() if "device name" in leaf.touched and context.device_name is None
        ]
        depends += [
            "model architecture"
            for leaf in step.leaf.atoms()
            if "model architecture" in leaf.touched and context.model_arch is None
        ]
        key = (identity, focus.line, focus.file, focus.text)
        row = {
            "id": identity,
            "package": focus.file.partition("/")[0],
            "file": focus.file,
            "line": focus.line,
            "symbol": focus.symbol,
            "expression": focus.text,
            "result": result,
            "because": list(dict.fromkeys(_because(leaf, self.question.arch) for leaf in (relevant or atoms)[:6])),
            "depends_on": [] if step.known else list(dict.fromkeys(depends))[:12],
            "condition": step.leaf.text,
            "reached_from": reach.function.module.symbol(reach.function.node),
            "_deps": set().union(*(leaf.deps for leaf in relevant or atoms)),
        }
        old = self._rows.get(key)
        if old is None or _WORSE[result] > _WORSE[old["result"]]:
            self._rows[key] = row

    def finished(self) -> list[dict[str, Any]]:
        counts: dict[str, int] = {}
        for row in self._rows.values():
            counts[row["id"]] = counts.get(row["id"], 0) + 1
            if counts[row["id"]] > 1:
                row["id"] = f"{row['id']}-{counts[row['id']]}"
        return list(self._rows.values())


def _because(leaf: Leaf, arch: str) -> str:
    value = {True: "true", False: "false", None: "not fixed"}[leaf.value]
    where = f" on {arch}" if "arch" in leaf.touched else ""
    return f"`{leaf.text}` is {value}{where} ({leaf.file}:{leaf.line})"
