"""Displays, comprehensions, subscripts: containers whose items are values."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from breakeven.gates.interpreter.core import Core
from breakeven.gates.interpreter.frames import Frame
from breakeven.gates.values import NONE, NotPlainError, Value, all_deps, free, known, lift, opaque, plain

_MAX_ITEMS = 128


class Containers(Core):
    """Displays, comprehensions, subscripts: containers whose items are values."""

    def _on_Tuple(self, node: ast.Tuple, frame: Frame) -> Value:  # noqa: N802
        items = self._elements(node.elts, frame)
        return known(tuple(items)) if items is not None else free(self.text(node)[:60])

    def _on_List(self, node: ast.List, frame: Frame) -> Value:  # noqa: N802
        items = self._elements(node.elts, frame)
        return known(items) if items is not None else free(self.text(node)[:60])

    def _on_Set(self, node: ast.Set, frame: Frame) -> Value:  # noqa: N802
        items = self._elements(node.elts, frame)
        return known(items) if items is not None else free(self.text(node)[:60])

    def _elements(self, nodes: list[ast.expr], frame: Frame) -> list[Value] | None:
        items: list[Value] = []
        whole = True
        for node in nodes:
            if isinstance(node, ast.Starred):
                more = self._items(self.evaluate(node.value, frame))
                whole = whole and more is not None
                items += more or []
            else:
                value = self.evaluate(node, frame)
                self._notice(value, node, frame)
                items.append(value)
        return items if whole else None

    def _on_Dict(self, node: ast.Dict, frame: Frame) -> Value:  # noqa: N802
        result: dict[Any, Value] = {}
        whole = True
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.evaluate(value_node, frame)
            self._notice(value, value_node, frame)
            if key_node is None:
                if value.is_known and isinstance(value.data, dict):
                    result.update(value.data)
                else:
                    whole = False
                continue
            key = self.evaluate(key_node, frame)
            try:
                plain_key = plain(key)
                if isinstance(plain_key, str):
                    self._stored(plain_key, value, value_node, frame)
                result[plain_key] = value
            except (NotPlainError, TypeError):
                whole = False
        return known(result) if whole else free(self.text(node)[:60])

    def _items(self, value: Value) -> list[Value] | None:
        """The items of a known container, None where they are not known."""
        if not value.is_known:
            return None
        data = value.data
        if isinstance(data, dict):
            data = [lift(key, value.deps) for key in data]
        elif isinstance(data, str):
            data = [known(character, value.deps) for character in data]
        elif isinstance(data, range):
            data = [known(number, value.deps) for number in data[: _MAX_ITEMS + 1]]
        if not isinstance(data, list | tuple | set | frozenset) or len(data) > _MAX_ITEMS:
            return None
        return [item.under(value.deps) for item in data]

    def _on_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, frame: Frame) -> Value:  # noqa: N802
        inner = replace(frame, locals=dict(frame.locals), root=False)
        collected: list[Value] = []
        chosen_by: set[str] = set()
        collect = lambda: collected.append(self.evaluate(node.elt, inner))  # noqa: E731
        sure = self._comprehend(node.generators, inner, collect, chosen_by)
        if sure is None:
            return known(collected, frozenset(chosen_by).union(*(all_deps(item) for item in collected)))
        return sure

    _on_SetComp = _on_ListComp  # noqa: N815

    _on_GeneratorExp = _on_ListComp  # noqa: N815

    def _on_DictComp(self, node: ast.DictComp, frame: Frame) -> Value:  # noqa: N802
        inner = replace(frame, locals=dict(frame.locals), root=False)
        result: dict[Any, Value] = {}

        def collect() -> None:
            result[plain(self.evaluate(node.key, inner))] = self.evaluate(node.value, inner)

        try:
            sure = self._comprehend(node.generators, inner, collect, set())
        except (NotPlainError, TypeError):
            return opaque(self.text(node)[:80])
        return known(result) if sure is None else sure

    def _comprehend(
        self, generators: list[ast.comprehension], frame: Frame, collect: Callable[[], None], chosen_by: set[str]
    ) -> Value | None:
        """Run a comprehension; None when all of it was known, else the value that stands for what was not.

        ``chosen_by`` collects what the choice of items depends on.
        """
        if not generators:
            collect()
            return None
        first, *rest = generators
        source = self.evaluate(first.iter, frame)
        items = self._items(source)
        if items is None:
            return Value("opaque" if source.is_opaque else "free", deps=source.deps)
        for item in items:
            self._store(first.target, item, frame)
            tests = [self.operand(test, frame) for test in first.ifs]
            chosen_by.update(*(all_deps(test) for test in tests))
            if any(test.truth is False for test in tests):
                continue
            unsettled = [test for test in tests if test.truth is None]
            if unsettled:
                hazy = any(test.is_opaque for test in unsettled)
                return Value("opaque" if hazy else "free", deps=frozenset().union(*(test.deps for test in unsettled)))
            sure = self._comprehend(rest, frame, collect, chosen_by)
            if sure is not None:
                return sure
        return None

    def _on_Slice(self, node: ast.Slice, frame: Frame) -> Value:  # noqa: N802
        parts = [NONE if part is None else self.evaluate(part, frame) for part in (node.lower, node.upper, node.step)]
        if all(part.is_known for part in parts):
            return known(slice(*(part.data for part in parts)))
        return free("a slice")

    def _on_Subscript(self, node: ast.Subscript, frame: Frame) -> Value:  # noqa: N802
        base, key = self.evaluate(node.value, frame), self.evaluate(node.slice, frame)
        if base.is_known and key.is_known:
            data = base.data
            try:
                if isinstance(data, dict):
                    if key.data in data:
                        found = data[key.data]
                        return found.under(base.deps | key.deps)
                elif isinstance(data, list | tuple | str):
                    found = data[key.data]
                    deps = base.deps | key.deps
                    if isinstance(key.data, slice) and not isinstance(data, str):
                        return known(found, deps)
                    return found.under(deps) if isinstance(found, Value) else lift(found, deps)
            except (TypeError, IndexError, KeyError):
                return opaque(self.text(node))
        if key.is_known and isinstance(key.data, str):
            value = self._by_name(key.data, self.text(node.value))
            if value is not None:
                return value
        return Value("opaque" if base.is_opaque or base.is_known else "free", deps=base.deps | key.deps)
