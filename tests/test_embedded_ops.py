"""The CPU operations of the embedded engine, each against a reference of plain Python loops on random inputs."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from breakeven.embedded.site.sgl_kernel import attention, cache, linear, tree

SEEDS = st.integers(0, 2**31)
QUICK = settings(max_examples=40)


# --- attention ---------------------------------------------------------------------------------------------------


def reference_attention(query: list[float], keys: list[list[float]], values: list[list[float]], scale: float) -> list:
    """One query against the keys that it sees: softmax of scaled dot products, in Python floats."""
    scores = [scale * sum(a * b for a, b in zip(query, key, strict=True)) for key in keys]
    weights = [math.exp(score - max(scores)) for score in scores]
    total = sum(weights)
    return [sum(w * value[d] for w, value in zip(weights, values, strict=True)) / total for d in range(len(values[0]))]


class Cache:
    """A paged cache in which each sequence's slots lie scattered, and its rows in the table in any order."""

    def __init__(self, seed: int, heads: int = 6, kv_heads: int = 2, dim: int = 4, longest: int = 9) -> None:
        self.rng = random.Random(seed)
        torch.manual_seed(seed)
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        self.scale = self.rng.choice([0.5, 1 / math.sqrt(dim)])
        self.sequences = self.rng.randint(1, 4)
        self.lengths = [self.rng.randint(1, longest) for _ in range(self.sequences)]
        self.k_buffer, self.v_buffer = torch.randn(64, kv_heads, dim), torch.randn(64, kv_heads, dim)
        self.rows = self.rng.sample(range(6), self.sequences)
        self.table = torch.zeros(6, longest + 3, dtype=torch.int32)
        slots = self.rng.sample(range(64), sum(self.lengths))
        self.slots = [[slots.pop() for _ in range(length)] for length in self.lengths]
        for row, taken in zip(self.rows, self.slots, strict=True):
            self.table[row, : len(taken)] = torch.tensor(taken)

    def expected(self, sequence: int, head: int, query: Tensor, positions: list[int]) -> list[float]:
        kv_head = head // (self.heads // self.kv_heads)
        slots = [self.slots[sequence][position] for position in positions]
        keys = [self.k_buffer[slot, kv_head].tolist() for slot in slots]
        values = [self.v_buffer[slot, kv_head].tolist() for slot in slots]
        return reference_attention(query.tolist(), keys, values, self.scale)

    def decode(self, query: Tensor, key: Tensor | None, value: Tensor | None) -> Tensor:
        output = torch.full_like(query, math.nan)
        last = torch.tensor([slots[-1] for slots in self.slots])
        attention.decode_attention_cpu(
            query, self.k_buffer, self.v_buffer, 1.0, 1.0, output, key, value, last, torch.empty(0),
            self.table, torch.tensor(self.rows), torch.tensor(self.lengths), self.scale, 0.0, False, 0, None, None,
        )  # fmt: skip
        return output

    def extend(self, query: Tensor, new: list[int], mask: Tensor | None = None, causal: bool = True) -> Tensor:
        output = torch.full_like(query, math.nan)
        starts = [sum(new[:i]) for i in range(len(new))]
        attention.extend_attention_cpu(
            query, None, None, output, self.k_buffer, self.v_buffer, 1.0, 1.0,
            self.table, torch.tensor(self.rows), torch.tensor(self.lengths), torch.tensor(new), torch.tensor(starts),
            max(new), self.scale, 0.0, False, 0, None, None, mask, causal,
        )  # fmt: skip
        return output


@QUICK
@given(SEEDS)
def test_decode_attends_to_the_whole_context_of_each_sequence(seed: int) -> None:
    case = Cache(seed)
    query = torch.randn(case.sequences, case.heads, case.dim)
    output = case.decode(query, None, None)
    for i, length in enumerate(case.lengths):
        for head in range(case.heads):
            expected = case.expected(i, head, query[i, head], list(range(length)))
            assert output[i, head].tolist() == pytest.approx(expected, abs=1e-5)


