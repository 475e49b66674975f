# mypy: allow-untyped-defs
"""Llama's layers for a few rows, compiled by numba: one call for a whole forward pass.

At 1 to 16 rows a pass is bound by reading the weights and by the number of operations; PyTorch needs 30 per layer. Here
every thread of PyTorch's OpenMP team runs the whole pass: it takes its share of each step and waits for the others at a
barrier. Weights and cache are float32, or bf16 held as uint16; all between them is float32.

A product reads four rows of the weight at once that lie a quarter of it apart, because a processor that prefetches four
streams reads half as fast again as from one; and each weight that was read serves four rows of the input, one row being
made four: then a row's result is the same bits whichever rows are beside it, in a step as in a verify.

It is one file because numba's cache looks at the time stamp of a function's own file only.
"""

from collections.abc import Callable
from typing import Any

import numpy
from numba import carray, cfunc, njit, types
from numba.extending import intrinsic, overload

MOST_ROWS = 16
BLOCK = 4  # rows of the weight, and rows of the input, that are read at once


def _record(**names_by_kind: tuple[str, ...]) -> numpy.dtype:
    return numpy.dtype([(name, kind) for kind, names in names_by_kind.items() for name in names])


PRODUCT = _record(int64=("rows", "width", "outer", "input", "weight", "output", "widened", "sums"))
"""What ``product_bfloat16`` is given: numbers, then addresses. Shapes and types stand in ``_product``."""

LAYER = _record(
    int64=("input_norm", "qkv", "attention_out", "post_norm", "gate_up", "down", "keys", "values", "captured")
)
"""Addresses of one layer's weights and caches; ``captured`` is where its input goes, or 0."""

PASS = _record(
    float32=("epsilon", "scale"),
    int64=(
        *("rows", "layer_count", "hidden", "inner", "heads", "kv_heads", "dim", "table_width", "longest"),
        *("layers", "final_norm", "angles", "embedded", "result"),
        *("positions", "table", "table_rows", "committed", "visible", "slots"),
        *("residual", "projected", "attended", "gated", "activated", "normed", "context", "counts", "scores", "four"),
    ),
)
"""What ``layers_*`` is given: numbers, then addresses: of the model, of the pass, and of memory to work in.

Shapes and types stand in ``_layers``. ``longest`` is the room for one row's context: the width of the table, and
MOST_ROWS, and BLOCK.
"""

barrier = types.ExternalFunction("GOMP_barrier", types.void())
thread_number = types.ExternalFunction("omp_get_thread_num", types.int32())
thread_count = types.ExternalFunction("omp_get_num_threads", types.int32())

# Sums may be reordered, so that they run in lanes; NaN and infinity keep their meaning.
compiled = njit(fastmath={"reassoc", "contract", "nsz"}, error_model="numpy")


@intrinsic
def _address(context, number):
    """An integer as a pointer."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@compiled
def _array(address, shape, dtype):
    return carray(_address(address), shape, dtype)


def _widen(value):
    """A bf16 number, held as uint16, as float32; a float32 as it is."""


@overload(_widen)
def _widen_compiled(value):
    if value == types.uint16:
        return lambda value: numpy.uint32(numpy.uint32(value) << numpy.uint32(16)).view(numpy.float32)
    return lambda value: value


def _narrow(value, dtype):
    """A float32 as ``dtype``: as it is, or the nearest bf16 (of two equally near ones that with an even last bit)."""


@overload(_narrow)
def _narrow_compiled(value, dtype):
    if dtype.dtype != types.uint16:
        return lambda value, dtype: value

    def to_bf16(value, dtype):
        if value != value:
            return numpy.uint16(0x7FC0)  # NaN
        bits = numpy.float32(value).view(numpy.uint32)
        return numpy.uint16((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)

    return to_bf16


@compiled
def _exponential(x):
    """e^x in float32, to 3e-7 of it: 2^n times a polynomial in the rest (the library's function can't run in lanes)."""
    power = min(max(x * numpy.float32(1.4426950408889634), numpy.float32(-126)), numpy.float32(126))
    whole = numpy.floor(power + numpy.float32(0.5))
    rest = power - whole
    result = numpy.float32(1.5403530e-4)  # ln(2)^6 / 6!, and so on down to 1
    result = result * rest + numpy.float32(1.3333558e-3)
    result = result * rest + numpy.float32(9.6181291e-3)
    result = result * rest + numpy.float32(5.5504109e-2)
    result = result * rest + numpy.float32(2.4022651e-1)
    result = result * rest + numpy.float32(6.9314718e-1)
    result = result * rest + numpy.float32(1)
    return result * numpy.uint32((numpy.int32(whole) + 127) << 23).view(numpy.float32)


@compiled
def _dots_of_four(x, w0, w1, w2, w3):
    """The dot products of four rows ``x`` [4, width] with four others: those of the first row, of the second, ..."""
    x0, x1, x2, x3 = x[0], x[1], x[2], x[3]
    zero = numpy.float32(0)
    a0, a1, a2, a3 = zero, zero, zero, zero
    b0, b1, b2, b3 = zero, zero, zero, zero
    c0, c1, c2, c3 = zero, zero, zero, zero
    d0, d1, d2, d3 = zero, zero, zero, zero
    for k in range(x.shape[1]):
        u0, u1, u2, u3 = _widen(w0[k]), _widen(w1[k]), _widen(w2[k]), _widen(w3[k])
        a, b, c, d = x0[k], x1[k], x2[k], x3[k]
        a0, a1, a2, a3 = a0 + a * u0, a1 + a * u1, a2 + a * u2, a3 + a * u3
        b0, b1, b2, b3 = b0 + b * u0, b1 + b * u1, b2 + b * u2, b3 + b * u3
        c0, c1, c2, c3 = c0 + c * u0, c1 + c * u1, c2 + c * u2, c3 + c * u3
        d0, d1, d2, d3 = d0 + d * u0, d1 + d * u1, d2 + d * u2, d3 + d * u3
    return (a0, a1, a2, a3), (b0, b1, b2, b3), (c0, c1, c2, c3), (d0, d1, d2, d3)


@compiled
def _share(count, thread, threads):
    """Where a thread's part of ``count`` begins and ends."""
    return count * thread // threads, count * (thread + 1) // threads


