"""The change made with the real reader, on a small SGLang whose gates are written in many ways."""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from breakeven import fusion, gates
from tests.gates_miniature import (
    FORMS,
    PREDICATES,
    TERMS,
    Miniature,
    all_of,
    conditional_expression,
    conjunction,
    de_morgan,
    flag_variable,
    one_line,
)

MODEL = "DeepseekV3ForCausalLM"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def verdicts(root: Path) -> dict[str, tuple[str, str]]:
    reading = gates.Reading.of(str(root), str(root))
    judged = {arch: reading.judge(gates.make_context(arch, MODEL)) for arch in gates.ARCHS}
    return {arch: (verdict["verdict"], verdict["auto_enabled"]) for arch, verdict in judged.items()}


forms = st.builds(
    Miniature,
    order=st.permutations(range(len(TERMS))),
    form=st.integers(0, len(FORMS) - 1),
    predicates=st.sampled_from(sorted(PREDICATES)),
    gate_file=st.sampled_from(["layers/communicator.py", "distributed/deep/gate.py"]),
    decoys=st.booleans(),
)


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(miniature=forms)
def test_either_it_opens_the_gates_and_nothing_else_moves_or_it_refuses_and_nothing_is_written(
    miniature: Miniature,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = miniature.write(Path(folder))
        source, before = contents(root), verdicts(root)
        change = fusion.patch("sm120", str(root), str(root), mode="in-place")
        if change["status"] == "changed":
            opened = {arch: ("runs", before[arch][1]) for arch in ("sm120", "sm121")}
            assert verdicts(root) == before | opened
            for file in change["files"]:
                ast.parse((root / file["file"]).read_bytes())
            assert fusion.revert(root)["status"] == "reverted"
        else:
            assert (change["status"], bool(change["reasons"])) == ("refused", True)
        assert contents(root) == source


OPENED = [conjunction, one_line, de_morgan, flag_variable, conditional_expression, all_of]
"""The ways in which a gate asks in one expression; where it is taken apart, the change refuses and says where."""


@pytest.mark.parametrize("form", OPENED)
def test_a_gate_that_asks_in_one_expression_is_opened(form: Callable[[list[str]], str], tmp_path: Path) -> None:
    root = str(Miniature(form=FORMS.index(form)).write(tmp_path))
    change = fusion.patch("sm120", root, root, dry_run=True)
    assert (change["status"], change["verdict_after"]) == ("changed", "runs"), change["reasons"]
    assert change["proof"][0]["detail"].startswith("sm120: denied-by-sglang to runs; sm121: denied-by-sglang to runs")


@pytest.mark.parametrize("form", [form for form in FORMS if form not in OPENED])
def test_a_gate_that_is_taken_apart_is_refused_with_its_place(form: Callable[[list[str]], str], tmp_path: Path) -> None:
    root = str(Miniature(form=FORMS.index(form)).write(tmp_path))
    change = fusion.patch("sm120", root, root, dry_run=True)
    assert change["status"] == "refused"
    assert "is not as expected: sglang/srt/layers/" in change["reasons"][0]