@QUICK
@given(SEEDS)
def test_decode_stores_the_new_key_and_value_before_it_attends(seed: int) -> None:
    case = Cache(seed)
    query = torch.randn(case.sequences, case.heads, case.dim)
    key, value = torch.randn(2, case.sequences, case.kv_heads, case.dim)
    before = case.k_buffer.clone()
    output = case.decode(query, key.flatten(1), value.flatten(1))
    last = [slots[-1] for slots in case.slots]
    assert torch.equal(case.k_buffer[last], key) and torch.equal(case.v_buffer[last], value)
    others = [slot for slot in range(64) if slot not in last]
    assert torch.equal(case.k_buffer[others], before[others])
    expected = case.expected(0, 0, query[0, 0], list(range(case.lengths[0])))
    assert output[0, 0].tolist() == pytest.approx(expected, abs=1e-5)


@QUICK
@given(SEEDS, st.sampled_from(["causal", "fresh", "all", "tree"]))
def test_extend_lets_each_new_token_see_what_its_mask_says(seed: int, kind: str) -> None:
    case = Cache(seed)
    new = [length if kind == "fresh" else case.rng.randint(0, length) for length in case.lengths]
    new[0] = max(new[0], 1)
    query = torch.randn(sum(new), case.heads, case.dim)
    masks = [torch.rand(n, n) < 0.5 for n in new]
    for mask in masks:
        mask.fill_diagonal_(True)
    flat = torch.cat([mask.flatten() for mask in masks]) if kind == "tree" else None
    output = case.extend(query, new, flat, causal=kind != "all")
    token = 0
    for i, n in enumerate(new):
        prefix = case.lengths[i] - n
        for a in range(n):
            fellows = {"tree": [b for b in range(n) if masks[i][a, b]], "all": list(range(n))}
            positions = list(range(prefix)) + [prefix + b for b in fellows.get(kind, list(range(a + 1)))]
            for head in range(case.heads):
                expected = case.expected(i, head, query[token, head], positions)
                assert output[token, head].tolist() == pytest.approx(expected, abs=1e-5)
            token += 1


def test_each_pass_is_planned_anew_though_its_lengths_are_the_same_object() -> None:
    """Layers of a pass share a plan; the next pass has a new scratch tensor, and others may have changed in place."""
    table, rows, lengths = torch.tensor([[3, 5, 7, 2]]), torch.tensor([0]), torch.tensor([2])
    first_pass, second_pass = torch.empty(0), torch.empty(0)

    def slots(scratch: Tensor) -> list[int]:
        plan = attention._planned(attention._plan_decode, scratch, table, rows, lengths, torch.float32)
        return plan.slots.tolist()

    assert slots(first_pass) == slots(first_pass) == [3, 5]
    lengths.add_(1)
    table[0, 0] = 9
    assert slots(second_pass) == [9, 5, 7]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"logit_cap": 30.0}, "logit cap"),
        ({"is_cross_attn": True}, "cross attention"),
        ({"sliding_window_size": 128}, "sliding window"),
        ({"sinks": torch.zeros(1)}, "attention sinks"),
        ({"k_buffer": torch.zeros(4, 1, 4, dtype=torch.float8_e4m3fn)}, "8-bit cache"),
    ],
)
def test_attention_refuses_by_name_what_llama_does_not_use(changed: dict, named: str) -> None:
    plain = {
        "k_buffer": torch.zeros(4, 1, 4), "logit_cap": 0.0, "is_cross_attn": False, "sliding_window_size": 0,
        "sinks": None,
    }  # fmt: skip
    attention._require_plain("decode_attention_cpu", **plain)
    with pytest.raises(NotImplementedError, match=rf"decode_attention_cpu with .*{named}"):
        attention._require_plain("decode_attention_cpu", **plain | changed)


# --- the cache's index operations ----------------------------------------------------------------------------------


