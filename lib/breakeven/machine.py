"""What machine this is: recorded with every run, and compared before figures of two runs are put side by side."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = ("sglang", "sglang-kernel", "flashinfer-python", "torch", "transformers", "papermill", "breakeven")

_ARCH_OF_CAPABILITY = {
    "8.0": "sm80",
    "8.6": "sm86",
    "8.9": "sm89",
    "9.0": "sm90",
    "10.0": "sm100",
    "10.3": "sm103",
    "11.0": "sm110",
    "12.0": "sm120",
    "12.1": "sm121",
}


def describe(root: Path) -> dict[str, Any]:
    """Host, processor, GPUs, package versions and git commit of the project at ``root``."""
    return {
        "host": platform.node(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": gpus(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "git_commit": _git_commit(root),
    }


def fingerprint(environment: dict[str, Any]) -> dict[str, Any]:
    """The part of an environment that has to be equal before measurements may be mixed."""
    return {key: environment.get(key) for key in ("host", "cpu", "cores", "gpus", "packages")}


def gpus() -> list[dict[str, str]]:
    """One row per NVIDIA GPU (name, architecture, driver, memory); empty where there is none or no driver."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version,memory.total", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[part.strip() for part in line.split(",")] for line in answer.splitlines() if line.count(",") == 3]
    return [
        {
            "name": name,
            "arch": _ARCH_OF_CAPABILITY.get(cap, f"compute capability {cap}"),
            "driver": driver,
            "memory": mem,
        }
        for name, cap, driver, mem in rows
    ]


def arch_to_judge(asked: str) -> tuple[str, str]:
    """The architecture that the gates are judged for, and why that one: ``auto`` takes the first GPU's."""
    if asked != "auto":
        return asked, "asked for"
    found = gpus()
    if found:
        return found[0]["arch"], f"this machine's {found[0]['name']}"
    return "sm120", "no GPU here: judged for the RTX PRO 6000 and 5090"


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


def _git_commit(root: Path) -> str | None:
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
