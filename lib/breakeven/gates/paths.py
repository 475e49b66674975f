"""The runtime's ways to the fused kernel once fusion is asked for: predicates, preflights, the backend's resolver."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from breakeven.gates.facts import Context
from breakeven.gates.flow import Climb, Flow, Reach
from breakeven.gates.interpreter import Interpreter, Step, Watch, mentions
from breakeven.gates.program import FunctionNode, Module, Program, own_nodes
from breakeven.gates.question import BACKENDS, Question, flag_candidates, interpreter_for, on_value
from breakeven.gates.values import FunctionRef, RaisedError

# FlashInfer's public names: where SGLang calls one of these with a residual, the fused kernel runs.
_KERNEL_CALLS = frozenset({"trtllm_allreduce_fusion", "allreduce_fusion"})
_OWN_ALIASES = frozenset({"_allreduce_fusion", "_trtllm_allreduce_fusion"})
_RESIDUAL_WORDS = frozenset({"residual_in", "rms_gamma", "kARResidualRMSNorm"})
_WORKSPACE_CALLS = frozenset({
    "create_allreduce_fusion_workspace", "_create_allreduce_fusion_workspace",
    "trtllm_create_ipc_workspace_for_all_reduce_fusion", "MNNVLCuteDSLAllReduceFusionWorkspace",
})  # fmt: skip
_RANK = {"closed": 0, "unknown": 1, "open": 2}


@dataclass
class Runtime:
    """The ways to the fused kernel once fusion is asked for."""

    status: str
    hops: list[Reach]
    asked_for: Any
    backend: str | None
    stages: list[tuple[str, Reach]]
    guarded: bool
    interpreter: Interpreter


def kernel_functions(program: Program, names: frozenset[str] = _KERNEL_CALLS) -> list[tuple[Module, FunctionNode]]:
    """The functions of SGLang that call FlashInfer's fused kernel with a residual."""
    found = []
    for rel in dict.fromkeys(rel for name in sorted(names) for rel in program.containing(name, "sglang")):
        module = program.module(rel)
        for node in dict.fromkeys(n for name in sorted(names) for n in module.nodes_naming(name)):
            if isinstance(node, FunctionNode) and _names_in(node) & names and _names_in(node) & _RESIDUAL_WORDS:
                found.append((module, node))
    return found


def _names_in(function: FunctionNode) -> set[str]:
    names: set[str] = set()
    for node in own_nodes(function):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.keyword) and node.arg:
            names.add(node.arg)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def find_runtime(question: Question, asked_for: Any = None) -> Runtime | None:
    """Follow every way to the kernel with fusion asked for; None where no launch setting asks for it."""
    candidates = [question.flag] if question.flag else flag_candidates(question)
    if not candidates:
        candidates = _unnamed_flags(question)
    for name in candidates:
        assert name is not None
        value = asked_for if asked_for is not None else on_value(question, name)
        runtime = _follow(question, name, value)
        if question.flag == name or _touches(runtime.hops, name):
            question.flag = name
            return runtime
    reference = Context((9, 0), question.context.model_arch)
    if question.flag is None and question.context != reference:
        # something else closes the way before the flag is read: find the flag where nothing does
        plainly = Question(
            question.arch, reference, question.program, question.sglang, question.declared, question.owner
        )
        if find_runtime(plainly) is not None:
            question.flag = plainly.flag
            return find_runtime(question, asked_for)
    return None


def _touches(hops: list[Reach], name: str) -> bool:
    return any(f"setting:{name}" in step.leaf.touched for hop in hops for step in [*hop.steps, *hop.closed])


def _unnamed_flags(question: Question) -> list[str]:
    """Settings that are off by default and close the way then: candidates where no name speaks of fusion."""
    hops = _follow(question, "", True).hops
    found = [
        dep.removeprefix("setting:")
        for hop in hops
        for step in hop.closed
        for leaf in step.leaf.deciders()
        for dep in sorted(leaf.deps)
        if dep.startswith("setting:")
    ]
    return [name for name in dict.fromkeys(found) if name in question.declared and "aiter" not in name]


