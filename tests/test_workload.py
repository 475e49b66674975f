"""The client against a small HTTP server that answers as SGLang does, well and badly."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import UserError
from breakeven.workload import (
    Client,
    Prompt,
    RequestFailed,
    ServerGone,
    chat_encoder,
    first_difference,
    run_requests,
)

# What SGLang 0.5.23 sends for a request, NGRAM with 4 draft tokens, --enable-metrics (times shortened).
META_INFO = {
    "id": "cfb4d576952346e6b4ba50fdbffd00c7",
    "finish_reason": {"type": "stop", "matched": 2},
    "prompt_tokens": 40,
    "prefill_finished_time": 1795973636.5,
    "queue_time": 0.0004,
    "completion_tokens": 6,
    "cached_tokens": 24,
    "e2e_latency": 0.75,
    "spec_accept_length": 3.0,
    "spec_verify_ct": 2,
    "spec_correct_drafts_histogram": [0, 1, 1],
    "request_finished_ts": 1795973637.0,
}
ANSWER = {"text": "Yes, it is.", "output_ids": [5, 6, 7, 8, 9, 2], "meta_info": META_INFO}

Script = Callable[[dict[str, Any]], Any]  # request body -> answer, or (status, text), or None: hang up


def encode(message: str) -> list[int]:
    return [1, *message.encode()]


def prompt(number: int) -> Prompt:
    return Prompt(f"chat-{number}", "open chat", f"Question {number}", 32)


PROMPTS = [prompt(number) for number in range(6)]


@contextmanager
def serving(script: Script) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server's address, and the bodies that it has received so far."""
    received: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.append({"path": self.path, **body})
            answer = script(body)
            if answer is None:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            status, text = answer if isinstance(answer, tuple) else (200, json.dumps(answer))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Keep the test's output clean."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def collect(script: Script, **options: Any) -> tuple[list[dict[str, Any]], ServerGone | None]:
    """The rows of six prompts, and what ended them early."""
    rows: list[dict[str, Any]] = []
    with serving(script) as (url, _), Client(url, encode, timeout_s=5) as client:
        try:
            run_requests(client, PROMPTS, baseline=False, on_sample=rows.append, **options)
        except ServerGone as error:
            return rows, error
    return rows, None


class TestGenerate:
    def test_sends_token_ids_greedy_and_stopping_at_the_end_of_sequence(self) -> None:
        with serving(lambda _: ANSWER) as (url, received), Client(url, encode) as client:
            client.generate(prompt(1), baseline=False)
        (body,) = received
        assert body["path"] == "/generate"
        assert body["input_ids"] == encode("Question 1")
        assert body["sampling_params"] == {"max_new_tokens": 32, "temperature": 0.0, "ignore_eos": False}
        assert "text" not in body

    def test_returns_the_row_of_the_samples_file(self) -> None:
        with serving(lambda _: ANSWER) as (url, _), Client(url, encode) as client:
            row = client.generate(prompt(1), baseline=False)
        assert (row["prompt_id"], row["kind"]) == ("chat-1", "open chat")
        assert (row["completion_tokens"], row["verify_ct"], row["accept_length"]) == (6, 2, 2.5)
        assert (row["decode_s"], row["e2e_s"], row["cached_tokens"], row["finish"]) == (0.5, 0.75, 24, "stop")
        assert row["output_ids"] == ANSWER["output_ids"]
        assert (row["repetition"], row["degenerate"], row["error"]) == (0.0, False, None)
        assert 0 < row["client_s"] < 5
        assert row["sent_at"].endswith("+00:00")

    def test_of_the_baseline_has_no_accept_length(self) -> None:
        with serving(lambda _: ANSWER) as (url, _), Client(url, encode) as client:
            row = client.generate(prompt(1), baseline=True)
        assert row["verify_ct"] is None
        assert row["accept_length"] is None

    def test_marks_a_looping_answer(self) -> None:
        looping = ANSWER | {"output_ids": [5, 6, 7] * 30}
        with serving(lambda _: looping) as (url, _), Client(url, encode) as client:
            row = client.generate(prompt(1), baseline=False)
        assert row["degenerate"]
        assert row["repetition"] > 0.9

    def test_ignores_a_proxy_of_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
        with serving(lambda _: ANSWER) as (url, _), Client(url, encode) as client:
            assert client.generate(prompt(1), baseline=False)["error"] is None

    @pytest.mark.parametrize(
        ("answer", "complaint"),
        [
            (
                (400, '{"error": {"message": "The input is longer than the context"}}'),
                "HTTP 400.*longer than the context",
            ),
            ((200, "<html>"), "no JSON"),
            ((200, '{"choices": []}'), "is this SGLang"),
            (
                ANSWER | {"meta_info": META_INFO | {"finish_reason": {"type": "abort", "message": "oom"}}},
                "aborted.*oom",
            ),
        ],
    )
    def test_that_is_answered_with_an_error_is_a_failed_request(self, answer: Any, complaint: str) -> None:
        with (
            serving(lambda _: answer) as (url, _),
            Client(url, encode) as client,
            pytest.raises(RequestFailed, match=complaint),
        ):
            client.generate(prompt(1), baseline=False)

    def test_without_a_listener_finds_the_server_gone(self) -> None:
        with serving(lambda _: ANSWER) as (url, _):
            pass
        with Client(url, encode) as client, pytest.raises(ServerGone, match="ConnectError"):
            client.generate(prompt(1), baseline=False)

    def test_without_an_answer_in_time_finds_the_server_gone(self) -> None:
        release = threading.Event()
        with serving(lambda _: release.wait(10) and ANSWER) as (url, _), Client(url, encode, timeout_s=0.2) as client:
            with pytest.raises(ServerGone, match=r"no answer within 0\.2 s"):
                client.generate(prompt(1), baseline=False)
            release.set()


