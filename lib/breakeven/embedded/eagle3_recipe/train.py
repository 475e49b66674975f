"""Features once, then the same few tensors many times: training and scoring a head on packed dialogues."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.func import functional_call

from breakeven.embedded.eagle3_recipe.corpus import Dialogue
from breakeven.embedded.eagle3_recipe.head import Batch, Head, captured_layers, losses, take
from breakeven.embedded.eagle3_recipe.packing import Rows, attention_mask
from breakeven.embedded.eagle3_recipe.target import Target, masked_attention

STEPS = 5
"""Steps of the training-time test: the longest chain that the head is meant for."""
ROWS_PER_BATCH = 40
FEATURE_ROWS = 16
MATRIX_RATE, OTHER_RATE = 4e-3, 2e-3
LAST_RATE_SHARE = 0.02
WARM_UP_SHARE = 0.02
WEIGHT_DECAY = 0.01
GRADIENT_NORM = 1.0
ITERATIONS_PER_CHECKPOINT = 1000
ITERATIONS_PER_LOG = 200

Log = Callable[[str], None]


@dataclass(frozen=True)
class Store:
    """Packed dialogues with all that the target has to say about them, on the training device."""

    rows: Rows
    features: Tensor
    """[N, T, 3 H]"""
    target_hidden: Tensor
    """[N, M, H]"""
    target_choice: Tensor
    """[N, M], draft ids, -1 where the draft vocabulary lacks the target's choice."""
    embedding: Tensor
    draft_embedding: Tensor

    def batch(self, chosen: Tensor) -> Batch:
        """The rows numbered in ``chosen`` [R]; runs in a CUDA graph, so it allocates and nothing else."""
        ids, dialogue, position, slot_at, slot_dialogue = (
            x.index_select(0, chosen)
            for x in (
                self.rows.ids,
                self.rows.dialogue,
                self.rows.position,
                self.rows.slot_at,
                self.rows.slot_dialogue,
            )
        )
        columns = torch.arange(ids.shape[1], device=ids.device, dtype=slot_at.dtype)
        visible = (slot_dialogue[:, :, None] == dialogue[:, None]) & (columns <= slot_at[:, :, None])
        return Batch(
            features=self.features.index_select(0, chosen),
            next_embedding=F.embedding(ids.roll(-1, dims=1), self.embedding),
            position=position,
            visible=visible | (slot_dialogue < 0)[:, :, None],  # a padding slot must see something
            slot_at=slot_at,
            slot_dialogue=slot_dialogue,
            target_hidden=self.target_hidden.index_select(0, chosen),
            target_choice=self.target_choice.index_select(0, chosen),
        )


def draft_vocabulary(dialogues: Sequence[Dialogue], vocab: int, size: int) -> tuple[Tensor, float]:
    """The ``size`` tokens that answers use most, ascending [size], and the share of answer tokens they cover."""
    answers = torch.tensor([token for dialogue in dialogues for token in dialogue.answer])
    counts = torch.bincount(answers, minlength=vocab)
    chosen = counts.topk(size).indices.sort().values
    return chosen, (counts[chosen].sum() / counts.sum()).item()


@torch.no_grad()
def observe(target: Target, rows: Rows, draft_ids: Tensor) -> Store:
    """Run the target over packed rows once and keep its features, last hidden states and choices."""
    device, dtype = target.embedding.device, target.embedding.dtype
    rows = Rows(*(x.to(device) for x in (rows.ids, rows.dialogue, rows.position, rows.slot_at, rows.slot_dialogue)))
    n, t = rows.ids.shape
    m, h = rows.slot_at.shape[1], target.shape.hidden_size
    store = Store(
        rows=rows,
        features=torch.empty(n, t, 3 * h, device=device, dtype=dtype),
        target_hidden=torch.empty(n, m, h, device=device, dtype=dtype),
        target_choice=torch.empty(n, m, device=device, dtype=torch.int32),
        embedding=target.embedding,
        draft_embedding=target.embedding[draft_ids.to(device)],
    )
    to_draft = torch.full((target.shape.vocab_size,), -1, dtype=torch.int32, device=device)
    to_draft[draft_ids.to(device)] = torch.arange(len(draft_ids), dtype=torch.int32, device=device)
    layers = captured_layers(target.shape.num_hidden_layers)
    for start in range(0, n, FEATURE_ROWS):
        part = slice(start, start + FEATURE_ROWS)
        attend = masked_attention(attention_mask(rows.dialogue[part]))
        hidden, captured = target.forward(rows.ids[part], rows.position[part], attend, layers)
        store.features[part] = torch.cat(captured, dim=-1)
        store.target_hidden[part] = take(hidden, rows.slot_at[part] + 1)
        store.target_choice[part] = to_draft[target.logits(store.target_hidden[part]).argmax(dim=-1)]
    return store


def new_head(target: Target, store: Store, intermediate: int) -> Head:
    """A head with the target's output rows and final norm to begin with, and features scaled to unit size.

    The three features differ in size by a factor of ten, and single channels by a hundred; unscaled, the low layers
    would hardly be heard. The scale is one number a channel and is folded into the weights when they are saved.
    """
    shape = target.shape
    head = Head(replace(shape, intermediate_size=intermediate), len(store.draft_embedding))
    sample = store.batch(torch.arange(min(len(store.rows), ROWS_PER_BATCH), device=store.features.device))
    seen = take(sample.features, sample.slot_at)[sample.slot_dialogue >= 0].float()
    with torch.no_grad():
        head.lm_head.weight.copy_(store.draft_embedding)
        head.norm.weight.copy_(target.final_norm)
        head.feature_scale.copy_(seen.pow(2).mean(dim=0).clamp(min=1e-6).rsqrt())
    return head.to(store.features.device)


