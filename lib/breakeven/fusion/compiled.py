"""Proof by compiler: FlashInfer's own build of its all-reduce kernels for an architecture, without the GPU.

FlashInfer compiles ``trtllm_comm`` when it is first used. Told by ``FLASHINFER_CUDA_ARCH_LIST`` which GPU to build for,
it does the same without one: it refuses in its own words, or nvcc shows that the kernel exists for that architecture.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from breakeven import artifacts, sources
from breakeven.errors import UserError
from breakeven.fusion.grades import graded
from breakeven.gates.archs import capability

MODULE = "trtllm_comm"
BUILD = """
import json
from flashinfer.jit.comm import gen_trtllm_comm_module
spec = gen_trtllm_comm_module()
spec.build(verbose=True)
print("BUILT " + json.dumps(str(spec.jit_library_path)))
"""


def prove_compiled(
    arch: str,
    flashinfer: str = "installed",
    *,
    cache: Path | None = None,
    build: bool = True,
    progress: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> dict[str, Any]:
    """Have FlashInfer build its all-reduce module for ``arch``; ``flashinfer`` is a source as in ``open_source``.

    Minutes the first time (about 6 on 2 cores for one architecture); a success is remembered in the cache by FlashInfer
    version, architecture and CUDA version, and ``build=False`` asks for that alone. ``progress`` gets the compiler's
    lines. Not proven, with FlashInfer's or nvcc's words, where it refuses; not tried (None) where there is no nvcc.
    Raises UserError for an unknown source.
    """
    cache = cache or artifacts.cache_root()
    cuda_home = find_cuda_home()
    if cuda_home is None:
        return _outcome(None, ["no nvcc here: set CUDA_HOME to a CUDA toolkit with its headers, or put nvcc on PATH"])
    if flashinfer.startswith("pypi:") and not build:
        root, version = None, flashinfer.removeprefix("pypi:")
    else:
        root, version = _whole_package(flashinfer, cache)
    cuda = _cuda_version(cuda_home)
    about: dict[str, Any] = {"flashinfer": version, "arch": arch, "cuda": cuda, "module": MODULE}
    remembered = cache / "compiled" / f"{MODULE}-{version}-{arch}-cuda{cuda}.json"
    if remembered.is_file():
        return artifacts.read_json(remembered) | {"remembered": True}
    if not build:
        return _outcome(None, ["not built for it before, and a build of some minutes was not asked for"], **about)
    started = time.monotonic()
    workspace = cache / "compiled" / f"flashinfer-{version}-{arch}"
    lines, exit_code = _build(arch, root, workspace, cuda_home, progress)
    about["seconds"] = round(time.monotonic() - started, 1)
    built = next((json.loads(line.removeprefix("BUILT ")) for line in lines if line.startswith("BUILT ")), None)
    if exit_code or built is None:
        return _outcome(False, [_own_words(lines)], **about)
    library = Path(built)
    targets = sorted(set(re.findall(r"code=(sm_\w+)", (library.parent / "build.ninja").read_text(encoding="utf-8"))))
    because = [f"FlashInfer {version} built {MODULE} for {', '.join(targets)} with nvcc {cuda}"]
    found = _outcome(True, because, **about, targets=targets, library_bytes=library.stat().st_size)
    artifacts.write_json(remembered, found)
    return found


def find_cuda_home() -> Path | None:
    """The CUDA toolkit: ``$CUDA_HOME``, the one that ``nvcc`` on PATH belongs to, ``/usr/local/cuda``.

    A folder counts when it has both nvcc and the headers: nvcc on PATH may be a wrapper that lives elsewhere.
    """
    on_path = shutil.which("nvcc")
    places = [Path(place) for place in (os.environ.get("CUDA_HOME", ""),) if place]
    places += [Path(on_path).resolve().parent.parent] if on_path else []
    places += [Path("/usr/local/cuda")]
    whole = [
        place for place in places if (place / "bin/nvcc").is_file() and (place / "include/cuda_runtime.h").is_file()
    ]
    return whole[0] if whole else None


def _build(
    arch: str, root: Path | None, workspace: Path, cuda_home: Path, progress: Callable[[str], None]
) -> tuple[list[str], int]:
    """Run the build in a process of its own; its output, line by line, and its exit code."""
    workspace.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {
        **({"PYTHONPATH": str(root)} if root else {}),
        "PYTHONUNBUFFERED": "1",
        "CUDA_HOME": str(cuda_home),
        "FLASHINFER_CUDA_ARCH_LIST": ".".join(map(str, capability(arch))),
        "FLASHINFER_WORKSPACE_BASE": str(workspace),
        "FLASHINFER_DISABLE_VERSION_CHECK": "1",  # the cubin package may be of another release: nothing here uses it
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    lines = []
    if ctypes.util.find_library("cuda") is None:
        environment["LIBRARY_PATH"] = str(_driver_stand_in(workspace / "driver-stand-in"))
    with subprocess.Popen(
        [sys.executable, "-c", BUILD], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        for line in process.stdout or []:
            lines.append(line.rstrip())
            progress(line.rstrip())
    return lines, process.returncode


def _driver_stand_in(folder: Path) -> Path:
    """A folder with an empty ``libcuda.so``: the build ends by linking to the driver, which comes with a GPU."""
    folder.mkdir(exist_ok=True)
    link = ["c++", "-shared", "-x", "c", os.devnull, "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so")]
    subprocess.run(link, check=True, capture_output=True)
    return folder


def _whole_package(flashinfer: str, cache: Path) -> tuple[Path | None, str]:
    """The folder to import FlashInfer from, CUDA sources and all (None: it is installed here), and its version.

    A release is unpacked whole, without its dependencies: those of the running Python serve it.
    """
    if not flashinfer.startswith("pypi:"):
        source = sources.open_source("flashinfer", flashinfer)
        return (None if flashinfer == "installed" else source.root), source.version
    version = flashinfer.removeprefix("pypi:")
    home = cache / "packages" / f"flashinfer-python-{version}"
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=".fetch-") as scratch:
            install = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", f"{scratch}/whole"]
            done = subprocess.run([*install, f"flashinfer-python=={version}"], capture_output=True, text=True)
            if done.returncode:
                raise UserError(f"flashinfer-python {version} can't be fetched: {_own_words(done.stderr.splitlines())}")
            os.replace(f"{scratch}/whole", home)
    return home, version


def _own_words(lines: list[str]) -> str:
    """The line that says what went wrong: a tool's first error, else Python's last, else the last line."""
    tools = [line for line in lines if re.search(r": (fatal )?error\b|cannot find|nvcc fatal|No matching", line)]
    python = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (tools[:1] or python[-1:] or lines[-1:] or ["it ended without a word"])[0].strip()


def _cuda_version(cuda_home: Path) -> str:
    done = subprocess.run([cuda_home / "bin/nvcc", "--version"], capture_output=True, text=True)
    match = re.search(r"release (\d+\.\d+)", done.stdout)
    return match.group(1) if match else "unknown"


def _outcome(proven: bool | None, because: list[str], **about: Any) -> dict[str, Any]:
    return graded("compiled", proven, because, **about, remembered=False)
