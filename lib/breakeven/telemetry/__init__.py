"""What SGLang says about itself, in one normal form: logs, failures, requests, settings, traces.

Knows nothing of how a server was started, nor why.
"""

from breakeven.telemetry.decode_lines import cycle_ms, format_decode_line, parse_decode_line
from breakeven.telemetry.normal_form import (
    open_plain_or_gzip,
    read_log,
    read_log_lines,
    request_sample,
    server_settings,
)
from breakeven.telemetry.releases import KNOWN_ALGORITHMS, check_algorithm, ngram_flags

__all__ = [
    "KNOWN_ALGORITHMS",
    "check_algorithm",
    "cycle_ms",
    "format_decode_line",
    "ngram_flags",
    "open_plain_or_gzip",
    "parse_decode_line",
    "read_log",
    "read_log_lines",
    "request_sample",
    "server_settings",
]
