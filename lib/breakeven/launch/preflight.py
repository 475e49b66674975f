"""Before minutes of loading: would this launch fail, or be slow, for a reason that is known already?

``check`` looks at the host that would serve and judges; ``refuse_errors`` stops a launch that could only fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from breakeven import machine
from breakeven.errors import UserError
from breakeven.hosts import Host
from breakeven.launch import gpu_checks, model_checks
from breakeven.launch.gpu_checks import Finding
from breakeven.launch.model_files import Model, read_model
from breakeven.server.command import LaunchSpec
from breakeven.server.flags import ranks_here, value_of, whole_number

COLUMNS = {
    "severity": "severity",
    "subject": "about",
    "found": "found",
    "means": "what it means for this run",
    "todo": "what to do",
}
_READ_BY_TOOLS = ("PATH", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CUDA_VISIBLE_DEVICES")
_ORDER = ("error", "warning", "note")
_COMMAND_TIMEOUT_S = 60.0


def check(host: Host, specs: Sequence[LaunchSpec], environment: Mapping[str, str]) -> list[Finding]:
    """Everything that can be told of these launches on this host, errors first.

    Raises OSError when another machine does not answer, UserError for a model or a number that can't be read.
    """
    about = machine.describe(Path(), host)
    gpus, packages = about["gpus"], about["packages"]
    uuids = [gpu["uuid"] for gpu in gpus]
    read = cache(lambda path: read_model(host, Path(path)))
    findings: list[Finding] = []
    memory: list[tuple[int, int, Finding]] = []
    places: dict[tuple[object, ...], tuple[int, list[int], Mapping[str, str]]] = {}
    for spec in specs:
        arguments, own = [*spec.defaults, *spec.flags], {**environment, **spec.env}
        target, draft = read(spec.model_path), read(spec.drafter.model) if spec.drafter and spec.drafter.model else None
        findings += _check_models(spec, arguments, own, packages.get("sglang"), target, draft)
        findings += gpu_checks.check_packages(packages, about["pins"], own)
        device, gib, ranks = "host memory", about["memory_gib"], 1  # which all of them share
        if gpus and value_of(arguments, "--device") != "cpu":
            visible = gpu_checks.visible_gpus(own.get("CUDA_VISIBLE_DEVICES"), uuids)
            used = _used_gpus(spec, arguments, list(range(len(gpus))) if visible is None else visible)
            findings += [] if visible is None else gpu_checks.check_count(ranks_here(spec.tp, arguments), used)
            device, gib = "GPU", gpu_checks.memory_gib([gpu for index, gpu in enumerate(gpus) if index in used])
            ranks = spec.tp * whole_number(arguments, "--pp-size", "--pipeline-parallel-size")
            places[spec.tp, *used, *map(own.get, _READ_BY_TOOLS)] = (spec.tp, used, own)
        for finding in model_checks.check_memory(target, draft, spec, gib, device, ranks):
            memory.append((_ORDER.index(finding.severity), -(draft.weight_bytes if draft else 0), finding))
    findings += [worst[-1] for worst in sorted(memory, key=lambda each: each[:2])[:1]]
    for place in places.values():
        findings += _check_gpus(host, *place, about)
    if not gpus:
        means = "Topology, driver, clocks and compiler play no part."
        findings.append(Finding("note", "GPU", "none on this machine", means))
    return sorted(dict.fromkeys(findings), key=lambda finding: _ORDER.index(finding.severity))


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Raises UserError, in one line, for the first error."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        first = errors[0]
        more = f" ({len(errors) - 1} more errors)" if len(errors) > 1 else ""
        raise UserError(f"preflight: {first.subject}: {first.found}. {first.means} {first.todo}{more}")


def _check_models(
    spec: LaunchSpec,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    release: str | None,
    target: Model,
    draft: Model | None,
) -> list[Finding]:
    allowed_by = model_checks.longer_context_allowed_by(arguments, environment, release)
    findings = model_checks.check_context(target, spec.context_length, allowed_by)
    if value_of(arguments, "--device") != "cpu":  # there SGLang pads them
        for model in filter(None, (target, draft)):
            findings += model_checks.check_heads(model, _ranks_of_attention(spec, arguments))
    backend, page_size = value_of(arguments, "--attention-backend"), whole_number(arguments, "--page-size")
    if spec.drafter:
        findings += model_checks.check_shape(spec.drafter, release, backend, page_size)
        findings += model_checks.check_drafter(spec.drafter, target, draft, spec.context_length)
    return findings


def _ranks_of_attention(spec: LaunchSpec, arguments: Sequence[str]) -> int:
    """How many ranks share a sequence's heads: those of tensor parallelism, less what splits requests or texts."""
    groups = whole_number(arguments, "--attn-dp-size", "--attention-data-parallel-size")
    if "--enable-dp-attention" in arguments:  # before 0.5.23 the only way
        groups = max(groups, whole_number(arguments, "--dp-size", "--data-parallel-size"))
    groups *= whole_number(arguments, "--attn-cp-size", "--attention-context-parallel-size")
    return max(1, spec.tp // groups)


def _used_gpus(spec: LaunchSpec, arguments: Sequence[str], visible: Sequence[int]) -> list[int]:
    """The GPUs of those visible that a server would take, by nvidia-smi's index."""
    first, step = whole_number(arguments, "--base-gpu-id", least=0), whole_number(arguments, "--gpu-id-step")
    return list(visible[first::step][: ranks_here(spec.tp, arguments)])


def _check_gpus(
    host: Host, tp: int, used: Sequence[int], environment: Mapping[str, str], about: Mapping[str, Any]
) -> list[Finding]:
    def said(*command: str) -> str:
        return _said(host, environment, *command)

    def smi(query: str) -> str:
        return said("nvidia-smi", query, "--format=csv,noheader,nounits", "-i", ",".join(map(str, used)))

    nvcc = said("which", "nvcc").strip()
    home = gpu_checks.cuda_home(environment, nvcc)
    driver, cuda, library_path = about["gpus"][0]["driver"], about["torch_cuda"], environment.get("LD_LIBRARY_PATH", "")
    topology, peer_access = said("nvidia-smi", "topo", "-m"), said("nvidia-smi", "topo", "-p2p", "r")
    return [
        *gpu_checks.check_driver(driver, cuda, said("nvidia-smi"), library_path),
        *gpu_checks.check_topology(topology, peer_access, used[:tp]),
        *gpu_checks.check_clocks(smi(f"--query-gpu={gpu_checks.CLOCKS}")),
        *gpu_checks.check_other_processes(smi("--query-compute-apps=pid,process_name,used_memory")),
        *gpu_checks.check_compiler(environment, nvcc, bool(host.size(Path(home, "bin/nvcc"))), about["packages"]),
    ]


def _said(host: Host, environment: Mapping[str, str], *command: str) -> str:
    """What a tool of the host prints; nothing where there is no such tool, or it fails."""
    try:
        done = host.run(command, env={**environment}, timeout_s=_COMMAND_TIMEOUT_S)
    except ConnectionError:
        raise
    except OSError:
        return ""
    return "" if done.exit_code else done.stdout
