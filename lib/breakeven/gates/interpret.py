"""A small abstract interpreter of Python: runs a function of the source with three truth values.

Where a condition is known, only that branch is run; where it is not, both are, and what they leave is joined. What
the interpreter does not know how to run becomes ``opaque``: nothing may be concluded from it. No file is imported.
"""

from __future__ import annotations

import ast
import builtins
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from breakeven.gates.facts import Facts
from breakeven.gates.program import FunctionNode, Module, Program, bound_names, import_source, own_nodes
from breakeven.gates.values import (
    NONE,
    PLAIN,
    BoundBuiltin,
    ClassRef,
    External,
    FunctionRef,
    Instance,
    Lazy,
    Leaf,
    Member,
    ModuleRef,
    NotPlainError,
    PackageRef,
    Partial,
    Pending,
    RaisedError,
    Value,
    all_deps,
    force,
    free,
    itself,
    join,
    known,
    opaque,
    plain,
)

_MAX_DEPTH = 14
_MAX_STEPS = 30_000
_MAX_ITEMS = 128
_MAX_RECURSION = 2

_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
    ast.Is: lambda a, b: a is b or (isinstance(a, Member) and a == b), ast.IsNot: lambda a, b: a is not b and a != b,
}  # fmt: skip
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.BitOr: operator.or_, ast.BitAnd: operator.and_,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift,
}  # fmt: skip
_PURE = {
    name: getattr(builtins, name)
    for name in ("len", "int", "str", "bool", "float", "tuple", "list", "set", "frozenset", "sorted", "min", "max",
                 "sum", "any", "all", "abs", "range", "dict", "zip", "enumerate", "reversed", "repr", "divmod", "round")
}  # fmt: skip
_SETTINGS_LIKE = re.compile(r"args|cfg|config|view|get_exec|get_parallel|settings|options", re.I)
_MODEL_CONFIG = re.compile(r"(^|_)(model_config|hf_config|hf_text_config)(_of)?$")
# Process groups, ranks and what collectives return differ from process to process and say nothing of the GPU.
_RUNTIME_OBJECT = re.compile(
    r"^get_\w*(group|rank)$|^(?!can|should|is_|use|may|has)\w*(all_reduce|all_gather|reduce_scatter)$"
)
_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)
_DECISIVE = (ast.Return, ast.Raise, ast.Continue, ast.Break, ast.Assert, ast.Yield, ast.Global, ast.Delete)
_DECISIVE_BUT_RAISING = tuple(kind for kind in _DECISIVE if kind not in (ast.Raise, ast.Assert))
_TRANSPARENT = {
    "functools.lru_cache",
    "functools.cache",
    "functools.wraps",
    "staticmethod",
    "contextlib.contextmanager",
}
_PLAIN_METHODS = {
    str: {"lower", "upper", "split", "startswith", "endswith", "strip", "replace", "join", "format", "removeprefix",
          "removesuffix", "isdigit", "find", "count", "partition", "rpartition", "lstrip", "rstrip", "title"},
}  # fmt: skip


@dataclass(eq=False)
class Step:
    """A decision: a test on the way, the truth that was needed, and why it is what it is."""

    node: ast.AST
    leaf: Leaf
    needed: bool
    known: bool
    opaque: bool
    exited: bool = False
    forced: bool = False
    raises: bool = False


@dataclass(eq=False)
class Frame:
    """One running function (or module body)."""

    module: Module
    symbol: str
    locals: dict[str, Pending]
    node: ast.AST | None = None
    cls: ClassRef | None = None
    closure: dict[str, Pending] = field(default_factory=dict)
    depth: int = 0
    root: bool = False
    hop: bool = False  # the way to the kernel runs through it
    path: list[Step] = field(default_factory=list)
    log: list[Step] = field(default_factory=list)
    returns: list[tuple[Value, list[Step]]] = field(default_factory=list)
    globals: set[str] = field(default_factory=set)


@dataclass
class Hit:
    """The watched thing was reached, along these decisions."""

    node: ast.AST
    path: list[Step]
    value: Value

    @property
    def is_opaque(self) -> bool:
        return any(step.opaque and not step.known for step in self.path)


@dataclass
class Watch:
    """What to look out for in the root frame: calls of functions, or stores to names (attributes, keys, globals)."""

    functions: frozenset[int] = frozenset()
    methods: frozenset[str] = frozenset()
    externals: frozenset[str] = frozenset()
    stores: frozenset[str] = frozenset()
    hits: list[Hit] = field(default_factory=list)
    words: frozenset[str] = frozenset()
    lenient: bool = False  # what raises on the way does not count

    def is_target(self, value: Value) -> bool:
        if value.name and value.name in self.methods:
            return True
        data = value.data
        if isinstance(data, FunctionRef):
            name = getattr(data.node, "name", "")
            return id(data.node) in self.functions or (data.module.package == "flashinfer" and name in self.externals)
        if isinstance(data, External):
            return data.name.rpartition(".")[2] in self.externals
        if isinstance(data, Partial):
            return self.is_target(data.function)
        return any(self.is_target(option) for option in value.options)


