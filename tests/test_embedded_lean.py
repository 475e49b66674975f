"""The lean forward pass: its pieces against plain formulas, and its two ways, by PyTorch and by the compiled kernels,
against each other. (The whole server: test_embedded_e2e.py.)"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from breakeven.embedded import engine

# The module imports SGLang, which takes seconds and needs the server's environment: one process computes all of it.
COMPUTE = """
import json, sys, types
import torch
from breakeven_llama import lean

torch.manual_seed(0)
rows, weight = torch.randn(5, 12), torch.randn(12)
norm = types.SimpleNamespace(weight=weight, variance_epsilon=1e-5)
rotary = types.SimpleNamespace(cos_sin_cache=torch.randn(20, 8))
positions = torch.tensor([3, 0, 19, 7, 7])
cos, signed_sin = lean.rotary_angles(rotary, positions, torch.float32)
head = torch.randn(5, 2, 8)
turned = head * cos + head.roll(4, dims=-1) * signed_sin
print(json.dumps({
    "rows": rows.tolist(), "weight": weight.tolist(), "normed": lean.normed(norm, rows).tolist(),
    "table": rotary.cos_sin_cache.tolist(), "positions": positions.tolist(),
    "head": head.tolist(), "turned": turned.tolist(),
}))
"""


# One pass of three sequences over a random model, by PyTorch's operations and by the kernels, on caches of their own.
COMPARE = """
import copy, json
import torch
from types import SimpleNamespace as Has
from breakeven_llama import few_rows, lean
from sgl_kernel import compiled
from sglang.srt.layers.attention.intel_amx_backend import IntelAMXAttnBackend
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, set_forward_context

HIDDEN, INNER, HEADS, KV_HEADS, DIM, LAYERS = 20, 12, 6, 2, 8, 4
compiled.prepare(torch.float32)
assert compiled.active
torch.manual_seed(0)
norm = lambda: Has(weight=torch.randn(HIDDEN), variance_epsilon=1e-5)
linear = lambda outer, width: Has(weight=torch.randn(outer, width) * width**-0.5)
rotary = Has(cos_sin_cache=torch.randn(64, DIM))
layers = [
    Has(
        input_layernorm=norm(), post_attention_layernorm=norm(),
        mlp=Has(gate_up_proj=linear(2 * INNER, HIDDEN), down_proj=linear(HIDDEN, INNER)),
        self_attn=Has(
            qkv_proj=linear((HEADS + 2 * KV_HEADS) * DIM, HIDDEN), o_proj=linear(HIDDEN, HEADS * DIM),
            num_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, rotary_emb=rotary,
            attn=RadixAttention(HEADS, DIM, DIM**-0.5, KV_HEADS, index),
        ),
    )
    for index in range(LAYERS)
]
model = Has(
    layers=layers, norm=norm(), can_be_lean=lambda: True, few_rows=None, layers_to_capture=[1, 3],
    embed_tokens=torch.nn.Embedding(50, HIDDEN),
)
assert all(few_rows.fits(layer, compiled.active[0]) for layer in layers)


class Pool:
    layer_transfer_counter = None

    def __init__(self):
        self.buffers = [torch.randn(2, 64, KV_HEADS, DIM) for _ in range(LAYERS)]

    def get_key_buffer(self, layer):
        return self.buffers[layer][0]

    def get_value_buffer(self, layer):
        return self.buffers[layer][1]

    def set_kv_buffer(self, layer, where, keys, values):
        self.buffers[layer.layer_id][:, where.loc] = torch.stack((keys, values.view_as(keys)))


def backend_of(pool, table):
    backend = object.__new__(IntelAMXAttnBackend)
    vars(backend).update(
        device="cpu", token_to_kv_pool=pool, req_to_token_pool=Has(req_to_token=table), num_head=HEADS,
        v_head_dim=DIM, num_kv_splits=8, use_sliding_window_kv_pool=False, use_mla=False, num_draft_tokens=4,
        draft_decode_metadata=None, decode_attention_fwd=torch.ops.sgl_kernel.decode_attention_cpu,
        extend_attention_fwd=torch.ops.sgl_kernel.extend_attention_cpu, _swa_req_to_token=None,
    )
    return backend


