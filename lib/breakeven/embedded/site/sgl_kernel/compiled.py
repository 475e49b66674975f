"""The compiled kernels (``kernels.py``) and the threads that run them.

Each call hands one record to PyTorch's own OpenMP team: a second team beside it would fight for the same cores. Where
numba or that OpenMP is missing, or compiling fails, nothing here is used and PyTorch's operations serve.
"""

import ctypes
import logging
import os
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy
import torch
from filelock import FileLock
from torch import Tensor

logger = logging.getLogger(__name__)

_CALLED_BY_KERNELS = ("GOMP_barrier", "omp_get_thread_num", "omp_get_num_threads")

LOCK = "compiling.lock"  # in numba's cache

active: list["Kernels"] = []
"""The kernels that this process serves with: one, or none."""


class Kernels:
    """The kernels of one precision, ready to be called. Raises when they can't be had, whatever the reason."""

    def __init__(self, precision: torch.dtype) -> None:
        import llvmlite.binding

        openmp = ctypes.CDLL(None)
        for name in _CALLED_BY_KERNELS:
            llvmlite.binding.add_symbol(name, ctypes.cast(getattr(openmp, name), ctypes.c_void_p).value)
        self._run = openmp.GOMP_parallel
        self._run.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
        self._run.restype = None

        from . import kernels

        self.precision, self.threads = precision, torch.get_num_threads()
        self.most_rows, self.block = kernels.MOST_ROWS, kernels.BLOCK
        self.layer_record, self.pass_record, self._product_record = kernels.LAYER, kernels.PASS, kernels.PRODUCT
        name = str(precision).removeprefix("torch.")
        self._layers = kernels.compile_entry(getattr(kernels, f"layers_{name}"))
        # In float32 PyTorch's own product is as fast.
        self._product: Any = kernels.compile_entry(kernels.product_bfloat16) if precision == torch.bfloat16 else None
        self._scratch: dict[tuple[int, int], tuple[Tensor, Tensor, numpy.ndarray]] = {}

    def layers(self, record: numpy.ndarray) -> None:
        """One forward pass: ``record`` [1] of ``pass_record``. Raises ValueError where it has more rows than fit."""
        if not 0 < record["rows"][0] <= self.most_rows:
            raise ValueError(f"a pass through the kernels has 1 to {self.most_rows} rows, not {record['rows'][0]}")
        self._run(self._layers.address, record.ctypes.data, self.threads, 0)

    def fits(self, rows: Tensor, weight: Tensor) -> bool:
        """Whether ``product`` takes these."""
        return (
            self._product is not None
            and rows.dim() == 2
            and 0 < len(rows) <= self.most_rows
            and rows.dtype == weight.dtype == self.precision
            and len(weight) % self.block == 0
            and rows.is_contiguous()
            and weight.is_contiguous()
        )

    def product(self, rows: Tensor, weight: Tensor) -> Tensor:
        """``rows`` [tokens, width] times ``weight`` [outer, width] transposed; for what ``fits``."""
        outer, width = weight.shape
        if (width, outer) not in self._scratch:
            widened, sums = torch.zeros(self.threads, self.most_rows, width), torch.zeros(self.most_rows, outer)
            record = numpy.zeros(1, self._product_record)
            record["width"], record["outer"] = width, outer
            record["widened"], record["sums"] = widened.data_ptr(), sums.data_ptr()
            self._scratch[width, outer] = (widened, sums, record)
        output = rows.new_empty(len(rows), outer)
        record = self._scratch[width, outer][-1]
        record["rows"], record["input"] = len(rows), rows.data_ptr()
        record["weight"], record["output"] = weight.data_ptr(), output.data_ptr()
        self._run(self._product.address, record.ctypes.data, self.threads, 0)
        return output


def prepare(precision: torch.dtype) -> None:
    """Compile the kernels, or take them from numba's cache, so that no request waits for it; say which in the log.

    Two processes that start at once compile once: numba's cache is not made for two writers.
    """
    if active:
        return
    began = time.monotonic()
    try:
        cache = os.environ.get("NUMBA_CACHE_DIR")
        if cache:
            Path(cache).mkdir(parents=True, exist_ok=True)
        with FileLock(Path(cache) / LOCK) if cache else nullcontext():
            active.append(Kernels(precision))
    except Exception as error:  # whatever it is: PyTorch serves without them
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        logger.warning("embedded engine: no compiled kernels (%s); PyTorch's operations serve", reason)
        return
    logger.info("embedded engine: compiled kernels ready after %.1f s", time.monotonic() - began)
