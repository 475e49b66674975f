"""FlashInfer's side: does it have the fused kernel of a backend for an architecture?

Found from the public function that SGLang calls, along its calls, to the functions that declare what nvcc builds
(``gen_jit_spec``). Those are run abstractly: they raise where their architecture list leaves the GPU out. Other
modules in the same file are not on the way and do not count.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from breakeven.gates.facts import Context, Facts
from breakeven.gates.interpreter import Frame, Interpreter
from breakeven.gates.program import FunctionNode, Module, Program
from breakeven.gates.temper import asks
from breakeven.gates.values import FunctionRef, NotPlainError, RaisedError, Value, free, known, plain

# The public functions that run a backend's fused kernel; the first that the release has counts.
ENTRIES = {
    "trtllm": ("trtllm_allreduce_fusion",),
    "mnnvl": ("trtllm_mnnvl_fused_allreduce_add_rmsnorm", "trtllm_mnnvl_fused_allreduce_rmsnorm"),
    "cutedsl": ("MNNVLCuteDSLAllReduceFusionWorkspace",),
}
_CUDA_RELEASES = ("12.0", "12.3", "12.6", "12.8", "12.9", "13.0")
_MAX_FOLLOWED = 160
# FlashInfer 0.2.11 builds for the GPU at hand and names none; 0.3.1 lists just these majors for the same CUDA files.
_UNNAMED_MAJORS = (9, 10)


@dataclass
class Kernel:
    """Whether a backend's kernel exists for an architecture, and the lines that say so."""

    backend: str
    available: str  # yes | no | unknown
    gates: list[dict[str, object]] = field(default_factory=list)
    cuda_floor: str | None = None
    words: str | None = None  # FlashInfer's own, where it refuses


def find_kernel(program: Program, context: Context, backend: str) -> Kernel:
    """Judge one backend of a FlashInfer source for the context's architecture."""
    interpreter = _interpreter(program, context)
    entry = _entry(program, backend)
    if entry is None:
        return _without_entry(program, backend)
    if backend == "cutedsl":
        return _judge_class(program, interpreter, backend, *entry)
    generators = _generators(program, interpreter, *entry)
    if not generators:
        return Kernel(
            backend, "unknown", [_row(entry[0], entry[1], "unknown", ["how the kernel is built was not found"])]
        )
    kernel = Kernel(backend, "yes")
    for module, node in generators:
        verdict, because, words = _judge(interpreter, context, module, node)
        where = _list_node(module, node)
        kernel.gates.append(
            _row(module, where or node, {"yes": "open", "no": "closed"}.get(verdict, "unknown"), because, node)
        )
        if verdict == "no":
            kernel.words = kernel.words or words
        if _RANK[verdict] < _RANK[kernel.available]:
            kernel.available = verdict
    if kernel.available == "yes":
        kernel.cuda_floor = _cuda_floor(program, context, generators)
    return kernel


_RANK = {"no": 0, "unknown": 1, "yes": 2}


def _interpreter(program: Program, context: Context, cuda: str | None = None) -> Interpreter:
    if cuda is not None:
        context = Context(**{**context.__dict__, "cuda": cuda})
    interpreter = Interpreter(program, Facts(context, program))
    cuda_itself = known(context.cuda, frozenset({"cuda"}))
    interpreter.native["is_cuda_version_at_least"] = lambda args, kwargs: _at_least([cuda_itself, *args])
    interpreter.native["version_at_least"] = lambda args, kwargs: _at_least(args)
    return interpreter


def _at_least(args: list[Value]) -> Value:
    """Whether the first of two versions is the second or a later one."""
    if len(args) != 2 or not all(value.is_known for value in args):
        return free("a version")
    this, floor = (str(value.data) for value in args)
    return known(_numbers(this) >= _numbers(floor), args[0].deps | args[1].deps)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _entry(program: Program, backend: str) -> tuple[Module, FunctionNode | ast.ClassDef] | None:
    for name in ENTRIES.get(backend, ()):
        for rel in program.containing(name, "flashinfer"):
            for node in program.module(rel).tree.body:
                if isinstance(node, FunctionNode | ast.ClassDef) and node.name == name:
                    return program.module(rel), node
    return None


