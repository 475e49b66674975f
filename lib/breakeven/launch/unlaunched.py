"""What notebooks 03 and 04 show where nothing is launched: a run that only judges recorded figures."""

from __future__ import annotations

from typing import Any

from breakeven.config import ServingSettings

WORDS = "Nothing was launched: the parameter model is none. Notebook 5 judges the recorded figures alone."
SERVER: dict[str, Any] = {"startup_s": {}, "effective": {}, "command_line": WORDS}
SWEEP: dict[str, Any] = {"cells": [], "search": [], "predictions": []}


def serves(settings: ServingSettings) -> bool:
    """Whether there is a model to serve; ``model: none`` says that there is not."""
    return settings.model != "none"
