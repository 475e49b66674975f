"""A package's source as a program: files, modules, names and who refers to them. Reads Python, runs none of it."""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from breakeven.errors import UserError
from breakeven.gates.temper import Tempers
from breakeven.sources import Source, python_files
from breakeven.sources.archives import is_needed

_DEFINED = re.compile(r"def (\w+)\(")
_MAX_NAMESAKES = 4

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Scope = FunctionNode | ast.ClassDef | ast.Lambda


@dataclass(eq=False, repr=False)
class Module:
    """One parsed file. ``name`` is dotted, ``rel`` is the path below the source root.

    Files are long and few of their statements matter, so parents and identifiers are indexed statement by statement,
    when they are first asked for.
    """

    name: str
    rel: str
    package: str
    text: str
    tree: ast.Module
    is_init: bool
    _parents: dict[ast.AST, ast.AST] = field(default_factory=dict)
    _nodes: dict[int, list[ast.AST]] = field(default_factory=dict)

    @cached_property
    def _starts(self) -> list[int]:
        return [_first_line(statement) for statement in self.tree.body]

    @cached_property
    def _line_offsets(self) -> list[int]:
        offsets = [0]
        for line in self.text.splitlines(keepends=True):
            offsets.append(offsets[-1] + len(line))
        return offsets

    def _statement_at(self, line: int) -> int:
        return max(bisect.bisect_right(self._starts, line) - 1, 0)

    def nodes(self, index: int) -> list[ast.AST]:
        """The nodes of a top-level statement."""
        if index not in self._nodes:
            statement = self.tree.body[index]
            found: list[ast.AST] = [statement]
            for node in found:
                below = children(node)
                self._parents.update(dict.fromkeys(below, node))
                found += below
            self._nodes[index] = found
        return self._nodes[index]

    def nodes_naming(self, word: str) -> Iterator[ast.AST]:
        """The nodes of those top-level statements in whose text the word occurs."""
        if not self.tree.body:
            return
        seen = set()
        for position in occurrences(self.text, word):
            index = self._statement_at(bisect.bisect_right(self._line_offsets, position))
            if index not in seen:
                seen.add(index)
                yield from self.nodes(index)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around a node, None for a top-level statement."""
        if node not in self._parents and hasattr(node, "lineno") and self.tree.body:
            self.nodes(self._statement_at(node.lineno))
        return self._parents.get(node)

    @cached_property
    def bindings(self) -> dict[str, list[ast.stmt]]:
        """For each global name, the top-level statements that bind it, in order."""
        found: dict[str, list[ast.stmt]] = {}
        for statement in self.tree.body:
            for name in dict.fromkeys(bound_names(statement)):
                found.setdefault(name, []).append(statement)
        return found

    @cached_property
    def star_imports(self) -> list[ast.ImportFrom]:
        return [
            node
            for node in self.tree.body
            if isinstance(node, ast.ImportFrom) and any(a.name == "*" for a in node.names)
        ]

    def enclosing_function(self, node: ast.AST) -> FunctionNode | None:
        """The innermost function that holds the node in its body (not in its decorators or defaults)."""
        child, parent = node, self.parent(node)
        while parent is not None:
            if isinstance(parent, FunctionNode) and any(child is statement for statement in parent.body):
                return parent
            child, parent = parent, self.parent(parent)
        return None

    def enclosing_class(self, node: ast.AST) -> ast.ClassDef | None:
        """The class whose method the node is, or None."""
        parent = self.parent(node)
        while parent is not None and not isinstance(parent, ast.ClassDef | FunctionNode):
            parent = self.parent(parent)
        return parent if isinstance(parent, ast.ClassDef) else None

    def enclosing_class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class around a node, through any functions between them."""
        parent = self.parent(node)
        while parent is not None and not isinstance(parent, ast.ClassDef):
            parent = self.parent(parent)
        return parent

    def symbol(self, node: ast.AST) -> str:
        """The dotted name of the function or class around a node, ``<module>`` at the top level."""
        parts: list[str] = []
        current: ast.AST | None = node
        while current is not None:
            if isinstance(current, FunctionNode | ast.ClassDef):
                parts.append(current.name)
            current = self.parent(current)
        return ".".join(reversed(parts)) or "<module>"

    def declaring_global(self, name: str) -> list[FunctionNode]:
        """The functions that assign a global of this name."""
        return self._declaring_globals.get(name, [])

    @cached_property
    def _declaring_globals(self) -> dict[str, list[FunctionNode]]:
        found: dict[str, dict[int, FunctionNode]] = {}
        for node in self.nodes_naming("global"):
            if isinstance(node, ast.Global) and (function := self.enclosing_function(node)) is not None:
                for name in node.names:
                    found.setdefault(name, {})[id(function)] = function
        return {name: list(functions.values()) for name, functions in found.items()}


@dataclass
class Library:
    """Texts and parsed files by their path below the source root, which names the package: programs may share it."""

    texts: dict[str, str] = field(default_factory=dict)
    modules: dict[str, Module] = field(default_factory=dict)

    def changed(self, files: Mapping[str, bytes]) -> Library:
        """The same with other contents of some files."""
        texts = {rel: content.decode("utf-8", errors="replace") for rel, content in files.items()}
        return Library(self.texts | texts, {rel: module for rel, module in self.modules.items() if rel not in files})


