"""A plain Llama forward pass over a converted model's weights, with the attention left to the caller.

Generating, reading features and prefilling differ only in how attention finds its keys, so one pass serves all three.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the name that every PyTorch reader expects)
from safetensors.torch import load_file
from torch import Tensor

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries [B, T, heads, D], keys [B, T, kv heads, D], values like keys) -> mixed values [B, T, heads, D]."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama model, as its config.json names them."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Shape:
        """Read the sizes from a parsed config.json (transformers 5 keeps rope_theta in ``rope_parameters``)."""
        theta = config.get("rope_parameters", config)["rope_theta"]
        names = [name for name in cls.__dataclass_fields__ if name != "rope_theta"]
        return cls(**{name: config[name] for name in names}, rope_theta=theta)


@dataclass(frozen=True)
class Layer:
    """One decoder layer's weights, projections of the same input fused."""

    attention_norm: Tensor
    qkv: Tensor
    out: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Target:
    """The target model's weights on one device, in one dtype; holds no state between calls."""

    def __init__(self, weights: dict[str, Tensor], shape: Shape) -> None:
        self.shape = shape
        self.embedding = weights["model.embed_tokens.weight"]  # tied: also the output matrix
        self.final_norm = weights["model.norm.weight"]
        self.layers = [_fuse(weights, f"model.layers.{i}.") for i in range(shape.num_hidden_layers)]

    @classmethod
    def load(cls, folder: Path, device: str, dtype: torch.dtype) -> Target:
        """Load a converted model's folder (config.json, model.safetensors with tied embeddings)."""
        config = json.loads((folder / "config.json").read_text())
        weights = {name: w.to(device, dtype) for name, w in load_file(folder / "model.safetensors").items()}
        return cls(weights, Shape.from_config(config))

    def forward(
        self, ids: Tensor, positions: Tensor, attend: Attend, capture: Sequence[int] = ()
    ) -> tuple[Tensor, list[Tensor]]:
        """Run ``ids`` [B, T] at ``positions`` [B, T].

        Returns the normed last hidden state [B, T, H] and, for each layer number in ``capture``, that layer's input.
        """
        s = self.shape
        b, t = ids.shape
        x = F.embedding(ids, self.embedding)
        cos, sin = rope_table(positions, s.head_dim, s.rope_theta)
        captured = []
        for i, layer in enumerate(self.layers):
            if i in capture:
                captured.append(x)
            qkv = F.linear(self._norm(x, layer.attention_norm), layer.qkv).view(b, t, -1, s.head_dim)
            q, k, v = qkv.split([s.num_attention_heads, s.num_key_value_heads, s.num_key_value_heads], dim=2)
            mixed = attend(i, rotate(q, cos, sin), rotate(k, cos, sin), v)
            x = x + F.linear(mixed.reshape(b, t, -1), layer.out)
            gate, up = F.linear(self._norm(x, layer.mlp_norm), layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return self._norm(x, self.final_norm), captured

    def logits(self, hidden: Tensor) -> Tensor:
        """Vocabulary logits of normed hidden states."""
        return F.linear(hidden, self.embedding)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.shape.rms_norm_eps)


def masked_attention(mask: Tensor) -> Attend:
    """Attention among the tokens of one call; ``mask`` [B, 1, T, T] is True where a query (row) may look at a key."""

    def attend(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        groups = q.shape[2] // k.shape[2]
        k, v = (x.repeat_interleave(groups, dim=2).transpose(1, 2) for x in (k, v))
        return F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask).transpose(1, 2)

    return attend


def rope_table(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Cosines and sines [B, T, 1, D] in float32 of Llama's rotary embedding ("rotate half" convention)."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions[..., None].float() * theta**-exponents
    angles = torch.cat([angles, angles], dim=-1)[:, :, None]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding to [B, T, heads, D], computing in float32."""
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


def _fuse(weights: dict[str, Tensor], prefix: str) -> Layer:
    def joined(*names: str) -> Tensor:
        return torch.cat([weights[f"{prefix}{name}.weight"] for name in names])

    return Layer(
        attention_norm=joined("input_layernorm"),
        qkv=joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        out=joined("self_attn.o_proj"),
        mlp_norm=joined("post_attention_layernorm"),
        gate_up=joined("mlp.gate_proj", "mlp.up_proj"),
        down=joined("mlp.down_proj"),
    )