class Interpreter:
    """Evaluates expressions and runs functions of a program under given facts."""

    def __init__(self, program: Program, facts: Facts) -> None:
        self.program, self.facts = program, facts
        self.watch: Watch | None = None
        self.forced: dict[int, bool] = {}
        self.native: dict[str, Callable[[list[Value], dict[str, Value]], Value]] = {}
        self._busy: set[object] = set()
        self._met_itself = 0
        self.follow_marks = True
        self.passed_mark = False
        self._kept: dict[tuple[object, ...], Value | None] = {}
        self._provisional: dict[tuple[object, ...], Value | None] = {}
        self._running: dict[int, int] = {}
        self._steps = 0
        self._muted = 0
        self._comparing = 0
        self._texts: dict[int, str] = {}
        self._failing: dict[int, frozenset[str]] = {}
        self._fixed: dict[tuple[int, bool], bool] = {}
        self._storing: dict[int, dict[str, list[FunctionNode]]] = {}
        self._base_lists: dict[int, list[ClassRef]] = {}
        self._bound: dict[int, tuple[str, ...]] = {}
        self._walked: dict[int, list[ast.AST]] = {}

    # ------------------------------------------------------------ running

    def run(self, function: FunctionRef, watch: Watch | None = None, forced: dict[int, bool] | None = None) -> Frame:
        """Run a function whose arguments are free, watching for something; returns the finished frame.

        Raises RaisedError where the function certainly raises; the frame is then its attribute ``frame``.
        """
        frame = self.frame_of(function)
        saved = self.watch, self.forced, self._steps, self._muted, self._comparing
        self.watch, self._steps, self._muted, self._comparing = watch, 0, 0, 0
        if forced is not None:
            self.forced = forced
        frame.root = watch is not None
        frame.hop = (
            watch is not None and not watch.lenient and bool(watch.functions or watch.methods or watch.externals)
        )
        try:
            self._block(function.node.body, frame)  # type: ignore[arg-type]
        except RaisedError as error:
            error.frame = frame  # type: ignore[attr-defined]
            raise
        finally:
            self.watch, self.forced, self._steps, self._muted, self._comparing = saved
        return frame

    def frame_of(self, function: FunctionRef) -> Frame:
        """A frame with free arguments; ``self`` is an object of the class whose attributes are looked up when asked."""
        node = function.node
        assert isinstance(node, FunctionNode)
        owner = function.owner
        arguments: dict[str, Pending] = {}
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        for index, argument in enumerate(every):
            if index == 0 and owner is not None and not _has_decorator(node, "staticmethod"):
                is_class = _has_decorator(node, "classmethod")
                arguments[argument.arg] = known(owner if is_class else Instance(owner, symbolic=True))
            else:
                arguments[argument.arg] = free(f"argument {argument.arg}", name="")
        for extra in (node.args.vararg, node.args.kwarg):
            if extra is not None:
                arguments[extra.arg] = free(f"argument {extra.arg}")
        module = function.module
        outer = module.enclosing_function(node)
        closure = self._locals_after(module, outer) if outer is not None else {}
        return Frame(module, module.symbol(node), arguments, node, owner, closure)

    def _locals_after(self, module: Module, function: FunctionNode) -> dict[str, Pending]:
        """The local variables that a function leaves, for the functions inside it."""
        key = ("locals", id(function))
        if key in self._busy:
            return {}
        self._busy.add(key)
        try:
            return self.run(self.function(module, function)).locals
        except RaisedError:
            return {}
        finally:
            self._busy.discard(key)

    def function(self, module: Module, node: FunctionNode) -> FunctionRef:
        """The function of a definition; a method gets its class."""
        cls = module.enclosing_class(node)
        return FunctionRef(module, node, ClassRef(module, cls) if cls is not None else None)

    def _itself(self, name: str) -> Value:
        """A value met while it is being computed: what is computed from it now is only provisional."""
        self._met_itself += 1
        return itself(name)

    def _keep(self, key: tuple[object, ...], value: Value | None, met_before: int) -> None:
        """Keep a result. One that rests on something still being computed is kept only until that is done."""
        if not self._busy:
            self._provisional.clear()
            self._kept[key] = value
        elif self._met_itself == met_before:
            self._kept[key] = value
        else:
            self._provisional[key] = value

    def _recall(self, key: tuple[object, ...]) -> tuple[bool, Value | None]:
        if key in self._kept:
            return True, self._kept[key]
        if key in self._provisional:
            self._met_itself += 1
            return True, self._provisional[key]
        return False, None

    def text(self, node: ast.AST) -> str:
        """The source text of a node on one line."""
        if id(node) not in self._texts:
            self._texts[id(node)] = ast.unparse(node)
        return self._texts[id(node)]

    def _leaf(
        self,
        node: ast.AST,
        frame: Frame,
        value: Value,
        op: str = "atom",
        parts: tuple[Leaf, ...] = (),
        text: str | None = None,
    ) -> Leaf:
        line, text = getattr(node, "lineno", 0), text if text is not None else self.text(node)
        return Leaf(
            frame.module.rel, line, frame.symbol, text, value.truth, all_deps(value), op, parts, value.is_opaque
        )

    # ------------------------------------------------------------ statements

    def _block(self, statements: list[ast.stmt], frame: Frame) -> str:
        """Run statements; returns how control leaves them: next, return, break or continue."""
        for statement in statements:
            self._steps += 1
            if self._steps > _MAX_STEPS:
                raise RaisedError("BudgetError", "too long to follow", self._nowhere(statement, frame), [])
            flow = self._statement(statement, frame)
            if flow != "next":
                return flow
        return "next"

    def _nowhere(self, node: ast.AST, frame: Frame) -> Leaf:
        return self._leaf(node, frame, opaque("stopped"))

    def _statement(self, node: ast.stmt, frame: Frame, *, may_defer: bool = True) -> str:
        if may_defer and isinstance(node, _COMPOUND) and self._is_deferrable(node, frame):
            self._defer(node, frame)
            return "next"
        handler = getattr(self, f"_do_{type(node).__name__}", None)
        if handler is None:
            for name in bound_names(node):
                frame.locals[name] = opaque(self.text(node)[:80])
            return "next"
        return handler(node, frame) or "next"

    def _do_Expr(self, node: ast.Expr, frame: Frame) -> None:  # noqa: N802
        if self._matters(node.value, frame):
            self.evaluate(node.value, frame)
            return
        call = node.value
        if _changes_something(call):
            self._safely(call, frame)
            return
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
        ):
            receiver = frame.locals.get(call.func.value.id)
            if isinstance(receiver, Value) and isinstance(receiver.data, Instance):
                receiver.data.shared = True  # the method may have changed it

    def _do_Assign(self, node: ast.Assign, frame: Frame) -> None:  # noqa: N802
        value = self._later(node.value, frame)
        for target in node.targets:
            self._store(target, value, frame)

    def _do_AnnAssign(self, node: ast.AnnAssign, frame: Frame) -> None:  # noqa: N802
        if node.value is not None:
            self._store(node.target, self._later(node.value, frame), frame)

    def _later(self, node: ast.expr, frame: Frame) -> Pending:
        """An expression's value: at once where computing it can do something, else when it is first needed."""
        if isinstance(node, ast.Constant | ast.Name) or self._matters(node, frame):
            return self.evaluate(node, frame)
        then = replace(
            frame, locals=dict(frame.locals), root=False, hop=False, path=list(frame.path), log=[], returns=[]
        )
        return Lazy(lambda: self._safely(node, then))

    def _safely(self, node: ast.expr, frame: Frame) -> Value:
        try:
            return self.evaluate(node, frame)
        except RaisedError as error:
            if error.name == "BudgetError":
                raise
            return opaque(f"{self.text(node)[:60]}, which raises {error.name}")

    def _matters(self, node: ast.AST, frame: Frame) -> bool:
        """Whether running this can reach what is watched, or raise because of the GPU."""
        words = self.watch.words if self.watch is not None and frame.root else frozenset()
        for inner in self._parts(node):
            if words and mentions(inner, words):
                return True
            if isinstance(inner, ast.Call) and self._may_refuse(inner.func, frame):
                return True
        return False

    def _parts(self, node: ast.AST) -> list[ast.AST]:
        if id(node) not in self._walked:
            self._walked[id(node)] = list(ast.walk(node))
        return self._walked[id(node)]

    def _may_refuse(self, function: ast.expr, frame: Frame) -> bool:
        """Whether calling this may raise because of the GPU: told from the text of what it calls."""
        if isinstance(function, ast.Attribute):
            if not isinstance(function.value, ast.Name):
                return False
            if function.value.id in ("self", "cls"):
                return self.program.refuses(frame.module.rel, function.attr)
            return self._object_may_refuse(function.value.id, function.attr, frame)
        if not isinstance(function, ast.Name):
            return False
        name = function.id
        local = frame.locals.get(name, frame.closure.get(name))
        if isinstance(local, Lazy) and local.origin is not None:
            return self.program.refuses(self.program.file_of(local.origin[0]), local.origin[1])
        if isinstance(local, Value) and isinstance(local.data, FunctionRef):
            return self.program.refuses(local.data.module.rel, getattr(local.data.node, "name", ""))
        if local is not None or name not in frame.module.bindings:
            return False
        return self.program.refuses(frame.module.rel, name)

    def _object_may_refuse(self, name: str, attribute: str, frame: Frame) -> bool:
        """The same for a method of a global object or a function of a module."""
        if name in frame.locals or name in frame.closure or name not in frame.module.bindings:
            return False
        if not self.program.may_refuse(attribute):
            return False
        value = self.lookup_global(frame.module, name)
        data = value.data if value is not None else None
        if isinstance(data, Instance):
            found = self._find_in_class(data.cls, attribute)
            return found is not None and self.program.refuses(found[0].module.rel, attribute)
        return isinstance(data, ModuleRef) and self.program.refuses(data.module.rel, attribute)

    def _is_deferrable(self, node: ast.stmt, frame: Frame) -> bool:
        """A compound statement that can neither leave the function, nor store in objects, nor matter otherwise."""
        strict = frame.hop or self._refuses(frame)
        key = (id(node), strict)
        if key not in self._fixed:
            self._fixed[key] = self._has_effects(node, _DECISIVE if strict else _DECISIVE_BUT_RAISING)
        return not self._fixed[key] and not self._matters(node, frame)

    def _has_effects(self, node: ast.stmt, decisive: tuple[type, ...]) -> bool:
        return any(
            isinstance(inner, decisive)
            or (isinstance(inner, ast.Attribute | ast.Subscript) and isinstance(inner.ctx, ast.Store))
            or (isinstance(inner, ast.Expr) and _changes_something(inner.value))
            for inner in self._parts(node)
        )

    def _refuses(self, frame: Frame) -> bool:
        """Whether the function's own raising may have to do with the GPU."""
        name = getattr(frame.node, "name", "")
        return not name or self.program.refuses(frame.module.rel, name)

    def _defer(self, node: ast.stmt, frame: Frame) -> None:
        """Leave a compound statement until one of the names that it binds is needed."""
        then = replace(frame, locals=dict(frame.locals), root=False, hop=False, path=[], log=[], returns=[])

        def run() -> dict[str, Pending]:
            if not ran:
                ran.append(then.locals)
                try:
                    self._statement(node, then, may_defer=False)
                except RaisedError as error:
                    if error.name == "BudgetError":
                        raise
                ran[0] = then.locals
            return ran[0]

        ran: list[dict[str, Pending]] = []

        def value_of(name: str) -> Value:
            value = force(run().get(name, opaque(f"{name}, which may be unbound")))
            steps = [step.leaf for step in then.log if step.known and step.leaf.deps]
            if not steps:
                return value
            value = value.on(*frozenset().union(*(leaf.deps for leaf in steps)))
            if value.is_known and isinstance(value.data, PLAIN):
                parts = (*steps, *([value.why] if value.why is not None else []))
                return replace(value, why=self._leaf(node, frame, value, "atom", parts, text=name))
            return value

        for name in self._bound_by(node):
            frame.locals[name] = Lazy(lambda name=name: value_of(name))  # type: ignore[misc]

    def _do_AugAssign(self, node: ast.AugAssign, frame: Frame) -> None:  # noqa: N802
        load = ast.copy_location(_as_load(node.target), node)
        value = self._binary(type(node.op), self.evaluate(load, frame), self.evaluate(node.value, frame), node)
        self._store(node.target, value, frame)

    def _do_Return(self, node: ast.Return, frame: Frame) -> str:  # noqa: N802
        value = NONE if node.value is None else self.evaluate(node.value, frame)
        self._notice(value, node, frame)
        frame.returns.append((self._explained(value, node, frame), list(frame.path)))
        return "return"

    def _explained(self, value: Value, node: ast.AST, frame: Frame) -> Value:
        """A returned value together with the decisions that led to returning it."""
        deps = frozenset().union(*(step.leaf.deps for step in frame.log))
        if value.why is not None or (value.is_known and not isinstance(value.data, PLAIN)):
            return replace(value, deps=value.deps | deps)
        steps = [step for step in frame.path if step.leaf.deps] or [step for step in frame.log if step.leaf.deps]
        parts = tuple(step.leaf for step in steps)
        value = replace(value, deps=value.deps | deps)
        return replace(value, why=self._leaf(node, frame, value, "atom", parts)) if parts else value

    def _do_Raise(self, node: ast.Raise, frame: Frame) -> str:  # noqa: N802
        call = node.exc
        name = ""
        message = ""
        if isinstance(call, ast.Call):
            message = " ".join(self._message(argument, frame) for argument in call.args)
            call = call.func
        if call is not None:
            name = self.text(call).rpartition(".")[2]
        steps = list(reversed(frame.path)) or list(reversed(frame.log))
        raise RaisedError(name or "Exception", message, self._nowhere(node, frame), steps)

    def _message(self, node: ast.expr, frame: Frame) -> str:
        value = self.evaluate(node, frame)
        try:
            return str(plain(value))
        except NotPlainError:
            return self.text(node)

    def _do_Assert(self, node: ast.Assert, frame: Frame) -> None:  # noqa: N802
        if not frame.hop and not self._refuses(frame):
            return  # a sanity check of the runtime's own state
        step = self._decide(node.test, frame, needed=True)
        if step.known and step.leaf.value is False and not step.forced:
            step.exited = step.raises = True
            raise RaisedError("AssertionError", self.text(node.test), self._nowhere(node, frame), [step])

    def _do_If(self, node: ast.If, frame: Frame) -> str:  # noqa: N802
        step = self._decide(node.test, frame)
        truth = step.needed if step.known else None
        if truth is not None:
            return self._taken(node.body if truth else node.orelse, step, frame)
        return self._both([(True, node.body), (False, node.orelse)], step, frame)

    def _taken(self, body: list[ast.stmt], step: Step, frame: Frame) -> str:
        frame.path.append(step)
        try:
            flow = self._block(body, frame)
        except RaisedError:
            step.exited = step.raises = True
            raise
        finally:
            frame.path.remove(step)
        step.exited = flow != "next"
        return flow

    def _both(self, branches: list[tuple[bool, list[ast.stmt]]], step: Step, frame: Frame) -> str:
        """Run each branch of a decision that is not known, and join what they leave."""
        before, entry = frame.locals, list(frame.path)
        left: list[tuple[bool, str, dict[str, Pending], RaisedError | None]] = []
        for needed, body in branches:
            frame.locals = dict(before)
            taken = replace(step, needed=needed)
            frame.path = [*entry, taken]
            error: RaisedError | None = None
            try:
                flow = self._block(body, frame)
            except RaisedError as raised:
                flow, error = "raise", raised
            left.append((needed, flow, frame.locals, error))
        frame.path = entry
        live = [item for item in left if item[1] == "next"]
        if not live:
            frame.locals = left[0][2]
            flows = {flow for _, flow, _, _ in left} - {"raise"}
            if not flows:
                error = next(error for _, _, _, error in left if error is not None)
                raise RaisedError(error.name, error.message, error.where, [*error.steps, step])
            return "return" if "return" in flows else flows.pop()
        if len(live) == 1:
            frame.locals = live[0][2]
            if len(left) > 1:
                exits_by_raise = all(flow == "raise" for _, flow, _, _ in left if flow != "next")
                frame.path.append(replace(step, needed=live[0][0], exited=True, raises=exits_by_raise))
            return "next"
        frame.locals = self._joined([item[2] for item in live], step)
        return "next"

    def _joined(self, states: list[dict[str, Pending]], step: Step) -> dict[str, Pending]:
        merged: dict[str, Pending] = {}
        for name in dict.fromkeys(name for state in states for name in state):
            values = [state[name] for state in states if name in state]
            if all(value is values[0] for value in values):
                merged[name] = values[0]
            else:
                merged[name] = Lazy(
                    lambda values=values: join([force(v) for v in values], step.leaf.deps, hazy=step.opaque)  # type: ignore[misc]
                )
        return merged

    def _decide(self, test: ast.expr, frame: Frame, needed: bool | None = None) -> Step:
        """Evaluate a test and record the decision."""
        value = self._operand(test, frame)
        truth = value.truth
        leaf = value.why or self._leaf(test, frame, value)
        forced = self.forced.get(id(test))
        if forced is not None:
            step = Step(test, leaf, forced if needed is None else needed, True, value.is_opaque, forced=True)
        else:
            step = Step(test, leaf, bool(truth) if needed is None else needed, truth is not None, value.is_opaque)
        frame.log.append(step)
        return step

    def _do_For(self, node: ast.For, frame: Frame) -> str:  # noqa: N802
        items = self._items(self.evaluate(node.iter, frame))
        if items is None:
            for name in bound_names(node):
                frame.locals.setdefault(name, free(f"loop over {self.text(node.iter)}"))
            self._store(node.target, free(f"item of {self.text(node.iter)}"), frame)
            step = self._free_step(node.iter, frame)
            return self._both([(True, node.body), (False, [])], step, frame)
        for item in items:
            self._store(node.target, item, frame)
            flow = self._block(node.body, frame)
            if flow == "break":
                return "next"
            if flow == "return":
                return flow
        return self._block(node.orelse, frame)

    def _free_step(self, node: ast.expr, frame: Frame) -> Step:
        return Step(node, self._leaf(node, frame, free(self.text(node))), True, False, False)

    def _do_While(self, node: ast.While, frame: Frame) -> str:  # noqa: N802
        step = self._decide(node.test, frame)
        if step.known and not step.needed:
            return "next"
        step = replace(step, known=False)
        flow = self._both([(True, node.body), (False, [])], step, frame)
        return "next" if flow in ("break", "continue") else flow

    def _do_Break(self, node: ast.Break, frame: Frame) -> str:  # noqa: N802
        return "break"

    def _do_Continue(self, node: ast.Continue, frame: Frame) -> str:  # noqa: N802
        return "continue"

    def _do_With(self, node: ast.With, frame: Frame) -> str:  # noqa: N802
        for item in node.items:
            value = self.evaluate(item.context_expr, frame)
            if item.optional_vars is not None:
                self._store(
                    item.optional_vars, value if not value.is_known else free(self.text(item.context_expr)), frame
                )
        return self._block(node.body, frame)

    _do_AsyncWith = _do_With  # noqa: N815
    _do_AsyncFor = _do_For  # noqa: N815

    def _do_Try(self, node: ast.Try, frame: Frame) -> str:  # noqa: N802
        entry = list(frame.path)
        try:
            flow = self._block(node.body, frame)
            if flow == "next":
                flow = self._block(node.orelse, frame)
        except RaisedError as error:
            frame.path = entry
            handler = next((handler for handler in node.handlers if _catches(handler, error.name)), None)
            if handler is None:
                self._block(node.finalbody, frame)
                raise
            if handler.name:
                frame.locals[handler.name] = free("the error")
            flow = self._block(handler.body, frame)
        last = self._block(node.finalbody, frame)
        return last if last != "next" else flow

    _do_TryStar = _do_Try  # noqa: N815

    def _do_Match(self, node: ast.Match, frame: Frame) -> str:  # noqa: N802
        subject = self.evaluate(node.subject, frame)
        step = Step(node.subject, self._leaf(node.subject, frame, subject), True, False, subject.is_opaque)
        frame.log.append(step)
        branches: list[tuple[bool, list[ast.stmt]]] = []
        for case in node.cases:
            matches = self._matches(case.pattern, subject, frame) if case.guard is None else None
            if matches is True:
                if not branches:
                    return self._taken(case.body, replace(step, known=True), frame)
                branches.append((True, case.body))
                return self._both(branches, step, frame)
            if matches is None:
                branches.append((True, case.body))
        if not branches:
            return "next"
        return self._both([*branches, (False, [])], step, frame)

    def _matches(self, pattern: ast.pattern, subject: Value, frame: Frame) -> bool | None:
        if isinstance(pattern, ast.MatchAs) and pattern.pattern is None:
            if pattern.name:
                frame.locals[pattern.name] = subject
            return True
        if isinstance(pattern, ast.MatchValue):
            return self._compare(ast.Eq, subject, self.evaluate(pattern.value, frame)).truth
        if isinstance(pattern, ast.MatchSingleton):
            return self._compare(ast.Is, subject, known(pattern.value)).truth
        if isinstance(pattern, ast.MatchOr):
            results = [self._matches(part, subject, frame) for part in pattern.patterns]
            return True if True in results else (None if None in results else False)
        return None

    def _do_FunctionDef(self, node: ast.FunctionDef, frame: Frame) -> None:  # noqa: N802
        frame.locals[node.name] = known(FunctionRef(frame.module, node, None, None, frame.locals))

    _do_AsyncFunctionDef = _do_FunctionDef  # noqa: N815

    def _do_ClassDef(self, node: ast.ClassDef, frame: Frame) -> None:  # noqa: N802
        frame.locals[node.name] = known(ClassRef(frame.module, node))

    def _do_Global(self, node: ast.Global, frame: Frame) -> None:  # noqa: N802
        frame.globals.update(node.names)

    def _do_Nonlocal(self, node: ast.Nonlocal, frame: Frame) -> None:  # noqa: N802
        for name in node.names:
            frame.locals[name] = opaque(f"nonlocal {name}")

    def _do_Pass(self, node: ast.Pass, frame: Frame) -> None:  # noqa: N802
        return

    def _do_Delete(self, node: ast.Delete, frame: Frame) -> None:  # noqa: N802
        for target in node.targets:
            if isinstance(target, ast.Name):
                frame.locals.pop(target.id, None)

    def _do_Import(self, node: ast.Import, frame: Frame) -> None:  # noqa: N802
        for alias in node.names:
            dotted = alias.name if alias.asname else alias.name.partition(".")[0]
            frame.locals[alias.asname or dotted] = self._module_value(dotted)

    def _do_ImportFrom(self, node: ast.ImportFrom, frame: Frame) -> None:  # noqa: N802
        source = import_source(frame.module, node)
        for alias in node.names:
            if alias.name != "*" and self.program.holds(source) and not source.startswith("flashinfer"):
                frame.locals[alias.asname or alias.name] = Lazy(
                    partial(self._imported, source, alias.name),
                    origin=(source, alias.name),
                )
            elif alias.name != "*":
                value = self._imported(source, alias.name)
                if value.is_opaque and value.name == "missing":
                    steps = list(reversed(frame.path))
                    raise RaisedError("ImportError", f"{source}.{alias.name}", self._nowhere(node, frame), steps)
                frame.locals[alias.asname or alias.name] = value

    def _module_value(self, dotted: str) -> Value:
        if not self.program.holds(dotted):
            return known(External(dotted))
        module = self.program.find_module(dotted)
        if module is not None:
            return known(ModuleRef(module))
        return known(PackageRef(dotted)) if self.program.is_package(dotted) else _missing(dotted)

    def _imported(self, source: str, name: str) -> Value:
        if not self.program.holds(source):
            return self.facts.external(f"{source}.{name}")
        module = self.program.find_module(source)
        if module is not None:
            value = self.lookup_global(module, name)
            if value is not None:
                return value
        return self._module_value(f"{source}.{name}")

    # ------------------------------------------------------------ stores

    def _store(self, target: ast.expr, pending: Pending, frame: Frame) -> None:
        if isinstance(target, ast.Name):
            if target.id in frame.globals:
                self._stored(target.id, force(pending), target, frame)
            frame.locals[target.id] = pending
            return
        if isinstance(target, ast.Tuple | ast.List) and isinstance(pending, Lazy):
            self._unpack_later(target, pending, frame)
            return
        if (
            isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name)
            and not self._is_watched(target, frame)
        ):
            local = frame.locals.get(target.value.id)
            if isinstance(local, Value) and isinstance(local.data, Instance):
                self._store_attribute(local.data, target.attr, pending, frame)
                return
        value = force(pending) if self._is_object_store(target, frame) else None
        if value is None:
            return
        if isinstance(target, ast.Attribute):
            self._notice(value, target, frame)
            self._stored(target.attr, value, target, frame)
            base = self.evaluate(target.value, frame)
            if isinstance(base.data, Instance):
                self._store_attribute(base.data, target.attr, value, frame)
        elif isinstance(target, ast.Subscript):
            self._notice(value, target, frame)
            base, key = self.evaluate(target.value, frame), self.evaluate(target.slice, frame)
            if key.is_known and isinstance(key.data, str):
                self._stored(key.data, value, target, frame)
            if base.is_known and isinstance(base.data, dict) and key.is_known and isinstance(key.data, PLAIN):
                base.data[key.data] = value
        elif isinstance(target, ast.Tuple | ast.List):
            items = self._items(value)
            if items is not None and len(items) == len(target.elts) and not _has_star(target):
                for part, item in zip(target.elts, items, strict=True):
                    self._store(part, item, frame)
            else:
                for part in target.elts:
                    inner = part.value if isinstance(part, ast.Starred) else part
                    self._store(inner, Value("opaque" if value.is_opaque else "free", deps=all_deps(value)), frame)

    def _store_attribute(self, instance: Instance, name: str, pending: Pending, frame: Frame) -> None:
        old = instance.attrs.get(name, self._by_name(name))
        if old is None or all(step.known for step in frame.path):
            instance.attrs[name] = pending
            return
        instance.attrs[name] = Lazy(lambda: join([force(old), force(pending)]))

    def _is_watched(self, target: ast.expr, frame: Frame) -> bool:
        words = self.watch.words if self.watch is not None and frame.root else frozenset()
        return any(mentions(inner, words) for inner in self._parts(target))

    def _is_object_store(self, target: ast.expr, frame: Frame) -> bool:
        """Whether a store can be seen again: in an object of the source, or by the watch."""
        if isinstance(target, ast.Tuple | ast.List) or self._is_watched(target, frame):
            return True
        root = target
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not isinstance(root, ast.Name):
            return False
        local = frame.locals.get(root.id)
        return isinstance(local, Value) and isinstance(local.data, Instance | dict | list)

    def _unpack_later(self, target: ast.Tuple | ast.List, pending: Lazy, frame: Frame) -> None:
        def item(index: int) -> Value:
            value = pending.force()
            items = self._items(value)
            if items is not None and len(items) == len(target.elts):
                return items[index]
            return Value("opaque" if value.is_opaque else "free", deps=all_deps(value))

        for index, part in enumerate(target.elts):
            inner = part.value if isinstance(part, ast.Starred) else part
            later = Lazy(lambda index=index: item(index))  # type: ignore[misc]
            self._store(inner, free(self.text(inner)) if _has_star(target) else later, frame)

    def _stored(self, name: str, value: Value, node: ast.AST, frame: Frame) -> None:
        if self.watch is not None and frame.root and not self._muted and name in self.watch.stores:
            self.watch.hits.append(Hit(node, list(frame.path), value))

    def _notice(self, value: Value, node: ast.AST, frame: Frame) -> None:
        """The value leaves the frame: a watched function that is handed on counts as called."""
        if (
            self.watch is not None
            and frame.root
            and not (self._muted or self._comparing)
            and self.watch.is_target(value)
        ):
            self.watch.hits.append(Hit(node, list(frame.path), value))

    # ------------------------------------------------------------ names

    def _name(self, node: ast.Name, frame: Frame) -> Value:
        name = node.id
        if name in frame.locals and name not in frame.globals:
            return force(frame.locals[name])
        if name in frame.closure:
            return force(frame.closure[name])
        value = self.lookup_global(frame.module, name)
        if value is not None:
            return value
        if hasattr(builtins, name):
            return known(External(name))
        return opaque(name)

    def lookup_global(self, module: Module, name: str) -> Value | None:
        """A module's global: what its top-level statements leave and functions may store later. None if unbound."""
        key = ("global", module.name, name)
        found, kept = self._recall(key)
        if found:
            return kept
        if name not in module.bindings:
            for node in module.star_imports:
                origin = self.program.find_module(import_source(module, node))
                value = self.lookup_global(origin, name) if origin is not None else None
                if value is not None:
                    return value
            return None
        if key in self._busy:
            return self._itself(name)
        self._busy.add(key)
        met = self._met_itself
        try:
            value = self._global_value(module, name)
        finally:
            self._busy.discard(key)
        if isinstance(value.data, Instance):
            value.data.shared = True
        self._keep(key, value, met)
        return value

    def _global_value(self, module: Module, name: str) -> Value:
        statements = module.bindings[name]
        last = statements[-1]
        if isinstance(last, FunctionNode):
            return self._decorated(FunctionRef(module, last), last, module)
        if isinstance(last, ast.ClassDef):
            return known(ClassRef(module, last))
        frame = Frame(module, "<module>", {}, depth=1)
        saved = self.watch, self.forced
        self.watch, self.forced = None, {}
        try:
            for statement in statements:
                self._statement(statement, frame)
        except RaisedError as error:
            return opaque(f"{name}: {error}")
        finally:
            self.watch, self.forced = saved
        pending = frame.locals.get(name)
        if pending is None:
            return opaque(f"{name}, which may be unbound")
        value = force(pending)
        if isinstance(value.data, FunctionRef) and isinstance(value.data.node, FunctionNode) and not value.data.closure:
            return value
        return self._with_later_stores(module, name, value)

    def _decorated(self, function: FunctionRef, node: FunctionNode, module: Module) -> Value:
        """Decorators of the source that only register or cache leave the function as it is."""
        return known(function)

    def _with_later_stores(self, module: Module, name: str, first: Value) -> Value:
        """A global that functions assign too: their values as well, or instead where one certainly sets it up."""
        functions = module.declaring_global(name)
        values, sure = [first], []
        for function in functions:
            stored, certain, _ = self._values_stored(self.function(module, function), name)
            values += stored
            sure += certain
        if sure and len(sure) == len(values) - 1 and first.truth is False:
            return join(sure)
        return join(values, frozenset({f"what {name} is set to at run time"})) if len(values) > 1 else first

    def _values_stored(self, function: FunctionRef, name: str) -> tuple[list[Value], list[Value], list[Step]]:
        """Values that a function may store under a name, those that it certainly stores, and its decisions."""
        watch = Watch(stores=frozenset({name}), words=frozenset({name}))
        key = ("stores", id(function.node), name)
        if key in self._busy:
            return [self._itself(name)], [], []
        self._busy.add(key)
        try:
            log = self.run(function, watch, {}).log
        except RaisedError as error:
            log = error.frame.log  # type: ignore[attr-defined]
            if not _is_refusal(error):
                stopped = opaque(f"{name}, set in {function.module.symbol(function.node)}, which could not be followed")
                watch.hits.append(Hit(function.node, [], stopped))
        finally:
            self._busy.discard(key)
        values = [hit.value for hit in watch.hits]
        certain = [hit.value for hit in watch.hits if hit.value.is_known and all(s.known for s in hit.path)]
        if id(function.node) not in self._failing:
            self._failing[id(function.node)] = _stored_on_failure(function.node)
        if name in self._failing[id(function.node)]:
            values.append(free(f"a failure in {function.module.symbol(function.node)}"))
        return values, certain, log

    # ------------------------------------------------------------ expressions

    def evaluate(self, node: ast.expr, frame: Frame) -> Value:
        """The abstract value of an expression."""
        self._steps += 1
        handler = getattr(self, f"_on_{type(node).__name__}", None)
        if handler is None:
            return opaque(self.text(node)[:80])
        return handler(node, frame)

    def _operand(self, node: ast.expr, frame: Frame) -> Value:
        """An expression used as a truth value, with its explanation at this place."""
        value = self.evaluate(node, frame)
        if isinstance(node, ast.BoolOp | ast.UnaryOp | ast.Compare):
            return value
        parts = (value.why,) if value.why is not None else ()
        return replace(value, why=self._leaf(node, frame, value, "atom", parts))

    def _on_Constant(self, node: ast.Constant, frame: Frame) -> Value:  # noqa: N802
        return known(node.value)

    def _on_Name(self, node: ast.Name, frame: Frame) -> Value:  # noqa: N802
        return self._name(node, frame)

    def _on_NamedExpr(self, node: ast.NamedExpr, frame: Frame) -> Value:  # noqa: N802
        value = self.evaluate(node.value, frame)
        self._store(node.target, value, frame)
        return value

    def _on_BoolOp(self, node: ast.BoolOp, frame: Frame) -> Value:  # noqa: N802
        is_and = isinstance(node.op, ast.And)
        stop = not is_and
        entry = list(frame.path)
        values: list[Value] = []
        settled = False
        for operand in node.values:
            if settled:
                self._muted += 1
            try:
                value = self._operand(operand, frame)
            except RaisedError:
                if not settled:
                    frame.path = entry
                    raise
                value = opaque(self.text(operand))
            finally:
                if settled:
                    self._muted -= 1
            values.append(value)
            if value.truth is stop or value.truth is (not is_and):
                settled = settled or value.truth is stop
            if value.truth is None:
                step = Step(operand, value.why or self._leaf(operand, frame, value), is_and, False, value.is_opaque)
                frame.path.append(step)
            elif value.truth is not stop and value.deps:
                frame.path.append(Step(operand, value.why or self._leaf(operand, frame, value), is_and, True, False))
        frame.path = entry
        return self._combined(node, values, stop, is_and, frame)

    def _combined(self, node: ast.BoolOp, values: list[Value], stop: bool, is_and: bool, frame: Frame) -> Value:
        deciding = [value for value in values if value.truth is stop]
        parts = tuple(value.why for value in values if value.why is not None)
        if deciding:
            deps = frozenset().union(*(all_deps(value) for value in deciding))
            first = deciding[0]
            result = (
                known(stop, deps) if not first.is_known or isinstance(first.data, bool) else replace(first, deps=deps)
            )
        else:
            deps = frozenset().union(*(all_deps(value) for value in values))
            unsettled = [value for value in values if value.truth is None]
            if not unsettled:
                result = replace(values[-1], deps=deps)
            elif any(value.is_opaque for value in unsettled):
                result = Value("opaque", deps=deps)
            else:
                result = Value("free", deps=deps)
        return replace(result, why=self._leaf(node, frame, result, "and" if is_and else "or", parts))

    def _on_UnaryOp(self, node: ast.UnaryOp, frame: Frame) -> Value:  # noqa: N802
        if not isinstance(node.op, ast.Not):
            value = self.evaluate(node.operand, frame)
            if value.is_known and isinstance(value.data, int | float):
                return known(-value.data if isinstance(node.op, ast.USub) else value.data, value.deps)
            return Value("opaque" if value.is_opaque else "free", deps=value.deps)
        value = self._operand(node.operand, frame)
        truth = value.truth
        deps = all_deps(value)
        result = (
            known(not truth, deps) if truth is not None else Value("opaque" if value.is_opaque else "free", deps=deps)
        )
        parts = (value.why,) if value.why is not None else ()
        return replace(result, why=self._leaf(node, frame, result, "not", parts))

    def _on_Compare(self, node: ast.Compare, frame: Frame) -> Value:  # noqa: N802
        self._comparing += 1  # a function that is only compared is not handed on
        try:
            first, *others = [self.evaluate(part, frame) for part in (node.left, *node.comparators)]
        finally:
            self._comparing -= 1
        results = []
        left = first
        for op, right in zip(node.ops, others, strict=True):
            results.append(self._compare(type(op), left, right))
            left = right
        deps = frozenset().union(*(value.deps for value in results))
        truths = [value.truth for value in results]
        if False in truths:
            result = known(False, deps)
        elif None not in truths:
            result = known(True, deps)
        else:
            result = Value("opaque" if any(v.is_opaque for v in results) else "free", deps=deps)
        parts = tuple(value.why for value in (first, *others) if value.why is not None)
        return replace(result, why=self._leaf(node, frame, result, "atom", parts))

    def _compare(self, op: type, left: Value, right: Value) -> Value:
        deps = all_deps(left) | all_deps(right)
        if left.options or right.options:
            pairs = [(one, other) for one in left.options or (left,) for other in right.options or (right,)]
            if len(pairs) <= 16 and not (left.is_opaque or right.is_opaque):
                return join([self._compare(op, one, other) for one, other in pairs], deps)
        if op in (ast.Is, ast.IsNot) and left.is_known and right.is_known:
            same = (
                left.data is right.data
                or (isinstance(left.data, Member | ClassRef | External | ModuleRef) and left.data == right.data)
                or (isinstance(left.data, bool | type(None)) and left.data is right.data)
            )
            return known(same if op is ast.Is else not same, deps)
        if left.name == "model_type" and op in (ast.Eq, ast.NotEq) and right.is_known:
            possible = _may_be_type(left.data, right.data)
            if possible is not None:
                return known(possible if op is ast.Eq else not possible, deps | {"model architecture"})
        if (
            op in (ast.In, ast.NotIn)
            and right.is_known
            and isinstance(right.data, External)
            and right.data.name == "os.environ"
        ):
            return known(op is ast.NotIn, frozenset({"environment"}))
        try:
            return known(bool(_COMPARE[op](plain(left), plain(right))), deps)
        except (NotPlainError, TypeError):
            pass
        if (
            op in (ast.In, ast.NotIn)
            and left.is_known
            and right.is_known
            and isinstance(right.data, list | tuple | set)
        ):
            checks = [self._compare(ast.Eq, left, item) for item in right.data]
            if any(check.truth is True for check in checks):
                return known(op is ast.In, deps)
        is_opaque = left.is_opaque or right.is_opaque or (left.is_known and right.is_known)
        return Value("opaque" if is_opaque else "free", deps=deps)

    def _on_BinOp(self, node: ast.BinOp, frame: Frame) -> Value:  # noqa: N802
        return self._binary(type(node.op), self.evaluate(node.left, frame), self.evaluate(node.right, frame), node)

    def _binary(self, op: type, left: Value, right: Value, node: ast.AST) -> Value:
        deps = all_deps(left) | all_deps(right)
        if left.is_known and right.is_known and op is ast.Add:
            for kind in (list, tuple):
                if isinstance(left.data, kind) and isinstance(right.data, kind):
                    return known(left.data + right.data, deps)  # type: ignore[operator]
        try:
            result = _BINARY[op](plain(left), plain(right))
        except (NotPlainError, TypeError, KeyError, ZeroDivisionError, ValueError, OverflowError):
            is_opaque = left.is_opaque or right.is_opaque
            return Value("opaque" if is_opaque else "free", deps=deps)
        return _lift(result, deps)

    def _on_IfExp(self, node: ast.IfExp, frame: Frame) -> Value:  # noqa: N802
        step = self._decide(node.test, frame)
        if step.known:
            frame.path.append(step)
            try:
                value = self.evaluate(node.body if step.needed else node.orelse, frame)
            finally:
                frame.path.remove(step)
            value = replace(value, deps=value.deps | step.leaf.deps)
            return (
                value
                if value.why is not None or not value.is_known
                else replace(value, why=self._leaf(node, frame, value, "atom", (step.leaf,)))
            )
        values = []
        for needed, branch in ((True, node.body), (False, node.orelse)):
            taken = replace(step, needed=needed)
            frame.path.append(taken)
            try:
                values.append(self.evaluate(branch, frame))
            except RaisedError:
                continue
            finally:
                frame.path.remove(taken)
        return join(values, step.leaf.deps, hazy=step.opaque) if values else opaque(self.text(node))

    def _on_Tuple(self, node: ast.Tuple, frame: Frame) -> Value:  # noqa: N802
        items = self._elements(node.elts, frame)
        return known(tuple(items)) if items is not None else free(self.text(node)[:60])

    def _on_List(self, node: ast.List, frame: Frame) -> Value:  # noqa: N802
        items = self._elements(node.elts, frame)
        return known(items) if items is not None else free(self.text(node)[:60])

    def _on_Set(self, node: ast.Set, frame: Frame) -> Value:  # noqa: N802
        items = self._elements(node.elts, frame)
        return known(items) if items is not None else free(self.text(node)[:60])

    def _elements(self, nodes: list[ast.expr], frame: Frame) -> list[Value] | None:
        items: list[Value] = []
        whole = True
        for node in nodes:
            if isinstance(node, ast.Starred):
                more = self._items(self.evaluate(node.value, frame))
                whole = whole and more is not None
                items += more or []
            else:
                value = self.evaluate(node, frame)
                self._notice(value, node, frame)
                items.append(value)
        return items if whole else None

    def _on_Dict(self, node: ast.Dict, frame: Frame) -> Value:  # noqa: N802
        result: dict[Any, Value] = {}
        whole = True
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.evaluate(value_node, frame)
            self._notice(value, value_node, frame)
            if key_node is None:
                if value.is_known and isinstance(value.data, dict):
                    result.update(value.data)
                else:
                    whole = False
                continue
            key = self.evaluate(key_node, frame)
            try:
                plain_key = plain(key)
                if isinstance(plain_key, str):
                    self._stored(plain_key, value, value_node, frame)
                result[plain_key] = value
            except (NotPlainError, TypeError):
                whole = False
        return known(result) if whole else free(self.text(node)[:60])

    def _items(self, value: Value) -> list[Value] | None:
        """The items of a known container, None where they are not known."""
        if not value.is_known:
            return None
        data = value.data
        if isinstance(data, dict):
            data = [_lift(key, value.deps) for key in data]
        elif isinstance(data, str):
            data = [known(character, value.deps) for character in data]
        elif isinstance(data, range):
            data = [known(number, value.deps) for number in data[: _MAX_ITEMS + 1]]
        if not isinstance(data, list | tuple | set | frozenset) or len(data) > _MAX_ITEMS:
            return None
        return [item if item.deps >= value.deps else replace(item, deps=item.deps | value.deps) for item in data]

    def _on_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, frame: Frame) -> Value:  # noqa: N802
        inner = replace(frame, locals=dict(frame.locals), root=False)
        collected: list[Value] = []
        chosen_by: set[str] = set()
        collect = lambda: collected.append(self.evaluate(node.elt, inner))  # noqa: E731
        sure = self._comprehend(node.generators, inner, collect, chosen_by)
        if sure is None:
            return known(collected, frozenset(chosen_by).union(*(all_deps(item) for item in collected)))
        return sure

    _on_SetComp = _on_ListComp  # noqa: N815
    _on_GeneratorExp = _on_ListComp  # noqa: N815

    def _on_DictComp(self, node: ast.DictComp, frame: Frame) -> Value:  # noqa: N802
        inner = replace(frame, locals=dict(frame.locals), root=False)
        result: dict[Any, Value] = {}

        def collect() -> None:
            result[plain(self.evaluate(node.key, inner))] = self.evaluate(node.value, inner)

        try:
            sure = self._comprehend(node.generators, inner, collect, set())
        except (NotPlainError, TypeError):
            return opaque(self.text(node)[:80])
        return known(result) if sure is None else sure

    def _comprehend(
        self, generators: list[ast.comprehension], frame: Frame, collect: Callable[[], None], chosen_by: set[str]
    ) -> Value | None:
        """Run a comprehension; None when all of it was known, else the value that stands for what was not.

        ``chosen_by`` collects what the choice of items depends on.
        """
        if not generators:
            collect()
            return None
        first, *rest = generators
        source = self.evaluate(first.iter, frame)
        items = self._items(source)
        if items is None:
            return Value("opaque" if source.is_opaque else "free", deps=source.deps)
        for item in items:
            self._store(first.target, item, frame)
            tests = [self._operand(test, frame) for test in first.ifs]
            chosen_by.update(*(all_deps(test) for test in tests))
            if any(test.truth is False for test in tests):
                continue
            unsettled = [test for test in tests if test.truth is None]
            if unsettled:
                hazy = any(test.is_opaque for test in unsettled)
                return Value("opaque" if hazy else "free", deps=frozenset().union(*(test.deps for test in unsettled)))
            sure = self._comprehend(rest, frame, collect, chosen_by)
            if sure is not None:
                return sure
        return None

    def _on_JoinedStr(self, node: ast.JoinedStr, frame: Frame) -> Value:  # noqa: N802
        parts: list[str] = []
        deps: frozenset[str] = frozenset()
        for part in node.values:
            value = known(part.value) if isinstance(part, ast.Constant) else self.evaluate(part.value, frame)  # type: ignore[attr-defined]
            deps |= value.deps
            try:
                parts.append(str(plain(value)))
            except NotPlainError:
                return free("a text")
        return known("".join(parts), deps)

    def _on_Lambda(self, node: ast.Lambda, frame: Frame) -> Value:  # noqa: N802
        return known(FunctionRef(frame.module, node, None, None, dict(frame.locals) | frame.closure))

    def _on_Await(self, node: ast.Await, frame: Frame) -> Value:  # noqa: N802
        return self.evaluate(node.value, frame)

    def _on_Yield(self, node: ast.Yield, frame: Frame) -> Value:  # noqa: N802
        if node.value is not None:
            self._notice(self.evaluate(node.value, frame), node, frame)
        return free("what is sent in")

    def _on_Starred(self, node: ast.Starred, frame: Frame) -> Value:  # noqa: N802
        return self.evaluate(node.value, frame)

    def _on_Slice(self, node: ast.Slice, frame: Frame) -> Value:  # noqa: N802
        parts = [NONE if part is None else self.evaluate(part, frame) for part in (node.lower, node.upper, node.step)]
        if all(part.is_known for part in parts):
            return known(slice(*(part.data for part in parts)))
        return free("a slice")

    def _on_Subscript(self, node: ast.Subscript, frame: Frame) -> Value:  # noqa: N802
        base, key = self.evaluate(node.value, frame), self.evaluate(node.slice, frame)
        if base.is_known and key.is_known:
            data = base.data
            try:
                if isinstance(data, dict):
                    if key.data in data:
                        found = data[key.data]
                        return replace(found, deps=found.deps | base.deps | key.deps)
                elif isinstance(data, list | tuple | str):
                    found = data[key.data]
                    deps = base.deps | key.deps
                    if isinstance(key.data, slice) and not isinstance(data, str):
                        return known(found, deps)
                    return replace(found, deps=found.deps | deps) if isinstance(found, Value) else _lift(found, deps)
            except (TypeError, IndexError, KeyError):
                return opaque(self.text(node))
        if key.is_known and isinstance(key.data, str):
            value = self._by_name(key.data, self.text(node.value))
            if value is not None:
                return value
        return Value("opaque" if base.is_opaque or base.is_known else "free", deps=base.deps | key.deps)

    # ------------------------------------------------------------ attributes

    def _on_Attribute(self, node: ast.Attribute, frame: Frame) -> Value:  # noqa: N802
        base = node.value
        local = frame.locals.get(base.id) if isinstance(base, ast.Name) else None
        if _MODEL_CONFIG.search(node.attr):
            return free("the model's configuration")
        if node.attr.endswith(("_rank", "_group")):
            return free(self.text(node))
        if not (isinstance(local, Value) and isinstance(local.data, Instance)) and not isinstance(base, ast.Constant):
            fixed = self._by_name(node.attr, self.text(base))
            if fixed is not None:
                return fixed  # what it is read from need not be computed
        value = self.attribute(self.evaluate(node.value, frame), node.attr, node, frame)
        if self.watch is not None and frame.root and node.attr in self.watch.methods and not value.is_known:
            return replace(value, name=node.attr)  # whatever it is, it goes by the watched name
        return value

    def attribute(self, base: Value, name: str, node: ast.AST, frame: Frame) -> Value:
        """``base.name``."""
        if base.options:
            # what is None here would raise, so the program goes on only with the others
            options = [option for option in base.options if not (option.is_known and option.data is None)]
            if len(options) == 1:
                return self.attribute(options[0], name, node, frame)
            base = replace(base, options=tuple(options or base.options))
            return join(
                [self.attribute(option, name, node, frame) for option in base.options], base.deps, hazy=base.is_opaque
            )
        data = base.data
        if base.is_known:
            if isinstance(data, ModuleRef):
                value = self.lookup_global(data.module, name)
                return value if value is not None else self._module_value(f"{data.module.name}.{name}")
            if isinstance(data, PackageRef):
                return self._module_value(f"{data.name}.{name}")
            if isinstance(data, External):
                return self.facts.external(f"{data.name}.{name}")
            if isinstance(data, Instance):
                return self._instance_attribute(base, data, name, node, frame)
            if isinstance(data, ClassRef):
                fixed = self.facts.setting(name)
                return fixed if fixed is not None else self._class_attribute(data, name, None)
            if isinstance(data, Member):
                return known(data.name if name == "name" else External(f"{data.owner}.{data.name}.{name}"))
            if isinstance(data, PLAIN | list | tuple | dict | set | frozenset) and data is not None:
                return known(BoundBuiltin(base, name), base.deps)
        fixed = self._by_name(name, self.text(node.value) if isinstance(node, ast.Attribute) else "")
        if fixed is not None:
            return fixed
        if base.is_opaque:
            return Value("opaque", deps=base.deps, name=name)
        if base.is_known and data is None:
            return opaque(f"{self.text(node)} of None")
        marked = self._marked(name, frame)
        if marked is not None:
            return marked
        return Value("free", None, base.deps or frozenset({self.text(node)}), None, name)

    def _by_name(self, name: str, base: str = "") -> Value | None:
        """What a launch setting, a group size or the model's configuration is called, wherever it is read from.

        ``base`` is the text of what it is read from: a one-word name such as ``dtype`` counts only where that speaks of
        settings.
        """
        if name == "world_size":
            group = next(
                (word for word in ("pp", "pipeline", "dp", "ep", "cp") if re.search(rf"(^|_|\b){word}_", base)), "tp"
            )
            return self.facts.layout(f"{group}_size")
        if (
            "_" in name
            or name == "nnodes"
            or (_SETTINGS_LIKE.search(base) and not re.search(r"(model|hf)_config", base))
        ):
            value = self.facts.setting(name)
            if value is not None:
                return value
        value = self.facts.layout(name)
        return value if value is not None else self.facts.model_fact(name)

    def _marked(self, name: str, frame: Frame) -> Value | None:
        """An attribute that the source itself hangs on objects it does not define (a mark on a tensor).

        Its value is whatever the reachable stores put there; None where it is not such a mark.
        """
        key = ("mark", name)
        found, kept = self._recall(key)
        if found:
            return kept
        if name.startswith("__") or not (frame.hop or "fus" in name):
            return None
        if not self.follow_marks:
            self.passed_mark = True
            return None
        if key in self._busy:
            return self._itself(f"the mark {name}")
        self._busy.add(key)
        met = self._met_itself
        files = self.program.containing(name, "sglang")
        values: list[Value] = []
        reasons: list[Leaf] = []
        stores = self._mark_stores(name, files) if len(files) <= 60 else []
        for function in stores:
            stored, _, log = self._values_stored(function, name)
            values += stored
            if any(not value.is_opaque for value in stored):
                break  # one reachable store is enough to leave the mark open
            reasons += [step.leaf for step in log if not stored and step.known and "arch" in step.leaf.touched]
        self._busy.discard(key)
        if not stores:
            self._keep(key, None, met)
            return None
        if values:
            result: Value | None = join([known(False), *values], frozenset({f"the mark {name}"}))
        else:
            deps = frozenset({f"the mark {name}"}).union(*(leaf.deps for leaf in reasons))
            closed = known(False, deps)
            where = stores[0]
            home = Frame(where.module, where.module.symbol(where.node), {})
            result = replace(
                closed, why=self._leaf(where.node, home, closed, "atom", tuple(reasons), text=f"the mark {name}")
            )
        self._keep(key, result, met)
        return result

    def _mark_stores(self, name: str, files: list[str]) -> list[FunctionRef]:
        """The functions that store an attribute of this name in objects; none where a class keeps it for itself."""
        found: dict[int, FunctionRef] = {}
        for rel in files:
            module = self.program.module(rel)
            for node in module.nodes_naming(name):
                if isinstance(node, ast.Attribute) and node.attr == name and isinstance(node.ctx, ast.Store):
                    if isinstance(node.value, ast.Name) and node.value.id == "self":
                        return []
                    function = module.enclosing_function(node)
                    if function is not None:
                        found[id(function)] = self.function(module, function)
        return list(found.values())

    def _instance_attribute(self, base: Value, data: Instance, name: str, node: ast.AST, frame: Frame) -> Value:
        if name in data.attrs:
            stored = self._instance_store(data.cls, name) if data.shared else None
            return stored if stored is not None else force(data.attrs[name])
        fixed = self._by_name(name, data.cls.node.name)
        if fixed is not None:
            return fixed
        value = self._class_attribute(data.cls, name, base)
        if value.name != "missing":
            stored = self._instance_store(data.cls, name) if not isinstance(value.data, FunctionRef) else None
            return stored if stored is not None else value
        stored = self._instance_store(data.cls, name)
        if stored is not None:
            return stored
        getter = self._find_in_class(data.cls, "__getattr__")
        if getter is not None:
            function = FunctionRef(getter[0].module, getter[1], getter[0], base)  # type: ignore[arg-type]
            return self.call(known(function), [known(name)], {}, node, frame)
        if self._has_outside_base(data.cls):
            return Value("free", None, frozenset({f"self.{name}"}), None, name)
        return Value("opaque", None, frozenset({f"not understood: self.{name}"}), None, name)

    def _instance_store(self, cls: ClassRef, name: str) -> Value | None:
        """What the class's own methods store in ``self.name``; None where none does."""
        key = ("attribute", self.follow_marks, id(cls.node), name)
        found, kept = self._recall(key)
        if found:
            return kept
        if key in self._busy:
            return self._itself(f"self.{name}")
        self._busy.add(key)
        met = self._met_itself
        values: list[Value] = []
        for owner in self._bases(cls):
            for method in self._storing_methods(owner).get(name, ()):
                plainly = _plain_store(method, name)
                if plainly is not None:
                    values.append(plainly)
                else:
                    values += self._values_stored(FunctionRef(owner.module, method, owner), name)[0]
        result = join(values, frozenset({f"what self.{name} is set to"})) if values else None
        self._busy.discard(key)
        self._keep(key, result, met)
        return result

    def _storing_methods(self, cls: ClassRef) -> dict[str, list[FunctionNode]]:
        """For each attribute that the class's methods store in their object, those methods."""
        if id(cls.node) not in self._storing:
            found: dict[str, list[FunctionNode]] = {}
            for method in cls.node.body:
                if isinstance(method, FunctionNode):
                    for name in dict.fromkeys(_attributes_stored(method)):
                        found.setdefault(name, []).append(method)
            self._storing[id(cls.node)] = found
        return self._storing[id(cls.node)]

    def _bases(self, cls: ClassRef) -> list[ClassRef]:
        """The class and those of its bases that are in the source, nearest first."""
        if id(cls.node) not in self._base_lists:
            self._base_lists[id(cls.node)] = self._find_bases(cls)
        return self._base_lists[id(cls.node)]

    def _find_bases(self, cls: ClassRef) -> list[ClassRef]:
        found: list[ClassRef] = []
        queue = [cls]
        while queue and len(found) < 12:
            current = queue.pop(0)
            if current in found:
                continue
            found.append(current)
            frame = Frame(current.module, "<module>", {}, depth=2)
            for base in current.node.bases:
                value = self.evaluate(base, frame) if isinstance(base, ast.Name | ast.Attribute) else opaque("base")
                if value.is_known and isinstance(value.data, ClassRef):
                    queue.append(value.data)
        return found

    def _has_outside_base(self, cls: ClassRef) -> bool:
        return any(
            len(owner.node.bases) > sum(1 for _ in self._bases(owner)) - 1
            for owner in self._bases(cls)
            if owner.node.bases
        )

    def _find_in_class(self, cls: ClassRef, name: str) -> tuple[ClassRef, ast.stmt] | None:
        for owner in self._bases(cls):
            for statement in reversed(owner.node.body):
                if name in self._bound_by(statement):
                    return owner, statement
        return None

    def _bound_by(self, statement: ast.stmt) -> tuple[str, ...]:
        if id(statement) not in self._bound:
            self._bound[id(statement)] = tuple(dict.fromkeys(bound_names(statement)))
        return self._bound[id(statement)]

    def _class_attribute(self, cls: ClassRef, name: str, receiver: Value | None) -> Value:
        found = self._find_in_class(cls, name)
        if found is None:
            if self._is_enum(cls) or name.startswith("__"):
                return known(External(f"{cls.node.name}.{name}"))
            return _missing(name)
        owner, statement = found
        if isinstance(statement, FunctionNode):
            static = _has_decorator(statement, "staticmethod")
            bound = None if static else known(owner) if _has_decorator(statement, "classmethod") else receiver
            function = FunctionRef(owner.module, statement, owner, bound)
            if receiver is not None and (
                _has_decorator(statement, "property") or _has_decorator(statement, "cached_property")
            ):
                return self.call(known(function), [], {}, statement, Frame(owner.module, name, {}, depth=3))
            return known(function)
        if isinstance(statement, ast.ClassDef):
            return known(ClassRef(owner.module, statement))
        if self._is_enum(owner):
            return known(Member(owner.node.name, name))
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            frame = Frame(owner.module, f"{owner.node.name}", {}, depth=2)
            value = self.evaluate(statement.value, frame)
            return self._field_default(value, statement.value, frame)
        return opaque(f"{owner.node.name}.{name}")

    def _field_default(self, value: Value, node: ast.expr, frame: Frame) -> Value:
        """The default of a dataclass-like field."""
        if isinstance(node, ast.Call) and self.text(node.func).rpartition(".")[2] == "field":
            for keyword in node.keywords:
                if keyword.arg == "default":
                    return self.evaluate(keyword.value, frame)
                if keyword.arg == "default_factory":
                    return self.call(self.evaluate(keyword.value, frame), [], {}, node, frame)
        return value

    def _is_enum(self, cls: ClassRef) -> bool:
        return any(
            self.text(base).rpartition(".")[2] in ("Enum", "IntEnum", "StrEnum", "Flag", "IntFlag")
            for owner in self._bases(cls)
            for base in owner.node.bases
        )

    # ------------------------------------------------------------ calls

    def _on_Call(self, node: ast.Call, frame: Frame) -> Value:  # noqa: N802
        if isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) > 1:
            name = node.args[1]
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                fixed = self._by_name(name.value, self.text(node.args[0]))
                if fixed is not None:
                    return fixed
        function = self.evaluate(node.func, frame)
        args: list[Pending] = []
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                more = self._items(self.evaluate(argument.value, frame))
                args += more if more is not None else [free(self.text(argument))]
                continue
            pending = self._later(argument, frame)
            if isinstance(pending, Value):
                self._notice(pending, argument, frame)
            args.append(pending)
        kwargs: dict[str, Pending] = {}
        for keyword in node.keywords:
            if keyword.arg is not None:
                pending = self._later(keyword.value, frame)
                if self.watch is not None and keyword.arg in self.watch.stores:
                    self._stored(keyword.arg, force(pending), keyword.value, frame)
                if isinstance(pending, Value):
                    self._notice(pending, keyword.value, frame)
                kwargs[keyword.arg] = pending
                continue
            value = self.evaluate(keyword.value, frame)
            if value.is_known and isinstance(value.data, dict):
                kwargs.update({key: item for key, item in value.data.items() if isinstance(key, str)})
        if self.watch is not None and frame.root and not self._muted and self.watch.is_target(function):
            self.watch.hits.append(Hit(node, list(frame.path), function))
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and args:
            key = force(args[0])
            fixed = self.facts.setting(key.data) if key.is_known and isinstance(key.data, str) else None
            if fixed is not None:
                return fixed
        if not node.keywords:
            fixed = self._called_by_name(node)
            if fixed is not None:
                return fixed  # how the runtime keeps the size is its own affair
        return self.call(function, args, kwargs, node, frame)

    def _called_by_name(self, node: ast.Call) -> Value | None:
        """A function whose name says which group size it answers."""
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return self.facts.layout(name) if name and not node.args else None

    def call(
        self, function: Value, args: Sequence[Pending], kwargs: dict[str, Pending], node: ast.AST, frame: Frame
    ) -> Value:
        """The result of a call. Raises RaisedError where the callee certainly raises."""
        if function.options:
            results = []
            error: RaisedError | None = None
            for option in function.options:
                if option.is_known and option.data is None:
                    continue
                try:
                    results.append(self.call(option, args, kwargs, node, frame))
                except RaisedError as raised:
                    error = raised
            if not results and error is not None:
                raise error
            if not results:
                return opaque(self.text(node)[:80])
            return join(results, function.deps, hazy=function.is_opaque)
        data = function.data
        if not function.is_known:
            return Value(function.kind, deps=function.deps)
        if isinstance(data, FunctionRef):
            return self._call_function(data, args, kwargs, node, frame)
        if isinstance(data, Partial):
            return self.call(data.function, [*data.args, *args], {**data.kwargs, **kwargs}, node, frame)
        if isinstance(data, ClassRef):
            return self._instantiate(data, args, kwargs, node, frame)
        if isinstance(data, BoundBuiltin):
            return self._call_builtin_method(data, [force(a) for a in args], _forced(kwargs), node)
        if isinstance(data, External):
            return self._call_external(data.name, [force(a) for a in args], _forced(kwargs), node, frame)
        if isinstance(data, Instance):
            method = self._class_attribute(data.cls, "__call__", function)
            if isinstance(method.data, FunctionRef):
                return self.call(method, args, kwargs, node, frame)
        return opaque(f"{self.text(node)[:80]}")

    def _instantiate(
        self, cls: ClassRef, args: Sequence[Pending], kwargs: dict[str, Pending], node: ast.AST, frame: Frame
    ) -> Value:
        if self._is_enum(cls):
            return free(f"a {cls.node.name}")
        instance = Instance(cls)
        value = known(instance)
        init = self._find_in_class(cls, "__init__")
        if init is not None and isinstance(init[1], FunctionNode):
            self._call_function(FunctionRef(init[0].module, init[1], init[0], value), args, kwargs, node, frame)
        else:
            instance.attrs.update(_forced(kwargs))
        return value

    def _call_function(
        self, function: FunctionRef, args: Sequence[Pending], kwargs: dict[str, Pending], node: ast.AST, caller: Frame
    ) -> Value:
        target = function.node
        name = getattr(target, "name", "<lambda>")
        if name in self.native:
            return self.native[name]([force(a) for a in args], _forced(kwargs))
        if _MODEL_CONFIG.search(name):
            return free("the model's configuration")
        if _RUNTIME_OBJECT.search(name):
            return free(f"{name}()")
        if function.module.package == "flashinfer" and caller.module.package != "flashinfer":
            return free(f"flashinfer's {name}")  # judged on its own side
        key = self._call_key(function, args, kwargs)
        if key is not None:
            found, kept = self._recall(key)
            if found and kept is not None:
                return kept
        if caller.depth >= _MAX_DEPTH or self._running.get(id(target), 0) > _MAX_RECURSION:
            return opaque(f"{name}(...), too deep to follow")
        if isinstance(target, ast.Lambda):
            inner = Frame(function.module, f"{caller.symbol}", {}, target, None, function.closure, caller.depth + 1)
            self._bind(target.args, function, args, kwargs, inner)
            return self.evaluate(target.body, inner)
        inner = Frame(
            function.module,
            function.module.symbol(target),
            {},
            target,
            function.owner,
            function.closure,
            caller.depth + 1,
        )
        self._bind(target.args, function, args, kwargs, inner)
        self._running[id(target)] = self._running.get(id(target), 0) + 1
        met = self._met_itself
        try:
            value = self._result(target, inner)
        except RaisedError as error:
            if error.name == "BudgetError":
                raise
            if not error.steps:
                error.steps = list(reversed(inner.log))
            if not _is_refusal(error):
                return free(f"{name}()")  # it raised only because too little is known here
            raise
        finally:
            self._running[id(target)] -= 1
        if key is not None:
            self._keep(key, value, met)
        return value

    def _call_key(
        self, function: FunctionRef, args: Sequence[Pending], kwargs: dict[str, Pending]
    ) -> tuple[object, ...] | None:
        """What makes two calls the same, where their arguments are plain and what is forced is the same; else None."""
        receiver = function.receiver
        if function.closure or (
            receiver is not None and not (isinstance(receiver.data, Instance) and receiver.data.shared)
        ):
            return None
        try:
            given = repr([plain(_settled(value)) for value in [*args, *kwargs.values()]])
        except NotPlainError:
            return None
        whose = id(receiver.data) if receiver is not None else 0
        return (
            "call",
            self.follow_marks,
            id(function.node),
            whose,
            given,
            tuple(kwargs),
            tuple(sorted(self.forced.items())),
        )

    def _result(self, target: FunctionNode, frame: Frame) -> Value:
        error: RaisedError | None = None
        flow = "return"
        try:
            flow = self._block(target.body, frame)
        except RaisedError as raised:
            error = raised
        if flow == "next":
            frame.returns.append((self._explained(NONE, target, frame), []))
        if not frame.returns:
            if error is not None:
                raise error
            return NONE
        if _is_generator(target):
            return free(f"{target.name}()")
        values = [value for value, _ in frame.returns]
        unsettled = [step for step in frame.log if not step.known]
        under = frozenset().union(*(step.leaf.deps for step in unsettled))
        result = join(values, under, hazy=any(step.opaque for step in unsettled))
        if error is not None and _is_refusal(error):
            guards = tuple(step.leaf for step in error.steps if step.leaf.deps)[:1]
            result = result.on(*frozenset().union(*(leaf.deps for leaf in guards)))
            return replace(result, why=self._leaf(target, frame, result, "atom", guards, text=f"{target.name}(...)"))
        if not result.is_known and result.why is None:
            parts = tuple(step.leaf for step in unsettled)
            result = replace(result, why=self._leaf(target, frame, result, "or", parts)) if parts else result
        return result

    def _bind(
        self,
        spec: ast.arguments,
        function: FunctionRef,
        args: Sequence[Pending],
        kwargs: dict[str, Pending],
        frame: Frame,
    ) -> None:
        """Bind a call's arguments to a function's parameters; a parameter without a value is free."""
        positional = [*spec.posonlyargs, *spec.args]
        given = [function.receiver, *args] if function.receiver is not None else list(args)
        scope = Frame(function.module, "<module>", {}, depth=frame.depth, closure=function.closure)
        for argument, value in zip(positional, given, strict=False):
            frame.locals[argument.arg] = value if value is not None else free(argument.arg)
        for name in [argument.arg for argument in [*positional, *spec.kwonlyargs]]:
            if name in kwargs:
                frame.locals[name] = kwargs[name]
        defaults = [
            *zip(reversed(positional), reversed(spec.defaults), strict=False),
            *zip(spec.kwonlyargs, spec.kw_defaults, strict=True),
        ]
        for argument, default in defaults:
            if argument.arg not in frame.locals and default is not None:
                frame.locals[argument.arg] = self._later(default, scope)
        for argument in [*positional, *spec.kwonlyargs]:
            frame.locals.setdefault(argument.arg, free(f"argument {argument.arg}"))
        if spec.vararg is not None:
            frame.locals[spec.vararg.arg] = known(tuple(force(v) for v in given[len(positional) :] if v is not None))
        if spec.kwarg is not None:
            named = {argument.arg for argument in [*positional, *spec.kwonlyargs]}
            frame.locals[spec.kwarg.arg] = known(
                {key: force(value) for key, value in kwargs.items() if key not in named}
            )

    def _call_builtin_method(
        self, bound: BoundBuiltin, args: list[Value], kwargs: dict[str, Value], node: ast.AST
    ) -> Value:
        receiver, name = bound.receiver, bound.name
        data = receiver.data
        deps = all_deps(receiver).union(*(all_deps(value) for value in args))
        if isinstance(data, dict):
            if name == "get" and args and args[0].is_known and isinstance(args[0].data, PLAIN):
                return data.get(args[0].data, args[1] if len(args) > 1 else NONE)
            if name == "get" and args:
                values = [*data.values(), args[1] if len(args) > 1 else NONE, free("what is kept there")]
                return join(values, deps, hazy=args[0].is_opaque)
            if name == "items":
                return known([known((_lift(key, deps), value)) for key, value in data.items()])
            if name in ("keys", "values"):
                return known([_lift(key, deps) for key in data] if name == "keys" else list(data.values()))
            if name == "update" and args and args[0].is_known and isinstance(args[0].data, dict):
                data.update(args[0].data)
                return NONE
        if isinstance(data, list) and name in ("append", "add") and args:
            data.append(args[0])
            return NONE
        if isinstance(data, list) and name in ("extend", "update") and args:
            more = self._items(args[0])
            data.extend(more if more is not None else [opaque(self.text(node))])
            return NONE
        if isinstance(data, str) and name in _PLAIN_METHODS[str]:
            try:
                result = getattr(data, name)(
                    *[plain(value) for value in args], **{k: plain(v) for k, v in kwargs.items()}
                )
                return _lift(result, deps)
            except (NotPlainError, TypeError, ValueError):
                pass
        return Value("opaque", deps=deps | {f"not understood: {self.text(node)[:60]}"})

    def _call_external(
        self, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame
    ) -> Value:
        if name == "functools.partial" and args:
            return known(Partial(args[0], args[1:], kwargs))
        if name in _TRANSPARENT:
            is_decorator = args and args[0].is_known and isinstance(args[0].data, FunctionRef | Partial | External)
            return args[0] if is_decorator else known(External("decorator"))
        if name == "decorator":
            return args[0] if args else opaque("decorator()")
        special = getattr(self, f"_builtin_{name}", None)
        if special is not None:
            return special(args, kwargs, node, frame)
        if name in _PURE:
            return self._pure_builtin(name, args, kwargs, node)
        if name.endswith("object.__getattribute__") and len(args) == 2 and args[1].is_known:
            return self.attribute(args[0], str(args[1].data), node, frame)
        if name.endswith("object.__setattr__") and len(args) == 3 and isinstance(args[0].data, Instance):
            args[0].data.attrs[str(args[1].data)] = args[2]
            return NONE
        return self.facts.call(name, args, kwargs)

    def _pure_builtin(self, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST) -> Value:
        deps = frozenset().union(*(all_deps(value) for value in args))
        if name in ("list", "tuple", "set", "frozenset", "sorted") and len(args) <= 1:
            if not args:
                return known(() if name in ("tuple", "frozenset") else [])
            items = self._items(args[0])
            if items is not None and name != "sorted":
                return known(tuple(items) if name in ("tuple", "frozenset") else items, deps)
        if name == "dict" and not args:
            return known(dict(kwargs))
        if name == "bool" and len(args) == 1:
            truth = args[0].truth
            return known(truth, deps, args[0].why) if truth is not None else args[0]
        if name in ("any", "all") and len(args) == 1:
            return self._any_all(name, args[0], deps)
        if (
            name == "len"
            and len(args) == 1
            and args[0].is_known
            and isinstance(args[0].data, list | tuple | dict | str)
        ):
            return known(len(args[0].data), deps)
        try:
            result = _PURE[name](
                *[plain(value) for value in args], **{key: plain(value) for key, value in kwargs.items()}
            )
            if isinstance(result, zip | enumerate | type(reversed([]))):
                result = list(result)
            return known(result, deps) if isinstance(result, range) else _lift(result, deps)
        except (NotPlainError, TypeError, ValueError):
            hazy = any(value.is_opaque for value in args)
            return Value("opaque" if hazy else "free", deps=deps)

    def _any_all(self, name: str, argument: Value, deps: frozenset[str]) -> Value:
        items = self._items(argument)
        if items is None:
            return Value("opaque" if argument.is_opaque else "free", deps=deps)
        stop = name == "any"
        truths = [item.truth for item in items]
        parts = tuple(item.why for item in items if item.why is not None)
        if stop in truths:
            result = known(stop, deps)
        elif None in truths:
            result = Value("opaque" if any(item.is_opaque for item in items) else "free", deps=deps)
        else:
            result = known(not stop, deps)
        if not parts:
            return result
        why = replace(parts[0], value=result.truth, deps=deps, op="or" if stop else "and", parts=parts)
        return replace(result, why=why)

    def _builtin_map(self, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame) -> Value:
        items = self._items(args[1]) if len(args) == 2 else None
        if items is None:
            return free(self.text(node))
        return known([self.call(args[0], [item], {}, node, frame) for item in items])

    def _builtin_isinstance(self, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame) -> Value:
        return free(self.text(node))

    _builtin_issubclass = _builtin_isinstance

    def _builtin_hasattr(self, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame) -> Value:
        if len(args) == 2 and args[0].is_known and args[1].is_known:
            base, name = args[0].data, str(args[1].data)
            if isinstance(base, ModuleRef):
                found = self.lookup_global(base.module, name) is not None or self.program.find_module(
                    f"{base.module.name}.{name}"
                )
                return known(bool(found), frozenset({"FlashInfer's release"}))
            if isinstance(base, External):
                return self.facts.has_attribute(base.name, name)
        if len(args) == 2 and args[1].is_known and not args[0].is_known:
            marked = self._marked(str(args[1].data), frame)
            if marked is not None:
                return marked
        return Value("opaque" if args and args[0].is_opaque else "free", deps=frozenset({self.text(node)}))

    def _builtin_getattr(self, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame) -> Value:
        if len(args) < 2 or not args[1].is_known:
            return opaque(self.text(node))
        name = str(args[1].data)
        value = self.attribute(args[0], name, node, frame)
        if value.name == "missing" and len(args) > 2:
            return args[2]
        return value

    def _builtin_setattr(self, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame) -> Value:
        if len(args) == 3 and args[1].is_known:
            self._stored(str(args[1].data), args[2], node, frame)
            if isinstance(args[0].data, Instance):
                args[0].data.attrs[str(args[1].data)] = args[2]
        return NONE

    def _builtin_super(self, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame) -> Value:
        return free("super()")

    def _builtin_type(self, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame) -> Value:
        if args and isinstance(args[0].data, Instance):
            return known(args[0].data.cls)
        return free(self.text(node))

    def _builtin_print(self, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame) -> Value:
        return NONE


