"""Attention over SGLang's paged KV cache: one new token per sequence (decode), or several (prefill and verify).

The callers are ``sglang/srt/layers/attention/intel_amx_backend.py`` and its multi-step draft backend, which is also
where the meaning of the arguments stands. Shapes, for ``heads`` query heads that share ``kv_heads`` key-value heads:

* ``k_buffer``, ``v_buffer`` [slots, kv_heads, dim]: one layer's cache;
* ``req_to_token`` [rows, width]: the slot of each position, ``req_pool_indices`` [bs]: the sequences' rows in it;
* ``seq_lens`` [bs] int64: each sequence's length with its new tokens.

Query heads that share a key-value head are laid out as further query positions, so that keys and values are never
repeated: PyTorch's own grouped-query path copies them once per query head.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from .missing import explain


def decode_attention_cpu(
    query: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    output: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    loc: Tensor,
    attn_logits: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
) -> None:
    """Store each sequence's new key and value at ``loc`` [bs], then attend to its whole context.

    ``query`` [bs, heads, dim] and ``output`` alike, written in place; ``key``, ``value`` [bs, kv_heads, dim] or None
    where they are stored already. ``attn_logits`` is scratch space for kernels that split the context.
    """
    _require_plain("decode_attention_cpu", k_buffer, logit_cap, is_cross_attn, sliding_window_size, sinks)
    sequences, heads, dim = query.shape
    kv_heads = k_buffer.shape[1]
    if key is not None and value is not None:
        k_buffer[loc] = key.view(-1, kv_heads, dim)
        v_buffer[loc] = value.view(-1, kv_heads, v_buffer.shape[2])

    plan = _planned(_plan_decode, attn_logits, req_to_token, req_pool_indices, seq_lens, query.dtype)
    attended = scaled_dot_product_attention(
        query.view(sequences, kv_heads, heads // kv_heads, dim),
        _cached(k_buffer, plan.slots, sequences),
        _cached(v_buffer, plan.slots, sequences),
        attn_mask=plan.hidden,
        scale=sm_scale,
    )
    output.view(sequences, kv_heads, heads // kv_heads, -1).copy_(attended)


def extend_attention_cpu(
    q_extend: Tensor,
    k_extend: Tensor | None,
    v_extend: Tensor | None,
    o_extend: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    max_len_extend: int,
    sm_scale: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    encoder_lens: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """Attend from several new tokens per sequence, whose keys and values are in the cache already.

    The new tokens of sequence i are ``extend_seq_lens[i]`` rows of ``q_extend`` [tokens, heads, dim] from
    ``extend_start_loc[i]`` on; ``o_extend`` alike, written in place. All see the sequence's prefix; among themselves
    they see what ``tree_mask`` says (flat bool, n x n per sequence), or else what is not after them (``is_causal``).
    """
    _require_plain("extend_attention_cpu", k_buffer, logit_cap, is_cross_attn, sliding_window_size, sinks)
    heads, kv_heads = q_extend.shape[1], k_buffer.shape[1]
    group = heads // kv_heads
    plans = _planned(
        _plan_extend,
        extend_start_loc,
        req_to_token,
        req_pool_indices,
        seq_lens,
        extend_seq_lens,
        tree_mask,
        is_causal,
        group,
        q_extend.dtype,
    )
    for plan in plans:
        keys, values = _cached(k_buffer, plan.slots, 1), _cached(v_buffer, plan.slots, 1)
        queries, attended = q_extend[plan.start : plan.end], o_extend[plan.start : plan.end]
        n = plan.end - plan.start
        if plan.is_fresh_prompt:
            # The triangle needs no mask, and PyTorch skips the half that it hides.
            attended.copy_(
                scaled_dot_product_attention(
                    queries.transpose(0, 1)[None], keys, values, is_causal=True, scale=sm_scale, enable_gqa=group > 1
                )[0].transpose(0, 1)
            )
            continue
        grouped = queries.view(n, kv_heads, group, -1).permute(1, 2, 0, 3).reshape(1, kv_heads, group * n, -1)
        result = scaled_dot_product_attention(grouped, keys, values, attn_mask=plan.hidden, scale=sm_scale)
        attended.view(n, kv_heads, group, -1).copy_(result.view(kv_heads, group, n, -1).permute(2, 0, 1, 3))


def _cached(buffer: Tensor, slots: Tensor, sequences: int) -> Tensor:
    """Keys or values of ``slots`` [sequences * length] as [sequences, kv_heads, length, dim].

    ``index_select`` copies whole rows; indexing with brackets goes element by element and takes three times as long.
    """
    return torch.index_select(buffer, 0, slots).view(sequences, -1, *buffer.shape[1:]).transpose(1, 2)


# --- What is the same for every layer of a forward pass ---


class _Decode(NamedTuple):
    slots: Tensor
    """[sequences * longest]; a shorter sequence is filled up with whatever its row of the table holds."""
    hidden: Tensor | None
    """Additive mask [sequences, 1, 1, longest] over what was filled up; None where all are of one length."""


class _Extend(NamedTuple):
    start: int
    end: int
    """The sequence's rows among the new tokens."""
    slots: Tensor
    hidden: Tensor | None
    """Additive mask [group * n, length]: the same rows for each query head of a group."""
    is_fresh_prompt: bool


