"""Parts of a cycle from profiler traces: two real excerpts of an H200, and small made-up ones."""

from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven.errors import UserError
from breakeven.telemetry import read_log
from breakeven.telemetry.kernel_names import is_fused, work_kind
from breakeven.telemetry.trace_files import read_trace, trace_of
from breakeven.telemetry.traces import allreduce, cycle_parts, fused_kernels, host_cycle

H200 = Path(__file__).parent / "data" / "h200-sglang-0.5.17"
PARTS = ("draft_ms", "verify_ms", "draft_extend_ms", "other_ms")


def profiler_says(name: str, annotation: str) -> list[float]:
    """Milliseconds of a part on the GPU by the profiler's own account, which newer traces hold besides."""
    events = json.loads(gzip.decompress((H200 / name).read_bytes()))["traceEvents"]
    events.sort(key=lambda event: event["ts"])
    return [e["dur"] / 1000 for e in events if e["cat"] == "gpu_user_annotation" and e["name"] == annotation]


def test_parts_of_a_speculative_cycle_are_those_that_the_profiler_saw() -> None:
    parts = cycle_parts(read_trace(H200 / "standalone-3.trace.json.gz"))
    assert (parts["device"], parts["speculative"], parts["batches"], parts["n"]) == ("gpu", True, [1], 3)
    for name, annotation in (("verify_ms", "step[TARGET_VERIFY bs=1]"), ("draft_ms", "draft")):
        seen = profiler_says("standalone-3.trace.json.gz", annotation)
        assert min(seen) - 1e-5 <= parts[name] <= max(seen) + 1e-5
    assert parts["verify_ms"] == pytest.approx(6.2, abs=0.01)
    assert parts["draft_ms"] == pytest.approx(1.59, abs=0.01)
    assert parts["draft_extend_ms"] == pytest.approx(0.29, abs=0.01)


def test_a_decode_step_has_one_part() -> None:
    parts = cycle_parts(read_trace(H200 / "decode.trace.json.gz"))
    assert (parts["speculative"], parts["n"]) == (False, 3)
    seen = profiler_says("decode.trace.json.gz", "step[DECODE bs=1]")
    assert parts["verify_ms"] == pytest.approx(statistics.median(seen[:3]), abs=0.001)
    assert parts["draft_ms"] == parts["draft_extend_ms"] == 0


@pytest.mark.parametrize("name", ["decode", "standalone-3"])
def test_parts_add_up_to_the_cycle(name: str) -> None:
    parts = cycle_parts(read_trace(H200 / f"{name}.trace.json.gz"))
    assert sum(parts[part] for part in PARTS) == pytest.approx(parts["cycle_ms"])
    assert parts["other_ms"] >= 0
    assert abs(parts["work_residual"]) < 0.01  # kernels of the parts, work beside them, idle time; some copies overlap
    assert parts["host_gap_ms"] <= parts["idle_ms"] <= parts["cycle_ms"]
    low, high = parts["spread"]["cycle_ms"]
    assert low <= parts["cycle_ms"] <= high


@pytest.mark.parametrize(
    ("trace", "log", "work_ms", "stretch"), [("decode", "base", 4.54, 1.38), ("standalone-3", "sa3", 5.56, 2.21)]
)
def test_the_device_fits_into_the_cycle_of_the_log_though_the_profiled_cycle_does_not(
    trace: str, log: str, work_ms: float, stretch: float
) -> None:
    cycle = read_log(H200 / f"{log}.log")["summary"][0]["cycle_ms"]
    parts = cycle_parts(read_trace(H200 / f"{trace}.trace.json.gz"))
    work = sum(split["all"] for split in parts["work_ms"].values())
    assert work == pytest.approx(work_ms, abs=0.01)
    assert parts["cycle_ms"] / cycle == pytest.approx(stretch, abs=0.01)
    assert work < cycle < parts["cycle_ms"]


