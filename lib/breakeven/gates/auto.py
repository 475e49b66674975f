"""What SGLang does with the flag by itself: where it switches fusion on, and where it takes that back."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

from breakeven.gates.facts import CONTEXT_DEPS, LAUNCH_DEPS
from breakeven.gates.flow import Flow, Reach
from breakeven.gates.interpreter import Interpreter, Step, Watch, mentions
from breakeven.gates.question import FLAG_LIKE, Question, interpreter_for
from breakeven.gates.values import FunctionRef


@dataclass
class Auto:
    """Whether SGLang asks for fusion by itself."""

    answer: str = "no"
    value: Any = None
    reaches: list[Reach] = field(default_factory=list)


def find_auto(question: Question) -> Auto:
    """Every place that stores a value in the flag, judged with the flag off."""
    assert question.flag is not None
    interpreter = interpreter_for(question, {})
    flow = Flow(interpreter)
    auto = Auto()
    rank = {"no": 0, "unknown": 1, "depends": 2, "yes": 3}
    for function in _storing_functions(question, interpreter, question.flag):
        reach = flow.reach(
            function, Watch(stores=frozenset({question.flag}), words=frozenset({question.flag})), wanted=True
        )
        if not any(value.truth is not False for value in reach.values):  # type: ignore[attr-defined]
            continue
        above = _climb_to_context(flow, function)
        if not any(_concerns_context(hop) for hop in [reach, *above]):
            continue
        auto.reaches += [reach, *above]
        answer = _auto_answer([reach, *above])
        if rank[answer] > rank[auto.answer]:
            auto.answer = answer
            if answer in ("yes", "depends"):
                values = [value for value in reach.values if value.is_known]  # type: ignore[attr-defined]
                auto.value = values[0].data if values else None  # type: ignore[attr-defined]
    return auto


def _storing_functions(question: Question, interpreter: Interpreter, name: str) -> list[FunctionRef]:
    found: dict[int, FunctionRef] = {}
    for rel in question.program.containing(name, "sglang"):
        module = question.program.module(rel)
        for node in module.nodes_naming(name):
            stores = (
                (isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store))
                or (isinstance(node, ast.keyword) and node.arg == name)
                or (
                    isinstance(node, ast.Constant)
                    and node.value == name
                    and isinstance(module.parent(node), ast.Dict | ast.Call | ast.Subscript)
                )
            )
            function = module.enclosing_function(node) if stores else None
            if function is not None:
                found[id(function)] = interpreter.function(module, function)
    return list(found.values())


def _concerns_context(reach: Reach) -> bool:
    return any(dep in CONTEXT_DEPS for step in [*reach.steps, *reach.closed] for dep in step.leaf.touched)


def _climb_to_context(flow: Flow, function: FunctionRef) -> list[Reach]:
    """The callers' decisions that concern the context, where the storing function is a helper."""
    hops: list[Reach] = []
    current = [function]
    for _ in range(2):
        above: list[FunctionRef] = []
        for item in current:
            callers, common = flow.callers(item)
            if common or len(callers) > 3:
                continue
            for caller in callers:
                if _is_unconditional(caller, item):
                    above.append(caller)
                    continue
                reach = flow.reach_call(caller, item, lenient=True)
                if reach.closed and all(map(_is_check, reach.closed)):
                    above.append(caller)
                    continue
                if reach.status == "closed" and not any(
                    dep in CONTEXT_DEPS or dep.startswith("setting:") for step in reach.closed for dep in step.leaf.deps
                ):
                    continue
                if _concerns_context(reach) or reach.status == "closed":
                    hops.append(reach)
                above.append(caller)
        current = above
    return hops


def _is_check(step: Step) -> bool:
    """Whether a decision only refuses combinations of other settings: SGLang starts, so what it refuses is not given.

    Those settings were set elsewhere by then; here they are read with their defaults.
    """
    return step.raises and not step.leaf.touched & (LAUNCH_DEPS | set(CONTEXT_DEPS))


def _is_unconditional(caller: FunctionRef, callee: FunctionRef) -> bool:
    """Whether the caller always gets to the call: it stands in no branch and nothing leaves before it."""
    name = frozenset({getattr(callee.node, "name", "")})
    for statement in caller.node.body:  # type: ignore[union-attr]
        if any(mentions(inner, name) for inner in ast.walk(statement)):
            return isinstance(statement, ast.Expr | ast.Assign)
        if any(isinstance(inner, ast.Return) for inner in ast.walk(statement)):
            return False
    return False


def _auto_answer(reaches: list[Reach]) -> str:
    if any(reach.status == "closed" for reach in reaches):
        return "no"
    if any(reach.status == "unknown" for reach in reaches):
        return "unknown"
    for reach in reaches:
        for step in reach.steps:
            if step.known or step.raises:
                continue
            free_deps = {dep for atom in step.leaf.atoms() if atom.value is None for dep in atom.deps}
            if free_deps & {"model architecture", "model type"}:
                return "depends"
    return "yes"


def switched_off(question: Question, asked_for: Any) -> list[Reach]:
    """Places that take the flag back once it is set, under this context (enforcement, deterministic inference)."""
    assert question.flag is not None
    interpreter = interpreter_for(question, {question.flag: asked_for, **_switches(question)})
    flow = Flow(interpreter)
    watch = Watch(stores=frozenset({question.flag}), words=frozenset({question.flag}))
    found = []
    for function in _storing_functions(question, interpreter, question.flag):
        reach = flow.reach(function, watch, wanted=False)
        takes_back = any(value.truth is False for value in reach.values)  # type: ignore[attr-defined]
        if takes_back and any(
            dep.startswith("setting:") for step in [*reach.steps, *reach.closed] for dep in step.leaf.touched
        ):
            found.append(reach)
    return found


def _switches(question: Question) -> dict[str, bool]:
    """Settings that forbid fusion, where the context makes SGLang set them by itself."""
    interpreter = interpreter_for(question, {})
    flow = Flow(interpreter)
    found: dict[str, bool] = {}
    for name in question.declared:
        if not FLAG_LIKE.search(name) or not re.match(r"(enforce_)?disable_|no_", name) or "aiter" in name:
            continue
        for function in _storing_functions(question, interpreter, name):
            reach = flow.reach(function, Watch(stores=frozenset({name}), words=frozenset({name})), wanted=True)
            if reach.status == "open" and all(step.known for step in reach.steps):
                found[name] = True
    return found
