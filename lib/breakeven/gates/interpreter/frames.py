"""A running function, the decisions taken in it, and what is watched there."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from breakeven.gates.program import FunctionNode, Module
from breakeven.gates.values import ClassRef, External, FunctionRef, Leaf, Partial, Pending, RaisedError, Value


@dataclass(eq=False)
class Step:
    """A decision: a test on the way, the truth that was needed, and why it is what it is."""

    node: ast.AST
    leaf: Leaf
    needed: bool
    known: bool
    opaque: bool
    exited: bool = False
    forced: bool = False
    raises: bool = False


@dataclass(eq=False)
class Frame:
    """One running function (or module body)."""

    module: Module
    symbol: str
    locals: dict[str, Pending]
    node: ast.AST | None = None
    cls: ClassRef | None = None
    closure: dict[str, Pending] = field(default_factory=dict)
    depth: int = 0
    root: bool = False
    hop: bool = False  # the way to the kernel runs through it
    path: list[Step] = field(default_factory=list)
    log: list[Step] = field(default_factory=list)
    returns: list[tuple[Value, list[Step]]] = field(default_factory=list)
    globals: set[str] = field(default_factory=set)


@dataclass
class Hit:
    """The watched thing was reached, along these decisions."""

    node: ast.AST
    path: list[Step]
    value: Value

    @property
    def is_opaque(self) -> bool:
        return any(step.opaque and not step.known for step in self.path)


@dataclass
class Watch:
    """What to look out for in the root frame: calls of functions, or stores to names (attributes, keys, globals)."""

    functions: frozenset[int] = frozenset()
    methods: frozenset[str] = frozenset()
    externals: frozenset[str] = frozenset()
    stores: frozenset[str] = frozenset()
    hits: list[Hit] = field(default_factory=list)
    words: frozenset[str] = frozenset()
    lenient: bool = False  # what raises on the way does not count

    def is_target(self, value: Value) -> bool:
        if value.name and value.name in self.methods:
            return True
        data = value.data
        if isinstance(data, FunctionRef):
            name = getattr(data.node, "name", "")
            return id(data.node) in self.functions or (data.module.package == "flashinfer" and name in self.externals)
        if isinstance(data, External):
            return data.name.rpartition(".")[2] in self.externals
        if isinstance(data, Partial):
            return self.is_target(data.function)
        return any(self.is_target(option) for option in value.options)


def mentions(node: ast.AST, words: frozenset[str]) -> bool:
    """Whether a node names one of the identifiers: as a name, an attribute, a keyword or a text."""
    if not words:
        return False
    if isinstance(node, ast.Name):
        return node.id in words
    if isinstance(node, ast.Attribute):
        return node.attr in words
    if isinstance(node, ast.keyword):
        return node.arg in words
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in words


def changes_something(node: ast.expr) -> bool:
    """A call that is made for what it changes: of an attribute, or of a container."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr in ("append", "add", "extend", "update"):
        return True
    return ast.unparse(node.func) in ("setattr", "object.__setattr__")


def is_refusal(error: RaisedError) -> bool:
    """Whether something raises because of what the GPU, the launch or the FlashInfer release is."""
    return all(step.known for step in error.steps) and any(
        dep == "arch" or dep.startswith(("setting:", "FlashInfer")) for step in error.steps for dep in step.leaf.touched
    )


def has_decorator(node: FunctionNode, name: str) -> bool:
    return any(last_name(decorator) == name for decorator in node.decorator_list)


def last_name(node: ast.AST) -> str:
    """``c`` of ``a.b.c``, empty for anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
