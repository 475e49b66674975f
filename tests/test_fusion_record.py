"""A change on disk: made whole, found again, taken back byte for byte, whatever interrupts it."""

import os
import shutil
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from breakeven.errors import UserError
from breakeven.fusion import record
from breakeven.fusion.record import ChangedFile
from tests.confined import confined

NAMES = ["sglang/srt/a.py", "sglang/srt/layers/b.py", "sglang/c.py"]
OPERATIONS = ["replace", "mkdir", "unlink", "rmdir", "utime", "chmod"]


def package(parent: Path, contents: dict[str, bytes]) -> list[ChangedFile]:
    """A package with these files, and the change that appends a line to each."""
    changed = []
    for name, content in contents.items():
        (parent / name).parent.mkdir(parents=True, exist_ok=True)
        (parent / name).write_bytes(content)
        changed.append(ChangedFile(name, content, content + b"\n# opened\n"))
    return changed


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a folder, hidden ones too: its bytes and its mode."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(file.relative_to(folder)): (file.read_bytes(), stat.S_IMODE(file.stat().st_mode)) for file in files}


def killed_after(count: int, action: Callable[[], object]) -> bool:
    """Run an action in a child that is killed before its ``count``-th file operation; False if it got through."""
    child = os.fork()
    if child == 0:
        left = [count]
        for name in OPERATIONS:
            setattr(os, name, _counted(getattr(os, name), left))
        os.fsync = _counted(lambda file: None, left)  # the disk need not be waited for
        try:
            action()
        finally:
            os._exit(0)  # whatever was raised: this is no second test runner
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def _counted(operation: Callable[..., object], left: list[int]) -> Callable[..., object]:
    def counted(*args: object, **kwargs: object) -> object:
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return operation(*args, **kwargs)

    return counted


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site"


CONTENTS = st.dictionaries(st.sampled_from(NAMES), st.binary(max_size=200), min_size=1)


@settings(max_examples=40)
@given(contents=CONTENTS, change_kill=st.integers(0, 40), revert_kills=st.lists(st.integers(0, 25), max_size=3))
def test_in_place_comes_back_byte_for_byte_wherever_it_is_killed(
    tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes], change_kill: int, revert_kills: list[int]
) -> None:
    site = tmp_path_factory.mktemp("site")
    changed = package(site, contents)
    before = tree(site)
    through = not killed_after(change_kill, lambda: record.write_in_place(site, changed, {}))
    after_bytes = {file.file: file.after for file in changed}
    for name, content in contents.items():
        assert (site / name).read_bytes() in (content, after_bytes[name])
        assert not through or (site / name).read_bytes() == after_bytes[name]
    for kill in revert_kills:
        killed_after(kill, lambda: record.take_back(site))
    assert record.take_back(site)["status"] in ("reverted", "nothing-to-do")
    assert tree(site) == before
    assert record.take_back(site)["status"] == "nothing-to-do"


@settings(max_examples=25)
@given(contents=CONTENTS, change_kill=st.integers(0, 12), revert_kills=st.lists(st.integers(0, 10), max_size=3))
def test_an_overlay_is_gone_after_revert_wherever_it_is_killed(
    tmp_path_factory: pytest.TempPathFactory, contents: dict[str, bytes], change_kill: int, revert_kills: list[int]
) -> None:
    home = tmp_path_factory.mktemp("home")
    changed = package(home / "site", contents)
    before = tree(home)
    overlay = home / "overlay"
    killed = killed_after(change_kill, lambda: record.write_overlay(overlay, changed, {}))
    assert overlay.exists() != killed
    for kill in revert_kills:
        killed_after(kill, lambda: record.take_back(overlay))
    assert record.take_back(overlay)["status"] in ("reverted", "nothing-to-do")
    assert tree(home) == before


def test_in_place_keeps_mode_and_time_and_gives_both_back(site: Path) -> None:
    changed = package(site, {NAMES[0]: b"x = 1\n"})
    file = site / NAMES[0]
    file.chmod(0o444)
    os.utime(file, ns=(10**18, 10**18))
    record.write_in_place(site, changed, {})
    assert stat.S_IMODE(file.stat().st_mode) == 0o444
    record.take_back(site)
    assert (stat.S_IMODE(file.stat().st_mode), file.stat().st_mtime_ns) == (0o444, 10**18)


@pytest.mark.parametrize("which", [0, 1])
def test_revert_refuses_and_touches_nothing_when_a_file_was_edited_since(site: Path, which: int) -> None:
    changed = package(site, {NAMES[0]: b"x = 1\n", NAMES[1]: b"y = 2\n"})
    record.write_in_place(site, changed, {})
    edited = site / NAMES[which]
    edited.write_bytes(edited.read_bytes() + b"# by hand\n")
    before = tree(site)
    outcome = record.take_back(site)
    assert outcome["status"] == "refused"
    assert str(edited) in outcome["reasons"][0]
    assert tree(site) == before


