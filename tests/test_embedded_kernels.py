"""The compiled kernels of the embedded engine against plain formulas in float64, on random models and inputs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest
import torch
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from torch import Tensor
from torch.nn.functional import linear, silu

from breakeven.embedded import engine
from breakeven.embedded.site.sgl_kernel import compiled, kernels

SEEDS = st.integers(0, 2**31)
QUICK = settings(max_examples=25)
PRECISIONS = {"float32": (torch.float32, 1e-5), "bfloat16": (torch.bfloat16, 0.04)}
SLOTS = 64


@pytest.fixture(scope="module", params=PRECISIONS)
def served(request: pytest.FixtureRequest) -> tuple[compiled.Kernels, float]:
    """The kernels of one precision, and how far its results may be from the exact ones."""
    precision, tolerance = PRECISIONS[request.param]
    return compiled.Kernels(precision), tolerance


class Model:
    """A random model, its cache, and a pass of several sequences over it, each with a random tree of new tokens."""

    def __init__(self, seed: int, precision: torch.dtype) -> None:
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        pick = self.rng.choice
        self.kv_heads, self.group, self.dim = pick([1, 2]), pick([1, 3, 5]), pick([4, 8, 12])
        self.heads = self.kv_heads * self.group
        self.hidden, self.inner, self.precision = pick([8, 20]), pick([4, 12, 36]), precision
        rows = (self.heads + 2 * self.kv_heads) * self.dim
        self.layers = [
            {
                "input_norm": self.random(self.hidden),
                "qkv": self.random(rows, self.hidden),
                "attention_out": self.random(self.hidden, self.heads * self.dim),
                "post_norm": self.random(self.hidden),
                "gate_up": self.random(2 * self.inner, self.hidden),
                "down": self.random(self.hidden, self.inner),
                "keys": self.random(SLOTS, self.kv_heads, self.dim),
                "values": self.random(SLOTS, self.kv_heads, self.dim),
            }
            for _ in range(2)
        ]
        self.final_norm, self.angles = self.random(self.hidden), torch.randn(40, self.dim)
        self._choose_pass()

    def random(self, *shape: int) -> Tensor:
        return (torch.randn(shape) * shape[-1] ** -0.5).to(self.precision)

    def _choose_pass(self) -> None:
        rng = self.rng
        sequences = rng.randint(1, 3)
        new = [rng.randint(1, kernels.MOST_ROWS // sequences) for _ in range(sequences)]
        lengths = [rng.randint(0, 9) for _ in new]
        free = rng.sample(range(SLOTS), sum(new) + sum(lengths))
        self.rows = sum(new)
        self.table = torch.full((4, 12), 7, dtype=torch.int32)
        self.table_rows = torch.repeat_interleave(torch.tensor(rng.sample(range(4), len(new))), torch.tensor(new))
        self.committed = torch.repeat_interleave(torch.tensor(lengths), torch.tensor(new))
        self.visible = torch.zeros(self.rows, self.rows, dtype=torch.bool)
        first = 0
        for n, length in zip(new, lengths, strict=True):
            for p in range(length):
                self.table[self.table_rows[first], p] = free.pop()
            self.visible[first : first + n, first : first + n] = torch.rand(n, n) < 0.5
            first += n
        self.visible.fill_diagonal_(True)
        self.slots = torch.tensor(free)
        self.positions = torch.randint(0, 40, (self.rows,))
        self.embedded = self.random(self.rows, self.hidden)

    def context(self, row: int) -> Tensor:
        """The slots that a row attends to."""
        prefix = self.table[self.table_rows[row], : self.committed[row]].long()
        return torch.cat((prefix, self.slots[self.visible[row]]))

    def norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        return rows * (rows.pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()

    def expected(self) -> tuple[Tensor, Tensor]:
        """The result and the second layer's input. Writes the new keys and values into the cache."""
        residual, half = self.embedded.double(), self.dim // 2
        cos, sin = self.angles[self.positions].double().view(-1, 1, 2, half).unbind(2)
        for layer in self.layers:
            before = residual
            heads = linear(self.norm(residual, layer["input_norm"]), layer["qkv"].double()).view(
                self.rows, -1, self.dim
            )
            turning, values = heads.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
            a, b = turning[..., :half], turning[..., half:]
            queries, keys = torch.cat((a * cos - b * sin, b * cos + a * sin), -1).split([self.heads, self.kv_heads], 1)
            layer["keys"][self.slots] = keys.to(self.precision)
            layer["values"][self.slots] = values.to(self.precision)
            attended = torch.stack([self.attend(layer, queries[row], row) for row in range(self.rows)])
            residual = residual + linear(attended, layer["attention_out"].double())
            gates, inner = linear(self.norm(residual, layer["post_norm"]), layer["gate_up"].double()).chunk(2, dim=-1)
            residual = residual + linear(silu(gates) * inner, layer["down"].double())
        return self.norm(residual, self.final_norm), before

    def attend(self, layer: dict[str, Tensor], queries: Tensor, row: int) -> Tensor:
        found = []
        for head, query in enumerate(queries):
            seen = (self.context(row), head // self.group)
            weights = (layer["keys"][seen].double() @ query * self.dim**-0.5).softmax(0)
            found.append(weights @ layer["values"][seen].double())
        return torch.cat(found)

    def run(self, ready: compiled.Kernels, rows: list[int] | None = None) -> tuple[Tensor, Tensor]:
        """What the kernels make of the pass, or of some of its rows: the result and the second layer's input."""
        chosen = torch.tensor(list(range(self.rows)) if rows is None else rows)
        most, block, threads, longest = ready.most_rows, ready.block, ready.threads, self.table.shape[1] + 20
        given = {
            "embedded": self.embedded[chosen],
            "positions": self.positions[chosen],
            "table": self.table,
            "table_rows": self.table_rows[chosen],
            "committed": self.committed[chosen],
            "visible": self.visible[chosen][:, chosen].contiguous(),
            "slots": self.slots[chosen],
            "result": torch.empty(len(chosen), self.hidden, dtype=self.precision),
            "residual": torch.zeros(most, self.hidden),
            "projected": torch.zeros(most, (self.heads + 2 * self.kv_heads) * self.dim),
            "attended": torch.zeros(most, self.heads * self.dim),
            "gated": torch.zeros(most, 2 * self.inner),
            "activated": torch.zeros(most, self.inner),
            "normed": torch.zeros(threads, most, self.hidden),
            "context": torch.zeros(most, longest, dtype=torch.int64),
            "counts": torch.zeros(most, dtype=torch.int64),
            "scores": torch.zeros(threads, block, longest),
            "four": torch.zeros(threads, 2, block, self.dim),
            "final_norm": self.final_norm,
            "angles": self.angles,
        }
        captured = torch.empty_like(given["result"])
        table = numpy.zeros(len(self.layers), ready.layer_record)
        for entry, layer in zip(table, self.layers, strict=True):
            for name, tensor in layer.items():
                entry[name] = tensor.data_ptr()
        table["captured"][1] = captured.data_ptr()
        record = numpy.zeros(1, ready.pass_record)
        record["rows"], record["layer_count"], record["layers"] = len(chosen), len(table), table.ctypes.data
        record["epsilon"], record["scale"], record["longest"] = 1e-5, self.dim**-0.5, longest
        record["table_width"] = self.table.shape[1]
        for name in ("hidden", "inner", "heads", "kv_heads", "dim"):
            record[name] = getattr(self, name)
        for name, tensor in given.items():
            record[name] = tensor.data_ptr()
        ready.layers(record)
        return given["result"], captured


@QUICK
@given(seed=SEEDS)
def test_layers_follow_their_formulas(served: tuple[compiled.Kernels, float], seed: int) -> None:
    ready, tolerance = served
    model = Model(seed, ready.precision)
    before = [{name: layer[name].clone() for name in ("keys", "values")} for layer in model.layers]
    result, captured = model.run(ready)
    written = [{name: layer[name].clone() for name in ("keys", "values")} for layer in model.layers]
    expected, second_input = model.expected()
    others = [slot for slot in range(SLOTS) if slot not in model.slots.tolist()]
    for old, new, layer in zip(before, written, model.layers, strict=True):
        for name in old:
            assert torch.equal(new[name][others], old[name][others])
            torch.testing.assert_close(new[name], layer[name], atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(captured.double(), second_input, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(result.double(), expected, atol=tolerance, rtol=tolerance)


@QUICK
@given(seed=SEEDS)
def test_chain_verified_at_once_gives_the_bits_of_single_steps(
    served: tuple[compiled.Kernels, float], seed: int
) -> None:
    ready, _ = served
    model = Model(seed, ready.precision)
    n = min(model.rows, 5)
    model.committed[:] = model.committed[0]
    model.table_rows[:] = model.table_rows[0]
    model.visible[:] = torch.ones_like(model.visible).tril_()
    at_once, _ = model.run(ready, list(range(n)))
    kept = [layer["keys"].clone() for layer in model.layers]
    length = int(model.committed[0])
    model.table = torch.nn.functional.pad(model.table, (0, n))
    for row in range(n):
        model.committed[row] = length + row
        alone, _ = model.run(ready, [row])
        model.table[model.table_rows[0], length + row] = model.slots[row]
        assert torch.equal(alone[0], at_once[row])
    assert all(torch.equal(layer["keys"], keys) for layer, keys in zip(model.layers, kept, strict=True))


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 16])
@pytest.mark.parametrize(("width", "outer"), [(7, 4), (96, 80), (33, 12)])
def test_product_equals_the_plain_one(rows: int, width: int, outer: int) -> None:
    ready = compiled.Kernels(torch.bfloat16)
    torch.manual_seed(rows)
    given_rows, weight = torch.randn(rows, width).bfloat16(), torch.randn(outer, width).bfloat16()
    assert ready.fits(given_rows, weight)
    for _ in range(2):  # the second product finds what the first left in its memory
        found = ready.product(given_rows, weight)
        torch.testing.assert_close(found, linear(given_rows.double(), weight.double()).bfloat16())


def test_pass_with_too_many_rows_is_refused(served: tuple[compiled.Kernels, float]) -> None:
    ready, _ = served
    model = Model(0, ready.precision)
    with pytest.raises(ValueError, match="1 to 16 rows, not 17"):
        model.run(ready, [0] * 17)


def test_product_is_refused_for_what_the_kernels_cannot_read() -> None:
    ready = compiled.Kernels(torch.bfloat16)
    rows, weight = torch.zeros(2, 8).bfloat16(), torch.zeros(12, 8).bfloat16()
    assert ready.fits(rows, weight)
    assert not ready.fits(rows.float(), weight.float())
    assert not ready.fits(torch.zeros(kernels.MOST_ROWS + 1, 8).bfloat16(), weight)
    assert not ready.fits(rows, weight[:10])
    assert not ready.fits(rows, torch.zeros(8, 12).bfloat16().t())
    assert not compiled.Kernels(torch.float32).fits(rows.float(), weight.float())


@njit
def narrowed(values, results):  # type: ignore[no-untyped-def]
    for i in range(values.size):
        results[i] = kernels._narrow(values[i], numpy.uint16)


def test_rounding_to_bf16_is_that_of_pytorch() -> None:
    torch.manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (20_000,), dtype=torch.int64).to(torch.int32)
    halves = (torch.arange(2000, dtype=torch.int32) << 16) + 0x8000  # as far from the next number as from the last
    values = torch.cat((bits, halves, torch.tensor([0x7F800000, 0x7F7FFFFF], dtype=torch.int32))).view(torch.float32)
    results = numpy.empty(len(values), numpy.uint16)
    narrowed(values.numpy(), results)
    found, expected = torch.from_numpy(results).view(torch.bfloat16), values.bfloat16()
    numbers = ~values.isnan()
    assert torch.equal(found[numbers], expected[numbers]) and bool(found[~numbers].isnan().all())


