"""The grades of proof that need no GPU: what a trace shows, and what FlashInfer's build says."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from breakeven.errors import UserError
from breakeven.fusion import all_grades, compiled, evidence, prove, prove_active, prove_compiled
from breakeven.fusion.grades import graded
from breakeven.gates.archs import capability, family

SPACE = "flashinfer::trtllm_allreduce_fusion::"
ONESHOT = (
    f"void {SPACE}allreduce_fusion_kernel_oneshot_lamport<({SPACE}AllReduceFusionPattern)1, __nv_bfloat16, 2, true, "
    f"true>({SPACE}AllReduceFusionParams<__nv_bfloat16>)"
)
PLAIN = ONESHOT.replace("Pattern)1", "Pattern)0")
TWOSHOT = (
    f"void {SPACE}allreduce_fusion_kernel_twoshot_sync<({SPACE}AllReduceFusionPattern)1, __nv_bfloat16, 8, true>"
    f"({SPACE}AllReduceFusionParams<__nv_bfloat16>, std::array<int, 8ul>, std::array<int, 8ul>)"
)
MNNVL = (
    "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<(unsigned char)4, __nv_bfloat16, true, "
    "(flashinfer::trtllm_mnnvl_allreduce::QuantType)0, float4>(...)"
)
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
NORM = "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)"


def trace(path: Path, *kernels: str) -> Path:
    """A trace as the profiler writes it: kernels, and a CPU operation that only names one."""
    events: list[dict[str, Any]] = [{"ph": "X", "cat": "kernel", "name": name, "dur": 5} for name in kernels]
    events.append({"ph": "X", "cat": "cpu_op", "name": ONESHOT, "dur": 9})
    text = json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
@pytest.mark.parametrize(("kernel", "backend"), [(ONESHOT, "trtllm"), (TWOSHOT, "trtllm"), (MNNVL, "mnnvl")])
def test_a_fused_kernel_in_a_trace_is_active(tmp_path: Path, name: str, kernel: str, backend: str) -> None:
    found = prove_active(trace(tmp_path / name, kernel, kernel, NCCL, NORM))
    assert found["proven"] is True
    assert found["fused"] == {backend: 2}
    assert found["other_all_reduces"] == {NCCL: 1}


def test_the_same_kernel_without_the_norm_is_not_fusion(tmp_path: Path) -> None:
    found = prove_active(trace(tmp_path / "trace.json", PLAIN, MNNVL.replace("true", "false"), NORM))
    assert found["proven"] is False
    assert sum(found["other_all_reduces"].values()) == 2


def test_a_trace_without_gpu_kernels_proves_nothing_either_way(tmp_path: Path) -> None:
    assert prove_active(trace(tmp_path / "trace.json"))["proven"] is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\x1f\x8b broken", b'{"traceEvents": 3}'])
def test_a_file_that_is_no_trace_is_bad_input(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "trace.json").write_bytes(content)
    with pytest.raises(UserError, match="no profiler trace"):
        prove_active(tmp_path / "trace.json")


@pytest.fixture
def flashinfer(tmp_path: Path) -> Path:
    """A FlashInfer that lists majors 9 and 12, and whose compiler is a few lines of Python."""
    package = tmp_path / "flashinfer-site" / "flashinfer"
    (package / "jit").mkdir(parents=True)
    (package / "comm").mkdir()
    for folder in (package, package / "jit", package / "comm"):
        (folder / "__init__.py").write_text("")
    (package / "version.py").write_text("__version__ = '9.9.9'\n")
    (package / "jit" / "comm.py").write_text(
        """
import os, pathlib

class Spec:
    def __init__(self, arch):
        self.arch = arch
        self.jit_library_path = pathlib.Path(os.environ["FLASHINFER_WORKSPACE_BASE"], "trtllm_comm.so")

    def build(self, verbose):
        print("[1/2] nvcc trtllm_allreduce_fusion.cu")
        flag = f"-gencode=arch=compute_{self.arch}f,code=sm_{self.arch}f"
        (self.jit_library_path.parent / "build.ninja").write_text(f"cuda_cflags = {flag}")
        self.jit_library_path.write_bytes(b"ELF")

def gen_trtllm_comm_module():
    major, minor = os.environ["FLASHINFER_CUDA_ARCH_LIST"].split(".")
    if int(major) not in (9, 12):
        raise RuntimeError("No supported CUDA architectures found for major versions [9, 12].")
    return Spec(major + minor)
"""
    )
    return package.parent


@pytest.fixture
def cuda_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CUDA toolkit of which only the version is asked."""
    home = tmp_path / "cuda"
    (home / "bin").mkdir(parents=True)
    (home / "include").mkdir()
    (home / "include" / "cuda_runtime.h").write_text("")
    (home / "bin" / "nvcc").write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    (home / "bin" / "nvcc").chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(home))
    return home


