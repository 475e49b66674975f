"""How the embedded engine gets into a server: environment, flags, plugin, and what the stand-in answers to probes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from breakeven.embedded import engine, plugin
from breakeven.embedded.site import sgl_kernel
from breakeven.errors import UserError

pytestmark = pytest.mark.process


def in_server_environment(code: str) -> subprocess.CompletedProcess[str]:
    environment = engine.server_environment(os.environ)
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_stand_in_comes_first_and_the_users_path_stays() -> None:
    environment = engine.server_environment({"PYTHONPATH": "/mine", "HOME": "/home/me"})
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(engine.SITE), "/mine"]
    assert environment["HOME"] == "/home/me"
    assert (Path(engine.SITE) / "sgl_kernel" / "__init__.py").is_file()


def test_base_environment_is_not_changed() -> None:
    base = {"PYTHONPATH": "/mine"}
    engine.server_environment(base)
    assert base == {"PYTHONPATH": "/mine"}


@pytest.mark.parametrize(
    ("base", "threads", "expected"),
    [({}, 3, "3"), ({"OMP_NUM_THREADS": "5"}, None, "5"), ({"OMP_NUM_THREADS": "5"}, 3, "3")],
)
def test_threads_are_the_callers_choice_then_the_users(base: dict, threads: int | None, expected: str) -> None:
    assert engine.server_environment(base, threads)["OMP_NUM_THREADS"] == expected


def test_threads_default_to_the_usable_cpus_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for cpus, expected in ((2, "2"), (64, str(engine.MOST_THREADS))):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cpus=cpus: set(range(cpus)))
        assert engine.server_environment({})["OMP_NUM_THREADS"] == expected


@pytest.mark.parametrize(("cpus", "ranks", "threads"), [(2, 3, "1"), (16, 3, "2"), (8, 2, "4")])
def test_ranks_share_the_cpus_and_each_is_named_one(
    monkeypatch: pytest.MonkeyPatch, cpus: int, ranks: int, threads: str
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cpus)))
    environment = engine.server_environment({}, ranks=ranks)
    assert environment["OMP_NUM_THREADS"] == threads
    assert len(environment["SGLANG_CPU_OMP_THREADS_BIND"].split("|")) == ranks
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in engine.server_environment({})


def test_users_own_spin_count_is_kept() -> None:
    assert engine.server_environment({"GOMP_SPINCOUNT": "7"})["GOMP_SPINCOUNT"] == "7"


def test_missing_installation_is_a_user_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "entry_points", lambda group: ())
    with pytest.raises(UserError, match="make setup"):
        engine.server_environment({})


def test_flags_are_ones_that_sglang_knows() -> None:
    flags = ["--model-path", "none", *engine.server_flags(max_total_tokens=4096)]
    parser = "import argparse; from sglang.srt.server_args import ServerArgs; p = argparse.ArgumentParser();"
    code = f"{parser} ServerArgs.add_cli_args(p); a = p.parse_args({flags!r}); print(a.device, a.max_total_tokens)"
    result = in_server_environment(code)
    assert result.stdout.split() == ["cpu", "4096"], result.stderr


@pytest.mark.parametrize("missing", ["library", "device"])
def test_engine_is_needed_without_a_driver_or_a_device(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_library(name: str) -> SimpleNamespace:
        raise OSError(name)

    def no_device(name: str) -> SimpleNamespace:
        return SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGetCount=lambda count: 0)

    monkeypatch.setattr(engine.ctypes, "CDLL", no_library if missing == "library" else no_device)
    assert engine.needed()


def test_engine_is_not_needed_where_the_driver_counts_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def count_one(reference: object) -> int:
        reference._obj.value = 1  # type: ignore[attr-defined]
        return 0

    driver = SimpleNamespace(cuInit=lambda flags: 0, cuDeviceGetCount=count_one)
    monkeypatch.setattr(engine.ctypes, "CDLL", lambda name: driver)
    assert not engine.needed()


def test_plugin_does_nothing_unless_asked_for() -> None:
    code = "import os, sys; os.environ.pop('BREAKEVEN_EMBEDDED_ENGINE', None); " \
        "from breakeven.embedded import plugin; plugin.load(); print('sglang' in sys.modules)"  # fmt: skip
    result = in_server_environment(code)
    assert result.stdout.strip() == "False", result.stderr


def test_intel_amx_stays_on_a_cpu_and_nothing_else_changes() -> None:
    def swapped(view: SimpleNamespace) -> dict[str, str]:
        return {"attention_backend": "torch_native"}

    cpu = SimpleNamespace(device="cpu", attention_backend="intel_amx")
    assert plugin.keep_intel_amx(swapped, cpu) == {}
    for device, backend in (("cpu", "triton"), ("xpu", "intel_xpu")):
        other = SimpleNamespace(device=device, attention_backend=backend)
        assert plugin.keep_intel_amx(swapped, other) == {"attention_backend": "torch_native"}


def test_plugin_hooks_exist_in_the_installed_sglang() -> None:
    code = (
        "from sglang.srt.plugins import load_plugins; load_plugins();"
        "from sglang.srt.plugins.hook_registry import HookRegistry; print(*HookRegistry._patched)"
    )
    result = in_server_environment(code)
    assert {plugin.FALLBACKS, plugin.LOAD_MODEL} <= set(result.stdout.split()), result.stderr


def test_probes_see_that_an_operation_is_absent() -> None:
    assert hasattr(torch.ops.sgl_kernel, "decode_attention_cpu")
    assert not hasattr(torch.ops.sgl_kernel, "convert_weight_packed")
    assert not hasattr(sgl_kernel, "rmsnorm")
    with pytest.raises(ImportError):
        from breakeven.embedded.site.sgl_kernel import rmsnorm  # noqa: F401


def test_absent_torch_operation_names_itself_and_who_asked() -> None:
    with pytest.raises(AttributeError, match=r"sgl_kernel\.fused_experts_cpu has no CPU version.*asked for in .*test_"):
        _ = torch.ops.sgl_kernel.fused_experts_cpu


def test_absent_cpu_operation_can_be_imported_and_names_itself_when_called() -> None:
    from breakeven.embedded.site.sgl_kernel import chunk_gated_delta_rule_cpu

    with pytest.raises(NotImplementedError, match=r"sgl_kernel\.chunk_gated_delta_rule_cpu"):
        chunk_gated_delta_rule_cpu(1, key=2)


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("sglang/srt/layers/attention/linear/gdn_backend.py", "linear attention"),
        ("sglang/srt/layers/moe/topk.py", "mixture-of-experts"),
        ("sglang/srt/layers/quantization/fp8.py", "--quantization"),
        ("sglang/srt/speculative/some_worker.py", "--speculative-algorithm"),
    ],
)
def test_message_names_the_model_or_flag_behind_the_request(file: str, wanted: str) -> None:
    code = compile("explain('some_op')", f"/site-packages/{file}", "eval")
    text = eval(code, {"explain": sgl_kernel.missing.explain})
    assert text.startswith("sgl_kernel.some_op has no CPU version") and file in text
    assert wanted in text.partition("wanted by")[2]


def test_a_cpu_with_amx_gets_the_same_engine() -> None:
    code = (
        "import torch; torch.cpu._is_amx_tile_supported = lambda: True;"
        "from sglang.srt.utils import cpu_has_amx_support; print(cpu_has_amx_support())"
    )
    result = in_server_environment(code)
    assert result.stdout.strip() == "False", result.stderr
