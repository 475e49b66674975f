"""The overlay folder at work: real interpreters, started with it on PYTHONPATH, importing a small package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from breakeven.fusion import record
from breakeven.fusion.record import ChangedFile

MODULE = "sglang.srt.layers.gate"
FILE = "sglang/srt/layers/gate.py"
SAY_GATE = f"import {MODULE} as gate; print(gate.VALUE, gate.__file__)"
IN_A_CHILD = """
import multiprocessing, sys

def child():
    import sglang.srt.layers.gate as gate
    print("child", gate.VALUE, flush=True)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with a package ``sglang`` whose gate is closed."""
    folder = tmp_path / "site"
    for name in ("sglang", "sglang/srt", "sglang/srt/layers"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("")
    (folder / FILE).write_text("from sglang.srt.layers import other\nVALUE = 'closed'\n")
    (folder / "sglang/srt/layers/other.py").write_text("VALUE = 'as it was'\n")
    return folder


@pytest.fixture
def overlay(site: Path, tmp_path: Path) -> Path:
    """An overlay that opens the gate of ``site``."""
    before = (site / FILE).read_bytes()
    folder = tmp_path / "overlay"
    record.write_overlay(folder, [ChangedFile(FILE, before, before.replace(b"closed", b"open"))], {})
    return folder


def run(*path: Path, code: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, *options, "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )


def test_the_changed_module_is_served_from_the_overlay_and_says_so(site: Path, overlay: Path) -> None:
    done = run(overlay, site, code=SAY_GATE)
    changed = overlay / "changed" / FILE
    assert done.stdout.split() == ["open", str(changed)]
    assert f"imports {MODULE} from {changed}" in done.stderr


def test_every_other_module_comes_from_the_package(site: Path, overlay: Path) -> None:
    done = run(overlay, site, code="import sglang.srt.layers.other as other; print(other.__file__)")
    assert done.stdout.strip() == str(site / "sglang/srt/layers/other.py")
    assert done.stderr == ""


def test_a_spawned_child_process_gets_the_changed_module_too(site: Path, overlay: Path, tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(IN_A_CHILD)
    environment = {**os.environ, "PYTHONPATH": f"{overlay}{os.pathsep}{site}"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["child", "open"]


@pytest.mark.parametrize("overlay_first", [True, False])
def test_it_works_in_any_order_with_another_folder_that_stands_in_for_a_package(
    site: Path, overlay: Path, tmp_path: Path, overlay_first: bool
) -> None:
    stand_in = tmp_path / "stand-in"
    (stand_in / "sgl_kernel").mkdir(parents=True)
    (stand_in / "sgl_kernel" / "__init__.py").write_text("NAME = 'stand-in'\n")
    order = (overlay, stand_in, site) if overlay_first else (stand_in, overlay, site)
    done = run(*order, code=f"import sgl_kernel, {MODULE} as gate; print(sgl_kernel.NAME, gate.VALUE)")
    assert done.stdout.split() == ["stand-in", "open"]


def test_a_sitecustomize_that_it_hides_is_run(site: Path, overlay: Path) -> None:
    (site / "sitecustomize.py").write_text("import sys\nsys.site_was_customized = True\n")
    done = run(overlay, site, code=f"import sys, {MODULE} as gate; print(sys.site_was_customized, gate.VALUE)")
    assert done.stdout.split() == ["True", "open"]


def test_two_overlays_one_after_the_other_do_not_call_each_other_for_ever(
    site: Path, overlay: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other-overlay"
    before = (site / "sglang/srt/layers/other.py").read_bytes()
    record.write_overlay(other, [ChangedFile("sglang/srt/layers/other.py", before, b"VALUE = 'changed'\n")], {})
    code = f"import {MODULE} as gate; print(gate.VALUE, gate.other.VALUE)"
    assert run(overlay, other, site, code=code).stdout.split() == ["open", "changed"]
    assert run(other, overlay, site, code=code).stdout.split() == ["open", "changed"]


def test_an_installed_file_that_changed_since_stops_the_import_of_the_package(site: Path, overlay: Path) -> None:
    (site / FILE).write_text("VALUE = 'upgraded'\n")
    done = run(overlay, site, code="import sglang")
    assert done.returncode != 0
    assert f"OverlayMismatchError: breakeven overlay: {site / FILE} is not the file" in done.stderr
    assert "breakeven patch" in done.stderr


def test_a_changed_file_that_was_edited_stops_the_import_too(site: Path, overlay: Path) -> None:
    (overlay / "changed" / FILE).write_text("VALUE = 'by hand'\n")
    assert "OverlayMismatchError" in run(overlay, site, code="import sglang").stderr


def test_a_record_that_can_not_be_read_stops_the_import_too(site: Path, overlay: Path) -> None:
    (overlay / "record.json").write_text("{")
    done = run(overlay, site, code="import sglang")
    assert done.returncode != 0
    assert "record.json can't be read" in done.stderr


def test_a_program_without_the_package_notices_nothing(overlay: Path) -> None:
    done = run(overlay, code="import json; print('fine')")
    assert (done.stdout.strip(), done.stderr) == ("fine", "")


def test_a_taken_back_overlay_serves_nothing_and_leaves_nothing(site: Path, overlay: Path) -> None:
    run(overlay, site, code=SAY_GATE)  # leaves compiled files behind
    assert record.take_back(overlay)["status"] == "reverted"
    assert not overlay.exists()
    assert run(overlay, site, code=SAY_GATE).stdout.split() == ["closed", str(site / FILE)]
