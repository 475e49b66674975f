"""The runner: what it calls each way of failing, what it keeps, and that nothing runs on after it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from breakeven import config, machine
from tests.conftest import Suite, lay_out_suite, run_cli, start_cli

pytestmark = pytest.mark.process

NAMES = list(config.NOTEBOOKS)


def status_of(root: Path) -> dict:
    return json.loads((root / "outputs/run/run.json").read_text())


def wait_for(path: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


def processes_mentioning(root: Path) -> list[str]:
    """Command lines of living processes that were started below this folder."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline", "cwd", "status"]):
        text = " ".join(process.info["cmdline"] or [])
        if str(root) in text or (process.info["cwd"] or "").startswith(str(root)):
            found.append(text)
    return found


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One whole run, started from a subfolder, whose first notebook prints something hostile."""
    root = lay_out_suite(tmp_path_factory.mktemp("suite"), n01="print('<img src=x onerror=alert(2)>')")
    return root, run_cli(root / "notebooks", "run", str(root / "parameters/short.yaml"))


WholeRun = tuple[Path, subprocess.CompletedProcess[str]]


def test_a_whole_run_exits_0_and_prints_its_report_last(whole_run: WholeRun) -> None:
    root, done = whole_run
    assert done.returncode == 0, done.stderr
    report = Path(done.stdout.strip().splitlines()[-1])
    assert report == root / "outputs/run/report/index.html" and "whole run" in report.read_text()
    status = status_of(root)
    assert status["status"] == "whole"
    assert [each["exit_class"] for each in status["notebooks"].values()] == ["ok"] * 5
    assert all("Title of" in (report.parent / f"{name}.html").read_text() for name in NAMES)


def test_a_run_shows_which_notebook_and_cell_it_is_at_and_what_the_cell_prints(whole_run: WholeRun) -> None:
    _, done = whole_run
    assert "01_read_gating: cell 4/4: print(" in done.stderr
    assert "01_read_gating: <img src=x" in done.stderr


@pytest.mark.parametrize(
    ("body", "exit_class", "words"),
    [
        ("raise ValueError('two\\nlines')", "cell-error", "ValueError: two lines"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "dead-kernel", "Kernel died"),
        ("import time; time.sleep(60)", "timeout", "--cell-timeout"),
        ("import sys; sys.exit(3)", "cell-error", "SystemExit"),
        ("raise OSError(28, 'No space left on device')", "disk-full", "No space left"),
        ("raise OSError(122, 'Disk quota exceeded')", "disk-full", "Disk quota exceeded"),
    ],
)
def test_a_failure_is_classified_and_stops_the_run_there(suite: Suite, body: str, exit_class: str, words: str) -> None:
    root = suite(n01=body)
    done = run_cli(root, "run", "parameters/short.yaml", "--cell-timeout", "5")
    assert done.returncode == 1
    notebooks = status_of(root)["notebooks"]
    assert [each["exit_class"] for each in notebooks.values()] == [exit_class, *["not-run"] * 4]
    assert notebooks[NAMES[0]]["failing_cell"] == 4
    assert words in notebooks[NAMES[0]]["error"] and "\n" not in notebooks[NAMES[0]]["error"]
    index = (root / "outputs/run/report/index.html").read_text()
    assert "This run is not whole." in index and exit_class in index
    assert f"{NAMES[0]}, cell 4 ended with {exit_class}" in done.stdout


def test_a_missing_kernel_is_its_own_class(suite: Suite) -> None:
    root = suite()
    path = root / "notebooks" / f"{NAMES[0]}.ipynb"
    book = nbformat.read(path, as_version=4)
    book.metadata.kernelspec.name = "no-such-kernel"
    nbformat.write(book, path)
    assert run_cli(root, "run", "parameters/short.yaml").returncode == 1
    assert status_of(root)["notebooks"][NAMES[0]]["exit_class"] == "no-kernel"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_interrupt_ends_the_kernel_records_it_and_publishes(suite: Suite, number: signal.Signals) -> None:
    root = suite(n01="from pathlib import Path; import time; Path('begun').touch(); time.sleep(120)")
    process = start_cli(root, "run", "parameters/short.yaml")
    wait_for(root / "begun")
    process.send_signal(number)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 1, err
    assert status_of(root)["notebooks"][NAMES[0]]["exit_class"] == "interrupted"
    assert "This run is not whole." in (root / "outputs/run/report/index.html").read_text()
    assert processes_mentioning(root) == []


def test_a_full_disk_is_told_and_what_exists_is_kept(suite: Suite) -> None:
    root = suite(n02="from breakeven import artifacts; artifacts.write_bytes(run_dir_path(), b'0' * 10_000_000)")
    path = root / "notebooks" / f"{NAMES[1]}.ipynb"
    path.write_text(path.read_text().replace("run_dir_path()", "artifacts.run_folder(run_dir) / 'big'"))
    (root / "outputs").mkdir()
    script = (
        f"mount -t tmpfs -o size=2m tmpfs outputs && "
        f"{{ {sys.executable} -m breakeven.cli run parameters/short.yaml; echo $? > code; cp -r outputs/run kept; }}"
    )
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    subprocess.run(["unshare", "--mount", *rights, "sh", "-c", script], cwd=root, check=True, timeout=120)
    assert (root / "code").read_text().strip() == "1"
    notebooks = json.loads((root / "kept/run.json").read_text())["notebooks"]
    assert notebooks[NAMES[1]]["exit_class"] == "disk-full"
    assert notebooks[NAMES[0]]["exit_class"] == "ok" and (root / "kept/notebooks" / f"{NAMES[0]}.ipynb").exists()


def test_a_full_disk_at_the_start_is_one_line(suite: Suite) -> None:
    root = suite()
    (root / "outputs").mkdir()
    run = f"{sys.executable} -m breakeven.cli run parameters/short.yaml 2>said; echo $? > code; ls -A outputs/run >left"
    rights = [] if os.geteuid() == 0 else ["--map-root-user"]
    mount = f"mount -t tmpfs -o size=100k tmpfs outputs && {{ {run}; }}"
    subprocess.run(["unshare", "--mount", *rights, "sh", "-c", mount], cwd=root, check=True, timeout=120)
    said = (root / "said").read_text()
    assert (root / "code").read_text().strip() == "2" and len(said.strip().splitlines()) == 1
    assert "No space left on device; make room" in said
    assert (root / "left").read_text() == ""


def test_a_resumed_run_does_only_what_is_missing(suite: Suite) -> None:
    root = suite(
        n01="open('first', 'a').write('x')", n02="from pathlib import Path; assert Path('mended').exists(), 'not yet'"
    )
    assert run_cli(root, "run", "parameters/short.yaml").returncode == 1
    (root / "mended").touch()
    done = run_cli(root, "run", "--resume", "outputs/run")
    assert done.returncode == 0, done.stderr
    assert status_of(root)["status"] == "whole" and (root / "first").read_text() == "x"


def test_a_run_that_was_moved_goes_on_where_it_is_now(suite: Suite) -> None:
    root = suite(n01="from pathlib import Path; (Path(run_dir) / 'here').touch(); assert Path('mended').exists()")
    assert run_cli(root, "run", "parameters/short.yaml").returncode == 1
    (root / "outputs/run").rename(root / "outputs/moved")
    (root / "outputs/moved/here").unlink()
    (root / "mended").touch()
    done = run_cli(root, "run", "--resume", "outputs/moved")
    assert done.returncode == 0 and done.stdout.strip() == str(root / "outputs/moved/report/index.html"), done.stderr
    assert (root / "outputs/moved/here").exists() and not (root / "outputs/run").exists()


def test_a_runner_that_is_killed_takes_its_kernel_along_and_its_run_goes_on(suite: Suite) -> None:
    pause = "Path('mended').exists() or time.sleep(120)"
    begin = "import time; from pathlib import Path; Path('begun').touch()"
    root = suite(n01="open('first', 'a').write('x')", n02=f"{begin}; {pause}")
    process = start_cli(root, "run", "parameters/short.yaml")
    wait_for(root / "begun")
    process.kill()
    process.communicate(timeout=30)
    deadline = time.monotonic() + 30
    while processes_mentioning(root):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    (root / "mended").touch()
    done = run_cli(root, "run", "--resume", "outputs/run")
    assert done.returncode == 0, done.stderr
    assert status_of(root)["status"] == "whole" and (root / "first").read_text() == "x"


def test_two_runners_never_work_on_one_run(suite: Suite) -> None:
    root = suite(n01="from pathlib import Path; import time; Path('begun').touch(); time.sleep(120)")
    process = start_cli(root, "run", "parameters/short.yaml")
    wait_for(root / "begun")
    before = (root / "outputs/run/run.json").read_bytes()
    done = run_cli(root, "run", "--resume", "outputs/run")
    assert done.returncode == 2 and "is under way in another process" in done.stderr
    assert (root / "outputs/run/run.json").read_bytes() == before and process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=90)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"environment": {"host": "elsewhere"}}, "another machine"),
        ({"environment": {"gpus": [{"name": "NVIDIA H200", "driver": "570.1"}]}}, "(gpus differ)"),
        ({"parameters": {"restrats": 3}}, "did you mean 'restarts'"),
        ({"parameters": {"restarts": "few"}}, "expected integer"),
        ({"parameters": None}, "lacks parameters"),
        ({"notebooks": []}, "lacks notebooks"),
        ({"schema_version": 7}, "schema_version 7"),
        ({"status": "whole"}, "nothing to resume"),
        (None, "can't be read"),
    ],
)
def test_a_run_that_can_not_be_gone_on_with_is_refused_in_one_line(
    suite: Suite, changes: dict[str, Any] | None, words: str
) -> None:
    root = suite()
    file = root / "outputs/run/run.json"
    file.parent.mkdir(parents=True)
    content = {"schema_version": 1, "status": "incomplete", "parameters": {}, "notebooks": {}, **(changes or {})}
    content["environment"] = {**machine.describe(root), **content.get("environment", {})}
    file.write_text(json.dumps(content)[: None if changes else 50])
    before = file.read_bytes()
    done = run_cli(root, "run", "--resume", "outputs/run")
    assert done.returncode == 2 and words in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert file.read_bytes() == before and list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "parameters/shrot.yaml"], "did you mean 'short.yaml'"),
        (["run", "parameters/short.yaml", "-p", "restrats=3"], "did you mean 'restarts'"),
        (["run", "parameters/short.yaml", "-p", "restarts=few"], "expected integer"),
        (["run"], "breakeven run parameters/cpu.yaml"),
        (["run", "parameters/short.yaml", "-p", "drafters=[{algoritm: NGRAM}]"], "did you mean 'algorithm'"),
        (["run", "parameters/short.yaml", "-p", "run_dir="], "give the folder of a run"),
        (["run", "parameters/short.yaml", "-p", "run_dir=."], "is the suite's own folder"),
        (["run", "--resume", "outputs/none"], "no run to resume"),
        (["publish", "outputs/none"], "no run folder"),
        (["publish", "."], "is the suite's own folder"),
    ],
)
def test_bad_input_is_one_line_and_exit_2_before_anything_is_written(
    suite: Suite, arguments: list[str], words: str
) -> None:
    root = suite()
    before = sorted(root.rglob("*"))
    done = run_cli(root, *arguments)
    assert done.returncode == 2 and words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(root.rglob("*")) == before


def test_a_notebook_without_its_parameters_cell_is_refused_before_a_kernel_starts(suite: Suite) -> None:
    root = suite()
    path = root / "notebooks" / f"{NAMES[4]}.ipynb"
    path.write_text(path.read_text().replace('"parameters"', '"other"'))
    done = run_cli(root, "run", "parameters/short.yaml")
    assert done.returncode == 2 and "exactly one" in done.stderr
    assert not list((root / "outputs/run").glob("notebooks/*"))


def test_a_run_never_writes_over_another(whole_run: WholeRun) -> None:
    root, _ = whole_run
    done = run_cli(root, "run", "parameters/short.yaml")
    assert done.returncode == 2 and "already holds a run" in done.stderr


def test_an_error_with_hostile_text_is_shown_as_text(suite: Suite) -> None:
    root = suite(n01="raise ValueError('<script>alert(1)</script>')")
    run_cli(root, "run", "parameters/short.yaml")
    assert_harmless(root / "outputs/run/report")


def test_no_page_of_a_report_runs_a_script_or_asks_for_anything_from_outside(whole_run: WholeRun) -> None:
    root, _ = whole_run
    assert_harmless(root / "outputs/run/report")


def assert_harmless(report: Path) -> None:
    """No script but the page's own, which the page's policy names by its hash; nothing fetched from anywhere."""
    pages = list(report.glob("*.html"))
    assert pages
    for page in pages:
        text = page.read_text()
        (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"script-src &#39;sha256-{digest}&#39;" in text and "default-src &#39;none&#39;" in text
        assert text.count("<script") == 1
        assert not re.search(r"<img src=x|<link|(?:src|href|url)\W{1,2}https?:", text), page


@pytest.fixture(autouse=True)
def _tools() -> None:
    assert shutil.which("unshare"), "util-linux is needed"
