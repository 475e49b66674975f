"""What ``patch`` decides, on a small package and with a reader of gates that knows just that package."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from breakeven import fusion, gates
from breakeven.errors import UserError
from breakeven.fusion import record
from breakeven.gates import ARCHS
from breakeven.gates.archs import name_of
from breakeven.gates.facts import Context
from breakeven.sources import Source, open_source

PREDICATE = "sglang/srt/layers/add_norm.py"
RESOLVER = "sglang/srt/layers/comm.py"
AUTO = "sglang/srt/server_args.py"
TREE = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/layers/__init__.py": "",
    "sglang/srt/utils.py": "\n".join(f"def is_{arch}_supported(): ..." for arch in ("sm90", "sm100", "sm120")),
    PREDICATE: """from sglang.srt.utils import is_sm90_supported, is_sm100_supported

_is_sm90 = is_sm90_supported()
_is_sm100 = is_sm100_supported()


def fusion_applies(batch_size: int):
    return (_is_sm90 or _is_sm100) and batch_size > 0
""",
    RESOLVER: """from sglang.srt.utils import is_sm90_supported, is_sm100_supported


def resolve_backend(backend: str):
    if not (is_sm90_supported() or is_sm100_supported()):
        raise ValueError("no")
    return "trtllm"
""",
    AUTO: """from sglang.srt.utils import is_sm90_supported


def auto_enable(args):
    return args.tp_size > 1 and is_sm90_supported()
