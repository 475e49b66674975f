"""A supervised process and its descendants end with whatever started them, whoever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from multiprocessing import shared_memory
from pathlib import Path

import nbformat
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.hosts import processes, supervise
from breakeven.hosts.supervise import BoundedLog

pytestmark = pytest.mark.process

# A stand-in for a server: a parent, a child, and a grandchild in a session of its own; all of them ignore SIGTERM when
# told to. Their process ids are in the file.
TREE = """
import json, os, signal, subprocess, sys, time
depth, stubborn, pids = int(sys.argv[1]), sys.argv[2] == "stubborn", sys.argv[3]
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", depth, flush=True)
with open(pids, "a") as file:
    file.write(f"{os.getpid()}\\n")
if depth:
    subprocess.Popen([sys.executable, __file__, str(depth - 1), *sys.argv[2:]], start_new_session=depth == 1)
time.sleep(600)
"""

# A starter that is killed in the tests.
STARTER = """
import sys, time
from pathlib import Path
from breakeven.hosts import processes
folder = Path(sys.argv[1])
held = processes.start(
    [sys.executable, *sys.argv[2:]], log_path=folder / "log", record_path=folder / "record.json", grace_s=1
)
{after}
"""
WAIT = "time.sleep(600)"
DEADLINE_S = 20.0


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[list[str]]:
    """The command line of a tree of three, that leaves nothing running even when a test fails."""
    script = tmp_path / "tree.py"
    script.write_text(TREE)
    pids = tmp_path / "pids"
    yield [str(script), "2", "obedient", str(pids)]
    for pid in _pids(pids):
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if str(script) in process.cmdline():
                process.kill()


def _pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def _tree_pids(tmp_path: Path) -> list[int]:
    """The three process ids, once all three run."""
    _until(lambda: len(_pids(tmp_path / "pids")) == 3)
    return _pids(tmp_path / "pids")


def _until(condition, deadline_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    return supervise.identity(pid) is not None


def _all_gone(pids: list[int]) -> bool:
    return not any(_runs(pid) for pid in pids)


def _starter(tmp_path: Path, tree: list[str], after: str = WAIT) -> subprocess.Popen[bytes]:
    script = tmp_path / "starter.py"
    script.write_text(STARTER.replace("{after}", textwrap.dedent(after)))
    return subprocess.Popen([sys.executable, str(script), str(tmp_path), *tree], start_new_session=True)


def _record(tmp_path: Path) -> dict:
    _until((tmp_path / "record.json").exists)
    return json.loads((tmp_path / "record.json").read_text())


def _kill_both_halves(record: dict) -> None:
    """Stopped first, so that neither can act on the death of the other."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for role in ("keeper", "warden"):
            os.kill(record[role]["pid"], number)


def _start(tmp_path: Path, tree: list[str], **options) -> processes.Supervised:
    options = {"log_path": tmp_path / "log", "record_path": tmp_path / "record.json", "grace_s": 1, **options}
    return processes.start([sys.executable, *tree], **options)


def test_stop_ends_every_descendant_and_says_how(tmp_path, tree):
    with _start(tmp_path, tree) as held:
        pids = _tree_pids(tmp_path)
        assert held.pid == pids[0] and held.alive() and held.ending() is None
        assert {process.pid for process in held.members()} == set(pids)
        ending = held.stop()
    assert (ending.exit_code, ending.signal, ending.why, ending.left) == (None, signal.SIGTERM, "asked", ())
    assert _all_gone(pids) and not held.alive()
    assert not (tmp_path / "record.json").exists()
    assert processes.marked(held.marker) == []


def test_processes_that_ignore_sigterm_are_killed_after_the_grace_period(tmp_path, tree):
    tree[2] = "stubborn"
    held = _start(tmp_path, tree)
    pids = _tree_pids(tmp_path)
    assert held.stop().signal == signal.SIGKILL
    assert _all_gone(pids)


def test_an_exception_in_the_with_block_ends_it(tmp_path, tree):
    with pytest.raises(ZeroDivisionError), _start(tmp_path, tree):
        pids = _tree_pids(tmp_path)
        raise ZeroDivisionError
    assert _all_gone(pids)


