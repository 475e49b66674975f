"""Attributes: of objects and classes of the source, and names that mean the same wherever they are read from."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from breakeven.gates.interpreter.core import Core
from breakeven.gates.interpreter.frames import Frame
from breakeven.gates.program import FunctionNode, own_nodes
from breakeven.gates.values import (
    PLAIN,
    BoundBuiltin,
    ClassRef,
    External,
    FunctionRef,
    Instance,
    Leaf,
    Member,
    ModuleRef,
    PackageRef,
    Value,
    force,
    free,
    join,
    known,
    opaque,
)

_SETTINGS_LIKE = re.compile(r"args|cfg|config|view|get_exec|get_parallel|settings|options", re.I)
_MODEL_CONFIG = re.compile(r"(^|_)(model_config|hf_config|hf_text_config)(_of)?$")


class Attributes(Core):
    """Attributes: of objects and classes of the source, and names that mean the same wherever they are read from."""

    def _on_Attribute(self, node: ast.Attribute, frame: Frame) -> Value:  # noqa: N802
        base = node.value
        local = frame.locals.get(base.id) if isinstance(base, ast.Name) else None
        if _MODEL_CONFIG.search(node.attr):
            return free("the model's configuration")
        if node.attr.endswith(("_rank", "_group")):
            return free(self.text(node))
        if not (isinstance(local, Value) and isinstance(local.data, Instance)) and not isinstance(base, ast.Constant):
            fixed = self._by_name(node.attr, self.text(base) if self._base_decides(node.attr) else "")
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
            if isinstance(data, (*PLAIN, list, tuple, dict, set, frozenset)) and data is not None:
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

    @staticmethod
    def _base_decides(name: str) -> bool:
        """Whether ``_by_name`` looks at what the name is read from."""
        return name == "world_size" or ("_" not in name and name != "nnodes")

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
            result = closed.because(
                self._leaf(where.node, home, closed, "atom", tuple(reasons), text=f"the mark {name}")
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
        for owner in self.bases(cls):
            for method in self._storing_methods(owner).get(name, ()):
                plainly = _plain_store(method, name)
                if plainly is not None:
                    values.append(plainly)
                else:
                    values += self._values_stored(FunctionRef(owner.module, method, owner), name, lenient=True)[0]
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
