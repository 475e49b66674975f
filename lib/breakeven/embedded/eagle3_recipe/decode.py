"""Batched generation with a static key-value cache; on a GPU every decode step is one CUDA graph.

A small model's step is hundreds of kernels of a few microseconds each, so the launches would cost more than the work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from breakeven.embedded.eagle3_recipe.target import Attend, Target

MIN_P = 0.05
"""Sampling leaves out tokens less likely than this share of the likeliest one."""
WIDTH_STEP = 128
"""Attention reads the cache in multiples of this many columns: one graph for each."""
PREFILL_ROWS = 256
STEPS_BETWEEN_CHECKS = 16


class Decoder:
    """Generates for up to ``rows`` prompts at once; prompt and answer together may have ``columns`` tokens."""

    def __init__(self, target: Target, rows: int, columns: int, end_id: int) -> None:
        self.target, self.rows, self.columns, self.end_id = target, rows, columns, end_id
        s, like = target.shape, target.embedding
        cache_shape = (s.num_hidden_layers, rows, s.num_key_value_heads, columns, s.head_dim)
        self.keys, self.values = like.new_zeros(cache_shape), like.new_zeros(cache_shape)
        self.row = torch.arange(rows, device=like.device)
        self.token = torch.zeros(rows, dtype=torch.long, device=like.device)
        self.position = torch.zeros(rows, dtype=torch.long, device=like.device)
        self.temperature = torch.zeros(rows, 1, device=like.device)
        self.graphs: dict[int, Callable[[], None]] = {}

    @torch.no_grad()
    def generate(self, prompts: Sequence[list[int]], temperatures: Sequence[float], new: int) -> list[list[int]]:
        """Answers as token ids, up to ``new`` each, the end token included where it came; temperature 0 is greedy."""
        count = len(prompts)
        longest = max(map(len, prompts))
        if count > self.rows or longest + new > self.columns:
            raise ValueError(f"{count} prompts of up to {longest} + {new} tokens into {self.rows} x {self.columns}")
        # A short batch is filled up with copies, since the graphs have a fixed number of rows.
        padded = [prompts[i % count] for i in range(self.rows)]
        self.temperature.copy_(torch.tensor([temperatures[i % count] for i in range(self.rows)])[:, None])
        for start in range(0, self.rows, PREFILL_ROWS):
            self._prefill(start, padded[start : start + PREFILL_ROWS], longest)

        written = [self.token.clone()]
        for step in range(1, new):
            self._step_for(min(self.columns, -(-(longest + step) // WIDTH_STEP) * WIDTH_STEP))()
            written.append(self.token.clone())
            if step % STEPS_BETWEEN_CHECKS == 0 and self._all_ended(written):
                break
        return [_until(answer, self.end_id) for answer in torch.stack(written, dim=1)[:count].tolist()]

    def _all_ended(self, written: list[Tensor]) -> bool:
        return bool((torch.stack(written) == self.end_id).any(dim=0).all())

    def _prefill(self, start: int, prompts: list[list[int]], longest: int) -> None:
        """Fill the cache for rows from ``start`` on and leave each row's first answer token in ``self.token``."""
        device = self.token.device
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
        ids = torch.tensor([prompt + [0] * (longest - len(prompt)) for prompt in prompts], device=device)
        stop = start + len(prompts)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            self.keys[layer, start:stop, :, :longest] = k
            self.values[layer, start:stop, :, :longest] = v
            return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)

        positions = torch.arange(longest, device=device).expand_as(ids)
        hidden, _ = self.target.forward(ids, positions, attend)
        last = hidden[torch.arange(len(prompts), device=device), lengths - 1]
        self.token[start:stop] = choose(self.target.logits(last), self.temperature[start:stop])
        self.position[start:stop] = lengths

    def _attend_cached(self, width: int) -> Attend:
        """One query a row against the first ``width`` columns, of which a row sees those up to its own position."""
        visible = torch.arange(width, device=self.position.device) <= self.position[:, None]
        bias = torch.zeros_like(visible, dtype=self.keys.dtype).masked_fill(~visible, float("-inf"))[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            b, _, heads, d = q.shape
            kv_heads = k.shape[2]
            self.keys[layer].index_put_((self.row[:, None], self._kv_head(kv_heads), self.position[:, None]), k[:, 0])
            self.values[layer].index_put_((self.row[:, None], self._kv_head(kv_heads), self.position[:, None]), v[:, 0])
            grouped = q.view(b, kv_heads, heads // kv_heads, d) * d**-0.5
            scores = grouped @ self.keys[layer, :, :, :width].transpose(-1, -2) + bias
            return (scores.softmax(dim=-1) @ self.values[layer, :, :, :width]).view(b, 1, heads, d)

        return attend

    def _kv_head(self, count: int) -> Tensor:
        return torch.arange(count, device=self.row.device)[None]

    def _step(self, width: int) -> None:
        """Feed every row's last token, replace it by the next one and move on by one position."""
        attend = self._attend_cached(width)
        hidden, _ = self.target.forward(self.token[:, None], self.position[:, None], attend)
        self.token.copy_(choose(self.target.logits(hidden[:, 0]), self.temperature))
        self.position.add_(1)

    def _step_for(self, width: int) -> Callable[[], None]:
        if self.token.device.type != "cuda":
            return lambda: self._step(width)
        if width not in self.graphs:
            self.graphs[width] = self._capture(width)
        return self.graphs[width]

    def _capture(self, width: int) -> Callable[[], None]:
        """Record one step as a CUDA graph; the warm-up's own effects on token and position are undone."""
        token, position = self.token.clone(), self.position.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step(width)
        torch.cuda.current_stream().wait_stream(side)
        self.token.copy_(token)
        self.position.copy_(position)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(width)
        return graph.replay


def choose(logits: Tensor, temperature: Tensor) -> Tensor:
    """The next token of each row [B] from ``logits`` [B, V]: the likeliest at temperature 0, else a sample.

    Adding Gumbel noise scaled by the temperature and taking the maximum samples from the softmax at that temperature.
    """
    scores = logits.float()
    best = scores.amax(dim=-1, keepdim=True)
    floor = best + temperature * math.log(MIN_P)
    noise = -torch.empty_like(scores).exponential_().clamp(min=1e-20).log()
    return (scores + temperature * noise).masked_fill(scores < floor, float("-inf")).argmax(dim=-1)


def _until(tokens: list[int], end: int) -> list[int]:
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens
