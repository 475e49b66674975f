"""GPU architecture names: ``sm120`` is compute capability 12.0."""

from __future__ import annotations

import re

from breakeven.errors import UserError, did_you_mean

ARCHS = ("sm80", "sm89", "sm90", "sm100", "sm103", "sm110", "sm120", "sm121")
"""The architectures that are mapped and checked where none is named: SGLang's GPUs from Ampere on."""
OLDEST_MAJOR = 5  # Maxwell, the oldest that CUDA 12 knows: below, it is a name cut short


def capability(arch: str) -> tuple[int, int]:
    """``sm121`` to (12, 1). Raises UserError for what is no such name, or names what no GPU of today has (``sm12``)."""
    name = arch.strip().lower().replace("sm_", "sm")
    match = re.fullmatch(r"sm(\d{1,2})(\d)[af]?", name)
    if not match or int(match[1]) < OLDEST_MAJOR:
        meant = next((known for known in ARCHS if re.match(r"sm\d", name) and known.startswith(name)), None)
        suggestion = f"; did you mean {meant!r}?" if meant else did_you_mean(arch, ARCHS)
        raise UserError(f"{arch!r} is no GPU architecture{suggestion}")
    return int(match[1]), int(match[2])


def name_of(major: int, minor: int) -> str:
    """The name of a compute capability: (12, 1) is ``sm121``."""
    return f"sm{major}{minor}"


def family(arch: str) -> str:
    """The name that stands for every minor version: FlashInfer lists major versions, and so does SGLang.

    ``sm121`` belongs to ``sm120``.
    """
    return name_of(capability(arch)[0], 0)
