"""Failure classes from logs: every known way to end, in old and new spellings, and the logs that are no failure."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.telemetry import read_log, read_log_lines
from breakeven.telemetry.failure_rules import RULES
from breakeven.telemetry.failures import Classifier, Failure, classify

H200 = Path(__file__).parent / "data" / "h200-sglang-0.5.17"
START = [
    "[2026-03-01 12:00:00] server_args=ServerArgs(model_path='/models/target', load_format='auto', device='cuda')",
    "[2026-03-01 12:00:20 TP0] Init torch distributed begin.",
    "[2026-03-01 12:00:21 TP0] Load weight begin. avail mem=94.30 GB",
]
LOADED = [*START, "[2026-03-01 12:01:00 TP0] Load weight end. type=LlamaForCausalLM, avail mem=40.00 GB"]
CAPTURING = [
    *LOADED,
    "[2026-03-01 12:01:05 TP0] Capture cuda graph begin. This can take up to several minutes. avail mem=9.00 GB",
    "Capturing batches (bs=160 avail_mem=8.90 GB):   0%|          | 0/23 [00:00<?, ?it/s]",
]
READY = [
    *LOADED,
    "[2026-03-01 12:01:30 TP0] Capture cuda graph end. Time elapsed: 25.00 s. mem usage=1.00 GB.",
    "[2026-03-01 12:01:31] INFO:     Uvicorn running on http://127.0.0.1:30000 (Press CTRL+C to quit)",
    "[2026-03-01 12:01:40] The server is fired up and ready to roll!",
]
DECODE = (
    "[2026-03-01 12:02:00 TP0] Decode batch, #running-req: 1, #token: 93, token usage: 0.00, accept len: {}, "
    "cuda graph: True, gen throughput (token/s): 150.00, #queue-req: 0"
)
ADVICE_LIST = [
    "Possible solutions:",
    "1. set --mem-fraction-static to a smaller value (e.g., 0.8 or 0.7)",
    "2. set --cuda-graph-max-bs to a smaller value (e.g., 16)",
    "3. disable torch compile by not using --enable-torch-compile",
    "4. disable CUDA graph by --disable-cuda-graph. (Not recommended. Huge performance loss)",
    "Open an issue on GitHub https://github.com/sgl-project/sglang/issues/new/choose ",
]


def crash(*lines: str, rank: str = "TP0", frame: str = "scheduler.py") -> list[str]:
    """A scheduler's exception as the log shows it, and what its parent says about it afterwards."""
    return [
        f"[2026-03-01 12:01:10 {rank}] Scheduler hit an exception: Traceback (most recent call last):",
        f'  File "/site/sglang/srt/managers/{frame}", line 2769, in run_scheduler_process',
        "    scheduler = Scheduler(server_args, port_args, gpu_id, tp_rank, dp_rank)",
        *lines,
        "",
        "[2026-03-01 12:01:11] Received sigquit from a child process. It usually means the child failed.",
    ]


