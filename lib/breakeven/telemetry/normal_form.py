"""What a running SGLang says about itself, in one normal form over releases 0.4.4 to 0.5.23.

Decode lines of its log, ``meta_info`` of one request, ``/server_info``.
Formats were read in the released sources.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from breakeven.errors import UserError
from breakeven.telemetry.decode_lines import PREFILL_FROM_IDLE, DecodeRows, parse_decode_line
from breakeven.telemetry.failures import Classifier
from breakeven.telemetry.log_lines import pieces

SCHEMA_VERSION = 1
MAX_LINE_BYTES = 1 << 16  # a longer line is read in pieces: a log may hold megabytes of binary without a newline

# ---------------------------------------------------------------- a whole log


def read_log(path: str | Path) -> dict[str, Any]:
    """Decode lines and failure class of a server log (plain or gzip), streamed in bounded memory.

    ``decode`` holds at most 20 000 rows (the first and the last; ``decode_omitted`` counts the rest),
    ``summary`` one row per number of running requests over all lines that hold no idle time, ``failure`` the class,
    deciding line, text and advice of a log that ends badly, else None. Raises UserError when it can't be read.
    """
    try:
        with open_plain_or_gzip(Path(path)) as file:
            return read_log_lines(_lines(file))
    except FileNotFoundError:
        raise UserError(f"no log at {path}; give the file that the server's output went to") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"the log {path} can't be read: {reason}; give a readable text or gzip file") from None


def read_log_lines(lines: Iterable[tuple[int, str]]) -> dict[str, Any]:
    """``read_log`` over numbered pieces of lines; a line number may come several times."""
    rows, classifier, number = DecodeRows(), Classifier(), 0
    for number, physical in lines:
        for text in pieces(physical):
            if "Decode batch" in text:
                if row := parse_decode_line(text, number):
                    rows.add(row)
            elif "Prefill batch" in text and PREFILL_FROM_IDLE.search(text):
                rows.note_idle(text)
            classifier.feed(number, text)
    failure = classifier.result()
    kept = rows.first + list(rows.last)
    return {
        "schema_version": SCHEMA_VERSION,
        "lines": number,
        "sglang_version": classifier.sglang_version,
        "decode": kept,
        "decode_omitted": rows.total - len(kept),
        "summary": rows.summary(),
        "failure": failure.as_dict() if failure else None,
    }


def open_plain_or_gzip(path: Path) -> BinaryIO:
    """The file's bytes, unpacked where its first bytes say gzip. Raises OSError."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(BinaryIO, gzip.open(path, "rb") if packed else path.open("rb"))


