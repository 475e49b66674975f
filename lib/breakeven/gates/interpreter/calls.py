"""Calls of functions and classes of the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from breakeven.gates.interpreter.core import Core
from breakeven.gates.interpreter.frames import Frame, Hit, is_refusal
from breakeven.gates.program import FunctionNode, own_nodes
from breakeven.gates.values import (
    NONE,
    BoundBuiltin,
    ClassRef,
    External,
    FunctionRef,
    Instance,
    Lazy,
    NotPlainError,
    Partial,
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

_MAX_DEPTH = 14
_MAX_RECURSION = 2
_MODEL_CONFIG = re.compile(r"(^|_)(model_config|hf_config|hf_text_config)(_of)?$")
# Process groups, ranks and what collectives return differ from process to process and say nothing of the GPU.
_RUNTIME_OBJECT = re.compile(
    r"^get_\w*(group|rank)$|^(?!can|should|is_|use|may|has)\w*(all_reduce|all_gather|reduce_scatter)$"
)


class Calls(Core):
    """Calls of functions and classes of the source."""

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
            value = self.result_of(target, inner)
        except RaisedError as error:
            if error.name == "BudgetError":
                raise
            if not error.steps:
                error.steps = list(reversed(inner.log))
            if not is_refusal(error):
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

    def result_of(self, target: FunctionNode, frame: Frame) -> Value:
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
        if error is not None and is_refusal(error):
            guards = tuple(step.leaf for step in error.steps if step.leaf.deps)[:1]
            result = result.on(*frozenset().union(*(leaf.deps for leaf in guards)))
            return result.because(self._leaf(target, frame, result, "atom", guards, text=f"{target.name}(...)"))
        if not result.is_known and result.why is None:
            parts = tuple(step.leaf for step in unsettled)
            result = result.because(self._leaf(target, frame, result, "or", parts)) if parts else result
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


def _settled(value: Pending) -> Value:
    """The value of a pending one that has been computed. Raises NotPlainError where it has not."""
    settled = value.value if isinstance(value, Lazy) else value
    if settled is None or settled.name == "itself":
        raise NotPlainError
    return settled


def _forced(values: dict[str, Pending]) -> dict[str, Value]:
    return {key: force(value) for key, value in values.items()}


def _is_generator(node: FunctionNode) -> bool:
    if "_is_generator" not in node.__dict__:
        node.__dict__["_is_generator"] = any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in own_nodes(node))
    return bool(node.__dict__["_is_generator"])
