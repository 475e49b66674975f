"""From parameters to the machine that serves, and to local copies of what is read of it."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
import tempfile
import zipfile
from functools import cache
from pathlib import Path

from breakeven import artifacts
from breakeven.config import HostSettings, SourceSettings
from breakeven.errors import UserError, one_line
from breakeven.hosts import LOCAL, Host, Local
from breakeven.hosts.remote import Remote
from breakeven.hosts.ssh import Ssh
from breakeven.server import attach

_SMALL_FILE_BYTES = 64 << 20
_FIND = """import sys; sys.path.pop(0)  # the working directory
from importlib.util import find_spec
print(*(getattr(find_spec(sys.argv[1]), "submodule_search_locations", None) or [])[:1])"""
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".msgpack", ".h5")


def open_host(settings: HostSettings) -> Host:
    """The machine of the parameters, with the Python that they name; LOCAL where that is this one, or a server is only
    attached to.

    Raises UserError for what is no destination, for no Python, and for a prefix that can't be held from here.
    """
    if settings.host == "local" or settings.host.startswith(attach.PREFIX):
        if settings.command_prefix[:1] in (["docker"], ["podman"], ["kubectl"]):
            raise UserError(
                f"command_prefix: {settings.command_prefix[0]} starts processes that are no children of it and would "
                "outlive the run; give host as an SSH destination (localhost will do), and it is held from within"
            )
        return LOCAL if settings.host != "local" else _with_python(settings.python, tuple(settings.command_prefix))
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
def _with_python(python: str, prefix: tuple[str, ...]) -> Local:
    """This machine with one of its Pythons. The same program in another folder is another environment's."""
    found = python if prefix else shutil.which(python)
    if python != "auto" and found is None:
        raise UserError(f"python is {python!r}, which can't be run; give the interpreter of SGLang, or auto")
    if python == "auto" or (not prefix and _is_this_python(Path(str(found)).absolute())):
        return LOCAL
    return Local(python, prefix)


def _is_this_python(program: Path) -> bool:
    this = Path(sys.executable)
    return program.parent == this.parent and program.samefile(this)


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
    if isinstance(host, Local) and host is not LOCAL and spec == "installed":
        return _folder_of(host, package)
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


def _folder_of(host: Local, package: str) -> str:
    """Where another Python of this machine would import a package from."""
    done = host.run([*host.prefix, host.python, "-c", _FIND, package], timeout_s=60)
    if not done.stdout.strip():
        raise UserError(f"{host.python} has no {package} (installed); give another python, a folder, or pypi:VERSION")
    return done.stdout.strip()


def tokenizer_folder(host: Host, model: Path, run_dir: Path) -> Path:
    """A folder of this machine with all of a model but its weights. Raises UserError where there is no such model."""
    if not host.size(model / "config.json"):
        raise UserError(f"model: {model} of {host.name} holds no config.json; give a model's folder there, or embedded")
    if isinstance(host, Local):
        return model
    folder = run_dir / "model-without-weights"
    small = [name for name in host.names(model) if host.size(model / name) < _SMALL_FILE_BYTES]
    wanted = [name for name in small if not name.endswith(_WEIGHTS)]
    for name in wanted:
        artifacts.write_bytes(folder / name, host.read(model / name))
    for name in set(LOCAL.names(folder)) - set(wanted):  # of a model that this run folder served before
        LOCAL.remove(folder / name)
    return folder