@dataclass
class Program:
    """The files of one or more sources, parsed when they are first needed."""

    sources: list[Source]
    library: Library = field(default_factory=Library)

    @cached_property
    def files(self) -> dict[str, Source]:
        """Every Python file's source, by the file's path below the source root."""
        return {
            rel: source for source in self.sources for rel in python_files(source) if is_needed(source.package, rel)
        }

    @cached_property
    def texts(self) -> dict[str, str]:
        """Every file's text. Raises UserError where a file can't be read."""
        known = self.library.texts
        for rel, source in self.files.items():
            if rel not in known:
                known[rel] = source.read(rel).decode("utf-8", errors="replace")
        return {rel: known[rel] for rel in self.files}

    def containing(self, word: str, package: str | None = None) -> list[str]:
        """The files that hold the word as a whole identifier."""
        cached = self._containing.get(word)
        if cached is None:
            cached = [rel for rel, text in self.texts.items() if word in text and any(occurrences(text, word))]
            self._containing[word] = cached
        return [rel for rel in cached if package is None or self.files[rel].package == package]

    @cached_property
    def _containing(self) -> dict[str, list[str]]:
        return {}

    def module(self, rel: str) -> Module:
        """The parsed file. Raises UserError with the line where its syntax is broken."""
        known = self.library.modules.get(rel)
        if known is not None:
            return known
        try:
            text = self.texts[rel].lstrip("\ufeff")
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = getattr(error, "lineno", None)
            file = self.files[rel].root / rel
            where = f"{file}:{line}" if line else str(file)
            what = error.msg if isinstance(error, SyntaxError) else str(error)
            raise UserError(f"{where} is no valid Python ({what}); the gates can't be read from it") from None
        name = rel.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        module = Module(name, rel, self.files[rel].package, text, tree, rel.endswith("__init__.py"))
        self.library.modules[rel] = module
        return module

    def find_module(self, name: str) -> Module | None:
        """The module of a dotted name, None where it belongs to no source here."""
        path = name.replace(".", "/")
        for rel in (f"{path}.py", f"{path}/__init__.py"):
            if rel in self.files:
                return self.module(rel)
        return None

    def holds(self, name: str) -> bool:
        """Whether a dotted module name lies in one of the sources."""
        return any(name == source.package or name.startswith(source.package + ".") for source in self.sources)

    def file_of(self, name: str) -> str:
        """The path of a dotted module name, empty where it is no module here."""
        path = name.replace(".", "/")
        return next((rel for rel in (f"{path}.py", f"{path}/__init__.py") if rel in self.files), "")

    @cached_property
    def tempers(self) -> Tempers:
        return Tempers(self.texts)

    def refuses(self, rel: str, name: str) -> bool:
        """Whether the text of a function, and of what it calls, both raises and asks about the GPU."""
        return self.tempers.refuses(rel, name)

    def may_refuse(self, name: str) -> bool:
        """Whether any function or method of this name refuses; False for names that many things have."""
        files = self._defining.get(name, [])
        return len(files) <= _MAX_NAMESAKES and any(self.refuses(rel, name) for rel in files)

    @cached_property
    def _defining(self) -> dict[str, list[str]]:
        """The files that define a function or method, by its name."""
        found: dict[str, list[str]] = {}
        for rel, text in self.texts.items():
            for name in set(_DEFINED.findall(text)):
                found.setdefault(name, []).append(rel)
        return found

    def is_package(self, name: str) -> bool:
        """Whether the dotted name is a folder here (with or without ``__init__``)."""
        prefix = name.replace(".", "/") + "/"
        return any(rel.startswith(prefix) for rel in self.files)


def occurrences(text: str, word: str) -> Iterator[int]:
    """Where a word stands in a text as a whole identifier; the positions count from 1 so that each is true."""
    position = text.find(word)
    while position >= 0:
        end = position + len(word)
        before, after = text[position - 1 : position], text[end : end + 1]
        if not (before.isidentifier() or before.isdigit()) and not (after.isidentifier() or after.isdigit()):
            yield position + 1
        position = text.find(word, end)


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])


def bound_names(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement binds in its own scope (compound statements included, inner scopes not)."""
    if isinstance(statement, FunctionNode | ast.ClassDef):
        yield statement.name
        return
    if isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
        return
    found = children(statement)
    for node in found:
        if not isinstance(node, FunctionNode | ast.ClassDef | ast.Lambda):
            found += children(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, FunctionNode | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below a node, in order, without the marks ``Load`` and ``Store``: quicker than the standard's."""
    found = []
    for name in node._fields:
        child = getattr(node, name, None)
        if isinstance(child, list):
            found += [item for item in child if isinstance(item, ast.AST)]
        elif isinstance(child, ast.AST) and not isinstance(child, ast.expr_context):
            found.append(child)
    return found


def descendants(node: ast.AST) -> list[ast.AST]:
    """The node and every node below it, nearest first."""
    found = [node]
    for inner in found:
        found += children(inner)
    return found


def own_nodes(function: ast.AST) -> list[ast.AST]:
    """The nodes of a function's body without those of functions and classes inside it."""
    known = function.__dict__.get("_own_nodes")
    if known is not None:
        return known  # type: ignore[no-any-return]
    body = function.body if isinstance(function.body, list) else [function.body]  # type: ignore[attr-defined]
    found: list[ast.AST] = list(body)
    for node in found:
        if not isinstance(node, FunctionNode | ast.ClassDef | ast.Lambda):
            found += children(node)
    function.__dict__["_own_nodes"] = found
    return found


def import_source(module: Module, node: ast.ImportFrom) -> str:
    """The absolute dotted name that a ``from X import`` takes from."""
    if not node.level:
        return node.module or ""
    base = module.name.split(".")
    drop = node.level - (1 if module.is_init else 0)
    base = base[: len(base) - drop] if drop else base
    return ".".join([*base, *([node.module] if node.module else [])])
