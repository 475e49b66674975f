"""What notebook 04 keeps of its traced windows, from recorded windows of an H200 and of a CPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from breakeven import profiling
from breakeven.errors import UserError

DATA = Path(__file__).parent / "data"
H200 = DATA / "h200-sglang-0.5.17"


def profile_of(
    monkeypatch: pytest.MonkeyPatch, run_dir: Path, windows: dict[str, Path], *, on_gpu: bool = True
) -> dict[str, Any]:
    """``cycle_shares`` with recorded traces in place of a server's: keyed by the first activity asked for."""
    asked = []

    def recorded(*arguments: Any) -> Path:
        folder, activities = arguments[4], arguments[6]
        asked.append((activities, arguments[3]))
        if "GPU" in activities:
            window = windows["both"]
        elif "host" in windows:
            window = windows["host"]
        else:
            raise UserError("no annotation")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(window, folder / "a.trace.json.gz"))

    monkeypatch.setattr(profiling, "_trace", recorded)
    monkeypatch.setattr(profiling, "_on_gpu", lambda base_url: on_gpu)
    prompt: Any = None
    client: Any = None
    profile = profiling.cycle_shares("http://127.0.0.1:1", client, prompt, 8, run_dir / "traces" / "launch")["profile"]
    # the host alone goes first: recording the device leaves it slower
    assert asked == ([(["CPU"], 24)] if on_gpu else []) + [(["CPU", "GPU"], 8)]
    return profile


def test_a_gpu_s_parts_are_its_work_within_the_unstretched_cycle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    windows = {"both": H200 / "standalone-3.trace.json.gz", "host": H200 / "standalone-3.trace.json.gz"}
    profile = profile_of(monkeypatch, tmp_path, windows)
    assert list(profile["shares"]) == ["draft", "draft extend", "verify", "other"]
    assert sum(profile["shares"].values()) == pytest.approx(1)
    work = profile["work_ms"]
    assert profile["shares"]["verify"] * profile["cycle_ms"] == pytest.approx(work["verify"]["all"])
    assert 0 < profile["host_gap_ms"] < profile["cycle_ms"]
    assert abs(profile["sum_residual"]) < 0.03
    assert profile["allreduce"]["count"] == 0
    assert profile["fused"] == []
    assert profile["trace"] == "traces/launch/a.trace.json.gz"


def test_without_the_host_s_window_the_traced_cycle_stands_in_and_the_reason_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    profile = profile_of(monkeypatch, tmp_path, {"both": H200 / "decode.trace.json.gz"})
    assert profile["cycle_ms"] == profile["traced_cycle_ms"]
    assert "no annotation" in profile["host_window"]
    assert list(profile["shares"]) == ["target forward", "other"]


def test_a_cpu_needs_one_window(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    profile = profile_of(monkeypatch, tmp_path, {"both": DATA / "cpu-standalone-2.trace.json.gz"}, on_gpu=False)
    assert profile["device"] == "cpu"
    assert "host_window" not in profile
    assert sum(profile["shares"].values()) == pytest.approx(1)