def test_a_build_that_works_is_proof_shows_its_progress_and_is_remembered(
    flashinfer: Path, cuda_home: Path, tmp_path: Path
) -> None:
    lines: list[str] = []
    first = prove_compiled("sm120", str(flashinfer), cache=tmp_path / "cache", progress=lines.append)
    assert (first["proven"], first["targets"], first["flashinfer"]) == (True, ["sm_120f"], "9.9.9")
    assert lines[0] == "[1/2] nvcc trtllm_allreduce_fusion.cu"
    again = prove_compiled("sm120", str(flashinfer), cache=tmp_path / "cache", progress=lines.append)
    assert again["remembered"] is True
    assert len(lines) == 2  # the build's line and its result, once


def test_without_a_build_only_what_is_remembered_counts(flashinfer: Path, cuda_home: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    asked = {"cache": tmp_path / "cache", "progress": lines.append}
    found = prove_compiled("sm120", str(flashinfer), build=False, **asked)  # type: ignore[arg-type]
    assert (found["proven"], lines) == (None, [])
    prove_compiled("sm120", str(flashinfer), **asked)  # type: ignore[arg-type]
    assert prove_compiled("sm120", str(flashinfer), build=False, **asked)["proven"] is True  # type: ignore[arg-type]


def test_all_grades_of_a_change_are_told_with_the_reason_where_one_was_not_tried(
    flashinfer: Path, cuda_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BREAKEVEN_CACHE", str(tmp_path / "cache"))
    change = {
        "status": "changed",
        "mode": "overlay",
        "path": str(tmp_path / "overlay"),
        "arch": "sm120",
        "sglang": {"origin": "pypi:0.5.23"},
        "flashinfer": {"origin": str(flashinfer)},
        "proof": all_grades([graded("static", True, ["read again"])]),
    }
    rows = {row["grade"]: (row["proven"], row["detail"]) for row in prove(change, progress=lambda line: None)}
    assert [*rows] == ["static", "imported", "compiled", "active"]
    assert rows["static"] == (True, "read again")
    assert rows["imported"] == (None, "it was made for pypi:0.5.23, which is not what this Python imports")
    assert rows["compiled"][0] is True
    assert rows["active"][0] is None and "takes a trace" in rows["active"][1]
    unwritten = prove(change | {"path": None})
    assert [row["proven"] for row in unwritten] == [True, None, None, None]


def test_a_build_that_flashinfer_refuses_is_told_in_its_own_words_and_not_remembered(
    flashinfer: Path, cuda_home: Path, tmp_path: Path
) -> None:
    for _ in range(2):
        found = prove_compiled("sm100", str(flashinfer), cache=tmp_path / "cache", progress=lambda line: None)
        assert found["proven"] is False
        assert found["remembered"] is False
        assert "No supported CUDA architectures found for major versions [9, 12]." in found["because"][0]


def test_without_nvcc_the_compile_proof_is_not_tried_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "find_cuda_home", lambda: None)
    found = prove_compiled("sm120")
    assert found["proven"] is None
    assert "no nvcc" in found["because"][0]


def test_nvcc_that_is_a_wrapper_away_from_its_headers_is_not_taken_for_a_toolkit(
    cuda_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wrappers" / "bin").mkdir(parents=True)
    (tmp_path / "wrappers" / "bin" / "nvcc").write_text("#!/bin/sh\n")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "wrappers"))
    assert compiled.find_cuda_home() != tmp_path / "wrappers"
    monkeypatch.setenv("CUDA_HOME", str(cuda_home))
    assert compiled.find_cuda_home() == cuda_home


@pytest.mark.parametrize(("arch", "expected"), [("sm90", (9, 0)), ("sm103", (10, 3)), ("sm121", (12, 1))])
def test_an_architecture_is_a_compute_capability(arch: str, expected: tuple[int, int]) -> None:
    assert capability(arch) == expected


def test_minor_versions_share_a_family() -> None:
    assert family("sm121") == family("sm120") == "sm120"


@pytest.mark.parametrize("arch", ["", "sm", "120", "blackwell", "sm9", "sm120x"])
def test_what_is_no_architecture_is_bad_input(arch: str) -> None:
    with pytest.raises(UserError, match="no GPU architecture"):
        capability(arch)


def test_every_public_report_is_labelled_and_says_its_caveat_and_source() -> None:
    reports = evidence()
    assert {row["for_or_against"] for row in reports} == {"for", "against", "neither"}
    for row in reports:
        assert row["label"] == "reported"
        assert row["caveat"] and row["setting"] and row["reported"]
        assert row["source"] is None or row["source"].startswith("https://")
