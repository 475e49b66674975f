"""The verdict on one SGLang source, one FlashInfer source and one GPU architecture."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from breakeven.errors import UserError, did_you_mean
from breakeven.gates.facts import Context, Facts, read_settings
from breakeven.gates.flow import Climb, Flow, Reach
from breakeven.gates.front import in_front
from breakeven.gates.interpret import Frame, Interpreter, Step, Watch, mentions
from breakeven.gates.kernels import Kernel, find_kernel
from breakeven.gates.program import FunctionNode, Module, Program, own_nodes
from breakeven.gates.values import FunctionRef, Leaf, Value, free, known
from breakeven.sources import Source, installed_version, open_source, pinned_flashinfer

SCHEMA_VERSION = 1
ARCHS = {
    "sm80": (8, 0), "sm86": (8, 6), "sm87": (8, 7), "sm89": (8, 9), "sm90": (9, 0), "sm100": (10, 0),
    "sm101": (10, 1), "sm103": (10, 3), "sm107": (10, 7), "sm110": (11, 0), "sm120": (12, 0), "sm121": (12, 1),
}  # fmt: skip

# FlashInfer's public names: where SGLang calls one of these with a residual, the fused kernel runs.
_KERNEL_CALLS = frozenset({"trtllm_allreduce_fusion", "allreduce_fusion"})
_OWN_ALIASES = frozenset({"_allreduce_fusion", "_trtllm_allreduce_fusion"})
_RESIDUAL_WORDS = frozenset({"residual_in", "rms_gamma", "kARResidualRMSNorm"})
_WORKSPACE_CALLS = frozenset({
    "create_allreduce_fusion_workspace", "_create_allreduce_fusion_workspace",
    "trtllm_create_ipc_workspace_for_all_reduce_fusion", "MNNVLCuteDSLAllReduceFusionWorkspace",
})  # fmt: skip
_BACKENDS = ("trtllm", "mnnvl", "cutedsl")
_FLAG = re.compile(r"(all_?reduce\w*fus|fus\w*all_?reduce)", re.I)


@dataclass
class Question:
    """What a verdict is about."""

    arch: str
    context: Context
    program: Program
    sglang: Source
    declared: dict[str, ast.AnnAssign] = field(default_factory=dict)
    owner: Module | None = None
    flag: str | None = None


def read_gates(
    arch: str,
    sglang: str = "installed",
    flashinfer: str | None = None,
    *,
    model_arch: str | None = None,
    tp: int = 2,
    nnodes: int = 1,
    device_name: str | None = None,
    dp_attention: bool = False,
    deterministic: bool = False,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Whether FlashInfer's fused all-reduce + RMSNorm runs on an architecture, and every gate on the way.

    ``arch`` is a name such as ``sm120``; ``sglang`` and ``flashinfer`` are ``installed``, a folder or ``pypi:VERSION``,
    FlashInfer by default the version that SGLang pins. ``tp`` and ``nnodes`` count GPUs and nodes of the launch.
    Returns the JSON of ``breakeven gates``. Raises UserError on bad input.
    """
    context = make_context(arch, model_arch, tp, nnodes, device_name, dp_attention, deterministic)
    return Reading.of(sglang, flashinfer, cache=cache).judge(arch, context)


