"""A package's source as a program: files, modules, names and who refers to them. Reads Python, runs none of it."""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from breakeven.errors import UserError
from breakeven.sources import Source, is_needed

# What the text of a function says about it, before it is worth running.
_RAISES = re.compile(r"\braise\b|\bassert\b")
_ASKS = re.compile(r"sm_?\d|capab|hopper|blackwell|arch|get_platform|nnodes|multi_node|device_sm", re.I)
_EVERYDAY = frozenset(
    [
        "info",
        "warning",
        "debug",
        "error",
        "exception",
        "get",
        "set",
        "items",
        "keys",
        "values",
        "is_set",
        "append",
        "join",
        "format",
        "split",
    ]
)
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\(")
_IMPORTS = re.compile(r"^[ \t]*from\s+([.\w]+)\s+import\s+(\([^)]*\)|[^\n(]+)", re.M)

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
            parents = self._parents
            for node in found:
                for name in node._fields:
                    child = getattr(node, name, None)
                    if isinstance(child, list):
                        for item in child:
                            if isinstance(item, ast.AST):
                                parents[item] = node
                                found.append(item)
                    elif isinstance(child, ast.AST) and not isinstance(child, ast.expr_context):
                        parents[child] = node
                        found.append(child)
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
        found = []
        for node in self.nodes_naming(name):
            if isinstance(node, ast.Global) and name in node.names:
                function = self.enclosing_function(node)
                if function is not None and function not in found:
                    found.append(function)
        return found


@dataclass
class Program:
    """The files of one or more sources, parsed when they are first needed."""

    sources: list[Source]
    _modules: dict[str, Module | None] = field(default_factory=dict)

    @cached_property
    def files(self) -> dict[str, tuple[Source, Path]]:
        """Every Python file by its path below the source root."""
        found: dict[str, tuple[Source, Path]] = {}
        for source in self.sources:
            for path in sorted(source.folder.rglob("*.py")):
                rel = path.relative_to(source.root).as_posix()
                if is_needed(source.package, rel):
                    found[rel] = (source, path)
        return found

    @cached_property
    def texts(self) -> dict[str, str]:
        """Every file's text. Raises UserError where a file can't be read."""
        texts = {}
        for rel, (_, path) in self.files.items():
            try:
                texts[rel] = path.read_bytes().decode("utf-8", errors="replace")
            except OSError as error:
                raise UserError(f"{path} can't be read: {error.strerror}") from None
        return texts

    def containing(self, word: str, package: str | None = None) -> list[str]:
        """The files that hold the word as a whole identifier."""
        cached = self._containing.get(word)
        if cached is None:
            cached = [rel for rel, text in self.texts.items() if word in text and any(occurrences(text, word))]
            self._containing[word] = cached
        return [rel for rel in cached if package is None or self.files[rel][0].package == package]

    @cached_property
    def _containing(self) -> dict[str, list[str]]:
        return {}

    def module(self, rel: str) -> Module:
        """The parsed file. Raises UserError with the line where its syntax is broken."""
        name = rel.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        known = self._modules.get(name)
        if known is not None:
            return known
        try:
            text = self.texts[rel].lstrip("\ufeff")
            tree = ast.parse(text)
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            where = f"{self.files[rel][1]}:{line}" if line else str(self.files[rel][1])
            what = error.msg if isinstance(error, SyntaxError) else str(error)
            raise UserError(f"{where} is no valid Python ({what}); the gates can't be read from it") from None
        module = Module(name, rel, self.files[rel][0].package, text, tree, rel.endswith("__init__.py"))
        self._modules[name] = module
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

    @staticmethod
    def asks(text: str) -> bool:
        """Whether a text speaks of the GPU or of the launch."""
        return bool(_ASKS.search(text))

    def refuses(self, rel: str, name: str) -> bool:
        """Whether the text of a function, and of what it calls, both raises and asks about the GPU."""
        raises, asks = self._temper(rel, name, 0)
        return raises and asks

    def may_refuse(self, name: str) -> bool:
        """Whether any function or method of this name refuses; False for names that many things have."""
        if name not in self._refusing_names:
            files = self.containing(name) if name not in _EVERYDAY else []
            files = [rel for rel in files if f"def {name}(" in self.texts[rel]]
            self._refusing_names[name] = len(files) <= 4 and any(self.refuses(rel, name) for rel in files)
        return self._refusing_names[name]

    @cached_property
    def _refusing_names(self) -> dict[str, bool]:
        return {}

    def _temper(self, rel: str, name: str, depth: int) -> tuple[bool, bool]:
        key = (rel, name)
        if key not in self._tempers:
            self._tempers[key] = (False, False)
            where, body = self._definition(rel, name, 0)
            raises, asks = bool(_RAISES.search(body)), bool(_ASKS.search(body))
            if depth < 4:
                for called in dict.fromkeys(_CALLED.findall(body)):
                    if called != name and not (raises and asks):
                        more_raises, more_asks = self._temper(where, called, depth + 1)
                        raises, asks = raises or more_raises, asks or more_asks
            self._tempers[key] = (raises, asks)
        return self._tempers[key]

    @cached_property
    def _tempers(self) -> dict[tuple[str, str], tuple[bool, bool]]:
        return {}

    def _definition(self, rel: str, name: str, depth: int) -> tuple[str, str]:
        """The file and text of a function's definition, through at most four imports; empty where there is none."""
        text = self.texts.get(rel, "")
        if name not in text or depth > 4:
            return rel, ""
        match = re.search(rf"^([ \t]*)(?:async )?def {name}\b", text, re.M)
        if match:
            indent = match.group(1)
            end = re.compile(rf"^(?!{indent}[ \t])(?=[ \t]*[^\s)#])", re.M).search(
                text, text.find("\n", match.end()) + 1
            )
            while end and text[match.end() : end.start()].count("(") > text[match.end() : end.start()].count(")"):
                end = re.compile(rf"^(?!{indent}[ \t])(?=[ \t]*[^\s)#])", re.M).search(text, end.end() + 1)
            return rel, text[match.start() : end.start() if end else len(text)]
        for source, names in _IMPORTS.findall(text):
            if re.search(rf"\b{name}\b", names):
                dotted = self._absolute(rel, source)
                found = self.file_of(dotted)
                if found and found != rel:
                    return self._definition(found, name, depth + 1)
        return rel, ""

    def _absolute(self, rel: str, source: str) -> str:
        level = len(source) - len(source.lstrip("."))
        if not level:
            return source
        base = rel.removesuffix(".py").split("/")[:-1]
        base = base[: len(base) - (level - 1)]
        return ".".join([*base, *([source.lstrip(".")] if source.lstrip(".") else [])])

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
    for node in _own_scope(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, FunctionNode | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0]
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name


def _own_scope(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, FunctionNode | ast.ClassDef | ast.Lambda):
            yield from _own_scope(child)


def own_nodes(function: ast.AST) -> list[ast.AST]:
    """The nodes of a function's body without those of functions and classes inside it."""
    known = function.__dict__.get("_own_nodes")
    if known is not None:
        return known  # type: ignore[no-any-return]
    body = function.body if isinstance(function.body, list) else [function.body]  # type: ignore[attr-defined]
    found: list[ast.AST] = list(body)
    for node in found:
        if isinstance(node, FunctionNode | ast.ClassDef | ast.Lambda):
            continue
        found.extend(ast.iter_child_nodes(node))
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
