"""What the abstract interpreter computes with: known values, free ones, and what it did not understand."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import EllipsisType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from breakeven.gates.program import FunctionNode, Module

DEVICE = frozenset({"arch", "cuda"})


@dataclass(frozen=True)
class Leaf:
    """Why a truth value is what it is: the expression, where it stands, and what it was made of.

    ``value`` is True, False or None (free or not understood). ``op`` is and, or, not, or atom.
    """

    file: str
    line: int
    symbol: str
    text: str
    value: bool | None
    deps: frozenset[str]
    op: str = "atom"
    parts: tuple[Leaf, ...] = ()
    opaque: bool = False

    @cached_property
    def touched(self) -> frozenset[str]:
        """What it and all its parts depend on."""
        return self.deps.union(*(part.touched for part in self.parts))

    @property
    def is_device(self) -> bool:
        """Whether it is a question to the GPU alone."""
        return "arch" in self.touched and self.touched <= DEVICE

    def deciders(self) -> list[Leaf]:
        """The innermost expressions that made the value: GPU questions as a whole, everything else at its end."""
        if self.is_device or not self.parts:
            return [self]
        parts: Iterable[Leaf] = self.parts
        if (self.op == "and" and self.value is False) or (self.op == "or" and self.value is True):
            parts = [part for part in self.parts if part.value is self.value] or self.parts
        return [leaf for part in parts for leaf in part.deciders()]

    def atoms(self) -> list[Leaf]:
        """Every innermost expression that took part, GPU questions as a whole."""
        if self.is_device or not self.parts:
            return [self]
        return [leaf for part in self.parts for leaf in part.atoms()]


@dataclass(frozen=True)
class Value:
    """An abstract value.

    ``known``: ``data`` is the value (containers hold Values). ``free``: it differs from call to call or from one
    configuration to another, and either way is possible. ``opaque``: not understood, so nothing may rest on it.
    ``options`` are the known possibilities of a value that is not known. ``deps`` says what it depends on.
    """

    kind: str
    data: Any = None
    deps: frozenset[str] = frozenset()
    why: Leaf | None = None
    name: str = ""
    options: tuple[Value, ...] = ()

    @property
    def is_known(self) -> bool:
        return self.kind == "known"

    @property
    def is_opaque(self) -> bool:
        return self.kind == "opaque"

    @property
    def truth(self) -> bool | None:
        """True, False, or None where it is not settled."""
        if self.is_known:
            data = self.data
            return bool(data) if isinstance(data, _HAS_TRUTH) else True
        truths = {option.truth for option in self.options}
        return truths.pop() if len(truths) == 1 else None

    def on(self, *deps: str) -> Value:
        """The same value, depending on these too."""
        return self.under(frozenset(deps))

    def under(self, deps: frozenset[str]) -> Value:
        """The same value, depending on these too."""
        return self if deps <= self.deps else self.depending(self.deps | deps)

    def depending(self, deps: frozenset[str]) -> Value:
        """The same value, depending on these alone. Not ``dataclasses.replace``: this is the innermost loop."""
        return Value(self.kind, self.data, deps, self.why, self.name, self.options)

    def because(self, why: Leaf) -> Value:
        """The same value with this explanation."""
        return Value(self.kind, self.data, self.deps, why, self.name, self.options)


PLAIN = (bool, int, float, str, bytes, type(None), EllipsisType)
_HAS_TRUTH = (*PLAIN, list, dict, tuple, set, frozenset)


def known(data: Any, deps: frozenset[str] = frozenset(), why: Leaf | None = None) -> Value:
    return Value("known", data, deps, why)


def free(*deps: str, name: str = "") -> Value:
    return Value("free", None, frozenset(deps), None, name)


def opaque(text: str, deps: frozenset[str] = frozenset()) -> Value:
    return Value("opaque", None, deps | {f"not understood: {text}"})


def itself(name: str) -> Value:
    """A value met again while it is being computed: it adds nothing to what the other possibilities say."""
    return Value("opaque", None, frozenset({f"not understood: {name}, which is defined by itself"}), None, "itself")


NONE = known(None)


@dataclass(eq=False)
class Lazy:
    """A value that is computed when it is first needed: most of what a function computes decides nothing."""

    compute: Callable[[], Value]
    value: Value | None = None
    origin: tuple[str, str] | None = None  # the module and name that it was imported from

    def force(self) -> Value:
        if self.value is None:
            self.value = opaque("a value that is defined by itself")
            self.value = self.compute()
        return self.value


Pending = Value | Lazy


def force(value: Pending) -> Value:
    """The value, computed now where it was not yet."""
    return value.force() if isinstance(value, Lazy) else value


class NotPlainError(Exception):
    """The value is not known down to plain Python data."""


def plain(value: Value) -> Any:
    """Plain Python data of a value that is known throughout. Raises NotPlainError."""
    if not value.is_known:
        raise NotPlainError
    return _plain_data(value.data)


def _plain_data(data: Any) -> Any:
    if isinstance(data, _TAKEN_AS_IT_IS):
        return data
    if isinstance(data, list):
        return [plain(item) for item in data]
    if isinstance(data, tuple):
        return tuple(plain(item) for item in data)
    if isinstance(data, set | frozenset):
        return frozenset(plain(item) for item in data)
    if isinstance(data, dict):
        return {key: plain(item) for key, item in data.items()}
    raise NotPlainError


def all_deps(value: Value) -> frozenset[str]:
    """What a value depends on, its items included."""
    deps = value.deps
    if value.is_known and isinstance(value.data, list | tuple | set | frozenset):
        for item in value.data:
            deps |= all_deps(item)
    return deps


def join(values: list[Value], under: frozenset[str] = frozenset(), *, hazy: bool = False) -> Value:
    """One value for several possibilities, chosen between by conditions that depend on ``under``.

    ``hazy``: the condition that chooses was not understood, so a difference between them is not understood either.
    """
    values = [value for value in values if value.name != "itself"] or values[:1]
    if len(values) == 1:
        return values[0]
    flat: list[Value] = []
    for value in values:
        for option in value.options or (value,):
            if not any(_same(option, other) for other in flat):
                flat.append(option)
    deps = frozenset().union(under, *(value.deps for value in values))
    if len(flat) == 1:
        only = flat[0]
        return only.depending(frozenset().union(*(v.deps for v in values))) if only.is_known else only.under(deps)
    kind = "opaque" if hazy or any(value.is_opaque for value in values) else "free"
    if hazy and not any(dep.startswith("not understood") for dep in deps):
        deps |= {"not understood: a condition"}
    parts = tuple(value.why for value in values if value.why is not None)
    why = None
    if parts:
        why = replace(parts[0], value=None, deps=deps, op="or", parts=parts, opaque=kind == "opaque")
    return Value(kind, None, deps, why, "", tuple(flat[:8]))


def _same(one: Value, other: Value) -> bool:
    if one.kind != other.kind:
        return False
    if one.is_known:
        if one.data is other.data:
            return True
        try:
            left, right = plain(one), plain(other)
        except NotPlainError:
            return False
        return type(left) is type(right) and bool(left == right)
    return one.deps == other.deps and one.name == other.name


def missing(name: str) -> Value:
    """What an attribute or module that is not there has for a value."""
    return Value("opaque", None, frozenset({f"not understood: {name} is not there"}), None, "missing")


def lift(data: Any, deps: frozenset[str]) -> Value:
    """Plain data as a Value whose items are Values."""
    if isinstance(data, list | tuple | set | frozenset):
        items = [lift(item, deps) for item in data]
        return known(tuple(items) if isinstance(data, tuple) else items, deps)
    if isinstance(data, dict):
        return known({key: lift(item, deps) for key, item in data.items()}, deps)
    return known(data, deps)


# ---------------------------------------------------------------- objects


@dataclass(eq=False)
class FunctionRef:
    """A function of the source; ``receiver`` is bound as its first argument where it is a method."""

    module: Module
    node: FunctionNode | ast.Lambda
    owner: ClassRef | None = None
    receiver: Value | None = None
    closure: dict[str, Pending] = field(default_factory=dict)


@dataclass(frozen=True)
class ClassRef:
    """A class of the source."""

    module: Module
    node: ast.ClassDef


@dataclass(frozen=True)
class ModuleRef:
    """A module of the source."""

    module: Module


@dataclass(frozen=True)
class PackageRef:
    """A folder of the source without an ``__init__``, or a name on the way to a module."""

    name: str


@dataclass(frozen=True)
class External:
    """Something of another package or of Python itself, by its dotted name."""

    name: str


@dataclass(frozen=True)
class Member:
    """A member of an enumeration."""

    owner: str
    name: str


@dataclass(eq=False)
class Instance:
    """An object of a class of the source; ``symbolic`` when its attributes were not computed here."""

    cls: ClassRef
    attrs: dict[str, Pending] = field(default_factory=dict)
    symbolic: bool = False
    shared: bool = False  # a global: whoever runs later may have changed it


@dataclass(eq=False)
class Partial:
    """functools.partial of a value."""

    function: Value
    args: list[Value]
    kwargs: dict[str, Value]


@dataclass(eq=False)
class BoundBuiltin:
    """A method of plain data: ``receiver.name``."""

    receiver: Value
    name: str


class RaisedError(Exception):
    """The interpreted program raises; ``steps`` are the decisions that led there, innermost first."""

    def __init__(self, name: str, message: str, where: Leaf, steps: list[Any]) -> None:
        super().__init__(f"{name}: {message}")
        self.name, self.message, self.where, self.steps = name, message, where, steps


_TAKEN_AS_IT_IS = (*PLAIN, Member, ClassRef, ModuleRef, External, FunctionRef)
