"""What every room of the interpreter shares: its state, kept results, and the doors to the other rooms."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from breakeven.gates.facts import Facts
from breakeven.gates.interpreter.frames import Frame, Step, Watch
from breakeven.gates.program import FunctionNode, Module, Program
from breakeven.gates.values import BoundBuiltin, ClassRef, FunctionRef, Leaf, Pending, Value, all_deps, itself


class Core:
    """State, and how the rooms call each other."""

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
        self._failing: dict[int, frozenset[str]] = {}
        self._fixed: dict[tuple[int, bool], bool] = {}
        self._storing: dict[int, dict[str, list[FunctionNode]]] = {}
        self._base_lists: dict[int, list[ClassRef]] = {}
        self._bound: dict[int, tuple[str, ...]] = {}

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
        text = node.__dict__.get("_text")
        if text is None:
            text = node.__dict__["_text"] = ast.unparse(node)
        return str(text)

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

    # ------------------------------------------------------------ in the other rooms

    def _is_deferrable(self, node: ast.stmt, frame: Frame) -> bool:
        raise NotImplementedError

    def _defer(self, node: ast.stmt, frame: Frame) -> None:
        raise NotImplementedError

    def _matters(self, node: ast.AST, frame: Frame) -> bool:
        raise NotImplementedError

    def _safely(self, node: ast.expr, frame: Frame) -> Value:
        raise NotImplementedError

    def _later(self, node: ast.expr, frame: Frame) -> Pending:
        raise NotImplementedError

    def _refuses(self, frame: Frame) -> bool:
        raise NotImplementedError

    def _parts(self, node: ast.AST) -> list[ast.AST]:
        raise NotImplementedError

    def _statement(self, node: ast.stmt, frame: Frame, *, may_defer: bool = True) -> str:
        raise NotImplementedError

    def _nowhere(self, node: ast.AST, frame: Frame) -> Leaf:
        raise NotImplementedError

    def _decide(self, test: ast.expr, frame: Frame, needed: bool | None = None) -> Step:
        raise NotImplementedError

    def _block(self, statements: list[ast.stmt], frame: Frame) -> str:
        raise NotImplementedError

    def _explained(self, value: Value, node: ast.AST, frame: Frame) -> Value:
        raise NotImplementedError

    def _store(self, target: ast.expr, pending: Pending, frame: Frame) -> None:
        raise NotImplementedError

    def _notice(self, value: Value, node: ast.AST, frame: Frame) -> None:
        raise NotImplementedError

    def _stored(self, name: str, value: Value, node: ast.AST, frame: Frame) -> None:
        raise NotImplementedError

    def lookup_global(self, module: Module, name: str) -> Value | None:
        raise NotImplementedError

    def _name(self, node: ast.Name, frame: Frame) -> Value:
        raise NotImplementedError

    def _module_value(self, dotted: str) -> Value:
        raise NotImplementedError

    def _values_stored(self, function: FunctionRef, name: str) -> tuple[list[Value], list[Value], list[Step]]:
        raise NotImplementedError

    def evaluate(self, node: ast.expr, frame: Frame) -> Value:
        raise NotImplementedError

    def _binary(self, op: type, left: Value, right: Value, node: ast.AST) -> Value:
        raise NotImplementedError

    def operand(self, node: ast.expr, frame: Frame) -> Value:
        raise NotImplementedError

    def _compare(self, op: type, left: Value, right: Value) -> Value:
        raise NotImplementedError

    def _items(self, value: Value) -> list[Value] | None:
        raise NotImplementedError

    def _by_name(self, name: str, base: str = "") -> Value | None:
        raise NotImplementedError

    def attribute(self, base: Value, name: str, node: ast.AST, frame: Frame) -> Value:
        raise NotImplementedError

    def _marked(self, name: str, frame: Frame) -> Value | None:
        raise NotImplementedError

    def _find_in_class(self, cls: ClassRef, name: str) -> tuple[ClassRef, ast.stmt] | None:
        raise NotImplementedError

    def _bound_by(self, statement: ast.stmt) -> tuple[str, ...]:
        raise NotImplementedError

    def _class_attribute(self, cls: ClassRef, name: str, receiver: Value | None) -> Value:
        raise NotImplementedError

    def _has_outside_base(self, cls: ClassRef) -> bool:
        raise NotImplementedError

    def bases(self, cls: ClassRef) -> list[ClassRef]:
        raise NotImplementedError

    def _is_enum(self, cls: ClassRef) -> bool:
        raise NotImplementedError

    def call(
        self, function: Value, args: Sequence[Pending], kwargs: dict[str, Pending], node: ast.AST, frame: Frame
    ) -> Value:
        raise NotImplementedError

    def _call_builtin_method(
        self, bound: BoundBuiltin, args: list[Value], kwargs: dict[str, Value], node: ast.AST
    ) -> Value:
        raise NotImplementedError

    def _call_external(
        self, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame
    ) -> Value:
        raise NotImplementedError

    def function(self, module: Module, node: FunctionNode) -> FunctionRef:
        raise NotImplementedError

    def run(self, function: FunctionRef, watch: Watch | None = None, forced: dict[int, bool] | None = None) -> Frame:
        raise NotImplementedError
