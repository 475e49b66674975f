"""Before minutes of loading: would this launch fail, or be slow, for a reason that is known already?

``check`` looks at the host that would serve and judges; ``refuse_errors`` stops a launch that could only fail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from breakeven import machine
from breakeven.errors import UserError, one_line
from breakeven.hosts import Host
from breakeven.launch import gpu_checks
from breakeven.launch.gpu_checks import Finding
from breakeven.launch.model_files import Model, kv_bytes_per_token, read_model
from breakeven.server.command import Drafter, LaunchSpec, effective_drafter

COLUMNS = {
    "severity": "severity",
    "subject": "about",
    "found": "found",
    "means": "what it means for this run",
    "todo": "what to do",
}
SAMPLE = 2000
"""Tokens of the target's vocabulary that are looked up in the draft's."""
TREE_BACKENDS = ("flashinfer", "fa3", "triton")
"""Attention backends that verify a tree with pages of more than one token (SGLang 0.5.23; older have fewer)."""
CHAIN_BACKENDS = ("trtllm_mha", "trtllm_mla", "flashmla", "cutlass_mla")
_GIB = 2**30
_COMMAND_TIMEOUT_S = 60.0


# ---------------------------------------------------------------- what is judged


def check_drafter(drafter: Drafter, target: Model, draft: Model | None, context_length: int | None) -> list[Finding]:
    """A drafter against its target: kind, vocabulary, hidden size, context length."""
    name = drafter.algorithm.upper()
    findings: list[Finding] = []
    if name == "NEXTN":
        name = "EAGLE"
    if draft is None:
        if name == "EAGLE3" and not target.number("num_nextn_predict_layers", "num_mtp_layers"):
            means = "Without built-in heads EAGLE3 needs a draft; the server would fail on set_embed after loading."
            findings.append(Finding("error", "drafter", "EAGLE3 without a draft model", means, "Give model: PATH."))
        return findings
    if name == "EAGLE" and draft.is_eagle3:
        means = "It would run with accept length 1.00 for ever: no draft is ever accepted."
        findings.append(Finding("error", "drafter", "an EAGLE-3 draft with algorithm EAGLE", means, "Use EAGLE3."))
    if name == "EAGLE3" and not draft.is_eagle3:
        kind = ", ".join(draft.architectures) or "no architectures"
        means = "EAGLE3 reads hidden states of three layers, for which another kind of draft has no weights."
        findings.append(
            Finding("warning", "drafter", f"algorithm EAGLE3 with a draft of {kind}", means, "Check the draft.")
        )
    findings += _check_vocabulary(name, target, draft)
    if name in ("EAGLE", "EAGLE3"):
        needs = draft.number("target_hidden_size") or draft.number("hidden_size")
        has = target.number("hidden_size")
        if needs and has and needs != has:
            means = "It was made for another target; its weights would not fit (size mismatch)."
            found = f"the draft takes hidden size {needs}, the target has {has}"
            findings.append(Finding("error", "drafter", found, means, "Take a draft that was trained for this target."))
    if draft.context and context_length and draft.context < context_length:
        means = "Beyond it the draft reads out of bounds, or its drafts are only wrong and the server slow."
        todo = f"Keep prompt and answer below {draft.context} tokens (context_length), or take another draft."
        found = f"the draft was made for {draft.context} positions, the server serves {context_length}"
        findings.append(Finding("warning", "context", found, means, todo))
    return findings


def _check_vocabulary(name: str, target: Model, draft: Model) -> list[Finding]:
    sizes = (target.number("vocab_size"), draft.number("vocab_size"))
    todo = "Take a draft of the same family."
    if None not in sizes and sizes[0] != sizes[1] and name in ("STANDALONE", "EAGLE", "EAGLE3"):
        found = f"vocabulary sizes {sizes[0]} (target) and {sizes[1]} (draft)"
        means = "Token ids of one mean nothing to the other: SGLang refuses, old releases print corrupt text."
        return [Finding("error", "vocabulary", found, means, todo)]
    differing = first_difference(target.vocabulary, draft.vocabulary)
    if differing is None:
        return []
    token, here, there = differing
    means = "Equal sizes are not enough. Few releases notice (0.5.23 does not), and hardly a draft would be right."
    found = f"token {token!r} is {here} in the target and {there} in the draft"
    return [Finding("error" if name == "STANDALONE" else "warning", "vocabulary", found, means, todo)]


def first_difference(target: Mapping[str, int], draft: Mapping[str, int]) -> tuple[str, int, int | None] | None:
    """The first token of an even sample of the target's vocabulary whose id the draft does not share."""
    if not target or not draft:
        return None
    tokens = sorted(target, key=lambda token: target[token])
    sample = tokens[:: max(len(tokens) // SAMPLE, 1)]
    return next(((each, target[each], draft.get(each)) for each in sample if draft.get(each) != target[each]), None)


def check_shape(drafter: Drafter, version: str | None, backend: str | None, page_size: int) -> list[Finding]:
    """Steps, topk and draft tokens against each other, the attention backend and the page size."""
    try:
        effective = effective_drafter(drafter, version)
    except UserError as error:
        means = "SGLang would refuse it, or crash after loading."
        return [Finding("error", "draft shape", one_line(error), means, "Correct the drafter's settings.")]
    findings: list[Finding] = []
    width = effective.breadth if effective.algorithm == "NGRAM" else effective.topk
    if not width or width == 1:
        return findings
    what = "breadth" if effective.algorithm == "NGRAM" else "topk"
    if backend in CHAIN_BACKENDS:
        means = "This backend verifies chains only, and refuses."
        todo = f"{what} 1, or another --attention-backend."
        findings.append(Finding("error", "draft shape", f"{what} {width} with {backend}", means, todo))
    allowed = ("flashinfer",) if effective.algorithm == "NGRAM" else TREE_BACKENDS
    if page_size > 1 and backend is not None and backend not in allowed and backend not in CHAIN_BACKENDS:
        found = f"{what} {width} with {backend} and pages of {page_size} tokens"
        means = "A tree over pages gives wrong results there; SGLang refuses."
        todo = f"--page-size 1, {what} 1, or one of the backends {', '.join(allowed)}."
        findings.append(Finding("error", "draft shape", found, means, todo))
    return findings


def check_context(target: Model, context_length: int | None) -> list[Finding]:
    """The context asked for against what the target was made for."""
    if not (target.context and context_length) or context_length <= target.context:
        return []
    means = "SGLang refuses a context that is longer than the model's."
    found = f"context_length {context_length}, the model has {target.context} positions"
    return [Finding("error", "context", found, means, f"context_length {target.context} or less.")]


def check_memory(
    target: Model, draft: Model | None, spec: LaunchSpec, memory_gib: float | None, device: str
) -> list[Finding]:
    """Weights per rank and the size of the KV cache that the limits ask for, against the memory of a device."""
    if memory_gib is None:
        return []
    weights = (target.weight_bytes + (draft.weight_bytes if draft else 0)) / spec.tp / _GIB
    per_token = kv_bytes_per_token(target, spec.dtype) / spec.tp
    wanted = (spec.context_length or 0) * (spec.max_running_requests or 0)
    cache = per_token * wanted / _GIB
    found = f"{weights:.2f} GiB of weights and {cache:.2f} GiB of KV cache on {memory_gib:.1f} GiB of {device}"
    if weights > memory_gib:
        todo = "More GPUs (tp), a smaller or quantised model or drafter."
        return [Finding("error", "memory", found, "The weights alone do not fit.", todo)]
    if weights + cache > 0.9 * memory_gib:
        means = "Not all running requests at full context fit at once: some wait, or loading runs out of memory."
        todo = "More GPUs, a shorter context_length or fewer max_running_requests."
        return [Finding("warning", "memory", found, means, todo)]
    return [Finding("note", "memory", found, "The limits fit, before activations and graphs.")]


# ---------------------------------------------------------------- looking at the host


def check(
    host: Host, spec: LaunchSpec, environment: Mapping[str, str], drafters: Sequence[Drafter | None] = ()
) -> list[Finding]:
    """Everything that can be told of a launch on this host, errors first. ``drafters`` are what will be launched.

    Raises OSError when another machine does not answer.
    """
    about = machine.describe(Path(), host)
    gpus, packages = about["gpus"], about["packages"]
    arguments = [*spec.defaults, *spec.flags]
    backend, page_size = _value(arguments, "--attention-backend"), _value(arguments, "--page-size") or "1"
    if not page_size.isdecimal():
        raise UserError(f"server_flags: --page-size is {page_size!r}; give a whole number of tokens")
    target = read_model(host, Path(spec.model_path))
    findings = check_context(target, spec.context_length)
    drafts: list[Model | None] = [None]
    for drafter in dict.fromkeys(filter(None, drafters)):
        draft = read_model(host, Path(drafter.model)) if drafter.model else None
        drafts.append(draft)
        findings += check_shape(drafter, packages.get("sglang"), backend, int(page_size))
        findings += check_drafter(drafter, target, draft, spec.context_length)
    largest = max(drafts, key=lambda draft: draft.weight_bytes if draft else 0)
    device, memory = ("GPU", gpu_checks.memory_gib(gpus)) if gpus else ("host memory", about["memory_gib"])
    findings += check_memory(target, largest, spec, memory, device)
    findings += gpu_checks.check_packages(packages, about["pins"])
    if gpus:
        findings += _check_gpus(host, spec, {**environment, **spec.env}, about)
    else:
        means = "Topology, driver, clocks and compiler play no part."
        findings.append(Finding("note", "GPU", "none on this machine", means))
    order = ("error", "warning", "note")
    return sorted(dict.fromkeys(findings), key=lambda finding: order.index(finding.severity))


def refuse_errors(findings: Sequence[Finding]) -> None:
    """Raises UserError, in one line, for the first error."""
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors:
        first = errors[0]
        more = f" ({len(errors) - 1} more errors)" if len(errors) > 1 else ""
        raise UserError(f"preflight: {first.subject}: {first.found}. {first.means} {first.todo}{more}")


def _check_gpus(
    host: Host, spec: LaunchSpec, environment: Mapping[str, str], about: Mapping[str, Any]
) -> list[Finding]:
    def said(*command: str) -> str:
        try:
            done = host.run(command, env={**environment}, timeout_s=_COMMAND_TIMEOUT_S)
        except ConnectionError:
            raise
        except OSError:
            return ""
        return "" if done.exit_code else done.stdout

    def smi(query: str) -> str:
        return said("nvidia-smi", query, "--format=csv,noheader,nounits")

    nvcc = said("which", "nvcc").strip()
    home = gpu_checks.cuda_home(environment, nvcc)
    return [
        *gpu_checks.check_driver(about["gpus"][0]["driver"], about["torch_cuda"]),
        *gpu_checks.check_topology(said("nvidia-smi", "topo", "-m"), said("nvidia-smi", "topo", "-p2p", "r"), spec.tp),
        *gpu_checks.check_clocks(smi(f"--query-gpu={gpu_checks.CLOCKS}")),
        *gpu_checks.check_other_processes(smi("--query-compute-apps=pid,process_name,used_memory")),
        *gpu_checks.check_compiler(environment, nvcc, bool(host.size(Path(home, "bin/nvcc"))), about["packages"]),
    ]


def _value(arguments: Sequence[str], flag: str) -> str | None:
    """The value of a flag in a list of arguments, the last one if there are several."""
    found = [argument.partition("=")[2] for argument in arguments if argument.startswith(f"{flag}=")]
    found += [value for name, value in pairwise(arguments) if name == flag]
    return found[-1] if found else None
