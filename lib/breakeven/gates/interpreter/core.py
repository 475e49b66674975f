"""What every room of the interpreter shares: its state, kept results, and the doors to the other rooms."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

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
        self._member_maps: dict[int, dict[str, ast.stmt]] = {}

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

    # The rooms are parts of one class (`running.Interpreter`); what a part calls in another is declared for the type
    # checker alone.
    if TYPE_CHECKING:

        def _is_deferrable(self, node: ast.stmt, frame: Frame) -> bool: ...

        def _defer(self, node: ast.stmt, frame: Frame) -> None: ...

        def _matters(self, node: ast.AST, frame: Frame) -> bool: ...

        def _safely(self, node: ast.expr, frame: Frame) -> Value: ...

        def _later(self, node: ast.expr, frame: Frame) -> Pending: ...

        def _refuses(self, frame: Frame) -> bool: ...

        def _parts(self, node: ast.AST) -> list[ast.AST]: ...

        def _statement(self, node: ast.stmt, frame: Frame, *, may_defer: bool = True) -> str: ...

        def _nowhere(self, node: ast.AST, frame: Frame) -> Leaf: ...

        def _decide(self, test: ast.expr, frame: Frame, needed: bool | None = None) -> Step: ...

        def _block(self, statements: list[ast.stmt], frame: Frame) -> str: ...

        def _explained(self, value: Value, node: ast.AST, frame: Frame) -> Value: ...

        def _store(self, target: ast.expr, pending: Pending, frame: Frame) -> None: ...

        def _notice(self, value: Value, node: ast.AST, frame: Frame) -> None: ...

        def _stored(self, name: str, value: Value, node: ast.AST, frame: Frame) -> None: ...

        def lookup_global(self, module: Module, name: str) -> Value | None: ...

        def _name(self, node: ast.Name, frame: Frame) -> Value: ...

        def _module_value(self, dotted: str) -> Value: ...

        def _values_stored(
            self, function: FunctionRef, name: str, *, lenient: bool = False
        ) -> tuple[list[Value], list[Value], list[Step]]: ...

        def evaluate(self, node: ast.expr, frame: Frame) -> Value: ...

        def _binary(self, op: type, left: Value, right: Value, node: ast.AST) -> Value: ...

        def operand(self, node: ast.expr, frame: Frame) -> Value: ...

        def _compare(self, op: type, left: Value, right: Value) -> Value: ...

        def _items(self, value: Value) -> list[Value] | None: ...

        def _by_name(self, name: str, base: str = "") -> Value | None: ...

        def attribute(self, base: Value, name: str, node: ast.AST, frame: Frame) -> Value: ...

        def _marked(self, name: str, frame: Frame) -> Value | None: ...

        def _find_in_class(self, cls: ClassRef, name: str) -> tuple[ClassRef, ast.stmt] | None: ...

        def _class_attribute(self, cls: ClassRef, name: str, receiver: Value | None) -> Value: ...

        def _has_outside_base(self, cls: ClassRef) -> bool: ...

        def bases(self, cls: ClassRef) -> list[ClassRef]: ...

        def _is_enum(self, cls: ClassRef) -> bool: ...

        def call(
            self, function: Value, args: Sequence[Pending], kwargs: dict[str, Pending], node: ast.AST, frame: Frame
        ) -> Value: ...

        def _call_builtin_method(
            self, bound: BoundBuiltin, args: list[Value], kwargs: dict[str, Value], node: ast.AST
        ) -> Value: ...

        def _call_external(
            self, name: str, args: list[Value], kwargs: dict[str, Value], node: ast.AST, frame: Frame
        ) -> Value: ...

        def function(self, module: Module, node: FunctionNode) -> FunctionRef: ...

        def run(
            self, function: FunctionRef, watch: Watch | None = None, forced: dict[int, bool] | None = None
        ) -> Frame: ...
