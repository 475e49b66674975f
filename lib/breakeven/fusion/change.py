"""The change as a whole: read the gates, edit the closed ones, prove it on paper, and only then write it."""

from __future__ import annotations

import difflib
import re
import shlex
from collections import defaultdict
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from breakeven import artifacts, gates
from breakeven.errors import UserError
from breakeven.fusion import record, static
from breakeven.fusion.edit import MULTICAST_COMMENT, Target, UnexpectedSourceError, open_gates
from breakeven.fusion.grades import all_grades
from breakeven.fusion.record import ChangedFile
from breakeven.fusion.shapes import ARCH_NUMBER, MULTICAST_QUERY
from breakeven.gates.archs import ARCHS, capability, family, name_of
from breakeven.sources import Source, python_files
from breakeven.sources.archives import is_needed

MODES = ("overlay", "in-place")
WHY_THIS_WAY = {
    "overlay": "an overlay: in every process it is there before any module of SGLang is imported. A plugin of SGLang's "
    "would come too late: some gates are decided at import, before plugins load",
    "in-place": "in place, as asked for: the installed files are changed, with backups",
}
MULTICAST_WHY = (
    "the preflight asks the driver for multicast, which GPUs without NVLink lack, and gives fusion up without it; "
    "FlashInfer's trtllm workspace does not use multicast"
)
AUTO_ENABLE_STAYS = (
    "left closed on purpose: fusion stays something that is asked for by its flag, so two arms differ in that alone "
    "(a proposal to enable it by itself on SM12x was withdrawn after a regression at TP4)"
)

PREFLIGHT_STAYS = "left as it is: it is written in another way than expected, and may give fusion up without multicast"


def patch(
    arch: str,
    sglang: str = "installed",
    flashinfer: str | None = None,
    *,
    mode: str = "overlay",
    dry_run: bool = False,
    force: bool = False,
    out: Path | None = None,
) -> dict[str, Any]:
    """Admit an architecture (and the others of its major version) at every SGLang gate that keeps fusion from it.

    ``sglang`` and ``flashinfer`` are sources as in ``open_source``; FlashInfer's default is what SGLang pins. ``out``
    is the overlay's folder (default: one in the cache that is named after the change). The outcome is data, ``status``:

    * ``changed``: written (or, with ``dry_run``, what would be): ``edits``, ``diff``, ``files`` with hashes, ``path``,
      ``revert`` (the command that takes it back).
    * ``already-open``: nothing to change, or the overlay is there already.
    * ``refused``, with ``reasons``: FlashInfer has no kernel for it (``force`` overrides), the source is not as
      expected, or the changed source would not be judged as it should. Nothing is written.

    Raises UserError for bad input and where something can't be written, with nothing changed.
    """
    arch = name_of(*capability(arch))
    if mode not in MODES:
        raise UserError(f"mode {mode!r} is none of {', '.join(MODES)}")
    if mode == "in-place" and sglang.startswith("pypi:"):
        raise UserError(f"{sglang} is a cached release that nobody runs; in-place takes 'installed' or a folder")
    opened = gates.Reading.of(sglang, flashinfer)
    source = opened.sglang
    reading = opened.judge(gates.make_context(arch))
    archs = list(dict.fromkeys([*ARCHS, arch]))
    change: dict[str, Any] = {
        "schema_version": artifacts.SCHEMA_VERSION,
        "status": "refused",
        "reasons": [],
        "arch": arch,
        "admits": [other for other in archs if family(other) == family(arch)],
        "mode": mode,
        "why_this_way": WHY_THIS_WAY[mode],
        "dry_run": dry_run,
        "forced": force,
        "sglang": {"version": source.version, "origin": source.origin, "root": str(source.root)},
        "flashinfer": reading["flashinfer"],
        "flag": reading.get("flag"),
        "option": reading.get("option"),
        "verdict_before": reading["verdict"],
        "verdict_after": None,
        "edits": [],
        "left": [],
        "diff": "",
        "files": [],
        "proof": all_grades([]),
        "path": None,
        "revert": None,
    }
    status, reasons = _may_change(source, reading, force)
    if status:
        return change | {"status": status, "reasons": reasons}
    try:
        changed, edits = _edit(source, reading, arch)
    except UnexpectedSourceError as error:
        return change | {"reasons": [f"the source of SGLang {source.version} is not as expected: {error}"]}
    before = static.judge_all(opened, archs, {arch: reading})
    after = static.judge_all(opened.changed({file.file: file.after for file in changed}), archs)
    proof = static.prove_static(before, after, change["admits"], forced=force)
    change |= {
        "edits": edits,
        "left": _left_alone(reading, changed),
        "diff": "".join(_diff(file) for file in changed),
        "proof": all_grades([proof]),
        "verdict_after": after[arch]["verdict"],
    }
    if not proof["proven"]:
        return change | {"reasons": ["the changed source would not be judged as it should", *proof["because"]]}
    return change | _write(change, source, changed, out)


