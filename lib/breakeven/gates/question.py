"""What a verdict is about: the launch settings that a source declares, the fusion flag, facts under a context."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import Any

from breakeven.gates.facts import Context, Facts, read_settings
from breakeven.gates.interpreter import Frame, Interpreter
from breakeven.gates.program import Module, Program
from breakeven.gates.values import Value, free, known
from breakeven.sources import Source

FLAG_LIKE = re.compile(r"(all_?reduce\w*fus|fus\w*all_?reduce)", re.I)
BACKENDS = ("trtllm", "mnnvl", "cutedsl")


@dataclass
class Question:
    """What a verdict is about."""

    arch: str
    context: Context
    program: Program
    sglang: Source
    declared: dict[str, tuple[Module, ast.AnnAssign]] = field(default_factory=dict)
    owner: Module | None = None
    flag: str | None = None


def find_settings(question: Question) -> None:
    """The class that declares the launch settings: the one with the public names tp_size and nnodes."""
    program = question.program
    best: tuple[int, Module, ast.ClassDef] | None = None
    for rel in program.containing("nnodes", "sglang"):
        if not all(re.search(rf"^\s+{name}\s*:", program.texts[rel], re.M) for name in ("tp_size", "nnodes")):
            continue
        module = program.module(rel)
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                names = {
                    s.target.id for s in node.body if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)
                }
                if {"tp_size", "nnodes"} <= names and (best is None or len(names) > best[0]):
                    best = len(names), module, node
    if best is not None:
        question.owner = best[1]
        question.declared = read_settings(program, best[1], best[2])


def interpreter_for(question: Question, chosen: dict[str, Any]) -> Interpreter:
    facts = Facts(question.context, question.program)
    interpreter = Interpreter(question.program, facts)

    def default(name: str) -> Value | None:
        home, declared = question.declared.get(name, (None, None))
        if home is None or declared is None or declared.value is None:
            return None
        frame = Frame(home, "settings", {}, depth=3)
        value = interpreter.field_default(interpreter.evaluate(declared.value, frame), declared.value, frame)
        if not value.is_known:
            return free(f"setting:{name}")
        return known(value.data, frozenset({f"setting:{name}"}))

    facts.defaults = default
    for name, value in chosen.items():
        facts.chosen[name] = known(value, frozenset({f"setting:{name}"}))
    return interpreter


def on_value(question: Question, name: str) -> Any:
    """The value that asks for fusion: True for a switch, ``auto`` (or the first choice) for a choice."""
    texts = [
        node.value
        for node in ast.walk(question.declared[name][1].annotation)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    is_choice = isinstance(getattr(question.declared[name][1].value, "value", None), type(None))
    if not is_choice:
        return True
    return "auto" if "auto" in texts else next((text for text in texts if text in BACKENDS), True)


def flag_candidates(question: Question) -> list[str]:
    named = [
        name
        for name in question.declared
        if FLAG_LIKE.search(name) and "aiter" not in name and not re.match(r"(enforce|disable|no)_", name)
    ]
    return sorted(named, key=lambda name: "backend" not in name)
