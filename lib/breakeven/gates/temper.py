"""What the text of a function tells before it is worth running: does it raise, and does it ask about the GPU?"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_DEFINITIONS = re.compile(r"^([ \t]*)(?:async )?def (\w+)", re.M)
_IMPORTS = re.compile(r"^[ \t]*from\s+([.\w]+)\s+import\s+(\([^)]*\)|[^\n(]+)", re.M)
_WORDS = re.compile(r"\w+")
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\(")
_RAISES = re.compile(r"\braise\b|\bassert\b")
_ASKS = ("capab", "hopper", "blackwell", "arch", "get_platform", "nnodes", "multi_node", "device_sm")
_SM_NUMBER = re.compile(r"sm_?\d")
_MAX_IMPORTS = 4
_MAX_CALLS = 4


def asks(text: str) -> bool:
    """Whether a text speaks of the GPU or of the launch."""
    lowered = text.lower()
    return any(word in lowered for word in _ASKS) or bool(_SM_NUMBER.search(lowered))


class _Outline(NamedTuple):
    """What a file defines and imports, by name: the place of the first ``def``, and where the imports take it from."""

    definitions: dict[str, tuple[int, int, str]]  # start, end of the ``def NAME``, indentation
    imports: dict[str, list[str]]


@dataclass
class Tempers:
    """Answers for the functions of a program's texts; each is worked out once."""

    texts: Mapping[str, str]
    _outlines: dict[str, _Outline] = field(default_factory=dict)
    _known: dict[tuple[str, str], tuple[bool, bool]] = field(default_factory=dict)

    def refuses(self, rel: str, name: str) -> bool:
        """Whether the text of a function, and of what it calls, both raises and asks about the GPU."""
        raises, asks_ = self._temper(rel, name, 0)
        return raises and asks_

    def _temper(self, rel: str, name: str, depth: int) -> tuple[bool, bool]:
        key = (rel, name)
        if key not in self._known:
            self._known[key] = (False, False)
            where, body = self._definition(rel, name, 0)
            found = bool(_RAISES.search(body)), asks(body)
            if depth < _MAX_CALLS and not all(found):
                for called in dict.fromkeys(_CALLED.findall(body)):
                    if called != name and not all(found):
                        more = self._temper(where, called, depth + 1)
                        found = found[0] or more[0], found[1] or more[1]
            self._known[key] = found
        return self._known[key]

    def _definition(self, rel: str, name: str, imports: int) -> tuple[str, str]:
        """The file and text of a function's definition, through a few imports; empty where there is none."""
        if rel not in self.texts or imports > _MAX_IMPORTS:
            return rel, ""
        outline = self._outline(rel)
        if name in outline.definitions:
            return rel, self._body(self.texts[rel], *outline.definitions[name])
        for source in outline.imports.get(name, ()):
            found = self._file(_absolute(rel, source))
            if found and found != rel:
                return self._definition(found, name, imports + 1)
        return rel, ""

    @staticmethod
    def _body(text: str, start: int, named: int, indent: str) -> str:
        """A definition's text: to the next line that is indented no deeper, brackets that are still open apart."""
        leaves = re.compile(rf"^(?!{indent}[ \t])(?=[ \t]*[^\s)#])", re.M)
        end = leaves.search(text, text.find("\n", named) + 1)
        while end and text.count("(", named, end.start()) > text.count(")", named, end.start()):
            end = leaves.search(text, end.end() + 1)
        return text[start : end.start() if end else len(text)]

    def _outline(self, rel: str) -> _Outline:
        if rel not in self._outlines:
            text = self.texts[rel]
            definitions: dict[str, tuple[int, int, str]] = {}
            for match in _DEFINITIONS.finditer(text):
                definitions.setdefault(match.group(2), (match.start(), match.end(), match.group(1)))
            imports: dict[str, list[str]] = {}
            for source, names in _IMPORTS.findall(text):
                for name in _WORDS.findall(names):
                    imports.setdefault(name, []).append(source)
            self._outlines[rel] = _Outline(definitions, imports)
        return self._outlines[rel]

    def _file(self, name: str) -> str:
        path = name.replace(".", "/")
        return next((rel for rel in (f"{path}.py", f"{path}/__init__.py") if rel in self.texts), "")


def _absolute(rel: str, source: str) -> str:
    """The dotted name that an import in a file takes from, its leading dots resolved."""
    name = source.lstrip(".")
    level = len(source) - len(name)
    if not level:
        return source
    base = rel.removesuffix(".py").split("/")[:-1]
    base = base[: len(base) - (level - 1)]
    return ".".join([*base, *([name] if name else [])])
