"""A package index in a folder, so that releases can be fetched in a test without any registry."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

METADATA = "Metadata-Version: 2.1\nName: sglang\nVersion: 1.2.3\nRequires-Dist: flashinfer_python[cu13]==0.7.2\n"


def wheel(path: Path, extra: dict[str, str] | None = None) -> Path:
    """A wheel of SGLang 1.2.3 with next to nothing in it, and the ``extra`` files."""
    files = {
        "sglang/__init__.py": "",
        "sglang/srt/a.py": "x = 1\n",
        "sglang-1.2.3.dist-info/METADATA": METADATA,
        "sglang-1.2.3.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
        "sglang-1.2.3.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, **(extra or {})}.items():
            archive.writestr(name, text)
    return path


def index_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes releases from, instead of any registry."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in list(os.environ):
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder
