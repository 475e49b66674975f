"""The target's forward by its rows: which rows matter, and that a step is read at the right number in flight."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from breakeven import workload
from breakeven.config import SweepSettings
from breakeven.launch.design import plan_arms
from breakeven.sweep import expectations, forwards

ARMS = plan_arms(
    [
        {"algorithm": "NGRAM", "draft_tokens": [2, 4], "breadth": 1},
        {"algorithm": "EAGLE3", "model": "head", "steps": [1, 5], "topk": 1},
        {"algorithm": "EAGLE3", "model": "head", "steps": 3, "topk": 4, "draft_tokens": 16},
    ]
)


def test_rows_are_those_of_the_chains_for_every_number_of_streams() -> None:
    assert forwards.wanted_rows(ARMS, [1], 8) == [2, 4, 6]
    assert forwards.wanted_rows(ARMS, [1, 4], 16) == [2, 4, 6, 8, 16]


@pytest.mark.parametrize(
    ("effective", "rows"),
    [
        ({"cuda_graph_disabled": True, "cuda_graph_batch_sizes": []}, [2, 3, 6]),
        ({"cuda_graph_disabled": False, "cuda_graph_batch_sizes": [1, 2, 4, 8, 16]}, [2, 4, 8]),
        ({"cuda_graph_disabled": False, "cuda_graph_batch_sizes": [1, 2, 4, 8], "max_running_requests": 4}, [2, 4]),
    ],
)
def test_a_server_that_pads_is_asked_for_what_it_captured(effective: dict[str, Any], rows: list[int]) -> None:
    assert forwards.runnable_rows([2, 3, 6], effective) == rows


class Stepping:
    """Answers after a while, with the decode time of a server whose step takes 10 ms and 1 ms per request in flight."""

    def __init__(self) -> None:
        self._inside = 0
        self._lock = threading.Lock()
        self.sent: list[int] = []

    def generate(self, prompt: workload.Prompt, *, baseline: bool, temperature: float) -> dict[str, Any]:
        assert baseline
        with self._lock:
            self._inside += 1
            self.sent.append(prompt.max_new_tokens)
        time.sleep(0.05)
        with self._lock:
            step_s = (10 + self._inside) / 1000
        time.sleep(0.05)
        with self._lock:
            self._inside -= 1
        return {"prompt_id": prompt.id, "completion_tokens": 33, "decode_s": 32 * step_s, "error": None}


def test_a_step_is_told_by_the_number_of_requests_in_flight() -> None:
    server = Stepping()
    prompts = [workload.Prompt(str(i), "any", f"text {i}", 200) for i in range(3)]
    told = forwards.measure(server, prompts, [1, 2, 5])  # type: ignore[arg-type]
    assert told == {"1": pytest.approx(11.0), "2": pytest.approx(12.0), "5": pytest.approx(15.0)}
    assert max(server.sent) == forwards.ANSWER_TOKENS


def test_answers_that_are_too_short_to_tell_are_left_out() -> None:
    class Curt(Stepping):
        def generate(self, prompt: workload.Prompt, *, baseline: bool, temperature: float) -> dict[str, Any]:
            return super().generate(prompt, baseline=baseline, temperature=temperature) | {"completion_tokens": 2}

    assert forwards.measure(Curt(), [workload.Prompt("a", "any", "text", 9)], [2]) == {}  # type: ignore[arg-type]


def test_a_search_reads_between_measured_rows_and_not_beyond() -> None:
    arms = [expectations.Candidate(f"eagle-{k}", "eagle", "eagle", k) for k in (1, 2, 4)]
    lengths = (1.0, 1.5, 1.8, 1.9, 2.0)
    results = [
        expectations.Result("baseline", 0, "", 50.0, forward_ms={2: 20.0, 4: 22.0, 6: 30.0}),
        expectations.Result("eagle-4", 0, "", 50.0, 40.0, lengths),
    ]
    told = {each.arm: each for each in expectations.outlook(arms, results)}
    # five rows lie between four and six: 26 ms, so that 14 ms are the rest; of two drafts between 7 and 14
    assert told["eagle-2"].cycle_ms == pytest.approx(21.0 + (7 + 14) / 2)
    assert told["eagle-2"].tok_s_at_best == pytest.approx(1800 / ((21.0 + 7) * (1 - expectations.MARGIN_OF_REST)))


def test_a_forward_that_comes_out_longer_than_the_whole_cycle_leaves_no_rest() -> None:
    """Eight requests cost a little more than one with eight rows: that is no gain for shorter chains."""
    arms = [expectations.Candidate(f"ngram-{k}", "ngram", "ngram", k) for k in (3, 7)]
    results = [
        expectations.Result("baseline", 0, "", 50.0, forward_ms={4: 19.0, 8: 32.0}),
        expectations.Result("ngram-7", 0, "", 65.0, 29.0, (1.0, 1.3, 1.5, 1.6, 1.7, 1.8, 1.9, 1.9)),
    ]
    told = {each.arm: each for each in expectations.outlook(arms, results)}
    assert told["ngram-3"].cycle_ms == pytest.approx(19.0)


def test_between_two_lengths_a_forward_that_is_longer_than_the_cycle_counts_as_it_is() -> None:
    arms = [expectations.Candidate(f"ngram-{k}", "ngram", "ngram", k) for k in (3, 5, 7)]
    lengths = (1.0, 1.3, 1.5, 1.6, 1.7, 1.8, 1.9, 1.9)
    results = [
        expectations.Result("baseline", 0, "", 50.0, forward_ms={4: 19.0, 6: 31.0, 8: 32.0}),
        expectations.Result("ngram-3", 0, "", 65.0, 20.0, lengths[:4]),
        expectations.Result("ngram-7", 0, "", 65.0, 29.0, lengths),
    ]
    told = {each.arm: each for each in expectations.outlook(arms, results)}
    assert told["ngram-5"].cycle_ms == pytest.approx(31.0 + (1.0 - 3.0) / 2)


@pytest.mark.parametrize(("replicas", "rows"), [(1, [4]), (2, None)])
def test_replicas_share_the_requests_so_that_no_forward_is_read_off_them(
    monkeypatch: pytest.MonkeyPatch, replicas: int, rows: list[int] | None
) -> None:
    monkeypatch.setattr(forwards, "measure", lambda client, prompts, rows: {"rows": rows})
    settings = SweepSettings(drafters=[{"algorithm": "NGRAM", "draft_tokens": [4], "breadth": 1}])
    client: Any = None
    found = forwards.of_target({"dp": replicas}, settings, client, [], lambda text: None)
    assert found == ({"rows": rows} if rows else {})
