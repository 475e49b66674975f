"""Which SGLang a Python interpreter would run, and the flags that it declares. Also a program for that interpreter.

Standard library alone, so that any interpreter can run this file; SGLang's source is read, never imported (that takes
ten seconds and may need a GPU).
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import json
import sys
from collections.abc import Iterable
from pathlib import Path


def declared_flags(sources: Iterable[str]) -> set[str]:
    """Command-line flags in the texts of ``server_args.py`` and of the modules in ``arg_groups/``.

    To 0.5.13 each flag is a string in a call; since then most follow from an annotated field, ``name: A[type, ...]``,
    unless that says ``no_cli``. One whose action is ``BooleanOptionalAction`` can be negated: ``--no-name``.
    """
    flags = set()
    for source in sources:
        tree = ast.parse(source)
        flags |= _flags_in(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _is_negatable(node):
                flags |= set(map(_negated, _flags_in(node)))
            elif (
                isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_argument(node.annotation)
            ):
                flag = "--" + node.target.id.replace("_", "-")
                calls = [each for each in ast.walk(node.annotation) if isinstance(each, ast.Call)]
                flags |= {flag, _negated(flag)} if any(map(_is_negatable, calls)) else {flag}
    return flags


def _flags_in(tree: ast.AST) -> set[str]:
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if text.startswith("--") and text[2:].replace("-", "").isalnum()}


def _is_negatable(call: ast.Call) -> bool:
    return any(word.arg == "action" and "BooleanOptionalAction" in ast.unparse(word.value) for word in call.keywords)


def _negated(flag: str) -> str:
    return "--no-" + flag[2:]


def _is_argument(annotation: ast.expr) -> bool:
    is_a = (
        isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name) and annotation.value.id == "A"
    )
    return is_a and not any(isinstance(node, ast.keyword) and node.arg == "no_cli" for node in ast.walk(annotation))


def main() -> None:
    """Print ``{"version", "folder", "flags"}`` as JSON; exit 3 where there is no SGLang."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        sys.exit(3)
    folder = Path(next(iter(spec.submodule_search_locations)))
    files = [folder / "srt" / "server_args.py", *sorted((folder / "srt" / "arg_groups").rglob("*.py"))]
    flags = declared_flags(file.read_text(encoding="utf-8") for file in files if file.exists())
    print(json.dumps({"version": importlib.metadata.version("sglang"), "folder": str(folder), "flags": sorted(flags)}))


if __name__ == "__main__":
    sys.path.pop(0)  # this file's own folder: nothing in it may stand in for a module of the same name
    main()