def test_revert_refuses_an_overlay_that_was_edited_or_holds_something_of_yours(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    record.write_overlay(overlay, package(site, {NAMES[0]: b"x = 1\n"}), {})
    (overlay / "changed" / NAMES[0]).write_bytes(b"x = 3\n")
    (overlay / "notes.txt").write_text("mine")
    before = tree(overlay)
    outcome = record.take_back(overlay)
    assert outcome["status"] == "refused"
    assert len(outcome["reasons"]) == 2
    assert tree(overlay) == before


def test_the_same_overlay_again_is_a_no_op_and_another_one_is_refused(site: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay"
    changed = package(site, {NAMES[0]: b"x = 1\n"})
    assert record.write_overlay(overlay, changed, {})
    before = tree(overlay)
    assert not record.write_overlay(overlay, changed, {})
    with pytest.raises(UserError, match="holds something else"):
        record.write_overlay(overlay, [ChangedFile(NAMES[0], b"x = 1\n", b"x = 2\n")], {})
    assert tree(overlay) == before


def test_an_overlay_leaves_the_package_untouched(site: Path, tmp_path: Path) -> None:
    changed = package(site, {name: name.encode() for name in NAMES})
    before = tree(site)
    record.write_overlay(tmp_path / "overlay", changed, {})
    record.take_back(tmp_path / "overlay")
    assert tree(site) == before


def test_a_second_change_in_place_is_refused_until_the_first_is_taken_back(site: Path) -> None:
    changed = package(site, {NAMES[0]: b"x = 1\n"})
    record.write_in_place(site, changed, {})
    again = [ChangedFile(NAMES[0], changed[0].after, b"x = 5\n")]
    with pytest.raises(UserError, match="holds a change already"):
        record.write_in_place(site, again, {})
    assert (site / NAMES[0]).read_bytes() == changed[0].after


def test_a_file_that_is_a_link_is_not_changed_in_place(site: Path, tmp_path: Path) -> None:
    changed = package(site, {NAMES[0]: b"x = 1\n"})
    shared = tmp_path / "shared.py"
    shutil.move(site / NAMES[0], shared)
    (site / NAMES[0]).symlink_to(shared)
    with pytest.raises(UserError, match="link"):
        record.write_in_place(site, changed, {})
    assert shared.read_bytes() == b"x = 1\n"


def test_a_file_that_changed_meanwhile_is_not_overwritten(site: Path) -> None:
    changed = package(site, {NAMES[0]: b"x = 1\n"})
    (site / NAMES[0]).write_bytes(b"x = 9\n")
    with pytest.raises(UserError, match="changed while"):
        record.write_in_place(site, changed, {})
    assert (site / NAMES[0]).read_bytes() == b"x = 9\n"


def test_a_full_disk_half_way_leaves_the_package_as_it_was(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = package(site, {NAMES[0]: b"x = 1\n", NAMES[1]: b"y = 1\n"})
    before = tree(site)
    replace = os.replace

    def fails_on_the_second_file(source: Path, target: Path) -> None:
        if Path(target) == site / NAMES[1] and b"opened" in Path(source).read_bytes():
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fails_on_the_second_file)
    with pytest.raises(UserError, match="No space left"):
        record.write_in_place(site, changed, {})
    assert tree(site) == before


def close(*folders: Path) -> None:
    """Folders that nobody may write."""
    for folder in folders:
        folder.chmod(0o555)


def refused(action: Callable[[], object]) -> str:
    """The UserError's text of something that a process runs which permissions bind."""

    def run() -> str:
        try:
            action()
        except UserError as error:
            return str(error)
        return "no error"

    return confined(run)


def test_in_place_without_permission_says_so_and_leaves_nothing_behind(
    site: Path,
) -> None:
    changed = package(site, {NAMES[0]: b"x = 1\n"})
    close(site, (site / NAMES[0]).parent)
    before = tree(site)
    said = refused(lambda: record.write_in_place(site, changed, {}))
    assert "can't be written (Permission denied); nothing was changed" in said
    assert "overlay" in said
    assert tree(site) == before


def test_revert_without_permission_says_so_and_leaves_the_change(
    site: Path,
) -> None:
    changed = package(site, {NAMES[0]: b"x = 1\n"})
    record.write_in_place(site, changed, {})
    close(site, (site / NAMES[0]).parent)
    before = tree(site)
    assert "can't be written" in refused(lambda: record.take_back(site))
    assert tree(site) == before


def test_an_overlay_where_nothing_may_be_written_is_an_error_in_one_line(site: Path, tmp_path: Path) -> None:
    changed = package(site, {NAMES[0]: b"x = 1\n"})
    (tmp_path / "closed").mkdir()
    close(tmp_path / "closed")
    said = refused(lambda: record.write_overlay(tmp_path / "closed" / "overlay", changed, {}))
    assert "can't be made" in said
    assert "\n" not in said
    assert list((tmp_path / "closed").iterdir()) == []


def test_revert_of_a_place_without_a_change_is_no_error_but_a_file_is(tmp_path: Path) -> None:
    assert record.take_back(tmp_path)["status"] == "nothing-to-do"
    assert record.take_back(tmp_path / "gone")["status"] == "nothing-to-do"
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        record.take_back(tmp_path / "file")


def test_a_record_of_something_else_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text('{"schema_version": 1}')
    with pytest.raises(UserError, match="no record of a change"):
        record.take_back(tmp_path)


def test_an_overlay_is_taken_back_by_a_relative_path_too(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.write_overlay(tmp_path / "overlay", package(site, {NAMES[0]: b"x = 1\n"}), {})
    monkeypatch.chdir(tmp_path / "overlay")
    assert record.take_back(Path())["status"] == "reverted"
    assert not (tmp_path / "overlay").exists()


def test_a_module_is_named_by_its_path() -> None:
    assert ChangedFile("sglang/srt/layers/a.py", b"", b"").module == "sglang.srt.layers.a"
    assert ChangedFile("sglang/srt/utils/__init__.py", b"", b"").module == "sglang.srt.utils"