def _settled(value: Pending) -> Value:
    """The value of a pending one that has been computed. Raises NotPlainError where it has not."""
    settled = value.value if isinstance(value, Lazy) else value
    if settled is None or settled.name == "itself":
        raise NotPlainError
    return settled


def _forced(values: dict[str, Pending]) -> dict[str, Value]:
    return {key: force(value) for key, value in values.items()}


def mentions(node: ast.AST, words: frozenset[str]) -> bool:
    """Whether a node names one of the identifiers: as a name, an attribute, a keyword or a text."""
    if not words:
        return False
    if isinstance(node, ast.Name):
        return node.id in words
    if isinstance(node, ast.Attribute):
        return node.attr in words
    if isinstance(node, ast.keyword):
        return node.arg in words
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in words


def _changes_something(node: ast.expr) -> bool:
    """A call that is made for what it changes: of an attribute, or of a container."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "add", "extend", "update"):
        return True
    return ast.unparse(node.func) in ("setattr", "object.__setattr__")


def _is_refusal(error: RaisedError) -> bool:
    """Whether something raises because of what the GPU, the launch or the FlashInfer release is."""
    return all(step.known for step in error.steps) and any(
        dep == "arch" or dep.startswith(("setting:", "FlashInfer")) for step in error.steps for dep in step.leaf.touched
    )


def _missing(name: str) -> Value:
    return Value("opaque", None, frozenset({f"not understood: {name} is not there"}), None, "missing")


def _lift(data: Any, deps: frozenset[str]) -> Value:
    """Plain data as a Value whose items are Values."""
    if isinstance(data, list | tuple | set | frozenset):
        items = [_lift(item, deps) for item in data]
        return known(tuple(items) if isinstance(data, tuple) else items, deps)
    return known(data, deps)


def _has_decorator(node: FunctionNode, name: str) -> bool:
    return any(ast.unparse(decorator).rpartition(".")[2] == name for decorator in node.decorator_list)


def _has_star(target: ast.Tuple | ast.List) -> bool:
    return any(isinstance(part, ast.Starred) for part in target.elts)


def _is_generator(node: FunctionNode) -> bool:
    if "_is_generator" not in node.__dict__:
        node.__dict__["_is_generator"] = any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in own_nodes(node))
    return bool(node.__dict__["_is_generator"])


def _as_load(target: ast.expr) -> ast.expr:
    if isinstance(target, ast.Name):
        return ast.Name(target.id, ast.Load())
    if isinstance(target, ast.Attribute):
        return ast.copy_location(ast.Attribute(target.value, target.attr, ast.Load()), target)
    assert isinstance(target, ast.Subscript)
    return ast.copy_location(ast.Subscript(target.value, target.slice, ast.Load()), target)


def _catches(handler: ast.ExceptHandler, name: str) -> bool:
    if handler.type is None:
        return True
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    names = {ast.unparse(kind).rpartition(".")[2] for kind in kinds}
    related = {"ImportError": {"ModuleNotFoundError"}, "RuntimeError": {"NotImplementedError"}}
    return bool(names & {"Exception", "BaseException", name}) or any(name in related.get(kind, ()) for kind in names)


def _attributes_stored(function: FunctionNode) -> list[str]:
    first = function.args.args[0].arg if function.args.args else "self"
    return [
        node.attr
        for node in own_nodes(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == first
    ]


def _plain_store(method: FunctionNode, name: str) -> Value | None:
    """What a method stores in ``self.name`` where that can be told without running it: an argument, as it is."""
    arguments = {argument.arg for argument in [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs]}
    for node in own_nodes(method):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            arguments.discard(node.id)
    stores = [
        node
        for node in own_nodes(method)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if any(isinstance(part, ast.Attribute) and part.attr == name for part in ast.walk(target))
    ]
    if not stores or not all(isinstance(node.value, ast.Name) and node.value.id in arguments for node in stores):
        return None
    return free(f"self.{name}")


def _stored_on_failure(function: ast.AST) -> frozenset[str]:
    """Names and attributes that a function stores in its exception handlers."""
    return frozenset(
        inner.id if isinstance(inner, ast.Name) else inner.attr
        for node in own_nodes(function)
        if isinstance(node, ast.ExceptHandler)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Store)
    )


def _may_be_type(model_arch: str | None, model_type: Any) -> bool | None:
    """Whether a model of this architecture can have that ``model_type``; None where it may or may not.

    Hugging Face names the type after the class: DeepseekV3ForCausalLM has deepseek_v3.
    """
    if model_arch is None or not isinstance(model_type, str):
        return None
    stem = model_arch.partition("For")[0].lower()
    wanted = model_type.replace("_", "").replace("-", "").lower()
    return None if wanted.startswith(stem) else False
