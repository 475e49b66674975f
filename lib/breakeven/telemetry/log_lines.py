"""What every line of a server's log is made of: terminal colours, a header with time and rank, and what follows it."""

from __future__ import annotations

import re
from datetime import datetime

HEADER = re.compile(
    r"\[(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?P<fraction>[.,]\d+)?(?P<rank>(?:\s+[A-Z][A-Z_]*\d+)*)\s*\]"
)
# a colour code that was cut off does not take the bracket of the next line's header with it
CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-Z\\-~]|\\u001b\[[0-9;]*m|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_SEAM = re.compile(r"\[(?=\d{4}-\d\d-\d\d[ T]\d\d:)|(?:Decode|Prefill) batch")


def clean(text: str) -> str:
    """The text without terminal colours and control characters."""
    return CONTROL.sub("", text).strip()


def pieces(text: str) -> list[str]:
    """The lines that one physical line holds, where a batch is among them.

    Ranks that write at the same time leave out newlines, and a line that was cut off goes on with the next one.
    """
    batches = text.count(" batch")
    if not batches or (batches == 1 and text.count("[") < 2):  # almost all lines, in a tenth of the time
        return [text]
    cuts, begun, has_batch = [0], False, False
    for seam in _SEAM.finditer(text):
        is_header = seam[0] == "["
        if begun and (is_header or has_batch):  # what stands before the first header is its prefix
            cuts.append(seam.start())
        begun, has_batch = True, not is_header
    return [text[start:end] for start, end in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def seconds_between(earlier: str | None, later: str | None) -> float | None:
    """Seconds from one header's time to another's; None where one is missing or garbled."""
    try:
        return (datetime.fromisoformat(later or "") - datetime.fromisoformat(earlier or "")).total_seconds()
    except ValueError:
        return None