@pytest.mark.parametrize(("trace", "log", "fills"), [("decode", "base", 0.97), ("standalone-3", "sa3", 0.88)])
def test_what_the_host_launched_fits_into_the_cycle_of_the_log_and_fills_a_step(
    trace: str, log: str, fills: float
) -> None:
    cycle = read_log(H200 / f"{log}.log")["summary"][0]["cycle_ms"]
    parts = cycle_parts(read_trace(H200 / f"{trace}.trace.json.gz"))
    work_ms = sum(split["all"] for split in parts["work_ms"].values())
    assert work_ms < parts["launched_ms"] < parts["cycle_ms"]
    assert fills < parts["launched_ms"] / cycle < 1.03  # that drafter's host was the slower one


def test_gaps_within_a_graph_are_the_device_s_and_gaps_between_launches_are_not() -> None:
    events = cycles("step[VERIFY bs=1]", None)
    for index in range(3):  # a second kernel of the verify's graph, 0.2 ms after the first
        t = index * 10_000.0
        events.append(launched("nvjet_sm90_z", t + 500, t + 5_200, t + 5_700, 2 * index)[1])
    parts = cycle_parts(trace_of(events))
    assert parts["launched_ms"] == pytest.approx(4.7 + 2)
    assert parts["idle_ms"] == pytest.approx(10 - (4.5 + 2))


def test_most_of_a_verify_is_matrix_products_and_one_gpu_reduces_nothing() -> None:
    trace = read_trace(H200 / "standalone-3.trace.json.gz")
    verify = cycle_parts(trace)["work_ms"]["verify"]
    assert verify["matmul"] == pytest.approx(4.04, abs=0.01)
    assert verify["attention"] == pytest.approx(0.43, abs=0.01)
    assert verify["all"] == pytest.approx(sum(verify[k] for k in ("attention", "matmul", "rest")), rel=0.01)
    assert allreduce(trace) == {"n": 4, "count": 0, "ms": 0, "kernels": {}}
    assert fused_kernels(trace) == []


def test_a_cpu_trace_of_the_real_server_adds_up() -> None:
    # 2 steps of STANDALONE on shared cores; operators under 0.2 ms are cut out of the excerpt
    parts = cycle_parts(read_trace(H200.parent / "cpu-standalone-2.trace.json.gz"))
    assert (parts["device"], parts["speculative"], parts["n"]) == ("cpu", True, 6)
    assert sum(parts[part] for part in PARTS) == pytest.approx(parts["cycle_ms"])
    assert parts["other_ms"] < 0.02 * parts["cycle_ms"]
    assert parts["work_ms"]["verify"]["matmul"] > 0.5 * parts["verify_ms"]


def test_the_host_starts_a_cycle_as_often_as_the_device_ends_one() -> None:
    events = cycles("step[VERIFY bs=1]", "step[DRAFT bs=1]", n=9)
    host_only = [event for event in events if event["cat"] == "user_annotation"]
    found = host_cycle(trace_of(host_only))
    assert found == {"cycle_ms": 10, "n": 6, "operator_us": 0}  # of 8 cycles the first two are left out
    host_only.append(annotation("step[EXTEND bs=1 toks=9]", 64_500, 65_000))
    assert host_cycle(trace_of(host_only))["n"] == 6  # one more is left out, and of 7 the first one
    with pytest.raises(UserError, match="whole cycle"):
        host_cycle(trace_of([annotation("step[VERIFY bs=1]", 0, 1)]))


def test_what_lies_beside_the_parts_is_work_or_a_gap() -> None:
    events = cycles("step[VERIFY bs=1]", None)
    events += launched("sampling", 2_500, 5_200, 5_700, 50, tid=8)  # another thread's: no part's
    parts = cycle_parts(trace_of(events))
    assert parts["spread"]["outside_ms"] == [0, 0.5]
    assert parts["spread"]["host_gap_ms"] == [3.5, 4]
    assert abs(parts["work_residual"]) < 1e-9


# ---- made-up traces: names of annotations by release, many GPUs, CPUs


def annotation(name: str, start: float, end: float, tid: int = 7) -> dict[str, Any]:
    return {"ph": "X", "cat": "user_annotation", "name": name, "tid": tid, "ts": start, "dur": end - start}


def launched(name: str, call_us: float, start: float, end: float, number: int, tid: int = 7) -> list[dict[str, Any]]:
    """A call on the host and the kernel that it launched."""
    args = {"correlation": number}
    return [
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaGraphLaunch",
            "tid": tid,
            "ts": call_us,
            "dur": 5,
            "args": args,
        },
        {"ph": "X", "cat": "kernel", "name": name, "tid": 13, "ts": start, "dur": end - start, "args": args},
    ]


