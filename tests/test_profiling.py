"""What notebook 04 keeps of its traced windows, from recorded windows of an H200 and of a CPU."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from breakeven.errors import UserError
from breakeven.hosts import LOCAL
from breakeven.workload import profiling, untraced
from breakeven.workload.client import Client
from breakeven.workload.prompts import Prompt
from breakeven.workload.untraced import (
    LEAD,
    UNMEASURED,
    Answer,
    Measured,
    held_against,
    long_answer,
    stretches_of,
    untraced_cycle,
)

DATA = Path(__file__).parent / "data"
H200 = DATA / "h200-sglang-0.5.17"


def profile_of(
    monkeypatch: pytest.MonkeyPatch,
    run_dir: Path,
    windows: dict[str, Path],
    *,
    on_gpu: bool = True,
    measured: Measured = UNMEASURED,
    timed: bool = True,
) -> dict[str, Any]:
    """``cycle_shares`` with recorded traces in place of a server's: keyed by the first activity asked for."""
    asked = []

    def recorded(
        recorder: Any, prompt: Prompt, after: Sequence[int], steps: int, folder: Path, activities: list[str]
    ) -> Path:
        asked.append((activities, steps, len(after)))
        if "GPU" in activities:
            window = windows["both"]
        elif "host" in windows:
            window = windows["host"]
        else:
            raise UserError("no annotation")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(window, folder / "a.trace.json.gz"))

    monkeypatch.setattr(profiling._Recorder, "window", recorded)
    monkeypatch.setattr(profiling, "_on_gpu", lambda base_url: on_gpu)
    prompt = Prompt("p", "open chat", "Hello", 100)  # on a GPU 256 tokens are asked for: 127 cycles
    client: Any = Answering()
    folder = run_dir / "traces" / "launch"
    found = profiling.cycle_shares("http://127.0.0.1:1", client, prompt, 8, folder, measured=measured)
    # the host alone goes first: recording the device leaves it slower
    assert [each[:2] for each in asked] == ([(["CPU"], 64)] if on_gpu else []) + [(["CPU", "GPU"], 8)]
    assert [each[2] for each in asked] == ([2 * 23, 2 * 60] if timed else [0] * len(asked))  # the middle of the answer
    return dict(found["profile"])


class Answering:
    """A server that takes 9 ms once per request, 12 for less than four cycles, and for the n-th cycle of two tokens
    6 ms and n times 20 us."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def prompt_tokens(self, prompt: Prompt) -> int:
        return 30

    def generate(
        self, prompt: Prompt, *, baseline: bool, after: Sequence[int] = (), ignore_eos: bool = False
    ) -> dict[str, Any]:
        assert ignore_eos, "most answers end before the windows do"
        self.asked.append(prompt.max_new_tokens)
        before, cycles = len(after) // 2, (prompt.max_new_tokens - 1) // 2
        return {
            "verify_ct": cycles,
            "completion_tokens": 1 + 2 * cycles,
            "prompt_tokens": 30,
            "decode_s": (0.009 if cycles >= 4 else 0.012) + cycles / 1000 * mean_ms(range(before, before + cycles)),
            "output_ids": list(range(1 + 2 * cycles)),
        }


def mean_ms(cycles: range) -> float:
    return sum(6.0 + 0.02 * n for n in cycles) / len(cycles)


FULL_MS = mean_ms(range(60 + 1, 60 + 7))
"""Of those amid 127 that a full window of 8 steps counts, one of them a prefill."""
HOST_MS = mean_ms(range(23 + 16, 23 + 64))
"""Of those that the host's window of 64 counts, its first quarter left out."""


