"""The forecast of a fused arm: from the unfused arms alone, kept with its time, beside what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from breakeven import artifacts
from breakeven.collectives.rows import WITH_NORM
from breakeven.errors import UserError
from breakeven.launch.design import Arm, Launch, Variant
from breakeven.sweep import forecast, running
from breakeven.sweep.store import Store

PUSH = "void all_reduce_kernel<AllReducePushImpl<__nv_bfloat16, 2u, true>>"
LAMPORT = "allreduce_fusion_kernel_oneshot_lamport"
BYTES_PER_TOKEN = 8192


def bench_row(setting: str, tokens: int, us: float) -> dict[str, Any]:
    payload = {"batch": tokens, "width": 1, "bytes": BYTES_PER_TOKEN * tokens}
    return {"setting": setting, "operation": WITH_NORM, **payload, "status": "ok", "us": us}


BENCH = [
    bench_row("sglang custom", 1, 6.0),
    bench_row("sglang custom", 4, 7.0),
    bench_row(forecast.FUSED, 1, 4.0),
    bench_row(forecast.FUSED, 4, 6.0),
]


def cell(
    name: str, ms: float, *, kernels: dict[str, int] | None = None, drafts: int | None = None, restart: int = 0
) -> dict[str, Any]:
    variant = name.partition("/")[0]
    row: dict[str, Any] = {
        "cell": name,
        "arm": name.partition("@")[0],
        "baseline": f"{variant}/baseline",
        "condition": "",
    }
    row |= {"variant": variant, "concurrency": 1, "draft_tokens": drafts, "status": "ok", "restart": restart}
    row |= {"launch": f"{name}.restart{restart}", "cycle_ms" if drafts else "step_ms": ms}
    if kernels is not None:
        fused = [each for each in kernels if each == LAMPORT]
        seen = {"n": 1, "count": sum(kernels.values()), "ms": 0.3, "kernels": kernels}
        row["profile"] = {"allreduce": seen, "fused": fused}
    return row


UNFUSED = [
    cell("off/baseline", 5.0, kernels={PUSH: 97}),
    cell("off/standalone-s3", 7.0, drafts=4),  # not traced: its target forward is the baseline's
]
FUSED = [
    cell("on/baseline", 4.9, kernels={PUSH: 2, LAMPORT: 95}),
    cell("on/standalone-s3", 6.8, drafts=4, kernels={PUSH: 2, LAMPORT: 95}),
    cell("on/standalone-s3", 7.0, drafts=4, restart=1),
]


def test_every_all_reduce_but_two_is_saved_what_the_bench_says() -> None:
    base, drafter = forecast.forecast(UNFUSED, BENCH)
    assert base["predicted_ms"] == pytest.approx(5.0 - 95 * 2.0 / 1000)
    assert drafter["predicted_ms"] == pytest.approx(7.0 - 95 * 1.0 / 1000)
    assert "95 of 97" in base["basis"] and "of 4 tokens" in drafter["basis"]


def test_what_ran_fused_changes_no_forecast() -> None:
    assert forecast.forecast([*FUSED, *UNFUSED], BENCH) == forecast.forecast(UNFUSED, BENCH)


def test_without_a_figure_of_the_bench_the_reason_stands_in() -> None:
    rows = forecast.forecast(UNFUSED, [row for row in BENCH if row["setting"] != "sglang custom"])
    assert all("predicted_ms" not in row and "sglang custom" in row["reason"] for row in rows)


def test_one_gpu_reduces_nothing_and_has_no_forecast() -> None:
    assert forecast.forecast([cell("off/baseline", 5.0, kernels={})], BENCH) == []


def test_a_kept_forecast_stays_as_it_was_made_and_stands_beside_the_measurement(tmp_path: Path) -> None:
    artifacts.write_json(tmp_path / "allreduce.json", {"rows": BENCH})
    assert forecast.beside_measured(tmp_path) == []
    artifacts.write_json(tmp_path / "cells.json", {"cells": UNFUSED})
    assert forecast.write(tmp_path)["fused_launches"] == 0
    later = [*UNFUSED, cell("off/baseline", 5.2, kernels={PUSH: 97}, restart=1), *FUSED]
    artifacts.write_json(tmp_path / "cells.json", {"cells": later})
    base, drafter = forecast.beside_measured(tmp_path)
    assert base["before_ms"] == 5.0 and base["measured_saving"] == pytest.approx(100 * (1 - 4.9 / 5.1))
    assert base["off"] == pytest.approx(100 * (4.9 / 4.81 - 1))
    assert (base["measured_range"], drafter["measured_range"]) == ("1 launch", "6.80 to 7.00, 2 launches")
    assert drafter["made"].endswith(" UTC, 0")
    assert set(base) >= set(forecast.COLUMNS)


def test_without_a_kept_one_the_table_says_that_it_was_computed_afterwards(tmp_path: Path) -> None:
    artifacts.write_json(tmp_path / "allreduce.json", {"rows": BENCH})
    artifacts.write_json(tmp_path / "cells.json", {"cells": [*UNFUSED, *FUSED]})
    assert {row["made"] for row in forecast.beside_measured(tmp_path)} == {"afterwards"}


def test_nothing_measured_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cells\.json"):
        forecast.write(tmp_path)


def test_a_sweep_writes_it_before_the_first_launch_of_another_variant_and_only_then(tmp_path: Path) -> None:
    artifacts.write_json(tmp_path / "allreduce.json", {"rows": BENCH})
    unfused, fused = Variant("off", fusion="off"), Variant("on", fusion="trtllm")
    seen: list[bool] = []

    def measure(launch: Launch) -> list[dict[str, Any]]:
        seen.append((tmp_path / forecast.FILE).exists())
        artifacts.write_json(tmp_path / "cells.json", {"cells": UNFUSED})
        return []

    sweep_measure = running.foretold(measure, unfused, tmp_path)
    for variant in (unfused, unfused, fused):
        sweep_measure(Launch(Arm("any", None, variant), 0))
    assert seen == [False, False, True]
    kept = artifacts.read_json(tmp_path / forecast.FILE)
    sweep_measure(Launch(Arm("any", None, fused), 1))
    assert artifacts.read_json(tmp_path / forecast.FILE) == kept


def test_a_new_sweep_makes_its_own_forecast(tmp_path: Path) -> None:
    unfused, fused = Variant("off", fusion="off"), Variant("on", fusion="trtllm")
    artifacts.write_json(tmp_path / "allreduce.json", {"rows": BENCH})
    for step_ms in (5.0, 6.0):
        Store(tmp_path, {}, resume=False)
        artifacts.write_json(tmp_path / "cells.json", {"cells": [cell("off/baseline", step_ms, kernels={PUSH: 97})]})
        running.foretold(lambda launch: [], unfused, tmp_path)(Launch(Arm("any", None, fused), 0))
        assert artifacts.read_json(tmp_path / forecast.FILE)["rows"][0]["before_ms"] == step_ms
    (before,) = tmp_path.glob("forecast.before-*.json")
    assert artifacts.read_json(before)["rows"][0]["before_ms"] == 5.0
