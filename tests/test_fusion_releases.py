"""The change on released sources of SGLang, read with the real reader (each release is fetched once into the cache)."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from breakeven import fusion, gates, sources
from breakeven.gates import ARCHS

pytestmark = pytest.mark.releases

RELEASES = [("0.5.8", "pypi:0.7.2"), ("0.5.15", "pypi:0.7.2"), ("0.5.18", None), ("0.5.21", None), ("0.5.23", None)]
"""Each with the FlashInfer to name where the pinned one has no kernel for SM12x."""


@pytest.fixture
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a release's source that a test may change."""
    return shutil.copytree(sources.open_source("sglang", f"pypi:{request.param}").root, tmp_path / "site")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def verdicts(root: Path, flashinfer: str | None) -> dict[str, str]:
    """What the reader says of the files as they lie there now."""
    reading = gates.Reading.of(str(root), flashinfer)
    return {arch: reading.judge(gates.make_context(arch))["verdict"] for arch in ARCHS}


@pytest.mark.parametrize(("copy", "flashinfer"), RELEASES, indirect=["copy"])
def test_sm120_and_sm121_run_after_the_change_nothing_else_moves_and_revert_restores_every_byte(
    copy: Path, flashinfer: str | None
) -> None:
    source, before = contents(copy), verdicts(copy, flashinfer)
    change = fusion.patch("sm120", str(copy), flashinfer, mode="in-place")
    assert change["status"] == "changed", change["reasons"]
    assert verdicts(copy, flashinfer) == before | {"sm120": "runs", "sm121": "runs"}
    assert before["sm120"] == before["sm121"] == "denied-by-sglang"
    for file in change["files"]:
        ast.parse((copy / file["file"]).read_bytes())
    if change["sglang"]["version"] != "0.5.8":  # the preflight came later
        check_preflight(copy, change["edits"])
    assert fusion.patch("sm121", str(copy), flashinfer)["status"] == "already-open"
    assert fusion.revert(copy)["status"] == "reverted"
    assert contents(copy) == source


def check_preflight(copy: Path, edits: list[dict[str, Any]]) -> None:
    """A driver without multicast stops the preflight on every GPU but the admitted one."""
    (edit,) = (edit for edit in edits if "cuMulticastGetGranularity" in edit["before"])
    assert len(preflight_sizes(copy / edit["file"], edit["symbol"], is_sm120=True)(2, 2048, 4096)) == 3
    with pytest.raises(RuntimeError, match="cuMulticastGetGranularity failed"):
        preflight_sizes(copy / edit["file"], edit["symbol"], is_sm120=False)(2, 2048, 4096)


def preflight_sizes(file: Path, symbol: str, *, is_sm120: bool) -> Callable[[int, int, int], list[int]]:
    """The preflight's own function, out of a changed file, on a driver that has no multicast."""
    tree = ast.parse(file.read_bytes())
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == symbol)
    around = {
        "torch": SimpleNamespace(dtype=object, float32="float32"),
        "ceil_align": lambda size, to: -(-size // to) * to,
        "get_platform": lambda: SimpleNamespace(is_sm120=is_sm120),
        "is_sm120_supported": lambda: is_sm120,
    }
    exec(compile(ast.Module([function], []), str(file), "exec"), around)
    driver = mock.MagicMock()
    driver.cuMemGetAllocationGranularity.return_value = (driver.CUresult.CUDA_SUCCESS, 1 << 21)
    driver.cuMulticastGetGranularity.return_value = ("CUDA_ERROR_NOT_SUPPORTED", 0)

    def sizes(world_size: int, max_token_num: int, hidden_dim: int) -> list[int]:
        answer: list[int] = around[symbol](driver, driver.prop, world_size, max_token_num, hidden_dim, "bfloat16")
        return answer

    return sizes


@pytest.mark.parametrize(
    ("version", "after"),
    [("0.5.8", "crashes"), ("0.5.15", "denied-by-flashinfer")],  # from 0.5.14 on SGLang catches what FlashInfer raises
)
def test_with_the_pinned_flashinfer_it_refuses_and_force_overrides(version: str, after: str, tmp_path: Path) -> None:
    refused = fusion.patch("sm120", f"pypi:{version}", out=tmp_path / "overlay")
    assert refused["status"] == "refused"
    assert "no kernel for sm120" in refused["reasons"][0]
    assert list(tmp_path.iterdir()) == []
    forced = fusion.patch("sm120", f"pypi:{version}", out=tmp_path / "overlay", force=True)
    assert (forced["status"], forced["verdict_after"]) == ("changed", after)


def test_where_fusion_runs_already_nothing_is_changed(tmp_path: Path) -> None:
    change = fusion.patch("sm90", "pypi:0.5.23", out=tmp_path / "overlay")
    assert change["status"] == "already-open"
    assert list(tmp_path.iterdir()) == []


def test_a_release_without_the_feature_is_refused(tmp_path: Path) -> None:
    change = fusion.patch("sm120", "pypi:0.4.6.post5", out=tmp_path / "overlay")
    assert change["status"] == "refused"
    assert "no fused all-reduce" in change["reasons"][0]
