"""Something run by a process that file permissions bind, root or not: for what happens where nothing may be written."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

_CAPABILITIES_V3 = 0x20080522
_OVERRIDE_PERMISSIONS = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def confined(action: Callable[[], str]) -> str:
    """What ``action`` returns, or the repr of what it raises, in a child that may not override file permissions."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _give_up_overriding()
            text = action()
        except BaseException as error:  # whatever was raised: this is no second test runner
            text = repr(error)
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def _give_up_overriding() -> None:
    """Root without these two capabilities is a user who owns the files, like any other owner."""
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(_CAPABILITIES_V3, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    data[0] &= ~_OVERRIDE_PERMISSIONS
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")