def _lines(file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Numbered pieces of text. Progress bars rewrite one line with carriage returns: each rewrite is a piece."""
    number, whole = 1, True
    while piece := file.readline(MAX_LINE_BYTES):
        whole = piece.endswith(b"\n")
        # NULs: UTF-16 from a Windows console, or a file truncated while it was written
        for text in piece.replace(b"\0", b"").decode("utf-8", "replace").split("\r"):
            if text.strip():
                yield number, text.rstrip()  # the indent tells a traceback's source lines from its messages
        number += whole


# ---------------------------------------------------------------- one request


def request_sample(meta_info: dict[str, Any], *, baseline: bool) -> dict[str, Any]:
    """The measured part of a samples row, from the ``meta_info`` that SGLang returns with a finished request.

    Seconds are the server's own. ``decode_s`` runs from the end of prefill to the end of the request;
    ``decode_s_from`` names what it was taken from, best first:

    * ``prefill_finished_time``: that and the finish time, both stamped by the server (0.5.10 on, with metrics on);
    * ``e2e_latency``: the whole request, queue and prefill included (older releases, or metrics off);
    * None: the release reports no times.

    ``first_token_latency`` and ``decode_throughput`` are not used: before 0.5.23 they count from the first message
    that left the scheduler, which for a request without streaming comes dozens of tokens late.

    The first token comes from the prefill, so ``accept_length = (completion_tokens - 1) / verify_ct``; SGLang's own
    figure, which counts it, is kept as ``server_accept_length``. Raises UserError when there is no token count.
    """
    completion = meta_info.get("completion_tokens")
    if not isinstance(completion, int):
        raise UserError(f"meta_info holds no completion_tokens (keys: {sorted(meta_info)}); is this an SGLang server?")
    histogram = meta_info.get("spec_correct_drafts_histogram") or meta_info.get("spec_accept_histogram")
    verify_ct = None if baseline else _verify_count(meta_info, histogram, completion)
    decode_s, decode_s_from = _decode_seconds(meta_info)
    return {
        "prompt_tokens": meta_info.get("prompt_tokens"),
        "cached_tokens": meta_info.get("cached_tokens"),
        "completion_tokens": completion,
        "verify_ct": verify_ct,
        "decode_s": decode_s,
        "decode_s_from": decode_s_from,
        "e2e_s": meta_info.get("e2e_latency"),
        "accept_length": (completion - 1) / verify_ct if verify_ct else None,
        # 0.5.5 sends 0 where it has no figure
        "server_accept_length": None if baseline else meta_info.get("spec_accept_length") or None,
        "correct_drafts_histogram": None if baseline else histogram or None,
        "finish": _finish(meta_info.get("finish_reason")),
    }


def _verify_count(meta_info: dict[str, Any], histogram: list[int] | None, completion: int) -> int | None:
    count = meta_info.get("spec_verify_ct")
    if count:
        return int(count)
    if histogram:
        return sum(histogram)  # each verify is in exactly one bin
    return 0 if completion <= 1 else None  # a request that ended in its prefill was never verified


def _decode_seconds(meta_info: dict[str, Any]) -> tuple[float | None, str | None]:
    finished = meta_info.get("request_finished_ts") or meta_info.get("decode_finished_ts")
    prefilled = meta_info.get("prefill_finished_time")
    if finished and prefilled and finished > prefilled:
        return finished - prefilled, "prefill_finished_time"
    if meta_info.get("e2e_latency"):
        return meta_info["e2e_latency"], "e2e_latency"
    return None, None


def _finish(reason: Any) -> str | None:
    return reason.get("type") if isinstance(reason, dict) else reason


# ---------------------------------------------------------------- effective settings

_SETTINGS: dict[str, tuple[str, ...]] = {  # normal name -> names over releases, newest first
    "version": ("version",),
    "model_path": ("model_path",),
    "speculative_algorithm": ("speculative_algorithm",),
    "speculative_steps": ("speculative_num_steps",),
    "speculative_topk": ("speculative_eagle_topk",),
    "speculative_draft_tokens": ("speculative_num_draft_tokens",),
    "draft_model_path": ("speculative_draft_model_path",),
    "max_running_requests": ("effective_max_running_requests_per_dp", "max_running_requests"),
    "max_total_tokens": ("max_total_num_tokens", "max_total_tokens"),
    "context_length": ("context_len", "context_length"),
    "cuda_graph_batch_sizes": ("decode_cuda_graph_bs", "cuda_graph_bs_decode", "cuda_graph_bs"),
    "cuda_graph_max_batch_size": ("cuda_graph_max_bs_decode", "cuda_graph_max_bs"),
    "cuda_graph_disabled": ("disable_cuda_graph",),
    "attention_backend": ("decode_attention_backend", "attention_backend"),
    "page_size": ("page_size",),
    "tp": ("tp_size",),
    "dp": ("dp_size",),
    "device": ("device",),
    "dtype": ("dtype",),
    "fusion_requested": ("enable_flashinfer_allreduce_fusion",),
    "fusion_backend": ("flashinfer_allreduce_fusion_backend",),
    "mem_fraction_static": ("mem_fraction_static",),
    "avg_spec_accept_length": ("avg_spec_accept_length",),
}


def server_settings(server_info: dict[str, Any]) -> dict[str, Any]:
    """Effective settings of a server in one set of names, from ``/server_info`` (``/get_server_info`` before 0.5.6).

    What the scheduler says about itself (``internal_states``, or top level in 0.4.4) goes before the flags it was
    given; of several data-parallel schedulers, the first that says it. A setting that the release does not report is
    None: in particular ``avg_spec_accept_length``, which is absent until the first log interval is over (a rank that
    had no request yet has none), is never taken for 1.0.
    """
    states = server_info.get("internal_states") or []
    schedulers = states if isinstance(states, list) else [states]
    sources: list[dict[str, Any]] = [state for state in [*schedulers, server_info] if isinstance(state, dict)]
    graphs = _first(("cuda_graph_config",), sources)
    decode_graph = graphs.get("decode") if isinstance(graphs, dict) else None
    settings = {name: _first(names, sources) for name, names in _SETTINGS.items()}
    if isinstance(decode_graph, dict):  # 0.5.15 on: one structure for the graphs of both phases
        for name, key in (("cuda_graph_batch_sizes", "bs"), ("cuda_graph_max_batch_size", "max_bs")):
            settings[name] = decode_graph.get(key) if settings[name] is None else settings[name]
        settings["cuda_graph_disabled"] = decode_graph.get("backend") == "disabled"
    if settings["cuda_graph_batch_sizes"] == []:  # what was captured, not what was asked for
        settings["cuda_graph_disabled"] = True
    return settings


def _first(names: tuple[str, ...], sources: list[dict[str, Any]]) -> Any:
    return next((s[name] for name in names for s in sources if s.get(name) is not None), None)
