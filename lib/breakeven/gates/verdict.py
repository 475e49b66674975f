"""The verdict on one SGLang source, one FlashInfer source and one GPU architecture."""

from __future__ import annotations

import ast
from typing import Any

from breakeven import artifacts
from breakeven.gates.auto import Auto
from breakeven.gates.facts import LAUNCH_DEPS
from breakeven.gates.flow import Reach
from breakeven.gates.front import in_front
from breakeven.gates.kernels import Kernel
from breakeven.gates.paths import Runtime, kernel_functions
from breakeven.gates.program import FunctionNode, Module
from breakeven.gates.question import Question, flag_candidates
from breakeven.gates.rows import Rows
from breakeven.sources import Source


def without_a_path(question: Question, partner: Source | str | None, why: str) -> dict[str, Any]:
    """The answer where no way from a launch setting to the kernel was found.

    ``absent`` where the source has neither the one nor the other end of it, else ``unknown``, with what it has quoted.
    """
    found = _loose_ends(question)
    answer = "unknown" if found else "no"
    return {
        "schema_version": artifacts.SCHEMA_VERSION,
        "arch": question.arch,
        "sglang": {"version": question.sglang.version, "origin": question.sglang.origin},
        "flashinfer": {
            "version": getattr(partner, "version", partner),
            "origin": getattr(partner, "origin", None),
            "why": why,
            "cuda_floor": None,
            "words": None,
        },
        "flag": None,
        "option": None,
        "auto_enabled": answer,
        "admitted": answer,
        "available": "unknown",
        "backend": None,
        "backend_if_admitted": None,
        "verdict": "unknown" if found else "absent",
        "patchable": False,
        "gates": found,
        "depends_on": [],
        "in_front": [],
    }


def _loose_ends(question: Question) -> list[dict[str, Any]]:
    """What speaks of the feature without leading anywhere: a setting, a call of the kernel, or no settings at all."""
    calls = kernel_functions(question.program)
    rows = [
        unknown_row(module, node, f"{node.name} calls the fused kernel; no launch setting was found that leads there")
        for module, node in calls
    ]
    if question.owner is None:
        return rows
    for name in [] if calls else flag_candidates(question):
        module, field = question.declared[name]
        why = f"the setting {name} is declared, and no call of FlashInfer's fused kernel was found"
        rows.append(unknown_row(module, field, why))
    return rows


def unknown_row(module: Module, node: ast.AST, why: str) -> dict[str, Any]:
    """A row that quotes a place which was not understood."""
    named = isinstance(node, FunctionNode | ast.ClassDef)
    return {
        "id": "sglang.unknown",
        "package": module.package,
        "file": module.rel,
        "line": getattr(node, "lineno", 0),
        "symbol": module.symbol(node),
        "expression": node.name if named else ast.unparse(node),  # type: ignore[attr-defined]
        "result": "unknown",
        "because": [why],
        "depends_on": [],
    }


def compose(
    question: Question,
    runtime: Runtime,
    auto: Auto,
    switches: list[Reach],
    kernel: Kernel | None,
    opened: Source | None,
    why: str,
) -> dict[str, Any]:
    admitted = {"open": "yes", "closed": "no", "unknown": "unknown"}[runtime.status]
    off = [reach for reach in switches if reach.status == "open" and all(step.known for step in reach.steps)]
    if off:
        admitted = "no"
    available = kernel.available if kernel is not None else "unknown"
    rows = Rows(question)
    # from the flag to the kernel
    for reach in auto.reaches:
        rows.add("sglang.auto-enable", reach)
    for reach in switches:
        rows.add("sglang.enforce", reach, is_switch=True)
    for hop in runtime.hops:
        rows.add("sglang.runtime", hop)
    for name, stage in sorted(runtime.stages, key=lambda item: item[0]):
        rows.add(f"sglang.{name}", stage)
    gates = rows.finished()
    gates += kernel.gates if kernel is not None else []
    closing = [
        gate["_deps"]
        for gate in gates
        if "_deps" in gate and gate["result"] == "closed" and not gate["id"].startswith("sglang.auto")
    ]
    arch_only = (
        not off
        and any("arch" in deps for deps in closing)
        and not any("arch" not in deps and deps & LAUNCH_DEPS for deps in closing)
    )
    verdict = _verdict(admitted, available, runtime)
    auto_answer = "no" if off else auto.answer
    for gate in gates:
        gate.pop("_deps", None)
    return {
        "schema_version": artifacts.SCHEMA_VERSION,
        "arch": question.arch,
        "sglang": {"version": question.sglang.version, "origin": question.sglang.origin},
        "flashinfer": {
            "version": opened.version if opened is not None else None,
            "origin": opened.origin if opened is not None else None,
            "why": why,
            "cuda_floor": kernel.cuda_floor if kernel else None,
            "words": kernel.words if kernel else None,
        },
        "flag": question.flag,
        "option": _option(question.flag, runtime.asked_for),
        "auto_enabled": auto_answer,
        "admitted": admitted,
        "available": available,
        "backend": runtime.backend if admitted == "yes" else None,
        "backend_if_admitted": runtime.backend,
        "verdict": verdict,
        "patchable": verdict == "denied-by-sglang" and arch_only,
        "gates": gates,
        "depends_on": sorted({item for gate in gates for item in gate["depends_on"]}),
        "in_front": in_front(question.program, question.context),
    }


def _option(flag: str | None, value: Any) -> str | None:
    """How the flag is given on the command line: ``--flashinfer-allreduce-fusion-backend auto``."""
    if flag is None:
        return None
    return f"--{flag.replace('_', '-')}" + ("" if value is True else f" {value}")


def _verdict(admitted: str, available: str, runtime: Runtime) -> str:
    if "unknown" in (admitted, available):
        return "unknown"
    if admitted == "yes":
        if available == "yes":
            return "runs"
        return "denied-by-flashinfer" if runtime.guarded else "crashes"
    return "denied-by-sglang" if available == "yes" else "denied-by-both"
