"""A forward pass through Llama's layers with as few steps as possible: one at few rows, where compiled kernels are
(``few_rows.py``), and elsewhere as few as PyTorch allows.

At one token a layer of a small model computes for half a millisecond, and SGLang's layer stack spends nearly as long on
top of that: module calls, stage boundaries made for many ranks, and fallbacks in ten small operations each. Here the
same weights, caches and attention backend are used, the rotary angles are looked up once per pass instead of once per
layer, and a norm is one operation. What counts is the number of operations: each finds the processor's caches full of
the last matrix, and takes three times as long as in a loop of its own. Results differ from SGLang's layers by rounding
only.
"""

from typing import Any

import torch
from sgl_kernel import compiled
from sgl_kernel.linear import linear_plus, weight_packed_linear
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
from sglang.srt.model_executor.forward_context import get_attn_backend
from sglang.srt.models.llama import LlamaModel
from torch import Tensor
from torch.nn.functional import layer_norm, silu

from . import few_rows


class LeanLlamaModel(LlamaModel):
    """SGLang's ``LlamaModel`` with another ``forward``, for a model that is whole on this rank and not quantised."""

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        forward_batch: Any,
        input_embeds: Tensor | None = None,
        pp_proxy_tensors: Any = None,
    ) -> Tensor | tuple[Tensor, list[Tensor]]:
        """The final hidden states [tokens, hidden], and with EAGLE-3 the residuals before ``layers_to_capture``."""
        if not self.can_be_lean():
            return super().forward(input_ids, positions, forward_batch, input_embeds, pp_proxy_tensors)
        residual = self.embed_tokens(input_ids) if input_embeds is None else input_embeds
        if self.few_rows is not None:
            done = self.few_rows.forward(residual, positions, forward_batch, get_attn_backend(), self.layers_to_capture)
            if done is not None:
                return done if self.layers_to_capture else done[0]
        angles = rotary_angles(self.layers[0].self_attn.rotary_emb, positions, residual.dtype)
        captured = []
        for index, layer in enumerate(self.layers):
            if index in self.layers_to_capture:
                captured.append(residual)
            attended = attend(layer.self_attn, normed(layer.input_layernorm, residual), angles, forward_batch)
            residual = linear_plus(attended, layer.self_attn.o_proj.weight, residual)
            gated = gate(layer.mlp, normed(layer.post_attention_layernorm, residual))
            residual = linear_plus(gated, layer.mlp.down_proj.weight, residual)
        hidden = normed(self.norm, residual)
        return (hidden, captured) if captured else hidden

    def can_be_lean(self) -> bool:
        """Whether every layer is of the plain kind that this pass is written for; found out once."""
        if not hasattr(self, "_lean"):
            self._lean = self.pp_group.world_size == 1 and all(map(is_plain, self.layers))
            suit = (
                self._lean
                and compiled.active
                and all(few_rows.fits(layer, compiled.active[0]) for layer in self.layers)
            )
            self.few_rows = few_rows.FewRows(self, compiled.active[0]) if suit else None
        return self._lean


def is_plain(layer: Any) -> bool:
    """No bias, no ranks to sum over, no quantisation, and a rotary embedding over the whole head in two halves."""
    attention, mlp = layer.self_attn, layer.mlp
    rotary = attention.rotary_emb
    linears = (attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj)
    return (
        all(linear.bias is None and isinstance(linear.quant_method, UnquantizedLinearMethod) for linear in linears)
        and attention.num_heads == attention.total_num_heads
        and type(rotary).forward_native is RotaryEmbedding.forward_native
        and rotary.is_neox_style
        and rotary.rotary_dim == rotary.head_size
    )


def normed(norm: Any, rows: Tensor) -> Tensor:
    """The rows through an RMS norm, by way of PyTorch's layer norm, which is one operation where its RMS norm is six.

    A row beside its negative has mean 0, and for a variance the mean square of the row.
    """
    if not hasattr(norm, "weight_twice"):
        norm.weight_twice = torch.cat((norm.weight, norm.weight))
    width = rows.shape[-1]
    both = layer_norm(torch.cat((rows, -rows), dim=-1), (2 * width,), norm.weight_twice, None, norm.variance_epsilon)
    return both[:, :width].contiguous()


def rotary_angles(rotary: RotaryEmbedding, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines, and sines with the sign that the halves of a head need: each [tokens, 1, head_dim].

    A head's halves (a, b) turn into (a cos - b sin, b cos + a sin), which is (a, b) cos + (b, a) (-sin, sin).
    """
    cos, sin = rotary.cos_sin_cache.index_select(0, positions).to(dtype).chunk(2, dim=-1)
    return torch.cat((cos, cos), dim=-1).unsqueeze(1), torch.cat((-sin, sin), dim=-1).unsqueeze(1)


def attend(attention: Any, rows: Tensor, angles: tuple[Tensor, Tensor], forward_batch: Any) -> Tensor:
    """The projection to heads, their rotation, and SGLang's attention backend, which keeps the cache."""
    cos, signed_sin = angles
    heads = weight_packed_linear(rows, attention.qkv_proj.weight, None, True).view(len(rows), -1, attention.head_dim)
    queries = attention.num_heads
    keys = queries + attention.num_kv_heads
    turning = heads[:, :keys]
    turned = torch.addcmul(turning * cos, turning.roll(attention.head_dim // 2, dims=-1), signed_sin)
    return get_attn_backend().forward(
        turned[:, :queries].flatten(1), turned[:, queries:], heads[:, keys:], attention.attn, forward_batch
    )


def gate(mlp: Any, rows: Tensor) -> Tensor:
    """The gated projection of the feed-forward layer."""
    gates, values = weight_packed_linear(rows, mlp.gate_up_proj.weight, None, True).chunk(2, dim=-1)
    return silu(gates) * values
