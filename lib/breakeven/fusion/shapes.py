"""The shapes of Python source that the edits look for and make: small functions over LibCST nodes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import libcst as cst
from libcst import matchers as m

ARCH_NUMBER = re.compile(r"(?<![A-Za-z0-9])sm\d{2,3}(?!\d)")
MULTICAST_QUERY = "cuMulticastGetGranularity"

Replacement = cst.CSTNode | cst.FlattenSentinel


class Replacer(cst.CSTTransformer):
    def __init__(self, replacements: dict[cst.CSTNode, Replacement]) -> None:
        super().__init__()
        self.replacements = replacements

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> Replacement:  # type: ignore[override]
        """The replacement of a node, where there is one; replaced nodes never contain each other."""
        return self.replacements.get(original_node, updated_node)


class Renamer(cst.CSTTransformer):
    def __init__(self, new_names: dict[str, str]) -> None:
        super().__init__()
        self.new_names = new_names

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:  # noqa: N802 (LibCST's name)
        """The name's new spelling."""
        return updated_node.with_changes(value=self.new_names.get(updated_node.value, updated_node.value))


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for child in node.children:
        yield from walk(child)


def functions(node: cst.CSTNode, prefix: str = "") -> Iterator[tuple[str, cst.FunctionDef]]:
    """Every function with its qualified name, ``Class.method``."""
    for child in node.children:
        if isinstance(child, cst.FunctionDef):
            yield f"{prefix}{child.name.value}", child
        inner = f"{prefix}{child.name.value}." if isinstance(child, cst.FunctionDef | cst.ClassDef) else prefix
        yield from functions(child, inner)


def assignments(module: cst.Module) -> Iterator[tuple[str, cst.SimpleStatementLine]]:
    """The lines at the top of a module that bind one name to an expression."""
    for line in module.body:
        match line:
            case cst.SimpleStatementLine(body=[cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))])]):
                yield name, line


def imports(module: cst.Module) -> Iterator[tuple[str, cst.ImportFrom]]:
    """The names that ``from ... import`` binds at the top of a module, under their own name."""
    for line in module.body:
        match line:
            case cst.SimpleStatementLine(body=[cst.ImportFrom(names=[*aliases]) as statement]):
                yield from ((alias.evaluated_name, statement) for alias in aliases if alias.asname is None)


def value(line: cst.SimpleStatementLine) -> cst.BaseExpression:
    return cst.ensure_type(line.body[0], cst.Assign).value


def assignment(name: str, value: cst.BaseExpression) -> cst.SimpleStatementLine:
    return cst.SimpleStatementLine(body=[cst.Assign(targets=[cst.AssignTarget(target=cst.Name(name))], value=value)])


def import_too(statement: cst.ImportFrom, name: str, twin: str) -> cst.ImportFrom:
    """The import with one more name after ``name``, laid out like its neighbours."""
    assert not isinstance(statement.names, cst.ImportStar)
    names = list(statement.names)
    place = next(i for i, alias in enumerate(names) if alias.evaluated_name == name)
    last = place == len(names) - 1
    between = names[place - 1 if last and place else place].comma
    if not isinstance(between, cst.Comma):
        between = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    added = cst.ImportAlias(name=cst.Name(twin), comma=names[place].comma)
    names[place : place + 1] = [names[place].with_changes(comma=between), added]
    return statement.with_changes(names=names)


def deciding_groups(condition: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The terms that a condition needs, seen through ``and`` and ``not``: widening one of them opens it."""
    match condition:
        case cst.BooleanOperation(operator=cst.And()):
            yield from deciding_groups(condition.left)
            yield from deciding_groups(condition.right)
        case cst.UnaryOperation(operator=cst.Not()):
            yield from deciding_groups(condition.expression)
        case _:
            yield condition


def or_terms(group: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    match group:
        case cst.BooleanOperation(operator=cst.Or()):
            yield from or_terms(group.left)
            yield from or_terms(group.right)
        case _:
            yield group


def wider(group: cst.BaseExpression, asked: cst.BaseExpression) -> cst.BooleanOperation:
    """``a or b`` and ``c`` to ``a or b or c``, laid out as it was; a single ``a`` gets parentheses."""
    match group:
        case cst.BooleanOperation(operator=cst.Or()):
            return cst.BooleanOperation(
                left=group.with_changes(lpar=(), rpar=()),
                operator=group.operator,
                right=asked,
                lpar=group.lpar,
                rpar=group.rpar,
            )
        case _:
            return cst.BooleanOperation(
                left=group, operator=cst.Or(), right=asked, lpar=[cst.LeftParen()], rpar=[cst.RightParen()]
            )


def multicast_queries(function: cst.FunctionDef) -> Iterator[tuple[str, cst.If]]:
    """For each multicast query: the name that gets the granularity, and the ``if`` after it that raises on an error."""
    query = m.SimpleStatementLine(
        body=[
            m.Assign(
                targets=[m.AssignTarget(target=m.Tuple(elements=[m.Element(m.Name()), m.Element(m.Name())]))],
                value=m.Call(func=m.Attribute(attr=m.Name(MULTICAST_QUERY))),
            )
        ]
    )
    for block in (node for node in walk(function) if isinstance(node, cst.IndentedBlock)):
        for line, test in zip(block.body, block.body[1:], strict=False):
            if not m.matches(line, query):
                continue
            error, size = names(line)[:2]
            gives_up = m.If(test=m.Comparison(left=m.Name(error)), orelse=None)
            if isinstance(test, cst.If) and m.matches(test, gives_up) and m.findall(test.body, m.Raise()):
                yield size, test


def names(node: cst.CSTNode) -> list[str]:
    return [inner.value for inner in walk(node) if isinstance(inner, cst.Name)]


def free_names(node: cst.CSTNode) -> set[str]:
    """The names that an expression takes from around it: not those after a dot."""
    attributes = {id(inner.attr) for inner in walk(node) if isinstance(inner, cst.Attribute)}
    return {inner.value for inner in walk(node) if isinstance(inner, cst.Name) and id(inner) not in attributes}


def arch_in(name: str) -> str | None:
    match = ARCH_NUMBER.search(name)
    return match.group() if match else None


def normal(expression: str) -> str:
    """An expression without its layout, comments and needless parentheses; as it is where it can't be parsed."""
    try:
        return ast.unparse(ast.parse(f"({expression.strip()}\n)", mode="eval"))
    except SyntaxError:
        return expression


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