@compiled
def _add_product(x, w, y, rows, thread, threads):
    """Add to ``y`` this thread's columns of ``x`` [rows, width] times ``w`` [4 * apart, width] transposed.

    The columns are the thread's share of each quarter. Up to the next multiple of four rows, ``x`` and ``y`` have rows
    that mean nothing.
    """
    apart = len(w) // BLOCK
    first, last = _share(apart, thread, threads)
    for o in range(first, last):
        w0, w1, w2, w3 = w[o], w[o + apart], w[o + 2 * apart], w[o + 3 * apart]
        for r in range(0, rows, BLOCK):
            four = _dots_of_four(x[r : r + BLOCK], w0, w1, w2, w3)
            for i in range(BLOCK):
                for j in range(BLOCK):
                    y[r + i, o + j * apart] += four[i][j]


@compiled
def _set_product(x, w, y, rows, thread, threads):
    """The same in place of what ``y`` holds."""
    apart = len(w) // BLOCK
    first, last = _share(apart, thread, threads)
    for r in range(rows):
        for j in range(BLOCK):
            y[r, j * apart + first : j * apart + last] = 0
    _add_product(x, w, y, rows, thread, threads)


@compiled
def _norm(row, weight, epsilon, out):
    squares = numpy.float32(0)
    for k in range(row.size):
        squares += row[k] * row[k]
    factor = numpy.float32(1) / numpy.sqrt(squares / numpy.float32(row.size) + epsilon)
    for k in range(row.size):
        out[k] = row[k] * factor * _widen(weight[k])


@compiled
def _rotate(head, angles):
    """Turn a head's halves (a, b) into (a cos - b sin, b cos + a sin); ``angles`` holds the cosines, then the sines."""
    half = head.size // 2
    for k in range(half):
        a, b, cos, sin = head[k], head[k + half], angles[k], angles[k + half]
        head[k] = a * cos - b * sin
        head[k + half] = b * cos + a * sin


