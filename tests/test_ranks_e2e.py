"""Several ranks of the real SGLang on a processor: all-reduces between them, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from breakeven.config import ServerSettings
from breakeven.launch import proof
from breakeven.launch.serving import Serving

pytestmark = pytest.mark.e2e

LAYERS = 30
RANKS = 3
"""SmolLM2 has 9 heads and 3 key-value heads."""


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE] == []


def proved(folder: Path, **values: Any) -> dict[str, Any]:
    folder.mkdir()
    serving = Serving.prepare(ServerSettings(dtype="float32", **values), folder)
    return proof.prove(serving, proof.preflight_of(serving))


def test_three_ranks_say_what_one_says_and_reduce_twice_a_layer_and_once_for_the_embedding(tmp_path: Path) -> None:
    alone, together = (proved(tmp_path / str(tp), tp=tp) for tp in (1, RANKS))
    assert together["effective"]["tp"] == RANKS
    assert together["readiness"]["generation"]["text"] == alone["readiness"]["generation"]["text"]
    fusion, backend = together["facts"]
    assert backend["active"] == f"Gloo: {2 * LAYERS + 1} per target forward"
    assert fusion["active"] == f"no: {2 * LAYERS + 1} other all-reduces in a target forward"
