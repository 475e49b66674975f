"""What every server of a sweep is sent: the same requests for every arm and restart, and what warms it up for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from breakeven import artifacts, workload
from breakeven.config import SweepSettings
from breakeven.errors import UserError
from breakeven.launch.design import Condition, plan_conditions

WARM_TOKENS = 16
"""Of an answer that only has a batch size compiled."""


@dataclass(frozen=True)
class Batch:
    """What is sent under one condition: first ``warm_up``, then prompts that count, and others that keep them company
    (see `workload`)."""

    condition: Condition
    prompts: list[workload.Prompt]
    company: list[workload.Prompt]
    warm_up: list[workload.Prompt]


@dataclass(frozen=True)
class Workload:
    """What every server of a sweep is sent: the same for every arm and restart, no measured text twice. ``traced`` is
    as long as the prompts of the first condition with one request at a time, whose cycle it splits."""

    batches: list[Batch]
    traced: workload.Prompt

    @classmethod
    def chosen(cls, settings: SweepSettings, encode: Callable[[str], list[int]]) -> Workload:
        """Raises UserError for a bad file, an unknown kind, too few prompts and prompts longer than the context."""
        shipped = settings.prompts == "shipped"
        prompts = workload.load_prompts(None if shipped else artifacts.located(settings.prompts))
        conditions = plan_conditions(
            settings.concurrency, settings.temperature, settings.context_tokens, settings.max_running_requests
        )
        per_kind, kinds = settings.prompts_per_kind, settings.kinds or None
        texts = [each.prompt for each in prompts]

        def lengthened(prompt: workload.Prompt, condition: Condition | None) -> workload.Prompt:
            if condition is None or not condition.context_tokens:
                return prompt
            return workload.lengthened(prompt, condition.context_tokens, encode, texts)

        *warm_up, traced = workload.warm_up(prompts)
        first = warm_up or [traced]
        batches: list[Batch] = []
        for number, condition in enumerate(conditions):
            measured = workload.choose(prompts, per_kind, kinds=kinds, skip=number * per_kind)
            longest = max(each.max_new_tokens for each in measured)  # short answers would end all at once
            company = [replace(each, id=f"{each.id}-beside-{number}", max_new_tokens=longest) for each in warm_up]
            done = sum(len(batch.warm_up) for batch in batches)
            short = together(first, condition.concurrency, done) if done or condition.concurrency > 1 else []
            before = short if batches else [*first, *short]
            sent = [measured, company if condition.concurrency > 1 else [], before]
            sent = [[lengthened(each, condition) for each in some] for some in sent]
            for some in sent:
                _refuse_too_long(some, encode, settings.context_length)
            batches.append(Batch(condition, *sent))
        traced = lengthened(traced, next((each for each in conditions if each.concurrency == 1), None))
        _refuse_too_long([traced], encode, settings.context_length)
        return cls(batches, traced)

    @property
    def requests(self) -> int:
        """Measured requests per server."""
        return sum(len(batch.prompts) for batch in self.batches)


def together(prompts: Sequence[workload.Prompt], count: int, done: int = 0) -> list[workload.Prompt]:
    """So many short requests with texts of their own, after ``done`` others: kernels are compiled for a batch size and
    a way to sample when a server first meets them. (On an H200 each of a drafter's first requests at a time lost 0.1 s,
    in the first launch on a machine only; nothing in the log says why.)"""
    asked = []
    for number in range(done, done + count):
        like = prompts[number % len(prompts)]
        tokens = min(like.max_new_tokens, WARM_TOKENS)
        asked.append(replace(like, id=f"{like.id}-{number}", prompt=f"({number}) {like.prompt}", max_new_tokens=tokens))
    return asked


def _refuse_too_long(prompts: Sequence[workload.Prompt], encode: Callable[[str], list[int]], context: int) -> None:
    for each in prompts:
        tokens = len(encode(each.prompt))
        if tokens + each.max_new_tokens > context:
            raise UserError(
                f"prompt {each.id!r} has {tokens} tokens and may be answered with {each.max_new_tokens}; "
                f"context_length is {context}"
            )
