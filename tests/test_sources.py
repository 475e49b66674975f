"""Finding sources: folders, releases, and everything that can be wrong with them."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from breakeven.errors import UserError
from breakeven.sources import archives, fetching, open_source, pinned_flashinfer, trees
from tests.package_index import METADATA, index_in, wheel


def package(root: Path, name: str = "sglang") -> Path:
    (root / name / "srt").mkdir(parents=True)
    (root / name / "__init__.py").write_text("")
    (root / name / "srt" / "server_args.py").write_text("x = 1\n")
    return root


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return index_in(tmp_path, monkeypatch)


@pytest.mark.parametrize("layout", ["site-packages", "checkout", "package folder"])
def test_a_folder_is_opened_in_each_of_its_usual_layouts(tmp_path: Path, layout: str) -> None:
    root = package(tmp_path / "python" if layout == "checkout" else tmp_path)
    source = open_source("sglang", str(root / "sglang" if layout == "package folder" else tmp_path))
    assert source.root == root
    assert source.folder.name == "sglang"


def test_the_version_and_the_pinned_flashinfer_come_from_the_metadata(tmp_path: Path) -> None:
    package(tmp_path)
    info = tmp_path / "sglang-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    source = open_source("sglang", str(tmp_path))
    assert (source.version, pinned_flashinfer(source)) == ("1.2.3", "0.7.2")


def test_the_pin_of_a_checkout_comes_from_its_pyproject(tmp_path: Path) -> None:
    package(tmp_path / "python")
    (tmp_path / "python" / "pyproject.toml").write_text(
        '[project]\nname = "sglang"\nversion = "0.5.9"\ndependencies = ["flashinfer_python==0.6.3"]\n'
    )
    source = open_source("sglang", str(tmp_path))
    assert (source.version, pinned_flashinfer(source)) == ("0.5.9", "0.6.3")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path / "nowhere", "does not exist"),
        (lambda path: path, "holds no sglang package"),
        (lambda path: Path(__file__), "is a file"),
    ],
)
def test_what_is_no_source_is_refused_in_one_line(tmp_path: Path, make, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UserError, match=words) as caught:
        open_source("sglang", str(make(tmp_path)))
    assert "\n" not in str(caught.value)


def test_an_unreadable_folder_says_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path)

    def refuse(path: object) -> list[str]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(trees.os, "listdir", refuse)
    with pytest.raises(UserError, match="permission denied"):
        open_source("sglang", str(tmp_path))


def test_a_release_is_fetched_once_and_read_without_being_installed(index: Path, tmp_path: Path) -> None:
    wheel(index / "sglang-1.2.3-py3-none-any.whl", {"sglang/data.bin": "x", "sglang/test/t.py": ""})
    first = open_source("sglang", "pypi:1.2.3", cache=tmp_path / "cache")
    (index / "sglang-1.2.3-py3-none-any.whl").unlink()
    assert open_source("sglang", "pypi:1.2.3", cache=tmp_path / "cache") == first
    names = sorted(path.relative_to(first.root).as_posix() for path in first.root.rglob("*") if path.is_file())
    assert names == ["sglang-1.2.3.dist-info/METADATA", "sglang/__init__.py", "sglang/srt/a.py"]


def test_a_damaged_cache_is_fetched_again(index: Path, tmp_path: Path) -> None:
    wheel(index / "sglang-1.2.3-py3-none-any.whl")
    first = open_source("sglang", "pypi:1.2.3", cache=tmp_path / "cache")
    (first.root / "sglang" / "srt" / "a.py").write_text("changed")
    again = open_source("sglang", "pypi:1.2.3", cache=tmp_path / "cache")
    assert (again.root / "sglang" / "srt" / "a.py").read_text() == "x = 1\n"


@pytest.mark.parametrize("damage", ["truncated", "leads outside"])
def test_a_bad_wheel_is_refused_and_leaves_the_cache_as_it_was(index: Path, tmp_path: Path, damage: str) -> None:
    path = wheel(index / "sglang-1.2.3-py3-none-any.whl", {"../../evil.py": "x"} if damage == "leads outside" else None)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UserError) as caught:
        open_source("sglang", "pypi:1.2.3", cache=tmp_path / "cache")
    assert "\n" not in str(caught.value)
    assert not [path for path in tmp_path.rglob("*") if path.name == "evil.py"]
    assert list((tmp_path / "cache" / "sources").iterdir()) == []


def test_a_release_that_does_not_exist_is_named(index: Path, tmp_path: Path) -> None:
    wheel(index / "sglang-1.2.3-py3-none-any.whl")
    with pytest.raises(UserError, match=r"sglang has no release 9\.9"):
        open_source("sglang", "pypi:9.9", cache=tmp_path / "cache")


def test_a_cache_that_cant_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(UserError, match="can't be written"):
        open_source("sglang", "pypi:1.2.3", cache=tmp_path / "cache")


def test_links_and_outward_names_in_an_archive_are_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "sglang-1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("sglang-1/sglang/__init__.py")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    with pytest.raises(UserError, match="holds no sglang package"):
        archives.unpack("sglang", path, tmp_path / "tree")


def test_the_interpreter_s_own_pip_is_used(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index / "sglang-1.2.3-py3-none-any.whl")
    commands: list[list[str]] = []
    real = subprocess.run

    def spy(command: list[str], **options):  # type: ignore[no-untyped-def]
        commands.append(command)
        return real(command, **options)

    monkeypatch.setattr(fetching.subprocess, "run", spy)
    open_source("sglang", "pypi:1.2.3", cache=tmp_path / "cache")
    assert commands[0][:3] == [sys.executable, "-m", "pip"]
    assert "--no-deps" in commands[0]


def test_what_lies_beside_a_folder_is_found_and_nothing_beside_a_cached_release(index: Path, tmp_path: Path) -> None:
    source = open_source("sglang", str(package(tmp_path / "site")))
    assert trees.lying_beside("flashinfer", source) is None
    (tmp_path / "site/flashinfer/comm").mkdir(parents=True)
    (tmp_path / "site/flashinfer/_build_meta.py").write_text('__version__ = "0.7.2"\n')
    beside = trees.lying_beside("flashinfer", source)
    assert beside is not None
    assert (beside.version, beside.root) == ("0.7.2", tmp_path / "site")
    wheel(index / "sglang-1.2.3-py3-none-any.whl")
    release = open_source("sglang", "pypi:1.2.3", cache=tmp_path / "cache")
    assert trees.lying_beside("flashinfer", release) is None


def test_a_folder_that_is_only_called_sglang_is_none(tmp_path: Path) -> None:
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").write_text("")
    with pytest.raises(UserError, match=r"holds no sglang package; expected sglang/srt in it"):
        open_source("sglang", str(tmp_path))