def captured(cause: str, label: str = "cuda") -> list[str]:
    return crash(f"Exception: Capture {label} graph failed: {cause}", *ADVICE_LIST)


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.25 GiB. GPU 0 has a total capacity of 94.97 GiB "
    "of which 1.31 GiB is free."
)
# what is tested, class, lines, a part of the deciding line
LOGS: list[tuple[str, str, list[str], str]] = [
    ("oom in capture", "oom-at-capture", CAPTURING + captured(OOM), "Tried to allocate"),
    ("oom in capture, old spelling", "oom-at-capture", CAPTURING + captured("CUDA out of memory.", "CUDA"), "CUDA out"),
    (
        "oom in capture, traceback first",
        "oom-at-capture",
        LOADED
        + crash(
            '  File "/site/sglang/srt/model_executor/cuda_graph_runner.py", line 254, in capture',
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 64.00 MiB.",
            "During handling of the above exception, another exception occurred:",
            "Exception: Capture cuda graph failed: CUDA out of memory.",
            *ADVICE_LIST,
        ),
        "64.00 MiB",
    ),
    (
        "oom in capture, in one line",
        "oom-at-capture",
        ["RuntimeError: out of memory during CUDA graph capture"],
        "out of",
    ),
    ("oom while loading", "oom-at-load", START + crash(OOM), "Tried to allocate"),
    ("hip oom while loading", "oom-at-load", START + crash("torch.OutOfMemoryError: HIP out of memory."), "HIP"),
    (
        "no room for the pool",
        "oom-at-load",
        LOADED + crash("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."),
        "Not enough memory",
    ),
    (
        "host memory",
        "oom-at-load",
        START + crash("RuntimeError: [enforce fail at alloc_cpu.cpp:119] DefaultCPUAllocator: can't allocate memory"),
        "DefaultCPUAllocator",
    ),
    ("host memory, python", "oom-at-load", START + crash("MemoryError"), "MemoryError"),
    ("oom under load", "oom-at-run", [*READY, DECODE.format("1.90"), *crash(OOM)], "Tried to allocate"),
    ("pool exhausted", "oom-at-run", READY + crash("RuntimeError: Decode out of memory. Try to lower"), "Decode out"),
    (
        "fusion on an unsupported arch, in capture",
        "arch-gate",
        CAPTURING + captured("No supported CUDA architectures found for major versions [9, 10]."),
        "No supported CUDA",
    ),
    (
        "fusion refused by the resolver",
        "arch-gate",
        [
            START[0],
            "Traceback (most recent call last):",
            "ValueError: FlashInfer allreduce fusion requires SM90 or SM10X NVIDIA GPUs.",
        ],
        "requires SM90",
    ),
    (
        "kernel not built",
        "arch-gate",
        CAPTURING + captured("RMSNorm failed with error code no kernel image is available for execution on the device"),
        "no kernel image",
    ),
    (
        "first NCCL WARN of any rank",
        "nccl-in-capture",
        [
            *CAPTURING,
            "box:100:1012 [1] NCCL INFO comm 0x55 rank 1 nranks 4 - Init COMPLETE",
            "box:103:1015 [3] misc/strongstream.cc:395 NCCL WARN Cuda failure 1 'invalid argument'",
            "box:100:1012 [0] NCCL WARN Cuda failure 'operation failed due to a previous error during capture'",
            *captured("CUDA error: operation failed due to a previous error during capture"),
        ],
        "[3] misc/strongstream.cc",
    ),
    (
        "nccl in capture without a warning",
        "nccl-in-capture",
        CAPTURING + captured("CUDA error: operation failed due to a previous error during capture", "CUDA"),
        "previous error during capture",
    ),
    (
        "nccl outside capture",
        "nccl",
        [
            *START,
            "box:1:2 [2] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-abc (size 9637888)",
            *crash("torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, unhandled system error"),
        ],
        "/dev/shm/nccl-abc",
    ),
    (
        "collective timed out",
        "nccl",
        [
            *READY,
            "[rank1]:[E301 12:05:00 ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout",
        ],
        "Watchdog caught",
    ),
    (
        "eagle3 without a draft path",
        "config",
        LOADED + crash("AttributeError: 'LlamaForCausalLM' object has no attribute 'set_embed'"),
        "set_embed",
    ),
    (
        "eagle3 without a draft path, as reported",
        "config",
        ["missing set_embed or hot_token_id attribute"],
        "hot_token",
    ),
    (
        "topk on a chain-only backend",
        "config",
        ["ValueError: trtllm_mha backend only supports topk = 1 for speculative decoding."],
        "topk = 1",
    ),
    (
        "topk on another chain-only backend",
        "config",
        LOADED + crash("ValueError: Currently FlashMLA only supports topk=1 for speculative decoding"),
        "topk=1",
    ),
    (
        "other tokenizer",
        "config",
        LOADED
        + crash(
            "ValueError: STANDALONE speculative decoding requires the draft model to share the same vocabulary as the "
            "target model, but the two tokenizers have different token-to-id mappings even though sizes match."
        ),
        "STANDALONE",
    ),
    (
        "steps without topk",
        "config",
        [
            "Traceback (most recent call last):",
            '  File "/site/sglang/srt/server_args.py", line 900, in _handle_speculative_decoding',
            "    assert (",
            "        self.speculative_eagle_topk is None",
            "AssertionError",
        ],
        "AssertionError",
    ),
    (
        "unknown flag",
        "config",
        [
            "usage: launch_server.py [-h] --model-path MODEL_PATH",
            "launch_server.py: error: unrecognized arguments: --foo",
        ],
        "--foo",
    ),
    (
        "unknown algorithm, argparse",
        "config",
        ["launch_server.py: error: argument --speculative-algorithm: invalid choice: 'MTP' (choose from 'EAGLE')"],
        "invalid choice",
    ),
    ("unknown algorithm", "config", ["ValueError: Unknown speculative algorithm name: MTP"], "MTP"),
    (
        "model path wrong",
        "config",
        ["OSError: /nope is not a local folder and is not a valid model identifier listed on 'https://huggingface.co'"],
        "/nope",
    ),
    (
        "model path wrong, newer hub",
        "config",
        ["huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name': '/nope/model'."],
        "Repo id",
    ),
    (
        "host without network",
        "config",
        ["OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them cached"],
        "couldn't connect",
    ),
    (
        "context longer than the model's",
        "config",
        START
        + crash(
            "ValueError: Warning: User-specified context_length (65536) is greater than the derived context_length "
            "(8192). To allow overriding this maximum, set the env var SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1"
        ),
        "derived context_length",
    ),
    (
        "reading beyond the draft's context",
        "config",
        [
            *READY,
            DECODE.format("2.10"),
            "/aten/src/ATen/native/cuda/ScatterGatherKernel.cu:163: operator(): block: [0,0,0], thread: [62,0,0] "
            'Assertion `idx_dim >= 0 && idx_dim < index_size && "scatter gather kernel index out of bounds"` failed.',
            *crash("torch.AcceleratorError: CUDA error: device-side assert triggered"),
        ],
        "ScatterGatherKernel",
    ),
    (
        "illegal access",
        "config",
        [*READY, *crash("RuntimeError: CUDA error: an illegal memory access was encountered")],
        "illegal memory access",
    ),
    (
        "damaged weights",
        "config",
        START + crash("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"),
        "deserializing",
    ),
    ("heads and tp", "config", START + crash("AssertionError: 9 is not divisible by 2"), "divisible"),
    (
        "flags that exclude each other",
        "config",
        ["ValueError: --enable-hisparse does not support --enable-mixed-chunk yet."],
        "--enable-hisparse",
    ),
    (
        "second server, store",
        "port-in-use",
        LOADED
        + crash(
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
        ),
        "29500",
    ),
    (
        "second server, http",
        "port-in-use",
        [
            *LOADED,
            "ERROR: [Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): address already in use",
        ],
        "Errno 98",
    ),
    ("second server, zmq", "port-in-use", START + crash("zmq.error.ZMQError: Address already in use"), "ZMQError"),
    (
        "second server, waited for",
        "port-in-use",
        ["ValueError: nccl_port at 30500 is not available in 30 seconds. nccl_port is used by a process already."],
        "30500",
    ),
    (
        "no nvcc",
        "toolchain",
        CAPTURING + captured("Could not find nvcc and default cuda_home='/usr/local/cuda'"),
        "nvcc",
    ),
    (
        "leading colon in CUDA_HOME",
        "toolchain",
        CAPTURING + crash("/bin/sh: 1: :/usr/local/cuda-12.8/bin/nvcc: not found", "RuntimeError: Ninja build failed."),
        ":/usr/local",
    ),
    ("build stopped", "toolchain", CAPTURING + crash("ninja: build stopped: subcommand failed."), "ninja"),
    (
        "old nvcc",
        "toolchain",
        CAPTURING
        + crash("nvcc fatal   : Unsupported gpu architecture 'compute_120'", "RuntimeError: Ninja build failed"),
        "compute_120",
    ),
    (
        "no compiler",
        "toolchain",
        LOADED + crash("RuntimeError: Failed to find C compiler. Please specify via CC"),
        "C comp",
    ),
    (
        "other torch",
        "package-skew",
        [
            "Traceback (most recent call last):",
            "ImportError: /site/sgl_kernel/common_ops.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEa",
        ],
        "undefined symbol",
    ),
    (
        "flashinfer parts",
        "package-skew",
        [
            "RuntimeError: flashinfer-cubin version (0.6.16) does not match flashinfer version (0.7.2). Please install "
            "the same version of both packages."
        ],
        "flashinfer-cubin",
    ),
    (
        "kernel package too old",
        "package-skew",
        [
            "Exception: sgl-kernel is installed with version 0.3.4, which is less than the minimum required "
            "version 0.3.21."
        ],
        "0.3.21",
    ),
    (
        "no libnccl",
        "package-skew",
        ["ImportError: libnccl.so.2: cannot open shared object file: No such file"],
        "libnccl",
    ),
    ("no libcuda", "driver", ["ImportError: libcuda.so.1: cannot open shared object file: No such file"], "libcuda"),
    (
        "old driver",
        "driver",
        START + crash("RuntimeError: The NVIDIA driver on your system is too old (found version 12040)."),
        "too old",
    ),
    ("disk", "disk-full", START + crash("OSError: [Errno 28] No space left on device"), "Errno 28"),
    ("permission", "permission", ["PermissionError: [Errno 13] Permission denied: '/models/x'"], "/models/x"),
    ("limits", "limits", START + crash("OSError: [Errno 24] Too many open files"), "Errno 24"),
    (
        "kernel needs more shared memory than this GPU has",
        "arch-gate",
        CAPTURING + captured("out of resource: shared memory, Required: 114688, Hardware limit: 101376."),
        "101376",
    ),
    ("illegal access in capture", "unknown", CAPTURING + captured("CUDA error: an illegal memory access"), "illegal"),
    (
        "time limit",
        "killed",
        [*START, "slurmstepd: error: *** JOB 77 CANCELLED AT 12:00 DUE TO TIME LIMIT ***"],
        "JOB 77",
    ),
    ("no such program", "package-skew", ["/usr/bin/python3: No module named sglang"], "sglang"),
    ("gpu held by others", "oom-at-load", ["ValueError: The memory capacity is unbalanced."], "unbalanced"),
    (
        "bus error",
        "shared-memory",
        [*START, "Fatal Python error: Bus error", "Current thread 0x00007769465bb740 (most recent call first):"],
        "Bus error",
    ),
    (
        "killed while loading, old",
        "killed",
        [
            *START,
            "[2026-03-01 12:00:50] Rank 0 scheduler is dead. Please check if there are relevant logs.",
            "[2026-03-01 12:00:52] Exit code: -9",
            "Traceback (most recent call last):",
            "EOFError",
        ],
        "Exit code: -9",
    ),
    (
        "killed while loading, new",
        "killed",
        [
            *START,
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: -9). If exit code is -9 (SIGKILL), "
            "a common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        ],
        "exit code: -9",
    ),
    ("killed, shell", "killed", [*START, "Killed"], "Killed"),
    ("killed, kernel log", "killed", [*START, "Out of memory: Killed process 4711 (python3) total-vm:99kB"], "4711"),
    (
        "segfault",
        "killed",
        [*READY, "[2026-03-01 12:05:00] Subprocess scheduler_0 (pid=7) crashed with exit code -11. Triggering SIGQUIT"],
        "-11",
    ),
    ("stopped while starting", "killed", [*START, "[2026-03-01 12:00:40] SIGTERM received. signum=None"], "SIGTERM"),
    (
        "dead at once, without a reason",
        "exited-early",
        [
            START[0],
            "RuntimeError: Rank 0 scheduler died during initialization (exit code: 1). If exit code is -9 (SIGKILL), a "
            "common cause is the OS OOM killer. Run `dmesg -T | grep -i oom` to check.",
        ],
        "exit code: 1",
    ),
    (
        "watchdog",
        "hang",
        [*READY, DECODE.format("1.90"), "[2026-03-01 12:10:00 TP0] Watchdog timeout (self.watchdog_timeout=300)"],
        "Watchdog timeout",
    ),
    (
        "watchdog, newer",
        "hang",
        [*READY, "[2026-03-01 12:10:00] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)"],
        "watchdog timeout",
    ),
    (
        "no answer",
        "not-ready",
        [
            *READY,
            "[2026-03-01 12:10:00] Health check failed. Server couldn't get a response from detokenizer for last 20 "
            "seconds. tic start time: 12:09:40. last_heartbeat time: 12:02:01",
        ],
        "Health check failed",
    ),
    (
        "health answers of a dead server",
        "not-ready",
        [
            *READY,
            "[2026-03-01 12:05:00] Scheduler or DataParallelController 7 terminated with 1",
            '[2026-03-01 12:05:10] INFO:     127.0.0.1:40 - "GET /health HTTP/1.1" 200 OK',
        ],
        "GET /health",
    ),
    (
        "health answers while a request hangs",
        "not-ready",
        [
            *READY,
            DECODE.format("1.90"),
            *[f'[2026-03-01 12:0{m}:00] INFO:     127.0.0.1:40 - "GET /health HTTP/1.1" 200 OK' for m in (3, 4, 5)],
        ],
        "GET /health",
    ),
    (
        "health answers of a scheduler that died of something unknown",
        "not-ready",
        [
            *READY,
            *crash("ZeroDivisionError: division by zero")[:-1],
            '[2026-03-01 12:05:10] INFO:     127.0.0.1:40 - "GET /health HTTP/1.1" 200 OK',
        ],
        "GET /health",
    ),
    (
        "draft of another kind, then stopped",
        "drafter-not-working",
        [*READY, *[DECODE.format("1.00")] * 5, "[2026-03-01 12:30:00] SIGTERM received. signum=None frame=None."],
        "accept len: 1.00",
    ),
    ("draft of another kind", "drafter-not-working", READY + [DECODE.format("1.00")] * 5, "accept len: 1.00"),
    (
        "nothing known",
        "unknown",
        START + crash("KeyError: 'model.layers.0.mlp.gate_up_proj.weight'", "ZeroDivisionError: division by zero"),
        "ZeroDivisionError",
    ),
    ("nothing known in capture", "unknown", CAPTURING + captured("list index out of range"), "list index out of range"),
]


