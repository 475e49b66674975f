"""What a sweep leaves for other tools: tables with units, a launch script of the fastest server, adaptive settings.

Parquet files carry the unit of each column in its field's metadata (key ``unit``); ``units.json`` says the same for the
CSV.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from breakeven import artifacts
from breakeven.launch.design import BASELINE, TWIN
from breakeven.telemetry.releases import version_key

WITHIN = 0.05  # candidates of adaptive speculation: chains whose rate is within this share of the best
FILE_COLUMNS = {"file": "file", "holds": "what it holds"}

UNITS = {
    "order": ("", "place of the launch in the sweep, from 0"),
    "cell": ("", "arm and condition"),
    "arm": ("", "server: variant and drafter"),
    "baseline": ("", "cell that this one is compared with"),
    "variant": ("", "server settings that are compared"),
    "drafter": ("", "speculative algorithm, or none"),
    "steps": ("", "draft steps"),
    "topk": ("", "branches per draft step"),
    "draft_tokens": ("tokens", "tokens verified per cycle, the root included"),
    "concurrency": ("requests", "requests in flight"),
    "temperature": ("", "sampling temperature, 0 is greedy"),
    "context_tokens": ("tokens", "length to which prompts were brought, 0 as written"),
    "restart": ("", "which fresh server of the arm, from 0"),
    "launch": ("", "name of the launch; its log is logs/<launch>.log"),
    "status": ("", "ok or failed"),
    "ready_s": ("s", "from start to the first real generation"),
    "seconds": ("s", "whole launch, start to stop"),
    "requests": ("requests", "measured requests"),
    "errors": ("requests", "requests that the server refused"),
    "degenerate": ("requests", "answers stuck in a loop, left out"),
    "tok_s": ("tok/s", "decode rate of one stream, prefill excluded"),
    "server_tok_s": ("tok/s", "decode rate of all streams together"),
    "accept_length": ("tokens", "tokens per verify, bonus token included"),
    "accept_length_pinned": ("tokens", "accept length that the server was told to simulate"),
    "cycle_ms": ("ms", "from one verify to the next"),
    "step_ms": ("ms", "one decode step without speculation"),
    "phase": ("", "warm-up or measure"),
    "prompt_id": ("", "id of the prompt"),
    "kind": ("", "kind of the prompt"),
    "prompt_tokens": ("tokens", "length of the prompt"),
    "cached_tokens": ("tokens", "of them found in the prefix cache"),
    "completion_tokens": ("tokens", "length of the answer"),
    "verify_ct": ("", "verifies of the request"),
    "decode_s": ("s", "from the end of the prefill to the end of the answer, by the server's clock"),
    "e2e_s": ("s", "whole request, by the server's clock"),
    "client_s": ("s", "whole request, by the client's clock"),
    "repetition": ("", "share of the answer that repeats itself"),
}


def export(run_dir: Path, result: Mapping[str, Any]) -> list[dict[str, str]]:
    """Write what follows from a sweep into its run folder. Returns one row per file: file, holds."""
    launches = _known(pd.DataFrame(result["cells"]))
    samples = _known(pd.DataFrame(artifacts.read_jsonl(run_dir / "samples.jsonl")))
    artifacts.write_text(run_dir / "launches.csv", launches.to_csv(index=False))
    artifacts.write_bytes(run_dir / "launches.parquet", parquet(launches))
    artifacts.write_bytes(run_dir / "requests.parquet", parquet(samples))
    units = {name: {"unit": unit, "meaning": meaning} for name, (unit, meaning) in UNITS.items()}
    artifacts.write_json(run_dir / "units.json", {"columns": units})
    files = [
        {"file": "launches.csv, launches.parquet", "holds": "one row per launch and condition"},
        {"file": "requests.parquet", "holds": "one row per request"},
        {"file": "units.json", "holds": "unit and meaning of every column"},
    ]
    fastest = fastest_row(result["cells"])
    if fastest is not None and fastest["command"]:  # an attached server was launched by somebody else
        artifacts.write_text(run_dir / "fastest.sh", launch_script(fastest))
        files.append({"file": "fastest.sh", "holds": f"launches {fastest['cell']}, the fastest cell"})
    if steps := adaptive_settings(result["cells"]):
        artifacts.write_text(run_dir / "adaptive.json", json.dumps(steps, indent=2) + "\n")
        files.append(
            {"file": "adaptive.json", "holds": "for --speculative-adaptive-config: the chains that pay, by batch"}
        )
    if any("trace" in (row.get("profile") or {}) for row in result["cells"]):
        files.append({"file": "traces/", "holds": "a few cycles of every arm; open in ui.perfetto.dev"})
    return files


def _known(table: pd.DataFrame) -> pd.DataFrame:
    return table[[name for name in UNITS if name in table.columns]]


def parquet(table: pd.DataFrame) -> bytes:
    """The table as a Parquet file, each field with its unit and meaning."""
    plain = pa.Table.from_pandas(table, preserve_index=False)
    fields = []
    for field in plain.schema:
        unit, meaning = UNITS[field.name]
        fields.append(field.with_metadata({"unit": unit, "meaning": meaning}))
    file = io.BytesIO()
    pq.write_table(plain.cast(pa.schema(fields)), file)
    return file.getvalue()


def fastest_row(cells: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """A row of the cell with the highest mean rate at the lowest concurrency; baselines may win, not as their twins."""
    good = _with_a_rate(cells)
    there = {row["cell"] for row in good}
    good = [row for row in good if TWIN not in row["cell"] or row["cell"].replace(TWIN, BASELINE) not in there]
    if not good:
        return None
    least = min(row["concurrency"] for row in good)
    rates = pd.DataFrame([row for row in good if row["concurrency"] == least]).groupby("cell")["tok_s"].mean()
    return next(row for row in good if row["cell"] == rates.idxmax())


def _with_a_rate(cells: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows with a rate of their own: at a pinned accept length it is no drafter's."""
    return [row for row in cells if row["status"] == "ok" and row.get("tok_s") and not row.get("accept_length_pinned")]


