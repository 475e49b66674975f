"""What a machine has, its GPUs left out: processor, memory, packages. Also a program for the Python that serves.

Standard library alone (Python 3.10 and newer), so that any interpreter can run this file.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

PACKAGES = (
    *("sglang", "sglang-kernel", "flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache", "torch"),
    *("transformers", "papermill", "breakeven"),
)


def inventory() -> dict[str, Any]:
    """Host, system, Python, processor, cores this process may use, memory, and versions of the packages that matter."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "pins": _pins(),
        "torch_cuda": _torch_cuda(),
    }


def _pins() -> dict[str, str]:
    """The versions of these packages that the installed SGLang asks for exactly."""
    try:
        requirements = importlib.metadata.requires("sglang") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    found = (re.match(r"([A-Za-z0-9_-]+)(?:\[[^\]]*\])? *\(?== *([0-9][^ ;,)]*)", each) for each in requirements)
    pins = {match[1].replace("_", "-"): match[2] for match in found if match}
    return {name: version for name, version in pins.items() if name in PACKAGES}


def _torch_cuda() -> str | None:
    """The CUDA that torch was built for, read in its source: importing it takes seconds."""
    found = importlib.util.find_spec("torch")
    places = list(found.submodule_search_locations or []) if found else []
    try:
        text = Path(places[0], "version.py").read_text() if places else ""
    except OSError:
        return None
    match = re.search(r"^cuda\b[^=\n]*= *['\"]([\d.]+)", text, re.MULTILINE)
    return match[1] if match else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    print(json.dumps(inventory()))