def batch_of(kind):
    lengths, new = torch.tensor([9, 4, 6]), torch.tensor([3, 4, 1])
    batch = Has(batch_size=3, req_pool_indices=torch.tensor([2, 0, 1]), encoder_lens=None, spec_info=None)
    if kind == "decode":
        batch.forward_mode, rows = ForwardMode.DECODE, 3
        batch.seq_lens, batch.positions = lengths, lengths - 1
    elif kind == "extend":  # the second sequence is a fresh prompt
        batch.forward_mode, rows, batch.seq_lens = ForwardMode.EXTEND, 8, lengths
        batch.extend_seq_lens, batch.extend_start_loc = new, torch.tensor([0, 3, 7])
        batch.positions = torch.cat([torch.arange(length - n, length) for length, n in zip(lengths, new)])
    else:
        batch.forward_mode, rows, batch.seq_lens = ForwardMode.TARGET_VERIFY, 12, lengths
        trees = torch.rand(3, 4, 4) < 0.5
        trees |= torch.eye(4, dtype=torch.bool)
        batch.spec_info = Has(draft_token_num=4, tree_topk=-1 if kind == "tree" else 1, custom_mask=trees.flatten())
        batch.positions = (lengths.view(-1, 1) + torch.arange(4)).flatten()
    return batch, rows


found = {}
for kind in ("decode", "extend", "tree", "chain"):
    batch, rows = batch_of(kind)
    table = torch.randperm(64)[:60].view(3, 20).int()
    pools = [Pool()]
    pools.append(copy.deepcopy(pools[0]))
    owner = torch.repeat_interleave(torch.arange(3), batch.extend_seq_lens if kind == "extend" else rows // 3)
    batch.out_cache_loc = table[batch.req_pool_indices[owner], batch.positions].long()
    results = []
    for pool, way in zip(pools, (None, few_rows.FewRows(model, compiled.active[0]))):
        backend = backend_of(pool, table)
        backend.init_forward_metadata(batch)
        set_forward_context(ForwardContext(attn_backend=backend))
        model.few_rows = way
        ids = torch.arange(rows) % 50
        with torch.no_grad():
            results.append(lean.LeanLlamaModel.forward(model, ids, batch.positions, batch))
        assert way is None or way.pool is pool and way.pool_fits
    (by_torch, captured), (by_kernels, also) = results
    found[kind] = [
        float((by_torch - by_kernels).abs().max()),
        max(float((a - b).abs().max()) for a, b in zip(captured, also, strict=True)),
        max(float((a - b).abs().max()) for a, b in zip(*(pool.buffers for pool in pools))),
    ]
print(json.dumps(found))
"""


def computed(code: str) -> dict:
    environment = engine.server_environment(os.environ)
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_norm_and_rotation_follow_their_formulas() -> None:
    found = computed(COMPUTE)
    for row, normed in zip(found["rows"], found["normed"], strict=True):
        scale = (sum(x * x for x in row) / len(row) + 1e-5) ** -0.5
        for x, weight, result in zip(row, found["weight"], normed, strict=True):
            assert abs(x * scale * weight - result) < 1e-5
    for position, heads, turned_heads in zip(found["positions"], found["head"], found["turned"], strict=True):
        cos, sin = found["table"][position][:4], found["table"][position][4:]
        for head, turned in zip(heads, turned_heads, strict=True):
            for i in range(4):
                a, b = head[i], head[i + 4]
                assert abs(a * cos[i] - b * sin[i] - turned[i]) < 1e-5
                assert abs(b * cos[i] + a * sin[i] - turned[i + 4]) < 1e-5


def test_kernels_and_pytorch_agree_on_every_kind_of_pass() -> None:
    """Largest difference of the results, of the captured residuals, and of the caches."""
    for kind, differences in computed(COMPARE).items():
        assert max(differences) < 2e-5, (kind, differences)