@pytest.mark.parametrize(("cls", "lines", "part"), [case[1:] for case in LOGS], ids=[case[0] for case in LOGS])
def test_each_way_to_end_has_its_class_and_its_line(cls: str, lines: list[str], part: str) -> None:
    failure = classify(lines)
    assert failure is not None
    assert (failure.cls, part in failure.text) == (cls, True), failure
    assert failure.line is not None
    assert part in lines[failure.line - 1]
    assert failure.advice
    assert "{" not in failure.advice


# Last words as they were met, each in one line; what happened before does not change their class.
LAST_WORDS = [
    ("oom-at-load", "RuntimeError: max_total_num_tokens <= 0"),
    ("oom-at-load", "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`."),
    ("oom-at-load", "ValueError: Free memory on device (5.2/79.1 GiB) on startup is less than desired GPU memory"),
    ("oom-at-load", "ValueError: 16.00 GiB KV cache is needed, which is larger than the available KV cache memory"),
    ("oom-at-load", "OSError: [Errno 12] Cannot allocate memory"),
    ("arch-gate", "RuntimeError: FlashAttention only supports Ampere GPUs or newer."),
    (
        "arch-gate",
        "ValueError: type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e5')",
    ),
    ("arch-gate", "RuntimeError: Error Internal: this kernel is only compiled for sm_90a"),
    ("arch-gate", "RuntimeError: DeepGEMM only supports SM90 or SM100"),
    ("arch-gate", "AssertionError: FlashAttention v3 Backend requires SM>=80 and SM<=90."),
    (
        "nccl",
        "torch.distributed.DistBackendError: NCCL error in: c10d/NCCLUtils.cpp:94, invalid usage, NCCL version 2.26.2",
    ),
    ("nccl", "[rank0]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, remote process exited or"),
    ("nccl", "torch.distributed.DistBackendError: store->get('0') got error: Connection reset by peer"),
    ("nccl", "RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error"),
    ("nccl", "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined."),
    ("config", "ValueError: 'MTP' is not a valid SpeculativeAlgorithm"),
    ("config", "OSError: Error no file named pytorch_model.bin, model.safetensors found in directory /models/x."),
    ("config", "FileNotFoundError: [Errno 2] No such file or directory: '/models/x/model.safetensors.index.json'"),
    ("config", "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"),
    ("config", "OSError: You are trying to access a gated repo."),
    ("toolchain", "RuntimeError: Ninja is required to load C++ extensions (pip install ninja to get it)"),
    ("toolchain", "RuntimeError: flashinfer: nvcc version 12.4 is too old, SM120 requires CUDA 12.8 or newer"),
    (
        "toolchain",
        "RuntimeError: The detected CUDA version (11.8) mismatches the version that was used to compile PyTorch",
    ),
    ("toolchain", "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'"),
    ("package-skew", "TypeError: trtllm_allreduce_fusion() missing 1 required positional argument: 'tp_rank'"),
    ("package-skew", "TypeError: trtllm_allreduce_fusion() got an unexpected keyword argument 'fp32_acc'"),
    ("killed", "[2026-03-01 12:00:52] Child process unexpectedly failed with an exit code 9. pid=2145"),
    ("exited-early", "[2026-03-01 12:00:52] Child process unexpectedly failed with an exit code 256. pid=2145"),
    ("disk-full", 'safetensors_rust.SafetensorError: IoError(Os { code: 28, message: "No space left on device" })'),
    ("unknown", "RuntimeError: CUDA error: operation not permitted when stream is capturing"),
]


