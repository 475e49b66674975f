"""What serves an all-reduce that fusion does not take: SGLang's other methods, in the order in which it asks them."""

from __future__ import annotations

import ast
from typing import Any

from breakeven.gates.facts import Context
from breakeven.gates.program import FunctionNode, Module, Program, own_nodes

_NAMES = {
    "ca": "custom all-reduce",
    "pcie_ipc": "PCIe IPC all-reduce of FlashInfer",
    "qr": "quick all-reduce (ROCm)",
    "pymscclpp": "MSCCL++",
    "torch_symm_mem": "PyTorch symmetric memory",
    "pynccl": "NCCL inside piecewise CUDA graphs",
}
_PCIE_SWITCH = "SGLANG_ENABLE_PCIE_IPC_ALLREDUCE"
_PCIE_KERNELS = "PcieIpcAllReduceWorkspace"


def in_front(program: Program, context: Context) -> list[dict[str, Any]]:
    """The methods in order, each with the condition under which it is taken, its place, and what speaks against it.

    Empty where the release has no function that chooses between them by name.
    """
    for rel in program.containing("ca_comm", "sglang"):
        module = program.module(rel)
        for node in dict.fromkeys(module.nodes_naming("ca_comm")):
            if isinstance(node, FunctionNode) and len(found := _methods(module, node)) > 1:
                return [_described(program, context, item, found) for item in found]
    return []


def _methods(module: Module, function: FunctionNode) -> list[dict[str, Any]]:
    found = []
    for node in sorted(own_nodes(function), key=lambda item: getattr(item, "lineno", 0)):
        if not isinstance(node, ast.If):
            continue
        name = next((_named(statement) for statement in node.body if _named(statement)), None)
        if name in _NAMES:
            place = {"file": module.rel, "line": node.test.lineno, "symbol": module.symbol(function)}
            found.append({"name": name, "condition": ast.unparse(node.test), **place})
    return found


def _named(statement: ast.stmt) -> str | None:
    """The method's name that a branch returns or assigns."""
    value = statement.value if isinstance(statement, ast.Return | ast.Assign) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else None


def _described(program: Program, context: Context, item: dict[str, Any], found: list[dict[str, Any]]) -> dict[str, Any]:
    """The method with what keeps it from being taken: ``switch`` (None: none), ``kernels``, ``shadowed_by``."""
    what, switch, kernels, shadowed_by = [_NAMES[item["name"]]], None, "yes", None
    if item["name"] == "ca" and context.tp > 2:
        what.append("beyond two GPUs only where all of them are joined by NVLink")
    if item["name"] == "pcie_ipc":
        switch = _PCIE_SWITCH
        what.append(f"off unless {switch} is set")
        if not program.containing(_PCIE_KERNELS, "flashinfer"):
            kernels = "no"
            what.append("this FlashInfer has no kernels for it, so setting it changes nothing")
        if context.tp == 2 and found.index(item) and found[0]["name"] == "ca":
            shadowed_by = "ca"
            what.append("at TP 2 custom all-reduce is asked first and takes the call")
        if context.deterministic:
            what.append("left off for deterministic inference")
    return {**item, "what": ", ".join(what), "switch": switch, "kernels": kernels, "shadowed_by": shadowed_by}