def test_the_commands_own_exit_code_is_reported_and_its_orphans_are_ended(tmp_path):
    orphan = "import subprocess,sys,time; p=subprocess.Popen([sys.executable,'-c','import time; time.sleep(600)'],"
    orphan += "start_new_session=True); print(p.pid, flush=True); sys.exit(7)"
    held = processes.start([sys.executable, "-c", orphan], log_path=tmp_path / "log", grace_s=1)
    ending = held.wait(DEADLINE_S)
    assert (ending.exit_code, ending.signal, ending.why) == (7, None, "exited")
    assert _all_gone([int((tmp_path / "log").read_text())])
    assert str(ending) == "exit code 7 (exited)"


def test_a_command_that_does_not_exist_is_an_os_error_that_names_it(tmp_path):
    with pytest.raises(OSError, match="no-such-program"):
        processes.start(["no-such-program"], log_path=tmp_path / "log")


def test_a_folder_that_can_not_hold_the_log_is_an_os_error(tmp_path):
    (tmp_path / "log").mkdir()
    with pytest.raises(OSError, match="directory"):
        processes.start([sys.executable, "-c", ""], log_path=tmp_path / "log")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_starter_takes_it_along(tmp_path, tree, number):
    starter = _starter(tmp_path, tree)
    pids = _tree_pids(tmp_path)
    record = _record(tmp_path)
    os.killpg(starter.pid, number)
    starter.wait()
    _until(lambda: _all_gone([*pids, record["keeper"]["pid"], record["warden"]["pid"]]))
    assert not (tmp_path / "record.json").exists()
    assert "process that started this server is gone" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("after", ["sys.exit(0)", "raise RuntimeError", "del held; time.sleep(600)"])
def test_a_starter_that_ends_or_forgets_it_takes_it_along(tmp_path, tree, after):
    wait_for_tree = "while len((folder / 'pids').read_text().split()) < 3: time.sleep(0.02)\n"
    starter = _starter(
        tmp_path, tree, "while not (folder / 'pids').exists(): time.sleep(0.02)\n" + wait_for_tree + after
    )
    pids = _tree_pids(tmp_path)
    _until(lambda: _all_gone(pids))
    starter.kill()
    starter.wait()


@pytest.mark.parametrize(
    ("victim", "number"), [("papermill", signal.SIGKILL), ("papermill", signal.SIGTERM), ("kernel", signal.SIGKILL)]
)
def test_a_killed_papermill_or_kernel_takes_it_along(tmp_path, tree, victim, number):
    source = STARTER.replace("{after}", WAIT).replace("sys.argv", repr(["", str(tmp_path), *tree]))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "in.ipynb")
    command = [sys.executable, "-m", "papermill", str(tmp_path / "in.ipynb"), str(tmp_path / "out.ipynb")]
    papermill = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    _until((tmp_path / "record.json").exists, 120)
    pids = _tree_pids(tmp_path)
    record = _record(tmp_path)
    kernel = record["starter"]["pid"]
    os.kill(papermill.pid if victim == "papermill" else kernel, number)
    _until(lambda: _all_gone([*pids, record["keeper"]["pid"], record["warden"]["pid"], kernel]))
    papermill.wait(DEADLINE_S)