@pytest.mark.parametrize(("cls", "text"), LAST_WORDS)
@pytest.mark.parametrize("in_a_crash", [False, True])
def test_last_words_met_in_the_wild_have_their_class(cls: str, text: str, in_a_crash: bool) -> None:
    failure = classify(START + (crash(text) if in_a_crash else [text]))
    assert failure is not None
    assert (failure.cls, text[:40] in failure.text) == (cls, True), failure


def coloured(lines: list[str]) -> list[str]:
    return [f"\x1b[1;31m{line}\x1b[0m" for line in lines]


def interleaved(lines: list[str]) -> list[str]:
    """Every line between lines of other ranks that are still fine."""
    other = "[2026-03-01 12:01:09 TP5] Using model weights format ['*.safetensors']"
    return [text for line in lines for text in (other, line)]


@pytest.mark.parametrize(
    "disguise", [coloured, lambda lines: [f"{line}\r\n" for line in lines]], ids=["colours", "crlf"]
)
@pytest.mark.parametrize(("cls", "lines"), [case[1:3] for case in LOGS], ids=[case[0] for case in LOGS])
def test_disguises_do_not_change_the_class(cls: str, lines: list[str], disguise: object) -> None:
    failure = classify(disguise(lines))  # type: ignore[operator]
    assert failure is not None
    assert failure.cls == cls


@pytest.mark.parametrize(("cls", "lines"), [case[1:3] for case in LOGS], ids=[case[0] for case in LOGS])
def test_lines_of_other_ranks_do_not_change_the_class(cls: str, lines: list[str]) -> None:
    failure = classify(interleaved(lines))
    assert failure is not None
    assert failure.cls == cls


def test_every_class_of_the_table_is_covered_by_a_log() -> None:
    in_table = {rule.cls for rule in RULES} - {"oom-at-*", "nccl*", "exit*", "fault*"}
    assert in_table <= {case[1] for case in LOGS}


@pytest.mark.parametrize("name", ["base", "sa1", "sa2", "sa3", "sa5", "ng8"])
def test_logs_of_healthy_servers_are_no_failure(name: str) -> None:
    assert read_log(H200 / f"{name}.log")["failure"] is None


def test_a_cpu_server_that_was_stopped_after_its_work_is_no_failure() -> None:
    assert read_log(H200.parent / "cpu-sglang-0.5.23.log")["failure"] is None


