"""A page as PDF, by the print function of a Chromium or Chrome that is installed; nothing else is needed for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from breakeven import artifacts
from breakeven.errors import UserError

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
TIMEOUT_S = 120


def find_browser() -> str:
    """The path of a browser that prints. Raises UserError where there is none."""
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    raise UserError(
        f"a PDF needs one of {', '.join(BROWSERS)} on the PATH; without any, open the report and print it to a file"
    )


def print_page(page: Path, target: Path) -> Path:
    """Print an HTML file. Raises UserError when the browser fails or writes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        printed = Path(folder) / "page.pdf"
        command = [
            find_browser(),
            "--headless",
            "--disable-gpu",
            f"--user-data-dir={folder}/profile",
            "--no-pdf-header-footer",
            f"--print-to-pdf={printed}",
            page.resolve().as_uri(),
        ]
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")  # Chromium refuses its sandbox to root; the page is our own and inert
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise UserError(f"{command[0]} did not print {page.name} within {TIMEOUT_S} s") from None
        if not printed.exists():
            said = " ".join(done.stderr.split())[-300:]
            raise UserError(f"{command[0]} printed nothing (exit {done.returncode}): {said}")
        return artifacts.write_bytes(target, printed.read_bytes())
