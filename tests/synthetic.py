"""Samples and launches of an imagined sweep with a known truth, in the form in which notebook 04 leaves them."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

from breakeven import artifacts

KINDS = ("code edit", "open chat")
STEP_MS = 50.0


def sweep(
    run_dir: Path,
    cells: dict[str, tuple[float, float]],
    *,
    baselines: dict[str, float] | None = None,
    restarts: int = 3,
    prompts_per_kind: int = 8,
    noise: float = 0.01,
    seed: int = 0,
) -> Path:
    """Write samples.jsonl and cells.json; ``cells`` maps a name to its accept length and cycle over STEP_MS.

    Names are those of a sweep (``fused/ngram-d4@c4``); ``baselines`` maps theirs to their step over STEP_MS.
    """
    baselines = {"baseline": 1.0} if baselines is None else baselines
    rng = random.Random(seed)
    rows = []
    for restart in range(restarts):
        for order, name in enumerate([*baselines, *cells]):
            launch = f"{name}.restart{restart}.1"
            rows.append(launch_row(name, launch, restart, order))
            factor = 1 + rng.gauss(0, noise)
            for kind in KINDS:
                for number in range(prompts_per_kind):
                    length, ratio = cells[name] if name in cells else (1.0, baselines[name])
                    sample = request(f"{kind}-{number}", kind, length, ratio * factor * (1 + rng.gauss(0, noise)), name)
                    fixed = {"cell": name, "restart": restart, "launch": launch, "phase": "measure", "concurrency": 1}
                    artifacts.append_jsonl(run_dir / "samples.jsonl", {**fixed, **sample})
    content = {"plan": {}, "machine": {"cpu": "imagined", "cores": 4}, "cells": rows}
    artifacts.write_json(run_dir / "cells.json", content)
    return run_dir


def launch_row(name: str, launch: str, restart: int, order: int) -> dict[str, Any]:
    base = "baseline" in name
    variant, _, rest = name.rpartition("/")
    return {
        "cell": name,
        "arm": name.partition("@")[0],
        "variant": variant or "default",
        "concurrency": int(rest.partition("@c")[2] or 1),
        "launch": launch,
        "restart": restart,
        "order": order,
        "status": "ok",
        "failure": None,
        "drafter": "none" if base else "NGRAM",
        "steps": None,
        "topk": None,
        "draft_tokens": None if base else int(re.search(r"-d(\d+)", name)[1]) if "-d" in name else 4,
        "effective": {"max_running_requests": 8},
    }


def request(prompt_id: str, kind: str, length: float, ratio: float, cell: str) -> dict[str, Any]:
    verifies = 60
    tokens = round(verifies * length) + 1
    base = "baseline" in cell
    return {
        "prompt_id": prompt_id,
        "kind": kind,
        "prompt_tokens": 100,
        "cached_tokens": 0,
        "completion_tokens": tokens,
        "verify_ct": None if base else verifies,
        "decode_s": (tokens - 1 if base else verifies) * STEP_MS * ratio / 1000,
        "finish": "stop",
        "degenerate": False,
        "output_ids": [1, 2, 3],
        "error": None,
    }
