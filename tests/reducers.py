"""Backends that misbehave, for the tests of the all-reduce bench: its ranks import them by name."""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from collections.abc import Mapping
from typing import Any

import torch

from breakeven.collectives.reducers import TorchReducer


class HalfTheSum(TorchReducer):
    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        return super().reduce(x).mul_(0.5)


class Killed(TorchReducer):
    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return x


class Hangs(TorchReducer):
    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(600)
        return x


class NeverEnds(TorchReducer):
    """Measures well and keeps its process alive afterwards."""

    def __init__(self, job: Mapping[str, Any], rank: int) -> None:
        super().__init__(job, rank)
        threading.Thread(target=time.sleep, args=(600,)).start()


class NeedsAMissingPackage(TorchReducer):
    def __init__(self, job: Mapping[str, Any], rank: int) -> None:
        importlib.import_module("no_such_package_anywhere")


class FailsOnOneRank(TorchReducer):
    def __init__(self, job: Mapping[str, Any], rank: int) -> None:
        if rank == 1:
            raise RuntimeError("on one rank")


class NeedsAVariable(TorchReducer):
    def __init__(self, job: Mapping[str, Any], rank: int) -> None:
        if "BREAKEVEN_TEST_VARIABLE" not in os.environ:
            raise RuntimeError("no variable")
        super().__init__(job, rank)