def revert(path: Path) -> dict[str, Any]:
    """Take a change back, byte for byte: ``path`` is an overlay, or the folder of a package changed in place.

    Returns ``{"status": "reverted" | "nothing-to-do" | "refused", "path", "mode", "files", "reasons", "text"}``;
    refuses, touching nothing, where a file was edited since. Works on a change that was cut short, and twice. Raises
    UserError for a path that is a file, and where something can't be written.
    """
    try:
        outcome = record.take_back(path)
    except OSError as error:
        what = f"{error.filename or path}: {error.strerror}"
        raise UserError(f"{path} can't be taken back ({what}); mend that and run the same command again") from None
    said = {
        "reverted": f"Taken back: {path} is as it was before the change.",
        "nothing-to-do": "Nothing to take back: " + "; ".join(outcome["reasons"]) + ".",
        "refused": "Refused, nothing was touched: " + "; ".join(outcome["reasons"]) + ".",
    }
    return {"schema_version": artifacts.SCHEMA_VERSION, **outcome, "text": said[outcome["status"]]}


def _may_change(source: Source, reading: dict[str, Any], force: bool) -> tuple[str | None, list[str]]:
    """Why there is nothing to write, as a status and reasons; (None, []) where there is."""
    version, flashinfer = f"SGLang {source.version}", f"FlashInfer {reading['flashinfer']['version']}"
    recorded = (source.root / record.IN_PLACE_FOLDER).is_dir()
    take_back = f"breakeven revert {shlex.quote(str(source.root))}"
    by_a_change = f" (by a change in place, which {take_back} takes back)" if recorded else ""
    verdict, arch = reading["verdict"], reading["arch"]
    if verdict == "runs":
        return "already-open", [f"{version} lets {arch} through already{by_a_change}"]
    if verdict == "absent":
        return "refused", [f"{version} has no fused all-reduce to open"]
    if verdict in ("crashes", "denied-by-flashinfer"):
        return "refused", [
            f"{version} lets {arch} through already{by_a_change}, and {flashinfer} has no kernel for it: it takes "
            "another FlashInfer, not a change to SGLang"
        ]
    if recorded:
        return "refused", [f"a change in place was cut short in {source.root}; first take it back: {take_back}"]
    if verdict == "denied-by-both" and not force:
        return "refused", [
            f"{flashinfer} has no kernel for {arch} either: opening SGLang would only turn a slow path into a crash. "
            "Name a FlashInfer that has one (for SM12x 0.6.17 or later), or force it"
        ]
    return None, []


def _edit(source: Source, reading: dict[str, Any], arch: str) -> tuple[list[ChangedFile], list[dict[str, Any]]]:
    """The changed files and the edits. Raises UnexpectedSourceError with the file's name."""
    targets: dict[str, list[Target]] = defaultdict(list)
    for gate in _to_open(reading):
        why = f"it keeps {arch} out: {'; '.join(gate['because'])}"
        targets[gate["file"]].append(Target(gate["symbol"], gate["expression"], gate["line"], why))
    changed, edits = [], []
    for file, wanted in targets.items():
        content = source.read(file)
        try:
            after, made = open_gates(content, family(arch), wanted, multicast_why=MULTICAST_WHY)
        except UnexpectedSourceError as error:
            raise UnexpectedSourceError(f"{file}: {error}") from None
        if after != content:
            changed.append(ChangedFile(file, content, after))
            edits += [{"file": file, **asdict(edit)} for edit in made]
    _check_questions_exist(source, edits)
    if not changed:
        raise UnexpectedSourceError(f"no closed gate of SGLang was found for {arch}")
    return changed, edits