def launch_script(row: Mapping[str, Any]) -> str:
    """A shell script that launches the server of a row, on a port of SGLang's choosing. Untrusted text is quoted."""
    variables = [f"export {name}={_value(value)}" for name, value in row["environment"].items()]
    command = _without_ports(row["command"])
    rate = f"{row['tok_s']:.1f} tok/s per stream at concurrency {row['concurrency']}"
    lines = ["#!/bin/sh", f"# {shlex.quote(row['cell'])}: {rate}, measured on this machine.", "set -eu"]
    return "\n".join([*lines, *variables, f"exec {shlex.join(command)}", ""])


def _value(text: str) -> str:
    """Quoted, but for ``$NAME``: that is another variable's value, which is written nowhere."""
    return f'"{text}"' if re.fullmatch(r"\$[A-Za-z_]\w*", text) else shlex.quote(text)


def _without_ports(command: Sequence[str]) -> list[str]:
    """The ports were free when the sweep chose them; a server of one's own takes SGLang's defaults."""
    kept, skip = [], False
    for argument in command:
        if skip or argument in ("--port", "--nccl-port", "--dist-init-addr"):
            skip = not skip
            continue
        kept.append(argument)
    return kept


def adaptive_settings(cells: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[int]]]:
    """SGLang's table of candidate steps by batch size (``srt/speculative/adaptive_spec_params.py``), from EAGLE chains.

    At each concurrency those within 5 % of the best mean rate; 0, no speculation, competes too. Empty without chains,
    and for releases before 0.5.14, which have no such table or none with a 0 in it.
    """
    if any(version_key(row["sglang_version"]) < (0, 5, 14) for row in cells if row["status"] == "ok"):
        return {}
    rows = [
        {**row, "steps": row["steps"] or 0}
        for row in _with_a_rate(cells)
        if not row["temperature"] and not row["context_tokens"]
        if row["drafter"] == "none" or (row["drafter"] in ("EAGLE", "EAGLE3") and row["topk"] == 1)
        if row["variant"] == cells[0]["variant"]
    ]
    if not any(row["steps"] for row in rows):
        return {}
    rates = pd.DataFrame(rows).groupby(["concurrency", "steps"])["tok_s"].mean()
    table = {}
    for batch, by_steps in rates.groupby(level="concurrency"):
        near = by_steps[by_steps >= (1 - WITHIN) * by_steps.max()]
        table[str(batch)] = {"candidate_steps": sorted(int(steps) for _, steps in near.index)}
    return table
