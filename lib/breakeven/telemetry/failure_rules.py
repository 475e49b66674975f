"""What the last words of a server mean: a table from log text to failure class and advice, and the lines to judge.

Rules are tried in order on one line of text in lower case, the first that fits gives its class. ``level`` settles
between lines: a cause (4) beats a mid-level error that has causes of its own (3), a symptom (2) and a mere consequence
(1); at equal level the earlier line wins, but for causes, where an exception goes before what was merely said.

Class names that end in ``*`` depend on when it happened: ``oom-at-*`` becomes load, capture or run, ``nccl*`` becomes
``nccl-in-capture`` while graphs are captured, ``exit*`` is ``exited-early`` before the server was ready, and ``fault*``
is ``config`` (reading beyond a context) except in capture, where no request has run yet and the cause is ``unknown``.
"""

from __future__ import annotations

import re

from breakeven.telemetry.machine_rules import MACHINE_RULES
from breakeven.telemetry.rule import Rule
from breakeven.telemetry.server_rules import FRAME_RULES, SERVER_RULES

RULES: tuple[Rule, ...] = MACHINE_RULES + SERVER_RULES

__all__ = ["BENIGN", "BENIGN_NCCL_WARN", "FRAME_RULES", "HOUSEKEEPING_WORDS", "JUDGED_WORDS", "RULES", "SURVIVED"]

# Most lines of a long log hold none of these (in lower case) and are passed over with one search. A line is judged by
# the rules when it holds one of the second tuple: each alternative of each rule contains one of them.
HOUSEKEEPING_WORDS = (
    "graph", "capturing", "uvicorn", "startup complete", "fired up", "load weight", "kv cache is",
    "memory pool end", "max_total_num_tokens", "server_args", "post /", "get /health", "sigterm", "gracefully",
    "shutting down", "keyboardinterrupt", "finished server", "exception ignored", "asgi", "sglang", '  file "',
)  # fmt: skip
JUDGED_WORDS = (
    "error", "exception", "fail", "not enough", "out of", "alloc", "oom", "kill", "signal", "sig", "exit", "died",
    "dead", "returncode", "return code", "abort", "fault", "terminate", "timeout", "timed out", "not found",
    "no such", "no module", "not exist", "denied", "no space", "enospc", "quota", "in use", "occupied",
    "being used", "eaddr", "used by", "not available", "unavailable", "peer", "remote", "broken pipe",
    "during capture", "nccl warn", "collective", "undefined", "mismatch", "match", "minimum", "common_ops",
    "cannot", "can't", "couldn't", "could not", "attribute", "numpy", "not compiled", "recognize", "support",
    "require", "architectures", "fusion", "kernel image", "capability", "only runs", "only works", "driver",
    "libcuda", "no cuda", "cuda-capable", "not yet initialized", "accelerator", "nvcc", "ninja", "ptxas",
    "compiler", "cuda_home", "unsupported", "invalid", "unknown", "unrecognized", "set_e", "get_embed",
    "hot_token_id", "suitable", "vocab", "greater than", "exceed", "repo", "gated", "local folder",
    "offline", "does not", "safetensor", "magic", "header", "divisible", "too many", "new thread", "temporarily",
    "assert", "bounds", "illegal", "too small", "is zero", "time limit", "resolution", "not known", "draft_model",
    "misaligned", "ind <", "stuck", "no progress", "health check", "didn't finish", "bus ", "token-to-id", "glibc",
    "shared", "shm",
)  # fmt: skip

BENIGN = re.compile(
    r"ignore import error|fail to set rlimit|gpugetdevicecount failed"
    r"|(user|future|deprecation|runtime|resource|import)warning:"
    r"|\bnccl (info|trace)|^(?!.*error).*\bnccl version|avoid out[- ]of[- ]memory|trying port|is in use\. waiting"
    r"|retract requests"
    r"|out of memory happened"
    r"|^\W*(possible (solutions|suggestions)|\d\. (set|disable)|open an issue on github|suggestions?:)"
    # a request that was refused, an answer that could not be parsed
    r"|exceeds the model's context length|\[http_server\] error|(tool call|reasoning) parsing error",
    re.IGNORECASE,
)
# Said by a server that goes on without: never a cause, unless an exception says it.
SURVIVED = re.compile(
    r"falling back|fall back|trying (another|fallback)|disabling|fusion disabled|skipping|to silence this warning"
    r"|permanently|serving this checkpoint|failed to (import|get device capability|initialize flashinfer workspace)"
    r"|(^|[\])|] |- )\W*warning(:| -)|thrown while requesting|retrying in"
    r"|using .{0,60} to avoid|[.;] (using|overriding|preserving|defaulting) |sending sigkill|for prepacking",
    re.IGNORECASE,
)
BENIGN_NCCL_WARN = re.compile(
    r"no device found|iommu|\bMTU\b|plugin|\bnuma\b|environment|libnccl|nvml|tuner|deprecat|gdrcopy|\bras\b",
    re.IGNORECASE,
)
