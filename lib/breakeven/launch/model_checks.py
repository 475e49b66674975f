"""Model, draft and limits of a launch, judged: kind, vocabulary, shape of the drafts, context, memory.

Pure functions from what the files and the flags say to findings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from breakeven.errors import UserError, one_line
from breakeven.launch.gpu_checks import Finding
from breakeven.launch.model_files import Model, kv_bytes_per_token
from breakeven.server.command import Drafter, LaunchSpec, effective_drafter
from breakeven.server.flags import value_of
from breakeven.telemetry.releases import version_key

SAMPLE = 2000
"""Tokens of the target's vocabulary that are looked up in the draft's."""
TREE_BACKENDS = {"flashinfer": "0.0.0", "fa3": "0.5.6", "triton": "0.5.13"}
"""Attention backends that verify a tree of a model's drafts with pages of more than one token, and since when."""
CHAIN_BACKENDS = ("trtllm_mha", "trtllm_mla", "flashmla", "cutlass_mla")
LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
OVERRIDES = "--json-model-override-args"
FEWER_WEIGHTS = ("--cpu-offload-gb", "--offload-group-size", "--quantization", "--torchao-config")
"""Flags with which less lies on the GPU than stands in the files."""
_GIB = 2**30


def check_drafter(drafter: Drafter, target: Model, draft: Model | None, context_length: int | None) -> list[Finding]:
    """A drafter against its target: kind, vocabulary, hidden size, context length."""
    name = drafter.algorithm.upper()
    findings: list[Finding] = []
    if name == "NEXTN":
        name = "EAGLE"
    if draft is None:
        if name == "EAGLE3" and not target.has_heads:
            means = "Without built-in heads EAGLE3 needs a draft; the server would fail on set_embed after loading."
            findings.append(Finding("error", "drafter", "EAGLE3 without a draft model", means, "Give model: PATH."))
        if name == "EAGLE" and not target.has_heads:
            kind = ", ".join(target.architectures) or "no architectures"
            means = "Without built-in heads, and none are named, the target is its own draft: no gain, or no start."
            found = f"{drafter.algorithm.upper()} without a draft model for {kind}"
            findings.append(Finding("warning", "drafter", found, means, "Give model: PATH, if it has no heads."))
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
    allowed = _tree_backends(effective.algorithm, version)
    if page_size > 1 and backend is not None and backend not in allowed and backend not in CHAIN_BACKENDS:
        found = f"{what} {width} with {backend} and pages of {page_size} tokens"
        means = "A tree over pages gives wrong results there; SGLang refuses."
        todo = f"--page-size 1, {what} 1, or one of the backends {', '.join(allowed)}."
        findings.append(Finding("error", "draft shape", found, means, todo))
    return findings


def _tree_backends(algorithm: str, version: str | None) -> list[str]:
    if algorithm == "NGRAM":
        return ["flashinfer"]
    return [name for name, since in TREE_BACKENDS.items() if not version or version_key(since) <= version_key(version)]


def check_context(target: Model, context_length: int | None, allowed_by: str = "") -> list[Finding]:
    """The context asked for against what the target was made for; ``allowed_by`` is what lets it be longer."""
    if not (target.context and context_length) or context_length <= target.context:
        return []
    found = f"context_length {context_length}, the model has {target.context} positions"
    if allowed_by:
        means = f"{allowed_by} is set: where it does not stretch the model, answers lose sense or the server ends."
        return [Finding("warning", "context", found, means, f"If it is not on purpose: {target.context} or less.")]
    means = "SGLang refuses a context that is longer than the model's."
    todo = f"context_length {target.context} or less; or stretch the model ({OVERRIDES}), or allow it ({LONGER}=1)."
    return [Finding("error", "context", found, means, todo)]


def longer_context_allowed_by(arguments: Sequence[str], environment: Mapping[str, str], version: str | None) -> str:
    """What lets a context be longer than the model's: a flag, a variable, an old release; empty for nothing."""
    if value_of(arguments, OVERRIDES):
        return OVERRIDES
    by_itself = "true" if version and version_key(version) < (0, 5, 1) else ""
    return LONGER if environment.get(LONGER, by_itself).lower() in ("1", "true", "yes", "y") else ""


def check_heads(model: Model, ranks: int) -> list[Finding]:
    """Attention heads against the ranks that share them; fewer key-value heads than ranks are copied to all."""
    heads, kv_heads = model.number("num_attention_heads"), model.number("num_key_value_heads")
    unequal = [heads] if heads and heads % ranks else []
    unequal += [kv_heads] if kv_heads and max(kv_heads, ranks) % min(kv_heads, ranks) else []
    if not unequal:
        return []
    means = "Every rank needs as many of them: SGLang refuses that of most models, after the ranks have started."
    kind = ", ".join(model.architectures) or "no architectures"
    found = f"{unequal[0]} heads for {ranks} ranks ({kind})"
    return [Finding("warning", "heads", found, means, "Choose another tp, or another model or drafter.")]


def check_memory(
    target: Model, draft: Model | None, spec: LaunchSpec, memory_gib: float | None, device: str, ranks: int
) -> list[Finding]:
    """Weights and the KV cache that the limits ask for, of one of the ``ranks``, against the memory of its device."""
    if memory_gib is None:
        return []
    arguments = [*spec.defaults, *spec.flags]
    weights = (target.weight_bytes + (draft.weight_bytes if draft else 0)) / ranks / _GIB
    per_token = kv_bytes_per_token(target, spec.dtype) / ranks
    wanted = (spec.context_length or 0) * (spec.max_running_requests or 0)
    cache = per_token * wanted / _GIB
    found = f"{weights:.2f} GiB of weights and {cache:.2f} GiB of KV cache on {memory_gib:.1f} GiB of {device}"
    if weights > memory_gib:
        todo = "More GPUs (tp), a smaller or quantised model or drafter."
        if smaller := [flag for flag in FEWER_WEIGHTS if value_of(arguments, flag) not in (None, "0")]:
            means = f"The files alone do not fit; what {smaller[0]} leaves of them may."
            return [Finding("warning", "memory", found, means, todo)]
        return [Finding("error", "memory", found, "The weights alone do not fit.", todo)]
    if weights + cache > 0.9 * memory_gib:
        means = "Not all running requests at full context fit at once: some wait, or loading runs out of memory."
        todo = "More GPUs, a shorter context_length or fewer max_running_requests."
        return [Finding("warning", "memory", found, means, todo)]
    return [Finding("note", "memory", found, "The limits fit, before activations and graphs.")]