def test_a_gpu_s_parts_are_its_work_within_the_unstretched_cycle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    windows = {"both": H200 / "standalone-3.trace.json.gz", "host": H200 / "standalone-3.trace.json.gz"}
    profile = profile_of(monkeypatch, tmp_path, windows)
    assert list(profile["shares"]) == ["draft", "draft extend", "verify", "other"]
    assert sum(profile["shares"].values()) == pytest.approx(1)
    work = profile["work_ms"]
    assert profile["shares"]["verify"] * profile["cycle_ms"] == pytest.approx(work["verify"]["all"])
    assert 0 < profile["host_gap_ms"] < profile["cycle_ms"]
    assert abs(profile["work_residual"]) < 0.03
    assert profile["allreduce"]["count"] == 0
    assert profile["fused"] == []
    assert profile["trace"] == "traces/launch/a.trace.json.gz"
    untraced = profile["untraced"]
    assert untraced["cycle_ms"] == pytest.approx(FULL_MS)
    assert untraced["host_cycle_ms"] == pytest.approx(HOST_MS)
    assert profile["cycle_ms"] == untraced["cycle_ms"]
    assert untraced["device_off"] == pytest.approx(profile["launched_ms"] / FULL_MS - 1)
    assert untraced["host_off"] == pytest.approx(profile["host_window_ms"] / HOST_MS - 1)
    assert profile["host_gap_ms"] == pytest.approx(FULL_MS - profile["launched_ms"])
    assert profile["host_operator_us"] >= 0


def test_without_the_host_s_window_the_device_alone_is_held_against_the_cycle_and_the_reason_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    profile = profile_of(monkeypatch, tmp_path, {"both": H200 / "decode.trace.json.gz"})
    assert profile["cycle_ms"] == profile["untraced"]["cycle_ms"]
    assert "no annotation" in profile["host_window"]
    assert profile["untraced"]["nearer"] == "device" and "host_off" not in profile["untraced"]
    assert list(profile["shares"]) == ["target forward", "other"]


def test_a_cpu_needs_one_window(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    window = {"both": DATA / "cpu-standalone-2.trace.json.gz"}
    profile = profile_of(monkeypatch, tmp_path, window, on_gpu=False, timed=False)
    assert profile["device"] == "cpu"
    assert "host_window" not in profile and "untraced" not in profile
    assert sum(profile["shares"].values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("slow", "rounds", "factor"),
    [(range(0), 1, 1.0), (range(2, 26), 2, 1.0), (range(2, 1000), 3, 1.3), (range(2, 50), 3, 1.0)],
)
def test_the_untraced_cycle_waits_for_the_end_of_a_slow_spell_of_the_host_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slow: range, rounds: int, factor: float
) -> None:
    measured = Answering.generate

    def generate(
        self: Answering, prompt: Prompt, *, baseline: bool, after: Sequence[int] = (), ignore_eos: bool
    ) -> dict[str, Any]:
        sample = measured(self, prompt, baseline=baseline, after=after, ignore_eos=ignore_eos)
        number = len(self.asked) - 1  # the first two tell how many cycles there are
        return sample | {"decode_s": sample["decode_s"] * (1.3 if number in slow else 1.0)}

    monkeypatch.setattr(Answering, "generate", generate)
    monkeypatch.setattr(untraced, "BETWEEN_ROUNDS_S", 0.0)
    windows = {"both": H200 / "standalone-3.trace.json.gz"}
    found = profile_of(monkeypatch, tmp_path, windows, measured=Measured(8.0))["untraced"]
    assert found["rounds"] == rounds
    assert found["cycle_ms"] == pytest.approx(factor * FULL_MS)
    assert found["host_cycle_ms"] == pytest.approx(factor * HOST_MS)


