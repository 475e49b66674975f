"""Names: imports, the globals of a module, and what functions store in them later."""

from __future__ import annotations

import ast
import builtins
from functools import partial

from breakeven.gates.interpreter.core import Core
from breakeven.gates.interpreter.frames import Frame, Hit, Step, Watch, is_refusal
from breakeven.gates.program import FunctionNode, Module, import_source, own_nodes
from breakeven.gates.values import (
    ClassRef,
    External,
    FunctionRef,
    Instance,
    Lazy,
    ModuleRef,
    PackageRef,
    RaisedError,
    Value,
    force,
    free,
    join,
    known,
    missing,
    opaque,
)


class Names(Core):
    """Names: imports, the globals of a module, and what functions store in them later."""

    def _do_Import(self, node: ast.Import, frame: Frame) -> None:  # noqa: N802
        for alias in node.names:
            dotted = alias.name if alias.asname else alias.name.partition(".")[0]
            frame.locals[alias.asname or dotted] = self._module_value(dotted)

    def _do_ImportFrom(self, node: ast.ImportFrom, frame: Frame) -> None:  # noqa: N802
        source = import_source(frame.module, node)
        for alias in node.names:
            if alias.name != "*" and self.program.holds(source) and not source.startswith("flashinfer"):
                frame.locals[alias.asname or alias.name] = Lazy(
                    partial(self.imported, source, alias.name),
                    origin=(source, alias.name),
                )
            elif alias.name != "*":
                value = self.imported(source, alias.name)
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
        return known(PackageRef(dotted)) if self.program.is_package(dotted) else missing(dotted)

    def imported(self, source: str, name: str) -> Value:
        if not self.program.holds(source):
            return self.facts.external(f"{source}.{name}")
        module = self.program.find_module(source)
        if module is not None:
            value = self.lookup_global(module, name)
            if value is not None:
                return value
        return self._module_value(f"{source}.{name}")

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

    def _values_stored(
        self, function: FunctionRef, name: str, *, lenient: bool = False
    ) -> tuple[list[Value], list[Value], list[Step]]:
        """Values that a function may store under a name, those that it certainly stores, and its decisions."""
        watch = Watch(stores=frozenset({name}), words=frozenset({name}), lenient=lenient)
        key = ("stores", id(function.node), name)
        if key in self._busy:
            return [self._itself(name)], [], []
        self._busy.add(key)
        try:
            log = self.run(function, watch, {}).log
        except RaisedError as error:
            log = error.frame.log  # type: ignore[attr-defined]
            if not is_refusal(error):
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


def _stored_on_failure(function: ast.AST) -> frozenset[str]:
    """Names and attributes that a function stores in its exception handlers."""
    return frozenset(
        inner.id if isinstance(inner, ast.Name) else inner.attr
        for node in own_nodes(function)
        if isinstance(node, ast.ExceptHandler)
        for inner in ast.walk(node)
        if isinstance(inner, ast.Name | ast.Attribute) and isinstance(inner.ctx, ast.Store)
    )
