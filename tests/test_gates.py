"""The gate reader: right on the plain form of the gates, and never wrong on any other."""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from breakeven.errors import UserError
from breakeven.gates import Reading, atlas, explain, read_gates, remedies
from tests.gates_miniature import FORMS, PREDICATES, TERMS, Miniature

MODEL = "DeepseekV3ForCausalLM"
EXPECTED = {
    "sm80": "denied-by-both",
    "sm90": "runs",
    "sm100": "runs",
    "sm110": "denied-by-both",
    "sm120": "denied-by-sglang",
}


def read(root: Path, arch: str, **circumstances: Any) -> dict[str, Any]:
    return read_gates(arch, str(root), str(root), **{"model_arch": MODEL, **circumstances})


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return Miniature().write(tmp_path)


@pytest.mark.parametrize("arch", EXPECTED)
def test_the_plain_form_gives_the_known_verdict(plain: Path, arch: str) -> None:
    assert read(plain, arch)["verdict"] == EXPECTED[arch]


def test_each_closed_gate_is_quoted_with_its_place(plain: Path) -> None:
    verdict = read(plain, "sm120")
    closed = {(gate["symbol"], gate["expression"]) for gate in verdict["gates"] if gate["result"] == "closed"}
    assert ("fusion_applies", "_is_sm90 or _is_sm100") in closed
    assert ("resolve_backend", "not (is_sm90() or is_sm100())") in closed
    assert ("ServerArgs.adjust", "is_sm90() or is_sm100()") in closed
    for gate in verdict["gates"]:
        line = (plain / gate["file"]).read_text().splitlines()[gate["line"] - 1]
        assert gate["expression"].split()[0].strip("([") in line
    assert verdict["patchable"] is True


def test_the_flag_is_found_whatever_it_is_called(tmp_path: Path) -> None:
    verdict = read(Miniature(flag="turbo_norm").write(tmp_path), "sm120")
    assert verdict["flag"] == "turbo_norm"
    assert verdict["verdict"] in ("denied-by-sglang", "unknown")


def test_flashinfer_is_judged_by_the_module_on_the_way_not_by_its_neighbours(tmp_path: Path) -> None:
    verdict = read(Miniature(majors="[9, 10]").write(tmp_path), "sm120")
    assert (verdict["available"], verdict["verdict"]) == ("no", "denied-by-both")
    assert "major versions [9, 10]" in verdict["flashinfer"]["words"]


def test_a_path_without_a_gpu_test_crashes_where_flashinfer_refuses(tmp_path: Path) -> None:
    root = Miniature(majors="[9, 10]", order=[1, 2, 3, 4, 5]).write(tmp_path)
    ops = root / "sglang/srt/layers/fusion_ops.py"
    ops.write_text(ops.read_text().replace("if not (is_sm90() or is_sm100()):", "if server_args is None:"))
    assert read(root, "sm120")["verdict"] == "crashes"


def test_circumstances_close_it_or_not(plain: Path) -> None:
    assert read(plain, "sm90", dp_attention=True)["admitted"] == "no"
    assert read(plain, "sm90", model_arch="LlamaForCausalLM")["auto_enabled"] == "no"
    assert read(plain, "sm90", model_arch=None)["auto_enabled"] == "depends"
    assert read(plain, "sm90")["auto_enabled"] == "yes"


def test_a_source_with_neither_the_setting_nor_the_kernel_s_call_is_absent(tmp_path: Path) -> None:
    root = Miniature(flag="turbo_norm").write(tmp_path)
    (root / "sglang/srt/layers/fusion_ops.py").write_text("def fused_norm(x, residual, weight):\n    return None\n")
    verdict = read(root, "sm90")
    assert (verdict["verdict"], verdict["gates"]) == ("absent", [])
    assert "no fused all-reduce" in explain(verdict)


def test_a_setting_without_the_kernel_s_call_is_unknown_and_quoted(plain: Path) -> None:
    (plain / "sglang/srt/layers/fusion_ops.py").write_text("def fused_norm(x, residual, weight):\n    return None\n")
    verdict = read(plain, "sm90")
    assert (verdict["verdict"], verdict["patchable"]) == ("unknown", False)
    assert "flashinfer_allreduce_fusion_backend" in verdict["gates"][0]["expression"]
    assert "Not understood: server_args.py:" in explain(verdict)


def test_a_kernel_s_call_without_a_setting_that_leads_there_is_unknown_and_quoted(plain: Path) -> None:
    settings = plain / "sglang/srt/server_args.py"
    settings.write_text(settings.read_text().replace("tp_size", "gpus"))
    verdict = read(plain, "sm90")
    assert verdict["verdict"] == "unknown"
    assert [gate["symbol"] for gate in verdict["gates"]] == ["fused_norm"]