def table_case(seed: int) -> tuple[random.Random, Tensor, list[int], list[int], list[int]]:
    """A random table with a batch of rows and a span of positions in each; spans may be empty."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    rows = rng.sample(range(5), rng.randint(1, 4))
    start = [rng.randint(0, 10) for _ in rows]
    end = [first + rng.randint(0, 6) for first in start]
    return rng, torch.randint(1, 1000, (5, 40), dtype=torch.int32), rows, start, end


@QUICK
@given(SEEDS)
def test_slots_are_entered_into_the_table_request_after_request(seed: int) -> None:
    _, table, rows, start, end = table_case(seed)
    slots = torch.randint(1, 1000, (sum(end) - sum(start),))
    expected, left = table.tolist(), slots.tolist()
    for row, first, last in zip(rows, start, end, strict=True):
        for position in range(first, last):
            expected[row][position] = left.pop(0)
    cache.assign_req_to_token_pool_cpu(
        *map(torch.tensor, (rows,)), table, torch.tensor(start), torch.tensor(end), slots, 40
    )
    assert table.tolist() == expected


@QUICK
@given(SEEDS)
def test_slots_are_read_from_the_table_request_after_request(seed: int) -> None:
    _, table, rows, start, end = table_case(seed)
    expected = [
        int(table[row, position])
        for row, first, last in zip(rows, start, end, strict=True)
        for position in range(first, last)
    ]
    read = torch.full((len(expected) + 2,), -7)
    cache.assign_extend_cache_locs_cpu(torch.tensor(rows), table, torch.tensor(start), torch.tensor(end), read, 40)
    assert read.tolist() == [*expected, -7, -7]


@QUICK
@given(SEEDS, st.integers(1, 4), st.integers(1, 5))
def test_draft_slots_follow_the_committed_ones(seed: int, topk: int, steps: int) -> None:
    _, table, rows, lengths, _ = table_case(seed)
    read = torch.zeros(len(rows) * topk * steps, dtype=torch.int64)
    cache.assign_draft_cache_locs_contiguous_cpu(
        torch.tensor(rows), table, torch.tensor(lengths), read, 40, topk, steps
    )
    expected = [
        int(table[row, length + j]) for row, length in zip(rows, lengths, strict=True) for j in range(topk * steps)
    ]
    assert read.tolist() == expected


@QUICK
@given(SEEDS, st.integers(1, 4), st.integers(1, 5))
def test_each_draft_branch_gets_the_prefix_and_its_own_slots(seed: int, topk: int, steps: int) -> None:
    _, table, rows, lengths, _ = table_case(seed)
    branches = cache.build_draft_decode_metadata_cpu(table, torch.tensor(rows), torch.tensor(lengths), topk, steps, 40)
    assert branches.shape == (len(rows) * topk, 40) and branches.dtype == table.dtype
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        for t in range(topk):
            wanted = [int(table[row, p]) for p in range(length)]
            wanted += [int(table[row, length + t * steps + s]) for s in range(steps)]
            assert branches[i * topk + t, : length + steps].tolist() == wanted


@QUICK
@given(SEEDS)
def test_bonus_token_is_the_last_accepted_one(seed: int) -> None:
    rng = random.Random(seed)
    bs, stride = rng.randint(1, 5), rng.randint(1, 6)
    tokens = [[rng.randrange(1000) for _ in range(stride)] for _ in range(bs)]
    lens = [rng.randint(1, stride) for _ in range(bs)]
    bonus = torch.zeros(bs, dtype=torch.int64)
    cache.fill_bonus_tokens_cpu(
        torch.tensor(tokens, dtype=torch.int32), torch.tensor(lens, dtype=torch.int32), bonus, stride
    )
    assert bonus.tolist() == [row[n - 1] for row, n in zip(tokens, lens, strict=True)]


@QUICK
@given(SEEDS)
def test_slots_of_accepted_tokens_are_packed_in_order(seed: int) -> None:
    rng = random.Random(seed)
    slots = [rng.randrange(1000) for _ in range(12)]
    index = [[rng.choice([-1, rng.randrange(12)]) for _ in range(4)] for _ in range(rng.randint(1, 4))]
    packed = torch.full((20,), -7)
    cache.fill_accept_out_cache_loc_cpu(torch.tensor(index, dtype=torch.int32), torch.tensor(slots), packed)
    kept = [slots[i] for row in index for i in row if i != -1]
    assert packed.tolist() == kept + [-7] * (20 - len(kept))


@QUICK
@given(SEEDS)
def test_cache_rows_move_as_if_all_were_read_before_any_is_written(seed: int) -> None:
    rng = random.Random(seed)
    buffers = [torch.randn(16, 2, 3), torch.randn(16, 5).bfloat16(), torch.randn(16, 1)]
    moved = rng.randint(0, 6)
    source = [rng.randrange(16) for _ in range(moved)]
    target = rng.sample(range(16), moved)
    expected = [buffer.clone() for buffer in buffers]
    for before, after in zip(buffers, expected, strict=True):
        for to, of in zip(target, source, strict=True):
            after[to] = before[of]
    pointers = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
    strides = torch.tensor([buffer[0].numel() * buffer.element_size() for buffer in buffers])
    cache.copy_all_layer_kv_cache_cpu(
        pointers, strides, torch.tensor(target, dtype=torch.int64), torch.tensor(source, dtype=torch.int64)
    )
    assert all(torch.equal(buffer, after) for buffer, after in zip(buffers, expected, strict=True))


@QUICK
@given(SEEDS, st.booleans())
def test_input_ids_shift_left_and_take_the_next_token(seed: int, chosen: bool) -> None:
    rng = random.Random(seed)
    lens = [rng.randint(0, 5) for _ in range(rng.randint(1, 4))]
    starts = [sum(lens[:i]) for i in range(len(lens))]
    ids = [rng.randrange(1000) for _ in range(sum(lens))]
    fresh = [rng.randrange(1000, 2000) for _ in lens]
    ends = [start + (rng.randrange(n) if n else 0) for start, n in zip(starts, lens, strict=True)]
    expected = list(ids)
    for start, n, token, end in zip(starts, lens, fresh, ends, strict=True):
        for j in range(start, start + n - 1):
            expected[j] = ids[j + 1]
        if n:
            expected[end if chosen else start + n - 1] = token
    given_ids = torch.tensor(ids, dtype=torch.int64)
    cache.rotate_input_ids_cpu(
        given_ids, torch.tensor(starts), torch.tensor(lens), torch.tensor(fresh).view(-1, 1),
        torch.tensor(ends) if chosen else None,
    )  # fmt: skip
    assert given_ids.tolist() == expected


# --- the tree ------------------------------------------------------------------------------------------------------


def random_parents(rng: random.Random, n: int) -> list[int]:
    """A tree in which parents come before their children; node 0 is the root (-1)."""
    return [-1, *(rng.randrange(node) for node in range(1, n))]


def chain_to_root(parents: list[int], node: int) -> list[int]:
    return [] if node == -1 else [node, *chain_to_root(parents, parents[node])]


def children(parents: list[int], node: int) -> list[int]:
    return [child for child, parent in enumerate(parents) if parent == node]


def expected_links(parents: list[int]) -> tuple[list[int], list[int]]:
    first_child, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node in range(len(parents)):
        family = children(parents, node)
        if family:
            first_child[node] = family[0]
        for elder, younger in itertools.pairwise(family):
            next_sibling[elder] = younger
    return first_child, next_sibling


def links(bs: int, n: int) -> list[Tensor]:
    """The three arrays of the tree as SGLang allocates them."""
    return [torch.full((bs, n), -1) for _ in range(3)]


@QUICK
@given(SEEDS)
def test_links_and_positions_are_read_back_from_a_mask(seed: int) -> None:
    rng = random.Random(seed)
    bs, n = rng.randint(1, 3), rng.randint(1, 9)
    trees = [random_parents(rng, n) for _ in range(bs)]
    lengths = [rng.randint(1, 20) for _ in range(bs)]
    mask = torch.tensor([[[b in chain_to_root(t, a) for b in range(n)] for a in range(n)] for t in trees])
    positions, (index, next_token, next_sibling) = torch.zeros(bs * n, dtype=torch.int64), links(bs, n)
    tree.reconstruct_indices_from_tree_mask(
        mask.flatten(), torch.tensor(lengths), positions, index, next_token, next_sibling, bs, n
    )
    assert index.flatten().tolist() == list(range(bs * n))
    for i, parents in enumerate(trees):
        assert (next_token[i].tolist(), next_sibling[i].tolist()) == expected_links(parents)
        depths = [len(chain_to_root(parents, node)) - 1 for node in range(n)]
        assert positions.view(bs, n)[i].tolist() == [lengths[i] + depth for depth in depths]


class Picks:
    """A drafter's picks for one request: candidate ``topk * slot + choice`` grows from the parent in ``slot``."""

    def __init__(self, rng: random.Random, topk: int, n: int) -> None:
        slots = n + 2
        self.parent_list = [-1, *(rng.randrange(topk * slot) for slot in range(1, slots))]
        self.parent_of = {
            topk * slot + choice: (None if slot == 0 else self.parent_list[slot])
            for slot in range(slots)
            for choice in range(topk)
        }
        self.selected = sorted(rng.sample(sorted(self.parent_of), n - 1))

    def ancestors(self, node: int) -> list[int]:
        """Nodes between ``node`` and the root, itself first; ends early where a parent was not selected."""
        path, candidate = [], self.selected[node - 1] if node else None
        while candidate is not None and candidate in self.selected:
            path.append(self.selected.index(candidate) + 1)
            candidate = self.parent_of[candidate]
        return path

    def parents(self) -> list[int | None]:
        """The parent of each node, None where it was not selected."""
        found: list[int | None] = [-1]
        for candidate in self.selected:
            parent = self.parent_of[candidate]
            if parent is None:
                found.append(0)
            else:
                found.append(self.selected.index(parent) + 1 if parent in self.selected else None)
        return found


