"""The lean pieces of Llama's forward pass, against plain formulas. (The whole pass: test_embedded_e2e.py.)"""

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


def computed() -> dict:
    environment = engine.server_environment(os.environ)
    result = subprocess.run(
        [sys.executable, "-c", COMPUTE], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def test_norm_and_rotation_follow_their_formulas() -> None:
    found = computed()
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