def test_a_flashinfer_whose_kernel_goes_by_another_name_is_unknown_and_quoted(plain: Path) -> None:
    for path in (plain / "flashinfer/comm").glob("*.py"):
        path.write_text(path.read_text().replace("trtllm_allreduce_fusion", "allreduce_fusion_v2"))
    verdict = read(plain, "sm90")
    assert (verdict["available"], verdict["verdict"]) == ("unknown", "unknown")
    assert "allreduce_fusion_v2" in [gate["expression"] for gate in verdict["gates"]]


def test_a_flashinfer_without_any_such_kernel_has_none(plain: Path) -> None:
    (plain / "flashinfer/comm/trtllm_ar.py").write_text("def create_ws():\n    return None\n")
    verdict = read(plain, "sm90")
    assert verdict["available"] == "no"
    assert verdict["verdict"] != "runs"


def test_a_condition_that_is_not_understood_is_unknown_with_its_text(plain: Path) -> None:
    gate = plain / "sglang/srt/layers/communicator.py"
    gate.write_text(gate.read_text().replace("(_is_sm90 or _is_sm100)", "torch.cuda.get_arch_secret() and _is_sm90"))
    verdict = read(plain, "sm90")
    assert verdict["verdict"] == "unknown"


def test_a_syntax_error_is_named_with_its_line(plain: Path) -> None:
    path = plain / "sglang/srt/layers/fusion_ops.py"
    path.write_text(path.read_text() + "\ndef broken(:\n")
    with pytest.raises(UserError, match=r"fusion_ops\.py:\d+ is no valid Python"):
        read(plain, "sm90")


@pytest.mark.parametrize(
    ("arch", "circumstances", "words"),
    [("h100", {}, "no GPU architecture"), ("sm90", {"tp": 0}, "no count"), ("sm90", {"tp": 3, "nnodes": 2}, "spread")],
)
def test_bad_questions_are_refused(plain: Path, arch: str, circumstances: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        read(plain, arch, **circumstances)


def test_the_verdict_in_words_names_the_deciding_line(plain: Path) -> None:
    assert "communicator.py" in explain(read(plain, "sm120"))


mutations = st.builds(
    Miniature,
    order=st.permutations(range(len(TERMS))),
    form=st.integers(0, len(FORMS) - 1),
    predicates=st.sampled_from(sorted(PREDICATES)),
    gate=st.sampled_from(["fusion_applies", "zz", "apply_flashinfer_allreduce_fusion"]),
    sm90=st.sampled_from(["_is_sm90", "_hopper", "q"]),
    gate_file=st.sampled_from(["layers/communicator.py", "layers/blocks_gate.py", "distributed/deep/gate.py"]),
    decoys=st.booleans(),
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(miniature=mutations, arch=st.sampled_from(sorted(EXPECTED)))
def test_rewritten_gates_are_read_right_or_called_unknown(miniature: Miniature, arch: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        verdict = read(miniature.write(Path(folder)), arch)
    assert verdict["verdict"] in (EXPECTED[arch], "unknown")


def test_the_atlas_reads_a_release_once_and_again_when_the_reader_itself_changes(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("breakeven.gates.atlas")
    read_for: list[str] = []

    class Miniatures(Reading):
        @classmethod
        def of(cls, sglang: str, flashinfer: str | None = None, *, cache: Path | None = None) -> Reading:
            read_for.append(sglang)
            return Reading.of(str(plain), str(plain))

    monkeypatch.setattr(module, "Reading", Miniatures)
    asked = {"archs": ["sm90", "sm120"], "releases": ["1.0", "2.0"], "cache": tmp_path / "cache"}
    rows = atlas(**asked)
    assert [row["verdict"] for row in rows] == ["runs", "denied-by-sglang"] * 2
    assert atlas(**asked) == rows
    assert read_for == ["pypi:1.0", "pypi:2.0"]
    assert [row["verdict"] for row in atlas(**asked, model_arch="LlamaForCausalLM", tp=1)] != []
    assert len(read_for) == 4, "another launch is another question"
    for file in (tmp_path / "cache").rglob("*.json"):
        file.write_text("{")
    assert atlas(**asked) == rows, "a damaged entry is read again"
    monkeypatch.setattr(module, "reader_sha256", lambda: "another reader")
    atlas(**asked)
    assert len(read_for) == 8


def test_on_one_gpu_the_words_do_not_blame_the_architecture(plain: Path) -> None:
    verdict = read(plain, "sm120") | {"context": {"tp": 1}, "patchable": False}
    assert verdict["verdict"] == "denied-by-sglang"
    assert "not used at TP 1" in explain(verdict) and "A change to SGLang alone" not in explain(verdict)
    assert remedies(verdict) == ["The server would have to span at least two GPUs (TP 2)."]