@dataclass
class Reading:
    """Two opened sources, parsed at most once however many architectures are asked about."""

    sglang: Source
    flashinfer: Source | str | None
    why: str
    cache: Path | None = None
    _programs: dict[str, Program] = field(default_factory=dict)

    @classmethod
    def of(cls, sglang: str, flashinfer: str | None = None, *, cache: Path | None = None) -> Reading:
        """Open the sources. A pinned FlashInfer is only named; it is fetched when a verdict needs it."""
        source = open_source("sglang", sglang, cache=cache)
        if flashinfer is not None:
            return cls(source, open_source("flashinfer", flashinfer, cache=cache), "given", cache)
        pinned = pinned_flashinfer(source)
        if pinned is not None and source.origin == "installed" and installed_version("flashinfer") == pinned:
            return cls(source, open_source("flashinfer", "installed", cache=cache), "pinned", cache)
        return cls(source, pinned, "pinned" if pinned is not None else "no version is pinned", cache)

    def partner(self) -> Source | None:
        """The FlashInfer source, fetched if it is only named. Raises UserError where it can't be had."""
        if isinstance(self.flashinfer, str):
            self.flashinfer = open_source("flashinfer", f"pypi:{self.flashinfer}", cache=self.cache)
        return self.flashinfer

    def program(self, *packages: str) -> Program:
        """The parsed program of these packages."""
        key = "+".join(packages)
        if key not in self._programs:
            sources = [self.sglang if package == "sglang" else self.partner() for package in packages]
            self._programs[key] = Program([source for source in sources if source is not None])
        return self._programs[key]

    def judge(self, arch: str, context: Context) -> dict[str, Any]:
        """The verdict for one architecture in one context: the JSON of ``breakeven gates``."""
        if not _kernel_functions(self.program("sglang")):
            return _absent(arch, self.sglang, self.flashinfer, self.why)
        opened = self.partner()
        program = self.program("sglang", "flashinfer") if opened is not None else self.program("sglang")
        question = Question(arch, context, program, self.sglang)
        _find_settings(question)
        runtime = _runtime(question)
        if runtime is None:
            return _absent(arch, self.sglang, opened, self.why)
        auto = _auto(question)
        if auto.value is not None and auto.value != runtime.asked_for:
            runtime = _runtime(question, auto.value) or runtime
        switches = _switched_off(question, runtime.asked_for)
        kernel = None
        if opened is not None:
            kernel = find_kernel(self.program("flashinfer"), context, runtime.backend or "trtllm")
        return _compose(question, runtime, auto, switches, kernel, opened, self.why)


