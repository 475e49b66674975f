"""What Python's own functions and the methods of plain data do with values."""

from __future__ import annotations

import ast
import builtins
from dataclasses import replace

from breakeven.gates.interpreter.core import Core
from breakeven.gates.interpreter.frames import Frame
from breakeven.gates.values import (
    NONE,
    PLAIN,
    BoundBuiltin,
    External,
    FunctionRef,
    Instance,
    ModuleRef,
    NotPlainError,
    Partial,
    Value,
    all_deps,
    free,
    join,
    known,
    lift,
    opaque,
    plain,
)

_PURE = {
    name: getattr(builtins, name)
    for name in ("len", "int", "str", "bool", "float", "tuple", "list", "set", "frozenset", "sorted", "min", "max",
                 "sum", "any", "all", "abs", "range", "dict", "zip", "enumerate", "reversed", "repr", "divmod", "round")
}  # fmt: skip
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


class BuiltinModels(Core):
    """What Python's own functions and the methods of plain data do with values."""

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
                return known([known((lift(key, deps), value)) for key, value in data.items()])
            if name in ("keys", "values"):
                return known([lift(key, deps) for key in data] if name == "keys" else list(data.values()))
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
                return lift(result, deps)
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
            return known(result, deps) if isinstance(result, range) else lift(result, deps)
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
        return result.because(why)

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
