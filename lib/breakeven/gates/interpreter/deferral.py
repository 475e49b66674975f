"""What need not be run now: most of what a function computes decides nothing."""

from __future__ import annotations

import ast

from breakeven.gates.interpreter.core import Core
from breakeven.gates.interpreter.frames import Frame, changes_something, mentions
from breakeven.gates.program import bound_names, descendants
from breakeven.gates.values import (
    PLAIN,
    FunctionRef,
    Instance,
    Lazy,
    ModuleRef,
    Pending,
    RaisedError,
    Value,
    force,
    opaque,
)

_DECISIVE = (ast.Return, ast.Raise, ast.Continue, ast.Break, ast.Assert, ast.Yield, ast.Global, ast.Delete)
_DECISIVE_BUT_RAISING = tuple(kind for kind in _DECISIVE if kind not in (ast.Raise, ast.Assert))


class Deferral(Core):
    """What need not be run now: most of what a function computes decides nothing."""

    def _later(self, node: ast.expr, frame: Frame) -> Pending:
        """An expression's value: at once where computing it can do something, else when it is first needed."""
        if isinstance(node, ast.Constant | ast.Name) or self._matters(node, frame):
            return self.evaluate(node, frame)
        then = self._apart(node, frame)
        then.path = list(frame.path)
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
        watch = self.watch if frame.root else None
        for inner in self._parts(node):
            if watch is not None and mentions(inner, watch.words):
                return True
            if watch is not None and watch.lenient:
                continue
            if isinstance(inner, ast.Call) and self._may_refuse(inner.func, frame):
                return True
        return False

    def _parts(self, node: ast.AST) -> list[ast.AST]:
        parts: list[ast.AST] | None = node.__dict__.get("_parts")
        if parts is None:
            parts = node.__dict__["_parts"] = descendants(node)
        return parts

    def _apart(self, node: ast.AST, frame: Frame) -> Frame:
        """A frame to run a node in later: with the local variables that it names, as they are now."""
        names: frozenset[str] | None = node.__dict__.get("_names")
        if names is None:
            named = {inner.id for inner in self._parts(node) if isinstance(inner, ast.Name)}
            names = node.__dict__["_names"] = frozenset(named)
        kept = {name: frame.locals[name] for name in names if name in frame.locals}
        return Frame(
            frame.module, frame.symbol, kept, frame.node, frame.cls, frame.closure, frame.depth, globals=frame.globals
        )

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
            or (isinstance(inner, ast.Expr) and changes_something(inner.value))
            for inner in self._parts(node)
        )

    def _refuses(self, frame: Frame) -> bool:
        """Whether the function's own raising may have to do with the GPU."""
        name = getattr(frame.node, "name", "")
        return not name or self.program.refuses(frame.module.rel, name)

    def _defer(self, node: ast.stmt, frame: Frame) -> None:
        """Leave a compound statement until one of the names that it binds is needed."""
        then = self._apart(node, frame)

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
                return value.because(self._leaf(node, frame, value, "atom", parts, text=name))
            return value

        for name in dict.fromkeys(bound_names(node)):
            frame.locals[name] = Lazy(lambda name=name: value_of(name))  # type: ignore[misc]
