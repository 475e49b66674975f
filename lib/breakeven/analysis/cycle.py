"""Where a cycle's milliseconds go, and the floors below which physics lets nothing fall.

The length of a cycle is measured without a profiler, from the server's own times; how it divides is taken from a short
traced window. A profiler stretches what lies between the kernels, so a traced cycle's length is never used.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from breakeven.stats.samples import usable

WORK_NAMES = {
    "allreduce": "all-reduce",
    "attention": "attention",
    "matmul": "matrix products",
    "rest": "rest of the forward",
}
FORWARD = ("verify", "target forward", *WORK_NAMES.values())
"""Parts that make up the target's forward pass: in a cycle the verify, in a baseline step nearly all of it."""

HOST = "host and gaps"
BETWEEN = (HOST, "host gaps", "sampling and scheduling")
"""Parts in which the device waits for the host, or may."""

EXPERT_KEYS = ("num_experts", "n_routed_experts", "num_local_experts")


def cycle_rows(samples: pd.DataFrame, cells: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Milliseconds per baseline step and per cycle of each cell, split as the traced window was where there is one.

    Rows: cell, total_ms, parts (name to ms, adding up to total_ms), split (traced window | not traced).
    """
    rows = []
    for cell, group in usable(samples).groupby("cell", sort=False):
        speculates = bool(group["verify_ct"].notna().any())
        count = group["verify_ct"].sum() if speculates else (group["completion_tokens"] - 1).sum()
        total_ms = float(1000 * group["decode_s"].sum() / count)
        profiles = [row.get("profile") or {} for row in cells if row["cell"] == cell]
        profile = next((each for each in profiles if "shares" in each), None)
        parts = _traced_ms(profile, total_ms) if profile else {"cycle" if speculates else "step": total_ms}
        split = "traced window" if profile else "not traced"
        rows.append({"cell": cell, "total_ms": total_ms, "parts": parts, "split": split})
    return rows


def _traced_ms(profile: Mapping[str, Any], total_ms: float) -> dict[str, float]:
    """The cycle's parts in ms. A GPU's work takes as long under a profiler as without, so that it counts as traced and
    what it leaves of the measured cycle is the host's; on a processor the traced cycle is scaled to the measured one.
    """
    work = profile.get("work_ms") or {}
    if profile.get("device") == "gpu" and work:
        parts = _device_work(work)
        shrunk = min(1.0, total_ms / sum(parts.values()))
        parts = {name: ms * shrunk for name, ms in parts.items()}
        return {**parts, HOST: total_ms - sum(parts.values())}
    return {name: share * total_ms for name, share in _shares(profile).items()}


def _device_work(work: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    forward = work.get("verify") or work["decode"]
    parts = {"draft": work["draft"]["all"]} if "draft" in work else {}
    parts |= {label: forward[kind] for kind, label in WORK_NAMES.items() if forward[kind] > 0}
    return parts | ({"draft extend": work["draft_extend"]["all"]} if "draft_extend" in work else {})


def _shares(profile: Mapping[str, Any]) -> dict[str, float]:
    """Shares of the traced cycle; the target's forward by kind of work, and host gaps, where the trace tells them."""
    shares: dict[str, float] = {}
    for name, share in profile["shares"].items():
        work = (profile.get("work_ms") or {}).get("verify" if name == "verify" else "decode")
        if name in ("verify", "target forward") and work and work["all"]:
            scale = min(1.0, share * profile["cycle_ms"] / work["all"]) / profile["cycle_ms"]
            split = {label: work[kind] * scale for kind, label in WORK_NAMES.items()}
            split["rest of the forward"] += share - sum(split.values())  # gaps between its operators
            shares |= {label: part for label, part in split.items() if part > 1e-6}
        elif name == "other" and profile.get("host_gap_ms"):
            gaps = min(share, profile["host_gap_ms"] / profile["cycle_ms"])
            shares |= {"host gaps": gaps, "sampling and scheduling": share - gaps}
        else:
            shares["sampling and scheduling" if name == "other" else name] = share
    return shares


def part_ms(row: Mapping[str, Any] | None, names: Sequence[str]) -> float | None:
    """The sum of some parts of a traced row; None where it was not traced."""
    if row is None or row["split"] != "traced window":
        return None
    return sum(ms for name, ms in row["parts"].items() if name in names)


# --- floors ---------------------------------------------------------------------------------------------------------


def floors(model: Path, tp: int, memory_gb_s: float | None, link_gb_s: float | None) -> list[dict[str, Any]]:
    """The least time of one target forward at batch 1: weights over memory bandwidth, all-reduce payload over the link.

    Rows: name, ms (None where it is not known), how. Bandwidths in GB/s (10^9 bytes), None where not measured.
    """
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return [{"name": "weights read once", "ms": None, "how": f"no readable config.json in {model.name}"}]
    config = config.get("text_config", config)
    rows = [_weights_floor(model, config, tp, memory_gb_s)]
    if tp > 1:
        rows.append(_payload_floor(config, tp, link_gb_s))
    return rows


def _weights_floor(model: Path, config: Mapping[str, Any], tp: int, memory_gb_s: float | None) -> dict[str, Any]:
    row: dict[str, Any] = {"name": "weights read once", "ms": None}
    total_bytes = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    if any(config.get(key) for key in EXPERT_KEYS):
        return row | {"how": "a mixture of experts reads only the experts that it routes to: no floor from the weights"}
    if not total_bytes or memory_gb_s is None:
        return row | {"how": "the size of the weights or the memory's bandwidth is not known"}
    if not config.get("tie_word_embeddings", False):  # one row of the input table is read, not the table
        total_bytes -= config.get("vocab_size", 0) * config.get("hidden_size", 0) * 2
    ms = total_bytes / tp / (memory_gb_s * 1e6)
    how = f"{total_bytes / tp / 1e9:.3g} GB of weights per device over {memory_gb_s:.0f} GB/s, measured here"
    return row | {"ms": ms, "how": how}


def _payload_floor(config: Mapping[str, Any], tp: int, link_gb_s: float | None) -> dict[str, Any]:
    """Two all-reduces a layer; each device sends ``2 (tp - 1) / tp`` of a row of the hidden state in bfloat16."""
    row: dict[str, Any] = {"name": "all-reduce payload", "ms": None}
    if link_gb_s is None:
        return row | {"how": "the link's bandwidth was not measured"}
    sent_bytes = 2 * config["num_hidden_layers"] * 2 * (tp - 1) / tp * config["hidden_size"] * 2
    how = f"{sent_bytes / 1e6:.3g} MB per token over {link_gb_s:.0f} GB/s, measured here; latency comes on top"
    return row | {"ms": sent_bytes / (link_gb_s * 1e6), "how": how}


def held_against(rows: Sequence[Mapping[str, Any]], step_ms: float | None) -> list[dict[str, Any]]:
    """Floors beside the step that was measured. One above it is none: ``above_step``, with the likely reason."""
    checked = []
    for row in rows:
        above = row["ms"] is not None and step_ms is not None and row["ms"] > step_ms
        if above:
            how = (
                f"{row['how']}: {row['name']} would take {row['ms']:.1f} ms, more than the whole step of {step_ms:.1f} "
                f"ms that was measured, and a floor can't. {_why_above()}"
            )
            row = {**row, "ms": None, "how": how}
        checked.append({**row, "above_step": above})
    return checked


def _why_above() -> str:
    """What makes a bandwidth look lower than the server's: fewer or busy reading threads, weights in the cache."""
    import torch

    text = (
        f"The bandwidth is that of one large read by {torch.get_num_threads()} threads of this notebook: the server "
        "reads with threads and kernels of its own, and another process may have been reading meanwhile"
    )
    cache = _last_cache_mib()
    if cache and not torch.cuda.is_available():
        text += f"; of weights that fit into the processor's cache of {cache:.0f} MiB much is never read from memory"
    return f"{text}."


def _last_cache_mib() -> float | None:
    """The processor's last-level cache, where Linux tells it."""
    sizes = [path.read_text().strip() for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    known = [float(size[:-1]) * {"K": 1 / 1024, "M": 1.0}[size[-1]] for size in sizes if size[-1:] in ("K", "M")]
    return max(known, default=None)


def memory_bandwidth_gb_s(size_mib: int = 256, repeats: int = 10) -> float:
    """What this machine's memory (the GPU's, where there is one) delivers to one large read: the best of a few."""
    import torch  # seconds to import: only where a floor is asked for

    device = "cuda" if torch.cuda.is_available() else "cpu"
    table = torch.ones((1024, size_mib * 2**20 // 4096), dtype=torch.float32, device=device)
    row = torch.ones(table.shape[1], dtype=torch.float32, device=device)
    return table.numel() * 4 / 1e9 / _best_s(lambda: table @ row, repeats, device)  # each number is read once


def link_bandwidth_gb_s(size_mib: int = 256, repeats: int = 5) -> float | None:
    """One direction between the first two GPUs; None with fewer than two."""
    import torch

    if not torch.cuda.is_available() or torch.cuda.device_count() < 2:
        return None
    source = torch.ones(size_mib * 2**20 // 4, dtype=torch.float32, device="cuda:0")
    target = torch.empty_like(source, device="cuda:1")
    return source.numel() * 4 / 1e9 / _best_s(lambda: target.copy_(source), repeats, "cuda")


def _best_s(work: Any, repeats: int, device: str) -> float:
    import torch

    seconds = []
    for _ in range(repeats + 1):  # the first is a warm-up
        began = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])
