"""Environment variables that the parameters set: which names they may have, and what is too secret to be written down.

Parameters end up in run.json, in the notebooks and in launch scripts, so that a secret may only be named there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from breakeven.errors import UserError

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_REFERENCE = re.compile(r"\$[A-Za-z_]\w*", re.ASCII)
_SECRET = re.compile(r"(^|_)(api_?)?(key|token|secret|password|passwd|passphrase)$", re.IGNORECASE)


def check(parameter: str, value: Any) -> None:
    """Raises UserError, in one line, where a parameter names a variable that no shell has, or gives a secret itself."""
    if parameter == "secret_env" and value:
        _check_name(value, parameter)
    elif parameter == "server_env":
        _check_environment(value, parameter)
    elif parameter in ("server_flags", "command_prefix"):
        _check_arguments(value, parameter)
    elif parameter in ("drafters", "variants"):
        for entry in value.values() if isinstance(value, Mapping) else value:
            _check_environment(entry.get("env"), parameter)
            _check_arguments(entry.get("flags"), parameter)


def is_secret(name: str) -> bool:
    """Whether a variable or setting of that name holds what must not be written down."""
    return bool(_SECRET.search(name))


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):  # not shown: it could be the secret itself
        raise UserError(f"{where} is no name of an environment variable (letters, digits and _, no digit first)")


def _check_environment(env: Any, where: str) -> None:
    for name, value in env.items() if isinstance(env, Mapping) else ():
        _check_name(str(name), f"{where}: {name!r}")
        if is_secret(str(name)) and value and not _REFERENCE.fullmatch(str(value)):
            raise UserError(
                f"{where}: {name} looks like a secret, and what stands here is written into the run's files; set it in "
                f"the environment of this command and give its name: {name}: ${name}"
            )


def _check_arguments(arguments: Any, where: str) -> None:
    """As in ``--api-key X``, ``HF_TOKEN=X``, ``--env=HF_TOKEN=X``."""
    for argument in arguments if isinstance(arguments, list) else ():
        *names, last = str(argument).split("=")
        for name in [*names, last] if last.startswith("--") else names:
            if is_secret(name.lstrip("-").replace("-", "_")):
                raise UserError(
                    f"{where}: {name} gives a secret, which would be written into every command; leave it out: servers "
                    "listen on loopback alone, and a token is given by its name (server_env: {HF_TOKEN: $HF_TOKEN})"
                )