def test_disturbed_short_answers_make_no_round_the_quickest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow short answer makes the difference to the long one smaller, and the cycle of that pair shorter."""
    measured = Answering.generate

    def generate(self: Answering, prompt: Prompt, **options: Any) -> dict[str, Any]:
        sample = measured(self, prompt, **options)
        disturbed = len(self.asked) <= 8 and prompt.max_new_tokens == 19
        slow = len(self.asked) <= 24 and prompt.max_new_tokens > 19
        return sample | {"decode_s": sample["decode_s"] * (1.3 if disturbed else 1.2 if slow else 1.0)}

    monkeypatch.setattr(Answering, "generate", generate)
    monkeypatch.setattr(untraced, "BETWEEN_ROUNDS_S", 0.0)
    client: Any = Answering()
    stretches = {"device": untraced.Stretch(long=31, short=19), "host": untraced.Stretch(long=129, short=33)}
    prompt = Prompt("p", "k", "Hello", 256)
    found = untraced.before_recording(client, prompt, stretches, Measured(6.5))
    assert found["rounds"] == 2 and found["cycle_ms"] == pytest.approx(mean_ms(range(9, 15)))


@pytest.mark.parametrize(("longer", "rounds"), [(0.98, 1), (1.015, 1), (1.05, 3)])
def test_pairs_are_taken_again_where_the_host_slowed_down_since_not_where_two_measurements_differ_a_little(
    monkeypatch: pytest.MonkeyPatch, longer: float, rounds: int
) -> None:
    monkeypatch.setattr(untraced, "BETWEEN_ROUNDS_S", 0.0)
    client: Any = Answering()
    stretches = {"device": untraced.Stretch(long=31, short=19)}
    measured = Measured(mean_ms(range(9, 15)) / longer)
    assert untraced.before_recording(client, Prompt("p", "k", "Hello", 256), stretches, measured)["rounds"] == rounds


def test_a_round_that_tells_no_cycle_loses_none_that_did(monkeypatch: pytest.MonkeyPatch) -> None:
    alike = untraced.Stretch(long=3, short=3)
    client: Any = Answering()
    prompt = Prompt("p", "k", "Hello", 256)
    stretches = {"device": untraced.Stretch(long=31, short=19), "host": alike}
    found = untraced.before_recording(client, prompt, stretches, UNMEASURED)
    assert found["cycle_ms"] == pytest.approx(mean_ms(range(9, 15))) and found["host_cycle_ms"] is None
    assert held_against(found, 6.0, 6.1)["nearer"] == "device"
    assert untraced.before_recording(client, prompt, {"device": alike, "host": alike}, UNMEASURED) == {}
    assert untraced.before_recording(client, prompt, {}, UNMEASURED) == {}


@pytest.mark.parametrize("activities", [["CPU"], ["CPU", "GPU"]], ids=["host window", "full window"])
def test_a_trace_of_an_earlier_launch_is_never_taken_for_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, activities: list[str]
) -> None:
    folder = tmp_path / "traces" / "launch-proof"
    folder.mkdir(parents=True)
    (folder / "1764470000.0-TP-0.trace.json.gz").write_bytes(b"an earlier launch's")

    @contextlib.contextmanager
    def server(base_url: str, timeout_s: float) -> Iterator[Any]:
        yield SimpleNamespace(post=lambda path, json=None: httpx.Response(200, request=httpx.Request("POST", path)))

    def traced(prompt: Prompt, *, baseline: bool, after: Sequence[int], ignore_eos: bool) -> dict[str, Any]:
        (folder / "1764480000.0-TP-0.trace.json.gz").write_bytes(b"this launch's")
        return {"verify_ct": None, "completion_tokens": 9}

    def silent(prompt: Prompt, *, baseline: bool, after: Sequence[int], ignore_eos: bool) -> dict[str, Any]:
        return {"verify_ct": None, "completion_tokens": 9}

    def trace(generate: Any) -> bytes:
        client: Any = SimpleNamespace(generate=generate)
        prompt = Prompt("p", "open chat", "Hello", 9)
        recorder = profiling._Recorder("http://x", client, LOCAL)
        return recorder.window(prompt, (), 4, folder, activities).read_bytes()

    monkeypatch.setattr(profiling.readiness, "client", server)
    assert trace(traced) == b"this launch's"
    monkeypatch.setattr(profiling, "TRACE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(profiling, "STOPS_BY_ITSELF_S", 0.0)
    with pytest.raises(TimeoutError, match="no trace appeared"):
        trace(silent)


@given(cycle_ms=st.floats(0.1, 100), once_ms=st.floats(0, 100), short=st.integers(1, 500), more=st.integers(1, 500))
def test_what_a_request_costs_once_is_no_part_of_the_cycle(
    cycle_ms: float, once_ms: float, short: int, more: int
) -> None:
    pair = [Answer(n, n * cycle_ms + once_ms) for n in (short + more, short)]
    found = untraced_cycle([*pair, *pair])
    assert found["cycle_ms"] == pytest.approx(cycle_ms, rel=1e-6, abs=1e-6)


def test_two_answers_of_one_length_tell_no_cycle() -> None:
    assert untraced_cycle([Answer(2, 21.0), Answer(2, 21.0)]) == {} == untraced_cycle([])
    found = untraced_cycle([Answer(2, 21.0), Answer(2, 21.0), Answer(12, 81.0), Answer(2, 21.0)])
    assert found == {"cycle_ms": 6.0, "cycles_ms": [6.0], "n": 10}


@pytest.mark.parametrize(
    ("text_tokens", "context_length", "asked", "behind"),
    [
        (None, None, 256, 30 + 127),  # the middle of the answer
        (30 + 60, None, 256, 30 + 60),  # short measured answers
        (30 + 500, None, 628, 30 + 500),  # long ones
        (30 + 500, 400, 369, None),  # which a server can't give
        (30.0, None, 256, 38 + 2 * LEAD),  # no window lies in the first cycles: 1 to 7 after them, of 2 tokens
    ],
)
def test_the_windows_lie_behind_as_much_text_as_the_measured_cycles_had(
    text_tokens: float | None, context_length: int | None, asked: int, behind: float | None
) -> None:
    client: Any = Answering()
    prompt, sample = long_answer(client, Prompt("p", "k", "Hello", 100), text_tokens, context_length)
    assert prompt.max_new_tokens == asked and client.asked == [asked] * 2, "a drafter that learns has seen the text"
    stretches = stretches_of(sample, 8, text_tokens)
    for stretch in stretches.values():
        first, last = ((tokens - 1) / 2 for tokens in (stretch.short, stretch.long))
        assert stretch.text_tokens == pytest.approx(30 + len(stretch.pair_after) + first + last, abs=2)
        assert stretch.short > 1 + 2 * LEAD, "both answers are past their first cycles"
        assert len(stretch.pair_after) + stretch.long <= asked
    if behind:
        assert stretches["device"].text_tokens == pytest.approx(behind, abs=3)


@example(cycles=14, per_cycle=2.5, steps=4, text_tokens=2000.0)  # halves, rounded up twice
@given(
    cycles=st.integers(1, 120),
    per_cycle=st.one_of(st.just(1.0), st.floats(1.0, 7.0)),
    steps=st.integers(3, 64),
    text_tokens=st.one_of(st.none(), st.floats(0, 2000)),
)
def test_pairs_span_the_window_s_cycles_within_the_answer_and_past_its_first_ones_where_it_is_long_enough(
    cycles: int, per_cycle: float, steps: int, text_tokens: float | None
) -> None:
    tokens = 1 + round(cycles * per_cycle)
    told = {"verify_ct": None if per_cycle == 1 else cycles, "completion_tokens": tokens, "decode_s": 1.0}
    sample = {**told, "prompt_tokens": 30, "output_ids": list(range(tokens))}
    per_cycle = (tokens - 1) / cycles
    for whose, stretch in stretches_of(sample, steps, text_tokens).items():
        window, left_out = (steps - 1, 0) if whose == "device" else (64, 16)
        lead = (len(stretch.after) - len(stretch.pair_after)) / per_cycle
        counted = min(window, cycles)
        first = max(1, left_out * counted // window)
        assert stretch.long + len(stretch.pair_after) <= tokens
        assert stretch.after[: len(stretch.pair_after)] == stretch.pair_after
        assert (stretch.long - stretch.short) / per_cycle == pytest.approx(counted - first, abs=1.01)
        assert (stretch.short - 1) / per_cycle == pytest.approx(lead + first, abs=1.01)
        if cycles >= window + LEAD:
            assert (stretch.short - 1) / per_cycle >= LEAD
        else:
            assert lead <= max(0, cycles - window) + 1.01


def test_a_window_goes_on_from_what_was_answered_before_within_the_answer_s_length(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    posted: list[dict[str, Any]] = []

    def traced(request: httpx.Request) -> httpx.Response:
        posted.append(json.loads(request.content))
        (tmp_path / "1764480000.0-TP-0.trace.json.gz").write_bytes(b"a trace")
        meta = {"prompt_tokens": 3, "completion_tokens": 6, "finish_reason": {"type": "length"}}
        return httpx.Response(200, json={"text": "", "output_ids": [9] * 6, "meta_info": meta})

    @contextlib.contextmanager
    def server(base_url: str, timeout_s: float) -> Iterator[Any]:
        yield SimpleNamespace(post=lambda path, json=None: httpx.Response(200, request=httpx.Request("POST", path)))

    monkeypatch.setattr(profiling.readiness, "client", server)
    client = Client("http://127.0.0.1:1", lambda text: [1, 2, 3])
    client._http = httpx.Client(base_url="http://127.0.0.1:1", transport=httpx.MockTransport(traced))
    recorder = profiling._Recorder("http://127.0.0.1:1", client, LOCAL)
    recorder.window(Prompt("p", "k", "Hello", 10), (7, 8, 7, 8), 4, tmp_path, ["CPU"])
    (request,) = posted
    assert request["input_ids"] == [1, 2, 3, 7, 8, 7, 8]
    assert request["sampling_params"] == {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True}


@pytest.mark.parametrize("fails", [False, True])
def test_the_kernels_of_a_target_forward_are_those_of_one_window_or_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: bool
) -> None:
    def window(*_: Any) -> Path:
        if fails:
            raise TimeoutError("no trace appeared")
        return H200 / "standalone-3.trace.json.gz"

    monkeypatch.setattr(profiling._Recorder, "window", window)
    client: Any = Answering()
    found = profiling.target_kernels("http://127.0.0.1:1", client, Prompt("p", "k", "Hello", 9), 4, tmp_path)
    assert found is None if fails else (found is not None and found[0]["count"] == 0 and found[1] == [])
    assert client.asked == [], "no answer is timed"


@given(device_ms=st.floats(1, 20), host_ms=st.floats(1, 20), recorder=st.floats(1, 2))
def test_a_device_that_sets_the_pace_is_found_however_slow_the_recorder_makes_the_host(
    device_ms: float, host_ms: float, recorder: float
) -> None:
    cycle_ms = max(device_ms, host_ms)  # the slower of the two
    untraced = {"cycle_ms": cycle_ms, "host_cycle_ms": cycle_ms}
    found = held_against(untraced, device_ms, max(cycle_ms, host_ms * recorder))
    assert abs(found["off"]) <= min(abs(found["device_off"]), abs(found["host_off"])) + 1e-12
    if device_ms >= host_ms:
        assert found["off"] == 0
    assert found["off"] == found[f"{found['nearer']}_off"]


def test_two_windows_of_an_h200_that_bound_its_cycle() -> None:
    slowed = held_against(
        {"cycle_ms": 5.486, "host_cycle_ms": 5.486}, 5.349, 7.499
    )  # STANDALONE, one step: the recorder made the host the slower one
    assert (slowed["nearer"], round(slowed["off"], 3)) == ("device", -0.025)
    late = held_against(
        {"cycle_ms": 9.332, "host_cycle_ms": 9.332}, 10.738, 9.304
    )  # two GPUs: one's all-reduces wait for a late other, recorded
    assert (late["nearer"], round(late["off"], 3)) == ("host", -0.003)


def test_a_release_that_reports_no_times_is_traced_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def timeless(
        self: Answering, prompt: Prompt, *, baseline: bool, after: Sequence[int] = (), ignore_eos: bool
    ) -> dict[str, Any]:
        return {"verify_ct": None, "completion_tokens": 9, "prompt_tokens": 30, "decode_s": None}

    monkeypatch.setattr(Answering, "generate", timeless)
    window = H200 / "standalone-3.trace.json.gz"
    profile = profile_of(monkeypatch, tmp_path, {"both": window, "host": window}, timed=False)
    assert "untraced" not in profile
    assert profile["cycle_ms"] == profile["host_window_ms"]
