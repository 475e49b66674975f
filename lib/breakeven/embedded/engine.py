"""How to launch SGLang on a machine without CUDA: the environment and the flags of the embedded CPU engine.

The engine is SGLang as installed, with a stand-in for its kernel package (``site/sgl_kernel``) and a plugin
(``plugin.py``). Nothing here imports torch or SGLang.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from breakeven.artifacts import cache_root
from breakeven.embedded.plugin import GROUP, NAME, SWITCH
from breakeven.errors import UserError

SITE = Path(__file__).parent / "site"
MODELS_PACKAGE = "breakeven_llama"  # in SITE
MOST_THREADS = 8  # a layer of the default model is 576 wide: more threads wait for each other longer than they compute
MAX_TOTAL_TOKENS = 16384


def needed() -> bool:
    """Whether this machine has no CUDA device, so that SGLang can only run on the embedded engine.

    Asks the driver library itself: importing torch for it would take seconds.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True
    count = ctypes.c_int(0)
    return driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0


def default_threads(cpus: int | None = None, ranks: int = 1) -> int:
    """The threads that each rank of a server computes with unless told otherwise: a fair share of the CPUs, which are
    those that this process may use if it is not said, at most 8 in all."""
    return max(1, min(cpus or len(os.sched_getaffinity(0)), MOST_THREADS) // ranks)


def server_environment(base: Mapping[str, str], threads: int | None = None, ranks: int = 1) -> dict[str, str]:
    """``base`` with what a server on the embedded engine needs.

    ``threads`` is the number of threads that each of its ``ranks`` (tensor-parallel processes) computes with; without
    it OMP_NUM_THREADS of ``base`` counts, or ``default_threads``. Raises UserError when this package is not installed:
    SGLang finds the plugin by its metadata.
    """
    if not any(point.name == NAME for point in entry_points(group=GROUP)):
        raise UserError("SGLang can't find the embedded engine's plugin: breakeven is not installed; run `make setup`")
    inherited = [base["PYTHONPATH"]] if base.get("PYTHONPATH") else []
    chosen = str(threads or base.get("OMP_NUM_THREADS") or default_threads(ranks=ranks))
    # SGLang lets no more ranks than NUMA nodes start unless told a CPU for each; it binds them only with AMX
    cpus = {"SGLANG_CPU_OMP_THREADS_BIND": "|".join(map(str, range(ranks)))} if ranks > 1 else {}
    return {
        # A thread that waits for the others spins this often, then sleeps. OpenMP's default spins for longer: beside
        # other busy processes on two cores a token took 2 to 4 s instead of 0.15 s. Beside one busy process the default
        # model decodes 12 tok/s with 20000, 18 with 10000, 30 with 2000; alone 10000 costs nothing (64 and 66 against
        # 63 to 65 tok/s), 2000 may cost a few per cent. A user's own value counts.
        "GOMP_SPINCOUNT": "10000",
        **cpus,
        **base,
        "PYTHONPATH": os.pathsep.join([str(SITE), *inherited]),
        "OMP_NUM_THREADS": chosen,
        "NUMBA_CACHE_DIR": str(cache_root() / "kernels"),
        SWITCH: "1",
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_EXTERNAL_MODEL_PACKAGE": MODELS_PACKAGE,
        # Without it SGLang compiles small functions in its first requests (5 to 8 s), and needs a compiler for that.
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
    }


def server_flags(max_total_tokens: int = MAX_TOTAL_TOKENS) -> list[str]:
    """The launch flags of a server on the embedded engine. The user's own stand behind them: the last of a name counts.

    ``max_total_tokens`` is the size of the KV cache in tokens (23 kB each for the default model in bf16); SGLang's own
    choice is 70 % of the machine's memory. The memory fraction only has to let that through: SGLang takes what other
    processes allocate during its start for weights of its own, and gives up. The overlapped schedule is off because
    SGLang switches it off for speculation on CPUs, and the arms of a comparison have to run alike.
    """
    return [
        *("--device", "cpu"),
        *("--attention-backend", "intel_amx"),
        *("--max-total-tokens", str(max_total_tokens)),
        *("--mem-fraction-static", "0.98"),
        "--disable-overlap-schedule",
        "--sleep-on-idle",
    ]
