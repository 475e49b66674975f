"""A server that somebody else runs: it is asked, measured and left as it is; nothing of it is started or stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from breakeven.config import ServingSettings, SweepSettings
from breakeven.errors import UserError, one_line
from breakeven.server import readiness
from breakeven.server.lifecycle import LaunchFailure, Server
from breakeven.telemetry import server_settings
from breakeven.telemetry.failures import Failure

PREFIX = "attach:"
_ASK_WITHIN_S = 20.0
_OURS = ("internal_states", "tokenizer_mode", "mem_fraction_static", "max_total_num_tokens", "disable_radix_cache")
"""Keys by which ``/server_info`` is known to be SGLang's, of 0.4.4 to 0.5.23."""


class Attached(Server):
    """A running SGLang server. Leaving the ``with`` block leaves it running."""

    def __init__(self, base_url: str, info: dict[str, Any], log_path: Path) -> None:
        self.base_url = base_url
        self.log_path = log_path
        self.sglang_version = str(info.get("version") or "unknown")
        self.command: list[str] = []
        self.startup_s: dict[str, float] = {}
        self.readiness: dict[str, Any] = {}
        self.effective: dict[str, Any] = server_settings(info)
        self.stop_seconds: float | None = None

    @property
    def pid(self) -> int:
        raise UserError("an attached server's processes are not known here")

    def alive(self) -> bool:
        """Whether it answers."""
        return readiness.is_healthy(self.base_url, _ASK_WITHIN_S)

    def failure(self, answer_within_s: float = 30.0) -> Failure | None:
        """That it no longer answers; why, only its own log can tell (``breakeven logs``)."""
        if readiness.is_healthy(self.base_url, answer_within_s, readiness.GENERATING_HEALTH):
            return None
        advice = "Its log says why: breakeven logs FILE on the machine where it runs."
        return Failure("not-ready", None, f"{self.base_url} has no answer within {answer_within_s:g} s", advice)

    def stop(self) -> None:
        """Leave it running."""
        self.stop_seconds = 0.0

    def record(self) -> dict[str, Any]:
        """As ``server.json`` holds it: what is in effect, and that nothing was asked for."""
        return {
            "status": "ready",
            "failure": None,
            "sglang_version": self.sglang_version,
            "host": PREFIX + self.base_url,
            "base_url": self.base_url,
            "pid": None,
            "command": [],
            "requested": {},
            "effective": self.effective,
            "startup_s": self.startup_s,
            "readiness": self.readiness,
            "log": None,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def attach(url: str, log_path: Path, ready_timeout_s: float = 60.0) -> Attached:
    """The SGLang server at a URL, once it has really generated.

    Raises UserError where nothing answers or what answers is no SGLang; LaunchFailure where it does not generate.
    """
    found = look_at(url, log_path)
    base_url, began = found.base_url, time.monotonic()
    try:
        found.readiness = {"generation": readiness.generate(base_url, ready_timeout_s)}
    except (httpx.HTTPError, ValueError) as error:
        text = f"{base_url} answers, and a generation does not: {one_line(error)}"
        raise LaunchFailure(Failure("not-ready", None, text, "Look at its log on its machine."), log_path) from error
    found.startup_s = {"generation": round(time.monotonic() - began, 3)}
    return found


def look_at(url: str, log_path: Path = Path()) -> Attached:
    """The SGLang server at a URL, as it describes itself. Raises UserError where there is none."""
    base_url = checked_url(url)
    return Attached(base_url, _info(base_url), log_path)


def checked_url(url: str) -> str:
    """The URL's scheme, host and port. Raises UserError for anything that is no plain ``http(s)://host:port``."""
    parts = urlsplit(url)
    try:
        fine = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:  # no number as port
        fine = False
    if not fine or parts.path.rstrip("/") or parts.query or parts.username:
        raise UserError(f"attach: {url!r} is no server's URL; give one like attach:http://127.0.0.1:30000")
    return f"{parts.scheme}://{parts.netloc}"


def what_is_skipped(settings: ServingSettings) -> list[str]:
    """What the parameters ask for and a server that runs already does not take, in words."""
    asked = {
        "server_flags": settings.server_flags,
        "server_env": settings.server_env,
        "use_overlay": settings.use_overlay,
        "command_prefix": settings.command_prefix,
        "python": settings.python if settings.python != "auto" else "",
    }
    given = [name for name, value in asked.items() if value]
    fixed = "model, engine, dtype, tp, context length and running requests are the server's own"
    return [f"Attached: {fixed}."] + ([f"Not applied to a running server: {', '.join(given)}."] if given else [])


def as_it_runs(settings: SweepSettings, say: Callable[[str], None]) -> SweepSettings:
    """The settings of a sweep that an attached server can be measured with; what is left out is said.

    Raises UserError where the server speculates: its baseline would be another server.
    """
    if not settings.host.startswith(PREFIX):
        return settings
    effective = look_at(settings.host.removeprefix(PREFIX)).effective
    if algorithm := effective["speculative_algorithm"]:
        raise UserError(
            f"host: the attached server speculates ({algorithm}), and its baseline would be another server; attach to "
            "one without speculation, or let the suite launch both (what it reaches stands in its log: breakeven logs)"
        )
    for sentence in what_is_skipped(settings):
        say(sentence)
    say("Attached: the baseline alone is measured, once; drafters, variants and restarts are left out.")
    alone = {"drafters": [], "variants": {}, "restarts": 1, "aa_pair": False, "search": False}
    at_once = effective["max_running_requests"] or max([settings.max_running_requests, *settings.concurrency])
    return settings.model_copy(update={**alone, "max_running_requests": at_once})


def _info(base_url: str) -> dict[str, Any]:
    """``/server_info``. Raises UserError, in one line, where that is not a SGLang server's."""
    wrong = f"what answers at {base_url} is no SGLang server"
    try:
        with readiness.client(base_url, _ASK_WITHIN_S) as http:
            answer = http.get("/server_info")
            if answer.status_code == 404:  # before 0.5.6
                answer = http.get("/get_server_info")
    except httpx.HTTPError as error:
        raise UserError(f"no server answers at {base_url} ({one_line(error)}); start it, or correct the URL") from None
    if answer.status_code in (401, 403):
        raise UserError(f"{base_url} wants an API key, and attach sends none; start it on loopback without --api-key")
    try:
        content = answer.json() if answer.status_code == 200 else None
    except ValueError:
        content = None
    if not isinstance(content, dict) or not any(key in content for key in _OURS):
        other = answer.headers.get("server")
        said = f"status {answer.status_code}" + (f", server {other[:40]!r}" if other else "")
        raise UserError(f"{wrong} (/server_info: {said}); attach needs SGLang 0.4.4 or newer")
    return content
