"""The gate reader on released sources, against verdicts that were found by reading them by hand.

Each release is fetched once into the cache, and parsed once here for all that is asked about it.
"""

from __future__ import annotations

import ast
import csv
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from breakeven.gates import Reading, atlas, make_context
from tests.gates_rewrites import REWRITES, renamed, rewritten

pytestmark = pytest.mark.releases

TRUTH = list(csv.DictReader((Path(__file__).parent / "data" / "gates_truth.csv").read_text().splitlines()))
DEEPSEEK = "DeepseekV3ForCausalLM"
H20, H200 = "NVIDIA H20", "NVIDIA H200"


@cache
def reading(release: str, flashinfer: str | None = None) -> Reading:
    return Reading.of(f"pypi:{release}", flashinfer)


def judge(
    release: str, arch: str, model: str = DEEPSEEK, flashinfer: str | None = None, **launch: Any
) -> dict[str, Any]:
    return reading(release, flashinfer).judge(make_context(arch, model, **launch))


@pytest.mark.parametrize("release", sorted({row["sglang"] for row in TRUTH}))
def test_released_sources_give_the_verdicts_that_are_known(release: str) -> None:
    for row in (row for row in TRUTH if row["sglang"] == release):
        verdict = judge(release, row["arch"], row["model_arch"])
        stated = {name: verdict[name] for name in ("auto_enabled", "admitted", "verdict")}
        assert stated == {name: row[name] for name in stated}, row
        assert str(verdict["patchable"]).lower() == row["patchable"], row
        if row["available"]:
            assert verdict["available"] == row["available"], row
            assert verdict["flashinfer"]["version"] == row["flashinfer"], row


@pytest.mark.parametrize("release", ["0.5.7", "0.5.8", "0.5.9", "0.5.10", "0.5.11", "0.5.12"])
def test_h20_is_not_switched_on_and_h200_is(release: str) -> None:
    assert judge(release, "sm90", device_name=H20)["auto_enabled"] == "no"
    assert judge(release, "sm90", device_name=H200)["auto_enabled"] == "yes"
    assert "device name" in judge(release, "sm90")["depends_on"]


@pytest.mark.parametrize("name", [H20, H200])
def test_from_0_5_13_on_the_name_no_longer_matters(name: str) -> None:
    for release in ("0.5.13", "0.5.15"):
        assert judge(release, "sm90", device_name=name)["auto_enabled"] == "yes"


@pytest.mark.parametrize(
    ("release", "arch", "auto_enabled", "admitted", "backend"),
    [
        ("0.5.3", "sm90", "no", "yes", "trtllm"),
        ("0.5.3", "sm100", "no", "yes", "trtllm"),
        ("0.5.5", "sm90", "no", "yes", "trtllm"),
        ("0.5.5", "sm100", "yes", "yes", "trtllm"),
        ("0.5.15", "sm90", "no", "no", None),
        ("0.5.15", "sm100", "yes", "yes", "mnnvl"),
        ("0.5.23", "sm90", "no", "no", None),
        ("0.5.23", "sm100", "yes", "yes", "mnnvl"),
    ],
)
def test_two_nodes(release: str, arch: str, auto_enabled: str, admitted: str, backend: str | None) -> None:
    verdict = judge(release, arch, tp=16, nnodes=2)
    found = {name: verdict[name] for name in ("auto_enabled", "admitted", "backend")}
    assert found == {"auto_enabled": auto_enabled, "admitted": admitted, "backend": backend}
    assert verdict["patchable"] is False


@pytest.mark.parametrize("arch", ["sm90", "sm100"])
@pytest.mark.parametrize("release", ["0.5.8", "0.5.15", "0.5.18", "0.5.23"])
def test_dp_attention_closes_it(release: str, arch: str) -> None:
    verdict = judge(release, arch, dp_attention=True)
    assert (verdict["auto_enabled"], verdict["admitted"], verdict["patchable"]) == ("no", "no", False)


@pytest.mark.parametrize(
    ("release", "answer"), [("0.5.8", "yes"), ("0.5.12", "no"), ("0.5.15", "no"), ("0.5.23", "no")]
)
def test_deterministic_inference_closes_it_from_0_5_12_on(release: str, answer: str) -> None:
    verdict = judge(release, "sm90", deterministic=True)
    assert (verdict["auto_enabled"], verdict["admitted"]) == (answer, answer)


@pytest.mark.parametrize(
    ("arch", "auto_enabled", "backend"), [("sm90", "no", "trtllm"), ("sm100", "yes", "cutedsl"), ("sm120", "no", None)]
)
@pytest.mark.parametrize("model", ["MiMoV2ForCausalLM", "MiMoV2FlashForCausalLM"])
def test_mimo_takes_cutedsl_on_sm100_alone(model: str, arch: str, auto_enabled: str, backend: str | None) -> None:
    verdict = judge("0.5.23", arch, model, tp=4)
    assert (verdict["auto_enabled"], verdict["backend"]) == (auto_enabled, backend)


