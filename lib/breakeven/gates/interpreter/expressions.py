"""Expressions, with three truth values."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from breakeven.gates.interpreter.core import Core
from breakeven.gates.interpreter.frames import Frame, Step
from breakeven.gates.values import (
    ClassRef,
    External,
    FunctionRef,
    Member,
    ModuleRef,
    NotPlainError,
    RaisedError,
    Value,
    all_deps,
    free,
    join,
    known,
    lift,
    opaque,
    plain,
)

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


class Expressions(Core):
    """Expressions, with three truth values."""

    def evaluate(self, node: ast.expr, frame: Frame) -> Value:
        """The abstract value of an expression."""
        self._steps += 1
        handler = getattr(self, f"_on_{type(node).__name__}", None)
        if handler is None:
            return opaque(self.text(node)[:80])
        return handler(node, frame)

    def operand(self, node: ast.expr, frame: Frame) -> Value:
        """An expression used as a truth value, with its explanation at this place."""
        value = self.evaluate(node, frame)
        if isinstance(node, ast.BoolOp | ast.UnaryOp | ast.Compare):
            return value
        parts = (value.why,) if value.why is not None else ()
        return value.because(self._leaf(node, frame, value, "atom", parts))

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
                value = self.operand(operand, frame)
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
            result = known(stop, deps) if not first.is_known or isinstance(first.data, bool) else first.depending(deps)
        else:
            deps = frozenset().union(*(all_deps(value) for value in values))
            unsettled = [value for value in values if value.truth is None]
            if not unsettled:
                result = values[-1].depending(deps)
            elif any(value.is_opaque for value in unsettled):
                result = Value("opaque", deps=deps)
            else:
                result = Value("free", deps=deps)
        return result.because(self._leaf(node, frame, result, "and" if is_and else "or", parts))

    def _on_UnaryOp(self, node: ast.UnaryOp, frame: Frame) -> Value:  # noqa: N802
        if not isinstance(node.op, ast.Not):
            value = self.evaluate(node.operand, frame)
            if value.is_known and isinstance(value.data, int | float):
                return known(-value.data if isinstance(node.op, ast.USub) else value.data, value.deps)
            return Value("opaque" if value.is_opaque else "free", deps=value.deps)
        value = self.operand(node.operand, frame)
        truth = value.truth
        deps = all_deps(value)
        result = (
            known(not truth, deps) if truth is not None else Value("opaque" if value.is_opaque else "free", deps=deps)
        )
        parts = (value.why,) if value.why is not None else ()
        return result.because(self._leaf(node, frame, result, "not", parts))

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
        return result.because(self._leaf(node, frame, result, "atom", parts))

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
        return lift(result, deps)

    def _on_IfExp(self, node: ast.IfExp, frame: Frame) -> Value:  # noqa: N802
        step = self._decide(node.test, frame)
        if step.known:
            frame.path.append(step)
            try:
                value = self.evaluate(node.body if step.needed else node.orelse, frame)
            finally:
                frame.path.remove(step)
            value = value.under(step.leaf.deps)
            return (
                value
                if value.why is not None or not value.is_known
                else value.because(self._leaf(node, frame, value, "atom", (step.leaf,)))
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


def _may_be_type(model_arch: str | None, model_type: Any) -> bool | None:
    """Whether a model of this architecture can have that ``model_type``; None where it may or may not.

    Hugging Face names the type after the class: DeepseekV3ForCausalLM has deepseek_v3.
    """
    if model_arch is None or not isinstance(model_type, str):
        return None
    stem = model_arch.partition("For")[0].lower()
    wanted = model_type.replace("_", "").replace("-", "").lower()
    return None if wanted.startswith(stem) else False