@compiled
def _activate(gated, activated, rows, thread, threads):
    """SiLU of the gates times the values behind them, in the columns that this thread's product has set."""
    inner = activated.shape[1]
    first, last = _share(inner // 2, thread, threads)
    for r in range(rows):
        for quarter in range(2):
            for k in range(quarter * (inner // 2) + first, quarter * (inner // 2) + last):
                x = gated[r, k]
                activated[r, k] = x / (numpy.float32(1) + _exponential(-x)) * gated[r, inner + k]


@compiled
def _find_context(c, row, context):
    """The slots that a row attends to: its sequence's committed ones, then those of the new rows that it sees.

    Returns their number. Up to the next multiple of four the last one is repeated.
    """
    table_row = _array(c.table_rows, c.rows, numpy.int64)[row]
    table = _array(c.table + 4 * c.table_width * table_row, c.table_width, numpy.int32)
    visible = _array(c.visible, (c.rows, c.rows), numpy.uint8)
    slots = _array(c.slots, c.rows, numpy.int64)
    count = _array(c.committed, c.rows, numpy.int64)[row]
    for p in range(count):
        context[p] = table[p]
    for other in range(c.rows):
        if visible[row, other]:
            context[count] = slots[other]
            count += 1
    for p in range(count, (count + BLOCK - 1) // BLOCK * BLOCK):
        context[p] = context[count - 1]
    return count


@compiled
def _softmax(scores, count):
    """Make weights of a row of ``count`` scores; those up to the next multiple of four become 0."""
    highest = scores[0]
    for p in range(1, count):
        highest = max(highest, scores[p])
    total = numpy.float32(0)
    for p in range(count):
        scores[p] = _exponential(scores[p] - highest)
        total += scores[p]
    for p in range(count):
        scores[p] /= total
    for p in range(count, (count + BLOCK - 1) // BLOCK * BLOCK):
        scores[p] = 0


@compiled
def _attend(queries, keys, values, kv_head, slots, count, scale, scores, out):
    """Attention of four query heads [4, dim] to ``count`` slots of the key-value head they share: ``out`` alike."""
    for p in range(0, count, BLOCK):
        s0, s1, s2, s3 = slots[p], slots[p + 1], slots[p + 2], slots[p + 3]
        four = _dots_of_four(queries, keys[s0, kv_head], keys[s1, kv_head], keys[s2, kv_head], keys[s3, kv_head])
        for i in range(BLOCK):
            for j in range(BLOCK):
                scores[i, p + j] = four[i][j] * scale
    for i in range(BLOCK):
        _softmax(scores[i], count)
        out[i] = 0
    for p in range(0, count, BLOCK):
        s0, s1, s2, s3 = slots[p], slots[p + 1], slots[p + 2], slots[p + 3]
        v0, v1, v2, v3 = values[s0, kv_head], values[s1, kv_head], values[s2, kv_head], values[s3, kv_head]
        a0, a1, a2, a3 = scores[0, p], scores[0, p + 1], scores[0, p + 2], scores[0, p + 3]
        b0, b1, b2, b3 = scores[1, p], scores[1, p + 1], scores[1, p + 2], scores[1, p + 3]
        c0, c1, c2, c3 = scores[2, p], scores[2, p + 1], scores[2, p + 2], scores[2, p + 3]
        d0, d1, d2, d3 = scores[3, p], scores[3, p + 1], scores[3, p + 2], scores[3, p + 3]
        for k in range(out.shape[1]):
            u0, u1, u2, u3 = _widen(v0[k]), _widen(v1[k]), _widen(v2[k]), _widen(v3[k])
            out[0, k] += a0 * u0 + a1 * u1 + a2 * u2 + a3 * u3
            out[1, k] += b0 * u0 + b1 * u1 + b2 * u2 + b3 * u3
            out[2, k] += c0 * u0 + c1 * u1 + c2 * u2 + c3 * u3
            out[3, k] += d0 * u0 + d1 * u1 + d2 * u2 + d3 * u3


@compiled
def _layers(c, dtype):
    """All layers and the final norm, as one thread of the team: ``embedded`` to ``result``."""
    thread, threads = numpy.int64(thread_number()), numpy.int64(thread_count())
    rows, hidden, inner, dim, heads, kv_heads = c.rows, c.hidden, c.inner, c.dim, c.heads, c.kv_heads
    group, all_heads = heads // kv_heads, heads + 2 * kv_heads
    layers = _array(c.layers, c.layer_count, LAYER)
    angles = _array(c.angles, (2**31, dim), numpy.float32)
    embedded, result = _array(c.embedded, (rows, hidden), dtype), _array(c.result, (rows, hidden), dtype)
    positions, slots = _array(c.positions, rows, numpy.int64), _array(c.slots, rows, numpy.int64)
    residual = _array(c.residual, (MOST_ROWS, hidden), numpy.float32)
    projected = _array(c.projected, (MOST_ROWS, all_heads * dim), numpy.float32)
    attended = _array(c.attended, (MOST_ROWS, heads * dim), numpy.float32)
    gated = _array(c.gated, (MOST_ROWS, 2 * inner), numpy.float32)
    activated = _array(c.activated, (MOST_ROWS, inner), numpy.float32)
    context = _array(c.context, (MOST_ROWS, c.longest), numpy.int64)
    counts = _array(c.counts, MOST_ROWS, numpy.int64)
    # Each thread has its own: a norm is cheaper than waiting for another thread to compute it.
    normed = _array(c.normed, (threads, MOST_ROWS, hidden), numpy.float32)[thread]
    scores = _array(c.scores, (threads, BLOCK, c.longest), numpy.float32)[thread]
    four = _array(c.four, (threads, 2, BLOCK, dim), numpy.float32)[thread]
    for r in range(thread, rows, threads):
        counts[r] = _find_context(c, r, context[r])
        for k in range(hidden):
            residual[r, k] = _widen(embedded[r, k])
    barrier()
    for index in range(c.layer_count):
        layer = layers[index]
        keys, values = (
            _array(layer.keys, (2**31, kv_heads, dim), dtype),
            _array(layer.values, (2**31, kv_heads, dim), dtype),
        )
        if layer.captured:
            captured = _array(layer.captured, (rows, hidden), dtype)
            for r in range(thread, rows, threads):
                for k in range(hidden):
                    captured[r, k] = _narrow(residual[r, k], dtype)
        for r in range(rows):
            _norm(residual[r], _array(layer.input_norm, hidden, dtype), c.epsilon, normed[r])
        _set_product(normed, _array(layer.qkv, (all_heads * dim, hidden), dtype), projected, rows, thread, threads)
        barrier()
        for task in range(thread, rows * all_heads, threads):
            r, head = task // all_heads, task % all_heads
            lanes = projected[r, head * dim : (head + 1) * dim]
            if head < heads + kv_heads:
                _rotate(lanes, angles[positions[r]])
            if head >= heads:
                is_key = head < heads + kv_heads
                stored = keys[slots[r], head - heads] if is_key else values[slots[r], head - heads - kv_heads]
                for k in range(dim):
                    stored[k] = _narrow(lanes[k], dtype)
        barrier()
        for task in range(thread, rows * kv_heads, threads):
            r, kv_head = task // kv_heads, task % kv_heads
            for first in range(kv_head * group, (kv_head + 1) * group, BLOCK):
                used = min(BLOCK, (kv_head + 1) * group - first)
                for i in range(used):
                    four[0, i] = projected[r, (first + i) * dim : (first + i + 1) * dim]
                _attend(four[0], keys, values, kv_head, context[r], counts[r], c.scale, scores, four[1])
                for i in range(used):
                    attended[r, (first + i) * dim : (first + i + 1) * dim] = four[1, i]
        barrier()
        _add_product(
            attended, _array(layer.attention_out, (hidden, heads * dim), dtype), residual, rows, thread, threads
        )
        barrier()
        for r in range(rows):
            _norm(residual[r], _array(layer.post_norm, hidden, dtype), c.epsilon, normed[r])
        _set_product(normed, _array(layer.gate_up, (2 * inner, hidden), dtype), gated, rows, thread, threads)
        _activate(gated, activated, rows, thread, threads)
        barrier()
        _add_product(activated, _array(layer.down, (hidden, inner), dtype), residual, rows, thread, threads)
        barrier()
    for r in range(thread, rows, threads):
        _norm(residual[r], _array(c.final_norm, hidden, dtype), c.epsilon, normed[r])
        for k in range(hidden):
            result[r, k] = _narrow(normed[r, k], dtype)


@compiled
def _product(c, dtype):
    """``input`` [rows, width] times ``weight`` [outer, width] transposed, as one thread of the team: ``output``."""
    thread, threads = numpy.int64(thread_number()), numpy.int64(thread_count())
    given, output = _array(c.input, (c.rows, c.width), dtype), _array(c.output, (c.rows, c.outer), dtype)
    widened = _array(c.widened, (threads, MOST_ROWS, c.width), numpy.float32)[thread]
    sums = _array(c.sums, (MOST_ROWS, c.outer), numpy.float32)
    for r in range(c.rows):
        for k in range(c.width):
            widened[r, k] = _widen(given[r, k])
    _set_product(widened, _array(c.weight, (c.outer, c.width), dtype), sums, c.rows, thread, threads)
    first, last = _share(c.outer // BLOCK, thread, threads)
    for r in range(c.rows):
        for j in range(BLOCK):
            for o in range(j * (c.outer // BLOCK) + first, j * (c.outer // BLOCK) + last):
                output[r, o] = _narrow(sums[r, o], dtype)


def layers_bfloat16(data):
    _layers(carray(data, 1, PASS)[0], numpy.uint16)


def layers_float32(data):
    _layers(carray(data, 1, PASS)[0], numpy.float32)


def product_bfloat16(data):
    _product(carray(data, 1, PRODUCT)[0], numpy.uint16)


def compile_entry(function: Callable[[Any], None]) -> Any:
    """One of the three functions above as ``void f(void *record)`` at ``.address``, compiled or from numba's cache.

    The code lives as long as what is returned.
    """
    return cfunc(types.void(types.voidptr), cache=True)(function)
