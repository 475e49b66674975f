"""Launch a server, know that it is ready or why it is not, and end it so that nothing of it is left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from breakeven.errors import one_line
from breakeven.hosts import LOCAL, Background, Host
from breakeven.server import readiness, surroundings
from breakeven.server.command import LaunchSpec, build_command, contradiction
from breakeven.telemetry import server_settings
from breakeven.telemetry.failures import Failure, classify
from breakeven.variables import is_secret

Say = Callable[[str], None]

_POLL_S = 0.25
_ACTIVITY_EVERY_S = 2.0
_SAY_EVERY_S = 15.0
_PORT_FREE_WITHIN_S = 5.0
_DYING_S = 5.0
"""Seconds in which SGLang's first process notices that another of its processes died, and ends."""
_POLLED = '"GET /health'
"""In the log lines that this module's own questions cause: no sign of progress, and nothing to show."""
_CONNECTION_ADVICE = (
    "Requests under way when a connection drops are lost: measure this again (--resume). Out of reach, the server "
    "there is ended by its lease."
)
_CONTRADICTION_ADVICE = "The arm would not be what its name says: leave it out, or take a release that can keep it so."


class LaunchFailure(Exception):  # noqa: N818  (it carries a Failure)
    """A server that did not come up, or that ended while it should serve. Its text is one line.

    ``failure`` says why (class, log line, text, advice), ``log_path`` is the whole log, ``startup_s`` the seconds per
    phase up to then.
    """

    def __init__(self, failure: Failure, log_path: Path, startup_s: Mapping[str, float] | None = None) -> None:
        self.failure = failure
        self.log_path = log_path
        self.startup_s = dict(startup_s or {})
        where = log_path.name if failure.line is None else f"{log_path.name}:{failure.line}"
        super().__init__(f"{failure.cls} ({where}): {failure.text}. {failure.advice}")

    @classmethod
    def of(cls, server: Server) -> LaunchFailure:
        """For a server that was found dead or hung."""
        failure = server.failure() or Failure("unknown", None, "the server runs and answers", "Ask it again.")
        return cls(failure, server.log_path, server.startup_s)

    def record(self) -> dict[str, Any]:
        """As ``server.json`` holds it."""
        return {
            "status": "failed",
            "failure": self.failure.as_dict(),
            "startup_s": self.startup_s,
            "log": str(self.log_path),
        }