def make_context(
    arch: str,
    model_arch: str | None = None,
    tp: int = 2,
    nnodes: int = 1,
    device_name: str | None = None,
    dp_attention: bool = False,
    deterministic: bool = False,
) -> Context:
    """Check the circumstances and put them together. Raises UserError."""
    if arch not in ARCHS:
        match = re.fullmatch(r"sm_?(\d+)(\d)[af]?", arch)
        if not match:
            raise UserError(f"{arch!r} is no architecture name{did_you_mean(arch, ARCHS)}")
        capability = (int(match.group(1)), int(match.group(2)))
    else:
        capability = ARCHS[arch]
    for name, number in (("tp", tp), ("nnodes", nnodes)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise UserError(f"{name}={number!r} is no count; give a whole number from 1")
    if tp % nnodes:
        raise UserError(f"tp={tp} can't be spread over nnodes={nnodes}; tp counts the GPUs of all nodes together")
    return Context(capability, model_arch, tp, nnodes, device_name, dp_attention, deterministic)


# ---------------------------------------------------------------- the flag and the settings


def _find_settings(question: Question) -> None:
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


def _interpreter(question: Question, chosen: dict[str, Any]) -> Interpreter:
    facts = Facts(question.context, question.program)
    interpreter = Interpreter(question.program, facts)

    def default(name: str) -> Value | None:
        declared = question.declared.get(name)
        if declared is None or declared.value is None or question.owner is None:
            return None
        frame = Frame(question.owner, "settings", {}, depth=3)
        value = interpreter._field_default(interpreter.evaluate(declared.value, frame), declared.value, frame)
        if not value.is_known:
            return free(f"setting:{name}")
        return known(value.data, frozenset({f"setting:{name}"}))

    facts.defaults = default
    for name, value in chosen.items():
        facts.chosen[name] = known(value, frozenset({f"setting:{name}"}))
    return interpreter


def _on_value(question: Question, name: str) -> Any:
    """The value that asks for fusion: True for a switch, ``auto`` (or the first choice) for a choice."""
    texts = [
        node.value
        for node in ast.walk(question.declared[name].annotation)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    is_choice = isinstance(getattr(question.declared[name].value, "value", None), type(None))
    if not is_choice:
        return True
    return "auto" if "auto" in texts else next((text for text in texts if text in _BACKENDS), True)


def _flag_candidates(question: Question) -> list[str]:
    named = [
        name
        for name in question.declared
        if _FLAG.search(name) and "aiter" not in name and not re.match(r"(enforce|disable|no)_", name)
    ]
    return sorted(named, key=lambda name: "backend" not in name)


# ---------------------------------------------------------------- the runtime paths


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


def _kernel_functions(program: Program, names: frozenset[str] = _KERNEL_CALLS) -> list[tuple[Module, FunctionNode]]:
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


def _runtime(question: Question, asked_for: Any = None) -> Runtime | None:
    """Follow every way to the kernel with fusion asked for; None where no launch setting asks for it."""
    candidates = [question.flag] if question.flag else _flag_candidates(question)
    if not candidates:
        candidates = _unnamed_flags(question)
    for name in candidates:
        assert name is not None
        value = asked_for if asked_for is not None else _on_value(question, name)
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
        if _runtime(plainly) is not None:
            question.flag = plainly.flag
            return _runtime(question, asked_for)
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
    interpreter = _interpreter(question, {flag: value} if flag else {})
    flow = Flow(interpreter)
    # CuTe DSL has a workspace and a call of its own; the other backends share one.
    names = _OWN_ALIASES if value == "cutedsl" else _KERNEL_CALLS
    watch = Watch(methods=_OWN_ALIASES, externals=names | _KERNEL_CALLS, words=names)
    best: Climb | None = None
    hops: list[Reach] = []
    functions = _kernel_functions(question.program, names)
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


_RANK = {"closed": 0, "unknown": 1, "open": 2}


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
    if isinstance(value, str) and value in _BACKENDS:
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
                if stated in _BACKENDS:
                    return str(stated), None
    return "trtllm", None


def _resolve(flow: Flow, function: FunctionRef) -> tuple[Reach | None, str | None]:
    """What a resolver returns, forcing open what it refuses on the way."""
    watch = Watch(externals=frozenset({"<return>"}), words=frozenset())
    forced: dict[int, bool] = {}
    closed: list[Step] = []
    for _ in range(6):
        fresh = Watch(externals=watch.externals)
        try:
            saved = flow.interpreter.forced
            flow.interpreter.forced = dict(forced)
            frame = flow.interpreter.frame_of(function)
            frame.hop = True
            value = flow.interpreter._result(function.node, frame)  # type: ignore[arg-type]
        except Exception as error:
            steps = [step for step in getattr(error, "steps", []) if step.known and id(step.node) not in forced]
            if not steps:
                return None, None
            closed.append(steps[0])
            forced[id(steps[0].node)] = not steps[0].needed
            continue
        finally:
            flow.interpreter.forced = saved
        del fresh
        options = [option.data for option in value.options or (value,) if option.is_known and option.data in _BACKENDS]
        if len(options) == 1:
            return Reach(function, "closed" if closed else "open", closed, frame.log, forced), str(options[0])
        return None, None
    return None, None


# ---------------------------------------------------------------- switched on and off by SGLang itself


@dataclass
class Auto:
    """Whether SGLang asks for fusion by itself."""

    answer: str = "no"
    value: Any = None
    reaches: list[Reach] = field(default_factory=list)


_LAUNCH_DEPS = {
    "setting:tp_size",
    "setting:nnodes",
    "setting:enable_dp_attention",
    "setting:enable_deterministic_inference",
}
_CONTEXT_DEPS = ("arch", "model architecture", "model type", "device name")


def _auto(question: Question) -> Auto:
    """Every place that stores a value in the flag, judged with the flag off."""
    assert question.flag is not None
    interpreter = _interpreter(question, {})
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
    return any(dep in _CONTEXT_DEPS for step in [*reach.steps, *reach.closed] for dep in step.leaf.touched)


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
                reach = flow._reach_call(caller, item, lenient=True)
                if reach.status == "closed" and not any(
                    dep in _CONTEXT_DEPS or dep.startswith("setting:")
                    for step in reach.closed
                    for dep in step.leaf.deps
                ):
                    continue
                if _concerns_context(reach) or reach.status == "closed":
                    hops.append(reach)
                above.append(caller)
        current = above
    return hops


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


def _switched_off(question: Question, asked_for: Any) -> list[Reach]:
    """Places that take the flag back once it is set, under this context (enforcement, deterministic inference)."""
    assert question.flag is not None
    interpreter = _interpreter(question, {question.flag: asked_for, **_switches(question)})
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
    interpreter = _interpreter(question, {})
    flow = Flow(interpreter)
    found: dict[str, bool] = {}
    for name in question.declared:
        if not _FLAG.search(name) or not re.match(r"(enforce_)?disable_|no_", name) or "aiter" in name:
            continue
        for function in _storing_functions(question, interpreter, name):
            reach = flow.reach(function, Watch(stores=frozenset({name}), words=frozenset({name})), wanted=True)
            if reach.status == "open" and all(step.known for step in reach.steps):
                found[name] = True
    return found


# ---------------------------------------------------------------- the answer


def _absent(arch: str, source: Source, partner: Any, why: str) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "arch": arch,
        "sglang": {"version": source.version, "origin": source.origin},
        "flashinfer": {"version": getattr(partner, "version", partner), "why": why},
        "flag": None,
        "auto_enabled": "no",
        "admitted": "no",
        "available": "unknown",
        "backend": None,
        "verdict": "absent",
        "patchable": False,
        "gates": [],
        "depends_on": [],
        "in_front": [],
    }


def _compose(
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
    for hop in runtime.hops:
        rows.add("sglang.runtime", hop)
    for name, stage in runtime.stages:
        rows.add(f"sglang.{name}", stage)
    for reach in switches:
        rows.add("sglang.enforce", reach, is_switch=True)
    for reach in auto.reaches:
        rows.add("sglang.auto-enable", reach)
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
        and not any("arch" not in deps and deps & _LAUNCH_DEPS for deps in closing)
    )
    verdict = _verdict(admitted, available, runtime)
    auto_answer = "no" if off else auto.answer
    for gate in gates:
        gate.pop("_deps", None)
    return {
        "schema_version": SCHEMA_VERSION,
        "arch": question.arch,
        "sglang": {"version": question.sglang.version, "origin": question.sglang.origin},
        "flashinfer": {
            "version": opened.version if opened is not None else None,
            "why": why,
            "cuda_floor": kernel.cuda_floor if kernel else None,
            "words": kernel.words if kernel else None,
        },
        "flag": question.flag,
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


def _verdict(admitted: str, available: str, runtime: Runtime) -> str:
    if admitted == "unknown" or available == "unknown":
        if admitted == "no" and available == "unknown":
            return "unknown"
        return "unknown"
    if admitted == "yes":
        if available == "yes":
            return "runs"
        return "denied-by-flashinfer" if runtime.guarded else "crashes"
    return "denied-by-sglang" if available == "yes" else "denied-by-both"


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
            context = any(dep in _CONTEXT_DEPS for dep in step.leaf.touched)
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
            leaf for leaf in atoms if leaf.deps & set(_CONTEXT_DEPS) or any(d.startswith("setting:") for d in leaf.deps)
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
            "depends_on": list(dict.fromkeys(depends))[:12],
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


_WORSE = {"open": 0, "depends": 1, "unknown": 2, "closed": 3}


def _because(leaf: Leaf, arch: str) -> str:
    value = {True: "true", False: "false", None: "not fixed"}[leaf.value]
    where = f" on {arch}" if "arch" in leaf.touched else ""
    return f"`{leaf.text}` is {value}{where} ({leaf.file}:{leaf.line})"
