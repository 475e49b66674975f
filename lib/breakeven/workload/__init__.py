"""What a running server is asked: prompts, the client that sends them, a traced window of them.

Knows nothing of the server's life.
"""

from breakeven.workload.client import Client, RequestFailed, ServerGone, chat_encoder, first_difference, run_requests
from breakeven.workload.looping import is_degenerate, repetition
from breakeven.workload.prompts import Prompt, choose, lengthened, load_prompts, warm_up

__all__ = [
    "Client",
    "Prompt",
    "RequestFailed",
    "ServerGone",
    "chat_encoder",
    "choose",
    "first_difference",
    "is_degenerate",
    "lengthened",
    "load_prompts",
    "repetition",
    "run_requests",
    "warm_up",
]
