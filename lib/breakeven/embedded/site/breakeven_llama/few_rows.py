"""Llama's layers through the compiled kernels, where a pass has few rows: a decode step, a verify, a short prefill.

What the kernels need is worked out here: once per model the addresses of weights and scratch, once per pass which
entries of the cache each row sees. ``sgl_kernel/kernels.py`` says what is done with them.
"""

from typing import Any, NamedTuple

import numpy
import torch
from sgl_kernel.compiled import Kernels
from sglang.srt.layers.attention.intel_amx_backend import IntelAMXAttnBackend
from torch import Tensor


class Seen(NamedTuple):
    """What each row of a pass attends to: the first ``committed`` entries of its sequence, and rows of this pass."""

    table: Tensor
    """[sequences, width] int32: the slots of each sequence's positions."""
    table_rows: Tensor
    """[rows] int64: each row's sequence in the table."""
    committed: Tensor
    """[rows] int64."""
    visible: Tensor
    """[rows, rows] bool; a row sees itself."""


class FewRows:
    """The kernels' view of one model: a module with ``layers`` and ``norm``, all of the plain kind (``lean.py``)."""

    def __init__(self, model: Any, kernels: Kernels) -> None:
        self.kernels = kernels
        self.pool: Any = None
        self.pool_fits = False
        attention = model.layers[0].self_attn
        self.angles = attention.rotary_emb.cos_sin_cache.float().contiguous()
        self.attentions = [layer.self_attn.attn for layer in model.layers]
        self.layers = numpy.zeros(len(model.layers), kernels.layer_record)
        for record, layer in zip(self.layers, model.layers, strict=True):
            for name, weight in weights_of(layer).items():
                record[name] = weight.data_ptr()
        self.record = numpy.zeros(1, kernels.pass_record)
        self._set(
            epsilon=model.norm.variance_epsilon,
            scale=attention.attn.scaling,
            layer_count=len(model.layers),
            hidden=len(model.norm.weight),
            inner=model.layers[0].mlp.down_proj.weight.shape[1],
            heads=attention.num_heads,
            kv_heads=attention.num_kv_heads,
            dim=attention.head_dim,
            layers=self.layers.ctypes.data,
            final_norm=model.norm.weight.data_ptr(),
            angles=self.angles.data_ptr(),
        )

    def forward(
        self, embedded: Tensor, positions: Tensor, batch: Any, backend: Any, to_capture: list[int]
    ) -> tuple[Tensor, list[Tensor]] | None:
        """The final hidden states and the residuals before the layers ``to_capture``; None for another kind of pass."""
        if not 0 < len(embedded) <= self.kernels.most_rows or type(backend) is not IntelAMXAttnBackend:
            return None
        if batch.forward_mode.is_idle() or not self._takes(backend.token_to_kv_pool, embedded.dtype):
            return None
        seen = seen_in_decode(batch, backend) if batch.forward_mode.is_decode() else seen_in_extend(batch, backend)
        if not len(seen.committed) == len(batch.out_cache_loc) == len(embedded):
            return None  # padded
        result = torch.empty_like(embedded)
        captured = {index: torch.empty_like(embedded) for index in range(len(self.layers)) if index in to_capture}
        self.layers["captured"] = 0
        for index, residual in captured.items():
            self.layers["captured"][index] = residual.data_ptr()
        self._make_scratch(seen.table.shape[1])
        positions, slots = positions.to(torch.int64), batch.out_cache_loc.to(torch.int64)
        self._set(
            rows=len(embedded),
            table_width=seen.table.shape[1],
            embedded=embedded.data_ptr(),
            result=result.data_ptr(),
            positions=positions.data_ptr(),
            slots=slots.data_ptr(),
            table=seen.table.data_ptr(),
            table_rows=seen.table_rows.data_ptr(),
            committed=seen.committed.data_ptr(),
            visible=seen.visible.data_ptr(),
        )
        self.kernels.layers(self.record)
        return result, list(captured.values())

    def _takes(self, pool: Any, dtype: torch.dtype) -> bool:
        """Whether the cache is one that the kernels can write; its addresses are entered when it is first seen."""
        if pool is self.pool:
            return self.pool_fits
        self.pool = pool
        buffers = [
            (pool.get_key_buffer(attention.layer_id), pool.get_value_buffer(attention.layer_id))
            for attention in self.attentions
        ]
        shape = (int(self.record["kv_heads"][0]), int(self.record["dim"][0]))
        self.pool_fits = pool.layer_transfer_counter is None and all(
            buffer.dtype == dtype and buffer.shape[1:] == shape and buffer.is_contiguous()
            for pair in buffers
            for buffer in pair
        )
        for record, (keys, values) in zip(self.layers, buffers, strict=True):
            record["keys"], record["values"] = keys.data_ptr(), values.data_ptr()
        return self.pool_fits

    def _make_scratch(self, table_width: int) -> None:
        """Memory for what lies between the steps of a pass, made anew when the table gets wider."""
        longest = table_width + self.kernels.most_rows + self.kernels.block
        if longest <= self.record["longest"][0]:
            return
        size = {name: int(self.record[name][0]) for name in ("hidden", "inner", "heads", "kv_heads", "dim")}
        rows, block, threads = self.kernels.most_rows, self.kernels.block, self.kernels.threads
        shapes = {
            "residual": (rows, size["hidden"]),
            "projected": (rows, (size["heads"] + 2 * size["kv_heads"]) * size["dim"]),
            "attended": (rows, size["heads"] * size["dim"]),
            "gated": (rows, 2 * size["inner"]),
            "activated": (rows, size["inner"]),
            "normed": (threads, rows, size["hidden"]),
            "scores": (threads, block, longest),
            "four": (threads, 2, block, size["dim"]),
        }
        self.scratch = {name: torch.zeros(shape) for name, shape in shapes.items()}
        self.scratch["context"] = torch.zeros(rows, longest, dtype=torch.int64)
        self.scratch["counts"] = torch.zeros(rows, dtype=torch.int64)
        self._set(longest=longest, **{name: tensor.data_ptr() for name, tensor in self.scratch.items()})

    def _set(self, **fields: float) -> None:
        for name, value in fields.items():
            self.record[name] = value


