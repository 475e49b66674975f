"""Where a token's keys and values lie: the index operations of SGLang's KV cache under speculative decoding.

``req_to_token`` [requests, pool_len] int32 is SGLang's table of cache slots: entry (r, p) is the slot of position p of
the request in row r. The batch has ``bs`` requests, whose rows are ``req_pool_indices`` [bs]. Outputs are written in
place; ``pool_len`` (the table's width) is part of the signatures for the sake of kernels that compute addresses.

The contracts are those of SGLang's Triton twins, named in each docstring, under ``sglang/kernels/ops``.
"""

import ctypes

import numpy
import torch
from torch import Tensor


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """Enter slots into the table: request i's positions start[i]..end[i]-1 take the next slots of ``out_cache_loc``.

    ``start``, ``end`` [bs]; ``out_cache_loc`` [sum(end - start)], packed request after request.
    Twin: ``kvcache/req_to_token_pool.py``, ``assign_req_to_token_pool``.
    """
    taken = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        length = last - first
        req_to_token[row, first:last] = out_cache_loc[taken : taken + length]
        taken += length


def assign_extend_cache_locs_cpu(
    req_pool_indices: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out_cache_loc: Tensor, pool_len: int
) -> None:
    """Read slots from the table: the reverse of ``assign_req_to_token_pool_cpu``, into ``out_cache_loc``.

    Twin: ``speculative/cache_locs.py``, ``assign_extend_cache_locs``.
    """
    taken = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        length = last - first
        out_cache_loc[taken : taken + length] = req_to_token[row, first:last]
        taken += length


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
    topk: int,
    num_steps: int,
) -> None:
    """The draft's slots: for each request the ``topk * num_steps`` entries of its row from ``seq_lens[i]`` on.

    ``out_cache_loc`` [bs * topk * num_steps].
    Twin: ``speculative/cache_locs.py``, ``assign_draft_cache_locs_contiguous``.
    """
    per_request = topk * num_steps
    columns = seq_lens.view(-1, 1) + torch.arange(per_request)
    slots = req_to_token[req_pool_indices.long().view(-1, 1), columns]
    out_cache_loc.view(-1)[: slots.numel()] = slots.view(-1)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, topk: int, num_steps: int, pool_len: int
) -> Tensor:
    """A table of slots with one row per draft branch: [bs * topk, pool_len], of ``req_to_token``'s type.

    Row i * topk + t holds request i's committed slots (``seq_lens[i]`` of them), then the ``num_steps`` slots of branch
    t, which lie in the request's row from ``seq_lens[i] + t * num_steps`` on. What follows is zero and never read.
    Twin: ``speculative/cache_locs.py``, ``generate_draft_decode_kv_indices`` (page size 1).
    """
    bs = req_pool_indices.numel()
    branches = req_to_token.new_zeros(bs, topk, pool_len)
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        branches[i, :, :length] = req_to_token[row, :length]
        drafted = req_to_token[row, length : length + topk * num_steps]
        branches[i, :, length : length + num_steps] = drafted.view(topk, num_steps)
    return branches.view(bs * topk, pool_len)


def fill_bonus_tokens_cpu(accept_tokens: Tensor, accept_lens: Tensor, bonus_tokens: Tensor, accept_stride: int) -> None:
    """The last token that each request accepted: ``bonus_tokens[i] = accept_tokens[i * stride + accept_lens[i] - 1]``.

    ``accept_tokens`` [bs * accept_stride]; ``accept_lens`` [bs] counts the bonus token, so it is at least 1.
    Twin: ``speculative/eagle.py``, ``fill_bonus_tokens``.
    """
    bs = accept_lens.numel()
    last = torch.arange(bs) * accept_stride + accept_lens - 1
    bonus_tokens.view(-1)[:bs] = accept_tokens.view(-1)[last]


def fill_accept_out_cache_loc_cpu(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """The cache slots of the accepted tokens, packed: ``out_cache_loc`` at those of ``accept_index`` that are not -1.

    ``accept_index`` has any shape; its order is kept. Entries behind the packed ones stay as they were.
    Twin: ``speculative/eagle.py``, ``fill_accept_out_cache_loc``.
    """
    accepted = accept_index.reshape(-1)
    slots = out_cache_loc.reshape(-1)[accepted[accepted > -1].long()]
    accept_out_cache_loc.view(-1)[: slots.numel()] = slots


def copy_all_layer_kv_cache_cpu(data_ptrs: Tensor, strides: Tensor, target: Tensor, source: Tensor) -> None:
    """Move cache entries in every layer: row ``source[j]`` to row ``target[j]``, all reads before all writes.

    ``data_ptrs`` [buffers] uint64: the addresses of the key and value buffers; ``strides`` [buffers]: bytes per row.
    After a tree is verified this makes the accepted path contiguous.
    Twin: ``kvcache/cache_move.py``, ``copy_all_layer_kv_cache_tiled``.
    """
    to, of = target.numpy(), source.numpy()
    moved = to != of  # a chain's accepted tokens lie where they belong
    to, of = to[moved], of[moved]
    if not len(to):
        return
    rows = int(max(to.max(), of.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        raw = (ctypes.c_uint8 * (rows * stride)).from_address(address)
        buffer = numpy.frombuffer(raw, dtype=numpy.uint8).reshape(rows, stride)
        buffer[to] = buffer[of]  # the right side is a copy


def rotate_input_ids_cpu(
    input_ids: Tensor, start_loc: Tensor, lens: Tensor, next_tokens: Tensor, select_index: Tensor | None = None
) -> None:
    """Shift each request's tokens left by one and put its next token at the end (at ``select_index[i]`` if given).

    ``input_ids`` [tokens], request i at ``start_loc[i]`` with ``lens[i]`` tokens; one of length 0 is left alone.
    ``next_tokens`` [bs] or [bs, 1].
    Twin: ``speculative/multi_layer_eagle.py``, ``rotate_input_ids_kernel``.
    """
    fresh = next_tokens.view(-1).tolist()
    ends = select_index.tolist() if select_index is not None else (start_loc + lens - 1).tolist()
    for start, length, token, end in zip(start_loc.tolist(), lens.tolist(), fresh, ends, strict=True):
        if length > 0:
            input_ids[start : start + length - 1] = input_ids[start + 1 : start + length].clone()
            input_ids[end] = token
