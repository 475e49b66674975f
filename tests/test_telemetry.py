"""Decode lines, whole logs, per-request figures and settings, over SGLang releases."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import UserError
from breakeven.telemetry import (
    KNOWN_ALGORITHMS,
    check_algorithm,
    cycle_ms,
    format_decode_line,
    ngram_flags,
    parse_decode_line,
    read_log,
    read_log_lines,
    request_sample,
    server_settings,
)

H200 = Path(__file__).parent / "data" / "h200-sglang-0.5.17"

# One line of each form that a release prints, with what it says: (release, line, expected part of the row).
FORMS = [
    (
        "0.4.4",
        "[2025-03-14 10:00:01 TP0] Decode batch. #running-req: 1, #token: 1507, token usage: 0.01, "
        "gen throughput (token/s): 53.49, largest-len: 0, #queue-req: 0, ",
        {"running": 1, "accept_length": None, "gen_tok_s": 53.49, "graph": None, "queue": 0, "rank": "TP0"},
    ),
    (
        "0.4.4",
        "[2025-03-14 10:00:01 TP0] Decode batch. #running-req: 2, #token: 1507, token usage: 0.01, "
        "accept len: 2.53, gen throughput (token/s): 153.49, largest-len: 0, #queue-req: 7, ",
        {"running": 2, "accept_length": 2.53, "gen_tok_s": 153.49, "queue": 7},
    ),
    (
        "0.4.9",
        "[2025-07-01 10:00:01 DP0 TP3] Decode batch. #running-req: 1, #token: full=310, swa=128, token usage: "
        "full=0.31, swa=0.12, cuda graph: True, gen throughput (token/s): 80.00, #queue-req: 0",
        {"tokens": 310, "token_usage": 0.31, "graph": True, "rank": "DP0 TP3"},
    ),
    (
        "0.5.3.post3",
        "[2025-10-20 10:00:01] Decode batch. #running-req: 1, #full token: 99, full token usage: 0.10, mamba num: 3, "
        "mamba usage: 0.04, accept len: 3.00, accept rate: 0.75, npu graph: False, gen throughput (token/s): 41.00, "
        "#queue-req: 0, ",
        {"tokens": 99, "mamba_num": 3, "mamba_usage": 0.04, "accept_length": 3.0, "graph": False},
    ),
    (
        "0.5.9",
        "[2026-02-01 10:00:01] Decode batch [1234], #running-req: 4, #token: 400, token usage: 0.02, accept len: 1.80, "
        "accept rate: 0.45, cpu graph: False, gen throughput (token/s): 165.59, #queue-req: 1",
        {"running": 4, "accept_length": 1.8, "gen_tok_s": 165.59, "graph": False, "queue": 1},
    ),
    (
        "0.5.18",
        "\x1b[32m[2026-07-01 10:00:01.123 DP1 TP0 EP0]\x1b[0m Decode batch, #running-req: 1, #token: 93, token usage: "
        "0.00, accept len: 2.00, accept rate: 0.33, cap len: 3.50, block accept len: 4.25, cuda graph: True, gen "
        "throughput (token/s): 328.38, #queue-req: 0, est. decode TFLOPS/s (per GPU): 1.20, est. read BW (GB/s per "
        "GPU): 2000.00",
        {"accept_length": 2.0, "block_accept_length": 4.25, "cap_length": 3.5, "rank": "DP1 TP0 EP0", "queue": 0},
    ),
    (
        "0.5.18",
        "(SchedulerActor pid=77) [2026-07-01 10:00:01] Decode batch, #running-req: 1, #token: 93, token usage: 0.00, "
        "block accept len: 4.25, cuda graph: True, gen throughput (token/s): 9.00, #queue-req: 0",
        {"accept_length": None, "block_accept_length": 4.25},
    ),
]


WRAPPED = (
    '{"log":"\\u001b[36m[2026-02-01 10:00:01]\\u001b[0m Decode batch, #running-req: 4, #token: 400, token usage: 0.02, '
    'musa graph: True, #transfer-req: 0, gen throughput (token/s): 165.59, #queue-req: 1\\n","stream":"stderr"}'
)
FORMS.append(("0.5.9", WRAPPED, {"running": 4, "graph": True, "gen_tok_s": 165.59, "queue": 1}))


@pytest.mark.parametrize(("release", "line", "expected"), FORMS)
def test_every_form_of_the_decode_line_parses(release: str, line: str, expected: dict) -> None:
    row = parse_decode_line(line, 7)
    assert row is not None
    assert row["line"] == 7
    assert {name: row[name] for name in expected} == expected
    assert "accept_rate" not in row


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Decode batch",
        "[2026-07-01 10:00:01] Decode batch, #running-req: 1, #token: 93, token us",  # cut off
        "[2026-07-01 10:00:01] Prefill batch, #new-seq: 1, #running-req: 0, input throughput (token/s): 1.85",
        "[2026-07-01 10:00:01] Decode batch, #running-req: 1, gen throughput (token/s): nan, #queue-req: 0",
        "\x00\xff\xfe",
    ],
)
def test_what_is_no_whole_decode_line_gives_none(text: str) -> None:
    assert parse_decode_line(text) is None


def test_a_line_cut_off_by_the_next_one_gives_the_next_one() -> None:
    whole = FORMS[4][1]
    row = parse_decode_line("[2026-02-01 10:00:00] Decode batch [1233], #running-req: 9, #tok" + whole)
    assert row is not None
    assert (row["running"], row["time"]) == (4, "2026-02-01 10:00:01")


FIGURES = ("time", "rank", "running", "tokens", "token_usage", "accept_length", "gen_tok_s", "graph")
BEFORE = FORMS[1][1].replace("TP0", "DP1 TP0").rstrip(", ")
PREFILL = (
    "[2026-03-01 12:02:00 TP1] Prefill batch, #new-seq: 1, #new-token: 8, #cached-token: 0, token usage: 0.50, "
    "#running-req: 5, #queue-req: 3, cuda graph: False, input throughput (token/s): 12.00"
)


def figures(line: str) -> list[tuple]:
    """What the rows of a log with this line say."""
    return [tuple(row[name] for name in FIGURES) for row in read_log_lines([(1, line)])["decode"]]


@pytest.mark.parametrize("line", [form[1] for form in FORMS], ids=[form[0] for form in FORMS])
def test_lines_run_together_or_cut_off_never_mix(line: str) -> None:
    whole, before = figures(line), figures(BEFORE)
    assert (len(whole), len(before)) == (1, 1)
    assert figures(BEFORE + line) == before + whole
    assert figures(line + PREFILL) == whole
    assert figures(line + PREFILL[PREFILL.index("Prefill") :]) == whole
    assert figures(PREFILL + line) == whole
    cut = line.index("#queue-req: ") + len("#queue-req: ")
    for length in range(len(line)):
        expected = whole if length > cut else []
        assert figures(line[:length]) == expected
        assert figures(line[:length] + PREFILL) == expected
        assert figures(line[:length] + BEFORE) == expected + before


RELEASES = ["0.4.4", "0.4.6", "0.4.6.post5", "0.4.9", "0.5.2", "0.5.3.post3", "0.5.5", "0.5.9", "0.5.12", "0.5.23"]


@given(
    version=st.sampled_from(RELEASES),
    rank=st.none() | st.sampled_from(["TP0", "DP0 TP0", "DP3 TP1 EP1", "TP15 PP1"]),
    running=st.integers(0, 4096),
    tokens=st.integers(0, 10**7),
    usage=st.integers(0, 100),
    accept=st.none() | st.integers(100, 1600),
    rate=st.integers(0, 10**7),
    queue=st.integers(0, 1000),
    graph=st.booleans(),
    mamba=st.booleans(),
)
def test_what_a_release_prints_is_read_back(
    version: str,
    rank: str | None,
    running: int,
    tokens: int,
    usage: int,
    accept: int | None,
    rate: int,
    queue: int,
    graph: bool,
    mamba: bool,
) -> None:
    row = {
        "line": 1,
        "time": "2026-11-29 15:58:49",
        "rank": rank,
        "running": running,
        "tokens": tokens,
        "token_usage": usage / 100,
        "accept_length": None if accept is None else accept / 100,
        "gen_tok_s": rate / 100,
        "graph": graph if version not in ("0.4.4", "0.4.6") else None,
        "queue": queue,
    }
    if mamba:
        row |= {"mamba_num": 3, "mamba_usage": 0.25}
    assert parse_decode_line(format_decode_line(row, version), 1) == row


# Five lines of a public log. The first counts from the start of the server.
PUBLIC = [(2.17, 0.39), (1.95, 178.86), (1.80, 165.41), (2.05, 188.68), (1.80, 165.59)]


def public_lines() -> list[str]:
    return [
        f"[2026-03-01 12:00:{second:02d} TP0] Decode batch. #running-req: 1, #token: {500 + 80 * second}, token usage: "
        f"0.01, accept len: {accept:.2f}, cuda graph: True, gen throughput (token/s): {rate:.2f}, #queue-req: 0, "
        for second, (accept, rate) in enumerate(PUBLIC)
    ]


def test_cycle_stays_while_accept_length_varies_and_the_first_line_is_left_out() -> None:
    log = read_log_lines(enumerate(public_lines(), 1))
    assert [row["after_idle"] for row in log["decode"]] == [True, False, False, False, False]
    assert [round(row["cycle_ms"], 2) for row in log["decode"][1:]] == [10.90, 10.88, 10.86, 10.87]
    (summary,) = log["summary"]
    assert summary["lines"] == 4
    assert round(summary["cycle_ms"], 2) == 10.88
    assert summary["accept_length"] == pytest.approx(1.90)
    # the rate that goes with the mean cycle and the mean accept length
    assert 1000 * summary["accept_length"] / summary["gen_tok_s"] == pytest.approx(summary["cycle_ms"])


def test_a_pause_between_requests_is_no_throughput() -> None:
    lines = public_lines()
    prefill = "[2026-03-01 12:09:00 TP0] Prefill batch. #new-seq: 1, #new-token: 6, #cached-token: 0, #running-req: 0"
    later = lines[1].replace("12:00:01", "12:09:01").replace("178.86", "150.00")
    rows = read_log_lines(enumerate([*lines, prefill, later], 1))["decode"]
    assert rows[-1]["after_idle"]
    silent = lines[1].replace("12:00:01", "12:09:01").replace("178.86", "0.50")
    assert read_log_lines(enumerate([*lines, silent], 1))["decode"][-1]["after_idle"]


def test_each_rank_has_its_own_first_line() -> None:
    lines = [line for pair in zip(public_lines(), public_lines(), strict=True) for line in pair]
    lines[1::2] = [line.replace(" TP0]", " DP1 TP0]") for line in lines[1::2]]
    rows = read_log_lines(enumerate(lines, 1))["decode"]
    assert [row["line"] for row in rows if row["after_idle"]] == [1, 2]


@pytest.mark.parametrize(
    ("name", "accept_length", "tok_s", "step_ms"),
    [
        ("base", None, 206.7, 4.84),
        ("sa1", 2.0, 284.0, 7.04),
        ("sa2", 2.0, 328.3, 6.09),
        ("sa3", 2.0, 303.9, 6.58),
        ("sa5", 2.0, 289.6, 6.91),
    ],
)
def test_sample_logs_give_the_rates_they_print(
    name: str, accept_length: float | None, tok_s: float, step_ms: float
) -> None:
    log = read_log(H200 / f"{name}.log")
    assert log["failure"] is None
    assert {row["accept_length"] for row in log["decode"]} == {accept_length}
    (summary,) = log["summary"]
    assert summary["gen_tok_s"] == pytest.approx(tok_s, abs=0.06)
    assert summary["cycle_ms"] == pytest.approx(step_ms, abs=0.006)


def test_the_looping_sample_shows_its_impossible_accept_length() -> None:
    log = read_log(H200 / "ng8.log")
    assert log["failure"] is None
    assert max(row["accept_length"] for row in log["decode"]) > 7


def test_a_log_with_junk_is_read_around_the_junk(tmp_path: Path) -> None:
    line = public_lines()[1].encode()
    junk = bytes(range(256)) * 300  # no newline for 76 kB but in the middle of the bytes
    path = tmp_path / "server.log"
    path.write_bytes(junk + b"\n" + line + b"\r\n\0\0" + b"10%|#  |\r20%|## |\r" + line + b"\nDecode batch, #runn")
    rows = read_log(path)["decode"]
    assert len(rows) == 2
    assert [row["gen_tok_s"] for row in rows] == [178.86, 178.86]


def test_line_numbers_count_newlines_only(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"a\n" + b"x" * 200_000 + b"\n 1%|\r 2%|\n" + public_lines()[1].encode())
    assert read_log(path)["decode"][0]["line"] == 4


def test_utf16_and_gzip_logs_are_read(tmp_path: Path) -> None:
    text = "\n".join(public_lines())
    (tmp_path / "utf16.log").write_bytes(text.encode("utf-16"))
    (tmp_path / "log.gz").write_bytes(gzip.compress(text.encode()))
    assert len(read_log(tmp_path / "utf16.log")["decode"]) == 5
    assert len(read_log(tmp_path / "log.gz")["decode"]) == 5


def test_an_empty_log_has_no_rows_and_no_failure(tmp_path: Path) -> None:
    path = tmp_path / "empty.log"
    path.touch()
    log = read_log(path)
    assert (log["decode"], log["summary"], log["failure"]) == ([], [], None)


def test_unreadable_logs_are_refused_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"x" * 10_000)[:20])
    (tmp_path / "damaged.gz").write_bytes(gzip.compress(b"x" * 10_000)[:10] + b"\xff" * 99)
    for path in (tmp_path / "missing.log", tmp_path, tmp_path / "cut.gz", tmp_path / "damaged.gz"):
        with pytest.raises(UserError) as error:
            read_log(path)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)


def test_a_log_of_200_megabytes_stays_within_bounded_memory() -> None:
    other = '[2026-03-01 12:00:01] INFO:     127.0.0.1:40404 - "GET /metrics HTTP/1.1" 200 OK ' + "x" * 20_000
    decode = public_lines()[1]

    def lines() -> Iterator[tuple[int, str]]:
        for number in range(1, 20_002, 2):
            yield number, other
            yield number + 1, decode

    assert 10_000 * (len(other) + len(decode)) > 200e6
    tracemalloc.start()
    log = read_log_lines(lines())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(log["decode"]) == 10_001
    assert peak < 40e6


def test_rows_beyond_the_bound_are_counted_and_summed_up() -> None:
    lines = ((number, public_lines()[1 + number % 4]) for number in range(1, 21_002))
    log = read_log_lines(lines)
    assert len(log["decode"]) == 20_000
    assert log["decode_omitted"] == 1_001
    assert log["decode"][0]["line"] == 1
    assert log["decode"][-1]["line"] == 21_001
    assert log["summary"][0]["lines"] == 21_000


def test_cycle_at_a_batch_counts_every_request() -> None:
    assert cycle_ms({"running": 4, "accept_length": 2.0, "gen_tok_s": 400.0}) == 20.0
    assert cycle_ms({"running": 1, "accept_length": None, "gen_tok_s": 200.0}) == 5.0
    assert cycle_ms({"running": 0, "accept_length": 2.0, "gen_tok_s": 100.0}) is None


# ---- per request

META_0_5_23 = {
    "id": "x",
    "finish_reason": {"type": "length", "length": 26},
    "prompt_tokens": 120,
    "completion_tokens": 26,
    "cached_tokens": 0,
    "e2e_latency": 1.60,
    "request_received_ts": 1795967000.0,
    "prefill_finished_time": 1795967000.2,
    "request_finished_ts": 1795967001.6,
    "spec_accept_length": 3.714,
    "spec_verify_ct": 7,
    "spec_correct_drafts_histogram": [1, 0, 0, 6],
}


def test_accept_length_leaves_out_the_token_that_the_prefill_made() -> None:
    sample = request_sample(META_0_5_23, baseline=False)
    assert sample["accept_length"] == pytest.approx(25 / 7)
    assert sample["server_accept_length"] == 3.714
    assert sample["correct_drafts_histogram"] == [1, 0, 0, 6]
    assert sample["finish"] == "length"
    # every verify emits its correct drafts and one token more, and the last may be cut at the length limit
    assert sum((drafts + 1) * count for drafts, count in enumerate([1, 0, 0, 6])) == 25


def test_decode_seconds_run_from_the_end_of_prefill() -> None:
    sample = request_sample(META_0_5_23, baseline=False)
    assert sample["decode_s"] == pytest.approx(1.4, abs=1e-6)
    assert sample["decode_s_from"] == "prefill_finished_time"
    assert sample["e2e_s"] == 1.60


def test_a_release_without_stamps_says_that_prefill_is_included() -> None:
    meta = {"completion_tokens": 26, "prompt_tokens": 5, "e2e_latency": 1.6, "spec_verify_ct": 25}
    sample = request_sample(meta | {"finish_reason": {"type": "stop"}}, baseline=False)
    assert (sample["decode_s"], sample["decode_s_from"]) == (1.6, "e2e_latency")
    assert sample["accept_length"] == 1.0
    assert sample["server_accept_length"] is None
    without = request_sample({"completion_tokens": 26}, baseline=True)
    assert (without["decode_s"], without["decode_s_from"], without["finish"]) == (None, None, None)


def test_a_baseline_has_no_verifies() -> None:
    sample = request_sample(META_0_5_23, baseline=True)
    assert sample["verify_ct"] is None
    assert sample["accept_length"] is None
    assert sample["server_accept_length"] is None


def test_verifies_are_counted_from_the_histogram_where_the_count_is_missing() -> None:
    meta = {"completion_tokens": 26, "spec_accept_histogram": [1, 0, 0, 6]}  # the name of 0.5.9
    assert request_sample(meta, baseline=False)["verify_ct"] == 7
    assert request_sample({"completion_tokens": 1}, baseline=False)["verify_ct"] == 0
    assert request_sample({"completion_tokens": 9}, baseline=False)["verify_ct"] is None


def test_meta_of_something_else_is_refused() -> None:
    with pytest.raises(UserError, match="completion_tokens"):
        request_sample({"usage": 3}, baseline=True)


# ---- settings


def test_what_the_scheduler_says_goes_before_what_it_was_asked() -> None:
    info = {
        "version": "0.5.23",
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 8,
        "max_running_requests": None,
        "tp_size": 8,
        "context_length": None,
        "context_len": 4096,
        "attention_backend": "triton",
        "internal_states": [
            {
                "speculative_num_draft_tokens": 4,
                "effective_max_running_requests_per_dp": 48,
                "avg_spec_accept_length": 2.5,
                "cuda_graph_config": {"decode": {"backend": "full", "bs": [1, 2, 4], "max_bs": 4}},
            }
        ],
    }
    settings = server_settings(info)
    assert settings["speculative_draft_tokens"] == 4
    assert settings["max_running_requests"] == 48
    assert settings["context_length"] == 4096
    assert settings["cuda_graph_batch_sizes"] == [1, 2, 4]
    assert settings["cuda_graph_disabled"] is False
    assert (settings["tp"], settings["avg_spec_accept_length"]) == (8, 2.5)


def test_graphs_that_were_not_captured_are_off_whatever_was_asked() -> None:
    asked = {"decode": {"backend": "full", "bs": [1, 2], "max_bs": 2}}
    settings = server_settings({"internal_states": [{"decode_cuda_graph_bs": [], "cuda_graph_config": asked}]})
    assert settings["cuda_graph_batch_sizes"] == []
    assert settings["cuda_graph_disabled"] is True


def test_a_missing_accept_length_is_not_one() -> None:
    assert server_settings({"version": "0.5.9", "internal_states": [{}]})["avg_spec_accept_length"] is None
    assert server_settings({"version": "0.4.4", "avg_spec_accept_length": 1.9})["avg_spec_accept_length"] == 1.9
    assert server_settings({"cuda_graph_bs": [1, 2], "cuda_graph_max_bs": 2})["cuda_graph_batch_sizes"] == [1, 2]


def test_accept_length_of_any_dp_rank() -> None:
    idle, busy = {"max_total_num_tokens": 5}, {"max_total_num_tokens": 7, "avg_spec_accept_length": 2.2}
    settings = server_settings({"internal_states": [None, idle, busy]})
    assert (settings["avg_spec_accept_length"], settings["max_total_tokens"]) == (2.2, 5)


# ---- what a release has


@pytest.mark.parametrize("algorithm", sorted(KNOWN_ALGORITHMS))
def test_every_algorithm_is_taken_by_the_newest_release(algorithm: str) -> None:
    check_algorithm(algorithm, "0.5.23")
    check_algorithm(algorithm.lower(), "0.5.23")


@pytest.mark.parametrize(
    ("algorithm", "version", "reason"),
    [
        ("EAGLE3", "0.4.4", "0.4.5"),
        ("STANDALONE", "0.5.1", "0.5.2"),
        ("NGRAM", "0.5.2", "0.5.3"),
        ("DFLASH", "0.5.9", "0.5.11"),
        ("UNO", "0.5.18", "0.5.20"),
        ("MTP", "0.5.23", "NEXTN"),
        ("EAGEL", "0.5.23", "EAGLE"),
        ("NGRAM", "latest", "release"),
    ],
)
def test_an_algorithm_that_the_release_lacks_is_refused(algorithm: str, version: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        check_algorithm(algorithm, version)


def test_ngram_flags_follow_the_release() -> None:
    assert ngram_flags("0.5.9")["max_depth"] == "--speculative-ngram-branch-length"
    assert ngram_flags("0.5.10")["max_depth"] == "--speculative-ngram-max-trie-depth"
    assert "max_match" not in ngram_flags("0.5.23")
