"""Statements: where a condition is known only that branch is run, else both, and what they leave is joined."""

from __future__ import annotations

import ast
from dataclasses import replace

from breakeven.gates.interpreter.core import Core
from breakeven.gates.interpreter.frames import Frame, Step, changes_something
from breakeven.gates.program import bound_names
from breakeven.gates.values import (
    NONE,
    PLAIN,
    ClassRef,
    FunctionRef,
    Instance,
    Lazy,
    Leaf,
    NotPlainError,
    Pending,
    RaisedError,
    Value,
    force,
    free,
    join,
    known,
    opaque,
    plain,
)

_MAX_STEPS = 30_000
_COMPOUND = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)


class Statements(Core):
    """Statements: where a condition is known only that branch is run, else both, and what they leave is joined."""

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
        if changes_something(call):
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
            return value.under(deps)
        steps = [step for step in frame.path if step.leaf.deps] or [step for step in frame.log if step.leaf.deps]
        parts = tuple(step.leaf for step in steps)
        value = value.under(deps)
        return value.because(self._leaf(node, frame, value, "atom", parts)) if parts else value

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
        value = self.operand(test, frame)
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