def cycles(verify: str, draft_step: str | None, n: int = 3) -> list[dict[str, Any]]:
    """Cycles of 10 ms: verify launched at 0 ms and running 1 to 5 ms, draft launched at 3 ms and running 6 to 8 ms."""
    events: list[dict[str, Any]] = []
    for index in range(n):
        t = index * 10_000.0
        events += [annotation(verify, t, t + 2_000), annotation("draft", t + 3_000, t + 4_000)]
        if draft_step:
            events.append(annotation(draft_step, t + 3_100, t + 3_900))
        events += launched("nvjet_sm90_x", t + 500, t + 1_000, t + 5_000, 2 * index)
        events += launched("nvjet_sm90_y", t + 3_500, t + 6_000, t + 8_000, 2 * index + 1)
    return events


@pytest.mark.parametrize(
    ("verify", "draft_step"),
    [
        ("step[TARGET_VERIFY bs=4]", None),
        ("step[TARGET_VERIFY bs=4]", "step[DECODE bs=4]"),  # a drafter's own step
        ("step[VERIFY bs=4]", "step[DRAFT bs=4]"),  # 0.5.23
    ],
)
def test_names_of_all_releases_give_the_same_parts(verify: str, draft_step: str | None) -> None:
    parts = cycle_parts(trace_of(cycles(verify, draft_step)))
    assert parts["batches"] == [4]
    assert parts["n"] == 2
    assert (parts["cycle_ms"], parts["verify_ms"], parts["draft_ms"], parts["other_ms"]) == (10, 4, 2, 4)
    assert (parts["idle_ms"], parts["host_gap_ms"]) == (4, 4)


def test_a_cycle_with_a_prefill_in_it_is_left_out() -> None:
    events = cycles("step[VERIFY bs=1]", None, n=4)
    events += [annotation("step[EXTEND bs=1 toks=9]", 14_500, 15_000)]
    events += launched("nvjet", 14_600, 18_500, 19_000, 99)
    assert cycle_parts(trace_of(events))["n"] == 2