def test_a_fork_of_the_starter_that_lives_on_does_not_keep_it_alive(tmp_path, tree):
    starter = _starter(tmp_path, tree, "import os\nprint(os.fork())\n" + WAIT)
    pids = _tree_pids(tmp_path)
    keeper = _record(tmp_path)["keeper"]["pid"]
    forked = [process.pid for process in psutil.Process(starter.pid).children() if process.pid != keeper]
    starter.kill()
    starter.wait()
    _until(lambda: _all_gone([*pids, keeper]))
    assert not (tmp_path / "record.json").exists()
    for pid in forked:
        if _runs(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_starter_thread_that_ends_leaves_it_running(tmp_path, tree):
    after = "import threading\nthreading.Thread(target=time.sleep, args=(0.1,)).start()\n" + WAIT
    script = STARTER.replace(
        "held = processes.start(", "import threading\nheld = []\ndef go(): held.append(processes.start("
    )
    script = script.replace("grace_s=1\n)", "grace_s=1\n))\nt = threading.Thread(target=go); t.start(); t.join()")
    (tmp_path / "starter.py").write_text(script.replace("{after}", after))
    starter = subprocess.Popen([sys.executable, str(tmp_path / "starter.py"), str(tmp_path), *tree])
    pids = _tree_pids(tmp_path)
    time.sleep(1.5)
    assert all(_runs(pid) for pid in pids)
    starter.kill()
    starter.wait()
    _until(lambda: _all_gone(pids))


@pytest.mark.parametrize(("role", "why"), [("keeper", "parent gone"), ("warden", "warden killed by signal 9")])
def test_a_killed_half_of_the_supervisor_takes_it_along(tmp_path, tree, role, why):
    tree[2] = "stubborn"
    held = _start(tmp_path, tree)
    pids = _tree_pids(tmp_path)
    record = _record(tmp_path)
    os.kill(record[role]["pid"], signal.SIGKILL)
    assert held.wait(DEADLINE_S).why == why
    assert _all_gone(pids) and not held.alive()
    _until(lambda: not _runs(record["warden"]["pid"]))
    assert not (tmp_path / "record.json").exists()


def test_stop_ends_what_a_killed_supervisor_left(tmp_path, tree):
    held = _start(tmp_path, tree)
    pids = _tree_pids(tmp_path)
    _kill_both_halves(_record(tmp_path))
    assert held.stop().why == "supervisor killed"
    assert _all_gone(pids)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_member_of_the_tree_leaves_no_orphan_after_stop(tmp_path, tree, victim):
    with _start(tmp_path, tree) as held:
        pids = _tree_pids(tmp_path)
        os.kill(pids[victim], signal.SIGKILL)
        _until(lambda: not _runs(pids[victim]))
        if victim == 0:
            assert held.wait(DEADLINE_S).signal == signal.SIGKILL
        else:
            assert held.alive()
    assert _all_gone(pids)


def test_a_stopped_tree_is_seen_and_ended(tmp_path, tree):
    with _start(tmp_path, tree) as held:
        pids = _tree_pids(tmp_path)
        before = held.activity()
        assert held.unhealthy() == []
        os.kill(pids[1], signal.SIGSTOP)
        _until(lambda: held.unhealthy() != [])
        assert held.unhealthy()[0].startswith(f"process {pids[1]} (") and "is stopped" in held.unhealthy()[0]
        assert held.activity() == before
    assert _all_gone(pids)


def test_a_leftover_is_ended_by_its_record_and_nothing_else_is(tmp_path, tree):
    held = _start(tmp_path, tree)
    pids = _tree_pids(tmp_path)
    record_path = tmp_path / "record.json"
    record = _record(tmp_path)
    _kill_both_halves(record)
    held.wait(DEADLINE_S)
    _until(lambda: not _runs(pids[0]))
    assert [_runs(pid) for pid in pids] == [False, True, True], (tmp_path / "log").read_text()
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    ended = processes.end_leftover(record_path)
    assert set(ended) == {pids[1], pids[2]} and _all_gone(pids)
    assert bystander.poll() is None and not record_path.exists() and not Path(record["scratch"]).exists()
    bystander.kill()
    bystander.wait()
    assert processes.end_leftover(record_path) == []


def test_a_record_of_a_run_in_progress_is_left_alone(tmp_path, tree):
    starter = _starter(tmp_path, tree)
    pids = _tree_pids(tmp_path)
    _record(tmp_path)
    assert processes.end_leftover(tmp_path / "record.json") == []
    assert all(_runs(pid) for pid in pids)
    starter.kill()
    starter.wait()
    _until(lambda: _all_gone(pids))


def test_a_process_number_that_was_given_again_is_not_taken_for_a_leftover(tmp_path):
    me = supervise.identity(os.getpid())
    other = {**me, "start_ticks": me["start_ticks"] - 1}
    record = {"marker": "0" * 16, "starter": None, "keeper": other, "warden": other, "server": other}
    record["scratch"] = str(tmp_path / "scratch")
    (tmp_path / "record.json").write_text(json.dumps(record))
    assert processes.end_leftover(tmp_path / "record.json") == []


def test_output_goes_to_the_log_and_the_environment_and_folder_are_the_given_ones(tmp_path):
    script = (
        "import os,sys; print(os.environ['GIVEN'], os.getcwd(), 'HOME' in os.environ); print('err', file=sys.stderr)"
    )
    held = processes.start(
        [sys.executable, "-c", script], log_path=tmp_path / "logs" / "log", env={"GIVEN": "yes"}, cwd=tmp_path
    )
    assert held.wait(DEADLINE_S).exit_code == 0
    assert sorted((tmp_path / "logs" / "log").read_text().split("\n")) == sorted(["", "err", f"yes {tmp_path} False"])


def test_temporary_files_of_the_command_are_removed_with_it(tmp_path):
    script = "import tempfile; print(tempfile.mkstemp()[1])"
    held = processes.start([sys.executable, "-c", script], log_path=tmp_path / "log")
    held.wait(DEADLINE_S)
    left = Path((tmp_path / "log").read_text().strip())
    assert not left.exists() and not left.parent.exists()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_shared_memory_that_the_command_leaves_is_removed_with_it(tmp_path, end):
    script = "from multiprocessing import resource_tracker, shared_memory; import time\n"
    script += "resource_tracker.register = lambda *_: None; time.sleep(2.5)\n"  # long after it was started
    script += (
        "shared = shared_memory.SharedMemory(create=True, size=4096); print(shared.name, flush=True); time.sleep(600)"
    )
    others = shared_memory.SharedMemory(create=True, size=4096)
    with processes.start([sys.executable, "-c", script], log_path=tmp_path / "log", grace_s=1) as held:
        _until(lambda: (tmp_path / "log").read_text().endswith("\n"))
        left = Path("/dev/shm") / (tmp_path / "log").read_text().strip()
        assert left.exists()
        if end == "kill":
            time.sleep(1)  # the supervisor is told that something was made there
            os.kill(held.pid, signal.SIGKILL)
            held.wait(DEADLINE_S)
    assert not left.exists()
    assert (Path("/dev/shm") / others.name).exists()
    others.close()
    others.unlink()


def test_what_is_made_in_a_folder_is_told_and_what_goes_is_not(tmp_path):
    news = supervise._news_of(tmp_path)
    assert news is not None and supervise._news_of(tmp_path / "missing") is None
    made = tmp_path / "made"
    made.touch()
    assert select.select([news], [], [], DEADLINE_S)[0]
    os.read(news, 4096)
    made.unlink()
    assert not select.select([news], [], [], 0)[0]
    os.close(news)


def test_a_log_without_end_stays_within_its_bound(tmp_path):
    limit = 1 << 16
    script = "import sys\nfor n in range(100_000): print('line', n)"
    held = processes.start([sys.executable, "-c", script], log_path=tmp_path / "log", log_limit_bytes=limit)
    held.wait(60)
    first, second = (tmp_path / "log.1").read_text(), (tmp_path / "log").read_text()
    assert len(first) + len(second) <= 2 * limit + 100
    lines = (first + second).splitlines()
    assert lines[-1] == "line 99999"
    assert lines == [f"line {n}" for n in range(100_000 - len(lines), 100_000)]


@given(chunks=st.lists(st.binary(max_size=300).map(lambda data: data.replace(b"\r", b"\n")), max_size=60))
def test_a_bounded_log_keeps_the_end_of_what_was_written(chunks):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        log = BoundedLog(path, 1000)
        for chunk in chunks:
            log.write(chunk)
        older = path.with_name("log.1")
        kept = (older.read_bytes() if older.exists() else b"") + path.read_bytes()
    written = b"".join(chunks)
    assert written.endswith(kept)
    assert kept == written or len(kept) >= 1000


def test_a_line_longer_than_the_log_is_cut_rather_than_kept(tmp_path):
    log = BoundedLog(tmp_path / "log", 1000)
    for _ in range(100):
        log.write(b"x" * 5000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * (1000 + 65536 + 5000)


def test_a_full_disk_drops_lines_and_says_so_when_there_is_room_again(tmp_path, monkeypatch):
    log = BoundedLog(tmp_path / "log", 1 << 20)
    log.write(b"before\n")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    log.write(b"lost\n")
    monkeypatch.setattr(os, "write", write)
    log.write(b"after\n")
    text = (tmp_path / "log").read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "5 bytes are missing here" in text
    assert "lost" not in text
