"""The gates of two sources, read for as many architectures as are asked about."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from breakeven.errors import UserError
from breakeven.gates.archs import capability, name_of
from breakeven.gates.auto import find_auto, switched_off
from breakeven.gates.facts import DEFAULT_TP, Context
from breakeven.gates.kernels import find_kernel
from breakeven.gates.paths import find_runtime, kernel_functions
from breakeven.gates.program import Library, Program
from breakeven.gates.question import Question, find_settings
from breakeven.gates.verdict import compose, without_a_path
from breakeven.sources import Source, lying_beside, open_source, pinned_flashinfer


def read_gates(
    arch: str,
    sglang: str = "installed",
    flashinfer: str | None = None,
    *,
    model_arch: str | None = None,
    tp: int | None = None,
    nnodes: int = 1,
    device_name: str | None = None,
    dp_attention: bool = False,
    deterministic: bool = False,
    cache: Path | None = None,
) -> dict[str, Any]:
    """Whether FlashInfer's fused all-reduce + RMSNorm runs on an architecture, and every gate on the way.

    ``arch`` is a name such as ``sm120``; ``sglang`` and ``flashinfer`` are ``installed``, a folder or ``pypi:VERSION``,
    FlashInfer by default the version that SGLang pins. ``tp`` and ``nnodes`` count GPUs and nodes of the launch; where
    ``tp`` is not given it is 8, and ``context`` in the answer says so.
    Returns the JSON of ``breakeven gates``. Raises UserError on bad input.
    """
    context = make_context(arch, model_arch, tp, nnodes, device_name, dp_attention, deterministic)
    return Reading.of(sglang, flashinfer, cache=cache).judge(context)


@dataclass
class Reading:
    """Two opened sources, parsed at most once however many architectures are asked about."""

    sglang: Source
    flashinfer: Source | str | None
    why: str
    cache: Path | None = None
    beside: Source | None = None  # a FlashInfer of another release than the one that is pinned
    _library: Library = field(default_factory=Library)
    _programs: dict[str, Program] = field(default_factory=dict)

    @classmethod
    def of(cls, sglang: str, flashinfer: str | None = None, *, cache: Path | None = None) -> Reading:
        """Open the sources. Without a FlashInfer it is the one that SGLang pins: where it lies beside SGLang that one,
        else it is only named, and fetched when a verdict needs it.
        """
        source = open_source("sglang", sglang, cache=cache)
        if flashinfer is not None:
            return cls(source, open_source("flashinfer", flashinfer, cache=cache), "given", cache)
        pinned, beside = pinned_flashinfer(source), lying_beside("flashinfer", source)
        if beside is not None and pinned is None:
            return cls(source, beside, "lies beside SGLang, which pins no version", cache)
        if beside is not None and beside.version in (pinned, "unknown"):
            why = (
                "pinned"
                if beside.version == pinned
                else f"lies beside SGLang, its version not stated; {pinned} is pinned"
            )
            return cls(source, beside, why, cache)
        return cls(source, pinned, "pinned" if pinned is not None else "no version is pinned", cache, beside)

    def partner(self) -> Source | None:
        """The FlashInfer source, fetched if it is only named. Raises UserError where it can't be had."""
        if isinstance(self.flashinfer, str):
            try:
                self.flashinfer = open_source("flashinfer", f"pypi:{self.flashinfer}", cache=self.cache)
            except UserError as error:
                if self.beside is None:
                    raise
                other = (
                    f"FlashInfer {self.beside.version} lies beside SGLang: to judge that one, name {self.beside.root}"
                )
                raise UserError(f"{error}; {other}") from None
        return self.flashinfer

    def program(self, *packages: str) -> Program:
        """The program of these packages; each file is parsed once, whichever programs it belongs to."""
        key = "+".join(packages)
        if key not in self._programs:
            sources = [self.sglang if package == "sglang" else self.partner() for package in packages]
            self._programs[key] = Program([source for source in sources if source is not None], self._library)
        return self._programs[key]

    def changed(self, files: Mapping[str, bytes]) -> Reading:
        """This reading with other contents of some of SGLang's files (by their path below the source's root).

        Nothing is written; what is not changed is parsed once for both.
        """
        return replace(self, _library=self._library.changed(files), _programs={})

    def judge(self, context: Context) -> dict[str, Any]:
        """The verdict on one architecture and launch: the JSON of ``breakeven gates``. Raises UserError."""
        with _no_collector():
            return self._judged(name_of(*context.capability), context) | {"context": context.described()}

    def _judged(self, arch: str, context: Context) -> dict[str, Any]:
        question = Question(arch, context, self.program("sglang"), self.sglang)
        if not kernel_functions(question.program):
            find_settings(question)
            return without_a_path(question, self.flashinfer, self.why)
        opened = self.partner()
        program = self.program("sglang", "flashinfer") if opened is not None else self.program("sglang")
        question = Question(arch, context, program, self.sglang)
        find_settings(question)
        runtime = find_runtime(question)
        if runtime is None:
            return without_a_path(question, opened, self.why)
        auto = find_auto(question)
        if auto.value is not None and auto.value != runtime.asked_for:
            runtime = find_runtime(question, auto.value) or runtime
        switches = switched_off(question, runtime.asked_for)
        kernel = None
        if opened is not None:
            kernel = find_kernel(self.program("flashinfer"), context, runtime.backend or "trtllm")
        return compose(question, runtime, auto, switches, kernel, opened, self.why)


def make_context(
    arch: str,
    model_arch: str | None = None,
    tp: int | None = None,
    nnodes: int = 1,
    device_name: str | None = None,
    dp_attention: bool = False,
    deterministic: bool = False,
) -> Context:
    """Check the circumstances and put them together; without a TP it is the suite's own, 8. Raises UserError."""
    assumed = () if tp is not None else ("tp",)
    tp = DEFAULT_TP if tp is None else tp
    for name, number in (("tp", tp), ("nnodes", nnodes)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise UserError(f"{name}={number!r} is no count; give a whole number from 1")
    if tp % nnodes:
        raise UserError(f"tp={tp} can't be spread over nnodes={nnodes}; tp counts the GPUs of all nodes together")
    return Context(capability(arch), model_arch, tp, nnodes, device_name, dp_attention, deterministic, assumed=assumed)


@contextlib.contextmanager
def _no_collector() -> Iterator[None]:
    """A quarter of the time would go into looking for garbage among syntax trees, which all stay."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