def test_kernels_of_other_threads_belong_to_no_part() -> None:
    events = cycles("step[VERIFY bs=1]", None)
    events += launched("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 600, 5_100, 5_200, 50, tid=8)
    assert allreduce(trace_of(events))["count"] == 0


def test_allreduces_are_counted_in_one_target_forward() -> None:
    events = cycles("step[VERIFY bs=1]", None)
    for index in range(3):
        for layer in range(4):
            start = index * 10_000 + 1_000 + 100 * layer
            events += launched(
                "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", index * 10_000 + 600, start, start + 50, 70
            )
        events += launched("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", index * 10_000 + 3_500, 0, 1, 71)  # draft's
    for number, event in enumerate(event for event in events if event["cat"] == "kernel" and "nccl" in event["name"]):
        event["args"]["correlation"] = 100 + number
    calls = [e for e in events if e["cat"] == "cuda_runtime" and e["args"]["correlation"] >= 70]
    for number, event in enumerate(calls):
        event["args"] = {"correlation": 100 + number}
    found = allreduce(trace_of(events))
    assert (found["n"], found["count"]) == (3, 4)
    assert found["ms"] == pytest.approx(0.2)


def test_on_a_cpu_the_parts_are_the_annotations_and_the_work_its_outermost_operators() -> None:
    events = []
    for index in range(3):
        t = index * 1_000.0
        events += [annotation("step[VERIFY bs=1]", t, t + 600), annotation("draft", t + 700, t + 900)]
        for name, start, end in (("aten::linear", 0, 400), ("aten::addmm", 10, 390), ("aten::silu", 400, 500)):
            events.append({"ph": "X", "cat": "cpu_op", "name": name, "tid": 7, "ts": t + start, "dur": end - start})
    parts = cycle_parts(trace_of(events))
    assert parts["device"] == "cpu"
    assert (parts["cycle_ms"], parts["verify_ms"], parts["draft_ms"]) == (1, 0.6, 0.2)
    assert parts["work_ms"]["verify"] == pytest.approx(
        {"allreduce": 0, "attention": 0, "matmul": 0.4, "rest": 0.1, "all": 0.5}
    )


def test_on_a_cpu_an_all_reduce_lasts_until_gloo_is_done() -> None:
    """The operator only sets it going; Gloo works on a thread of its own while the scheduler waits."""
    events = []
    for index in range(3):
        t = index * 1_000.0
        events.append(annotation("step[DECODE bs=1]", t, t + 900))
        for name, start, end in (("aten::mul", 0, 100), ("c10d::allreduce_", 100, 120), ("aten::add", 500, 600)):
            events.append({"ph": "X", "cat": "cpu_op", "name": name, "tid": 7, "ts": t + start, "dur": end - start})
        gloo = {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "tid": 9, "ts": t + 130, "dur": 350}
        events.append(gloo)
    broadcast = {"ph": "X", "cat": "user_annotation", "name": "gloo:broadcast", "tid": 9, "ts": 105.0, "dur": 5_000.0}
    found = allreduce(trace_of([*events, broadcast]))
    assert (found["n"], found["count"], found["ms"]) == (3, 1, pytest.approx(0.38))
    unseen = [event for event in events if event["name"] != "gloo:all_reduce" or event["ts"] > 2_000]
    assert allreduce(trace_of(unseen))["ms"] == pytest.approx(0.02), "never the wait of another one"
    assert cycle_parts(trace_of(events))["work_ms"]["decode"]["all"] == pytest.approx(0.1 + 0.38 + 0.1)
    cut = [{**event, "dur": 200} if event["name"].startswith("step") else event for event in events]
    assert cycle_parts(trace_of(cut))["work_residual"] == pytest.approx(0), "also where it ends behind its part"


def test_work_that_runs_at_the_same_time_does_not_add_up_to_the_cycle() -> None:
    events = cycles("step[VERIFY bs=1]", None)
    for index in range(3):  # on a stream of its own, beside the verify's kernel
        t = index * 10_000.0
        events += launched("nvjet_sm90_z", t + 600, t + 3_000, t + 5_000, 100 + index)
    parts = cycle_parts(trace_of(events))
    assert parts["work_ms"]["verify"]["all"] == pytest.approx(6)
    assert (parts["verify_ms"], parts["idle_ms"]) == (4, 4)
    assert parts["work_residual"] == pytest.approx(-0.2)


def test_a_part_that_runs_twice_in_a_cycle_counts_twice() -> None:
    events = cycles("step[VERIFY bs=1]", None)
    for index in range(3):
        t = index * 10_000.0
        events.append(annotation("step[DRAFT bs=1]", t + 4_000, t + 4_500))
        events += launched("nvjet_sm90_z", t + 4_100, t + 8_500, t + 9_500, 100 + index)
    parts = cycle_parts(trace_of(events))
    assert (parts["draft_ms"], parts["work_ms"]["draft"]["all"]) == (pytest.approx(3), pytest.approx(3))


@pytest.mark.parametrize(
    ("lengths", "cycle_ms"),
    [
        ([12_000, 6_600, 6_500, 6_700], 6.65),
        ([6_600, 12_000, 6_500], 6.6),
        ([9_000, 6_600], 7.8),
        ([6_600], 6.6),
        ([12_000, 9_000, 8_000, 7_000, 6_600, 6_500], 7.5),
    ],
)
def test_times_are_those_of_the_cycles_of_middle_length(lengths: list[int], cycle_ms: float) -> None:
    events: list[dict[str, Any]] = []
    clock = 0.0
    for index, length in enumerate([*lengths, 0]):
        events.append(annotation("step[DECODE bs=1]", clock, clock + 100))
        events += launched("nvjet_sm90_x", clock + 10, clock + 200, clock + 6_000, index)
        clock += length
    parts = cycle_parts(trace_of(events))
    assert parts["cycle_ms"] == pytest.approx(cycle_ms)
    assert parts["spread"]["cycle_ms"] == pytest.approx([min(lengths) / 1000, max(lengths) / 1000])
    assert parts["verify_ms"] + parts["host_gap_ms"] == pytest.approx(cycle_ms)


def test_a_wait_for_a_late_gpu_in_some_cycles_is_not_the_work_of_all() -> None:
    events: list[dict[str, Any]] = []
    clock = 0.0
    for index, wait in enumerate([0, 0, 0, 0, 800, 900, 0]):  # the late ones are not all among the longest left out
        events.append(annotation("step[DECODE bs=1]", clock, clock + 100))
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
        events += launched(name, clock + 10, clock + 1_000, clock + 1_100 + wait, index)
        clock += 5_000 + wait
    parts = cycle_parts(trace_of(events))
    assert parts["work_ms"]["decode"]["allreduce"] == pytest.approx(0.1)
    assert parts["launched_ms"] == pytest.approx(0.1)


@pytest.mark.parametrize("begins", [5_000, 15_200], ids=["in a part's gap", "in the next cycle"])
def test_work_that_runs_alone_counts_once_wherever_it_runs(begins: int) -> None:
    events = cycles("step[VERIFY bs=1]", None, n=5)
    for index in range(5):
        t = index * 10_000.0
        events += launched("nvjet_sm90_x", t + 520, t + 8_500, t + 9_000, 200 + index)  # the verify, once more
        whose = 8 if begins < 10_000 else 7
        events += launched("Memcpy", t + 3_600, t + begins, t + begins + 700, 100 + index, tid=whose)
    parts = cycle_parts(trace_of(events))
    assert parts["work_residual"] == pytest.approx(0, abs=1e-9)


def test_work_that_runs_on_into_the_next_cycle_is_no_idle_time_there() -> None:
    events: list[dict[str, Any]] = []
    for index in range(6):
        t = index * 10_000.0
        events += [annotation("step[VERIFY bs=1]", t, t + 100), annotation("draft", t + 200, t + 300)]
        events += launched("Memcpy", t + 10, t + 1_000, t + 1_001, 3 * index)  # opens the cycle
        events += launched("nvjet_sm90_x", t + 20, t + 3_000, t + 6_000, 3 * index + 1)
        events += launched("nvjet_sm90_y", t + 210, t + 8_000, t + 12_500, 3 * index + 2)
    parts = cycle_parts(trace_of(events))
    assert parts["work_ms"]["draft"]["all"] == pytest.approx(4.5)
    assert parts["idle_ms"] == pytest.approx(2.5)
    assert parts["work_residual"] == pytest.approx(0, abs=0.001)


def test_a_part_of_some_cycles_counts_with_their_share() -> None:
    events = cycles("step[VERIFY bs=1]", None, n=6)
    for t in (10_000.0, 30_000.0):  # of five cycles two
        events.append(annotation("step[DRAFT_EXTEND bs=1]", t + 4_200, t + 4_900))
        events += launched("nvjet_sm90_z", t + 4_300, t + 9_000, t + 10_000, 500 + int(t))
    work = cycle_parts(trace_of(events))["work_ms"]
    assert work["draft_extend"]["all"] == pytest.approx(0.4)
    assert work["verify"]["all"] == pytest.approx(4)


@given(
    periods=st.lists(st.floats(5.5, 9), min_size=4, max_size=9), waits=st.lists(st.floats(0, 1), min_size=9, max_size=9)
)
def test_cycles_that_each_add_up_leave_nothing(periods: list[float], waits: list[float]) -> None:
    events: list[dict[str, Any]] = []
    clock = 0.0
    for index, period in enumerate(periods):
        events.append(annotation("step[DECODE bs=1]", clock, clock + 100))
        events += launched("nvjet_sm90_x", clock + 10, clock + 200, clock + 4_200, 2 * index)
        end = clock + 4_300 + 1000 * waits[index]
        events += launched("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", clock + 20, clock + 4_200, end, 2 * index + 1)
        clock += 1000 * period
    assert cycle_parts(trace_of(events))["work_residual"] == pytest.approx(0, abs=1e-6)


@given(times=st.tuples(*[st.floats(1, 5_000) for _ in range(4)]), n=st.integers(2, 9))
def test_work_and_idle_time_make_up_a_cycle(times: tuple[float, ...], n: int) -> None:
    gap, verify, wait, draft = times
    events: list[dict[str, Any]] = []
    for index in range(n):
        clock = index * sum(times)
        events += [annotation("step[VERIFY bs=1]", clock, clock + 0.1), annotation("draft", clock + 0.2, clock + 0.3)]
        events += launched("a", clock + 0.05, clock + gap, clock + gap + verify, 2 * index)
        start = clock + gap + verify + wait
        events += launched("b", clock + 0.25, start, start + draft, 2 * index + 1)
    assert cycle_parts(trace_of(events))["work_residual"] == pytest.approx(0, abs=1e-6)


@given(
    times=st.lists(
        st.tuples(*[st.floats(1, 5_000) for _ in range(4)]),  # idle, verify, idle, draft
        min_size=3,
        max_size=8,
    )
)
def test_parts_add_up_whatever_the_times_are(times: list[tuple[float, ...]]) -> None:
    events: list[dict[str, Any]] = []
    clock = 0.0
    for index, (gap, verify, wait, draft) in enumerate(times):
        events += [annotation("step[VERIFY bs=1]", clock, clock + 1), annotation("draft", clock + 1, clock + 2)]
        events += launched("a", clock, clock + gap, clock + gap + verify, 2 * index)
        start = clock + gap + verify + wait
        events += launched("b", clock + 1.5, start, start + draft, 2 * index + 1)
        clock = start + draft
    parts = cycle_parts(trace_of(events))
    assert sum(parts[part] for part in PARTS) == pytest.approx(parts["cycle_ms"])
    in_parts_ms = parts["draft_ms"] + parts["verify_ms"] + parts["draft_extend_ms"]
    assert in_parts_ms + parts["host_gap_ms"] == pytest.approx(parts["cycle_ms"]), "of the same cycles"
    assert parts["outside_ms"] == pytest.approx(0, abs=1e-6)
    assert parts["spread"]["launched_ms"][1] <= parts["spread"]["cycle_ms"][1] * (1 + 1e-9)
    assert parts["n"] == len(times) - 1


@pytest.mark.parametrize(
    ("name", "kind", "fused"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "allreduce", False),
        ("void sglang::cross_device_reduce_1stage<__nv_bfloat16, 2>(sglang::RankData*)", "allreduce", False),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(flashinfer::"
            "trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, true>",
            "allreduce",
            True,
        ),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_twoshot_sync<(flashinfer::"
            "trtllm_allreduce_fusion::AllReduceFusionPattern)0, __nv_bfloat16, 8, true>",
            "allreduce",
            False,
        ),
        ("flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8, __nv_bfloat16, true>", "allreduce", True),
        ("flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<float>", "allreduce", True),
        ("moefinalize_allreduce_fusion_kernel_oneshot_lamport", "allreduce", True),
        ("nvjet_sm90_tst_128x8_64x12_2x1_v_bz_TNT", "matmul", False),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", "matmul", False),
        ("cutlass::device_kernel<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90>>", "attention", False),
        ("_fwd_grouped_kernel_stage1", "attention", False),
        ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<>", "attention", False),
        ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>", "rest", False),
        ("void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16>", "rest", False),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "attention", False),
        ("aten::mm", "matmul", False),
        ("mkldnn::_linear_pointwise", "matmul", False),
        ("Memcpy DtoH (Device -> Pinned)", "rest", False),
    ],
)
def test_kernels_are_told_apart_by_name(name: str, kind: str, fused: bool) -> None:
    assert (work_kind(name), is_fused(name)) == (kind, fused)