@QUICK
@given(SEEDS, st.integers(1, 4), st.sampled_from([tree.FULL_MASK, tree.QLEN_ONLY]))
def test_tree_is_built_from_the_drafters_picks(seed: int, topk: int, mode: int) -> None:
    rng = random.Random(seed)
    bs, n = rng.randint(1, 3), rng.randint(2, 3 + topk * 2)
    depth = n if rng.random() < 0.7 else 2
    picks = [Picks(rng, topk, n) for _ in range(bs)]
    lengths = [rng.randint(1, 7) for _ in range(bs)]
    widths = [n + (length if mode == tree.FULL_MASK else 0) for length in lengths]
    mask = torch.ones(sum(n * width for width in widths), dtype=torch.bool)
    positions, (index, next_token, next_sibling) = torch.zeros(bs * n, dtype=torch.int64), links(bs, n)
    tree.build_tree_kernel_efficient_cpu(
        torch.tensor([p.parent_list for p in picks]), torch.tensor([p.selected for p in picks]), torch.tensor(lengths),
        mask, positions, index, next_token, next_sibling, topk, depth, n, mode,
    )  # fmt: skip
    assert index.flatten().tolist() == list(range(bs * n))
    offset = 0
    for i, p in enumerate(picks):
        known = [-2 if parent is None else parent for parent in p.parents()]
        assert (next_token[i].tolist(), next_sibling[i].tolist()) == expected_links(known)
        rows = mask[offset : offset + n * widths[i]].view(n, widths[i])
        offset += n * widths[i]
        for a in range(n):
            path = p.ancestors(a)[:depth]
            assert positions[i * n + a] == lengths[i] + len(path)
            seen = [b == 0 or b in path for b in range(n)]
            assert rows[a].tolist() == [True] * (widths[i] - n) + seen


