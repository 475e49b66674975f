"""Machines behind one interface, this one and others over SSH, and processes that die with their starter.

Knows nothing of SGLang. ``doorway``, ``attendant``, ``desk`` and what they import run on the far side, in
Python 3.10 or newer with the standard library and psutil.
"""

from breakeven.hosts.interface import Background, Completed, Host
from breakeven.hosts.local import LOCAL, Local

__all__ = [
    "LOCAL",
    "Background",
    "Completed",
    "Host",
    "Local",
]