def _generators(
    program: Program, interpreter: Interpreter, module: Module, node: FunctionNode | ast.ClassDef
) -> list[tuple[Module, FunctionNode]]:
    """The functions on the way from the entry that declare an nvcc build."""
    queue: list[tuple[Module, FunctionNode | ast.ClassDef]] = [(module, node)]
    seen: set[int] = set()
    found: list[tuple[Module, FunctionNode]] = []
    while queue and len(seen) < _MAX_FOLLOWED:
        module, node = queue.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        names = [inner for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)]
        if isinstance(node, FunctionNode) and any(name.id == "gen_jit_spec" for name in names):
            found.append((module, node))
            continue
        for name in names:
            # tensor types and helpers lead nowhere; a build is declared by a function that something here calls
            value = interpreter.lookup_global(module, name.id)
            data = value.data if value is not None else None
            if isinstance(data, FunctionRef) and isinstance(data.node, FunctionNode):
                queue.append((data.module, data.node))
    return found


def _judge(
    interpreter: Interpreter, context: Context, module: Module, node: FunctionNode
) -> tuple[str, list[str], str | None]:
    flags: list[Value] = []

    def spec(args: list[Value], kwargs: dict[str, Value]) -> Value:
        flags.append(kwargs.get("extra_cuda_cflags", known([])))
        return free("a build")

    interpreter.native["gen_jit_spec"] = spec
    major, minor = context.capability
    try:
        frame = Frame(module, node.name, {}, node, None)
        interpreter.result_of(node, frame)
    except RaisedError as error:
        words = f"{error.name}: {error.message}"
        return "no", [words], words
    if not flags:
        return "unknown", [f"{node.name} was not understood"], None
    try:
        text = " ".join(str(flag) for flag in plain(flags[-1]))
    except (NotPlainError, TypeError):
        return "unknown", [f"the nvcc flags of {node.name} were not understood"], None
    targets = re.findall(r"compute_(\d+)([af]?)", text)
    if not targets and major in _UNNAMED_MAJORS:
        return "yes", [f"{node.name} names no architectures: it is built for the GPU at hand"], None
    if not targets:
        return "unknown", [f"{node.name} is built for the GPU at hand, without saying for which it compiles"], None
    if any(_runs_on(number, suffix, major, minor) for number, suffix in targets):
        return "yes", [f"{node.name} builds for {', '.join(sorted({n + s for n, s in targets}))}"], None
    built = ", ".join(sorted({number + suffix for number, suffix in targets}))
    return "no", [f"{node.name} builds for {built} only"], f"{node.name} builds for {built} only"


def _runs_on(number: str, suffix: str, major: int, minor: int) -> bool:
    """Whether code for ``compute_NUMBERsuffix`` runs on the GPU: ``a`` is for one chip, ``f`` for its family."""
    target_major, target_minor = int(number[:-1]), int(number[-1])
    if suffix == "a":
        return (target_major, target_minor) == (major, minor)
    return target_major == major and target_minor <= minor