def test_tree_with_a_packed_mask_is_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="tree_mask_mode 2"):
        tree.build_tree_kernel_efficient_cpu(*[torch.zeros(1, 1)] * 8, 1, 1, 2, 2)


@QUICK
@given(SEEDS)
def test_verification_follows_the_targets_choice_as_far_as_the_tree_goes(seed: int) -> None:
    rng = random.Random(seed)
    bs, n, steps = rng.randint(1, 3), rng.randint(2, 10), rng.randint(1, 5)
    trees = [random_parents(rng, n) for _ in range(bs)]
    tokens = [[rng.randrange(3) for _ in range(n)] for _ in range(bs)]
    target = [[rng.randrange(3) for _ in range(n)] for _ in range(bs)]
    index = torch.arange(bs * n).view(bs, n)
    linked = [expected_links(parents) for parents in trees]
    predicts = torch.full((bs * n,), -7, dtype=torch.int32)
    accept_index = torch.full((bs, steps + 1), -1, dtype=torch.int32)
    accepted = torch.zeros(bs, dtype=torch.int32)
    tree.verify_tree_greedy_cpu(
        predicts=predicts, accept_index=accept_index, accept_token_num=accepted, candidates=torch.tensor(tokens),
        retrive_index=index, retrive_next_token=torch.tensor([first for first, _ in linked]),
        retrive_next_sibling=torch.tensor([sibling for _, sibling in linked]), target_predict=torch.tensor(target),
    )  # fmt: skip
    for i in range(bs):
        node, path = 0, [0]
        while len(path) <= steps:
            matching = [child for child in children(trees[i], node) if tokens[i][child] == target[i][node]]
            if not matching:
                break
            node = matching[0]
            path.append(node)
        assert accepted[i] == len(path) - 1
        assert accept_index[i].tolist() == [i * n + node for node in path] + [-1] * (steps + 1 - len(path))
        for node in range(n):
            assert predicts[i * n + node] == (target[i][node] if node in path else -7)


