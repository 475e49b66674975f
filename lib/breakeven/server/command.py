"""What to launch and the command line for it, in the words of the SGLang release that will read it."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from breakeven.errors import UserError, did_you_mean
from breakeven.server import flags
from breakeven.telemetry.releases import check_algorithm, ngram_flags, version_key

FUSION = ("default", "off", "auto", "trtllm", "mnnvl", "cutedsl")
"""Choices for the fused all-reduce + RMSNorm: what SGLang decides, none, or one of its backends."""
NGRAM_DRAFT_TOKENS = 12
NGRAM_BREADTH = 10
"""SGLang's own defaults for NGRAM (0.5.3 to 0.5.23)."""

_ANY_RELEASE = "999.0.0"
_MODEL_DRAFTERS = ("EAGLE", "EAGLE3", "STANDALONE")  # drafters with steps, topk and draft tokens


@dataclass(frozen=True)
class Drafter:
    """Settings of one drafter. ``draft_tokens`` counts as SGLang does, the root included."""

    algorithm: str
    model: str | None = None
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    breadth: int | None = None
    """NGRAM: branches kept per level of its tree; 1 makes a chain."""
    depth: int | None = None
    """NGRAM: longest branch of its table (``branch-length`` before 0.5.10, ``max-trie-depth`` since)."""

    def label(self) -> str:
        """A short name for tables and files: ngram-d8-b1-t256, eagle3-s3 (a chain), eagle3-s3-k4-d8."""
        chain = self.topk == 1 and self.algorithm in _MODEL_DRAFTERS
        parts = [("s", self.steps if self.algorithm in _MODEL_DRAFTERS else None)]
        parts += [("k", None if chain or self.algorithm == "NGRAM" else self.topk)]
        parts += [("d", None if chain else self.draft_tokens)]
        parts += [("b", None if self.breadth == NGRAM_BREADTH else self.breadth), ("t", self.depth)]
        return "-".join(
            [self.algorithm.lower(), *(f"{letter}{number}" for letter, number in parts if number is not None)]
        )


@dataclass(frozen=True)
class LaunchSpec:
    """One server. None leaves a setting to SGLang; a port of None is chosen at launch."""

    python: str
    model_path: str
    drafter: Drafter | None = None
    tp: int = 1
    dtype: str | None = None
    context_length: int | None = None
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    mem_fraction: float | None = None
    cuda_graph_batch_sizes: tuple[int, ...] = ()
    fusion: str = "default"
    random_seed: int | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    dist_port: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    """More flags by name: True is a bare flag, None and False leave it out, a list gives several values."""
    flags: tuple[str, ...] = ()
    """More arguments, as they are."""
    defaults: tuple[str, ...] = ()
    """Arguments for flags that nothing above sets (what the embedded engine needs, as far as nobody asks otherwise)."""
    env: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    """What stands before python: numactl, docker exec."""


