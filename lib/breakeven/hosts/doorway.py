"""The first program on another machine: takes in this library, once per version, and joins the suite's session there.

Its text is sent as ``python -c``, so it is one file of the standard library, for Python 3.10 and newer. It answers in
lines that begin with ``breakeven:``; whatever a login script prints before is passed over.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path


def say(word: str, **more: object) -> None:
    """One line to the other side."""
    os.write(1, ("breakeven:" + json.dumps({"word": word, **more}) + "\n").encode())


def cache_root() -> Path:
    """As ``artifacts.cache_root``, which is not here yet."""
    if chosen := os.environ.get("BREAKEVEN_CACHE"):
        return Path(chosen).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared).expanduser() if shared else Path.home() / ".cache") / "breakeven"


def read(count: int) -> bytes:
    """So many bytes of the input, past any buffer: what follows them is not for us."""
    data = bytearray()
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            raise EOFError("the connection ended")
        data += piece
    return bytes(data)


def library(digest: str, size: int) -> Path:
    """The folder of the library with this SHA-256, asked for and unpacked where it is not there yet."""
    folder = cache_root() / "library" / digest[:16]
    if folder.is_dir():
        say("known")
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    say("send")
    content = read(size)
    if hashlib.sha256(content).hexdigest() != digest:
        raise OSError("the library arrived damaged")
    fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unpacking-"))
    try:
        zipfile.ZipFile(io.BytesIO(content)).extractall(fresh)
        fresh.chmod(0o755)
        if not folder.is_dir():
            os.replace(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def main(digest: str, size: str, session: str, lease_s: str, start: str) -> None:
    """Join the session. Every failure is told in a line of its own."""
    try:
        if sys.version_info < (3, 10):  # noqa: UP036 (whatever Python is there)
            raise OSError(f"its Python is {sys.version.split()[0]}; 3.10 or newer is needed")
        sys.path.insert(0, str(library(digest, int(size))))
        from breakeven.hosts import attendant

        attendant.join(session, float(lease_s), start == "start", say)
    except Exception as error:
        say("failed", type=type(error).__name__, errno=getattr(error, "errno", None), text=str(error))
        sys.exit(1)


if __name__ == "__main__":
    sys.path[:] = [place for place in sys.path if place]  # no module of the home folder stands in for another
    main(*sys.argv[1:])
