"""GPU architecture names: ``sm120`` is compute capability 12.0."""

from __future__ import annotations

import re

from breakeven.errors import UserError, did_you_mean

ARCHS = ("sm80", "sm89", "sm90", "sm100", "sm103", "sm110", "sm120", "sm121")
"""The architectures that are mapped and checked where none is named: SGLang's GPUs from Ampere on."""


def capability(arch: str) -> tuple[int, int]:
    """``sm121`` to (12, 1). Raises UserError for what is no such name."""
    match = re.fullmatch(r"sm_?(\d{1,2})(\d)[af]?", arch.strip().lower())
    if not match:
        suggestion = did_you_mean(arch, ARCHS) or "; write one like sm90, sm100 or sm120"
        raise UserError(f"{arch!r} is no GPU architecture{suggestion}")
    return int(match.group(1)), int(match.group(2))


def name_of(major: int, minor: int) -> str:
    """The name of a compute capability: (12, 1) is ``sm121``."""
    return f"sm{major}{minor}"


def family(arch: str) -> str:
    """The name that stands for every minor version: FlashInfer lists major versions, and so does SGLang.

    ``sm121`` belongs to ``sm120``.
    """
    return name_of(capability(arch)[0], 0)
