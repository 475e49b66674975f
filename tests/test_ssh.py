"""Another machine over SSH: what it does as this one does, and every way to lose it. A real server of OpenSSH."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from breakeven import artifacts
from breakeven.config import SweepSettings
from breakeven.embedded import engine
from breakeven.errors import UserError
from breakeven.hosts import LOCAL, Host
from breakeven.hosts.remote import HostLost, Remote
from breakeven.hosts.ssh import Ssh
from breakeven.launch import serving
from breakeven.launch.serving import Serving, end_leftovers
from breakeven.server import LaunchFailure, Server, launch
from breakeven.server.command import LaunchSpec
from breakeven.sweep import running
from breakeven.sweep.load import Workload
from breakeven.sweep.measuring import Measurement
from breakeven.sweep.store import Store
from tests.conftest import Suite, run_cli
from tests.ssh_box import ALIAS, Box, open_box, write_client
from tests.stand_in import lay_out_stand_in

pytestmark = pytest.mark.process

LEASE_S = 4.0
DEADLINE_S = 40.0


@pytest.fixture(scope="module")
def a_box() -> Iterator[Box]:
    with open_box() as box:
        yield box


@pytest.fixture
def box(a_box: Box, monkeypatch: pytest.MonkeyPatch) -> Iterator[Box]:
    """The box, seen from a home that knows it. No test leaves a process or a file on it, or a connection open."""
    monkeypatch.setenv("HOME", str(a_box.client_home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    write_client(a_box.client_home, a_box.port, a_box.user)
    yield a_box
    until(lambda: not a_box.processes() and not a_box.connections())
    assert a_box.files() == set()


@pytest.fixture
def reach(box: Box) -> Iterator[Callable[..., Remote]]:
    """``Remote`` by destination and options; closed at the end."""
    opened: list[Remote] = []

    def open_far(destination: str = ALIAS, secret_env: str = "", **options: Any) -> Remote:
        opened.append(Remote(Ssh(destination, secret_env), lease_s=LEASE_S, **{"python": sys.executable, **options}))
        return opened[-1]

    yield open_far
    for remote in opened:
        remote.close()


@pytest.fixture
def far(reach: Callable[..., Remote]) -> Remote:
    return reach()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ---------------------------------------------------------------- as this machine


@pytest.fixture(params=["local", "ssh"])
def host(request: pytest.FixtureRequest) -> Host:
    return LOCAL if request.param == "local" else request.getfixturevalue("far")


def test_files_are_read_written_and_removed(host: Host, tmp_path: Path) -> None:
    file = host.place(tmp_path / "deep" / "file")
    host.write(file, b"0123\nnext")
    assert (host.read(file), host.read(file, 5), host.size(file)) == (b"0123\nnext", b"next", 9)
    assert list(host.lines(file)) == ["0123", "next"] and host.names(file.parent) == ["file"]
    host.bring(tmp_path / "deep")
    assert (tmp_path / "deep" / "file").read_bytes() == b"0123\nnext"
    host.remove(file)
    host.remove(file)
    assert host.size(file) == 0 and host.names(file.parent) == [] and host.names(file.parent / "none") == []
    with pytest.raises(FileNotFoundError):
        host.read(file)


def test_commands_run_to_their_end_or_their_limit(host: Host) -> None:
    code = "import os, sys; print(os.environ['X']); print('err', file=sys.stderr); sys.exit(4)"
    done = host.run([host.python, "-c", code], env={**host.environ(), "X": "a b'c"}, timeout_s=30)
    assert (done.exit_code, done.stdout, done.stderr) == (4, "a b'c\n", "err\n")
    with pytest.raises(TimeoutError, match=r"within 0\.3 s"):
        host.run(["sleep", "60"], timeout_s=0.3)
    with pytest.raises(OSError, match="no-such-program"):
        host.run(["/no-such-program"], timeout_s=5)


def test_ports_are_free_and_given_once(host: Host) -> None:
    ports = [*host.free_ports(3), *host.free_ports(3)]
    assert len(set(ports)) == 6 and all(host.port_is_free(port) for port in ports)


def test_a_background_command_is_watched_and_ended(host: Host, tmp_path: Path) -> None:
    command = [host.python, "-c", "print('up', flush=True); import time; time.sleep(600)"]
    log = host.place(tmp_path / "log")
    record = tmp_path / "record.json"
    held = host.start(command, env=host.environ(), log_path=log, record_path=record)
    until(lambda: host.size(log))
    assert held.alive() and held.ending() is None and held.unhealthy() == [] and record.exists()
    assert held.activity() == held.activity()
    ending = held.stop()
    assert ending.signal == signal.SIGTERM and ending.why == "asked" and not held.alive()
    assert host.read(log) == b"up\n" and not record.exists()


# ---------------------------------------------------------------- what only another machine does


def test_it_is_another_user_with_another_home(box: Box, far: Remote) -> None:
    assert far.environ()["HOME"] == str(box.home)
    assert far.run(["id", "-un"], timeout_s=5).stdout.strip() == box.user


def test_what_the_embedded_engine_compiles_is_kept_in_the_cache_of_the_machine_that_runs_it(
    box: Box, far: Remote
) -> None:
    assert far.cache.is_relative_to(box.home) and LOCAL.cache == artifacts.cache_root()
    environment = serving._embedded_environment(far, ranks=2)
    assert environment["NUMBA_CACHE_DIR"] == str(far.cache / "kernels")
    assert environment["OMP_NUM_THREADS"] == str(max(1, min(far.cores(), engine.MOST_THREADS) // 2))


def test_a_folder_is_sent_once_and_what_is_damaged_again(box: Box, far: Remote, tmp_path: Path) -> None:
    (tmp_path / "model" / "deep").mkdir(parents=True)
    content = os.urandom(9 << 20)
    (tmp_path / "model" / "weights").write_bytes(content)
    (tmp_path / "model" / "deep" / "empty").touch()
    there = far.ship(tmp_path / "model")
    assert there.is_relative_to(box.home) and far.read(there / "weights") == content
    assert (there / "deep" / "empty").read_bytes() == b""
    before = (there / "weights").stat().st_mtime_ns
    assert far.ship(tmp_path / "model") == there and (there / "weights").stat().st_mtime_ns == before
    (there / "weights").write_bytes(b"cut off")
    far.ship(tmp_path / "model")
    assert far.read(there / "weights") == content
    shutil.rmtree(there)


def test_a_package_comes_over_as_its_sources(far: Remote, tmp_path: Path) -> None:
    site = lay_out_stand_in(tmp_path / "site")
    there = far.ship(site)
    assert far.package("sglang", str(there)).startswith(b"PK") and far.package("sglang", "/nowhere") == b""
    shutil.rmtree(there)


# ---------------------------------------------------------------- a server there


def start(far: Remote, tmp_path: Path, behaviour: str = "good", **options: object) -> Server:
    """The stand-in, launched there; its folder is in the cache of shipped folders."""
    there = far.ship(tmp_path / "site" if (tmp_path / "site").exists() else lay_out_stand_in(tmp_path / "site"))
    spec = LaunchSpec(far.python, "/models/m", env={"BEHAVIOUR": behaviour, "PYTHONPATH": str(there)})
    limits = {"ready_timeout_s": 60.0, "stall_timeout_s": 30.0, "record_path": tmp_path / "pid.json"}
    return launch(spec, tmp_path / "server.log", host=far, **{**limits, **options})  # type: ignore[arg-type]


def test_a_server_there_answers_here_and_its_log_comes_back(box: Box, far: Remote, tmp_path: Path) -> None:
    with start(far, tmp_path) as server:
        assert server.alive() and server.failure() is None and server.info()["max_running_requests"] == 7
        assert server.record()["host"] == ALIAS and psutil.Process(server.pid).username() == box.user
        assert not (tmp_path / "server.log").exists()
    assert "fired up" in (tmp_path / "server.log").read_text()
    assert far.port_is_free(server.spec.port or 0) and not (tmp_path / "pid.json").exists()


def test_a_start_that_fails_there_has_its_class_and_its_log_here(far: Remote, tmp_path: Path) -> None:
    with pytest.raises(LaunchFailure) as caught:
        start(far, tmp_path, "out of memory")
    assert caught.value.failure.cls == "oom-at-load" and caught.value.failure.line == 4
    assert "Tried to allocate" in (tmp_path / "server.log").read_text()


def test_a_connection_that_drops_while_it_starts_is_made_again(box: Box, far: Remote, tmp_path: Path) -> None:
    cut: list[int] = []

    def say(text: str) -> None:
        if "load" in text and not cut:
            cut.append(box.cut())

    with start(far, tmp_path, "slow start", on_progress=say) as server:
        assert cut and far.reconnects == 1 and server.alive()


def test_a_connection_that_drops_while_it_serves_is_named_and_the_server_found_again(
    box: Box, far: Remote, tmp_path: Path
) -> None:
    with start(far, tmp_path) as server:
        pid = server.pid
        client = httpx.Client(base_url=server.base_url, trust_env=False, timeout=30)
        ask = {"text": "ponder", "sampling_params": {"max_new_tokens": 1}}
        with client, pytest.raises(httpx.TransportError), _cut_soon(box):
            client.post("/generate", json=ask)
        failure = LaunchFailure.of(server).failure
        assert failure.cls == "connection-lost" and ALIAS in failure.text and "--resume" in failure.advice
        assert server.alive() and server.pid == pid and server.failure() is None, "said once; the server goes on"
        assert httpx.get(f"{server.base_url}/health", trust_env=False).status_code == 200
    assert "fired up" in (tmp_path / "server.log").read_text()


class _cut_soon:  # noqa: N801 (used as a function)
    """Cut the connections once a request is under way."""

    def __init__(self, box: Box) -> None:
        self._code = f"import time, os; time.sleep(1); [os.kill(p, 9) for p in {[p.pid for p in box.everything()]}]"

    def __enter__(self) -> None:
        self._killer = subprocess.Popen([sys.executable, "-c", self._code])

    def __exit__(self, *_: object) -> None:
        self._killer.wait(20)


def test_a_server_that_is_killed_there_is_named(far: Remote, tmp_path: Path) -> None:
    with start(far, tmp_path) as server:
        os.kill(server.pid, signal.SIGKILL)
        until(lambda: not server.alive())
        failure = LaunchFailure.of(server).failure
    assert failure.cls == "killed" and "signal 9" in failure.text


def test_an_attendant_that_is_killed_takes_its_server_along_and_the_next_request_begins_anew(
    box: Box, far: Remote, tmp_path: Path
) -> None:
    with start(far, tmp_path) as server:
        session, pid = far.session, server.pid
        for process in box.processes():
            with contextlib.suppress(psutil.NoSuchProcess):  # its children end while they are looked at
                if "attendant.serve" in " ".join(process.cmdline()):
                    process.kill()
        failure = LaunchFailure.of(server).failure
        assert failure.cls == "connection-lost" and "is gone" in failure.text
    until(lambda: not psutil.pid_exists(pid))
    assert far.cores() > 0 and far.session != session


OWNER = """
import sys, time
from pathlib import Path
from breakeven.server.command import LaunchSpec
from breakeven.hosts.remote import Remote
from breakeven.server import LaunchFailure, launch
from breakeven.hosts.ssh import Ssh
far = Remote(Ssh(sys.argv[1]), python=sys.executable, lease_s=float(sys.argv[2]))
folder = Path(sys.argv[3])
spec = LaunchSpec(far.python, "m", env={"PYTHONPATH": str(far.ship(folder / "site"))})
with launch(spec, folder / "server.log", host=far, record_path=folder / "pid.json") as server:
    print(server.pid, flush=True)
    input()
    print(LaunchFailure.of(server).failure.cls, flush=True)
