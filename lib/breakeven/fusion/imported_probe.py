"""Run in a fresh Python with an overlay on PYTHONPATH: do its modules import, and do their gates let the GPU through?

``python imported_probe.py RECORD MAJOR MINOR`` imports the changed modules as they would be on this machine, then asks
their gates once more while torch pretends to see a GPU of that compute capability, and again for capability 8.9, which
no release admits. Prints one JSON object. Standard library, torch and sglang only: it runs in the server's Python.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

CONTROL = (8, 9)
PURE = (ast.Call, ast.Attribute, ast.Name, ast.BoolOp, ast.UnaryOp, ast.boolop, ast.unaryop, ast.expr_context)
ASKED_FOR = SimpleNamespace(flashinfer_allreduce_fusion_backend="auto", enable_flashinfer_allreduce_fusion=True)
SWITCHED_ON: dict[str, Callable[[], Any]] = {
    "get_exec": lambda: SimpleNamespace(comm=ASKED_FOR),
    "get_server_args": lambda: ASKED_FOR,
    "get_global_server_args": lambda: ASKED_FOR,
    "is_dp_attention_enabled": lambda: False,
}


def main(record_file: str, major: str, minor: str) -> None:
    """Print what was imported from where, and what the gates answer for the GPU and for the control."""
    record = json.loads(Path(record_file).read_text(encoding="utf-8"))
    modules = {item["file"]: importlib.import_module(item["module"]) for item in record["files"]}
    report: dict[str, Any] = {"imported": {module.__name__: module.__file__ for module in modules.values()}}
    for name, capability in (("admitted", (int(major), int(minor))), ("control", CONTROL)):
        with _pretended_gpu(capability), _fusion_asked_for(modules.values()):
            report[name] = [answer for edit in record["edits"] for answer in _ask(modules[edit["file"]], edit)]
    print(json.dumps(report))


def _ask(module: ModuleType, edit: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What a changed condition says, and what its function says where one number or one name is all that it takes."""
    function = getattr(module, edit["symbol"], None)
    if not inspect.isfunction(function):
        return
    with contextlib.suppress(SyntaxError):  # a statement, such as a preflight's, is no condition
        condition = compile(edit["after"], "<gate>", "eval")
        yield {"asked": edit["after"], **_answer(partial(eval, condition, vars(module)))}
        for argument in _only_argument(function):
            yield {"asked": f"{edit['symbol']}({argument!r})", **_answer(partial(function, argument))}


def _answer(question: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"answer": question(), "raised": None}
    except Exception as error:
        return {"answer": None, "raised": f"{type(error).__name__}: {error}"}


def _only_argument(function: Callable[..., Any]) -> list[Any]:
    """One token, or the backend ``auto``, for a function that needs just that."""
    parameters = inspect.signature(function).parameters.values()
    needed = [parameter.annotation for parameter in parameters if parameter.default is parameter.empty]
    return [value for value in (1, "auto") if needed == [type(value)]]


@contextlib.contextmanager
def _pretended_gpu(capability: tuple[int, int]) -> Iterator[None]:
    """torch as it looks on a machine with one GPU of this capability; SGLang's cached answers are forgotten."""
    import torch
    from sglang.srt import utils

    for question in vars(sys.modules.get("sglang.srt.utils.common", utils)).values():
        if hasattr(question, "cache_clear"):
            question.cache_clear()
    with (
        mock.patch.object(torch.cuda, "is_available", lambda: True),
        mock.patch.object(torch.cuda, "device_count", lambda: 1),
        mock.patch.object(torch.cuda, "get_device_capability", lambda *_: capability),
        mock.patch.object(torch.version, "cuda", torch.version.cuda or "13.0"),
    ):
        yield


@contextlib.contextmanager
def _fusion_asked_for(modules: Iterable[ModuleType]) -> Iterator[None]:
    """The modules as in a server that was started with fusion; what they found out at import is found out again."""
    with contextlib.ExitStack() as stack:
        for module in modules:
            for name in SWITCHED_ON.keys() & vars(module).keys():
                stack.enter_context(mock.patch.object(module, name, SWITCHED_ON[name]))
            for line in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body:
                if isinstance(line, ast.Assign) and all(_is_pure(node) for node in ast.walk(line.value)):
                    exec(compile(ast.Module([line], []), "<top>", "exec"), vars(module))
        yield


def _is_pure(node: ast.AST) -> bool:
    return isinstance(node, PURE) and not (isinstance(node, ast.Call) and (node.args or node.keywords))


if __name__ == "__main__":
    main(*sys.argv[1:])