@pytest.mark.parametrize(
    ("arch", "tp", "answer"), [("sm100", 4, "depends"), ("sm100", 2, "yes"), ("sm100", 8, "yes"), ("sm90", 4, "yes")]
)
def test_deepseek_v4_at_tp4_depends_on_whether_it_is_4_1(arch: str, tp: int, answer: str) -> None:
    verdict = judge("0.5.23", arch, "DeepseekV4ForCausalLM", tp=tp)
    assert verdict["auto_enabled"] == answer
    asks = [text for gate in verdict["gates"] if "auto" in gate["id"] for text in gate["depends_on"]]
    assert any("model_type" in text for text in asks) is (answer == "depends")


@pytest.mark.parametrize("release", ["0.5.14", "0.5.15", "0.5.16", "0.5.19", "0.5.23"])
def test_a_check_of_other_settings_does_not_switch_gpt_oss_off(release: str) -> None:
    assert judge(release, "sm100", "GptOssForCausalLM")["auto_enabled"] == "yes"


@pytest.mark.parametrize(
    ("release", "option"),
    [
        ("0.4.9", "--enable-flashinfer-allreduce-fusion"),
        ("0.5.12", "--enable-flashinfer-allreduce-fusion"),
        ("0.5.14", "--flashinfer-allreduce-fusion-backend auto"),
        ("0.5.23", "--flashinfer-allreduce-fusion-backend auto"),
    ],
)
def test_the_flag_of_each_release(release: str, option: str) -> None:
    assert judge(release, "sm100")["option"] == option


@pytest.mark.parametrize(
    ("release", "flashinfer", "arch", "available", "verdict", "patchable"),
    [
        ("0.5.8", "0.7.2", "sm120", "yes", "denied-by-sglang", True),
        ("0.5.15", "0.7.2", "sm120", "yes", "denied-by-sglang", True),
        ("0.5.23", "0.6.16", "sm120", "no", "denied-by-both", False),
        ("0.5.23", "0.6.17", "sm121", "yes", "denied-by-sglang", True),
        ("0.5.7", "0.7.2", "sm120", "yes", "runs", False),
        ("0.5.8", "0.2.7.post1", "sm90", "no", "crashes", False),
    ],
)
def test_a_flashinfer_that_is_given_by_hand(
    release: str, flashinfer: str, arch: str, available: str, verdict: str, patchable: bool
) -> None:
    answer = judge(release, arch, flashinfer=f"pypi:{flashinfer}")
    assert answer["flashinfer"]["version"] == flashinfer
    assert answer["flashinfer"]["why"] == "given"
    assert (answer["available"], answer["verdict"], answer["patchable"]) == (available, verdict, patchable)


def test_what_stands_in_front_of_fusion_on_0_5_21() -> None:
    at_tp2 = {item["name"]: item for item in judge("0.5.21", "sm120", tp=2)["in_front"]}
    assert [*at_tp2][:2] == ["ca", "pcie_ipc"]
    pcie = at_tp2["pcie_ipc"]
    assert (pcie["switch"], pcie["kernels"], pcie["shadowed_by"]) == ("SGLANG_ENABLE_PCIE_IPC_ALLREDUCE", "no", "ca")
    at_tp8 = {item["name"]: item for item in judge("0.5.23", "sm120", tp=8)["in_front"]}
    assert (at_tp8["pcie_ipc"]["kernels"], at_tp8["pcie_ipc"]["shadowed_by"]) == ("yes", None)


def test_the_atlas_says_what_the_reader_says_and_why_a_release_is_missing(tmp_path: Path) -> None:
    rows = atlas(["sm90", "sm120"], ["0.5.23", "99.0"])
    assert [(row["release"], row["arch"], row["verdict"]) for row in rows] == [
        ("0.5.23", "sm90", "runs"),
        ("0.5.23", "sm120", "denied-by-sglang"),
        ("99.0", "sm90", "unknown"),
        ("99.0", "sm120", "unknown"),
    ]
    assert "no release 99.0" in rows[2]["reason"]


def settled(verdict: dict[str, Any]) -> tuple[str, bool]:
    return verdict["verdict"], verdict["patchable"]


@pytest.mark.parametrize("how", REWRITES)
@pytest.mark.parametrize("release", ["0.5.8", "0.5.15", "0.5.23"])
def test_gates_that_are_written_otherwise_are_read_right_or_called_unknown(
    release: str, how: type[ast.NodeTransformer]
) -> None:
    before = {arch: judge(release, arch) for arch in ("sm90", "sm120")}
    gates = before["sm120"]["gates"]
    files = sorted({gate["file"] for gate in gates if gate["package"] == "sglang"})
    other = rewritten(reading(release), files, how)
    for arch, verdict in before.items():
        again = other.judge(make_context(arch, DEEPSEEK))
        assert settled(again) in (settled(verdict), ("unknown", False))


@pytest.mark.parametrize("release", ["0.5.8", "0.5.15", "0.5.23"])
def test_gates_that_go_by_other_names_are_read_right_or_called_unknown(release: str) -> None:
    before = {arch: judge(release, arch) for arch in ("sm90", "sm120")}
    closed = [gate for gate in before["sm120"]["gates"] if gate["id"].startswith("sglang.runtime")]
    for name in {gate["symbol"].rpartition(".")[2] for gate in closed} | {before["sm120"]["flag"]}:
        other = renamed(reading(release), name, "quite_another_name")
        for arch, verdict in before.items():
            assert settled(other.judge(make_context(arch, DEEPSEEK))) in (settled(verdict), ("unknown", False)), name
