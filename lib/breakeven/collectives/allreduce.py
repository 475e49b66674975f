"""All-reduce latency at the message sizes that decoding and verifying send.

A forward of batch B reduces ``B x width x hidden`` numbers of 2 bytes, width being 1 for a decode step and the draft
tokens (root included) for a verify. Each setting is measured A-B-A against a reference: in the same processes, and
where it needs an environment of its own, which NCCL reads once in a process's life, between two starts of the
reference. The latency is the median over iterations of the slowest rank; two blocks of A that differ give the noise
floor.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from breakeven import artifacts
from breakeven.collectives.rows import ALLREDUCE, WITH_NORM, Row, between, blocks_of, crossovers, judged
from breakeven.collectives.shown import over
from breakeven.config import ServerSettings
from breakeven.embedded.model import ensure_model
from breakeven.errors import UserError, one_line
from breakeven.hosts import processes
from breakeven.launch import unlaunched
from breakeven.machine import gpus
from breakeven.telemetry.failures import classify

Say = Callable[[str], None]

BATCHES = (1, 4, 8)
WIDTHS = (1, 2, 4, 8)
OPERATIONS = {"reduce": ALLREDUCE, "reduce_and_norm": WITH_NORM}  # a reducer's methods, in words
BYTES_PER_NUMBER = 2  # bfloat16
SILENT_S = 420.0  # compiling a fused kernel takes minutes and says nothing
TEARDOWN_S = 10.0  # ranks that have measured everything may take to end by themselves
_RANKS = "breakeven.collectives.ranks"
_REDUCERS = "breakeven.collectives.reducers"
TORCH = f"{_REDUCERS}:TorchReducer"


@dataclass(frozen=True)
class Setting:
    """A way to reduce: ``reducer`` is ``module:class``, ``env`` the variables that its processes start with."""

    name: str
    reducer: str = TORCH
    env: dict[str, str] = field(default_factory=dict)


GLOO = (Setting("gloo"),)
NCCL = (
    Setting("nccl"),
    Setting("sglang custom", reducer=f"{_REDUCERS}:SglangCustomReducer"),
    Setting("flashinfer fused", reducer=f"{_REDUCERS}:FlashinferFusedReducer"),
    *(
        Setting(f"nccl {algorithm} {protocol}", env={"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol})
        for algorithm in ("Ring", "Tree")
        for protocol in ("LL", "LL128", "Simple")
    ),
)
"""NCCL's own choice first: it is the reference. NVLS is left out: NVLink multicast can be switched off for a reason."""


def payloads(hidden: int, batches: Iterable[int] = BATCHES, widths: Iterable[int] = WIDTHS) -> list[Row]:
    """Rows of batch, width and bytes, by size; of two with the same size the one with the smaller batch."""
    by_size: dict[int, Row] = {}
    for batch in sorted(set(batches)):
        for width in sorted(set(widths)):
            size = batch * width * hidden * BYTES_PER_NUMBER
            by_size.setdefault(size, {"batch": batch, "width": width, "bytes": size})
    return [by_size[size] for size in sorted(by_size)]


def bench_of(settings: ServerSettings, run_dir: Path, say: Say = print) -> dict[str, Any] | None:
    """The bench that notebook 03 asks for, at the width of its model; None where none is asked for or possible.

    Raises what ``bench`` raises, and UserError when the model's config.json can't be read.
    """
    if why_not(settings):
        return None
    folder = ensure_model(progress=say) if settings.model == "embedded" else artifacts.located(settings.model)
    return bench(hidden_size(folder), settings.allreduce_ranks, run_dir, say=say)


def why_not(settings: ServerSettings) -> str | None:
    """The reason for which no bench is made, None where one is."""
    if not settings.allreduce_ranks:
        return "Not asked for: `allreduce_ranks` is 0."
    if settings.host != "local":
        return f"Not measured: the bench runs on this machine alone, and `host` is {settings.host}."
    if not unlaunched.serves(settings):
        return "Not measured: `model` is none, and the sizes of messages are a model's."
    return None


