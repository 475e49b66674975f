"""The command line per release, and the life of a server seen through a stand-in that behaves as SGLang does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import UserError
from breakeven.hosts import LOCAL, Local, processes, supervise
from breakeven.server import LaunchFailure, launch, readiness, surroundings
from breakeven.server import lifecycle as server_module
from breakeven.server.command import Drafter, LaunchSpec, build_command, effective_drafter
from breakeven.server.installed import declared_flags
from breakeven.server.readiness import LogTail, Phases
from tests.stand_in import lay_out_stand_in

pytestmark = pytest.mark.process

SPEC = LaunchSpec(python="python", model_path="/models/m")


def _after(command: list[str], flag: str) -> str | None:
    return command[command.index(flag) + 1] if flag in command else None


# ---------------------------------------------------------------- drafters


def test_a_chain_has_one_more_draft_token_than_steps_whatever_was_asked():
    asked = Drafter("eagle3", model="d", steps=3, topk=1, draft_tokens=9)
    assert effective_drafter(asked) == Drafter("EAGLE3", model="d", steps=3, topk=1, draft_tokens=4)


def test_nextn_is_eagle_under_another_name():
    assert effective_drafter(Drafter("NEXTN", steps=2, topk=1)).algorithm == "EAGLE"


def test_ngram_gets_sglangs_defaults():
    assert effective_drafter(Drafter("NGRAM")) == Drafter("NGRAM", draft_tokens=12, breadth=10)
    assert effective_drafter(Drafter("NGRAM", draft_tokens=4, breadth=1)).draft_tokens == 4


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        (Drafter("EAGLE", steps=3), "steps=3 without topk crashes SGLang; give topk"),
        (Drafter("EAGLE", topk=4), "without steps ends in an AssertionError"),
        (Drafter("EAGLE3", draft_tokens=4), "without steps ends in an AssertionError"),
        (Drafter("EAGLE", steps=2, topk=4), "needs draft_tokens, from 2 to 21 with steps=2"),
        (Drafter("EAGLE", steps=2, topk=4, draft_tokens=22), "can't be taken from a tree of 20 tokens"),
        (Drafter("EAGLE", steps=2, topk=4, draft_tokens=1), "give 2 to 21"),
        (Drafter("EAGLE", steps=0, topk=1), "steps is 0; give a whole number from 1 up"),
        (Drafter("EAGLE", steps=True, topk=1), "steps is True"),
        (Drafter("STANDALONE", steps=2, topk=1), "needs a draft model"),
        (Drafter("NGRAM", steps=3), "NGRAM has no steps"),
        (Drafter(7), "algorithm is 7; give a text"),
        (Drafter("EAGLE3", model=7), "model is 7; give a text"),
        (Drafter("NGRAM", draft_tokens=1), "counts the root"),
        (Drafter("EAGLE", steps=2, topk=1, breadth=3), "settings of NGRAM"),
        (Drafter("MTP", steps=2, topk=1), "no speculative algorithm 'MTP'"),
        (Drafter("NGRM"), "did you mean 'NGRAM'"),
    ],
)
def test_settings_that_sglang_refuses_or_crashes_on_are_refused_before(drafter, message):
    with pytest.raises(UserError, match=message.replace("(", r"\(").replace("*", r"\*")):
        effective_drafter(drafter)


def test_an_algorithm_that_came_later_is_refused_for_the_release():
    with pytest.raises(UserError, match=r"came with SGLang 0\.5\.3 and this is 0\.5\.2"):
        build_command(LaunchSpec("python", "m", drafter=Drafter("NGRAM")), "0.5.2")


@given(steps=st.integers(1, 8), topk=st.integers(1, 8), draft_tokens=st.integers(2, 600))
def test_effective_settings_stay_as_they_are_and_fit_the_tree(steps, topk, draft_tokens):
    asked = Drafter("EAGLE", model="d", steps=steps, topk=topk, draft_tokens=draft_tokens)
    nodes = sum(topk if step == 0 else topk * topk for step in range(steps))
    try:
        effective = effective_drafter(asked)
    except UserError:
        assert topk > 1 and draft_tokens - 1 > nodes
    else:
        assert effective_drafter(effective) == effective
        assert effective.draft_tokens - 1 <= nodes


@pytest.mark.parametrize(
    ("drafter", "label"),
    [
        (Drafter("NGRAM", draft_tokens=4), "ngram-d4"),
        (Drafter("NGRAM", draft_tokens=8, breadth=1), "ngram-d8-b1"),
        (Drafter("EAGLE3", model="d", steps=3, topk=1), "eagle3-s3"),
        (Drafter("EAGLE3", model="d", steps=3, topk=4, draft_tokens=8), "eagle3-s3-k4-d8"),
    ],
)
def test_labels_tell_settings_apart(drafter, label):
    assert effective_drafter(drafter).label() == label


# ---------------------------------------------------------------- the command line


def test_the_command_holds_every_setting_that_was_given_and_no_other():
    spec = LaunchSpec(
        python="/venv/bin/python",
        model_path="/models/m",
        tp=8,
        dtype="bfloat16",
        context_length=4096,
        max_running_requests=16,
        port=21000,
        dist_port=21001,
        extra={
            "trust_remote_code": True,
            "--log-level": "info",
            "cuda-graph-bs-prefill": [1, 2],
            "x": None,
            "y": False,
        },
        prefix=("numactl", "--membind=0"),
    )
    command = build_command(spec, "0.5.23")
    assert " ".join(command) == (
        "numactl --membind=0 /venv/bin/python -m sglang.launch_server --model-path /models/m --host 127.0.0.1 "
        "--port 21000 --nccl-port 21001 --tp-size 8 --dtype bfloat16 --context-length 4096 --max-running-requests 16 "
        "--trust-remote-code --log-level info --cuda-graph-bs-prefill 1 2"
    )


@pytest.mark.parametrize(("version", "flag"), [("0.4.8", "--dist-init-addr"), ("0.4.9", "--nccl-port")])
def test_the_port_where_ranks_meet_is_named_as_the_release_needs(version, flag):
    command = build_command(LaunchSpec("python", "m", dist_port=21001), version)
    assert (_after(command, flag) or "").endswith("21001")
    replicas = build_command(LaunchSpec("python", "m", dist_port=21001, flags=("--dp-size", "2")), version)
    assert flag not in replicas, "each replica needs a port of its own"
    alone = build_command(
        LaunchSpec("python", "m", dist_port=21001, flags=("--dp-size=2", "--enable-dp-attention")), version
    )
    assert flag in alone


@pytest.mark.parametrize(
    ("version", "breadth", "depth"),
    [
        ("0.5.9", "--speculative-ngram-max-bfs-breadth", "--speculative-ngram-branch-length"),
        ("0.5.10", "--speculative-ngram-max-bfs-breadth", "--speculative-ngram-max-trie-depth"),
        ("0.5.23", "--speculative-ngram-max-bfs-breadth", "--speculative-ngram-max-trie-depth"),
    ],
)
def test_ngram_flags_are_named_as_the_release_names_them(version, breadth, depth):
    spec = LaunchSpec("python", "m", drafter=Drafter("NGRAM", draft_tokens=8, breadth=2, depth=7))
    command = build_command(spec, version)
    assert _after(command, "--speculative-algorithm") == "NGRAM"
    assert _after(command, "--speculative-num-draft-tokens") == "8"
    assert (_after(command, breadth), _after(command, depth)) == ("2", "7")


@pytest.mark.parametrize(
    ("version", "fusion", "expected"),
    [
        ("0.5.23", "default", []),
        ("0.5.23", "auto", ["--flashinfer-allreduce-fusion-backend", "auto"]),
        ("0.5.14", "trtllm", ["--flashinfer-allreduce-fusion-backend", "trtllm"]),
        ("0.5.13", "auto", ["--enable-flashinfer-allreduce-fusion"]),
        ("0.4.9", "auto", ["--enable-flashinfer-allreduce-fusion"]),
        ("0.5.23", "off", ["--enforce-disable-flashinfer-allreduce-fusion"]),
        ("0.5.9", "off", []),
    ],
)
def test_fusion_is_asked_for_as_the_release_takes_it(version, fusion, expected):
    command = build_command(LaunchSpec("python", "m", fusion=fusion), version)
    assert [argument for argument in command[command.index("--tp-size") + 2 :]] == expected


@pytest.mark.parametrize(("version", "flag"), [("0.5.13", "--cuda-graph-bs"), ("0.5.14", "--cuda-graph-bs-decode")])
def test_graph_batch_sizes_are_named_as_the_release_names_them(version, flag):
    command = build_command(LaunchSpec("python", "m", cuda_graph_batch_sizes=(1, 2, 4)), version)
    assert command[command.index(flag) :][:4] == [flag, "1", "2", "4"]


@pytest.mark.parametrize(
    ("spec", "version", "message"),
    [
        (LaunchSpec("python", "m", fusion="trtllm"), "0.5.9", "can't choose the fusion backend"),
        (LaunchSpec("python", "m", fusion="auto"), "0.4.8", "it came with 0.4.9"),
        (LaunchSpec("python", "m", fusion="of"), "0.5.23", "did you mean 'off'"),
        (LaunchSpec("python", "m", host="0.0.0.0"), "0.5.23", "loopback only"),
        (LaunchSpec("python", "m", host="box.example"), "0.5.23", "loopback only"),
        (LaunchSpec("python", "m", extra={"port": 1}), "0.5.23", "the suite chooses address and ports"),
        (LaunchSpec("python", "m", extra={"dtype": "half"}), "0.5.23", "by the parameter dtype"),
        (
            LaunchSpec("python", "m", extra={"device": "cpu"}, flags=("--device=cpu",)),
            "0.5.23",
            "--device is given twice",
        ),
        (LaunchSpec("python", "m"), "latest", "no SGLang release"),
    ],
)
def test_what_the_release_can_not_run_is_refused(spec, version, message):
    with pytest.raises(UserError, match=message):
        build_command(spec, version)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "8"), "parameter drafters"),
        (("--speculative-algorithm=NGRAM",), "parameter drafters"),
        (("--speculative-ngram-branch-length", "9"), r"parameter drafters \(depth\)"),
        (("--speculative-draft-model", "/d"), r"parameter drafters \(model\)"),
        (("--tensor-parallel-size", "4"), "parameter tp"),
        (("--tp-size", "4"), "parameter tp"),
        (("--model", "/other"), "parameter model"),
        (("--nccl-init-addr", "10.0.0.1:1"), "the suite chooses"),
        (("--config", "more.yaml"), "its file could set"),
    ],
)
def test_flags_that_are_parameters_are_refused_by_their_parameters_name(flags, name):
    with pytest.raises(UserError, match=rf"^{flags[0].partition('=')[0]} can't be a further flag.*{name}"):
        build_command(LaunchSpec("python", "m", flags=flags), "0.5.23")


def test_flags_that_no_parameter_sets_may_be_given():
    flags = ("--mem-fraction-static", "0.8", "--speculative-attention-mode", "decode", "--random-seed=3")
    assert tuple(build_command(LaunchSpec("python", "m", flags=flags), "0.5.23")[-5:]) == flags


def test_metrics_may_be_asked_for_by_the_user():
    spec = LaunchSpec("python", "m", extra={"enable_metrics": True}, flags=("--enable-metrics", "--trust-remote-code"))
    assert build_command(spec, "0.5.23")[-2:] == ["--enable-metrics", "--trust-remote-code"]
    with pytest.raises(UserError, match="--log-level is given twice"):
        build_command(LaunchSpec("python", "m", flags=("--log-level", "info", "--log-level", "info")), "0.5.23")


def test_defaults_give_way_to_whatever_is_set():
    defaults = (
        "--device",
        "cpu",
        "--max-total-tokens",
        "8192",
        "--log-level=info",
        "--cuda-graph-bs-prefill",
        "1",
        "2",
    )
    spec = LaunchSpec("python", "m", max_total_tokens=100, extra={"log_level": "debug"}, defaults=defaults)
    command = build_command(spec, "0.5.23")
    assert " ".join(command).endswith(
        "--max-total-tokens 100 --log-level debug --device cpu --cuda-graph-bs-prefill 1 2"
    )


def test_a_flag_that_the_release_does_not_declare_is_refused_with_the_nearest():
    known = {"--model-path", "--host", "--tp-size", "--mem-fraction-static"}
    with pytest.raises(
        UserError, match=r"0\.5\.23 has no flag --mem-fraction-statc; did you mean '--mem-fraction-static'"
    ):
        build_command(LaunchSpec("python", "m", extra={"mem_fraction_statc": 0.8}), "0.5.23", known)


def test_flags_are_read_from_calls_and_from_annotated_fields():
    calls = 'parser.add_argument("--tp-size", "--tensor-parallel-size", help="The --tp size")'
    fields = (
        "class Spec:\n"
        '    nccl_port: A[Optional[int], "The port."] = None\n'
        '    tp_size: A[int, Arg(help="x", aliases=["--tensor-parallel-size"])] = 1\n'
        "    inner: A[bool, Arg(no_cli=True)] = False\n"
        "    other: Optional[int] = None\n"
    )
    assert declared_flags([calls]) == {"--tp-size", "--tensor-parallel-size"}
    assert declared_flags([fields]) == {"--nccl-port", "--tp-size", "--tensor-parallel-size"}


def test_negated_flags_are_known():
    call = 'parser.add_argument("--lora-strict-loading", action=argparse.BooleanOptionalAction)'
    fields = (
        "class Spec:\n"
        '    enable_tf32: A[bool, Arg(help="x", aliases=["--tf32"], action=argparse.BooleanOptionalAction)] = True\n'
        '    enable_metrics: A[bool, Arg(help="y")] = False\n'
    )
    assert declared_flags([call]) == {"--lora-strict-loading", "--no-lora-strict-loading"}
    both = {"--enable-tf32", "--no-enable-tf32", "--tf32", "--no-tf32"}
    assert declared_flags([fields]) == {*both, "--enable-metrics"}


# ---------------------------------------------------------------- reading a start


def test_time_goes_to_the_phase_that_the_last_milestone_began():
    phases = Phases(100.0)
    log = [
        (103.0, "[2026-01-01 00:00:03 TP0] Init torch distributed begin."),
        (104.0, "[2026-01-01 00:00:04 TP0] Load weight begin. avail mem=139.09 GB"),
        (109.0, "[2026-01-01 00:00:09 TP0] Load weight end. elapsed=5 s"),
        (110.0, "[2026-01-01 00:00:10 TP0] KV Cache is allocated. #tokens: 456521"),
        (111.0, "[2026-01-01 00:00:11 TP0] Capture target verify CUDA graph begin. bs=[1, 2]"),
        (114.0, "[2026-01-01 00:00:14 TP0] Capture target verify CUDA graph end. elapsed=2.61 s"),
        (115.0, "[2026-01-01 00:00:15 TP0] Load weight begin. avail mem=69 GB"),  # the drafter's
        (117.0, "[2026-01-01 00:00:17 TP0] Load weight end. elapsed=2 s"),
        (118.0, "[2026-01-01 00:00:18 TP0] max_total_num_tokens=456521, chunked_prefill_size=8192"),
        (119.0, "[2026-01-01 00:00:19] INFO:     Uvicorn running on http://127.0.0.1:32428 (Press CTRL+C to quit)"),
        (122.0, "[2026-01-01 00:00:22] The server is fired up and ready to roll!"),
    ]
    for now_s, line in log:
        phases.feed(now_s, [line])
    assert phases.seconds(122.5) == {
        "import": 3.0, "load": 8.0, "pool": 4.0, "capture": 3.0, "http": 1.0, "warm-up": 3.0, "generation": 0.5,
    }  # fmt: skip


def test_a_tail_gives_every_line_once_across_a_change_of_files(tmp_path):
    path = tmp_path / "log"
    tail = LogTail(LOCAL, path)
    assert tail.new_lines() == []
    path.write_text("one\ntwo\nthr")
    assert tail.new_lines() == ["one", "two"]
    with path.open("a") as file:
        file.write("ee\n 50%|#\r100%|##\nfour\n")
    path.rename(tmp_path / "log.1")
    path.write_text("five\n")
    assert tail.new_lines() == ["three", " 50%|#", "100%|##", "four", "five"]
    assert tail.new_lines() == []


# ---------------------------------------------------------------- this machine


def test_free_ports_are_free_distinct_and_outside_the_ephemeral_range():
    host = Local()
    ports = [*host.free_ports(20), *host.free_ports(20)]
    assert len(set(ports)) == 40 and max(ports) < 32768
    assert all(host.port_is_free(port) for port in ports)


def test_a_port_with_a_listener_is_not_free():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert not LOCAL.port_is_free(listener.getsockname()[1])


def test_running_a_command_gives_its_outputs_and_ends_it_when_it_takes_too_long():
    done = LOCAL.run(
        [sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(4)"], timeout_s=30
    )
    assert (done.exit_code, done.stdout, done.stderr) == (4, "out\n", "err\n")
    with pytest.raises(TimeoutError, match=r"within 0\.2 s"):
        LOCAL.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout_s=0.2)


def test_files_are_written_whole_and_read_from_an_offset(tmp_path):
    LOCAL.write(tmp_path / "deep" / "file", b"0123\nnext\n")
    assert LOCAL.read(tmp_path / "deep" / "file", 5) == b"next\n"
    assert list(LOCAL.lines(tmp_path / "deep" / "file")) == ["0123", "next"]
    assert LOCAL.size(tmp_path / "deep" / "file") == 10 and LOCAL.size(tmp_path / "none") == 0
    LOCAL.remove(tmp_path / "deep" / "file")
    LOCAL.remove(tmp_path / "deep" / "file")
    assert not (tmp_path / "deep" / "file").exists()


# ---------------------------------------------------------------- the life of a server


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    """The environment in which ``-m sglang.launch_server`` is the stand-in, a release 0.5.23."""
    return {**os.environ, "PYTHONPATH": str(lay_out_stand_in(tmp_path / "site"))}


def _launch(tmp_path: Path, environment: dict[str, str], behaviour: str = "good", **options):
    spec = options.pop("spec", LaunchSpec(sys.executable, "/models/m", env={"BEHAVIOUR": behaviour}))
    options = {"ready_timeout_s": 60, "stall_timeout_s": 30, "record_path": tmp_path / "server.pid.json", **options}
    return launch(spec, tmp_path / "server.log", engine_env=environment, **options)


def _nothing_left(tmp_path: Path) -> bool:
    log = (tmp_path / "server.log").read_text()
    child = int(log.split("child ")[1].split()[0])
    assert not (tmp_path / "server.pid.json").exists()
    return not Path(f"/proc/{child}").exists()


def test_a_server_is_ready_once_it_has_generated_and_leaves_nothing_when_stopped(tmp_path, stand_in):
    said: list[str] = []
    with _launch(tmp_path, stand_in, on_progress=said.append) as server:
        assert server.alive() and server.failure() is None
        assert server.readiness["generation"]["text"] == "Monday"
        assert server.readiness["generation"]["tokens"] == readiness.PROMPT_TOKENS
        assert set(server.startup_s) >= {"import", "generation"} and min(server.startup_s.values()) >= 0
        assert server.info() == {"max_running_requests": 7, "tokenizer_mode": "auto"}
        record = server.record()
        port = server.spec.port
    assert record["status"] == "ready" and record["sglang_version"] == "0.5.23" and record["pid"] == server.pid
    assert record["effective"]["max_running_requests"] == 7
    assert record["requested"]["port"] == port and str(port) in record["command"]
    assert server.failure() is None, "a server that was asked to stop did not fail"
    assert _nothing_left(tmp_path) and not server.alive() and LOCAL.port_is_free(port)
    assert server.stop_seconds is not None and "ready after" in said[-1]
    server.stop()


def test_off_is_refused_where_a_release_can_not_keep_it_off(tmp_path):
    """0.5.0 to 0.5.9 switch fusion on by themselves for some models: only the server knows."""
    environment = {**os.environ, "PYTHONPATH": str(lay_out_stand_in(tmp_path / "site", "0.5.7"))}
    spec = LaunchSpec(sys.executable, "m", tp=2, fusion="off", env={"BEHAVIOUR": "fusing"})
    with pytest.raises(LaunchFailure, match="switched it on by itself") as caught:
        _launch(tmp_path, environment, spec=spec)
    assert caught.value.failure.cls == "config" and _nothing_left(tmp_path)
    for kept in (replace(spec, env={"BEHAVIOUR": "good"}), replace(spec, fusion="default"), replace(spec, tp=1)):
        _launch(tmp_path, environment, spec=kept).stop()


def test_a_baseline_that_speculates_is_no_baseline(tmp_path, stand_in):
    with pytest.raises(LaunchFailure, match=r"no drafter was asked for, and the server speculates \(EAGLE3\)"):
        _launch(tmp_path, stand_in, "speculating")
    assert _nothing_left(tmp_path)
    drafter = Drafter("NGRAM", draft_tokens=4)
    asked = LaunchSpec(sys.executable, "m", drafter=drafter, env={"BEHAVIOUR": "speculating"})
    _launch(tmp_path, stand_in, spec=asked).stop()


def test_a_release_without_server_info_is_asked_by_the_old_name(tmp_path, stand_in):
    with _launch(tmp_path, stand_in, "old") as server:
        assert server.info()["max_running_requests"] == 7


def test_a_start_that_ends_is_reported_at_once_with_class_line_and_advice(tmp_path, stand_in):
    began = time.monotonic()
    with pytest.raises(LaunchFailure) as caught:
        _launch(tmp_path, stand_in, "out of memory", ready_timeout_s=600, stall_timeout_s=600)
    assert time.monotonic() - began < 60, "the exit was not noticed, only the timeout"
    failure = caught.value.failure
    assert failure.cls == "oom-at-load" and failure.line == 4 and "Tried to allocate" in failure.text and failure.advice
    assert "oom-at-load (server.log:4): torch.OutOfMemoryError" in str(caught.value)
    assert caught.value.record()["failure"]["class"] == "oom-at-load"
    assert set(caught.value.startup_s) == {"import", "load"}
    assert _nothing_left(tmp_path)


def test_a_killed_start_says_by_which_signal(tmp_path, stand_in):
    with pytest.raises(LaunchFailure) as caught:
        _launch(tmp_path, stand_in, "killed")
    assert caught.value.failure.cls == "killed" and "signal 9" in caught.value.failure.text
    assert _nothing_left(tmp_path)


def test_a_silent_start_is_a_hang_within_its_bound(tmp_path, stand_in):
    with pytest.raises(LaunchFailure) as caught:
        _launch(tmp_path, stand_in, "silent", stall_timeout_s=3, ready_timeout_s=600)
    assert caught.value.failure.cls == "hang" and "no sign of progress for 3 s" in caught.value.failure.text
    assert _nothing_left(tmp_path)


def test_answers_to_its_own_questions_are_no_progress(tmp_path, stand_in):
    with pytest.raises(LaunchFailure) as caught:
        _launch(tmp_path, stand_in, "warming up", stall_timeout_s=5, ready_timeout_s=600)
    assert caught.value.failure.cls == "hang"
    assert '"GET /health HTTP/1.1" 503' in (tmp_path / "server.log").read_text()
    assert _nothing_left(tmp_path)


def test_a_start_that_gets_on_but_too_slowly_is_not_called_a_hang(tmp_path, stand_in):
    with pytest.raises(LaunchFailure) as caught:
        _launch(tmp_path, stand_in, "slow", stall_timeout_s=2, ready_timeout_s=5)
    assert caught.value.failure.cls == "not-ready"
    assert "in phase load; last line: [2026-01-01 00:00:02] still loading" in caught.value.failure.text
    assert _nothing_left(tmp_path)


@pytest.mark.parametrize(
    ("behaviour", "cls", "word"),
    [("deaf", "hang", "Timeout"), ("mute", "not-ready", "without a token"), ("broken", "not-ready", "500")],
)
def test_health_without_a_generation_is_not_readiness(tmp_path, stand_in, monkeypatch, behaviour, cls, word):
    monkeypatch.setattr(server_module, "_DYING_S", 0.2)
    with pytest.raises(LaunchFailure) as caught:
        _launch(tmp_path, stand_in, behaviour, stall_timeout_s=3)
    assert caught.value.failure.cls == cls
    assert (
        "/health answers, and a generation does not" in caught.value.failure.text and word in caught.value.failure.text
    )
    assert _nothing_left(tmp_path)


def test_a_server_that_dies_of_its_first_request_is_reported_with_its_last_error(tmp_path, stand_in):
    with pytest.raises(LaunchFailure) as caught:
        _launch(tmp_path, stand_in, "dies when asked")
    assert caught.value.failure.text == "RuntimeError: something broke"
    assert _nothing_left(tmp_path)


def test_a_server_found_dead_later_is_a_failure_with_its_signal(tmp_path, stand_in):
    with _launch(tmp_path, stand_in) as server:
        os.kill(server.pid, signal.SIGKILL)
        while server.alive():
            time.sleep(0.01)
        failure = LaunchFailure.of(server).failure
    assert failure.cls == "killed" and "signal 9" in failure.text
    assert _nothing_left(tmp_path)


def test_a_server_that_stops_answering_is_a_hang_that_names_the_stopped_process(tmp_path, stand_in):
    with _launch(tmp_path, stand_in) as server:
        os.kill(server.pid, signal.SIGSTOP)
        failure = server.failure(answer_within_s=1)
    assert failure.cls == "hang" and f"process {server.pid} (" in failure.text and "is stopped" in failure.text
    assert _nothing_left(tmp_path)


def test_a_taken_port_is_refused_before_anything_starts(tmp_path, stand_in):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(LaunchFailure) as caught:
            _launch(tmp_path, stand_in, spec=LaunchSpec(sys.executable, "m", port=port))
    assert caught.value.failure.cls == "port-in-use" and str(port) in caught.value.failure.text
    assert not (tmp_path / "server.log").exists()


def test_an_interrupt_while_it_starts_leaves_nothing(tmp_path, stand_in):
    def interrupt(text: str) -> None:
        if "load" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _launch(tmp_path, stand_in, "slow", on_progress=interrupt)
    assert _nothing_left(tmp_path)


def test_a_server_dies_with_a_killed_starter(tmp_path, stand_in):
    script = (
        "import os, sys, time; from pathlib import Path; from breakeven.server import LaunchSpec, launch\n"
        f"server = launch(LaunchSpec(sys.executable, 'm'), Path({str(tmp_path / 'server.log')!r}))\n"
        "print(server.spec.port, flush=True)\ntime.sleep(600)\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", script], env=stand_in, stdout=subprocess.PIPE, text=True)
    assert starter.stdout is not None
    port = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    starter.stdout.close()
    deadline = time.monotonic() + 30
    while not (_nothing_left(tmp_path) and LOCAL.port_is_free(port)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_interpreter_that_is_not_there_or_has_no_sglang_is_named(tmp_path):
    with pytest.raises(UserError, match="no-such-python"):
        launch(LaunchSpec("/no-such-python", "m"), tmp_path / "log")
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(UserError, match="has no SGLang"):
        launch(LaunchSpec(str(bare), "m"), tmp_path / "log", engine_env={"PATH": os.environ["PATH"]})


def test_an_unknown_flag_is_refused_before_anything_starts(tmp_path, stand_in):
    with pytest.raises(UserError, match="has no flag --tp-sise; did you mean '--tp-size'"):
        _launch(tmp_path, stand_in, spec=LaunchSpec(sys.executable, "m", extra={"tp_sise": 2}))
    assert not (tmp_path / "server.log").exists()


def test_the_servers_environment_is_kept_from_proxies_and_secrets_from_the_record(tmp_path, stand_in):
    spec = LaunchSpec(sys.executable, "m", env={"HF_TOKEN": "hush", "http_proxy": "http://127.0.0.1:9"})
    with _launch(tmp_path, stand_in, spec=spec) as server:
        assert server.record()["requested"]["env"] == {"HF_TOKEN": "(hidden)", "http_proxy": "http://127.0.0.1:9"}
        environment = Path(f"/proc/{server.pid}/environ").read_text().split("\0")
    assert any(entry.startswith("no_proxy=") and "127.0.0.1" in entry for entry in environment)
    assert "HF_TOKEN=hush" in environment and "PYTHONUNBUFFERED=1" in environment


def test_a_token_is_named_and_its_value_looked_up_where_the_suite_runs(tmp_path, stand_in, monkeypatch):
    given = {"HF_TOKEN": "$MY_TOKEN", "PRICE": "$5", "HOME_OF": "x$HOME"}
    monkeypatch.setenv("MY_TOKEN", "hush")
    found = surroundings.environment({}, given)
    assert (found["HF_TOKEN"], found["PRICE"], found["HOME_OF"]) == ("hush", "$5", "x$HOME")
    monkeypatch.delenv("MY_TOKEN")
    with pytest.raises(UserError, match=r"HF_TOKEN is to be \$MY_TOKEN, and the environment has no such variable"):
        surroundings.environment({}, given)


def test_an_earlier_log_is_not_read_as_this_launchs(tmp_path, stand_in):
    (tmp_path / "server.log").write_text("torch.OutOfMemoryError: CUDA out of memory\n" * 3)
    (tmp_path / "server.log.1").write_text("old\n")
    with _launch(tmp_path, stand_in):
        assert "OutOfMemory" not in (tmp_path / "server.log").read_text()
        assert not (tmp_path / "server.log.1").exists()


def test_nothing_of_these_tests_runs_any_more():
    children = processes.psutil.Process().children(recursive=True)
    assert [each for each in children if each.status() != "zombie" and supervise.MARKER in each.environ()] == []
