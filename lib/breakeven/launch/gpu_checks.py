"""What the machine's own tools say before a launch, judged: topology, peer access, driver, clocks, other processes,
compiler, package versions. Pure functions from text to findings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]

NEEDED_DRIVER = {"13": 580, "12": 525, "11": 450}
"""First driver branch that runs programs of a CUDA major version (NVIDIA's table of minor-version compatibility)."""
LINKS = {
    "NV": "NVLink",
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "a PCIe host bridge",
    "NODE": "host bridges of one socket",
    "SYS": "the link between sockets",
}
"""Rungs of ``nvidia-smi topo -m``, best first."""
_THROTTLES = {  # bits of the reasons that mean: slower than the GPU can
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "software thermal limit",
    0x40: "hardware thermal limit",
    0x80: "power brake",
}
CLOCKS = "index,clocks.sm,clocks.max.sm,clocks_throttle_reasons.active,power.limit,power.default_limit"
"""What is asked of nvidia-smi; drivers since 535 call the reasons clocks_event_reasons and take the old name too."""
_GIB = 1024  # nvidia-smi counts in MiB


@dataclass(frozen=True)
class Finding:
    """One thing found before a launch. An error stops the launch: it could only fail, after minutes of loading."""

    severity: Severity
    subject: str
    found: str
    means: str
    todo: str = ""

    def as_dict(self) -> dict[str, str]:
        """A row of the table."""
        return asdict(self)


def link_matrix(text: str) -> dict[tuple[int, int], str]:
    """Links between GPUs in the output of ``nvidia-smi topo -m`` or ``topo -p2p r``: ``(0, 1): "NV18"``."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    links: dict[tuple[int, int], str] = {}
    columns: list[int | None] = []
    for line in plain.splitlines():
        cells = line.split()
        if not cells or not re.fullmatch(r"GPU\d+", cells[0]):
            continue
        if len(cells) == 1 or re.fullmatch(r"(GPU|NIC)\d+", cells[1]):
            columns = [int(cell[3:]) if re.fullmatch(r"GPU\d+", cell) else None for cell in cells]
        elif columns:
            row = int(cells[0][3:])
            for column, cell in zip(columns, cells[1:], strict=False):
                if column is not None and column != row:
                    links[row, column] = cell
    return links


def visible_gpus(variable: str | None, uuids: Sequence[str]) -> list[int] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order, by nvidia-smi's index; all where it is not set.

    ``uuids`` are those of the host's GPUs by index. CUDA takes the beginning of one for the whole, and stops at the
    first entry that is no GPU. None where an entry is a part of a GPU (MIG), which is listed elsewhere.
    """
    if variable is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for entry in map(str.strip, variable.split(",")):
        if entry.startswith("MIG"):
            return None
        named = [n for n, uuid in enumerate(uuids) if entry == str(n) or (entry and uuid.startswith(entry))]
        if len(named) != 1:
            break
        found += named
    return found


def check_count(needed: int, used: Sequence[int]) -> list[Finding]:
    """Whether there is a GPU for every rank: the ``used`` ones are all that the server would find."""
    if len(used) >= needed:
        return []
    means = "The ranks without one would fail while the others load."
    todo = "Lower tp, or show more GPUs by CUDA_VISIBLE_DEVICES."
    return [Finding("error", "GPUs", f"the server needs {needed}, {len(used)} can be used", means, todo)]


def check_topology(topology: str, peer_access: str, gpus: Sequence[int]) -> list[Finding]:
    """The worst link among the ranks' GPUs, and whether they reach each other's memory."""
    if len(gpus) < 2:
        return []
    ranks = [(a, b) for a in gpus for b in gpus if a != b]
    links = link_matrix(topology)
    findings = []
    known = [links[pair] for pair in ranks if pair in links]
    if not known:
        findings.append(Finding("note", "topology", "nvidia-smi topo -m tells nothing", "The links are not known."))
    else:
        worst = max(known, key=_rung)
        name = LINKS.get(_kind(worst), worst)
        if _kind(worst) == "NV":
            findings.append(
                Finding("note", "topology", f"{worst} between all {len(gpus)} GPUs", f"All-reduces go over {name}.")
            )
        else:
            a, b = next(pair for pair in ranks if links.get(pair) == worst)
            means = f"Every all-reduce goes over {name}: small messages cost latency, and there are two a layer."
            todo = "Choose GPUs with a better link by CUDA_VISIBLE_DEVICES, if there are any."
            severity: Severity = "warning" if _rung(worst) >= _rung("PHB") else "note"
            findings.append(Finding(severity, "topology", f"{worst} between GPU{a} and GPU{b}", means, todo))
    blocked = [(pair, state) for pair, state in link_matrix(peer_access).items() if pair in ranks and state != "OK"]
    if blocked:
        (a, b), state = blocked[0]
        means = "Custom and fused all-reduce need peer access; NCCL goes through the host's memory without it."
        todo = "See IOMMU and ACS settings of the host, and whether the driver allows P2P for this GPU."
        findings.append(Finding("warning", "peer access", f"{state} between GPU{a} and GPU{b}", means, todo))
    return findings


def _kind(link: str) -> str:
    return re.sub(r"\d+$", "", link)


def _rung(link: str) -> int:
    kinds = list(LINKS)
    return kinds.index(_kind(link)) if _kind(link) in kinds else len(kinds)


def check_driver(driver: str, torch_cuda: str | None, smi: str = "", library_path: str = "") -> list[Finding]:
    """Whether the driver runs torch's CUDA; or NVIDIA's cuda-compat in its stead, as data-centre GPUs may have it.

    That shows in the CUDA version at the head of ``nvidia-smi``, or in LD_LIBRARY_PATH.
    """
    branch = re.match(r"\d+", driver)
    wanted = (torch_cuda or "").partition(".")[0]
    needed = NEEDED_DRIVER.get(wanted)
    if not branch or needed is None:
        return []
    found = f"driver {driver}, torch for CUDA {torch_cuda}"
    if int(branch[0]) >= needed:
        return [Finding("note", "driver", found, "They fit.")]
    offered = re.search(r"CUDA Version: *(\d+)", smi)
    if "compat" in library_path or (offered and int(offered[1]) >= int(wanted)):
        means = "cuda-compat is there, and carries torch on data-centre GPUs only."
        return [Finding("warning", "driver", found, means, f"If no GPU is found: driver {needed} or newer.")]
    todo = f"Install driver {needed} or newer, or a torch for its CUDA; on data-centre GPUs cuda-compat will do."
    return [Finding("error", "driver", found, "torch would find no usable GPU.", todo)]


def check_clocks(text: str) -> list[Finding]:
    """GPUs that are held back, from ``nvidia-smi --query-gpu=CLOCKS --format=csv,noheader,nounits``."""
    findings = []
    for index, clock, fastest, reasons, limit, usual in _rows(text, 6):
        mask = int(reasons, 16) if re.fullmatch(r"0x[0-9a-fA-F]+", reasons) else 0
        held = [name for bit, name in _THROTTLES.items() if mask & bit]
        if held:
            found = f"GPU{index} at {clock} of {fastest} MHz: {', '.join(held)}"
            means = "Figures would be those of a GPU that is held back, and change with it."
            findings.append(Finding("warning", "clocks", found, means, "Cooling, power; wait, or lock the clocks."))
        if (low := _number(limit)) and (full := _number(usual)) and low < 0.98 * full:
            means = "Decoding is bound by memory and loses little; prefill and large batches lose more."
            found = f"GPU{index} limited to {low:.0f} of {full:.0f} W"
            findings.append(Finding("note", "power limit", found, means, "nvidia-smi -pl, if it is not on purpose."))
    return findings


def check_other_processes(text: str) -> list[Finding]:
    """``nvidia-smi --query-compute-apps=pid,process_name,used_memory --format=csv,noheader,nounits``."""
    rows = _rows(text, 3)
    if not rows:
        return []
    who = ", ".join(f"{name.rpartition('/')[2]} ({pid}, {memory} MiB)" for pid, name, memory in rows[:4])
    means = "Its memory is not yours, and its work is in every figure."
    found = f"{len(rows)} on the GPUs: {who}"
    return [Finding("warning", "other processes", found, means, "End them, or choose other GPUs.")]


def check_compiler(
    environment: Mapping[str, str], nvcc_on_path: str, nvcc_there: bool, packages: Mapping[str, str]
) -> list[Finding]:
    """The compiler as FlashInfer finds it: CUDA_HOME, else CUDA_PATH, else the nvcc on PATH, else /usr/local/cuda.

    ``nvcc_there``: whether ``bin/nvcc`` is in that folder. Kernels that were built beforehand (jit-cache) need none.
    """
    home = cuda_home(environment, nvcc_on_path)
    built = packages.get("flashinfer-jit-cache")
    todo = "Set CUDA_HOME to a toolkit that knows this GPU, by server_env."
    if home.startswith(":") or ":" in home:
        means = "FlashInfer would run a compiler at a path that begins with a colon, after the weights are loaded."
        return [Finding("error", "compiler", f"CUDA_HOME is {home!r}", means, todo)]
    if nvcc_there:
        return [Finding("note", "compiler", f"{home}/bin/nvcc", "FlashInfer compiles kernels with it on first use.")]
    found = f"no nvcc in {home}/bin"
    if built:
        means = f"flashinfer-jit-cache {built} has most kernels built; one that it lacks could not be compiled."
        return [Finding("note", "compiler", found, means, todo)]
    means = "FlashInfer compiles kernels on first use, and would fail in graph capture, after minutes."
    return [Finding("warning", "compiler", found, means, todo)]


def cuda_home(environment: Mapping[str, str], nvcc_on_path: str) -> str:
    """The toolkit's folder as FlashInfer takes it (``jit/cpp_ext.py`` of 0.2 to 0.7)."""
    named = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    return named or (nvcc_on_path.rsplit("/", 2)[0] if nvcc_on_path.count("/") > 1 else "/usr/local/cuda")


def check_packages(
    packages: Mapping[str, str], pins: Mapping[str, str], environment: Mapping[str, str]
) -> list[Finding]:
    """FlashInfer's parts among each other, and what SGLang pins. A local part (``+cu130``) does not count."""
    allowed = bool(environment.get("FLASHINFER_DISABLE_VERSION_CHECK"))
    findings = []
    main = packages.get("flashinfer-python")
    for part in ("flashinfer-cubin", "flashinfer-jit-cache"):
        version = packages.get(part)
        if main and version and _release(version) != _release(main):
            means = "FlashInfer refuses to be imported when its parts are of different versions."
            if allowed:
                means = "FLASHINFER_DISABLE_VERSION_CHECK lets it be imported: kernels may be missing or not fit."
            todo = f"Install {part}=={_release(main)}, or remove it."
            found = f"{part} {version} beside flashinfer-python {main}"
            findings.append(Finding("warning" if allowed else "error", "packages", found, means, todo))
    for name, pinned in pins.items():
        version = packages.get(name)
        if version and _release(version) != _release(pinned):
            means = "SGLang was built and tested with the pinned one; its kernels may be missing or behave otherwise."
            found = f"{name} {version}; SGLang pins {pinned}"
            findings.append(Finding("warning", "packages", found, means, f"Install {name}=={pinned}."))
    return findings


def _release(version: str) -> str:
    return version.partition("+")[0]


def _rows(text: str, count: int) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == count]


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d+(\.\d+)?", text) else None


def memory_gib(gpus: Sequence[Mapping[str, Any]]) -> float | None:
    """Memory of the smallest GPU in GiB, from rows of ``machine.gpus`` (``"143771 MiB"``)."""
    sizes = [_number(str(gpu.get("memory", "")).partition(" ")[0]) for gpu in gpus]
    known = [size for size in sizes if size]
    return min(known) / _GIB if known else None
