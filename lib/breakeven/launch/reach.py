"""From parameters to the machine that serves, and to local copies of what is read of it."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import tempfile
import zipfile
from functools import cache
from pathlib import Path

from breakeven import artifacts
from breakeven.config import HostSettings, SourceSettings
from breakeven.errors import UserError, one_line
from breakeven.hosts import LOCAL, Host
from breakeven.hosts.remote import Remote
from breakeven.hosts.ssh import Ssh
from breakeven.server import attach

_SMALL_FILE_BYTES = 64 << 20
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".msgpack", ".h5")


def open_host(settings: HostSettings) -> Host:
    """The machine of the parameters; where a server is only attached to, files and commands are this machine's.

    Raises UserError for what is no destination, and for a prefix that can't be held from here.
    """
    if settings.host == "local" or settings.host.startswith(attach.PREFIX):
        if settings.command_prefix[:1] in (["docker"], ["podman"], ["kubectl"]):
            raise UserError(
                f"command_prefix: {settings.command_prefix[0]} starts processes that are no children of it and would "
                "outlive the run; give host as an SSH destination (localhost will do), and it is held from within"
            )
        return LOCAL
    python = "python3" if settings.python == "auto" else settings.python
    return _remote(settings.host, python, tuple(settings.command_prefix), settings.secret_env)


def greet(settings: HostSettings) -> None:
    """Reach what the parameters name, before anything else. Raises UserError, in one line, where that fails."""
    try:
        if settings.host.startswith(attach.PREFIX):
            attach.look_at(settings.host.removeprefix(attach.PREFIX))
        else:
            open_host(settings).environ()
    except OSError as error:
        raise UserError(f"host: {one_line(error)}") from None


@cache
def _remote(destination: str, python: str, prefix: tuple[str, ...], secret_env: str) -> Remote:
    """One connection per machine and process."""
    return Remote(Ssh(destination, secret_env), python=python, prefix=prefix)


def sources_on_host(settings: SourceSettings) -> tuple[str, str | None]:
    """SGLang's and FlashInfer's source as ``open_source`` takes them, fetched where they are another machine's.

    ``installed`` and folders are the host's own; releases and what is pinned are read here.
    """
    host = open_host(settings)
    return _fetched(host, "sglang", settings.sglang), (
        None if settings.flashinfer == "pinned" else _fetched(host, "flashinfer", settings.flashinfer)
    )


def _fetched(host: Host, package: str, spec: str) -> str:
    if not isinstance(host, Remote) or spec.startswith("pypi:"):
        return spec
    content = host.package(package, None if spec == "installed" else spec)
    if not content:
        raise UserError(f"{host.name} has no {package} ({spec}); give python, a folder there, or pypi:VERSION")
    digest = hashlib.sha256(content).hexdigest()[:16]
    folder = artifacts.cache_root() / "sources" / f"{package}-of-a-host-{digest}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".fetching-"))
        try:
            zipfile.ZipFile(io.BytesIO(content)).extractall(fresh)
            fresh.chmod(0o755)
            os.replace(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return str(folder)


def tokenizer_folder(host: Host, model: Path, run_dir: Path) -> Path:
    """A folder of this machine with all of a model but its weights. Raises UserError where there is no such model."""
    if not host.size(model / "config.json"):
        raise UserError(f"model: {model} of {host.name} holds no config.json; give a model's folder there, or embedded")
    if host is LOCAL:
        return model
    folder = run_dir / "model-without-weights"
    for name in host.names(model):
        if not name.endswith(_WEIGHTS) and host.size(model / name) < _SMALL_FILE_BYTES:
            artifacts.write_bytes(folder / name, host.read(model / name))
    return folder
