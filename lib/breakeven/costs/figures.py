"""Recorded figures: what a row of a table may hold, and the reader of such tables.

The reader is strict: a cell that is no plain number, a row without a name, a column that looks misspelt stop it with
one line that says where. What a table does not give is None, never a default.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from breakeven.errors import UserError, did_you_mean

ABOVE_ZERO = ("batch", "base_tok_s", "spec_tok_s", "draft_tokens", "cycle_ms", "verify_ms")
FROM_ZERO = ("accept_length", "draft_ms", "allreduce_count", "allreduce_ms")
NUMBERS = (
    "batch",
    "base_tok_s",
    "spec_tok_s",
    "accept_length",
    "draft_tokens",
    "cycle_ms",
    "verify_ms",
    "draft_ms",
    "allreduce_count",
    "allreduce_ms",
)
COLUMNS = ("id", *NUMBERS)
UNITS = ("s", "sec", "secs", "seconds", "ms", "us", "µs", "usec", "microseconds", "ns", "nanoseconds", "min", "minute")
"""Ends of a column's name that say a unit."""
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
SMALLEST, LARGEST = 1e-9, 1e12


@dataclass(frozen=True)
class Figures:
    """What is known of one comparison. None: not given. Rates are of the whole batch; times are in ms."""

    id: str
    batch: float | None = None
    base_tok_s: float | None = None
    spec_tok_s: float | None = None
    accept_length: float | None = None
    draft_tokens: float | None = None  # proposed per verify, root excluded
    cycle_ms: float | None = None
    verify_ms: float | None = None
    draft_ms: float | None = None
    allreduce_count: float | None = None  # per target forward
    allreduce_ms: float | None = None  # of one all-reduce
    notes: Mapping[str, str] = field(default_factory=dict)  # other columns, verbatim

    @property
    def given(self) -> dict[str, float]:
        return {key: value for key, value in asdict(self).items() if key not in ("id", "notes") and value is not None}


@dataclass(frozen=True)
class Finding:
    """What speaks against figures: a code for programs, a sentence for people, the columns that it rests on."""

    code: str
    text: str
    columns: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"columns": list(self.columns)}


def read_csv(path: str | Path) -> tuple[list[Figures], list[str]]:
    """Figures of every row, and the names of the columns that are none of `COLUMNS`."""
    path = Path(path)
    text = _read_text(path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows: list[Figures] = []
    first_seen: dict[str, int] = {}
    header: list[str] | None = None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if header is None:
                header = _header(path, cells)
                continue
            line = f"{path} line {reader.line_num}"
            figures = _figures(line, header, cells)
            if figures.id in first_seen:
                raise UserError(
                    f"{line}, column 'id': {figures.id!r} stands in line {first_seen[figures.id]} already; ids are "
                    "unique"
                )
            first_seen[figures.id] = reader.line_num
            rows.append(figures)
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num} is no CSV: {error}; check its quotes") from None
    if header is None:
        raise UserError(f"{path} is empty; it needs a header line with id and any of: {', '.join(NUMBERS)}")
    if not rows:
        raise UserError(f"{path} has a header and no rows; write one line per comparison below it")
    return rows, [name for name in header if name and name not in COLUMNS]


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path} does not exist; give the path of a CSV file") from None
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror or error}") from None
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{path} is UTF-16; save it as CSV in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(
            f"{path} line {line} is not UTF-8 (byte 0x{content[error.start]:02x}, Latin-1 perhaps); save it as CSV in "
            "UTF-8"
        ) from None
    if "\0" in text:
        raise UserError(
            f"{path} line {text[: text.index(chr(0))].count(chr(10)) + 1} holds a NUL byte: it is no text file"
        )
    return text


def _header(path: Path, cells: list[str]) -> list[str]:
    names = [cell.strip().lower() for cell in cells]
    if len(names) == 1:
        for separator, word in ((";", "semicolons"), ("\t", "tabs"), ("|", "bars")):
            if separator in names[0]:
                raise UserError(f"{path} is separated by {word}; save it with commas, and decimals with a point")
    for name in names:
        if name and names.count(name) > 1:
            raise UserError(f"{path} has the column {name!r} twice; keep one")
    if "id" not in names:
        raise UserError(
            f"{path} has no column 'id'; its first line has to name the columns, id among them "
            f"(found: {', '.join(names)})"
        )
    absent = set(NUMBERS) - set(names)
    for name in names:
        if name in COLUMNS:
            continue
        if hint := _means_something_else(name, absent):
            raise UserError(f"{path} has the column {name!r}, which {hint}")
        if _nearly(name, absent):
            raise UserError(f"{path} has the unknown column {name!r}{did_you_mean(name, absent)}")
    return names


def _means_something_else(name: str, absent: set[str]) -> str | None:
    """What to do with a column whose name says another count or unit: renaming it alone would give wrong figures."""
    name = re.sub(r"[\s-]+", "_", name)
    if re.search(r"(^|_)num_draft_tokens$", name) and "draft_tokens" in absent:
        return "counts the root in SGLang: subtract 1 and call it 'draft_tokens'"
    stem, _, unit = name.rpartition("_")
    for column, wanted in ((f"{stem}_ms", "milliseconds"), (f"{stem}_s", "tokens per second")):
        if unit in UNITS and column in absent:
            return f"is of another unit ({unit}): convert it to {wanted} and call it {column!r}"
    return None


def _nearly(name: str, absent: set[str]) -> bool:
    """A misspelt column would be ignored without a word; a name of its own (expected_cycle_ms) is carried."""
    return bool(difflib.get_close_matches(re.sub(r"[\s-]+", "_", name), absent, n=1, cutoff=0.85))


def _figures(line: str, header: list[str], cells: list[str]) -> Figures:
    cells = [cell.strip() for cell in cells]
    if any(cells[len(header) :]):
        raise UserError(
            f"{line} has {len(cells)} cells for {len(header)} columns; a number with a thousands separator (1,435) "
            f"has to lose it, a text with a comma has to be quoted"
        )
    row = dict(zip(header, cells, strict=False))
    if not row.get("id"):
        raise UserError(f"{line}, column 'id': is empty; give every row a name of its own")
    where = f"{line} (id {row['id']!r})"
    numbers = {name: _number(f"{where}, column {name!r}", name, row.get(name, "")) for name in NUMBERS}
    notes = {name: value for name, value in row.items() if name and name not in COLUMNS and value}
    return Figures(id=row["id"], notes=notes, **numbers)


def _number(where: str, name: str, text: str) -> float | None:
    if not text:
        return None
    if not NUMBER.fullmatch(text):
        hint = (
            "write 1435.5, without separators or units"
            if re.search(r"[0-9]", text)
            else "leave the cell empty if unknown"
        )
        raise UserError(f"{where}: {text!r} is not a number; {hint}")
    value = float(text)
    if value < 0:
        raise UserError(f"{where}: {text} is negative; leave the cell empty if unknown")
    if value == 0 and name in ABOVE_ZERO:
        raise UserError(f"{where}: is zero, and has to be above it; leave the cell empty if unknown")
    if value and not SMALLEST <= value <= LARGEST:
        raise UserError(f"{where}: {text} is out of range ({SMALLEST:g} to {LARGEST:g}); check the unit")
    return value