def weights_of(layer: Any) -> dict[str, Tensor]:
    """A layer's weights by the names of the kernels' record."""
    return {
        "input_norm": layer.input_layernorm.weight,
        "qkv": layer.self_attn.qkv_proj.weight,
        "attention_out": layer.self_attn.o_proj.weight,
        "post_norm": layer.post_attention_layernorm.weight,
        "gate_up": layer.mlp.gate_up_proj.weight,
        "down": layer.mlp.down_proj.weight,
    }


def fits(layer: Any, kernels: Kernels) -> bool:
    """Whether the kernels can read a plain layer's weights, and need nothing of its attention that they lack."""
    attention = layer.self_attn.attn
    return (
        all(weight.dtype == kernels.precision and weight.is_contiguous() for weight in weights_of(layer).values())
        and all(len(weight) % kernels.block == 0 for weight in weights_of(layer).values())
        and attention.logit_cap == 0
        and attention.sliding_window_size < 0
        and attention.qk_head_dim == attention.v_head_dim
        and attention.k_scale is None
        and attention.v_scale is None
    )


def seen_in_decode(batch: Any, backend: Any) -> Seen:
    """One new token per sequence, or per branch of a draft: each sees what came before it, and itself."""
    if backend.draft_decode_metadata is not None:
        table, lengths, table_rows = backend.draft_decode_metadata
    else:
        table, lengths, table_rows = backend.req_to_token_pool.req_to_token, batch.seq_lens, batch.req_pool_indices
    visible = torch.eye(len(lengths), dtype=torch.bool)
    return Seen(table, table_rows.to(torch.int64), lengths.to(torch.int64) - 1, visible)


def seen_in_extend(batch: Any, backend: Any) -> Seen:
    """Several new tokens per sequence: each sees the prefix, and of the others what the tree or their order says."""
    lengths, new, starts, tree_mask = backend.extend_metadata
    rows = int(new.sum())
    table_rows = torch.repeat_interleave(batch.req_pool_indices.to(torch.int64), new)
    committed = torch.repeat_interleave(lengths.to(torch.int64) - new, new)
    visible, read = torch.zeros(rows, rows, dtype=torch.bool), 0
    for start, n in zip(starts.tolist(), new.tolist(), strict=True):
        block = visible[start : start + n, start : start + n]
        if tree_mask is None:
            block.copy_(torch.ones(n, n, dtype=torch.bool).tril_())
        else:
            block.copy_(tree_mask.view(-1)[read : read + n * n].view(n, n))
            read += n * n
    return Seen(backend.req_to_token_pool.req_to_token, table_rows, committed, visible)