def loss_and_chains(head: Head, batch: Batch, draft_embedding: Tensor, steps: int) -> tuple[Tensor, list[Tensor]]:
    """``losses`` of the head as it will be served: its float32 weights cast to the features' dtype."""
    weights = {name: w.to(batch.features.dtype) for name, w in head.served_weights().items()}
    return losses(functional_call(head, weights, (batch, steps)), batch, draft_embedding)


def optimizers(head: Head) -> list[torch.optim.Optimizer]:
    """Muon for the matrices that mix features, AdamW for the output rows and the norms; rates are peak rates."""
    output_rows = head.lm_head.weight
    matrices = [p for p in head.parameters() if p.dim() == 2 and p is not output_rows]
    others = [output_rows, *(p for p in head.parameters() if p.dim() == 1)]
    return [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=WEIGHT_DECAY, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=OTHER_RATE, weight_decay=WEIGHT_DECAY, betas=(0.9, 0.95)),
    ]


def train(
    head: Head, store: Store, epochs: int, seed: int, checkpoint: Path, log: Log, out_of_time: Callable[[], bool]
) -> None:
    """Train in place for a fixed number of steps; resumes from ``checkpoint`` and leaves one when it has to stop.

    Raises TimeoutError when ``out_of_time`` says so.
    """
    rows_per_batch = min(ROWS_PER_BATCH, len(store.rows))
    per_epoch = len(store.rows) // rows_per_batch
    total = epochs * per_epoch
    stepped = optimizers(head)
    peaks = [optimizer.param_groups[0]["lr"] for optimizer in stepped]
    done = 0
    if checkpoint.exists():
        saved: dict[str, Any] = torch.load(checkpoint, map_location=store.features.device)
        head.load_state_dict(saved["head"])
        for optimizer, state in zip(stepped, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        done = saved["done"]
    gradient_step = GradientStep(head, store, rows_per_batch)
    for iteration in range(done, total):
        if (iteration % ITERATIONS_PER_CHECKPOINT == 0 and iteration > done) or out_of_time():
            _save_checkpoint(checkpoint, head, stepped, iteration)
            if out_of_time():
                raise TimeoutError(f"out of time after {iteration} of {total} training steps")
        epoch, index = divmod(iteration, per_epoch)
        order = torch.randperm(len(store.rows), generator=torch.Generator().manual_seed(seed * 1000 + epoch))
        loss, alive = gradient_step(order[index * rows_per_batch : (index + 1) * rows_per_batch])
        torch.nn.utils.clip_grad_norm_(head.parameters(), GRADIENT_NORM)
        for optimizer, peak in zip(stepped, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * rate_share(iteration, total)
            optimizer.step()
        if (iteration + 1) % ITERATIONS_PER_LOG == 0 or iteration + 1 == total:
            log(f"step {iteration + 1}/{total} loss {loss.item():.3f} chains {[round(x, 3) for x in alive.tolist()]}")


def rate_share(iteration: int, total: int) -> float:
    """Learning rate as a share of its peak: linear warm-up, then a cosine down to LAST_RATE_SHARE."""
    warm_up = max(1, round(total * WARM_UP_SHARE))
    if iteration < warm_up:
        return (iteration + 1) / warm_up
    share = (iteration - warm_up) / max(1, total - warm_up)
    return LAST_RATE_SHARE + (1 - LAST_RATE_SHARE) * (1 + math.cos(math.pi * share)) / 2


class GradientStep:
    """Fills the parameters' gradients from a batch; on a GPU one CUDA graph, since the head is small and steps many."""

    def __init__(self, head: Head, store: Store, rows_per_batch: int) -> None:
        self.head, self.store = head, store
        self.chosen = torch.arange(rows_per_batch, device=store.features.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        if store.features.device.type == "cuda":
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):  # warm up: libraries allocate their workspaces outside the graph
                for _ in range(2):
                    self._run()
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.result = self._run()

    def __call__(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """The batch's loss, and for each step the share of slots whose chain was right up to there [steps]."""
        self.chosen.copy_(chosen)
        if self.graph is None:
            return self._run()
        self.graph.replay()
        return self.result

    def _run(self) -> tuple[Tensor, Tensor]:
        for parameter in self.head.parameters():
            parameter.grad = None
        batch = self.store.batch(self.chosen)
        loss, chains = loss_and_chains(self.head, batch, self.store.draft_embedding, STEPS)
        loss.backward()
        slots = (batch.slot_dialogue >= 0).sum()
        return loss.detach(), torch.stack([alive.sum() / slots for alive in chains])


@torch.no_grad()
def chain_lengths(head: Head, store: Store, dialogues: int) -> list[list[int]]:
    """For each dialogue, at each slot of its answer, how many drafts in a row are right (at most STEPS)."""
    lengths: list[list[int]] = [[] for _ in range(dialogues)]
    for start in range(0, len(store.rows), FEATURE_ROWS):
        chosen = torch.arange(start, min(start + FEATURE_ROWS, len(store.rows)), device=store.features.device)
        batch = store.batch(chosen)
        _, chains = loss_and_chains(head, batch, store.draft_embedding, STEPS)
        used = batch.slot_dialogue >= 0
        right = torch.stack(chains).sum(dim=0)[used].tolist()
        for dialogue, length in zip(batch.slot_dialogue[used].tolist(), right, strict=True):
            lengths[dialogue].append(length)
    return lengths


def _save_checkpoint(path: Path, head: Head, stepped: Sequence[torch.optim.Optimizer], done: int) -> None:
    partial = path.with_suffix(".partial")
    states = [optimizer.state_dict() for optimizer in stepped]
    torch.save({"head": head.state_dict(), "optimizers": states, "done": done}, partial)
    partial.replace(path)
