"""What is asked of a running SGLang server: prompts, sent as token ids, and a row for each answer."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from breakeven.errors import UserError, one_line
from breakeven.telemetry import request_sample
from breakeven.workload.looping import is_degenerate, repetition
from breakeven.workload.prompts import Prompt

CONNECT_TIMEOUT_S = 10.0


class ServerGone(Exception):  # noqa: N818 - what happened, and not by our fault
    """The server refused or dropped the connection, or did not answer in time: no further request makes sense."""


class RequestFailed(Exception):  # noqa: N818
    """The server is there, and answered this one request with an error."""


def chat_encoder(model_folder: Path) -> Callable[[str], list[int]]:
    """A function from a user message to the token ids that the model is sent, its chat template applied.

    A model without a chat template gets the message's plain tokens. Raises UserError when the folder has no tokenizer.
    """
    from transformers import AutoTokenizer  # takes seconds to import: only who encodes pays

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(model_folder), local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{model_folder} holds no tokenizer that transformers reads: {one_line(error)}") from None
    if not tokenizer.chat_template:
        return lambda message: list(tokenizer(message)["input_ids"])

    def encode(message: str) -> list[int]:
        turns = [{"role": "user", "content": message}]
        return list(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"])

    return encode


class Client:
    """Sends prompts to a server's native ``/generate`` as token ids, so that the server adds no template of its own."""

    def __init__(self, base_url: str, encode: Callable[[str], list[int]], timeout_s: float = 600.0) -> None:
        self._encode = encode
        self._sent: dict[str, list[int]] = {}
        self._timeout_s = timeout_s
        # No proxy between a machine and its own server. A new connection for each request: the server closes idle ones
        # after seconds, and a request sent at that moment would take it for dead.
        self._http = httpx.Client(
            base_url=base_url,
            timeout=httpx.Timeout(timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s)),
            limits=httpx.Limits(max_keepalive_connections=0),
            trust_env=False,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def generate(
        self,
        prompt: Prompt,
        *,
        baseline: bool,
        temperature: float = 0.0,
        after: Sequence[int] = (),
        ignore_eos: bool = False,
    ) -> dict[str, Any]:
        """Send one prompt, wait for the whole answer, return its row of ``samples.jsonl`` (the client's part of it).

        ``client_s`` is the wall time of the request as seen here; every other time is the server's own. ``baseline``:
        the server does not speculate. ``after``: tokens answered before, which the answer goes on from.
        ``ignore_eos``: it runs on to its full length. Raises ServerGone or RequestFailed.
        """
        input_ids = self._ids(prompt)
        sent_at = _now()
        began = time.perf_counter()
        asked = [*input_ids, *after]
        answer = self._ask(asked, max_new_tokens=prompt.max_new_tokens, temperature=temperature, ignore_eos=ignore_eos)
        client_s = time.perf_counter() - began
        output_ids = answer["output_ids"]
        return {
            "prompt_id": prompt.id,
            "kind": prompt.kind,
            **request_sample(answer["meta_info"], baseline=baseline),
            "client_s": client_s,
            "sent_at": sent_at,
            "repetition": repetition(output_ids),
            "degenerate": is_degenerate(output_ids),
            "output_ids": output_ids,
            "error": None,
        }

    def prompt_tokens(self, prompt: Prompt) -> int:
        """How many tokens the server is sent for a prompt."""
        return len(self._ids(prompt))

    def _ids(self, prompt: Prompt) -> list[int]:
        return self._sent.setdefault(prompt.id, self._encode(prompt.prompt))

    def top_two_gap(self, prompt_id: str, output_prefix: Sequence[int]) -> float:
        """Nats between the two likeliest tokens after a prompt that was sent before and the start of an answer to it.

        Near zero is a tie: rounding decides which token greedy decoding takes. Raises ServerGone or RequestFailed.
        """
        answer = self._ask(
            [*self._sent[prompt_id], *output_prefix], max_new_tokens=1, return_logprob=True, top_logprobs_num=2
        )
        first, second = answer["meta_info"]["output_top_logprobs"][0]
        return float(first[0] - second[0])

    def _ask(
        self,
        input_ids: list[int],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        ignore_eos: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        sampling = {"max_new_tokens": max_new_tokens, "temperature": temperature, "ignore_eos": ignore_eos}
        try:
            response = self._http.post(
                "/generate", json={"input_ids": input_ids, "sampling_params": sampling, "stream": False, **options}
            )
        except httpx.TimeoutException as error:
            raise ServerGone(f"no answer within {self._timeout_s:g} s ({type(error).__name__})") from error
        except httpx.TransportError as error:
            raise ServerGone(f"{type(error).__name__}: {one_line(error)}") from error
        return _checked(response)


def _checked(response: httpx.Response) -> dict[str, Any]:
    """The answer's JSON object. Raises RequestFailed when it is an error or no answer of SGLang's."""
    if response.is_error:
        raise RequestFailed(f"HTTP {response.status_code}: {' '.join(response.text.split())[:500]}")
    try:
        answer = response.json()
    except ValueError:
        raise RequestFailed(f"the answer is no JSON: {response.text[:200]!r}") from None
    meta_info = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(meta_info, dict) or not isinstance(answer.get("output_ids"), list):
        raise RequestFailed("the answer lacks meta_info or output_ids; is this SGLang's /generate?")
    finish = meta_info.get("finish_reason")
    if isinstance(finish, dict) and finish.get("type") == "abort":
        raise RequestFailed(f"aborted by the server: {finish.get('message')}")
    return answer


def run_requests(
    client: Client,
    prompts: Sequence[Prompt],
    *,
    baseline: bool,
    on_sample: Callable[[dict[str, Any]], object],
    concurrency: int = 1,
    temperature: float = 0.0,
    company: Sequence[Prompt] = (),
) -> None:
    """Send the prompts, ``concurrency`` at a time, the next when one ends; calls ``on_sample`` with the row of each.

    With several at a time the last ones would run with ever fewer beside them, and faster: prompts of ``company``, in
    turn and as often as it takes, keep as many in flight until the last of ``prompts`` is answered. They have no row.
    ``on_sample`` runs in the caller's thread, one row at a time. A request that fails is a row with the ``error``.
    Raises ServerGone when the server is lost, after the rows of the requests under way; the others are not sent.
    """
    lost: list[ServerGone] = []

    def send(prompt: Prompt) -> dict[str, Any] | None:
        if lost:
            return None
        sent_at = _now()
        try:
            return client.generate(prompt, baseline=baseline, temperature=temperature)
        except RequestFailed as error:
            return _failed_row(prompt, sent_at, error)
        except ServerGone as error:
            lost.append(error)
            return _failed_row(prompt, sent_at, error)

    rows = _in_turn(send, prompts) if concurrency == 1 else _side_by_side(send, prompts, concurrency, company)
    with contextlib.closing(rows):  # what the caller interrupts is not sent to the end behind its back
        for row in rows:
            if row is not None:
                on_sample(row)
    if lost:
        raise lost[0]


_Row = dict[str, Any] | None  # None: not sent


def _in_turn(send: Callable[[Prompt], _Row], prompts: Sequence[Prompt]) -> Generator[_Row, None, None]:
    """One after the other: nothing is sent while a row is being stored."""
    for prompt in prompts:
        yield send(prompt)


def _side_by_side(
    send: Callable[[Prompt], _Row], prompts: Sequence[Prompt], concurrency: int, company: Sequence[Prompt]
) -> Generator[_Row, None, None]:
    pool = ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="request")
    fillers = itertools.cycle(company)
    wanted = {pool.submit(send, prompt) for prompt in prompts}
    beside: set[Future[_Row]] = set()
    try:
        while wanted:
            while company and len(wanted) + len(beside) < concurrency:
                beside.add(pool.submit(send, next(fillers)))
            done, _ = wait(wanted | beside, return_when=FIRST_COMPLETED)
            for future in done & wanted:
                yield future.result()
            wanted, beside = wanted - done, beside - done
        wait(beside)  # whatever is measured next has the server to itself
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _failed_row(prompt: Prompt, sent_at: str, error: Exception) -> dict[str, Any]:
    outcome = {"sent_at": sent_at, "degenerate": False, "output_ids": [], "error": one_line(error)}
    return {"prompt_id": prompt.id, "kind": prompt.kind, **outcome}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def first_difference(ids_a: Sequence[int], ids_b: Sequence[int]) -> int | None:
    """Index of the first token in which two outputs differ; the shorter's length where it is a start of the longer.

    None when they are equal.
    """
    for place, (a, b) in enumerate(zip(ids_a, ids_b, strict=False)):
        if a != b:
            return place
    return None if len(ids_a) == len(ids_b) else min(len(ids_a), len(ids_b))
