"""A server from its command line to its end: started, ready or failed for a reason, stopped whole.

Knows nothing of arms, prompts and sweeps.
"""

from breakeven.server.command import Drafter, LaunchSpec, build_command, effective_drafter
from breakeven.server.lifecycle import LaunchFailure, Server, launch

__all__ = [
    "Drafter",
    "LaunchFailure",
    "LaunchSpec",
    "Server",
    "build_command",
    "effective_drafter",
    "launch",
]
