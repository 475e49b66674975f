"""Ways to write the gates of a released source otherwise, without changing what they mean."""

from __future__ import annotations

import ast
import re

from breakeven.gates import Reading


class ReversedTerms(ast.NodeTransformer):
    """``b and a`` for ``a and b``, wherever it stands."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        node.values.reverse()
        return node


class DeMorgan(ast.NodeTransformer):
    """``not (not a or not b)`` for ``a and b``."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Or):
            return node
        refused = ast.BoolOp(ast.Or(), [ast.UnaryOp(ast.Not(), value) for value in node.values])
        return ast.UnaryOp(ast.Not(), refused)


class EarlyReturns(ast.NodeTransformer):
    """``if not a: return False`` for each term of a function that ends with ``return a and b``."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        match node.body[-1]:
            case ast.Return(value=ast.BoolOp(op=ast.And(), values=values)):
                leave = ast.Return(ast.Constant(False))
                tests = [ast.If(ast.UnaryOp(ast.Not(), value), [leave], []) for value in values]
                node.body[-1:] = [*tests, ast.Return(ast.Constant(True))]
        return node


class HoistedTerms(ast.NodeTransformer):
    """``part0 = a`` and so on before a function's last ``return a and b``."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        match node.body[-1]:
            case ast.Return(value=ast.BoolOp(op=op, values=values)):
                names = [f"part{number}" for number in range(len(values))]
                stores = [
                    ast.Assign([ast.Name(name, ast.Store())], value) for name, value in zip(names, values, strict=True)
                ]
                node.body[-1:] = [*stores, ast.Return(ast.BoolOp(op, [ast.Name(name, ast.Load()) for name in names]))]
        return node


REWRITES = (ReversedTerms, DeMorgan, EarlyReturns, HoistedTerms)


def rewritten(reading: Reading, files: list[str], how: type[ast.NodeTransformer]) -> Reading:
    """The reading with some of its files rewritten (comments and layout go as well)."""
    changed = {}
    for rel in files:
        tree = how().visit(ast.parse(reading.sglang.read(rel)))
        changed[rel] = ast.unparse(ast.fix_missing_locations(tree)).encode()
    return reading.changed(changed)


def renamed(reading: Reading, old: str, new: str) -> Reading:
    """The reading with one name changed in every file."""
    program = reading.program("sglang")
    return reading.changed(
        {rel: re.sub(rf"\b{old}\b", new, program.texts[rel]).encode() for rel in program.containing(old)}
    )
