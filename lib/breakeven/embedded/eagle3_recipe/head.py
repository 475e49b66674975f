"""The EAGLE-3 head and its training-time test: https://arxiv.org/abs/2503.01840, section 3.

One decoder layer reads the target's low, middle and high features and the next token's embedding, and predicts the
token after that. From its second step on it has no features for its own guesses and feeds on its own output instead;
training runs those steps too, so that it learns from its own output what a server will give it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from breakeven.embedded.eagle3_recipe.target import Shape, rope_table, rotate

EARLY_STOPPED_WEIGHT = 0.3
"""Weight of a later step's loss where an earlier step of the same chain was wrong (a server would not get there)."""


def captured_layers(layers: int) -> tuple[int, int, int]:
    """The layers whose inputs SGLang captures by default (``set_eagle3_layers_to_capture``)."""
    return 2, layers // 2, layers - 3


@dataclass(frozen=True)
class Batch:
    """Packed rows as the head sees them: T columns, M slots; see ``packing.Rows``."""

    features: Tensor
    """[R, T, 3 H], the captured layers' inputs side by side."""
    next_embedding: Tensor
    """[R, T, H], embedding of the token after each column."""
    position: Tensor
    """[R, T]."""
    visible: Tensor
    """[R, M, T], True where a slot sees a column."""
    slot_at: Tensor
    """[R, M]."""
    slot_dialogue: Tensor
    """[R, M], -1 for padding."""
    target_hidden: Tensor
    """[R, M, H], the target's normed last hidden state at each slot's known token."""
    target_choice: Tensor
    """[R, M], draft id of the target's likeliest next token there, -1 where the draft vocabulary lacks it."""


class Head(nn.Module):
    """Parameter names are those of SGLang's ``LlamaForCausalLMEagle3`` checkpoints."""

    feature_scale: Tensor
    """[3 H], a fixed factor for each input channel of ``fc``; see ``served_weights``."""

    def __init__(self, shape: Shape, draft_vocab: int) -> None:
        super().__init__()
        h = shape.hidden_size
        self.shape = shape
        self.fc = nn.Linear(3 * h, h, bias=False)
        self.midlayer = MidLayer(shape)
        self.norm = nn.RMSNorm(h, shape.rms_norm_eps)
        self.lm_head = nn.Linear(h, draft_vocab, bias=False)
        self.register_buffer("feature_scale", torch.ones(3 * h), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, batch: Batch, steps: int) -> list[Tensor]:
        """Draft logits [R, M, V] of each step; step k's input is the (k+1)-th token after the slot's position."""
        layer = self.midlayer
        fused = self.fc(batch.features)
        keys, values = layer.keys_values(batch.next_embedding, fused, batch.position)
        bias = torch.zeros_like(batch.visible, dtype=keys.dtype).masked_fill(~batch.visible, float("-inf"))

        hidden = take(fused, batch.slot_at)
        embedding = take(batch.next_embedding, batch.slot_at)
        position = take(batch.position[..., None], batch.slot_at)[..., 0]
        own: list[tuple[Tensor, Tensor]] = []
        logits = []
        for k in range(steps):
            token = ahead(embedding, k)
            if k:
                own.append(layer.keys_values(token, hidden, position + k))
            hidden = layer(token, hidden, position + k, keys, values, bias, own)
            logits.append(self.lm_head(self.norm(hidden)))
        return logits

    def served_weights(self) -> dict[str, Tensor]:
        """The weights by name as a server multiplies with them: the feature scale is folded into ``fc``."""
        return {**dict(self.named_parameters()), "fc.weight": self.fc.weight * self.feature_scale}


