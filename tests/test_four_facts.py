"""Requested, admitted, available, active: each from its own evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from breakeven.launch.four_facts import ARM_COLUMNS, COLUMNS, NOT_USED, backend_of, four_facts, of_arms

GATES = {"arch": "sm120", "admitted": "no", "available": "yes"}
ASKED = ["python", "-m", "sglang.launch_server", "--flashinfer-allreduce-fusion-backend", "trtllm", "--tp-size", "2"]
ON = "[2026-03-01 12:00:00 TP0] FlashInfer AllReduce Fusion enabled and workspace initialized: world_size=2"
OFF = "[2026-03-01 12:00:00 TP0] FlashInfer allreduce fusion disabled globally because no multicast"


def test_on_one_gpu_nothing_is_used_whatever_is_asked() -> None:
    fusion, backend = four_facts(ASKED, {"tp": 1}, GATES, [], None, None)
    assert fusion["requested"] == "yes: trtllm" and fusion["admitted"] == "no" and fusion["available"] == "yes"
    assert fusion["active"] == backend["active"] == backend["admitted"] == NOT_USED
    assert set(fusion) == set(backend) == set(COLUMNS)


@pytest.mark.parametrize(
    ("command", "effective", "requested"),
    [
        (ASKED, {}, "yes: trtllm"),
        (["--enable-flashinfer-allreduce-fusion"], {}, "yes"),
        (["--enforce-disable-flashinfer-allreduce-fusion"], {"fusion_backend": "trtllm"}, "off"),
        ([], {"fusion_backend": "trtllm"}, "by SGLang itself: trtllm"),
        ([], {"fusion_requested": False}, "no"),
    ],
)
def test_what_is_requested_is_in_the_flags(command: list[str], effective: dict[str, object], requested: str) -> None:
    assert four_facts(command, {"tp": 2, **effective}, None, [], None, None)[0]["requested"] == requested


def test_the_servers_own_word_goes_before_the_gates_of_the_source() -> None:
    assert four_facts(ASKED, {"tp": 2}, GATES, [ON], None, None)[0]["admitted"] == "yes"
    denied = four_facts(ASKED, {"tp": 2}, {**GATES, "admitted": "yes"}, [OFF], None, None)[0]
    assert denied["admitted"].startswith("no: FlashInfer allreduce fusion disabled globally")
    assert four_facts([], {"tp": 2}, None, [], None, None)[0]["admitted"] == "not known"


RING = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
LAMPORT = "allreduce_fusion_kernel_oneshot_lamport"
PUSH = "void all_reduce_kernel<AllReducePushImpl<__nv_bfloat16, 2u, true>>"


@pytest.mark.parametrize(
    ("kernels", "fused", "fusion", "backend"),
    [
        (None, None, "not traced", "not traced"),
        ({}, [], "no all-reduce in the trace", "no all-reduce in the trace"),
        ({RING: 291}, [], "no: 97 other all-reduces in a target forward", "NCCL: 97 per target forward"),
        (
            {PUSH: 6, LAMPORT: 285},
            [LAMPORT],
            f"yes: 95 of 97 all-reduces of a target forward; {LAMPORT}",
            "FlashInfer: 95 per target forward, custom: 2 per target forward",
        ),
    ],
)
def test_what_is_active_is_in_the_trace(
    kernels: dict[str, int] | None, fused: list[str] | None, fusion: str, backend: str
) -> None:
    seen = None if kernels is None else {"n": 3, "count": sum(kernels.values()) / 3, "ms": 0.3, "kernels": kernels}
    rows = four_facts(ASKED, {"tp": 2}, GATES, [], seen, fused)
    assert (rows[0]["active"], rows[1]["active"]) == (fusion, backend)


def test_every_arm_of_a_sweep_has_facts_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "b.log").write_text(ON)
    seen = {"n": 3, "count": 97.0, "ms": 0.3, "kernels": {LAMPORT: 285, PUSH: 6}}
    alike = {"status": "ok", "effective": {"tp": 2}}
    rows = [
        {"arm": "off", "log": "a.log", "command": ["--enforce-disable-flashinfer-allreduce-fusion"], **alike},
        {"arm": "on", "log": "none.log", "command": ASKED, **alike},
        {"arm": "on", "log": "b.log", "command": ASKED, **alike, "profile": {"allreduce": seen, "fused": [LAMPORT]}},
        {"arm": "broken", "log": "c.log", "command": ASKED, "status": "failed", "failure": {}},
        {"arm": "alone", "log": "d.log", "command": [], "status": "ok", "effective": {"tp": 1}},
    ]
    found = {(row["arm"], row["of"]): row for row in of_arms(tmp_path, rows)}
    assert {arm for arm, _ in found} == {"off", "on"}  # what did not run or has nothing to reduce has no facts
    on, off = found["on", "fused all-reduce"], found["off", "fused all-reduce"]
    assert (on["requested"], on["admitted"]) == ("yes: trtllm", "yes") and on["active"].startswith("yes: 95 of 97")
    assert (off["requested"], off["active"]) == ("off", "not traced")
    assert set(on) == set(ARM_COLUMNS)


@pytest.mark.parametrize(
    ("kernel", "backend"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_TREE_LL(ncclDevKernelArgsStorage<4096ul>)", "NCCL"),
        ("void sglang::cross_device_reduce_1stage<__nv_bfloat16, 2>", "custom"),
        ("flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<...>", "FlashInfer"),
        ("multimem_all_reduce_kernel<c10::BFloat16>", "symmetric memory"),
        ("c10d::allreduce_", "Gloo"),
        ("some_all_reduce", "another"),
    ],
)
def test_a_kernel_tells_whose_it_is(kernel: str, backend: str) -> None:
    assert backend_of(kernel) == backend


def test_the_backend_that_the_server_names_is_admitted() -> None:
    said = "[2026-03-01 12:00:00 TP0] [AR] All-reduce call path: NCCL (custom AR disabled)"
    rows = four_facts(["--disable-custom-all-reduce"], {"tp": 2}, None, [said], None, None)
    assert rows[1]["admitted"] == "NCCL" and rows[1]["requested"] == "NCCL (custom off)"
    off = "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs."
    assert "NCCL: Custom allreduce is disabled" in four_facts([], {"tp": 4}, None, [off], None, None)[1]["admitted"]