def _list_node(module: Module, node: FunctionNode) -> ast.AST | None:
    """The expression that lists the supported majors, for the quotation."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Call) and any(keyword.arg == "supported_major_versions" for keyword in inner.keywords):
            return next(keyword.value for keyword in inner.keywords if keyword.arg == "supported_major_versions")
    return None


def _judge_class(
    program: Program, interpreter: Interpreter, backend: str, module: Module, node: FunctionNode | ast.ClassDef
) -> Kernel:
    """A backend that is compiled in Python (CuTe DSL): its workspace's constructor refuses a GPU by raising."""
    if not isinstance(node, ast.ClassDef):
        return Kernel(backend, "unknown")
    init = next((item for item in node.body if isinstance(item, FunctionNode) and item.name == "__init__"), None)
    if init is None:
        return Kernel(backend, "unknown", [_row(module, node, "unknown", ["it has no constructor"])])
    for inner in ast.walk(init):
        if isinstance(inner, ast.If) and asks(ast.unparse(inner.test)) and _raises(inner):
            frame = interpreter.frame_of(interpreter.function(module, init))
            value = interpreter.operand(inner.test, frame)
            if "arch" not in value.deps:
                continue
            row = _row(
                module,
                inner.test,
                "closed" if value.truth else "open",
                [f"{ast.unparse(inner.test)} is {value.truth}"],
                init,
            )
            if value.truth is None:
                return Kernel(backend, "unknown", [{**row, "result": "unknown"}])
            words = next((ast.unparse(part) for part in inner.body if isinstance(part, ast.Raise)), None)
            return Kernel(backend, "no" if value.truth else "yes", [row], words=words if value.truth else None)
    return Kernel(backend, "unknown", [_row(module, init, "unknown", ["no test of the GPU was found"])])


def _raises(node: ast.If) -> bool:
    return any(isinstance(part, ast.Raise) for part in node.body)


def _cuda_floor(program: Program, context: Context, generators: list[tuple[Module, FunctionNode]]) -> str | None:
    """The oldest CUDA release that every build accepts, None where the sources set no floor."""
    accepted = None
    for cuda in reversed(_CUDA_RELEASES):
        interpreter = _interpreter(program, context, cuda)
        if any(_judge(interpreter, context, module, node)[0] != "yes" for module, node in generators):
            return accepted
        accepted = cuda
    return None


def _row(
    module: Module, node: ast.AST, result: str, because: list[str], around: ast.AST | None = None
) -> dict[str, object]:
    is_whole = isinstance(node, FunctionNode | ast.ClassDef)
    return {
        "id": "flashinfer.module",
        "package": "flashinfer",
        "file": module.rel,
        "line": getattr(node, "lineno", 0),
        "symbol": module.symbol(around if around is not None else node),
        "expression": f"{node.name}" if is_whole else ast.unparse(node),  # type: ignore[attr-defined]
        "result": result,
        "because": because,
        "depends_on": ["CUDA version"],
    }


_DEFINED = re.compile(r"^(?:def|class) (\w+)", re.M)
_LIKE = {
    "trtllm": re.compile(r"(?=.*all_?reduce)(?=.*fus)(?!.*(mnnvl|moe|workspace))", re.I),
    "mnnvl": re.compile(r"(?=.*mnnvl)(?=.*fus)(?!.*(cute|workspace))", re.I),
    "cutedsl": re.compile(r"(?=.*cute_?dsl)(?=.*fus)", re.I),
}


def _without_entry(program: Program, backend: str) -> Kernel:
    """Nothing goes by the backend's public name: it has no such kernel, unless something goes by a similar one."""
    for rel in (rel for rel in program.files if rel.startswith("flashinfer/comm/")):
        for name in filter(_LIKE[backend].match, _DEFINED.findall(program.texts[rel])):
            module = program.module(rel)
            because = [f"{' or '.join(ENTRIES[backend])} is not there; {name} may stand in for it"]
            return Kernel(backend, "unknown", [_row(module, module.bindings[name][-1], "unknown", because)])
    return Kernel(backend, "no", [_absent(backend)], words=f"this release has no {backend} kernel")


def _absent(backend: str) -> dict[str, object]:
    return {
        "id": "flashinfer.module",
        "package": "flashinfer",
        "file": "flashinfer/comm/__init__.py",
        "line": 1,
        "symbol": "<module>",
        "expression": ENTRIES.get(backend, (backend,))[0],
        "result": "closed",
        "because": [f"{ENTRIES.get(backend, (backend,))[0]} is not there"],
        "depends_on": [],
    }