def _follow(question: Question, flag: str, value: Any) -> Runtime:
    interpreter = interpreter_for(question, {flag: value} if flag else {})
    flow = Flow(interpreter)
    # CuTe DSL has a workspace and a call of its own; the other backends share one.
    names = _OWN_ALIASES if value == "cutedsl" else _KERNEL_CALLS
    watch = Watch(methods=_OWN_ALIASES, externals=names | _KERNEL_CALLS, words=names)
    best: Climb | None = None
    hops: list[Reach] = []
    functions = kernel_functions(question.program, names)
    for module, node in functions:
        start = flow.reach(interpreter.function(module, node), watch)
        # CuTe DSL's calls go through the model's own stages; what keeps a GPU out is its resolver, judged below
        above = Climb("open", True) if value == "cutedsl" else flow.climb(start.function, flag)
        if not above.live:
            continue
        status = min(start.status, above.status, key=_RANK.__getitem__)
        hops += [start, *above.hops]
        if best is None or _RANK[status] > _RANK[best.status]:
            best = Climb(status, True, [])
    stages = _workspace_stages(question, flow, {module.rel for module, _ in functions})
    status = best.status if best is not None else "closed"
    for _, stage in stages:
        status = min(status, "closed" if stage.status == "closed" else "open", key=_RANK.__getitem__)
    backend, resolved = _backend(question, flow, flag, value, {module.rel for module, _ in functions})
    if resolved is not None and resolved.closed:
        stages.append(("backend", resolved))
        status = "closed"
    guarded = any(_is_guarded(stage.function) for name, stage in stages if name == "workspace")
    return Runtime(status, hops, value, backend, stages, guarded, interpreter)


def _workspace_stages(question: Question, flow: Flow, files: set[str]) -> list[tuple[str, Reach]]:
    """The functions beside the kernel's that create its workspace, and the preflights in them."""
    stages = []
    for rel in sorted(files):
        module = question.program.module(rel)
        for node in _functions(module, _WORKSPACE_CALLS):
            watch = Watch(methods=_WORKSPACE_CALLS, externals=_WORKSPACE_CALLS, words=_WORKSPACE_CALLS)
            reach = flow.reach(flow.interpreter.function(module, node), watch)
            if reach.status != "unknown" or reach.steps:
                stages.append(("workspace", reach))
    return stages


def _functions(module: Module, names: Iterable[str]) -> list[FunctionNode]:
    wanted = set(names)
    nodes = dict.fromkeys(node for name in sorted(wanted) for node in module.nodes_naming(name))
    return [node for node in nodes if isinstance(node, FunctionNode) and _calls(node) & wanted]


def _calls(function: FunctionNode) -> set[str]:
    names = set()
    for node in own_nodes(function):
        if isinstance(node, ast.Call):
            callee = node.func
            names.add(callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", ""))
    return names


def _is_guarded(function: FunctionRef) -> bool:
    """Whether the workspace is created inside a try that catches everything and goes on without fusion."""
    for node in own_nodes(function.node):
        if isinstance(node, ast.Try) and any(
            handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException", "RuntimeError")
            for handler in node.handlers
        ):
            inside = {
                ast.unparse(call.func).rpartition(".")[2]
                for part in node.body
                for call in ast.walk(part)
                if isinstance(call, ast.Call)
            }
            raises_again = any(isinstance(part, ast.Raise) for handler in node.handlers for part in ast.walk(handler))
            if inside & _WORKSPACE_CALLS and not raises_again:
                return True
    return False


def _backend(question: Question, flow: Flow, flag: str, value: Any, files: set[str]) -> tuple[str | None, Reach | None]:
    """The backend that would be chosen, behind any gate that is closed, and the resolver's own gates."""
    if isinstance(value, str) and value in BACKENDS:
        chosen: str | None = value
    else:
        chosen = None
    for rel in sorted(files):
        module = question.program.module(rel)
        for node in module.tree.body:
            if isinstance(node, FunctionNode) and any(mentions(inner, frozenset({flag})) for inner in ast.walk(node)):
                reach, result = _resolve(flow, flow.interpreter.function(module, node))
                if result is not None:
                    return result, reach
    if chosen is not None:
        return chosen, None
    for rel in sorted(files):
        module = question.program.module(rel)
        for item in module.nodes_naming("backend"):
            if isinstance(item, ast.keyword) and item.arg == "backend" and isinstance(item.value, ast.Constant):
                stated = item.value.value
                if stated in BACKENDS:
                    return str(stated), None
    return "trtllm", None


def _resolve(flow: Flow, function: FunctionRef) -> tuple[Reach | None, str | None]:
    """What a resolver returns, forcing open what it refuses on the way."""
    forced: dict[int, bool] = {}
    closed: list[Step] = []
    for _ in range(6):
        try:
            saved = flow.interpreter.forced
            flow.interpreter.forced = dict(forced)
            frame = flow.interpreter.frame_of(function)
            frame.hop = True
            value = flow.interpreter.result_of(function.node, frame)  # type: ignore[arg-type]
        except RaisedError as error:
            steps = [step for step in error.steps if step.known and id(step.node) not in forced]
            if not steps:
                return None, None
            closed.append(steps[0])
            forced[id(steps[0].node)] = not steps[0].needed
            continue
        finally:
            flow.interpreter.forced = saved
        options = [option.data for option in value.options or (value,) if option.is_known and option.data in BACKENDS]
        if len(options) == 1:
            return Reach(function, "closed" if closed else "open", closed, frame.log, forced), str(options[0])
        return None, None
    return None, None