class Server:
    """A server that was launched. Leaving the ``with`` block ends it and all its processes."""

    def __init__(
        self, spec: LaunchSpec, command: list[str], sglang_version: str, host: Host, process: Background, log_path: Path
    ) -> None:
        self.spec = spec
        self.command = command
        self.sglang_version = sglang_version
        self.log_path = log_path
        self.startup_s: dict[str, float] = {}
        """Seconds per phase of the start; their sum is the time from the launch to the first generation's end."""
        self.readiness: dict[str, Any] = {}
        self.effective: dict[str, Any] = {}
        """Settings that the server reports once it is ready, in the names of ``telemetry.server_settings``."""
        self.stop_seconds: float | None = None
        self._host = host
        self._reconnects = host.reconnects
        self._process = process
        self._forwarded = ExitStack()
        assert spec.port is not None
        self.base_url = f"http://127.0.0.1:{self._forwarded.enter_context(host.forward(spec.port))}"

    @property
    def pid(self) -> int:
        """Process id of SGLang's first process, on its host."""
        return self._process.pid

    def alive(self) -> bool:
        """Whether SGLang's first process runs; it may still be hung (see ``failure``)."""
        return self._process.alive()

    def failure(self, answer_within_s: float = 30.0) -> Failure | None:
        """Why the server ended, or that it hangs; None while it runs and answers, and after ``stop``.

        A server on another machine that runs and answers may be to blame for nothing, its connection for everything:
        ``connection-lost``, said once.
        """
        if self.stop_seconds is not None:
            return None
        try:
            return self._failure(answer_within_s) or self._dropped()
        except ConnectionError as lost:
            return connection_lost(one_line(lost))

    def _failure(self, answer_within_s: float) -> Failure | None:
        deadline = time.monotonic() + answer_within_s
        while self._process.alive():
            left_s = max(deadline - time.monotonic(), 1)
            if readiness.is_healthy(self.base_url, left_s, readiness.GENERATING_HEALTH):
                return None
            if time.monotonic() > deadline:
                return self._hang(f"{readiness.GENERATING_HEALTH} has no answer within {answer_within_s:g} s")
            time.sleep(_POLL_S)  # a server that dies refuses connections before it is gone
        ending = self._process.wait(60)
        self._bring_log()
        found = classify(
            readiness.log_lines(self.log_path),
            sglang_version=self.sglang_version,
            exit_code=ending.exit_code,
            signal=ending.signal,
        )
        return found or Failure("unknown", None, f"the server {ending}", f"Read {self.log_path.name} from its end.")

    def info(self) -> dict[str, Any]:
        """The server's own account of its settings and state. Raises httpx.HTTPError when it does not answer."""
        with readiness.client(self.base_url, timeout_s=60) as http:
            answer = http.get("/server_info")
            if answer.status_code == 404:  # before 0.5.6
                answer = http.get("/get_server_info")
            content = answer.raise_for_status().json()
        return {key: value for key, value in content.items() if not (is_secret(key) and isinstance(value, str))}

    def stop(self) -> None:
        """End it: SIGTERM, then SIGKILL. Twice does no harm. Raises RuntimeError if anything is left."""
        if self.stop_seconds is not None:
            return
        began = time.monotonic()
        ending = self._process.stop()
        self.stop_seconds = round(time.monotonic() - began, 3)
        self._forwarded.close()
        if ending.left:
            raise RuntimeError(f"server processes {list(ending.left)} survive SIGKILL: stuck in the driver, as a rule")
        with contextlib.suppress(ConnectionError):  # a machine out of reach ends its servers itself
            self._bring_log()
            self._wait_for_the_port(began + self.stop_seconds)

    def _bring_log(self) -> None:
        for path in readiness.log_parts(self.log_path):
            self._host.bring(path)

    def _wait_for_the_port(self, began: float) -> None:
        while not self._host.port_is_free(self.spec.port or 0):
            if time.monotonic() - began > _PORT_FREE_WITHIN_S:
                raise RuntimeError(f"port {self.spec.port} is still taken although no process of the server is left")
            time.sleep(_POLL_S)

    def record(self) -> dict[str, Any]:
        """As ``server.json`` holds it: what was asked for and what is in effect, start-up, proof of readiness."""
        requested = asdict(self.spec)
        requested["env"] = {name: "(hidden)" if is_secret(name) else value for name, value in self.spec.env.items()}
        return {
            "status": "ready",
            "failure": None,
            "sglang_version": self.sglang_version,
            "host": self._host.name,
            "base_url": self.base_url,
            "pid": self.pid,
            "command": self.command,
            "requested": requested,
            "effective": self.effective,
            "startup_s": self.startup_s,
            "readiness": self.readiness,
            "log": str(self.log_path),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _dropped(self) -> Failure | None:
        if self._host.reconnects == self._reconnects:
            return None
        self._reconnects = self._host.reconnects
        return connection_lost(f"the connection to {self._host.name} dropped and was made again")

    def _hang(self, what: str) -> Failure:
        unhealthy = self._process.unhealthy()
        text = "; ".join([what, *unhealthy])
        advice = "Look at what its processes wait for (py-spy dump --pid PID); a stopped one goes on with kill -CONT."
        if any("is dead" in each for each in unhealthy):
            advice = (
                "A process of the server is dead and its parent did not notice: see dmesg for the out-of-memory killer."
            )
        return Failure("hang", None, text, advice)


def launch(
    spec: LaunchSpec,
    log_path: Path,
    *,
    engine_env: Mapping[str, str] | None = None,
    ready_timeout_s: float = 1800.0,
    stall_timeout_s: float = 600.0,
    on_progress: Say = lambda text: None,
    record_path: Path | None = None,
    host: Host = LOCAL,
) -> Server:
    """Start a server and return it once it has really generated.

    ``engine_env`` is the server's whole environment (its host's own if None), ``spec.env`` goes on top. A log of an
    earlier launch at ``log_path`` is replaced; another machine's log is there once the server failed or was stopped.
    ``stall_timeout_s``: a start in which for so long no line is logged, nothing is read or written and no process comes
    or goes is a hang. (Compiling kernels is silent for minutes.) ``record_path`` says what runs, for
    ``end_leftover`` of the host.

    Raises UserError before anything starts if the release can't run the spec, LaunchFailure if the server does not
    come up. Whatever is raised, nothing of the server is left.
    """
    env = surroundings.environment(host.environ() if engine_env is None else engine_env, spec.env)
    release = surroundings.installed_release(spec, host, env)
    spec = surroundings.with_ports(spec, host)
    command = build_command(spec, release["version"], release["flags"])
    if taken := surroundings.taken_port(spec, host):
        advice = "Leave it out to have a free one chosen, or end what listens there (ss -ltnp)."
        raise LaunchFailure(Failure("port-in-use", None, f"{taken} of {host.name} is taken", advice), log_path)
    for path in readiness.log_parts(log_path):
        path.unlink(missing_ok=True)
        host.remove(host.place(path))
    try:
        process = host.start(command, env=env, log_path=host.place(log_path), record_path=record_path)
    except ConnectionError as lost:
        raise LaunchFailure(connection_lost(one_line(lost)), log_path) from lost
    except OSError as error:
        advice = "Check python, prefix and the log's folder."
        raise LaunchFailure(Failure("config", None, f"it can't be started: {error}", advice), log_path) from error
    server = Server(spec, command, release["version"], host, process, log_path)
    try:
        start = _Start(server, process, host, on_progress)
        start.wait_for_health(ready_timeout_s, stall_timeout_s)
        start.generate(stall_timeout_s)
    except ConnectionError as lost:
        server.stop()
        raise LaunchFailure(connection_lost(one_line(lost)), log_path) from lost
    except BaseException:
        server.stop()
        raise
    return server


def connection_lost(text: str) -> Failure:
    """The failure of a launch or a measurement whose connection dropped, not its server."""
    return Failure("connection-lost", None, text, _CONNECTION_ADVICE)


class _Start:
    """Follows one start from its first log line to the first generation."""

    def __init__(self, server: Server, process: Background, host: Host, say: Say) -> None:
        self.server = server
        self.process = process
        self.say = say
        self.began = self.progressed = self.said = self.looked = time.monotonic()
        self.phases = readiness.Phases(self.began)
        self.tail = readiness.LogTail(host, host.place(server.log_path))
        self.activity = process.activity()
        self.last_line = "none yet"

    def wait_for_health(self, ready_timeout_s: float, stall_timeout_s: float) -> None:
        """Return when /health answers 200. Raises LaunchFailure as soon as it is clear that it will not."""
        while not self._look():
            now = time.monotonic()
            if not self.process.alive():
                raise self.failed(self.server.failure())
            if now - self.progressed > stall_timeout_s:
                raise self.failed(self.server._hang(f"no sign of progress for {stall_timeout_s:g} s, {self._where()}"))
            if now - self.began > ready_timeout_s:
                text = f"not ready after {ready_timeout_s:g} s, {self._where()}"
                raise self.failed(Failure("not-ready", None, text, "It got on: give it more time (ready_timeout_s)."))
            time.sleep(_POLL_S)

    def generate(self, timeout_s: float) -> None:
        """One real generation: /health alone has been seen to answer for a dead scheduler."""
        self.phases.enter("generation", time.monotonic())
        try:
            self.server.readiness = {"generation": readiness.generate(self.server.base_url, timeout_s)}
            self.server.effective = server_settings(self.server.info())
        except (httpx.HTTPError, ValueError) as error:
            raise self.failed(self._why_no_generation(error)) from error
        if wrong := contradiction(self.server.spec, self.server.effective):
            raise self.failed(Failure("config", None, wrong, _CONTRADICTION_ADVICE))
        self.server.startup_s = self.phases.seconds(time.monotonic())
        total_s = sum(self.server.startup_s.values())
        self.say(f"server: ready after {total_s:.0f} s at {self.server.base_url}")

    def _why_no_generation(self, error: Exception) -> Failure | None:
        what = f"/health answers, and a generation does not: {type(error).__name__}: {error}"
        if isinstance(error, httpx.TimeoutException):
            return self.server._hang(what)
        deadline = time.monotonic() + _DYING_S
        while self.process.alive():
            if time.monotonic() > deadline:
                return self.server._dropped() or Failure("not-ready", None, what, "Read the log from the request on.")
            time.sleep(_POLL_S)
        return self.server.failure()

    def failed(self, failure: Failure | None) -> LaunchFailure:
        failure = failure or Failure("unknown", None, "the server ended and left no trace", "Start it by hand.")
        return LaunchFailure(failure, self.server.log_path, self.phases.seconds(time.monotonic()))

    def _look(self) -> bool:
        """Take in what is new; whether /health answers 200."""
        now = time.monotonic()
        lines = [line for line in self.tail.new_lines() if line.strip() and _POLLED not in line]
        changed = self.phases.feed(now, lines)
        self.last_line = lines[-1].strip()[:160] if lines else self.last_line
        looks = now - self.looked > _ACTIVITY_EVERY_S
        if looks:
            self.looked, before, self.activity = now, self.activity, self.process.activity()
        if lines or (looks and self.activity != before):
            self.progressed = now
        if changed or now - self.said > _SAY_EVERY_S:
            self.said = now
            self.say(f"server: {now - self.began:.0f} s, {self._where()}")
        # Asked every two seconds only: each answer is a line in the log, and the default /health generates a token.
        return (looks or self.phases.current == "generation") and readiness.is_healthy(
            self.server.base_url, timeout_s=5
        )

    def _where(self) -> str:
        return f"in phase {self.phases.current}; last line: {self.last_line}"
