"""What machine this is: recorded with every run, and compared before figures of two runs are put side by side."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from breakeven.errors import UserError
from breakeven.gates.archs import name_of
from breakeven.hosts import LOCAL, Host, Local
from breakeven.inventory import inventory

GPUS_ANSWER_WITHIN_S = 120.0
"""A driver that has to load first takes half a minute on a box with eight GPUs."""


def describe(root: Path, host: Host = LOCAL) -> dict[str, Any]:
    """The host's processor, GPUs and package versions, and the git commit of the project at ``root``.

    Raises OSError when another machine does not answer.
    """
    about = inventory() if host is LOCAL else _inventory_of(host)
    return {**about, "gpus": gpus(host), "git_commit": _git_commit(root)}


def _inventory_of(host: Host) -> dict[str, Any]:
    done = host.run([*host.prefix, host.python, str(host.library / "breakeven" / "inventory.py")], timeout_s=60)
    if done.exit_code:
        raise OSError(f"{host.name}: {host.python} can't say what it has: {done.stderr.strip()[-200:]}")
    return dict(json.loads(done.stdout))


def fingerprint(environment: dict[str, Any]) -> dict[str, Any]:
    """The part of an environment that has to be equal before measurements may be mixed."""
    return {key: environment.get(key) for key in ("host", "cpu", "cores", "gpus", "packages")}


def gpus(host: Host = LOCAL) -> list[dict[str, str]]:
    """One row per NVIDIA GPU (name, architecture, driver, memory, uuid); empty where there is none or no driver.

    The uuid tells a box from another of the same kind, which a rented machine's host name may not.

    Raises UserError where the driver does not answer: there are GPUs, and they can't be told.
    """
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version,memory.total,uuid", "--format=csv,noheader"]
    try:
        done = host.run(query, timeout_s=GPUS_ANSWER_WITHIN_S)
    except ConnectionError:
        raise
    except TimeoutError:
        raise UserError(
            f"nvidia-smi of {host.name} gives no answer within {GPUS_ANSWER_WITHIN_S:g} s; find out why (nvidia-smi "
            "-pm 1 keeps a driver loaded), or take nvidia-smi off the PATH to go without its GPUs"
        ) from None
    except OSError:  # no such program
        return []
    lines = [] if done.exit_code else done.stdout.splitlines()
    rows = [[part.strip() for part in line.split(",")] for line in lines if line.count(",") == 4]
    return [
        {"name": name, "arch": _arch(capability), "driver": driver, "memory": memory, "uuid": uuid}
        for name, capability, driver, memory, uuid in rows
    ]


def _arch(capability: str) -> str:
    """``12.0`` as nvidia-smi says it to ``sm120``."""
    major, dot, minor = capability.partition(".")
    known = dot and major.isdigit() and minor.isdigit()
    return name_of(int(major), int(minor)) if known else f"compute capability {capability}"


def arch_to_judge(asked: str, host: Host = LOCAL) -> tuple[str, str]:
    """The architecture that the gates are judged for, and why that one: ``auto`` takes the first GPU's."""
    if asked != "auto":
        return asked, "asked for"
    found = gpus(host)
    if found:
        whose = "this machine" if isinstance(host, Local) else host.name
        return found[0]["arch"], f"{whose}'s {found[0]['name']}"
    return "sm120", "no GPU here: judged for the RTX PRO 6000 and 5090"


def _git_commit(root: Path) -> str | None:
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
