"""YAML that means what it looks like: what YAML 1.1 silently turns into something else is refused, with its line."""

from __future__ import annotations

import re
from typing import Any

import yaml

from breakeven.errors import UserError, one_line

_YAML_1_1 = (
    (re.compile(r"(?i)(y|n|yes|no|on|off)"), "a truth value", "write true or false, or quote it"),
    (re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?"), "a number in base 60", "quote it"),
    (re.compile(r"[-+]?0[0-9_]+"), "a number in base 8", "drop the leading zero, or quote it"),
    (re.compile(r"[-+]?([0-9]+[eE][-+]?[0-9]+|[0-9]*\.[0-9]*[eE][0-9]+)"), "text", "write it like 1.0e-3 or 1.0e+3"),
    (re.compile(r"\d{4}-\d{1,2}-\d{1,2}([Tt ].*)?"), "a date", "quote it"),
    (re.compile(r"~|(?i:null)|"), "nothing at all", "leave the line out to keep the default"),
)


def read(text: str, where: str) -> Any:
    """The value of a YAML text; ``where`` it stands begins every error line.

    Raises UserError for what is no YAML, and, with the line, for duplicate names and ambiguous scalars.
    """
    try:
        _refuse_ambiguous(yaml.compose(text, Loader=yaml.SafeLoader), where, ())
        return yaml.safe_load(text)
    except RecursionError:
        raise UserError(f"{where} is nested too deep to be read") from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:  # the latter for tags such as !!int x
        raise UserError(f"{where} is no YAML: {one_line(error)}") from None


def _refuse_ambiguous(node: yaml.Node | None, where: str, around: tuple[yaml.Node, ...]) -> None:
    """Walk the tree for unquoted scalars and names that do not mean what they look like; ``around`` are the nodes that
    hold this one."""
    if node is None:
        return
    place = f"{where}:{node.start_mark.line + 1}"
    if any(node is each for each in around):
        raise UserError(f"{place}: an alias (*) stands within its own anchor (&); write the value out")
    if isinstance(node, yaml.ScalarNode) and node.style is None:
        for pattern, meaning, advice in _YAML_1_1:
            if pattern.fullmatch(node.value):
                raise UserError(f"{place}: YAML reads an unquoted {node.value!r} as {meaning}; {advice}")
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            line = f"{where}:{key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise UserError(f"{line}: braces or brackets where a name is expected; quote them if they are text")
            if key.value in seen:
                raise UserError(f"{line}: {key.value!r} is set twice; keep one")
            seen.add(key.value)
            _refuse_ambiguous(key, where, (*around, node))
            _refuse_ambiguous(value, where, (*around, node))
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_ambiguous(item, where, (*around, node))
