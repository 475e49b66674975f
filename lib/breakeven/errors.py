"""The one error class that a user is meant to read, and the "did you mean" that goes with it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. Its text is one clear line: what was given, what is allowed, what to do next.

    Commands print it without a traceback and exit 2; every other exception keeps its traceback.
    """


def one_line(error: BaseException) -> str:
    """The error's text folded to a single line, with its class name where the text is empty."""
    return " ".join(str(error).split()) or type(error).__name__


def did_you_mean(given: str, allowed: Iterable[str]) -> str:
    """A suggestion to append to an error line, or the list of what is allowed where nothing is close; may be empty."""
    choices = sorted(set(allowed))
    close = difflib.get_close_matches(given, choices, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; allowed: {', '.join(choices)}" if choices else ""
