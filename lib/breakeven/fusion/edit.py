"""The edits themselves: source in, source out, by symbol and by the shape of a condition (LibCST).

A gate asks about architectures it knows: ``is_sm90_supported() or is_sm100_supported()``, ``get_platform().is_sm100``,
or names that a module gives to such questions at its top. It is opened by asking once more, for the new architecture
and in the same words: the last question of the group is copied with its number changed, together with the import or
the module-level name that it needs. Nothing else of the file moves. What does not have the expected shape is refused,
not guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from breakeven.fusion import shapes

MULTICAST_COMMENT = "# the workspace here uses no multicast: nothing to align to"
CONDITIONS = cst.BooleanOperation | cst.UnaryOperation | cst.Comparison | cst.Call | cst.Attribute | cst.Name


class UnexpectedSourceError(Exception):
    """The source does not have the shape that an edit needs; the text says what was looked for, and where."""


@dataclass(frozen=True)
class Target:
    """A closed gate to open: the function it stands in, the condition's text, its line (1-based), and why."""

    symbol: str
    expression: str
    line: int
    why: str


@dataclass(frozen=True)
class Edit:
    """One change of one place: its line in the source as it was (1-based), the code before and after, and why."""

    symbol: str
    line: int
    before: str
    after: str
    why: str


def open_gates(
    source: bytes, family: str, targets: Sequence[Target], *, multicast_why: str | None = None
) -> tuple[bytes, list[Edit]]:
    """Open gates of one file for an architecture family (``sm120`` stands for compute capability 12.x).

    With ``multicast_why``, a preflight in the same file that gives up where the driver has no multicast
    (``err, size = driver.cuMulticastGetGranularity(...)``, then ``if err != ...: raise``) gets a branch in front: for
    this family ``size`` is 1 then, since its workspace uses no multicast. Written in another way, it is left alone.

    Returns the new source and the edits; a gate that asks about the family already gets none. Raises
    UnexpectedSourceError when a gate is not found, or asks nothing about an architecture that could be copied.
    """
    editor = _Editor(source, family)
    for target in targets:
        editor.open_condition(target)
    if multicast_why:
        editor.open_multicast_preflight(multicast_why)
    return editor.finish()


