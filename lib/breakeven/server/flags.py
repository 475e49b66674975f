"""Further arguments of a server: what may stand among them, and how they go together with those of the parameters."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from breakeven.errors import UserError, did_you_mean

_PARAMETERS = {  # what sets a flag, under every name that SGLang takes
    **dict.fromkeys(("--model-path", "--model"), "model"),
    **dict.fromkeys(("--tp-size", "--tensor-parallel-size"), "tp"),
    "--dtype": "dtype",
    "--context-length": "context_length",
    "--max-running-requests": "max_running_requests",
    "--speculative-algorithm": "drafters",
    "--speculative-num-draft-tokens": "drafters (draft_tokens)",
    "--speculative-num-steps": "drafters (steps)",
    "--speculative-eagle-topk": "drafters (topk)",
    **dict.fromkeys(("--speculative-draft-model-path", "--speculative-draft-model"), "drafters (model)"),
    "--speculative-ngram-max-bfs-breadth": "drafters (breadth)",
    **dict.fromkeys(("--speculative-ngram-max-trie-depth", "--speculative-ngram-branch-length"), "drafters (depth)"),
}
_ADDRESS = ("--host", "--port", "--nccl-port", "--dist-init-addr", "--nccl-init-addr")


def refuse_parameters(arguments: Iterable[str]) -> None:
    """Raises UserError for the first flag that is set elsewhere: SGLang would silently take the last one."""
    for flag in _flags(arguments):
        if flag in _PARAMETERS:
            raise UserError(f"{flag} can't be a further flag; set it by the parameter {_PARAMETERS[flag]}")
        if flag in _ADDRESS:
            raise UserError(f"{flag} can't be a further flag; the suite chooses address and ports at each launch")
        if flag == "--config":
            raise UserError(
                "--config can't be a further flag: its file could set what the arms differ in; give what it sets as "
                "parameters and server_flags"
            )


def of_names(extra: Mapping[str, Any]) -> list[str]:
    """Arguments from settings by name, as ``LaunchSpec.extra`` holds them."""
    arguments = []
    for name, value in extra.items():
        flag = "--" + name.lstrip("-").replace("_", "-")
        refuse_parameters([flag])
        if value is None or value is False:
            continue
        values = [] if value is True else value if isinstance(value, list | tuple) else [value]
        arguments += [flag, *map(str, values)]
    return arguments


def _by_flag(arguments: Iterable[str]) -> list[list[str]]:
    """Each flag with its values."""
    groups: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not groups:
            groups.append([])
        groups[-1].append(argument)
    return groups


def without_repeats(arguments: Iterable[str]) -> list[str]:
    """The arguments, a flag without a value once: twice it says the same."""
    kept: list[list[str]] = []
    for group in _by_flag(arguments):
        if len(group) > 1 or "=" in group[0] or group not in kept:
            kept.append(group)
    return [argument for group in kept for argument in group]


def not_given(defaults: Iterable[str], arguments: Iterable[str]) -> list[str]:
    """Those of the defaults, each flag with its values, that the arguments do not set."""
    given = set(_flags(arguments))
    groups = _by_flag(defaults)
    return [argument for group in groups if group[0].partition("=")[0] not in given for argument in group]


def _flags(arguments: Iterable[str]) -> list[str]:
    return [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]


def check(arguments: Iterable[str], version: str, known: Collection[str] = ()) -> None:
    """Raises UserError for a flag that is given twice, and for one that a release whose flags are known has not."""
    flags = _flags(arguments)
    twice = [flag for flag, times in Counter(flags).items() if times > 1]
    if twice:
        raise UserError(f"{twice[0]} is given twice; SGLang would silently take the last one")
    for flag in flags if known else []:
        if flag not in known:
            raise UserError(f"SGLang {version} has no flag {flag}{did_you_mean(flag, known)}")


def whole_number(arguments: Sequence[str], *flags: str, least: int = 1) -> int:
    """A flag's number, under the first of its names that is given; the least where it is not."""
    for flag in flags:
        if (value := value_of(arguments, flag)) is not None:
            if not value.isdecimal() or int(value) < least:
                raise UserError(f"server_flags: {flag} is {value!r}; give a whole number from {least} up")
            return int(value)
    return least


def ranks_here(tp: int, arguments: Sequence[str]) -> int:
    """How many ranks a server has on a host, each on a GPU of its own where there are any."""
    stages = whole_number(arguments, "--pp-size", "--pipeline-parallel-size")
    return math.ceil(tp * stages * replicas(arguments) / whole_number(arguments, "--nnodes"))


def replicas(arguments: Sequence[str]) -> int:
    """How many copies of the model a server holds, each with ranks of its own."""
    attends = "--enable-dp-attention" in arguments  # then data parallelism divides the ranks of one copy
    return 1 if attends else whole_number(arguments, "--dp-size", "--data-parallel-size")


def value_of(arguments: Sequence[str], flag: str) -> str | None:
    """The value of a flag in a list of arguments, the last one if there are several."""
    found = [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{flag}=")]
    found += [value for name, value in pairwise(arguments) if name == flag]
    return found[-1] if found else None
