"""The EAGLE-3 head that ships with the library for the default model; ``eagle3/README.md`` is its card."""

from __future__ import annotations

from pathlib import Path

from breakeven.embedded.model import sha256
from breakeven.errors import UserError, one_line

FOLDER = Path(__file__).parent / "eagle3"
SUMS_FILE = "SHA256SUMS"


def ensure_drafter(folder: Path = FOLDER) -> Path:
    """The folder to give to SGLang as ``--speculative-draft-model-path``, its files checked against their hashes.

    Raises UserError when a file is missing or is not the one that was shipped: a damaged drafter would still serve,
    with a low accept length that nothing else explains.
    """
    try:
        for line in (folder / SUMS_FILE).read_text().splitlines():
            expected, name = line.split(maxsplit=1)
            found = sha256(folder / name)
            if found != expected:
                raise UserError(
                    f"the drafter's {folder / name} has SHA-256 {found}, expected {expected}; install breakeven again"
                )
    except (OSError, ValueError) as error:
        raise UserError(f"can't read the drafter in {folder}: {one_line(error)}; install breakeven again") from error
    return folder