class MidLayer(nn.Module):
    """A Llama decoder layer whose attention reads the token's embedding and the hidden state side by side."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        h = shape.hidden_size
        self.shape = shape
        self.input_layernorm = nn.RMSNorm(h, shape.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(h, shape.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(h, shape.rms_norm_eps)
        self.self_attn = nn.ModuleDict(
            {
                "q_proj": nn.Linear(2 * h, shape.num_attention_heads * shape.head_dim, bias=False),
                "k_proj": nn.Linear(2 * h, shape.num_key_value_heads * shape.head_dim, bias=False),
                "v_proj": nn.Linear(2 * h, shape.num_key_value_heads * shape.head_dim, bias=False),
                "o_proj": nn.Linear(shape.num_attention_heads * shape.head_dim, h, bias=False),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(h, shape.intermediate_size, bias=False),
                "up_proj": nn.Linear(h, shape.intermediate_size, bias=False),
                "down_proj": nn.Linear(shape.intermediate_size, h, bias=False),
            }
        )

    def keys_values(self, embedding: Tensor, hidden: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [R, kv heads, columns, D]."""
        x = self._joined(embedding, hidden)
        return self._heads("k_proj", x, position), self._heads("v_proj", x, None)

    def forward(
        self,
        embedding: Tensor,
        hidden: Tensor,
        position: Tensor,
        keys: Tensor,
        values: Tensor,
        bias: Tensor,
        own: list[tuple[Tensor, Tensor]],
    ) -> Tensor:
        """The hidden state [R, M, H] after one step.

        A slot attends to all columns that ``bias`` [R, M, T] lets it see and, in ``own``, to what the same slot's
        chain has drafted so far: one key a step, nothing of other slots' chains.
        """
        kv_heads, d = self.shape.num_key_value_heads, self.shape.head_dim
        q = self._heads("q_proj", self._joined(embedding, hidden), position) * d**-0.5
        r, heads, m, _ = q.shape
        group, columns = heads // kv_heads, keys.shape[2]
        # Query heads that share a key head are laid end to end: plain batched products, no copies of the keys.
        q = q.reshape(r, kv_heads, group * m, d)
        scores = [(q @ keys.transpose(-1, -2)).view(r, kv_heads, group, m, columns) + bias[:, None, None]]
        grouped = q.view(r, kv_heads, group, m, d)
        scores += [(grouped * key[:, :, None]).sum(dim=-1, keepdim=True) for key, _ in own]
        shares = torch.cat(scores, dim=-1).softmax(dim=-1)
        mixed = (shares[..., :columns].reshape(r, kv_heads, group * m, columns) @ values).view_as(grouped)
        for j, (_, value) in enumerate(own):
            mixed = mixed + shares[..., columns + j, None] * value[:, :, None]
        hidden = hidden + self.self_attn["o_proj"](
            mixed.reshape(r, heads, m, d).transpose(1, 2).reshape(r, m, heads * d)
        )
        x = self.post_attention_layernorm(hidden)
        gated = F.silu(self.mlp["gate_proj"](x)) * self.mlp["up_proj"](x)
        return hidden + self.mlp["down_proj"](gated)

    def _joined(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        return torch.cat([self.input_layernorm(embedding), self.hidden_norm(hidden)], dim=-1)

    def _heads(self, projection: str, x: Tensor, position: Tensor | None) -> Tensor:
        r, t, _ = x.shape
        y = self.self_attn[projection](x).view(r, t, -1, self.shape.head_dim)
        if position is not None:
            y = rotate(y, *rope_table(position, self.shape.head_dim, self.shape.rope_theta))
        return y.transpose(1, 2)


def take(x: Tensor, columns: Tensor) -> Tensor:
    """Rows' columns: [R, T, C] at ``columns`` [R, M] gives [R, M, C]."""
    return x.gather(1, columns.long()[..., None].expand(-1, -1, x.shape[-1]))


def ahead(x: Tensor, k: int) -> Tensor:
    """Shift [R, M, ...] so that each slot holds what the slot ``k`` further on held; the end is filled with zeros."""
    return x if k == 0 else torch.cat([x[:, k:], torch.zeros_like(x[:, :k])], dim=1)


def in_answer(slot_dialogue: Tensor, k: int) -> Tensor:
    """[R, M], whether step ``k`` from a slot still lies within its answer."""
    later = ahead(slot_dialogue + 1, k) - 1  # what lies past the row counts as padding
    return (slot_dialogue >= 0) & (later == slot_dialogue)


def losses(logits: Sequence[Tensor], batch: Batch, draft_embedding: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The training loss of a batch, and for each step whether each slot's chain was right up to there [R, M].

    Each step's loss is the cross-entropy with the target's own distribution over the draft vocabulary
    (``draft_embedding`` [V, H] are the target's output rows), over slots where the target's choice is in it.
    """
    with torch.no_grad():
        wanted = F.linear(batch.target_hidden, draft_embedding).float().softmax(dim=-1)
    total = wanted.new_zeros(())
    alive = in_answer(batch.slot_dialogue, 0)
    count = alive.sum().clamp(min=1)
    chains = []
    for k, step in enumerate(logits):
        choice = ahead(batch.target_choice + 1, k) - 1
        valid = in_answer(batch.slot_dialogue, k) & (choice >= 0)
        weight = valid * (EARLY_STOPPED_WEIGHT + (1 - EARLY_STOPPED_WEIGHT) * alive)
        shares = step.float().log_softmax(dim=-1)
        total = total - (weight * (ahead(wanted, k) * shares).sum(dim=-1)).sum() / count
        alive = alive & valid & (step.argmax(dim=-1) == choice)
        chains.append(alive)
    return total, chains