MNNVL = "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel"
TRTLLM = "_ZN10flashinfer23trtllm_allreduce_fusion39allreduce_fusion_kernel_oneshot_lamportILNS0_22"


@pytest.mark.parametrize(
    ("name", "fused"),
    [
        (f"{MNNVL}<(unsigned char)8, __nv_bfloat16, true, (flashinfer::QuantType)0, float4>", True),
        (f"{MNNVL}<(unsigned char)8, __nv_bfloat16, false, (flashinfer::QuantType)0, float4>", False),
        (f"{MNNVL}<(unsigned char)8, __nv_bfloat16, (bool)1, float4>", True),
        (f"{MNNVL}<(unsigned char)8, __nv_bfloat16, (bool)0, float4>", False),
        ("oneshotAllreduceFusionKernelILh8E13__nv_bfloat16Lb1ELNS1_9QuantTypeE0E6float4EEvNS1_", True),
        ("oneshotAllreduceFusionKernelILh8E13__nv_bfloat16Lb0ELNS1_9QuantTypeE0E6float4EEvNS1_", False),
        (f"{TRTLLM}AllReduceFusionPatternE1E13__nv_bfloat16Li8ELb1ELb0EEEv", True),
        (f"{TRTLLM}AllReduceFusionPatternE10E13__nv_bfloat16Li8ELb1ELb0EEEv", True),
        (f"{TRTLLM}AllReduceFusionPatternE0E13__nv_bfloat16Li8ELb1ELb0EEEv", False),
        ("allreduce_fusion_kernel_twoshot_sync<AllReduceFusionPattern::kAllReduce, __half, 8>", False),
        ("flashinfer::trtllm_allreduce_fusion::lamport_initialize_kernel", False),
        ("allreduce_fusion_kernel_twoshot_sync<AllReduceFusionPattern::kARResidualRMSNorm, __half, 8>", True),
    ],
)
def test_mnnvl_without_its_norm_is_not_fused(name: str, fused: bool) -> None:
    assert (work_kind(name), is_fused(name)) == ("allreduce", fused)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("void sm90::decode::dense::flash_fwd_splitkv_mla_kernel<cutlass::bfloat16_t>", "attention"),
        ("void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>", "attention"),
        ("void flash::flash_fwd_splitkv_combine_kernel<cutlass::half_t>", "attention"),
        ("void flash_fwd_mla_combine_kernel<cutlass::bfloat16_t, float>", "attention"),
        ("void cutlass::device_kernel<cutlass::fmha::kernel::Sm100FmhaMlaKernelTmaWarpspecialized>", "attention"),
        ("fused_moe_kernel", "matmul"),
        ("void marlin_moe_wna16::Marlin<__nv_bfloat16>", "matmul"),
        ("bmm_Bfloat16_E2m1E2m1_Fp32_bA16_bB16_bC16_t128x8x512_s4_swiGlu_dynBatch_sm100f", "matmul"),
        ("void cutlass::gemm::kernel::Sm90Gemm<cute::SmemLayoutAtom, GemmLauncher>", "matmul"),
        ("void tensorrt::pack<cute::SmemLayoutAtom>", "rest"),
        ("void cublasLt::splitKreduce_kernel", "matmul"),
    ],
)
def test_names_of_flashmla_and_moe_kernels(name: str, kind: str) -> None:
    assert work_kind(name) == kind


