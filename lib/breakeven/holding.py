"""One process at a time works on a run folder: the runner with the kernels below it, or a kernel by hand."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from breakeven.errors import UserError

HELD = "BREAKEVEN_HELD_RUN"
"""Environment variable by which the processes below a holder know the folder that it holds."""


@contextlib.contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Keep other processes out of a run folder; however this one ends, the system lets go of it.

    A process below the holder works for it and passes. Raises UserError where another one holds the folder.
    """
    here = str(run_dir.resolve())
    if os.environ.get(HELD) == here:
        yield
        return
    folder = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(folder)
        raise UserError(
            f"{run_dir} is under way in another process; wait for its end, or take another run_dir"
        ) from None
    except OSError:
        pass  # a file system without locks
    above = os.environ.get(HELD)
    os.environ[HELD] = here
    try:
        yield
    finally:
        if above is None:
            del os.environ[HELD]
        else:
            os.environ[HELD] = above
        os.close(folder)