class TestTopTwoGap:
    def test_asks_for_the_two_likeliest_tokens_after_the_prompt_and_the_common_start(self) -> None:
        def script(body: dict[str, Any]) -> dict[str, Any]:
            top = {"output_top_logprobs": [[[-0.5, 11, None], [-0.75, 12, None]]]}
            return ANSWER | {"meta_info": META_INFO | (top if body.get("return_logprob") else {})}

        with serving(script) as (url, received), Client(url, encode) as client:
            client.generate(prompt(3), baseline=False)
            assert client.top_two_gap("chat-3", [5, 6]) == pytest.approx(0.25)
        body = received[-1]
        assert body["input_ids"] == [*encode("Question 3"), 5, 6]
        assert body["top_logprobs_num"] == 2
        assert body["sampling_params"]["max_new_tokens"] == 1


class TestRunRequests:
    def test_in_turn_sends_nothing_before_the_row_before_is_stored(self) -> None:
        events: list[str] = []

        def script(body: dict[str, Any]) -> dict[str, Any]:
            events.append("sent")
            return ANSWER

        with serving(script) as (url, _), Client(url, encode) as client:
            run_requests(client, PROMPTS, baseline=False, on_sample=lambda _: events.append("stored"))
        assert events == ["sent", "stored"] * len(PROMPTS)

    def test_side_by_side_keeps_exactly_so_many_under_way(self) -> None:
        under_way = threading.Barrier(3, timeout=10)  # broken unless three requests meet in the server, twice
        caller = threading.current_thread()
        stored: list[tuple[str, threading.Thread]] = []

        def script(body: dict[str, Any]) -> dict[str, Any]:
            under_way.wait()
            return ANSWER

        with serving(script) as (url, _), Client(url, encode) as client:
            run_requests(
                client,
                PROMPTS,
                baseline=False,
                concurrency=3,
                on_sample=lambda row: stored.append((row["prompt_id"], threading.current_thread())),
            )
        assert sorted(name for name, _ in stored) == [each.id for each in PROMPTS]
        assert {thread for _, thread in stored} == {caller}

    @pytest.mark.parametrize("concurrency", [1, 3])
    def test_goes_on_after_a_failed_request_and_says_why(self, concurrency: int) -> None:
        bad = encode("Question 2")
        rows, lost = collect(
            lambda body: (500, "CUDA error") if body["input_ids"] == bad else ANSWER, concurrency=concurrency
        )
        assert lost is None
        assert {row["prompt_id"]: row["error"] for row in rows if row["error"]} == {"chat-2": "HTTP 500: CUDA error"}
        assert len(rows) == len(PROMPTS)

    @pytest.mark.parametrize("concurrency", [1, 2])
    def test_stops_when_the_server_dies_with_the_rows_so_far(self, concurrency: int) -> None:
        dying = encode("Question 2")
        rows, lost = collect(lambda body: None if body["input_ids"] >= dying else ANSWER, concurrency=concurrency)
        assert lost is not None
        good = [row["prompt_id"] for row in rows if not row["error"]]
        assert sorted(good) == ["chat-0", "chat-1"]
        assert 3 <= len(rows) <= 2 + concurrency
        assert all(row["error"].startswith("RemoteProtocolError") for row in rows if row["error"])

    @pytest.mark.parametrize("concurrency", [1, 2])
    def test_sends_no_more_when_the_caller_is_interrupted(self, concurrency: int) -> None:
        def interrupt(_: dict[str, Any]) -> None:
            raise KeyboardInterrupt

        with serving(lambda _: time.sleep(0.05) or ANSWER) as (url, received), Client(url, encode) as client:
            with pytest.raises(KeyboardInterrupt):
                run_requests(client, PROMPTS, baseline=False, on_sample=interrupt, concurrency=concurrency)
            time.sleep(0.3)
            assert len(received) < len(PROMPTS)


class TestChatEncoder:
    @staticmethod
    def model_folder(folder: Path, chat_template: str | None) -> Path:
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        words = Tokenizer(models.WordLevel({"?": 0, "user": 1, "says": 2, "hello": 3, "answer": 4}, unk_token="?"))
        words.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?", chat_template=chat_template)
        tokenizer.save_pretrained(folder)
        return folder

    def test_applies_the_models_chat_template_up_to_the_answer(self, tmp_path: Path) -> None:
        template = "{% for m in messages %}{{ m.role }} says {{ m.content }} {% endfor %}answer"
        assert chat_encoder(self.model_folder(tmp_path, template))("hello") == [1, 2, 3, 4]

    def test_without_a_template_gives_plain_tokens(self, tmp_path: Path) -> None:
        assert chat_encoder(self.model_folder(tmp_path, None))("hello") == [3]

    def test_of_a_folder_without_a_tokenizer_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="holds no tokenizer"):
            chat_encoder(tmp_path)


class TestFirstDifference:
    @given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
    def test_is_where_the_common_start_ends(self, a: list[int], b: list[int]) -> None:
        place = first_difference(a, b)
        assert place == first_difference(b, a)
        if place is None:
            assert a == b
        else:
            assert a[:place] == b[:place]
            assert a[place : place + 1] != b[place : place + 1]