def test_bad_traces_are_refused_with_one_line(tmp_path: Path) -> None:
    whole = (H200 / "decode.trace.json.gz").read_bytes()
    (tmp_path / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "damaged.json.gz").write_bytes(whole[:10] + b"\xff" * 99)
    (tmp_path / "cut.json").write_bytes(gzip.decompress(whole)[:5000])
    (tmp_path / "other.json").write_text('{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "x", "ts": 1}]}')
    (tmp_path / "text.json").write_text("no json")
    for name in ("missing.json", "cut.json.gz", "damaged.json.gz", "cut.json", "other.json", "text.json"):
        with pytest.raises(UserError) as error:
            read_trace(tmp_path / name)
        assert "\n" not in str(error.value)


def test_a_trace_without_a_whole_cycle_is_refused() -> None:
    with pytest.raises(UserError, match="three decode steps"):
        cycle_parts(trace_of(cycles("step[VERIFY bs=1]", None, n=1)))
    with pytest.raises(UserError, match="no target forward"):
        allreduce(trace_of([annotation("draft", 0, 1)]))


@pytest.mark.parametrize(("trace", "fused", "plain"), [("unfused-tp2", 0, 97), ("fused-tp2", 95, 2)])
def test_two_gpus_reduce_twice_a_layer_and_once_for_the_embedding(trace: str, fused: int, plain: int) -> None:
    # 48 layers of a mixture of experts; what follows the embedding and the last layer can't be fused with a norm
    window = read_trace(H200 / f"{trace}.trace.json.gz")
    found = allreduce(window)
    assert found["count"] == 2 * 48 + 1
    per_forward = {is_fused(name): count / found["n"] for name, count in found["kernels"].items()}
    assert (per_forward.get(True, 0), per_forward[False]) == (fused, plain)
    assert bool(fused_kernels(window)) == bool(fused)
