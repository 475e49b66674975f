"""The commands gates, patch and revert on bad input: one clear line, exit 2, and nothing changed."""

from __future__ import annotations

import contextlib
import io
import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from breakeven import cli, config, fusion, gates, machine  # noqa: F401 (another user could not read them from disk)
from breakeven.gates.facts import DEFAULT_TP
from tests.confined import confined
from tests.gates_miniature import Miniature
from tests.package_index import index_in, wheel

BOTH = pytest.mark.parametrize("command", ["gates", "patch"])


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BREAKEVEN_CACHE", str(tmp_path / "cache"))
    return Miniature().write(tmp_path / "site")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return index_in(tmp_path, monkeypatch)


def run(*arguments: str) -> tuple[int, str, str]:
    """The command's exit status, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.main(list(arguments))
    return status, out.getvalue(), err.getvalue()


def run_confined(*arguments: str) -> tuple[int, str, str]:
    """The same in a process that permissions bind, also where the tests run as root."""
    status, out, err = json.loads(confined(lambda: json.dumps(run(*arguments))))
    return status, out, err


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    found = (path for path in folder.rglob("*") if path.is_file() and "index" not in path.parts)
    return {str(path.relative_to(folder)): (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) for path in found}


def refused(answer: tuple[int, str, str]) -> str:
    """The one line of a command that was given bad input."""
    status, out, err = answer
    assert (status, out) == (2, "")
    assert err.startswith("breakeven: ")
    assert err.count("\n") == 1
    return err


def no_sglang(site: Path) -> None:
    for path in sorted((site / "sglang").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()


def syntax_error(site: Path) -> None:
    file = site / "sglang/srt/layers/fusion_ops.py"
    file.write_text(file.read_text() + "\ndef broken(:\n")


@BOTH
@pytest.mark.parametrize(
    ("damage", "words"), [(no_sglang, "holds no sglang package"), (syntax_error, "fusion_ops.py:23 is no valid Python")]
)
def test_a_folder_that_can_not_be_read_as_sglang(
    site: Path, tmp_path: Path, command: str, damage: Callable[[Path], None], words: str
) -> None:
    damage(site)
    before = files(tmp_path)
    assert words in refused(run(command, "--arch", "sm120", "--sglang", str(site), "--flashinfer", str(site)))
    assert files(tmp_path) == before


@BOTH
def test_a_truncated_wheel(index: Path, site: Path, tmp_path: Path, command: str) -> None:
    path = wheel(index / "sglang-1.2.3-py3-none-any.whl")
    path.write_bytes(path.read_bytes()[:-200])
    before = files(tmp_path)
    refused(run(command, "--arch", "sm120", "--sglang", "pypi:1.2.3", "--json"))
    assert files(tmp_path) == before


@BOTH
def test_a_release_that_does_not_exist(index: Path, site: Path, tmp_path: Path, command: str) -> None:
    wheel(index / "sglang-1.2.3-py3-none-any.whl")
    before = files(tmp_path)
    assert "no release 9.9" in refused(run(command, "--arch", "sm120", "--sglang", "pypi:9.9"))
    assert files(tmp_path) == before


@BOTH
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--arch", "h100"), "'h100' is no GPU architecture"),
        (("--sglang", "/nowhere"), "/nowhere does not exist"),
        (("--sglang", __file__), "is a file"),
        (("--sglang", "pypi:../x"), "names no release"),
        (("--flashinfer", "/nowhere"), "/nowhere does not exist"),
    ],
)
def test_arguments_that_name_nothing(site: Path, command: str, arguments: tuple[str, str], words: str) -> None:
    given = {"--arch": "sm120", "--sglang": str(site), **dict([arguments])}
    assert words in refused(run(command, *(text for pair in given.items() for text in pair)))


def shut(*folders: Path, mode: int) -> None:
    """Folders that may not be written (0o555), or not even be looked into (0)."""
    for folder in folders:
        folder.chmod(mode)


@BOTH
def test_a_folder_without_permission_to_read(site: Path, tmp_path: Path, command: str) -> None:
    folder = site / "sglang/srt/layers"
    shut(folder, mode=0)
    said = refused(run_confined(command, "--arch", "sm120", "--sglang", str(site), "--flashinfer", str(site)))
    folder.chmod(0o755)
    assert f"{folder} can't be read: Permission denied" in said
    assert not (tmp_path / "cache").exists()


def test_patch_and_revert_without_permission_to_write(site: Path) -> None:
    patch = ("patch", "--arch", "sm120", "--sglang", str(site), "--flashinfer", str(site), "--mode", "in-place")
    folders = [path for path in (site, *site.rglob("*")) if path.is_dir()]
    shut(*folders, mode=0o555)
    before = files(site)
    assert "can't be written (Permission denied); nothing was changed" in refused(run_confined(*patch))
    assert files(site) == before
    for folder in folders:
        folder.chmod(0o755)
    assert run(*patch)[0] == 0
    shut(*folders, site / ".breakeven-fusion", mode=0o555)
    changed = files(site)
    assert "can't be written (Permission denied)" in refused(run_confined("revert", str(site)))
    assert files(site) == changed
    for folder in folders:
        folder.chmod(0o755)
    assert run("revert", str(site))[0] == 0
    assert files(site) == before


def test_an_overlay_that_may_not_be_written(site: Path, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    shut(tmp_path / "closed", mode=0o555)
    out = tmp_path / "closed" / "overlay"
    answer = run_confined("patch", "--sglang", str(site), "--flashinfer", str(site), "--out", str(out))
    assert "the overlay can't be made" in refused(answer)
    assert list((tmp_path / "closed").iterdir()) == []


@pytest.mark.parametrize("content", ["", "{}", '{"schema_version": 1}', "no JSON"])
def test_revert_of_a_folder_with_another_record(tmp_path: Path, content: str) -> None:
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "record.json").write_text(content)
    before = files(tmp_path)
    refused(run("revert", str(tmp_path / "overlay")))
    assert files(tmp_path) == before


def test_revert_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert "is a file" in refused(run("revert", str(tmp_path / "file")))


def test_the_answers_in_json_and_in_words(site: Path, tmp_path: Path) -> None:
    where = ("--arch", "sm120", "--sglang", str(site), "--flashinfer", str(site))
    status, out, err = run("gates", *where, "--json")
    verdict = json.loads(out)
    assert (status, err, verdict["verdict"]) == (0, "", "denied-by-sglang")
    assert (verdict["context"]["tp"], verdict["context"]["assumed"]) == (8, ["tp"])
    assert "Judged for TP 8, since none was named." in run("gates", *where)[1]
    assert "since none was named" not in run("gates", *where, "--tp", "2")[1]
    change = json.loads(run("patch", *where, "--out", str(tmp_path / "overlay"), "--json")[1])
    assert (change["status"], change["verdict_after"]) == ("changed", "runs")
    assert json.loads(run("revert", str(tmp_path / "overlay"), "--json")[1])["status"] == "reverted"
    assert not (tmp_path / "overlay").exists()


def test_one_tensor_parallel_size_is_assumed_everywhere() -> None:
    assert config.GateSettings.model_fields["gate_tp"].default == DEFAULT_TP == gates.make_context("sm120").tp


def test_what_the_launch_closes_is_not_put_down_to_the_gpu() -> None:
    """An installed SGLang lets sm90 through; deterministic inference, or one GPU, closes fusion all the same."""
    for arguments, words in (
        (["--deterministic"], "with these settings SGLang leaves the fused all-reduce off on sm90"),
        (["--tp", "1"], "not used at TP 1, whatever the GPU"),
    ):
        status, text, _ = run("gates", "--arch", "sm90", *arguments)
        assert status == 0
        assert words in text
        assert "keeps sm90 out" not in text