HEALTHY: dict[str, list[str]] = {
    "nothing": [],
    "still loading": START,
    "idle": READY,
    "waiting for a request, polled": READY
    + ['[2026-03-01 13:00:00] INFO:     127.0.0.1:40 - "GET /health HTTP/1.1" 200 OK'] * 9,
    "stopped when asked": [
        *READY,
        DECODE.format("1.90"),
        "[2026-03-01 12:30:00] SIGTERM received. signum=None frame=None. Draining requests and shutting down...",
        "[2026-03-01 12:30:01] Gracefully exiting... Remaining number of requests 0. Remaining requests []",
        "[2026-03-01 12:30:02] INFO:     Shutting down",
        "asyncio.exceptions.CancelledError",
    ],
    "a complaint that did no harm, then stopped": [
        *READY,
        DECODE.format("1.90"),
        "[2026-03-01 12:03:00] Failed to write the cache: [Errno 13] Permission denied: '/x'",
        "[2026-03-01 12:30:00] SIGTERM received. signum=None frame=None.",
    ],
    "interrupted when ready": [*READY, "^CTraceback (most recent call last):", "KeyboardInterrupt"],
    "an import it can do without": [
        *START[:2],
        "[2026-03-01 12:00:11] Ignore import error when loading sglang.srt.models.x: No module named 'helion'",
        START[2],
    ],
    "a request that was refused": [
        *READY,
        "[2026-03-01 12:02:00] ERROR:    Exception in ASGI application",
        "Traceback (most recent call last):",
        "ValueError: Input length (9000 tokens) exceeds the model's context length (4096 tokens).",
        DECODE.format("1.90"),
    ],
    "a request that failed, and health afterwards": [
        *READY,
        "[2026-03-01 12:02:00] Error in request: ValueError: no such thing",
        '[2026-03-01 12:02:10] INFO:     127.0.0.1:40 - "GET /health HTTP/1.1" 200 OK',
    ],
    "an error that it survived": [*READY, "RuntimeError: CUDA out of memory.", DECODE.format("1.90")],
    "a port that it stepped over": [*START, "[2026-03-01 12:00:30] Port 30001 is already in use, trying port 30002"],
    "a restart in the same file": [*START, *crash(OOM), *READY, DECODE.format("1.90")],
    "a restart that is still loading": [*START, *crash(OOM), "[2026-03-01 12:05:00] server_args={'model_path': '/m'}"],
    "an accept length that is low at first": [*READY, *[DECODE.format("1.00")] * 3, DECODE.format("1.40")],
    "a soft watchdog": [
        *READY,
        "[2026-03-01 12:10:00] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=True)",
        DECODE.format("1.90"),
    ],
    "binary": ["\x00\xff\xfe" * 50, "PK\x03\x04", "\ufffd" * 99],
}


@pytest.mark.parametrize("lines", HEALTHY.values(), ids=HEALTHY.keys())
def test_what_ends_well_or_has_not_ended_is_no_failure(lines: list[str]) -> None:
    assert classify(lines) is None


def test_code_that_speaks_of_errors_is_no_error() -> None:
    lines = [
        "Traceback (most recent call last):",
        '  File "/site/huggingface_hub/utils/_validators.py", line 160, in validate_repo_id',
        "    raise HFValidationError(",
        "            except torch.OutOfMemoryError: raise ValueError('address already in use')",
        "    ^^^^^^^^^^^^^^^^^^^^^^^^",
        "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name': '/nope/model'.",
    ]
    for prefix in ("", "(WorkerDict pid=616) ", "2026-03-07 23:50:27,531 - __main__ - INFO - "):
        failure = classify([prefix + line for line in lines])
        assert failure is not None
        assert (failure.cls, failure.line) == ("config", 6)
    cut_off = [lines[2], "[2026-03-01 12:00:21 TP1] Load weight begin.", *lines[2:3], lines[5]]
    failure = classify(cut_off)
    assert failure is not None
    assert failure.text == lines[5]


def test_the_childs_exception_goes_before_the_parents_report() -> None:
    lines = START + crash("KeyError: 'lm_head'")
    lines += ["RuntimeError: Initialization failed. Please see the error messages above."]
    failure = classify(lines)
    assert failure is not None
    assert (failure.cls, failure.text) == ("unknown", "KeyError: 'lm_head'")


def test_the_rank_that_ran_out_of_memory_goes_before_the_ranks_that_lost_it() -> None:
    lost = crash("torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error")
    failure = classify(START + lost + crash(OOM, rank="TP3"))
    assert failure is not None
    assert (failure.cls, failure.rank) == ("oom-at-load", "TP3")


def test_memory_that_nccl_ran_out_of_is_out_of_memory() -> None:
    lines = [*CAPTURING, "box:1:2 [1] NCCL WARN Cuda failure 2 'out of memory'"]
    failure = classify(lines + captured("CUDA error: operation failed due to a previous error during capture"))
    assert failure is not None
    assert (failure.cls, failure.rank) == ("oom-at-capture", "rank1")


def test_another_rank_that_finished_capturing_does_not_hide_where_this_one_was() -> None:
    lines = [
        *CAPTURING[:-1],
        "[2026-03-01 12:01:05 TP1] Capture cuda graph begin. This can take up to several minutes.",
        "[2026-03-01 12:01:09 TP0] Capture cuda graph end. Time elapsed: 4 s.",
        *["[2026-03-01 12:01:09 TP0] something else"] * 100,
    ]
    failure = classify(lines + crash(OOM, rank="TP1"))
    assert failure is not None
    assert failure.cls == "oom-at-capture"


def test_advice_names_the_flags_of_the_release() -> None:
    old, new = (classify(CAPTURING + captured(OOM), sglang_version=version) for version in ("0.5.9", "0.5.23"))
    assert old is not None
    assert new is not None
    assert "--cuda-graph-max-bs)" in old.advice
    assert "--cuda-graph-max-bs-decode)" in new.advice
    gate = "RuntimeError: No supported CUDA architectures found for major versions [9 10]"
    newer = classify([gate], sglang_version="0.5.12")
    assert newer is not None
    assert "--enforce-disable-flashinfer-allreduce-fusion" in newer.advice


