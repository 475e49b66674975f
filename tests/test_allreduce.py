"""The all-reduce bench: real ranks over gloo, a wrong sum caught, what takes the ranks down, rows and crossovers."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven import artifacts
from breakeven.collectives import allreduce, shown
from breakeven.collectives.allreduce import Setting
from breakeven.collectives.rows import ALLREDUCE, WITH_NORM, crossovers, fusion_saves, judged
from breakeven.config import ServerSettings
from breakeven.errors import UserError

pytestmark = pytest.mark.process

GLOO = Setting("gloo")
SMALL: dict[str, Any] = {"batches": (1, 2), "widths": (1, 4), "iterations": 5, "silent_s": 120.0}


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_gloo_is_measured_at_every_payload_and_its_sums_are_right(ranks: int, tmp_path: Path) -> None:
    result = allreduce.bench(64, ranks, tmp_path, settings=[GLOO], **SMALL)
    assert (result["ranks"], result["device"], result["backend"]) == (ranks, "cpu", "gloo")
    sizes = [128, 256, 512, 1024]
    assert [(row["operation"], row["bytes"]) for row in result["rows"]] == [
        (operation, size) for operation in (ALLREDUCE, WITH_NORM) for size in sizes
    ]
    for row in result["rows"]:
        assert row["status"] == "ok"
        assert row["error"] < 0.02 and (ranks == 1 or row["error"] > 0)  # bfloat16 rounds, and nothing else happens
        assert row["us_low"] <= row["us"] <= row["us_high"]
        assert row["graph"] is False
        assert row["verdict"] == "not-distinguishable" or abs(row["ratio"] - 1) > row["floor"]
    stored = artifacts.read_json(tmp_path / "allreduce.json")
    assert stored["rows"] == result["rows"]
    assert shown.findings(result)
    assert ranks > 1 or result["crossovers"] == []
    figure = shown.figure(result)
    assert "gloo" in figure.alt and ">0.125</text>" in figure.svg and "mathdefault" not in figure.svg


def test_what_is_wrong_fails_or_dies_is_a_row_and_the_rest_is_measured(tmp_path: Path) -> None:
    here = "tests.reducers"
    settings = [
        GLOO,
        Setting("half", f"{here}:HalfTheSum"),
        Setting("missing", f"{here}:NeedsAMissingPackage"),
        Setting("one rank fails", f"{here}:FailsOnOneRank"),
        Setting("killed", f"{here}:Killed"),
        Setting("gloo again"),
    ]
    result = allreduce.bench(64, 2, tmp_path, settings=settings, batches=(1,), widths=(1,), iterations=5)
    reasons = {row["setting"]: row["reason"] for row in result["rows"]}
    assert reasons["half"].startswith("wrong result")
    assert "No module named" in reasons["missing"]
    assert "on one rank" in reasons["one rank fails"]
    assert "SIGKILL" in reasons["killed"] or "killed" in reasons["killed"]
    assert reasons["gloo"] is None
    assert reasons["gloo again"] is None


def test_a_setting_with_variables_of_its_own_runs_in_processes_that_started_with_them(tmp_path: Path) -> None:
    reducer = "tests.reducers:NeedsAVariable"
    settings = [GLOO, Setting("without", reducer), Setting("with", reducer, env={"BREAKEVEN_TEST_VARIABLE": "1"})]
    said: list[str] = []
    result = allreduce.bench(
        64, 2, tmp_path, settings=settings, batches=(1,), widths=(1,), iterations=5, say=said.append
    )
    rows = {(row["setting"], row["operation"]): row for row in result["rows"]}
    assert "no variable" in rows["without", None]["reason"]
    assert rows["with", ALLREDUCE]["status"] == "ok"
    assert rows["with", ALLREDUCE]["ratio"] > 0
    assert [text.rpartition(": ")[2] for text in said] == ["gloo, without", "with", "gloo"]  # between two of A


def test_a_setting_that_hangs_is_ended(tmp_path: Path) -> None:
    settings = [GLOO, Setting("hangs", "tests.reducers:Hangs")]
    result = allreduce.bench(64, 2, tmp_path, settings=settings, batches=(1,), widths=(1,), iterations=5, silent_s=15.0)
    assert result["rows"][-1]["reason"].startswith("hang")


def test_ranks_that_have_measured_everything_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allreduce, "TEARDOWN_S", 0.5)
    settings = [GLOO, Setting("stays", "tests.reducers:NeverEnds")]
    result = allreduce.bench(
        64, 2, tmp_path, settings=settings, batches=(1,), widths=(1,), iterations=5, silent_s=400.0
    )
    assert [row["status"] for row in result["rows"]] == ["ok"] * 4


def test_a_reference_that_fails_is_no_result(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="wrong result"):
        allreduce.bench(64, 2, tmp_path, settings=[Setting("half", "tests.reducers:HalfTheSum")], **SMALL)
    assert not (tmp_path / "allreduce.json").exists()


def test_no_ranks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="allreduce_ranks is 0"):
        allreduce.bench(64, 0, tmp_path)


def test_the_width_of_a_model_is_found_or_its_absence_told(tmp_path: Path) -> None:
    def width(config: str) -> int:
        (tmp_path / "config.json").write_text(config)
        return allreduce.hidden_size(tmp_path)

    assert width('{"text_config": null, "hidden_size": 64}') == 64
    assert width('{"text_config": {"hidden_size": 32}, "hidden_size": 64}') == 32
    for config in ("{}", "[]", "7", '{"hidden_size": null}', '{"text_config": 3}', '{"text_config": {}}', "{"):
        with pytest.raises(UserError, match="gives no hidden_size"):
            width(config)


def test_why_there_is_no_bench_is_said_as_it_is(tmp_path: Path) -> None:
    def why(**values: Any) -> str | None:
        settings = ServerSettings(**values)
        reason = allreduce.why_not(settings)
        assert reason is None or allreduce.bench_of(settings, tmp_path) is None
        return reason

    assert "is 0" in str(why())
    for host in ("box", "attach:http://127.0.0.1:30000"):
        assert f"`host` is {host}" in str(why(allreduce_ranks=2, host=host))
    assert "`model` is none" in str(why(allreduce_ranks=2, model="none"))
    assert why(allreduce_ranks=2) is None


def test_one_rank_is_told_to_reduce_nothing_and_crosses_nothing() -> None:
    row = {"setting": "nccl", "operation": ALLREDUCE, "bytes": 8192, "us": 0.7, "status": "ok"}
    cross = {"operation": ALLREDUCE, "bytes": 8192, "from": "nccl", "to": "nccl Ring LL"}
    result = {"backend": "nccl", "iterations": 200, "rows": [row], "crossovers": [cross]}
    together, alone = shown.findings({**result, "ranks": 2}), shown.findings({**result, "ranks": 1, "crossovers": []})
    assert alone[0].startswith("One rank reduces nothing") and "1 rank over nccl" in alone[1] and len(alone) == 2
    assert "2 ranks over nccl" in together[0] and "beats nccl" in together[1]


def test_payloads_are_batch_times_width_times_hidden_times_two_bytes_and_each_size_comes_once() -> None:
    rows = allreduce.payloads(4096, batches=(1, 4), widths=(1, 4))
    assert [(row["batch"], row["width"], row["bytes"]) for row in rows] == [
        (1, 1, 8192),
        (1, 4, 32768),
        (4, 4, 131072),
    ]


# ---- figures from blocks


def block_row(setting: str, size: int, us: float, reference_us: float = 10.0, drift: float = 0.0) -> dict[str, Any]:
    blocks = [[reference_us] * 5, [us] * 5, [reference_us * (1 + drift)] * 5]
    payload = {"batch": 1, "width": size // 1024, "bytes": size}
    return {"setting": setting, "operation": WITH_NORM, **payload, "status": "ok", "reason": None, "times_us": blocks}


def test_a_difference_within_that_of_the_two_reference_blocks_is_none() -> None:
    raw = [block_row("a", 1024, 10.0, drift=0.1), block_row("b", 1024, 9.6), block_row("c", 1024, 5.0)]
    verdicts = {row["setting"]: row["verdict"] for row in judged(raw, "a")}
    assert verdicts == {"a": "not-distinguishable", "b": "not-distinguishable", "c": "faster"}


def test_the_reference_is_never_faster_than_itself() -> None:
    raw = [block_row("a", 1024, 9.5), block_row("b", 1024, 9.6), block_row("c", 1024, 9.0)]
    verdicts = {row["setting"]: row["verdict"] for row in judged(raw, "a")}
    assert verdicts == {"a": "not-distinguishable", "b": "not-distinguishable", "c": "faster"}


def test_the_crossover_lies_where_the_lines_meet() -> None:
    raw = [block_row("flat", size, 10.0) for size in (1024, 4096)]
    raw += [block_row("steep", 1024, 5.0), block_row("steep", 4096, 20.0)]
    assert crossovers(judged(raw, "a")) == [{"operation": WITH_NORM, "from": "steep", "to": "flat", "bytes": 2048}]


def test_a_lead_within_the_noise_is_no_crossover() -> None:
    raw = [block_row("a", size, 10.0, drift=0.2) for size in (1024, 4096)]
    raw += [block_row("b", 1024, 9.0), block_row("b", 4096, 10.5)]
    assert crossovers(judged(raw, "a")) == []


@given(
    one=st.lists(st.floats(1, 100), min_size=4, max_size=4),
    other=st.lists(st.floats(1, 100), min_size=4, max_size=4),
)
def test_crossovers_lie_between_measured_sizes_and_alternate(one: list[float], other: list[float]) -> None:
    sizes = [1024, 2048, 4096, 8192]
    raw = [block_row("one", size, us) for size, us in zip(sizes, one, strict=True)]
    raw += [block_row("other", size, us) for size, us in zip(sizes, other, strict=True)]
    found = crossovers(judged(raw, "a"))
    assert all(sizes[0] <= each["bytes"] <= sizes[-1] for each in found)
    assert [each["bytes"] for each in found] == sorted(each["bytes"] for each in found)
    assert all(first["to"] == second["from"] for first, second in itertools.pairwise(found))


def test_what_fusing_saves_counts_each_all_reduce_at_the_size_of_its_forward() -> None:
    raw = [block_row("nccl", 1024, 12.0), block_row("nccl", 4096, 14.0)]
    raw += [block_row("fused", 1024, 7.0), block_row("fused", 4096, 10.0)]
    rows = judged(raw, "a")
    change = fusion_saves(rows, fused="fused", unfused="nccl", count=100, batch=1, width=4)
    assert math.isclose(change.step_saved_ms, 0.5)
    assert math.isclose(change.verify_saved_ms, 0.4)
    assert change.evidence == "modelled"
    with pytest.raises(UserError, match=r"no figure of fused at 8192 bytes; it has \["):
        fusion_saves(rows, fused="fused", unfused="nccl", count=1, batch=1, width=8)
    with pytest.raises(UserError, match=r"no figure of custom at .* bytes; it has fused, nccl"):
        fusion_saves(rows, fused="fused", unfused="custom", count=1, batch=1, width=4)
