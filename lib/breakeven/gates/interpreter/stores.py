"""Stores: into local names, attributes and containers, and what the watch sees of them."""

from __future__ import annotations

import ast

from breakeven.gates.interpreter.core import Core
from breakeven.gates.interpreter.frames import Frame, Hit, mentions
from breakeven.gates.values import PLAIN, Instance, Lazy, Pending, Value, all_deps, force, free, join


class Stores(Core):
    """Stores: into local names, attributes and containers, and what the watch sees of them."""

    def _store(self, target: ast.expr, pending: Pending, frame: Frame) -> None:
        if isinstance(target, ast.Name):
            if target.id in frame.globals:
                self._stored(target.id, force(pending), target, frame)
            frame.locals[target.id] = pending
            return
        if isinstance(target, ast.Tuple | ast.List) and isinstance(pending, Lazy):
            self._unpack_later(target, pending, frame)
            return
        if (
            isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name)
            and not self._is_watched(target, frame)
        ):
            local = frame.locals.get(target.value.id)
            if isinstance(local, Value) and isinstance(local.data, Instance):
                self._store_attribute(local.data, target.attr, pending, frame)
                return
        value = force(pending) if self._is_object_store(target, frame) else None
        if value is None:
            return
        if isinstance(target, ast.Attribute):
            self._notice(value, target, frame)
            self._stored(target.attr, value, target, frame)
            base = self.evaluate(target.value, frame)
            if isinstance(base.data, Instance):
                self._store_attribute(base.data, target.attr, value, frame)
        elif isinstance(target, ast.Subscript):
            self._notice(value, target, frame)
            base, key = self.evaluate(target.value, frame), self.evaluate(target.slice, frame)
            if key.is_known and isinstance(key.data, str):
                self._stored(key.data, value, target, frame)
            if base.is_known and isinstance(base.data, dict) and key.is_known and isinstance(key.data, PLAIN):
                base.data[key.data] = value
        elif isinstance(target, ast.Tuple | ast.List):
            items = self._items(value)
            if items is not None and len(items) == len(target.elts) and not _has_star(target):
                for part, item in zip(target.elts, items, strict=True):
                    self._store(part, item, frame)
            else:
                for part in target.elts:
                    inner = part.value if isinstance(part, ast.Starred) else part
                    self._store(inner, Value("opaque" if value.is_opaque else "free", deps=all_deps(value)), frame)

    def _store_attribute(self, instance: Instance, name: str, pending: Pending, frame: Frame) -> None:
        old = instance.attrs.get(name, self._by_name(name))
        if old is None or all(step.known for step in frame.path):
            instance.attrs[name] = pending
            return
        instance.attrs[name] = Lazy(lambda: join([force(old), force(pending)]))

    def _is_watched(self, target: ast.expr, frame: Frame) -> bool:
        words = self.watch.words if self.watch is not None and frame.root else frozenset()
        return any(mentions(inner, words) for inner in self._parts(target))

    def _is_object_store(self, target: ast.expr, frame: Frame) -> bool:
        """Whether a store can be seen again: in an object of the source, or by the watch."""
        if isinstance(target, ast.Tuple | ast.List) or self._is_watched(target, frame):
            return True
        root = target
        while isinstance(root, ast.Attribute | ast.Subscript):
            root = root.value
        if not isinstance(root, ast.Name):
            return False
        local = frame.locals.get(root.id)
        return isinstance(local, Value) and isinstance(local.data, Instance | dict | list)

    def _unpack_later(self, target: ast.Tuple | ast.List, pending: Lazy, frame: Frame) -> None:
        def item(index: int) -> Value:
            value = pending.force()
            items = self._items(value)
            if items is not None and len(items) == len(target.elts):
                return items[index]
            return Value("opaque" if value.is_opaque else "free", deps=all_deps(value))

        for index, part in enumerate(target.elts):
            inner = part.value if isinstance(part, ast.Starred) else part
            later = Lazy(lambda index=index: item(index))  # type: ignore[misc]
            self._store(inner, free(self.text(inner)) if _has_star(target) else later, frame)

    def _stored(self, name: str, value: Value, node: ast.AST, frame: Frame) -> None:
        if self.watch is not None and frame.root and not self._muted and name in self.watch.stores:
            self.watch.hits.append(Hit(node, list(frame.path), value))

    def _notice(self, value: Value, node: ast.AST, frame: Frame) -> None:
        """The value leaves the frame: a watched function that is handed on counts as called."""
        if (
            self.watch is not None
            and frame.root
            and not (self._muted or self._comparing)
            and self.watch.is_target(value)
        ):
            self.watch.hits.append(Hit(node, list(frame.path), value))


def _has_star(target: ast.Tuple | ast.List) -> bool:
    return any(isinstance(part, ast.Starred) for part in target.elts)