class _Editor:
    """A parsed file, the replacements collected for it, and the edits to report."""

    def __init__(self, source: bytes, family: str) -> None:
        try:
            wrapper = MetadataWrapper(cst.parse_module(source))
        except (cst.ParserSyntaxError, UnicodeDecodeError) as error:
            raise UnexpectedSourceError(f"it is no Python that can be parsed: {shapes.first_line(error)}") from None
        self.module = wrapper.module
        self.positions = wrapper.resolve(PositionProvider)
        self.family = family
        self.functions = list(shapes.functions(self.module))
        self.assigned = dict(shapes.assignments(self.module))
        self.imported = dict(shapes.imports(self.module))
        self.provided: set[str] = set()
        self.question: cst.BaseExpression | None = None  # the last one asked for the family
        self.replacements: dict[cst.CSTNode, shapes.Replacement] = {}
        self.edits: list[Edit] = []

    def finish(self) -> tuple[bytes, list[Edit]]:
        """The new source, and the edits in the order of their lines."""
        return self.module.visit(shapes.Replacer(self.replacements)).bytes, sorted(
            self.edits, key=lambda edit: edit.line
        )

    def open_condition(self, target: Target) -> None:
        """Widen the groups of architecture questions that decide a gate."""
        groups = [
            group
            for group in shapes.deciding_groups(self._find(target))
            if all(map(self._arch, shapes.or_terms(group)))
        ]
        if not groups:
            raise UnexpectedSourceError(f"{target.symbol} asks about no architecture in `{target.expression}`")
        for group in groups:
            questions = list(shapes.or_terms(group))
            if self.family not in map(self._arch, questions) and group not in self.replacements:
                newest = max(questions, key=lambda question: int((self._arch(question) or "sm0")[2:]))
                self.question = self._ask_for_family(newest, target)
                wider = shapes.wider(group, self.question)
                self._replace(group, wider, target.symbol, target.why)

    def open_multicast_preflight(self, why: str) -> None:
        """Put a branch for this family before the one that gives up without multicast."""
        if self.question is None:
            return
        asked = self._code(self.question)
        for symbol, function in self.functions:
            for size, test in shapes.multicast_queries(function):
                lines = f"if {self._code(test.test)} and {asked}:\n    {MULTICAST_COMMENT}\n    {size} = 1\n"
                branch = cst.ensure_type(cst.parse_statement(lines), cst.If)
                wider = branch.with_changes(
                    leading_lines=test.leading_lines, orelse=test.with_changes(leading_lines=())
                )
                self._replace(test, wider, symbol, why)

    def _find(self, target: Target) -> cst.BaseExpression:
        """The condition of a gate; where its text stands more than once, the one nearest to the gate's line."""
        scopes: list[cst.CSTNode] = [
            node for symbol, node in self.functions if f".{symbol}".endswith(f".{target.symbol}")
        ]
        if target.symbol in self.assigned:
            scopes.append(self.assigned[target.symbol])
        if not scopes:
            raise UnexpectedSourceError(f"there is no {target.symbol} in it")
        wanted = shapes.normal(target.expression)
        nodes = [node for scope in scopes for node in shapes.walk(scope) if isinstance(node, CONDITIONS)]
        found = [node for node in nodes if shapes.normal(self._code(node)) == wanted]
        if not found:
            raise UnexpectedSourceError(f"{target.symbol} has no condition `{target.expression}`")
        return min(found, key=lambda node: abs(self._line(node) - target.line))

    def _arch(self, term: cst.BaseExpression) -> str | None:
        """``sm90`` for a term that asks about SM90: a call, an attribute, or a module-level name for one."""
        if isinstance(term, cst.Call) and not term.args:
            return self._arch(term.func)
        if isinstance(term, cst.Attribute):
            return shapes.arch_in(term.attr.value)
        if isinstance(term, cst.Name):
            return shapes.arch_in(term.value) or self._arch_of_alias(term.value)
        return None

    def _arch_of_alias(self, name: str) -> str | None:
        names = shapes.names(self.assigned[name]) if name in self.assigned else []
        archs = {shapes.arch_in(inner) for inner in names if inner != name} - {None}
        return archs.pop() if len(archs) == 1 else None

    def _ask_for_family(self, question: cst.BaseExpression, target: Target) -> cst.BaseExpression:
        """The question again, for the family; the names it needs are bound beside those it was copied from."""
        twins = {
            name: self._twin(name)
            for name in shapes.names(question)
            if shapes.arch_in(name) or self._arch_of_alias(name)
        }
        for name in shapes.free_names(question) & twins.keys():
            if not {twins[name]} & (self.provided | self.assigned.keys() | self.imported.keys()):
                self._bind(name, twins[name], target)
        asked = question.visit(shapes.Renamer(twins))
        assert isinstance(asked, cst.BaseExpression)
        return asked

    def _twin(self, name: str) -> str:
        return shapes.ARCH_NUMBER.sub(self.family, name) if shapes.arch_in(name) else f"{name}_{self.family}"

    def _bind(self, name: str, twin: str, target: Target) -> None:
        """Bind the twin of a name where the name itself is bound."""
        self.provided.add(twin)
        why = f"names the architecture that {target.symbol} now asks about"
        if name in self.assigned:
            line = self.assigned[name]
            again = shapes.assignment(twin, self._ask_for_family(shapes.value(line), target))
            self._replace(line, cst.FlattenSentinel([line, again]), name, why)
        elif name in self.imported:
            statement = self.imported[name]
            self._replace(statement, shapes.import_too(statement, name, twin), name, why)
        else:
            raise UnexpectedSourceError(
                f"{name}, which {target.symbol} asks, is bound neither by import nor at the top"
            )

    def _replace(self, node: cst.CSTNode, new: shapes.Replacement, symbol: str, why: str) -> None:
        self.replacements[node] = new
        parts = [new] if isinstance(new, cst.CSTNode) else list(new)
        after = "".join(map(self._code, parts)).strip()
        self.edits.append(Edit(symbol, self._line(node), self._code(node).strip(), after, why))

    def _code(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)

    def _line(self, node: cst.CSTNode) -> int:
        return int(self.positions[node].start.line)
