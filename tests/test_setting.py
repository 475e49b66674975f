"""The line above every answer: model, hardware, release, load."""

from __future__ import annotations

from typing import Any

from breakeven.analysis import setting

GPU = {"gpus": [{"name": "NVIDIA H200"}] * 2, "cpu": "c", "cores": 16}


def row(**values: Any) -> dict[str, Any]:
    effective = {"model_path": "/models/Llama-8B", "dtype": "bfloat16", "tp": 2}
    return {"effective": effective, "sglang_version": "0.5.17", "concurrency": 1, **values}


def test_model_hardware_release_load_and_prompts_are_named() -> None:
    words = setting.of_sweep([row(), row(concurrency=4), row(concurrency=8)], GPU, 3, 2)["words"]
    for expected in ("Llama-8B (bfloat16, TP 2)", "NVIDIA H200 × 2", "SGLang 0.5.17", "1, 4 and 8 requests at a time",
                     "3 prompts of 2 kinds"):  # fmt: skip
        assert expected in words


def test_random_weights_are_called_so_however_the_flag_is_written() -> None:
    for command in (["x", "--load-format=dummy"], ["x", "--load-format", "dummy"]):
        assert "random weights" in setting.of_sweep([row(command=command)], GPU, 3, 2)["words"]
    assert "random" not in setting.of_sweep([row(command=["x", "--load-format", "auto"])], GPU, 3, 2)["words"]


def test_a_launch_that_never_told_its_settings_leaves_no_hole() -> None:
    words = setting.of_sweep([{"effective": None}], {"cpu": "c", "cores": 2}, 3, 2)["words"]
    assert "not recorded" in words and "c, 2 cores, no GPU" in words and "one request at a time" in words


def test_records_name_who_reported_them_or_that_nobody_is_named() -> None:
    told = {"batch": 1.0, "notes": {"model": "M", "hardware": "8x G", "tp": "8", "reported_by": "A. Person"}}
    assert setting.of_records([told], "f.csv")["words"].startswith("M on 8x G, TP 8, batch 1. Reported by A. Person;")
    assert "whom the file does not name" in setting.of_records([{"batch": 1.0, "notes": {}}], "f.csv")["words"]