def _check_questions_exist(source: Source, edits: list[dict[str, Any]]) -> None:
    """Every question that the edits now ask must be one that the release knows: it stands somewhere in it already."""
    asked = {name for edit in edits for name in re.findall(r"(?<![\w])is_sm\d+\w*", edit["after"])}
    unknown = asked - {name for edit in edits for name in re.findall(r"(?<![\w])is_sm\d+\w*", edit["before"])}
    for file in filter(partial(is_needed, "sglang"), python_files(source) if unknown else ()):
        text = source.read(file).decode("utf-8", errors="replace")
        unknown = {name for name in unknown if not re.search(rf"\b{name}\b", text)}
        if not unknown:
            return
    if unknown:
        raise UnexpectedSourceError(f"this release has no {', '.join(sorted(unknown))} to ask")


def _to_open(reading: dict[str, Any]) -> list[dict[str, Any]]:
    """The places of SGLang that keep the architecture from the kernel, once fusion was asked for; each once.

    A gate that is closed for another reason than the architecture is not for this change: if it matters, the proof on
    paper fails and says so.
    """
    auto = {_place(gate) for gate in reading["gates"] if _is_auto(gate)}
    closed = {_place(gate): gate for gate in reading["gates"] if _is_closed(gate) and _is_about_the_gpu(gate, reading)}
    return [gate for place, gate in closed.items() if place not in auto]


def _is_closed(gate: dict[str, Any]) -> bool:
    return bool(gate["package"] == "sglang" and gate["result"] == "closed")


def _is_auto(gate: dict[str, Any]) -> bool:
    return "auto" in gate["id"]


def _is_about_the_gpu(gate: dict[str, Any], reading: dict[str, Any]) -> bool:
    return bool(ARCH_NUMBER.search(gate["expression"])) or any(reading["arch"] in reason for reason in gate["because"])


def _place(gate: dict[str, Any]) -> tuple[str, int, str]:
    return gate["file"], gate["line"], gate["expression"]


def _left_alone(reading: dict[str, Any], changed: list[ChangedFile]) -> list[dict[str, Any]]:
    """What stays as it is although it may keep fusion off, and why."""
    closed = [gate for gate in reading["gates"] if _is_closed(gate) and _is_auto(gate)]
    left = [
        {"file": gate["file"], "symbol": gate["symbol"], "line": gate["line"], "why": AUTO_ENABLE_STAYS}
        for gate in closed
    ]
    query = MULTICAST_QUERY.encode()
    for file in changed:
        lines = [number for number, line in enumerate(file.before.splitlines(), 1) if query in line]
        if lines and MULTICAST_COMMENT.encode() not in file.after:
            left.append({"file": file.file, "symbol": MULTICAST_QUERY, "line": lines[0], "why": PREFLIGHT_STAYS})
    return left


def _write(change: dict[str, Any], source: Source, changed: list[ChangedFile], out: Path | None) -> dict[str, Any]:
    """Write the change, unless it is a dry run; what is then known besides."""
    files = [
        {
            "file": one.file,
            "module": one.module,
            "sha256_before": record.sha256(one.before),
            "sha256_after": record.sha256(one.after),
        }
        for one in changed
    ]
    overlay = out or _default_overlay(source, change["arch"], files)
    path = overlay if change["mode"] == "overlay" else source.root
    done = {
        "status": "changed",
        "files": files,
        "path": str(path),
        "revert": f"breakeven revert {shlex.quote(str(path))}",
    }
    if change["dry_run"]:
        return done | {"path": None, "revert": None}
    about = {key: change[key] for key in ("arch", "admits", "sglang", "flashinfer", "edits")}
    if change["mode"] == "in-place":
        record.write_in_place(source.root, changed, about)
    elif not record.write_overlay(overlay, changed, about):
        return done | {"status": "already-open", "reasons": [f"{overlay} holds exactly this change already"]}
    return done


def _default_overlay(source: Source, arch: str, files: list[dict[str, str]]) -> Path:
    """A folder in the cache, named after the change: the same change finds its folder again."""
    digest = record.sha256("".join(file["sha256_before"] + file["sha256_after"] for file in files).encode())[:8]
    name = re.sub(r"[^\w.+-]", "-", f"sglang-{source.version}-{family(arch)}-{digest}")
    return artifacts.cache_root() / "overlays" / name


def _diff(file: ChangedFile) -> str:
    before, after = (
        content.decode("utf-8", "replace").splitlines(keepends=True) for content in (file.before, file.after)
    )
    return "".join(difflib.unified_diff(before, after, f"a/{file.file}", f"b/{file.file}"))
