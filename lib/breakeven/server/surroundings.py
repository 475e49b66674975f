"""What a launch finds on its host: the release to run, free ports, and the environment to run it in."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from breakeven.errors import UserError
from breakeven.hosts import Host
from breakeven.server.command import LaunchSpec


def installed_release(spec: LaunchSpec, host: Host, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """``{"version", "folder", "flags"}`` of the SGLang that ``spec.python`` would run. Raises UserError if none."""
    program = host.library / "breakeven" / "server" / "installed.py"
    try:
        done = host.run([*spec.prefix, spec.python, str(program)], env=env, timeout_s=120)
    except ConnectionError:
        raise
    except OSError as error:
        raise UserError(
            f"python is {spec.python!r}, which can't be run ({error}); give the interpreter of SGLang"
        ) from None
    if done.exit_code == 3:
        raise UserError(f"{spec.python} has no SGLang; give the interpreter of the environment that has it (python)")
    if done.exit_code != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{spec.python} can't say which SGLang it has (exit code {done.exit_code}): {last}")
    return json.loads(done.stdout)


def environment(base: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The server's environment: logs in time, loopback past any proxy, compiled kernels kept.

    A given value ``$NAME`` stands for that variable of this machine: a token is named, never written down. Raises
    UserError where there is none.
    """
    merged = {**base, **{name: _looked_up(name, value) for name, value in given.items()}, "PYTHONUNBUFFERED": "1"}
    for name in ("no_proxy", "NO_PROXY"):
        merged[name] = ",".join(filter(None, [merged.get(name), "127.0.0.1,localhost"]))
    # The server's TMPDIR is removed with it, and older releases would have torch keep compiled kernels there.
    cache = merged.get("SGLANG_CACHE_DIR", "~/.cache/sglang").replace("~", merged.get("HOME", "~"), 1)
    # Appended, not put first: a changed first variable keeps setproctitle from naming SGLang's processes.
    return {**merged, "TORCHINDUCTOR_CACHE_DIR": merged.get("TORCHINDUCTOR_CACHE_DIR", f"{cache}/inductor")}


def _looked_up(name: str, value: str) -> str:
    found = re.fullmatch(r"\$([A-Za-z_]\w*)", value)
    if not found:
        return value
    if found[1] not in os.environ:
        raise UserError(f"server_env: {name} is to be {value}, and the environment has no such variable; set it here")
    return os.environ[found[1]]


def with_ports(spec: LaunchSpec, host: Host) -> LaunchSpec:
    """The spec with free ports where it leaves them open: HTTP, and the one where the ranks meet."""
    free = iter(host.free_ports(2))
    return replace(spec, port=spec.port or next(free), dist_port=spec.dist_port or next(free))


def taken_port(spec: LaunchSpec, host: Host) -> str | None:
    """The first port of the spec that something listens on, in words; SGLang would notice after minutes of loading."""
    ports = {"port": spec.port, "dist_port": spec.dist_port}
    return next((f"{name} {port}" for name, port in ports.items() if port and not host.port_is_free(port)), None)