@pytest.mark.parametrize(
    ("lines", "ending", "cls"),
    [
        (START, {"exit_code": 1}, "exited-early"),
        ([], {"exit_code": 0}, "exited-early"),
        (START, {"signal": 9}, "killed"),
        (START, {"exit_code": -9}, "killed"),
        (START, {"exit_code": 137}, "killed"),
        (READY, {"exit_code": 139}, "killed"),
        (START, {"signal": 15}, "killed"),
        (START, {"signal": 7}, "shared-memory"),
        (START + crash(OOM), {"exit_code": -9}, "oom-at-load"),
        (START + crash("KeyError: 'x'"), {"exit_code": 1}, "unknown"),
        (READY, {"exit_code": 3}, "unknown"),
        (READY, {"exit_code": 0}, None),
        (READY, {"signal": 15}, None),
    ],
)
def test_the_way_the_process_ended_counts(lines: list[str], ending: dict[str, int], cls: str | None) -> None:
    failure = classify(lines, **ending)  # type: ignore[arg-type]
    assert (failure.cls if failure else None) == cls


def test_a_class_is_found_among_200_megabytes_of_other_lines() -> None:
    other = '[2026-03-01 12:00:01] INFO:     127.0.0.1:40404 - "GET /metrics HTTP/1.1" 200 OK ' + "x" * 20_000
    tail = crash(OOM)

    def lines() -> Iterator[str]:
        yield from READY
        for _ in range(10_001):
            yield other
        yield from tail

    tracemalloc.start()
    failure = classify(lines())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert failure is not None
    assert (failure.cls, failure.line) == ("oom-at-run", len(READY) + 10_001 + 4)
    assert peak < 5e6


def test_the_version_is_taken_from_the_log_where_it_says_so() -> None:
    classifier = Classifier()
    classifier.feed(1, "command: pip install sglang==0.5.9")
    assert classifier.sglang_version == "0.5.9"


def test_a_failure_as_json_has_the_key_class() -> None:
    failure = Failure("hang", 3, "text", "advice", None)
    assert failure.as_dict() == {"class": "hang", "line": 3, "text": "text", "advice": "advice", "rank": None}


SURVIVED_WARNINGS = [
    "Failed to initialize FlashInfer workspace (backend=trtllm): No supported CUDA architectures found for major "
    "versions [9, 10]. Disabling flashinfer allreduce fusion permanently.",
    "CuTe DSL GDN prefill is not supported on this GPU (requires SM10x). Falling back to Triton for prefill.",
    "FlashInfer AllReduce fusion disabled: the 8 ranks of this group are not confirmed to share one NVLink clique, "
    "which the MNNVL backend requires.",
    "NVFP4 w4a4 MoE requires compute capability >= 10.0; serving this checkpoint weight-only via FP4 Marlin instead.",
    "Failed to get device capability: RuntimeError('SM 12.1+ requires CUDA >= 12.9')",
    "Warning: User-specified context_length (65536) is greater than the derived context_length (32768).",
    "Setup Custom allreduce failed with CUDA error: peer access is not supported between these two devices. To "
    "silence this warning, specify --disable-custom-all-reduce explicitly.",
    "'(ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.\"))' thrown while "
    "requesting HEAD https://huggingface.co/x/resolve/main/config.json",
    "Detected GPT-OSS on Blackwell with driver >= 595, using triton MOE kernel to avoid triton_kernels SIGSEGV.",
    "Weight cache daemon (pid=4) did not exit within 5s of SIGTERM; sending SIGKILL.",
    "Failed to import DeepGEMM: CUDA_HOME environment variable is not set.",
    "DFLASH only supports speculative_eagle_topk == 1; overriding speculative_eagle_topk=4 to 1.",
    "Finalize AR fusion unavailable: requires Blackwell TP4/EP4 without DP attention. Using separate finalize and AR.",
    "Mixed chunked prefill is disabled: EAGLE speculative decoding does not support it.",
    "retry() failed once (1th try, maximum 3 retries). Will delay 1s and retry. Error: x",
]


@pytest.mark.parametrize("warning", SURVIVED_WARNINGS)
@pytest.mark.parametrize("at", [1, 4, 6], ids=["loading", "loaded", "capturing"])
def test_a_warning_that_the_server_survived_is_never_the_cause(warning: str, at: int) -> None:
    def with_warning(prefix: str, tail: list[str], **ending: int) -> Failure | None:
        return classify([*CAPTURING[:at], prefix + warning, *CAPTURING[at:], *tail], **ending)

    for prefix in ("[2026-03-01 12:01:02 TP0] ", "", "2026-03-01 12:01:02,000 - WARNING - core.py:1 - "):
        assert with_warning(prefix, []) is None
        for cls, tail, ending in (
            ("oom-at-capture", captured(OOM), {}),
            ("unknown", captured("KeyError: 'x'"), {"exit_code": 1}),
            ("killed", [], {"signal": 9}),
        ):
            failure = with_warning(prefix, tail, **ending)
            assert failure is not None
            assert (failure.cls, warning in failure.text) == (cls, False)


def test_what_an_exception_says_is_a_cause_even_in_the_words_of_a_warning() -> None:
    warned = "Warning: User-specified context_length (65536) is greater than the derived context_length (32768)."
    for prefix in ("", "[rank1]: ", "(WorkerDict pid=616) ", "[2026-03-01 12:00:30 TP0] "):
        failure = classify([*START, f"{prefix}ValueError: {warned}"])
        assert failure is not None
        assert failure.cls == "config"
    failure = classify([*CAPTURING, "Capture cuda graph failed: no kernel image is available. Disabling it."])
    assert failure is not None
    assert failure.cls == "arch-gate"


def test_an_exception_goes_before_a_complaint_of_the_same_weight() -> None:
    complaint = "[2026-03-01 12:01:06 TP0] Can't write the cache: [Errno 13] Permission denied: '/x'"
    failure = classify([*CAPTURING, complaint, *captured(OOM)])
    assert failure is not None
    assert failure.cls == "oom-at-capture"


