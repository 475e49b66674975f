"""Classes of the source: their bases, attributes, fields and members."""

from __future__ import annotations

import ast

from breakeven.gates.interpreter.core import Core
from breakeven.gates.interpreter.frames import Frame, has_decorator
from breakeven.gates.program import FunctionNode, bound_names
from breakeven.gates.values import ClassRef, External, FunctionRef, Member, Value, known, missing, opaque


class Classes(Core):
    """Classes of the source: their bases, attributes, fields and members."""

    def bases(self, cls: ClassRef) -> list[ClassRef]:
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
            len(owner.node.bases) > sum(1 for _ in self.bases(owner)) - 1
            for owner in self.bases(cls)
            if owner.node.bases
        )

    def _find_in_class(self, cls: ClassRef, name: str) -> tuple[ClassRef, ast.stmt] | None:
        for owner in self.bases(cls):
            statement = self._members(owner.node).get(name)
            if statement is not None:
                return owner, statement
        return None

    def _members(self, node: ast.ClassDef) -> dict[str, ast.stmt]:
        """For each name that the class body binds, the last statement that does."""
        if id(node) not in self._member_maps:
            self._member_maps[id(node)] = {name: each for each in node.body for name in bound_names(each)}
        return self._member_maps[id(node)]

    def _class_attribute(self, cls: ClassRef, name: str, receiver: Value | None) -> Value:
        found = self._find_in_class(cls, name)
        if found is None:
            if self._is_enum(cls) or name.startswith("__"):
                return known(External(f"{cls.node.name}.{name}"))
            return missing(name)
        owner, statement = found
        if isinstance(statement, FunctionNode):
            static = has_decorator(statement, "staticmethod")
            bound = None if static else known(owner) if has_decorator(statement, "classmethod") else receiver
            function = FunctionRef(owner.module, statement, owner, bound)
            if receiver is not None and (
                has_decorator(statement, "property") or has_decorator(statement, "cached_property")
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
            return self.field_default(value, statement.value, frame)
        return opaque(f"{owner.node.name}.{name}")

    def field_default(self, value: Value, node: ast.expr, frame: Frame) -> Value:
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
            for owner in self.bases(cls)
            for base in owner.node.bases
        )
