"""What machine this is: a driver that does not answer is no machine without GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from breakeven import machine
from breakeven.errors import UserError
from breakeven.hosts import Completed, Host


class Box:
    """A host whose nvidia-smi answers with this, or raises it."""

    name = "box"

    def __init__(self, answer: Completed | OSError) -> None:
        self._answer = answer

    def run(self, command: Sequence[str], **_: Any) -> Completed:
        assert command[0] == "nvidia-smi"
        if isinstance(self._answer, OSError):
            raise self._answer
        return self._answer


def gpus(answer: Completed | OSError) -> list[dict[str, str]]:
    return machine.gpus(cast(Host, Box(answer)))


def test_gpus_are_told_one_a_row_with_their_architecture() -> None:
    said = "NVIDIA H200, 9.0, 570.1, 143771 MiB, GPU-1\nNVIDIA RTX PRO 6000, 12.0, 570.1, 97887 MiB, GPU-2\n"
    assert [row["arch"] for row in gpus(Completed(0, said, ""))] == ["sm90", "sm120"]


def test_two_boxes_of_one_kind_are_two_machines() -> None:
    """A rented box that was given back comes back as another one under the same host name."""
    boxes = [gpus(Completed(0, f"NVIDIA H200, 9.0, 570.1, 143771 MiB, GPU-{uuid}\n", "")) for uuid in ("1a", "2b")]
    first, second = ({"host": "box", "cpu": "c", "cores": 16, "packages": {}, "gpus": each} for each in boxes)
    assert machine.fingerprint(first) != machine.fingerprint(second)
    assert machine.fingerprint(first) == machine.fingerprint(dict(first))


def test_no_program_and_no_driver_are_no_gpus() -> None:
    assert gpus(FileNotFoundError("nvidia-smi")) == []
    assert gpus(Completed(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver", "")) == []


def test_a_driver_that_does_not_answer_in_time_is_told() -> None:
    with pytest.raises(UserError, match=r"nvidia-smi of box gives no answer within 120 s; .* without its GPUs"):
        gpus(TimeoutError("nvidia-smi did not end within 120 s"))


def test_a_lost_connection_is_no_machine_without_gpus() -> None:
    with pytest.raises(ConnectionError):
        gpus(ConnectionResetError("box"))