def test_exponential_is_exact_to_float32() -> None:
    values = numpy.linspace(-80, 80, 4001, dtype=numpy.float32)
    found = numpy.array([kernels._exponential(value) for value in values], dtype=numpy.float64)
    # the argument's own rounding grows with it
    assert (abs(found / numpy.exp(values.astype(numpy.float64)) - 1) < 3e-7 + 1.2e-7 * abs(values)).all()


def in_server_environment(code: str, **changes: str) -> subprocess.CompletedProcess[str]:
    environment = engine.server_environment(os.environ) | changes
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


def test_without_a_compiler_pytorch_serves_and_the_log_says_so(tmp_path: Path) -> None:
    code = (
        "import torch; from sgl_kernel import compiled, linear; compiled.prepare(torch.bfloat16);"
        "rows, weight = torch.ones(2, 8).bfloat16(), torch.ones(4, 8).bfloat16();"
        "print(len(compiled.active), linear.weight_packed_linear(rows, weight, None, True).sum().item())"
    )
    result = in_server_environment(code, NUMBA_DISABLE_JIT="1", NUMBA_CACHE_DIR=str(tmp_path))
    assert result.stdout.split() == ["0", "64.0"], result.stderr
    assert "embedded engine: no compiled kernels (" in result.stderr


def test_one_process_waits_while_another_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "active", [])
    monkeypatch.setattr(compiled, "Kernels", lambda precision: str(precision))
    (tmp_path / "cache").mkdir()
    with FileLock(tmp_path / "cache" / compiled.LOCK):
        waiting = threading.Thread(target=compiled.prepare, args=(torch.bfloat16,))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive() and not compiled.active
    waiting.join(30)
    assert compiled.active == ["torch.bfloat16"]