def traceback(file: str, function: str, source: list[str], error: str) -> list[str]:
    """An exception whose last frame is this one."""
    return [
        "Traceback (most recent call last):",
        '  File "/site/sglang/launch_server.py", line 11, in <module>',
        "    run_server(sys.argv[1:])",
        f'  File "/site/sglang/srt/{file}", line 380, in {function}',
        *source,
        error,
    ]


TOGETHER = "Give --speculative-num-steps"


@pytest.mark.parametrize(
    ("file", "function", "source"),
    [
        ("server_args.py", "__post_init__", ["    self.speculative_eagle_topk is None"]),
        ("server_args.py", "_handle_speculative_decoding", ["    assert (", "           ^"]),
        ("arg_groups/speculative_hook.py", "_handle_eagle_family", ["    assert ("]),
    ],
)
def test_a_bare_assertion_about_the_draft_is_known_by_its_frame(file: str, function: str, source: list[str]) -> None:
    lines = traceback(file, function, source, "AssertionError")
    for variant in (lines, interleaved(lines)):
        failure = classify(variant)
        assert failure is not None
        assert (failure.cls, failure.text) == ("config", "AssertionError")
        assert failure.advice.startswith(TOGETHER)


def test_a_bare_assertion_while_serving_is_not_a_setting() -> None:
    serving = [
        "[2026-03-01 12:02:10 TP0] Scheduler hit an exception: Traceback (most recent call last):",
        '  File "/site/sglang/srt/speculative/eagle_worker_v2.py", line 512, in forward_batch_generation',
        "    verify_input = self.draft_worker.draft(model_worker_batch)",
        '  File "/site/sglang/srt/mem_cache/allocator.py", line 90, in free',
        "    assert not self.is_not_in_free_group",
        "AssertionError",
    ]
    loading = [
        "[2026-03-01 12:00:00] speculative_num_draft_tokens is adjusted to speculative_num_steps + 1",
        *START,
        *traceback("layers/linear.py", "weight_loader", ["    assert a.shape == b.shape"], "AssertionError"),
    ]
    for lines in ([*READY, DECODE.format("1.90"), *serving], loading):
        failure = classify(lines)
        assert failure is not None
        assert failure.cls == "unknown"
    interval = ["    assert self.mamba_track_interval >= self.speculative_num_draft_tokens"]
    failure = classify(traceback("server_args.py", "_handle_mamba", interval, "AssertionError"))
    assert failure is not None
    assert (failure.cls, failure.advice.startswith(TOGETHER)) == ("config", False)


def test_what_argument_checking_raises_is_config() -> None:
    for file in ("server_args.py", "arg_groups/speculative_hook.py"):
        for error in (
            "AssertionError: The expert parallel size must be 1 or the same as the tensor parallel size",
            "ValueError: hicache_host_memory_mode must be 'cache' or 'buffer_only', got x",
            "RuntimeError: KV4 is not tested on non-CUDA platforms.",
        ):
            failure = classify(traceback(file, "check", ["    raise ValueError("], error), exit_code=1)
            assert failure is not None
            assert (failure.cls, failure.text) == ("config", error)
    elsewhere = traceback("managers/scheduler.py", "check", ["    f()"], "ValueError: got x")
    asked_to_stop = traceback("server_args.py", "check", ["    f()"], "KeyboardInterrupt")
    architecture = traceback("server_args.py", "check", ["    f()"], "ValueError: this requires SM90")
    for lines, cls in ((elsewhere, "unknown"), (asked_to_stop, "exited-early"), (architecture, "arch-gate")):
        failure = classify(lines, exit_code=1)
        assert failure is not None
        assert failure.cls == cls
    # what comes after a traceback is not its exception
    failure = classify([*architecture[:-1], "StopIteration", "ValueError: got x"], exit_code=1)
    assert failure is not None
    assert failure.cls == "unknown"


NEIGHBOURS = [
    ("unknown", "torch.AcceleratorError: CUDA error: an illegal instruction was encountered"),
    ("arch-gate", "Fatal Python error: Illegal instruction"),
    (
        "config",
        "requests.exceptions.ReadTimeout: (ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): "
        'Read timed out. (read timeout=10)"))',
    ),
    ("config", "requests.exceptions.ConnectTimeout: HTTPSConnectionPool(host='hf-mirror.com', port=443): Max retries"),
    ("not-ready", "requests.exceptions.ReadTimeout: HTTPConnectionPool(host='127.0.0.1', port=30000): Read timed out."),
    (
        "limits",
        "RuntimeError: unable to open shared memory object </torch_1> in read-write mode: Too many open files (24)",
    ),
    ("shared-memory", "RuntimeError: unable to open shared memory object </torch_1> in read-write mode: No such file"),
    ("config", "AssertionError: Aiter allreduce fusion is not supported with context parallelism"),
    # a drafter and a target that lack what the other needs
    ("config", "AttributeError: 'Qwen3ForCausalLM' object has no attribute 'get_embed_and_head'"),
    ("config", "AttributeError: 'DeepseekV3ForCausalLM' object has no attribute 'set_embed_and_head'"),
    (
        "config",
        "ValueError: Model Qwen3ForCausalLM does not implement set_eagle3_layers_to_capture, which EAGLE3 aux "
        "hidden-state capture requires.",
    ),
    ("unknown", "AttributeError: 'Qwen3Model' object has no attribute 'get_embeddings'"),
    # compilers
    ("toolchain", "FileNotFoundError: nvcc not found at '/usr/local/cuda/bin/nvcc'. Ensure CUDA path is correct."),
    ("toolchain", "RuntimeError: nvcc not found and PyTorch is not built with CUDA support."),
    ("toolchain", "RuntimeError: ninja not found"),
    # fusion
    ("arch-gate", "ValueError: FlashInfer allreduce fusion does not support multi-node on non-Blackwell systems."),
    ("arch-gate", "ValueError: FlashInfer allreduce fusion trtllm backend supports single-node only."),
    ("arch-gate", "flashinfer.utils.BackendSupportedError: mm_fp4 does not support compute capability 120"),
    ("arch-gate", "flashinfer.utils.BackendSupportedError: f does not support backend 'trtllm' with capability 120"),
    ("arch-gate", "flashinfer.utils.BackendSupportedError: No suitable auto backends found for mm_fp4"),
    # speculation beside other features
    ("config", "ValueError: Currently ngram speculative decoding does not support dp attention."),
    ("config", "ValueError: Currently standalone speculative decoding does not support dp attention."),
    ("config", "ValueError: Currently DFLASH speculative decoding only supports pp_size == 1."),
    ("config", "AssertionError: Speculative decoding is currently not supported with Flex Attention backend"),
]


