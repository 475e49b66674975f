"""What was measured on what: the line that stands above every answer, so that no figure is read without it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]


def of_sweep(cells: Sequence[Row], machine: Row, prompts: int, kinds: int) -> dict[str, Any]:
    """Model, hardware, release and load of a sweep, and the same as a sentence (``words``).

    ``prompts`` and ``kinds`` (of prompts) are those of one cell.
    """
    first = next((row for row in cells if row.get("effective")), {})
    effective = first.get("effective") or {}
    model = Path(effective.get("model_path") or "").name or "a model that was not recorded"
    random = any(
        flag.replace("=", " ").startswith("--load-format dummy") for flag in _flags(first.get("command") or ())
    )
    release = first.get("sglang_version") or effective.get("version") or (machine.get("packages") or {}).get("sglang")
    concurrency = sorted({row.get("concurrency") or 1 for row in cells})
    temperature = sorted({row.get("temperature") or 0.0 for row in cells})
    tp, dtype = effective.get("tp") or 1, effective.get("dtype")
    precision = ", ".join(part for part in (dtype, f"TP {tp}") if part)
    at_once = "one request at a time" if concurrency == [1] else f"{_listed(concurrency)} requests at a time"
    how = "greedy" if temperature == [0.0] else f"temperature {_listed(f'{each:g}' for each in temperature)}"
    drafters = _drafters(cells)
    words = (
        f"{model}{' with random weights' if random else ''} ({precision}) on {machine_in_words(machine)}, SGLang "
        f"{release or 'of an unknown release'}; {at_once}, {how}; {prompts} prompts of {kinds} "
        f"kind{'s' if kinds != 1 else ''}." + (f" Drafters: {_listed(drafters)}." if drafters else "")
    )
    found = {"model": model, "random_weights": random, "tp": tp, "dtype": dtype, "sglang": release}
    load = {"concurrency": concurrency, "temperature": temperature, "prompts": prompts, "kinds": kinds}
    return {**found, **load, "hardware": machine_in_words(machine), "words": words}


def _drafters(cells: Sequence[Row]) -> list[str]:
    """Each drafter by its algorithm and, where it is a model of its own, that model's name."""
    named: dict[str, None] = {}
    for row in cells:
        if row.get("drafter") not in (None, "none"):
            path = (row.get("effective") or {}).get("draft_model_path")
            about = [f"model {Path(path).name}"] if path else []
            about += [f"topk {row['topk']}"] if row.get("topk") else []
            named[f"{row['drafter']} ({', '.join(about)})" if about else str(row["drafter"])] = None
    return list(named)


def of_records(rows: Sequence[Row], file: str) -> dict[str, Any]:
    """The same for recorded figures: model and hardware as their table names them, and who reported them."""
    named = {
        name: list(dict.fromkeys(row["notes"][name] for row in rows if row["notes"].get(name)))
        for name in ("model", "hardware", "tp", "reported_by")
    }
    model = _listed(named["model"]) or "a model that is not named"
    hardware = _listed(named["hardware"]) or "hardware that is not named"
    tp = f", TP {_listed(named['tp'])}" if named["tp"] else ""
    who = _listed(named["reported_by"]) or "somebody whom the file does not name (column reported_by)"
    batches = _listed(f"{each:g}" for each in sorted({row["batch"] for row in rows}))
    words = f"{model} on {hardware}{tp}, batch {batches}. Reported by {who}; recorded in {file}; not measured here."
    return {"model": model, "hardware": hardware, "reported_by": who, "file": file, "words": words}


def machine_in_words(machine: Row) -> str:
    """``NVIDIA H200 × 2`` or the processor with its cores."""
    gpus = machine.get("gpus") or []
    if gpus:
        return gpus[0]["name"] + (f" × {len(gpus)}" if len(gpus) > 1 else "")
    return f"{machine.get('cpu', 'unknown processor')}, {machine.get('cores', '?')} cores, no GPU"


def _flags(command: Sequence[str]) -> Iterable[str]:
    """Each option with its value, whichever way it was written."""
    for option, value in itertools.pairwise([*command, ""]):
        if option.startswith("--"):
            yield option if "=" in option else f"{option} {value}"


def _listed(values: Iterable[Any]) -> str:
    """``1``, ``1 and 4``, ``1, 4 and 8``."""
    *others, last = [str(value) for value in values] or [""]
    return f"{', '.join(others)} and {last}" if others else last