def hidden_size(model: Path) -> int:
    """The width of a model's hidden state, from its config.json."""
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
        return int((config.get("text_config") or config)["hidden_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{model / 'config.json'} gives no hidden_size ({one_line(error)}); is it a model?") from None


def bench(
    hidden: int,
    ranks: int,
    run_dir: Path,
    *,
    batches: Iterable[int] = BATCHES,
    widths: Iterable[int] = WIDTHS,
    settings: Sequence[Setting] | None = None,
    iterations: int = 200,
    silent_s: float = SILENT_S,
    say: Say = print,
) -> dict[str, Any]:
    """Measure every setting with ``ranks`` processes (one a GPU where there are any) and write ``allreduce.json``.

    A setting that fails, hangs or takes its processes down is a row with the reason; the others are measured all the
    same. Raises UserError when there are fewer GPUs than ranks, RuntimeError when the reference can't be measured.
    """
    count = len(gpus())
    if ranks < 1 or (count and ranks > count):
        raise UserError(f"allreduce_ranks is {ranks}; this machine has {count} GPUs, so give 1 to {max(count, 1)}")
    chosen = list(settings or (NCCL if count else GLOO))
    if ranks == 1 and not settings:  # nobody to exchange memory with
        chosen = [each for each in chosen if each.reducer == TORCH]
    job = {
        "ranks": ranks,
        "device": "cuda" if count else "cpu",
        "backend": "nccl" if count else "gloo",
        "hidden": hidden,
        "payloads": payloads(hidden, batches, widths),
        "iterations": iterations,
    }
    log_path = run_dir / "logs" / "allreduce.log"

    def measured(settings: list[Setting], against: Setting) -> list[Row]:
        found: list[Row] = []
        while settings:
            say(f"all-reduce bench, {over(job)}: {', '.join(each.name for each in settings)}")
            more, settings = _in_fresh_processes({**job, "reference": asdict(against)}, settings, log_path, silent_s)
            found += more
        return found

    reference, *others = chosen
    raw = measured([each for each in chosen if each.env == reference.env], reference)
    first = blocks_of(reference.name, raw)
    if not first:
        reason = next(row["reason"] for row in raw if row["setting"] == reference.name)
        raise RuntimeError(f"{reference.name}, the reference, could not be measured: {reason}")
    apart = [row for each in others if each.env != reference.env for row in measured([each], each)]
    last = blocks_of(reference.name, measured([reference], reference)) if apart else {}
    raw += [between(row, first, last or first) for row in apart]
    rows = judged(raw, reference.name)
    result = {**{name: job[name] for name in ("ranks", "device", "backend", "hidden", "iterations")}, "rows": rows}
    result |= {"reference": reference.name, "crossovers": crossovers(rows) if ranks > 1 else []}
    artifacts.write_json(run_dir / "allreduce.json", result)
    return result


def _in_fresh_processes(
    job: Mapping[str, Any], settings: list[Setting], log_path: Path, silent_s: float
) -> tuple[list[Row], list[Setting]]:
    """Rows of the settings that one start of the ranks got through, and the settings that are still to be measured."""
    with tempfile.TemporaryDirectory(prefix="breakeven-allreduce-") as folder:
        rows_path, job_path = Path(folder) / "rows.jsonl", Path(folder) / "job.json"
        rows_path.touch()
        meeting = {"meeting": f"{folder}/meeting", "rows": str(rows_path)}
        job_path.write_text(json.dumps({**job, **meeting, "settings": [asdict(each) for each in settings]}))
        # The ranks meet in a file and talk over loopback: nothing listens to the outside.
        env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        env |= settings[0].env
        command = [sys.executable, "-m", _RANKS, str(job_path)]
        with processes.start(command, log_path=log_path, env=env, grace_s=3.0) as running:
            hung = not _ends(running, rows_path, settings[-1].name, silent_s)
            ending = running.stop()
        rows = [json.loads(line) for line in rows_path.read_text().splitlines()]
    begun = [row["begin"] for row in rows if "begin" in row]
    ended = {row["end"] for row in rows if "end" in row}
    broken = next((name for name in begun if name not in ended), None if begun else settings[0].name)
    measured = [row for row in rows if "setting" in row and row["setting"] != broken]
    measured = [{**row, "operation": OPERATIONS.get(row.get("operation"))} for row in measured]
    if broken:
        measured.append({"setting": broken, "status": "failed", "reason": _why(log_path, ending, hung, silent_s)})
    return measured, [each for each in settings if each.name not in ended and each.name != broken]


def _ends(running: processes.Supervised, rows_path: Path, last: str, silent_s: float) -> bool:
    """Whether the ranks end by themselves: False once they have written no row for ``silent_s`` seconds, or have not
    ended ``TEARDOWN_S`` seconds after all rows of the ``last`` setting."""
    size, since, patience_s = 0, time.monotonic(), silent_s
    while running.alive():
        if (now := rows_path.stat().st_size) != size:
            size, since = now, time.monotonic()
            done = rows_path.read_text().endswith(json.dumps({"end": last}) + "\n")
            patience_s = TEARDOWN_S if done else silent_s
        if time.monotonic() - since > patience_s:
            return False
        time.sleep(0.2)
    return True


def _why(log_path: Path, ending: processes.Ending, hung: bool, silent_s: float) -> str:
    if hung:
        return f"hang: no row for {silent_s:g} s"
    with log_path.open(encoding="utf-8", errors="replace") as lines:
        failure = classify(lines, exit_code=ending.exit_code, signal=ending.signal)
    return f"{failure.cls}: {failure.text}" if failure else f"the processes ended: {ending}"