"""


@pytest.fixture
def owner(box: Box, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has a server there; it says the server's process id, and on a line why it lost it."""
    lay_out_stand_in(tmp_path / "site")
    command = [sys.executable, "-c", OWNER, ALIAS, str(LEASE_S), str(tmp_path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_an_owner_that_is_killed_leaves_nothing_after_the_lease(box: Box, owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    assert psutil.pid_exists(int(owner.stdout.readline()))
    owner.kill()
    until(lambda: not box.processes())


def test_the_next_run_ends_what_a_killed_one_left_without_waiting_for_the_lease(
    reach: Callable[..., Remote], owner: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    again = reach()
    assert again.end_leftover(tmp_path / "pid.json") is None, "its owner still runs"
    owner.kill()
    owner.wait()
    assert ALIAS in (again.end_leftover(tmp_path / "pid.json") or "")
    assert not psutil.pid_exists(pid) and again.end_leftover(tmp_path / "pid.json") is None


def test_an_owner_that_slept_too_long_finds_its_server_ended_and_says_so(
    box: Box, owner: subprocess.Popen[str]
) -> None:
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.send_signal(signal.SIGSTOP)
    until(lambda: not psutil.pid_exists(pid))
    owner.send_signal(signal.SIGCONT)
    out, _ = owner.communicate("\n", timeout=DEADLINE_S)
    assert out.strip() == "connection-lost" and owner.returncode == 0


def test_a_short_sleep_is_slept_over(box: Box, owner: subprocess.Popen[str]) -> None:
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.send_signal(signal.SIGSTOP)
    time.sleep(LEASE_S / 4)
    owner.send_signal(signal.SIGCONT)
    time.sleep(LEASE_S)
    assert psutil.pid_exists(pid)
    owner.communicate("\n", timeout=DEADLINE_S)
    assert not psutil.pid_exists(pid)


def test_a_machine_out_of_reach_for_longer_than_the_lease_is_given_up(
    a_box: Box, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with open_box() as box:
        monkeypatch.setenv("HOME", str(box.client_home))
        far = Remote(Ssh(ALIAS), python=sys.executable, lease_s=LEASE_S)
        with start(far, tmp_path) as server:
            box.vanish()
            failure = LaunchFailure.of(server).failure
            assert failure.cls == "connection-lost" and "out of reach" in failure.text
        until(lambda: not box.processes())
        with pytest.raises(HostLost):
            far.size(Path("/etc/passwd"))
        far.close()


# ---------------------------------------------------------------- a sweep there

SWEEP = SweepSettings(
    drafters=[{"algorithm": "NGRAM", "draft_tokens": [4]}],
    model="/models/m",
    engine="native",
    kinds=["open chat"],
    prompts_per_kind=6,
    restarts=1,
    profile_steps=0,
)


def sweep_there(far: Remote, folder: Path, say: Callable[[str], None] = print, *, resume: bool = False) -> Store:
    """A sweep whose servers are the stand-in."""
    site = folder / "site" if (folder / "site").exists() else lay_out_stand_in(folder / "site")
    environment = {**far.environ(), "PYTHONPATH": str(far.ship(site))}
    serving = Serving(SWEEP, folder, far, Path(SWEEP.model), environment, (), lambda text: [len(text)])
    load, store = Workload.chosen(SWEEP, serving.encode), Store(folder, {}, resume=resume, host=far)
    end_leftovers(folder, say, far)
    running.measure_all(SWEEP, running.plan(SWEEP), store, Measurement(SWEEP, serving, load, store, say).run, say)
    return store


def assert_measured_once(store: Store, folder: Path, launches: list[str]) -> None:
    assert [row["launch"] for row in store.rows if row["status"] == "ok"] == launches
    assert artifacts.read_json(folder / "cells.json")["cells"] == store.rows
    times = Counter((row["launch"], row["prompt_id"]) for row in store.samples())
    assert len(times) == 2 * SWEEP.prompts_per_kind and set(times.values()) == {1}
    assert all((folder / "logs" / row["log"]).exists() for row in store.rows)
    assert not list((folder / "logs").glob("*.pid.json"))


class _Once:
    """Do something amid a request: a moment after the second prompt of the first launch was answered."""

    def __init__(self, strike: Callable[[], object]) -> None:
        self._strike = strike
        self.said: list[str] = []

    def __call__(self, text: str) -> None:
        self.said.append(text)
        if self.said.count(text) == 1 and "baseline.restart0.1: 2 of" in text:
            threading.Timer(0.1, self._strike).start()


def test_a_connection_that_drops_while_a_sweep_measures_costs_one_launch_which_is_made_again(
    box: Box, far: Remote, tmp_path: Path
) -> None:
    say = _Once(box.cut)
    store = sweep_there(far, tmp_path, say)
    assert any("dropped and was made again; it is measured again" in text for text in say.said)
    assert_measured_once(store, tmp_path, ["baseline.restart0.2", "ngram-d4.restart0.1"])


def test_a_machine_that_vanishes_amid_a_sweep_ends_it_in_one_line_and_a_resumed_one_completes_it(
    box: Box, reach: Callable[..., Remote], tmp_path: Path
) -> None:
    with pytest.raises(HostLost, match="is out of reach") as caught:
        sweep_there(reach(), tmp_path, _Once(box.vanish))
    assert "\n" not in str(caught.value) and artifacts.read_json(tmp_path / "cells.json")["cells"] == []
    until(lambda: not box.processes())
    box.come_back()
    store = sweep_there(reach(), tmp_path, resume=True)
    assert_measured_once(store, tmp_path, ["baseline.restart0.2", "ngram-d4.restart0.1"])


def test_a_run_names_both_machines_and_goes_on_only_where_both_are_the_same(box: Box, suite: Suite) -> None:
    root = suite(n01="raise ValueError('not yet')")
    options = ("-p", f"host={ALIAS}", "-p", f"python={sys.executable}")
    assert run_cli(root, "run", "parameters/short.yaml", *options).returncode == 1
    run = artifacts.read_json(root / "outputs/run/run.json")
    assert run["environment"]["host"] == run["runner"]["host"] and run["environment"]["packages"]["sglang"]
    for which, differing in (("environment", "gpus"), ("runner", "cpu")):
        artifacts.write_json(root / "outputs/run/run.json", {**run, which: {**run[which], differing: "another"}})
        done = run_cli(root, "run", "--resume", "outputs/run")
        assert done.returncode == 2 and f"({differing} differ)" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


# ---------------------------------------------------------------- not let in


def refused(python: str = sys.executable, prefix: tuple[str, ...] = (), destination: str = ALIAS, **ssh: str) -> str:
    """The one line with which the first request fails."""
    far = Remote(Ssh(destination, **ssh), python=python, prefix=prefix, lease_s=LEASE_S)
    with pytest.raises((UserError, OSError)) as caught:
        far.cores()
    far.close()
    text = str(caught.value)
    assert "\n" not in text
    return f"{type(caught.value).__name__}: {text}"


def test_a_wrong_key_is_said(box: Box) -> None:
    write_client(box.client_home, box.port, box.user, key="other_key")
    assert refused().startswith(f"UserError: {ALIAS} does not let you in")


@pytest.mark.parametrize("known", ["nothing", "another key"])
def test_a_host_key_that_is_not_known_is_never_accepted(box: Box, known: str) -> None:
    file = box.client_home / ".ssh" / "known_hosts"
    key = (box.client_home / ".ssh" / "other_key.pub").read_text()
    file.write_text("" if known == "nothing" else f"[127.0.0.1]:{box.port} {key}")
    assert refused().startswith(f"UserError: the host key of {ALIAS}")
    file.unlink()
    assert refused().startswith(f"UserError: the host key of {ALIAS}")


def test_a_machine_that_is_not_there_is_said(box: Box) -> None:
    write_client(box.client_home, LOCAL.free_ports(1)[0], box.user)
    assert refused().startswith(f"ConnectionError: {ALIAS} can't be reached")
    assert "can't be reached" in refused(destination="no-such-host.invalid")


@pytest.mark.parametrize("text", ["-oProxyCommand=x", "a b", "user@", "", "http://x", "box:22:22"])
def test_what_is_no_destination_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="give local, an SSH destination"):
        Ssh(text)


def test_a_python_that_does_not_run_there_is_said(box: Box, far: Remote) -> None:
    text = refused(python="/no/such/python")
    assert text.startswith("UserError") and "/no/such/python" in text and "give the interpreter" in text
    assert "3.10 or newer" in refused(
        prefix=("sh", "-c", f"exec {sys.executable} -c '{OLD}' \"$@\"", "old"), python="-"
    )


OLD = (
    'import sys; sys.argv = sys.argv[2:]; code = sys.argv[1]; sys.argv = ["-c", *sys.argv[2:]]; '
    "sys.version_info = (3, 8, 1); exec(code)"
)


def test_what_a_login_script_prints_is_passed_over(reach: Callable[..., Remote]) -> None:
    talk = 'echo "Welcome, breakeven: user"; exec "$@"'
    assert reach(prefix=("sh", "-c", talk, "login")).cores() > 0


def test_a_full_disk_there_is_said_and_leaves_nothing(reach: Callable[..., Remote], tmp_path: Path) -> None:
    """The cache is a disk of 3 MiB: the library fits, a model does not."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(os.urandom(8 << 20))
    mount = 'mkdir -p ~/.cache && mount -t tmpfs -o size=3m none ~/.cache && exec "$@"'
    prefix = ("unshare", "--map-root-user", "--mount", "sh", "-c", mount, "small")
    far = reach(prefix=prefix)
    with pytest.raises(OSError) as caught:
        far.ship(tmp_path / "model")
    assert caught.value.errno == errno.ENOSPC and ALIAS in str(caught.value)
    cache = Path(far.environ()["HOME"]) / ".cache"
    found = far.run(["find", str(cache), "-name", "weights*"], timeout_s=10)
    assert found.stdout == "" and found.exit_code == 0


def test_a_disk_too_full_for_the_library_is_said(box: Box) -> None:
    mount = 'mkdir -p ~/.cache && mount -t tmpfs -o size=40k none ~/.cache && exec "$@"'
    text = refused(prefix=("unshare", "--map-root-user", "--mount", "sh", "-c", mount, "small"))
    assert text.startswith("OSError") and "No space left" in text and ALIAS in text


# ---------------------------------------------------------------- ways in


def test_a_key_with_a_passphrase_opens_by_the_name_of_a_variable(
    box: Box, reach: Callable[..., Remote], monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = box.client_home / ".ssh" / "locked_key"
    make = ["ssh-keygen", "-q", "-t", "rsa", "-m", "PEM", "-N", "open sesame", "-f", locked]
    subprocess.run(make, check=True, capture_output=True)
    with (box.folder / "authorized_keys").open("a") as file:
        file.write(locked.with_suffix(".pub").read_text())
    write_client(box.client_home, box.port, box.user, key="locked_key")
    assert refused().startswith("UserError")
    assert "no variable 'BOX_SECRET'" in refused(secret_env="BOX_SECRET")
    monkeypatch.setenv("BOX_SECRET", "open sesame")
    assert reach(secret_env="BOX_SECRET").cores() > 0


def test_the_agent_and_a_jump_host_are_used(
    box: Box, reach: Callable[..., Remote], monkeypatch: pytest.MonkeyPatch
) -> None:
    ssh = box.client_home / ".ssh"
    (ssh / "config").write_text(
        f"Host *\n  User {box.user}\n"
        f"Host jump\n  HostName 127.0.0.1\n  Port {box.port}\n"
        f"Host inner\n  HostName 127.0.0.1\n  Port {box.port}\n  ProxyJump jump\n"
    )
    socket = box.folder / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        until(socket.exists)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
        subprocess.run(["ssh-add", "-q", ssh / "key"], check=True, capture_output=True)
        far = reach("inner")
        assert far.run(["id", "-un"], timeout_s=5).stdout.strip() == box.user
        assert len(box.connections()) == 2, "one to the jump host, one through it"
    finally:
        agent.terminate()
        agent.wait(10)