_latest: list[Any] = [None, (), None]


def _planned(make: Callable[..., Any], *given: Any) -> Any:
    """``make(*given)``, worked out once per forward pass.

    A pass hands the same objects to every layer, and the first of them, a scratch tensor or the start locations, is
    made anew for each pass (``init_forward_metadata`` in SGLang's backend): the same objects mean the same pass. They
    are held here, so none of them can be freed and its place taken by another.
    """
    if _latest[0] is not make or any(a is not b for a, b in zip(_latest[1], given, strict=True)):
        _latest[:] = [make, given, make(*given)]
    return _latest[2]


def _plan_decode(
    _scratch: Tensor, req_to_token: Tensor, req_pool_indices: Tensor, seq_lens: Tensor, dtype: torch.dtype
) -> _Decode:
    lengths = seq_lens.tolist()
    longest = max(lengths)
    hidden = None
    if min(lengths) < longest:
        past_end = torch.arange(longest) >= seq_lens.view(-1, 1)
        hidden = torch.zeros(len(lengths), 1, 1, longest, dtype=dtype).masked_fill_(past_end[:, None, None], -math.inf)
    return _Decode(req_to_token[req_pool_indices, :longest].view(-1), hidden)


def _plan_extend(
    extend_start_loc: Tensor,
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    seq_lens: Tensor,
    extend_seq_lens: Tensor,
    tree_mask: Tensor | None,
    is_causal: bool,
    group: int,
    dtype: torch.dtype,
) -> list[_Extend]:
    plans, tree_offset = [], 0
    for row, length, n, start in zip(
        req_pool_indices.tolist(), seq_lens.tolist(), extend_seq_lens.tolist(), extend_start_loc.tolist(), strict=True
    ):
        if n == 0:
            continue
        fresh = tree_mask is None and is_causal and n == length
        seen = None
        if tree_mask is not None:
            seen = tree_mask.view(-1)[tree_offset : tree_offset + n * n].view(n, n).bool()
            tree_offset += n * n
        elif is_causal and n > 1 and not fresh:
            seen = torch.ones(n, n, dtype=torch.bool).tril_()
        hidden = None
        if seen is not None:
            hidden = torch.zeros(n, length, dtype=dtype)
            hidden[:, length - n :].masked_fill_(~seen, -math.inf)
            hidden = hidden.repeat(group, 1)
        plans.append(_Extend(start, start + n, req_to_token[row, :length], hidden, fresh))
    return plans


def _require_plain(
    operation: str,
    k_buffer: Tensor,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window_size: int,
    sinks: Tensor | None,
) -> None:
    """Refuse what Llama models do not use, by name."""
    unsupported = {
        "a logit cap (Gemma 2, Grok)": logit_cap > 0,
        "cross attention (Mllama, Whisper)": is_cross_attn,
        "a sliding window (Mistral, Gemma, gpt-oss)": sliding_window_size > 0,
        "attention sinks (gpt-oss)": sinks is not None,
        "an 8-bit cache (--kv-cache-dtype)": k_buffer.element_size() < 2,
    }
    for what, asked in unsupported.items():
        if asked:
            raise NotImplementedError(explain(f"{operation} with {what}"))