@pytest.mark.parametrize(("cls", "text"), NEIGHBOURS)
def test_neighbours_of_a_rule_keep_their_own_class(cls: str, text: str) -> None:
    failure = classify(START + crash(text))
    assert failure is not None
    assert (failure.cls, text[:40] in failure.text) == (cls, True), failure


def test_a_network_card_that_gave_up_is_the_first_warning_of_nccl() -> None:
    lost = (
        "box:1:2 [0] net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2 with status=12 vendor err 129"
    )
    none = "box:1:2 [0] NCCL WARN NET/IB : No device found."
    failure = classify([*START, none, lost, *crash("RuntimeError: NCCL error: unhandled system error")])
    assert failure is not None
    assert (failure.cls, failure.text) == ("nccl", lost)


def access(time: str, request: str, status: str = "200 OK") -> str:
    return f'[2026-03-01 {time}] INFO:     10.0.0.9:5000 - "{request} HTTP/1.1" {status}'


PREFILL = "[2026-03-01 12:02:00 TP0] Prefill batch, #new-seq: 1, #new-token: 8, #running-req: 0, #queue-req: 0"
PROBES = [access(f"12:0{minute}:00", "GET /health") for minute in (3, 4, 5, 6)]


@pytest.mark.parametrize(
    "served",
    [
        [PREFILL, access("12:02:00", "POST /v1/chat/completions"), DECODE.format("1.90")],
        [
            access("12:01:59", "POST /generate"),
            PREFILL,
            DECODE.format("1.90"),
        ],  # before 0.5 it began before the prefill
        *[
            [PREFILL, DECODE.format("1.90"), access("12:02:03", f"POST {path}")]
            for path in ("/invocations", "/vertex_generate", "/api/chat", "/classify", "/encode")
        ],
        [PREFILL, DECODE.format("1.90"), access("12:02:03", "POST /generate", "400 Bad Request")],
        [PREFILL, DECODE.format("1.90"), access("12:02:03", "POST /generate", "500 Internal Server Error")],
    ],
)
def test_a_streamed_request_then_idle_health_probes_is_no_failure(served: list[str]) -> None:
    assert classify([*READY, *served, *PROBES]) is None


def test_a_request_that_hangs_after_others_were_answered_is_seen() -> None:
    answered = [PREFILL, DECODE.format("1.90"), access("12:02:03", "POST /generate")]
    later = [line.replace("12:02:00", "12:09:00") for line in (PREFILL, DECODE.format("1.90"))]
    probes = [access(f"12:1{minute}:00", "GET /health") for minute in (0, 1, 2)]
    failure = classify([*READY, *answered, *PROBES, *later, *probes])
    assert failure is not None
    assert failure.cls == "not-ready"


REFUSAL = "This model does not appear to be an embedding model. Please add `--is-embedding` when launching the server."


@pytest.mark.parametrize(
    "refusal",
    [
        f"[2026-03-01 12:03:00] [http_server] Error: {REFUSAL}",
        f"[2026-03-01 12:03:00] Error: {REFUSAL}",
        "[2026-03-01 12:03:00] Error in request: ValueError: --enable-lora is not set",
    ],
)
def test_a_refused_request_is_no_failure(refusal: str) -> None:
    answer = access("12:03:00", "POST /v1/embeddings", "400 Bad Request")
    assert classify([*READY, DECODE.format("1.90"), refusal, answer]) is None
    hung = "[2026-03-01 12:10:00 TP0] Watchdog timeout (self.watchdog_timeout=300)"
    failure = classify([*READY, DECODE.format("1.90"), hung, refusal, answer])
    assert failure is not None
    assert failure.cls == "hang"


@pytest.mark.parametrize("what", ["[http_server] Error: too long", "Tool call parsing error: Expecting value: line 1"])
def test_a_complaint_about_one_request_at_the_end_of_a_log_is_no_failure(what: str) -> None:
    assert classify([*READY, DECODE.format("1.90"), f"[2026-03-01 12:03:00] {what}"]) is None


@given(st.data())
def test_no_damaged_log_ends_in_a_traceback(data: st.DataObject) -> None:
    lines = [*READY, PREFILL, *[DECODE.format("1.90")] * 3, *PROBES, *crash(OOM)]
    text = "\n".join(lines)
    damage = st.sampled_from(["", "9" * 400, "1e999", "1.9.0", "nan", "0", "\x1b[1m", "-", "[", "\n", DECODE, "\x00"])
    for _ in range(data.draw(st.integers(1, 12))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(damage) + text[at + data.draw(st.integers(0, 8)) :]
    log = read_log_lines(enumerate(text.split("\n"), 1))
    json.dumps(log, allow_nan=False)


@pytest.mark.parametrize(
    ("garbled", "accept_length"),
    [
        ("accept len: 1.9.0", None),
        ("accept len: \x1b[1m1.90\x1b[0m", 1.9),
        ("accept len: 1.90, #running-req: 1e999", None),
        ("accept len: 0.00", 0.0),
    ],
)
def test_a_garbled_figure_is_left_out(garbled: str, accept_length: float | None) -> None:
    line = DECODE.format("1.90").replace("accept len: 1.90", garbled)
    log = read_log_lines(enumerate([*READY, line, line], 1))
    assert [row["accept_length"] for row in log["decode"]] == ([] if accept_length is None else [accept_length] * 2)
    assert log["summary"] == [] or log["summary"][0]["accept_length"] == accept_length