def effective_drafter(drafter: Drafter, sglang_version: str | None = None) -> Drafter:
    """The settings that SGLang would run with: the ones it fills in or rewrites, made plain before the launch.

    Rules read in SGLang 0.5.23 (``arg_groups/speculative_hook.py``) and checked back to 0.4.6. Raises UserError for
    what the release does not have, or would refuse, or would only crash on after it has loaded.
    """
    for name in ("algorithm", "model"):
        value = getattr(drafter, name)
        if not (isinstance(value, str) or (name == "model" and value is None)):
            raise UserError(f"drafters: {name} is {value!r}; give a text")
    algorithm = drafter.algorithm.upper()
    check_algorithm(algorithm, sglang_version or _ANY_RELEASE)
    for name in ("steps", "topk", "draft_tokens", "breadth", "depth"):
        value = getattr(drafter, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UserError(f"{algorithm}: {name} is {value!r}; give a whole number from 1 up")
    drafter = replace(drafter, algorithm="EAGLE" if algorithm == "NEXTN" else algorithm)
    if algorithm == "NGRAM":
        return _effective_ngram(drafter)
    if drafter.breadth is not None or drafter.depth is not None:
        raise UserError(f"{algorithm} has no breadth or depth: they are settings of NGRAM")
    return _effective_model_drafter(drafter) if drafter.algorithm in _MODEL_DRAFTERS else drafter


def _effective_ngram(drafter: Drafter) -> Drafter:
    for name, value in (("steps", drafter.steps), ("topk", drafter.topk), ("model", drafter.model)):
        if value is not None:
            raise UserError(f"NGRAM has no {name} (given: {value!r}); its settings are draft_tokens, breadth and depth")
    draft_tokens = drafter.draft_tokens or NGRAM_DRAFT_TOKENS
    if draft_tokens < 2:
        raise UserError("NGRAM: draft_tokens counts the root, so 1 proposes nothing; give 2 or more")
    return replace(drafter, draft_tokens=draft_tokens, breadth=drafter.breadth or NGRAM_BREADTH)


def _effective_model_drafter(drafter: Drafter) -> Drafter:
    name, steps, topk, draft_tokens = drafter.algorithm, drafter.steps, drafter.topk, drafter.draft_tokens
    if name == "STANDALONE" and drafter.model is None:
        raise UserError("STANDALONE needs a draft model; give model: PATH")
    if steps is None and topk is None and draft_tokens is None:
        if name == "STANDALONE":
            return replace(drafter, steps=3, topk=1, draft_tokens=4)
        return drafter  # SGLang chooses by the target's architecture; the server's own settings tell what it chose
    if steps is None:
        raise UserError(f"{name}: topk or draft_tokens without steps ends in an AssertionError; give steps too")
    if topk is None:
        raise UserError(f"{name}: steps={steps} without topk crashes SGLang; give topk (1 for a chain)")
    if topk == 1:
        return replace(drafter, draft_tokens=steps + 1)  # SGLang forces it, with a warning only
    pool = topk + (steps - 1) * topk**2
    if draft_tokens is None:
        raise UserError(f"{name}: topk={topk} needs draft_tokens, from 2 to {pool + 1} with steps={steps}")
    if not 2 <= draft_tokens <= pool + 1:
        raise UserError(
            f"{name}: draft_tokens={draft_tokens} can't be taken from a tree of {pool} tokens "
            f"(topk + (steps - 1) * topk^2 with steps={steps}, topk={topk}); give 2 to {pool + 1}"
        )
    return drafter


def build_command(spec: LaunchSpec, sglang_version: str, known_flags: Collection[str] = ()) -> list[str]:
    """The command line for a release; a port that is still None is left out.

    ``known_flags`` are the flags that the release's source declares, if known. Raises UserError for an algorithm,
    flag or setting that this release does not have, for a flag that a parameter sets, and for one that is given twice.
    """
    _require_loopback(spec.host)
    flags.refuse_parameters(spec.flags)
    arguments = ["--model-path", spec.model_path, "--host", spec.host]
    arguments += _given("--port", spec.port) + _distributed_port(spec, sglang_version)
    arguments += ["--tp-size", str(spec.tp)]
    arguments += _given("--dtype", spec.dtype)
    arguments += _given("--context-length", spec.context_length)
    arguments += _given("--max-running-requests", spec.max_running_requests)
    arguments += _given("--max-total-tokens", spec.max_total_tokens)
    arguments += _given("--mem-fraction-static", spec.mem_fraction)
    arguments += _given("--random-seed", spec.random_seed)
    arguments += _graph_sizes(spec.cuda_graph_batch_sizes, sglang_version)
    arguments += _fusion(spec.fusion, sglang_version)
    if spec.drafter is not None:
        arguments += _speculation(effective_drafter(spec.drafter, sglang_version), sglang_version)
    arguments += flags.without_repeats([*flags.of_names(spec.extra), *spec.flags])
    arguments += flags.not_given(spec.defaults, arguments)
    flags.check(arguments, sglang_version, known_flags)
    return [*spec.prefix, spec.python, "-m", "sglang.launch_server", *arguments]


def _distributed_port(spec: LaunchSpec, version: str) -> list[str]:
    """The port where the ranks meet; without the flag old releases search upward from the HTTP port.

    Replicas (data parallelism) meet each on a port of their own, which SGLang finds: given one, all would take it.
    """
    if spec.dist_port is None or flags.replicas([*spec.defaults, *spec.flags]) > 1:
        return []
    if version_key(version) >= (0, 4, 9):
        return ["--nccl-port", str(spec.dist_port)]
    return ["--dist-init-addr", f"{spec.host}:{spec.dist_port}"]


def _graph_sizes(sizes: tuple[int, ...], version: str) -> list[str]:
    if not sizes:
        return []
    flag = "--cuda-graph-bs-decode" if version_key(version) >= (0, 5, 14) else "--cuda-graph-bs"
    return [flag, *map(str, sizes)]


def _fusion(choice: str, version: str) -> list[str]:
    if choice not in FUSION:
        raise UserError(f"fusion is {choice!r}{did_you_mean(choice, FUSION)}")
    key = version_key(version)
    if choice == "default":
        return []
    if choice == "off":  # 0.5.0 to 0.5.9 may switch it on by themselves, and no flag keeps it off: see `contradiction`
        return ["--enforce-disable-flashinfer-allreduce-fusion"] if key >= (0, 5, 10) else []
    if key >= (0, 5, 14):
        return ["--flashinfer-allreduce-fusion-backend", choice]
    if key < (0, 4, 9):
        raise UserError(f"SGLang {version} has no all-reduce fusion; it came with 0.4.9")
    if choice != "auto":
        raise UserError(f"SGLang {version} can't choose the fusion backend ({choice}); give auto")
    return ["--enable-flashinfer-allreduce-fusion"]


def _speculation(drafter: Drafter, version: str) -> list[str]:
    arguments = ["--speculative-algorithm", drafter.algorithm]
    arguments += _given("--speculative-draft-model-path", drafter.model)
    arguments += _given("--speculative-num-steps", drafter.steps)
    arguments += _given("--speculative-eagle-topk", drafter.topk)
    arguments += _given("--speculative-num-draft-tokens", drafter.draft_tokens)
    if drafter.algorithm == "NGRAM":
        names = ngram_flags(version)
        arguments += _given(names["max_breadth"], drafter.breadth) + _given(names["max_depth"], drafter.depth)
    return arguments


def _given(flag: str, value: object) -> list[str]:
    return [] if value is None else [flag, str(value)]


def contradiction(spec: LaunchSpec, effective: Mapping[str, Any]) -> str | None:
    """What the server runs, by its own account (`telemetry.server_settings`), against what was asked for.

    A model, a variable or a plugin can switch on what no flag did, and the arm would bear a name that is not true.
    """
    if spec.drafter is None and effective.get("speculative_algorithm"):
        return f"no drafter was asked for, and the server speculates ({effective['speculative_algorithm']})"
    if spec.fusion == "off" and spec.tp > 1 and effective.get("fusion_requested"):
        return "fusion: off was asked for, and this release switched it on by itself for this model and GPU"
    return None


def _require_loopback(host: str) -> None:
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise UserError(f"host is {host!r}: the server has no password, so it listens on loopback only (127.0.0.1)")
