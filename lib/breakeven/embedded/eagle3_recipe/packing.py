"""Dialogues of all lengths in rows of one length, so that every training step has the same shapes.

A row holds whole dialogues one after another. Losses are taken on answers only, and a drafter's later steps need no
other positions, so those positions are also listed apart ("slots").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from breakeven.embedded.eagle3_recipe.corpus import Dialogue

ROW_TOKENS = 768
ROW_SLOTS = 400
OPEN_ROWS = 32
"""Rows that a dialogue is tried on before a new row is begun."""


@dataclass(frozen=True)
class Rows:
    """Packed dialogues, all tensors with one row each; dialogue number -1 marks padding.

    A slot stands for an answer token that is known and not the last: the drafter sits at the position before it
    (it has that position's features and the known token's embedding) and drafts what follows.
    """

    ids: Tensor
    """[N, T] token ids."""
    dialogue: Tensor
    """[N, T] which dialogue a token belongs to."""
    position: Tensor
    """[N, T] position within the dialogue."""
    slot_at: Tensor
    """[N, M] column of the position before the slot's known token."""
    slot_dialogue: Tensor
    """[N, M] which dialogue a slot belongs to; a dialogue's slots stand next to each other, in order."""

    def __len__(self) -> int:
        return len(self.ids)


def pack(dialogues: Sequence[Dialogue], tokens: int = ROW_TOKENS, slots: int = ROW_SLOTS) -> Rows:
    """Pack dialogues in the order given, first fit among the rows that are still open.

    Raises ValueError for a dialogue that fits no empty row.
    """
    rows: list[list[int]] = []
    room: list[tuple[int, int, int]] = []  # (row, free tokens, free slots) of the open rows
    for number, dialogue in enumerate(dialogues):
        need, need_slots = len(dialogue.ids), len(dialogue.answer) - 1
        if need > tokens or need_slots > slots:
            raise ValueError(f"dialogue {number} has {need} tokens and {need_slots} slots, a row {tokens} and {slots}")
        fit = next((i for i, (_, free, left) in enumerate(room) if need <= free and need_slots <= left), None)
        if fit is None:
            rows.append([])
            room = [*room[-(OPEN_ROWS - 1) :], (len(rows) - 1, tokens, slots)]
            fit = len(room) - 1
        row, free, left = room[fit]
        rows[row].append(number)
        room[fit] = (row, free - need, left - need_slots)
    return _lay_out(rows, dialogues, tokens, slots)


def _lay_out(rows: list[list[int]], dialogues: Sequence[Dialogue], tokens: int, slots: int) -> Rows:
    ids = np.zeros((len(rows), tokens), dtype=np.int32)
    dialogue = np.full((len(rows), tokens), -1, dtype=np.int32)
    position = np.zeros((len(rows), tokens), dtype=np.int32)
    slot_at = np.zeros((len(rows), slots), dtype=np.int32)
    slot_dialogue = np.full((len(rows), slots), -1, dtype=np.int32)
    for row, members in enumerate(rows):
        column, slot = 0, 0
        for number in members:
            one = dialogues[number]
            length, count = len(one.ids), len(one.answer) - 1
            ids[row, column : column + length] = one.ids
            dialogue[row, column : column + length] = number
            position[row, column : column + length] = np.arange(length)
            slot_at[row, slot : slot + count] = column + one.start - 1 + np.arange(count)
            slot_dialogue[row, slot : slot + count] = number
            column, slot = column + length, slot + count
    return Rows(*map(torch.from_numpy, (ids, dialogue, position, slot_at, slot_dialogue)))


def attention_mask(dialogue: Tensor) -> Tensor:
    """[N, 1, T, T], True where a token (row) sees another: same dialogue, not later. Padding sees padding."""
    same = dialogue[:, :, None] == dialogue[:, None, :]
    return same.tril()[:, None]
