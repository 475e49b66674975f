"""GPU architecture names: ``sm120`` is compute capability 12.0."""

from __future__ import annotations

import re

from breakeven.errors import UserError


def capability(arch: str) -> tuple[int, int]:
    """``sm121`` to (12, 1). Raises UserError for anything else."""
    match = re.fullmatch(r"sm_?(\d{1,2})(\d)[af]?", arch)
    if not match:
        raise UserError(f"{arch!r} is no GPU architecture; write one like sm90, sm100 or sm120")
    return int(match.group(1)), int(match.group(2))


def family(arch: str) -> str:
    """The name that stands for every minor version: FlashInfer lists major versions, and so does SGLang.

    ``sm121`` belongs to ``sm120``.
    """
    return f"sm{capability(arch)[0]}0"


ARCHS = ("sm80", "sm89", "sm90", "sm100", "sm103", "sm110", "sm120", "sm121")
"""The architectures that a change is checked against: SGLang's GPUs from Ampere on."""