# --- linear --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 8, 17, 64])
def test_packed_product_equals_the_plain_one(rows: int) -> None:
    torch.manual_seed(rows)
    layer = torch.nn.Linear(96, 80, dtype=torch.bfloat16).requires_grad_(False)
    linear.pack(layer)
    assert hasattr(layer.weight, linear.PACKED) == torch.ops.mkldnn._is_mkldnn_bf16_supported()
    given_rows = torch.randn(rows, 96, dtype=torch.bfloat16)
    packed = linear.weight_packed_linear(given_rows, layer.weight, layer.bias, True)
    plain = torch.nn.functional.linear(given_rows, layer.weight, layer.bias)
    torch.testing.assert_close(packed, plain)


def test_float32_layers_are_left_alone() -> None:
    layer = torch.nn.Linear(32, 16)
    linear.pack(layer)
    assert not hasattr(layer, "use_intel_amx_backend")


def test_head_taken_over_from_another_model_brings_its_packed_weight_along() -> None:
    torch.manual_seed(0)
    target, drafter = (torch.nn.Linear(32, 64, bias=False, dtype=torch.bfloat16) for _ in range(2))
    for layer in (target, drafter):
        layer.requires_grad_(False)
        linear.pack(layer)
    drafter.weight = target.weight
    rows = torch.randn(3, 32, dtype=torch.bfloat16)
    expected = torch.nn.functional.linear(rows, target.weight)
    torch.testing.assert_close(linear.weight_packed_linear(rows, drafter.weight, None, True), expected)


def test_weight_that_was_not_packed_gets_the_plain_product() -> None:
    rows, weight, addend = torch.randn(3, 8), torch.randn(5, 8), torch.randn(3, 5)
    assert torch.equal(linear.weight_packed_linear(rows, weight, None, True), rows @ weight.T)
    assert torch.equal(linear.linear_plus(rows, weight, addend), rows @ weight.T + addend)


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 8, 17, 64])
def test_packed_product_with_an_addend_leaves_the_addend_as_it_was(rows: int) -> None:
    torch.manual_seed(rows)
    layer = torch.nn.Linear(96, 80, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    linear.pack(layer)
    given_rows, addend = torch.randn(rows, 96).bfloat16(), torch.randn(rows, 80).bfloat16()
    before = addend.clone()
    result = linear.linear_plus(given_rows, layer.weight, addend)
    expected = given_rows.float() @ layer.weight.float().T + before.float()
    torch.testing.assert_close(result, expected.bfloat16())
    assert torch.equal(addend, before)