""",
    "sglang-1.2.3.dist-info/METADATA": "Name: sglang\nVersion: 1.2.3\nRequires-Dist: flashinfer_python==0.7.2\n",
}
GATES = [
    ("sglang.auto-enable", AUTO, "auto_enable", "args.tp_size > 1 and is_sm90_supported()"),
    ("sglang.runtime", PREDICATE, "fusion_applies", "_is_sm90 or _is_sm100"),
    ("sglang.backend", RESOLVER, "resolve_backend", "is_sm90_supported() or is_sm100_supported()"),
]


@dataclass
class SmallReading:
    """Reads the small package: a gate is open where its function, or a name it uses, asks for the architecture."""

    sglang: Source
    flashinfer: str | None
    files: dict[str, str]

    @classmethod
    def of(cls, sglang: str, flashinfer: str | None = None) -> SmallReading:
        source = open_source("sglang", sglang)
        return cls(source, flashinfer, {file: (source.root / file).read_text() for _, file, _, _ in GATES})

    def changed(self, files: dict[str, bytes]) -> SmallReading:
        return replace(self, files=self.files | {file: content.decode() for file, content in files.items()})

    def judge(self, context: Context) -> dict[str, Any]:
        return judged(name_of(*context.capability), self.files, self.flashinfer)


def judged(arch: str, files: dict[str, str], flashinfer: str | None) -> dict[str, Any]:
    version = "0.7.2" if flashinfer is None else flashinfer.removeprefix("pypi:")
    available = arch in ("sm90", "sm100", "sm103") or (arch in ("sm120", "sm121") and version >= "0.6.17")
    asks_for = {"sm103": "sm100", "sm121": "sm120"}.get(arch, arch)
    found = []
    for name, file, symbol, expression in GATES:
        body = next(node for node in ast.parse(files[file]).body if getattr(node, "name", "") == symbol)
        is_open = f"{asks_for}" in ast.unparse(body)
        result = "open" if is_open else "closed"
        where = {"package": "sglang", "file": file, "line": body.lineno + 1, "symbol": symbol, "expression": expression}
        found.append(
            {
                "id": name,
                **where,
                "result": result,
                "because": [f"`{expression}` is {is_open} on {arch}"],
                "depends_on": [],
            }
        )
    admitted = all(gate["result"] == "open" for gate in found[1:])
    denied = "denied-by-sglang" if available else "denied-by-both"
    verdict = ("runs" if available else "crashes") if admitted else denied
    return {
        "arch": arch,
        "sglang": {"version": "1.2.3"},
        "flashinfer": {"version": version, "why": "given" if flashinfer else "pinned"},
        "auto_enabled": "yes" if found[0]["result"] == "open" else "no",
        "admitted": "yes" if admitted else "no",
        "available": "yes" if available else "no",
        "backend": "trtllm" if admitted else None,
        "verdict": verdict,
        "gates": found,
    }


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site"
    for name, text in TREE.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(gates, "Reading", SmallReading)
    monkeypatch.setenv("BREAKEVEN_CACHE", str(tmp_path / "cache"))
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_overlay_admits_the_family_and_says_what_why_and_how_to_undo(site: Path, tmp_path: Path) -> None:
    before = contents(site)
    change = fusion.patch("sm121", str(site), out=tmp_path / "overlay")
    assert (change["status"], change["admits"]) == ("changed", ["sm120", "sm121"])
    assert (change["verdict_before"], change["verdict_after"]) == ("denied-by-sglang", "runs")
    assert {edit["file"] for edit in change["edits"]} == {PREDICATE, RESOLVER}
    assert all(edit["why"] and edit["line"] and edit["after"] for edit in change["edits"])
    assert "+    return (_is_sm90 or _is_sm100 or _is_sm120) and batch_size > 0" in change["diff"].splitlines()
    assert change["path"] == str(tmp_path / "overlay")
    assert change["revert"] == f"breakeven revert {tmp_path / 'overlay'}"
    assert contents(site) == before
    assert (tmp_path / "overlay" / "changed" / PREDICATE).read_text().count("sm120") == 4


def test_the_auto_enable_rule_stays_closed_and_that_is_said(site: Path) -> None:
    change = fusion.patch("sm120", str(site))
    assert [gate["symbol"] for gate in change["left"]] == ["auto_enable"]
    assert "on purpose" in change["left"][0]["why"]


def test_a_preflight_of_another_shape_is_left_alone_and_that_is_said(site: Path) -> None:
    text = (
        site / RESOLVER
    ).read_text() + "\n\ndef preflight(driver):\n    return driver.cuMulticastGetGranularity(1)[0]\n"
    (site / RESOLVER).write_text(text)
    change = fusion.patch("sm120", str(site))
    assert change["status"] == "changed"
    assert [gate["symbol"] for gate in change["left"]] == ["auto_enable", "cuMulticastGetGranularity"]


def test_static_proof_is_reached_and_the_other_grades_are_said_to_be_open(site: Path) -> None:
    grades = {row["grade"]: row["result"] for row in fusion.patch("sm120", str(site))["proof"]}
    assert grades == {"static": "proven", "imported": "not tried", "compiled": "not tried", "active": "not tried"}


def test_hashes_before_and_after_are_those_of_the_files(site: Path, tmp_path: Path) -> None:
    change = fusion.patch("sm120", str(site), out=tmp_path / "overlay")
    for file in change["files"]:
        changed = (tmp_path / "overlay" / "changed" / file["file"]).read_bytes()
        assert file["sha256_after"] == record.sha256(changed)
        assert file["sha256_before"] == record.sha256((site / file["file"]).read_bytes())


def test_a_dry_run_shows_the_same_diff_and_writes_nothing(site: Path, tmp_path: Path) -> None:
    before = contents(tmp_path)
    change = fusion.patch("sm120", str(site), dry_run=True)
    assert (change["status"], change["path"]) == ("changed", None)
    assert contents(tmp_path) == before
    assert fusion.patch("sm120", str(site))["diff"] == change["diff"] != ""


def test_the_same_patch_again_is_a_no_op_that_is_said(site: Path, tmp_path: Path) -> None:
    first = fusion.patch("sm120", str(site))
    before = contents(tmp_path)
    again = fusion.patch("sm120", str(site))
    assert again["status"] == "already-open"
    assert again["path"] == first["path"]
    assert "already" in fusion.explain(again)
    assert fusion.commands(again) == fusion.commands(first) != "nothing was written"
    assert any(sentence.startswith("Proven: static") for sentence in fusion.findings(again))
    assert contents(tmp_path) == before


def test_an_architecture_that_is_let_through_needs_no_change(site: Path) -> None:
    change = fusion.patch("sm90", str(site))
    assert (change["status"], change["edits"], change["diff"]) == ("already-open", [], "")


def test_without_a_kernel_it_refuses_and_force_overrides(site: Path, tmp_path: Path) -> None:
    before = contents(tmp_path)
    refused = fusion.patch("sm120", str(site), "pypi:0.6.16")
    assert refused["status"] == "refused"
    assert "FlashInfer 0.6.16 has no kernel for sm120" in refused["reasons"][0]
    assert contents(tmp_path) == before
    forced = fusion.patch("sm120", str(site), "pypi:0.6.16", force=True)
    assert (forced["status"], forced["verdict_after"]) == ("changed", "crashes")


def test_where_flashinfer_alone_is_in_the_way_not_even_force_changes_sglang(site: Path) -> None:
    change = fusion.patch("sm120", str(site), mode="in-place")
    assert change["status"] == "changed"
    for force in (False, True):
        refused = fusion.patch("sm120", str(site), "pypi:0.6.16", force=force)
        assert refused["status"] == "refused"
        assert "another FlashInfer" in refused["reasons"][0]


def test_in_place_changes_the_files_and_revert_gives_them_back(site: Path) -> None:
    before = contents(site)
    change = fusion.patch("sm120", str(site), mode="in-place")
    assert change["path"] == str(site)
    assert b"sm120" in (site / RESOLVER).read_bytes()
    assert fusion.patch("sm120", str(site), mode="in-place")["status"] == "already-open"
    outcome = fusion.revert(site)
    assert (outcome["status"], sorted(outcome["files"])) == ("reverted", sorted([PREDICATE, RESOLVER]))
    assert contents(site) == before
    assert fusion.revert(site)["status"] == "nothing-to-do"


def test_a_change_in_place_that_was_cut_short_is_refused_until_it_is_taken_back(site: Path) -> None:
    (site / ".breakeven-fusion").mkdir()
    refused = fusion.patch("sm120", str(site))
    assert refused["status"] == "refused"
    assert f"breakeven revert {site}" in refused["reasons"][0]
    fusion.revert(site)
    assert fusion.patch("sm120", str(site))["status"] == "changed"


def test_a_gate_of_another_shape_is_refused_with_its_place(site: Path) -> None:
    text = (site / RESOLVER).read_text()
    (site / RESOLVER).write_text(text.replace("is_sm90_supported() or is_sm100_supported()", "device in KNOWN"))
    before = contents(site)
    refused = fusion.patch("sm120", str(site))
    assert refused["status"] == "refused"
    assert f"{RESOLVER}: resolve_backend" in refused["reasons"][0]
    assert contents(site) == before


def test_an_architecture_that_the_release_can_not_ask_for_is_refused(site: Path) -> None:
    (site / "sglang/srt/utils.py").write_text("def is_sm90_supported(): ...\ndef is_sm100_supported(): ...\n")
    refused = fusion.patch("sm120", str(site))
    assert refused["status"] == "refused"
    assert "has no is_sm120_supported" in refused["reasons"][0]


def test_a_change_that_would_move_another_verdict_is_not_written(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sees_more(self: SmallReading, context: Context) -> dict[str, Any]:
        arch = name_of(*context.capability)
        moved = arch == "sm110" and "sm120" in self.files[RESOLVER]
        return judged(arch, self.files, self.flashinfer) | ({"verdict": "crashes"} if moved else {})

    monkeypatch.setattr(SmallReading, "judge", sees_more)
    before = contents(tmp_path)
    refused = fusion.patch("sm120", str(site))
    assert refused["status"] == "refused"
    assert "sm110: verdict went from denied-by-both to crashes" in refused["reasons"]
    assert contents(tmp_path) == before


def test_static_proof_compares_every_architecture(site: Path) -> None:
    readings = {arch: SmallReading.of(str(site)).judge(gates.make_context(arch)) for arch in ARCHS}
    assert fusion.prove_static(readings, readings, ["sm120", "sm121"])["proven"] is False
    assert fusion.prove_static(readings, readings, ["sm90"])["proven"] is True


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"arch": "hopper"}, "no GPU architecture"),
        ({"mode": "plugin"}, "overlay, in-place"),
        ({"sglang": "/nowhere"}, "does not exist"),
        ({"sglang": "pypi:0.5.23", "mode": "in-place"}, "cached release"),
    ],
)
def test_bad_input_is_one_line(site: Path, arguments: dict[str, str], said: str) -> None:
    given = {"arch": "sm120", "sglang": str(site), **arguments}
    with pytest.raises(UserError, match=said) as caught:
        fusion.patch(given.pop("arch"), given.pop("sglang"), **given)
    assert "\n" not in str(caught.value)


def test_words_tell_the_outcome_the_use_and_the_way_back(site: Path, tmp_path: Path) -> None:
    change = fusion.patch("sm120", str(site), out=tmp_path / "overlay")
    text = fusion.explain(change)
    assert f"PYTHONPATH={tmp_path / 'overlay'}" in text
    assert change["revert"] in text
    findings = fusion.findings(change)
    assert any(sentence.startswith("Not tried: imported") for sentence in findings)
    assert "faster" in findings[-1]
    refused = fusion.patch("sm120", str(site), "pypi:0.6.16")
    assert fusion.explain(refused).startswith("Refused, nothing was changed")
