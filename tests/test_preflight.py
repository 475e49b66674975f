"""What is known before a launch: from the texts of the machine's tools and the files of the models."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from breakeven import sweep
from breakeven.config import SweepSettings
from breakeven.embedded import drafter as embedded_drafter
from breakeven.embedded import model as embedded_model
from breakeven.errors import UserError
from breakeven.hosts import LOCAL, Completed, Local
from breakeven.inventory import inventory
from breakeven.launch import gpu_checks, model_checks, model_files, preflight
from breakeven.launch.design import plan_arms
from breakeven.launch.gpu_checks import Finding
from breakeven.launch.model_files import Model
from breakeven.launch.serving import Serving
from breakeven.server.command import Drafter, LaunchSpec, effective_drafter

UNDERLINED = "\x1b[4m"
PLAIN = "\x1b[0m"
EIGHT_ON_PCIE = f"""
\t{UNDERLINED}GPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID{PLAIN}
GPU0\t X \tPIX\tNODE\tSYS\tSYS\t0-31,64-95\t0\t\tN/A
GPU1\tPIX\t X \tNODE\tSYS\tSYS\t0-31,64-95\t0\t\tN/A
GPU2\tNODE\tNODE\t X \tPHB\tSYS\t0-31,64-95\t0\t\tN/A
GPU3\tSYS\tSYS\tPHB\t X \tPIX\t32-63,96-127\t1\t\tN/A
NIC0\tSYS\tSYS\tSYS\tPIX\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""
NVLINKED = """
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tNV18\t0-47\t0\t\tN/A
GPU1\tNV18\t X \t0-47\t0\t\tN/A
"""
ONE = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\nGPU0\t X \t0-15\t0\t\tN/A\n"
NO_P2P = """
 \tGPU0\tGPU1\tGPU2\tGPU3
 GPU0\tX\tOK\tCNS\tCNS
 GPU1\tOK\tX\tCNS\tCNS
 GPU2\tCNS\tCNS\tX\tOK
 GPU3\tCNS\tCNS\tOK\tX
"""


SKEWED = {"flashinfer-python": "0.7.2", "flashinfer-cubin": "0.6.16"}


def severities(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.severity, finding.subject) for finding in findings]


# ---------------------------------------------------------------- the machine


@pytest.mark.parametrize(
    ("text", "gpus", "severity", "link"),
    [
        (EIGHT_ON_PCIE, [0, 1], "note", "PIX between GPU0 and GPU1"),
        (EIGHT_ON_PCIE, [0, 1, 2], "warning", "NODE between"),
        (EIGHT_ON_PCIE, [0, 1, 2, 3], "warning", "SYS between"),
        (EIGHT_ON_PCIE, [3, 2], "warning", "PHB between GPU3 and GPU2"),
        (NVLINKED, [0, 1], "note", "NV18 between all 2 GPUs"),
        (ONE, [0, 1], "note", "tells nothing"),
        ("", [0, 1], "note", "tells nothing"),
    ],
)
def test_the_worst_link_among_the_ranks_decides(text: str, gpus: list[int], severity: str, link: str) -> None:
    (finding,) = gpu_checks.check_topology(text, "", gpus)
    assert finding.severity == severity and link in finding.found


def test_one_gpu_has_no_topology() -> None:
    assert gpu_checks.check_topology(EIGHT_ON_PCIE, NO_P2P, [0]) == []


def test_blocked_peer_access_is_a_warning_where_a_rank_needs_it() -> None:
    assert severities(gpu_checks.check_topology(EIGHT_ON_PCIE, NO_P2P, [0, 1])) == [("note", "topology")]
    findings = gpu_checks.check_topology(EIGHT_ON_PCIE, NO_P2P, [0, 1, 2, 3])
    assert ("warning", "peer access") in severities(findings) and "CNS" in findings[-1].found


@given(size=st.integers(2, 8), data=st.data())
def test_a_matrix_that_is_printed_is_read_back(size: int, data: st.DataObject) -> None:
    kinds = st.sampled_from(["NV4", "NV18", "PIX", "PXB", "PHB", "NODE", "SYS"])
    links = {(a, b): data.draw(kinds) for a in range(size) for b in range(size) if a != b}
    rows = [
        "\t".join([f"GPU{a}", *(" X " if a == b else links[a, b] for b in range(size)), "0-7", "0", "", "N/A"])
        for a in range(size)
    ]
    head = "\t" + "\t".join([f"GPU{a}" for a in range(size)] + ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    assert gpu_checks.link_matrix("\n".join([head, *rows])) == links


@pytest.mark.parametrize(
    ("driver", "cuda", "expected"),
    [
        ("580.65.06", "13.0", ["note"]),
        ("570.124", "13.0", ["error"]),
        ("570.124", "12.8", ["note"]),
        ("470.1", "12.8", ["error"]),
        ("", "12.8", []),
        ("580.1", None, []),
    ],
)
def test_a_driver_is_held_against_torchs_cuda(driver: str, cuda: str | None, expected: list[str]) -> None:
    assert [finding.severity for finding in gpu_checks.check_driver(driver, cuda)] == expected


UUIDS = ("GPU-aa11", "GPU-ab22", "GPU-cc33", "GPU-dd44")


@pytest.mark.parametrize(
    ("variable", "visible"),
    [
        (None, [0, 1, 2, 3]),
        ("2,3", [2, 3]),
        ("3, 1", [3, 1]),
        ("GPU-cc33,GPU-d", [2, 3]),
        ("GPU-a", []),  # of two GPUs
        ("1,-1,2", [1]),
        ("7", []),
        ("", []),
        ("MIG-cc33", None),
    ],
)
def test_visible_gpus_are_read_as_cuda_reads_them(variable: str | None, visible: list[int] | None) -> None:
    assert gpu_checks.visible_gpus(variable, UUIDS) == visible


def test_gpus_without_a_uuid_are_counted_all_the_same() -> None:
    assert gpu_checks.visible_gpus(None, ["[N/A]", "[N/A]"]) == gpu_checks.visible_gpus("0,1", ["[N/A]"] * 2) == [0, 1]


def test_what_was_overridden_is_a_warning() -> None:
    old, cuda = "550.54.15", "13.0"
    said = "| NVIDIA-SMI 550.54.15   Driver Version: 550.54.15   CUDA Version: {}  |"
    compat = "/usr/local/cuda/compat:/usr/lib"
    for findings in (
        gpu_checks.check_driver(old, cuda, said.format("13.0")),
        gpu_checks.check_driver(old, cuda, said.format("12.4"), compat),
        gpu_checks.check_packages(SKEWED, {}, {"FLASHINFER_DISABLE_VERSION_CHECK": "1"}),
    ):
        assert [finding.severity for finding in findings] == ["warning"]
    for findings in (
        gpu_checks.check_driver(old, cuda, said.format("12.4")),
        gpu_checks.check_packages(SKEWED, {}, {}),
    ):
        assert [finding.severity for finding in findings] == ["error"]


def test_gpus_that_are_held_back_are_named_with_the_reason() -> None:
    text = "0, 1980, 1980, 0x0000000000000001, 700.00, 700.00\n1, 345, 1980, 0x0000000000000044, 400.00, 700.00\n"
    held, limited = gpu_checks.check_clocks(text)
    assert held.severity == "warning" and "GPU1 at 345 of 1980 MHz" in held.found
    assert "power cap" in held.found and "hardware thermal limit" in held.found
    assert limited.severity == "note" and "GPU1 limited to 400 of 700 W" in limited.found
    assert gpu_checks.check_clocks("0, 10, 10, [N/A], [N/A], [N/A]\n") == [] and gpu_checks.check_clocks("") == []


def test_other_processes_are_named() -> None:
    (finding,) = gpu_checks.check_other_processes("4711, /usr/bin/python3, 81234\n")
    assert finding.severity == "warning" and "python3 (4711, 81234 MiB)" in finding.found
    assert gpu_checks.check_other_processes("") == []


@pytest.mark.parametrize(
    ("environment", "nvcc", "there", "built", "severity", "word"),
    [
        ({"CUDA_HOME": ":/usr/local/cuda"}, "/usr/bin/nvcc", True, False, "error", ":/usr/local/cuda"),
        ({"CUDA_HOME": "/opt/cuda"}, "/usr/bin/nvcc", False, False, "warning", "/opt/cuda"),
        ({"CUDA_PATH": "/opt/cuda"}, "", True, False, "note", "/opt/cuda"),
        ({}, "/usr/local/cuda-13/bin/nvcc", True, False, "note", "/usr/local/cuda-13"),
        ({}, "", False, False, "warning", "/usr/local/cuda"),
        ({}, "", False, True, "note", "/usr/local/cuda"),
    ],
)
def test_the_compiler_is_found_as_flashinfer_finds_it(
    environment: dict[str, str], nvcc: str, there: bool, built: bool, severity: str, word: str
) -> None:
    packages = {"flashinfer-jit-cache": "0.7.2+cu130"} if built else {}
    (finding,) = gpu_checks.check_compiler(environment, nvcc, there, packages)
    assert finding.severity == severity and word in finding.found


def test_flashinfers_parts_have_to_be_of_one_version_and_pins_are_compared() -> None:
    fitting = {"flashinfer-python": "0.7.2", "flashinfer-cubin": "0.7.2", "flashinfer-jit-cache": "0.7.2+cu130"}
    assert gpu_checks.check_packages(fitting, {"flashinfer-python": "0.7.2"}, {}) == []
    (skewed,) = gpu_checks.check_packages({**fitting, "flashinfer-cubin": "0.6.16"}, {}, {})
    assert skewed.severity == "error" and "0.6.16" in skewed.found and "flashinfer-cubin==0.7.2" in skewed.todo
    (pinned,) = gpu_checks.check_packages({"sglang-kernel": "0.4.9"}, {"sglang-kernel": "0.4.10"}, {})
    assert pinned.severity == "warning" and "pins 0.4.10" in pinned.found


# ---------------------------------------------------------------- target and draft


def model(vocabulary: dict[str, int] | None = None, weight_bytes: int = 0, **config: object) -> Model:
    base = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "vocab_size": 32000}
    base |= {"max_position_embeddings": 8192, "num_hidden_layers": 32, "num_attention_heads": 32}
    return Model({**base, **config}, vocabulary or {}, weight_bytes)


EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"]}
WORDS = {f"word{number}": number for number in range(5000)}


@pytest.mark.parametrize(
    ("algorithm", "target", "draft", "expected"),
    [
        ("EAGLE3", model(), model(**EAGLE3), []),
        ("EAGLE", model(), model(**EAGLE3), [("error", "drafter")]),
        ("NEXTN", model(), model(**EAGLE3), [("error", "drafter")]),
        ("EAGLE3", model(), model(), [("warning", "drafter")]),
        ("EAGLE3", model(), None, [("error", "drafter")]),
        ("EAGLE3", model(num_nextn_predict_layers=1), None, []),
        ("EAGLE", model(), None, [("warning", "drafter")]),
        ("NEXTN", model(), None, [("warning", "drafter")]),
        ("NEXTN", model(text_config={"mtp_num_hidden_layers": 1}), None, []),
        ("NGRAM", model(), None, []),
        ("EAGLE3", model(), model(**EAGLE3, hidden_size=2048), [("error", "drafter")]),
        ("EAGLE3", model(), model(**EAGLE3, hidden_size=2048, target_hidden_size=4096), []),
        ("EAGLE3", model(), model(**EAGLE3, vocab_size=128256), [("error", "vocabulary")]),
        ("EAGLE3", model(), model(**EAGLE3, draft_vocab_size=16000), []),
        ("EAGLE3", model(), model(**EAGLE3, max_position_embeddings=2048), [("warning", "context")]),
        ("STANDALONE", model(hidden_size=8192), model(), []),
        ("STANDALONE", model(WORDS), model(WORDS), []),
        ("STANDALONE", model(WORDS), model({**WORDS, "word7": 8, "word8": 7}), [("error", "vocabulary")]),
        ("STANDALONE", model(text_config={"vocab_size": 9}), model(), [("error", "vocabulary")]),
    ],
)
def test_a_draft_is_held_against_its_target(
    algorithm: str, target: Model, draft: Model | None, expected: list[tuple[str, str]]
) -> None:
    assert severities(model_checks.check_drafter(Drafter(algorithm), target, draft, 4096)) == expected


@given(swapped=st.integers(0, 9000), size=st.integers(2, 9000))
def test_a_vocabulary_of_other_order_is_found_by_sample(swapped: int, size: int) -> None:
    """Another tokenizer differs nearly everywhere; one that is shifted from some id on differs from there on."""
    target = {f"t{number}": number for number in range(size)}
    shifted = {token: id + (id >= swapped) for token, id in target.items()}
    found = model_checks.first_difference(target, shifted)
    step = max(size // model_checks.SAMPLE, 1)
    assert (found is not None) == any(id >= swapped for id in range(0, size, step))


@pytest.mark.parametrize(
    ("drafter", "backend", "page_size", "expected"),
    [
        (Drafter("EAGLE3", model="d", steps=3, topk=1), "trtllm_mha", 64, []),
        (Drafter("EAGLE3", model="d", steps=3, topk=4, draft_tokens=16), "trtllm_mha", 1, ["error"]),
        (Drafter("EAGLE3", model="d", steps=3, topk=4, draft_tokens=16), "flashmla", 64, ["error"]),
        (Drafter("EAGLE3", model="d", steps=3, topk=4, draft_tokens=16), "fa3", 64, []),
        (Drafter("EAGLE3", model="d", steps=3, topk=4, draft_tokens=16), "aiter", 64, ["error"]),
        (Drafter("EAGLE3", model="d", steps=3, topk=4, draft_tokens=16), "aiter", 1, []),
        (Drafter("EAGLE3", model="d", steps=2, topk=4, draft_tokens=22), None, 1, ["error"]),
        (Drafter("NGRAM", draft_tokens=8), "fa3", 64, ["error"]),
        (Drafter("NGRAM", draft_tokens=8), "flashinfer", 64, []),
        (Drafter("NGRAM", draft_tokens=8, breadth=1), "fa3", 64, []),
    ],
)
def test_a_tree_is_held_against_backend_and_pages(
    drafter: Drafter, backend: str | None, page_size: int, expected: list[str]
) -> None:
    findings = model_checks.check_shape(drafter, "0.5.23", backend, page_size)
    assert [finding.severity for finding in findings] == expected


@pytest.mark.parametrize(
    ("version", "backend", "refused"),
    [
        ("0.5.5", "fa3", True),
        ("0.5.6", "fa3", False),
        ("0.5.9", "triton", True),
        ("0.5.12", "triton", True),
        ("0.5.13", "triton", False),
        ("0.5.2", "flashinfer", False),
        (None, "triton", False),
    ],
)
def test_tree_backends_by_release(version: str | None, backend: str, refused: bool) -> None:
    tree = Drafter("EAGLE3", model="d", steps=3, topk=4, draft_tokens=8)
    findings = model_checks.check_shape(tree, version, backend, 64)
    assert [finding.severity for finding in findings] == ["error"] * refused
    assert model_checks.check_shape(tree, version, backend, 1) == []


@given(steps=st.integers(1, 6), topk=st.integers(2, 6), tokens=st.integers(2, 400))
def test_a_shape_is_an_error_exactly_where_the_pool_is_too_small(steps: int, topk: int, tokens: int) -> None:
    drafter = Drafter("EAGLE", model="d", steps=steps, topk=topk, draft_tokens=tokens)
    fits = tokens - 1 <= topk + (steps - 1) * topk**2
    assert bool(model_checks.check_shape(drafter, "0.5.23", "fa3", 1)) != fits
    if fits:
        assert effective_drafter(drafter).draft_tokens == tokens


@pytest.mark.parametrize(
    ("heads", "kv_heads", "ranks", "told"),
    [
        (9, 3, 3, None),
        (9, 3, 1, None),
        (9, 3, 2, "9 heads for 2 ranks"),
        (32, 8, 8, None),
        (64, 8, 16, None),  # each rank gets a copy
        (64, 8, 12, "64 heads for 12 ranks"),
        (48, 6, 8, "6 heads for 8 ranks"),
        (None, None, 4, None),
    ],
)
def test_heads_have_to_share_out_evenly(
    tmp_path: Path, heads: int | None, kv_heads: int | None, ranks: int, told: str | None
) -> None:
    config = {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    model = Model({name: value for name, value in config.items() if value}, {}, 0)
    found = [finding.found for finding in model_checks.check_heads(model, ranks)]
    assert found == ([f"{told} (no architectures)"] if told else [])


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ((), ["32 heads for 12 ranks (LlamaForCausalLM)"]),
        (("--attn-dp-size", "3"), []),
        (("--attention-data-parallel-size=3",), []),
        (("--dp-size", "3", "--enable-dp-attention"), []),
        (("--attn-cp-size", "3"), []),
        (("--device", "cpu"), []),  # SGLang pads them there
    ],
)
def test_what_splits_requests_or_texts_leaves_the_heads_to_fewer_ranks(
    tmp_path: Path, flags: tuple[str, ...], told: list[str]
) -> None:
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "architectures": ["LlamaForCausalLM"]}
    spec = LaunchSpec("python", str(write_model(tmp_path / "target", **heads)), tp=12, flags=flags)
    assert [each.found for each in preflight.check(LOCAL, [spec], {}) if each.subject == "heads"] == told


def test_a_drafters_heads_are_shared_among_the_same_ranks(tmp_path: Path) -> None:
    target = write_model(tmp_path / "target", num_attention_heads=32, num_key_value_heads=8)
    draft = write_model(tmp_path / "draft", num_attention_heads=14, num_key_value_heads=2)
    spec = LaunchSpec("python", str(target), tp=8, drafter=Drafter("STANDALONE", model=str(draft), steps=2, topk=1))
    (finding,) = (each for each in preflight.check(LOCAL, [spec], {}) if each.subject == "heads")
    assert finding.found.startswith("14 heads for 8 ranks")


def test_ranks_on_a_processor_share_its_memory(tmp_path: Path) -> None:
    target = str(write_model(tmp_path / "target"))
    notes = [
        next(each.found for each in preflight.check(LOCAL, [spec], {}) if each.subject == "memory")
        for spec in (LaunchSpec("python", target, tp=tp, flags=("--device", "cpu")) for tp in (1, 3))
    ]
    assert notes[0] == notes[1] and "host memory" in notes[0]


def test_a_context_beyond_the_models_is_an_error() -> None:
    assert severities(model_checks.check_context(model(), 8193)) == [("error", "context")]
    assert model_checks.check_context(model(), 8192) == model_checks.check_context(model(), None) == []
    stretched = model(rope_scaling={"factor": 4.0, "rope_type": "linear"})
    assert model_checks.check_context(stretched, 32768) == []


@pytest.mark.parametrize(
    ("arguments", "environment", "version", "allowed"),
    [
        ([], {}, "0.5.23", False),
        ([], {}, "0.4.10", True),  # by itself, then
        ([], {model_checks.LONGER: "false"}, "0.4.10", False),
        ([], {model_checks.LONGER: "1"}, "0.5.23", True),
        ([], {model_checks.LONGER: "True"}, None, True),
        ([model_checks.OVERRIDES, '{"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}'], {}, "0.5.23", True),
    ],
)
def test_a_longer_context_that_was_allowed_is_no_error(
    arguments: list[str], environment: dict[str, str], version: str | None, allowed: bool
) -> None:
    allowed_by = model_checks.longer_context_allowed_by(arguments, environment, version)
    (finding,) = model_checks.check_context(model(), 32768, allowed_by)
    assert finding.severity == ("warning" if allowed else "error")


def test_kv_cache_is_counted_by_heads_or_by_mlas_latent() -> None:
    grouped = model(num_key_value_heads=8)
    assert model_files.kv_bytes_per_token(grouped, "bfloat16") == 2 * 32 * 8 * 128 * 2 == 131072  # Llama 3.1 8B
    latent = model(num_hidden_layers=61, kv_lora_rank=512, qk_rope_head_dim=64)
    assert model_files.kv_bytes_per_token(latent, "bfloat16") == 61 * 576 * 2  # DeepSeek-V3


@pytest.mark.parametrize(
    ("weights_gib", "tp", "memory", "severity"),
    [(16, 1, 80.0, "note"), (16, 1, 17.0, "warning"), (160, 1, 141.0, "error"), (160, 2, 141.0, "note")],
)
def test_memory_is_estimated_from_files_and_limits(weights_gib: int, tp: int, memory: float, severity: str) -> None:
    spec = LaunchSpec("python", "m", tp=tp, dtype="bfloat16", context_length=4096, max_running_requests=8)
    target = model(weight_bytes=weights_gib << 30, num_key_value_heads=8)
    (finding,) = model_checks.check_memory(target, None, spec, memory, "GPU", tp)
    assert finding.severity == severity and f"{weights_gib / tp:.2f} GiB of weights" in finding.found


@pytest.mark.parametrize(
    ("flags", "severity", "weights"),
    [
        ((), "error", "25.00"),
        (("--pp-size", "2"), "note", "12.50"),
        (("--pipeline-parallel-size=2",), "note", "12.50"),
        (("--cpu-offload-gb", "16"), "warning", "25.00"),
        (("--cpu-offload-gb", "0"), "error", "25.00"),
        (("--quantization", "fp8"), "warning", "25.00"),
    ],
)
def test_stages_share_the_weights_and_what_is_left_out_may_fit(
    flags: tuple[str, ...], severity: str, weights: str
) -> None:
    spec, ranks = LaunchSpec("python", "m", flags=flags), 2 if weights == "12.50" else 1
    (finding,) = model_checks.check_memory(model(weight_bytes=25 << 30), None, spec, 23.99, "GPU", ranks)
    assert finding.severity == severity and f"{weights} GiB of weights" in finding.found


@pytest.mark.parametrize(
    ("sizes", "counted"),
    [
        ({"model-1.safetensors": 900, "model-2.safetensors": 300, "pytorch_model-1.bin": 1200}, 1200),
        ({"model-1.safetensors": 500, "model-2.safetensors": 500, "consolidated.safetensors": 1000}, 1000),
        ({"consolidated.safetensors": 1000}, 1000),
        ({"pytorch_model.bin": 700, "model.gguf": 200}, 700),
        ({"training_args.bin": 5, "model.gguf": 200}, 200),
        ({}, 0),
    ],
)
def test_two_formats_of_one_model_count_once(tmp_path: Path, sizes: dict[str, int], counted: int) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(b"0" * size)
    assert model_files.read_model(LOCAL, tmp_path).weight_bytes == counted


# ---------------------------------------------------------------- as a whole


def write_model(folder: Path, **config: object) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**model().config, **config}))
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": WORDS}}))
    (folder / "model.safetensors").write_bytes(b"\0" * 1000)
    return folder


def test_this_machine_is_looked_at_and_errors_come_first(tmp_path: Path) -> None:
    spec = LaunchSpec(sys.executable, str(write_model(tmp_path / "target")), context_length=9000)
    drafter = Drafter("EAGLE", model=str(write_model(tmp_path / "draft", **EAGLE3)), steps=2, topk=1)
    findings = preflight.check(LOCAL, [spec, replace(spec, drafter=drafter)], {})
    assert [finding.severity for finding in findings][:2] == ["error", "error"]
    assert {"context", "drafter", "memory"} <= {finding.subject for finding in findings}
    assert all(set(finding.as_dict()) == set(preflight.COLUMNS) for finding in findings)
    with pytest.raises(UserError, match=r"^preflight: context: context_length 9000.*\(1 more errors\)$") as caught:
        preflight.refuse_errors(findings)
    assert "\n" not in str(caught.value)
    preflight.refuse_errors([finding for finding in findings if finding.severity != "error"])


def test_a_folder_without_a_model_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no model that can be read"):
        model_files.read_model(LOCAL, tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(UserError, match="is no model that can be read"):
        model_files.read_model(LOCAL, tmp_path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "[]"),
        ("config.json", "7"),
        ("tokenizer.json", "{"),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", "[" * 100_000),
    ],
)
def test_a_model_with_a_broken_file_is_refused_in_one_line(tmp_path: Path, name: str, content: str) -> None:
    folder = write_model(tmp_path / "model")
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=f"is no model that can be read: {name}") as caught:
        model_files.read_model(LOCAL, folder)
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 10**6) | st.floats(allow_nan=False) | st.sampled_from(["", "yarn"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["factor", "hidden_size"]), inner),
    max_leaves=8,
)
SETTINGS = ("architectures", "hidden_size", "vocab_size", "max_position_embeddings", "rope_scaling", "text_config")


@given(target=st.dictionaries(st.sampled_from(SETTINGS), JSON), draft=st.dictionaries(st.sampled_from(SETTINGS), JSON))
def test_whatever_stands_in_a_models_configuration_is_judged_without_an_exception(
    target: dict[str, object], draft: dict[str, object]
) -> None:
    one, other = Model(target, {}, 0), Model(draft, {}, 0)
    for algorithm in ("EAGLE", "EAGLE3", "STANDALONE"):
        model_checks.check_drafter(Drafter(algorithm), one, other, 4096)
    model_checks.check_context(one, 4096)
    model_files.kv_bytes_per_token(one, "bfloat16")


def test_a_page_size_that_is_no_number_is_refused(tmp_path: Path) -> None:
    spec = LaunchSpec(sys.executable, str(write_model(tmp_path / "target")), flags=("--page-size", "many"))
    with pytest.raises(UserError, match="--page-size is 'many'"):
        preflight.check(LOCAL, [spec], {})


def test_a_variants_backend_is_judged(tmp_path: Path) -> None:
    settings = SweepSettings(engine="native", model=str(write_model(tmp_path / "target")))
    serving = Serving(settings, tmp_path, LOCAL, tmp_path / "target", {}, (), encode=lambda text: [])
    draft = str(write_model(tmp_path / "draft", **EAGLE3))
    tree = {"algorithm": "EAGLE3", "model": draft, "steps": 3, "topk": 4, "draft_tokens": 8}
    variants = {"a": {}, "b": {"flags": ["--attention-backend", "trtllm_mha"]}}

    def refused(variants: dict[str, dict[str, object]]) -> list[str]:
        findings = serving.preflight(plan_arms([tree], variants))
        return [finding.found for finding in findings if finding.severity == "error"]

    assert refused(variants) == ["topk 4 with trtllm_mha"] and refused({"a": {}}) == []


class Box(Local):
    """This machine with what a box with four GPUs would print."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def run(self, command: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float) -> Completed:
        line = " ".join(command)
        self.asked.append(line)
        if "compute_cap" in line:
            sizes = [("GPU A", 24_000), ("GPU A", 24_000), ("GPU B", 81_000), ("GPU B", 81_000)]
            rows = zip(sizes, UUIDS, strict=True)
            return Completed(0, "\n".join(f"{name}, 9.0, 580.1, {size} MiB, {uuid}" for (name, size), uuid in rows), "")
        if "inventory.py" in line:
            return Completed(0, json.dumps(inventory()), "")
        answers = {"topo -m": EIGHT_ON_PCIE, "topo -p2p": NO_P2P}
        return Completed(0, next((text for part, text in answers.items() if part in line), ""), "")


@pytest.mark.parametrize(
    ("variable", "flags", "used", "link", "memory"),
    [
        (None, (), "0,1", "PIX between GPU0 and GPU1", "23.4"),
        ("2,3", (), "2,3", "PHB between GPU2 and GPU3", "79.1"),
        ("GPU-cc33,GPU-dd44", (), "2,3", "PHB between GPU2 and GPU3", "79.1"),
        (None, ("--base-gpu-id", "2"), "2,3", "PHB between GPU2 and GPU3", "79.1"),
    ],
)
def test_the_visible_gpus_are_judged(
    tmp_path: Path, variable: str | None, flags: tuple[str, ...], used: str, link: str, memory: str
) -> None:
    box = Box()
    env = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    spec = LaunchSpec("python", str(write_model(tmp_path / "target")), tp=2, flags=flags, env=env)
    found = {finding.subject: finding.found for finding in preflight.check(box, [spec], {})}
    assert found["topology"] == link and f"on {memory} GiB of GPU" in found["memory"]
    assert all(line.endswith(f"-i {used}") for line in box.asked if "clocks" in line or "compute-apps" in line)


@pytest.mark.parametrize(
    ("tp", "variable", "flags", "refused"),
    [
        (4, None, (), None),
        (8, None, (), "the server needs 8, 4 can be used"),
        (2, "3", (), "the server needs 2, 1 can be used"),
        (1, "", (), "the server needs 1, 0 can be used"),
        (2, None, ("--pp-size", "2", "--dp-size", "2"), "the server needs 8, 4 can be used"),
        (4, None, ("--dp-size", "4", "--enable-dp-attention"), None),
        (8, None, ("--nnodes", "2"), None),
        (4, None, ("--base-gpu-id", "1"), "the server needs 4, 3 can be used"),
        (6, None, ("--device", "cpu"), None),
        (1, "MIG-1c2d", (), None),  # a part of a GPU is listed elsewhere
        (2, None, ("--gpu-id-step", "2"), None),
        (4, None, ("--gpu-id-step", "2"), "the server needs 4, 2 can be used"),
    ],
)
def test_more_ranks_than_gpus_are_refused_before_anything_is_loaded(
    tmp_path: Path, tp: int, variable: str | None, flags: tuple[str, ...], refused: str | None
) -> None:
    env = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    spec = LaunchSpec("python", str(write_model(tmp_path / "target")), tp=tp, flags=flags, env=env)
    found = preflight.check(Box(), [spec], {})
    assert [each.found for each in found if each.severity == "error"] == ([refused] if refused else [])


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["fewer tokens", "another order"])
def test_a_draft_with_another_vocabulary_ends_a_sweep_before_anything_is_loaded(tmp_path: Path, kind: str) -> None:
    """The second is for the preflight alone to find: SGLang 0.5.23 would serve it."""
    target, draft = embedded_model.ensure_model(), tmp_path / "draft"
    draft.mkdir()
    for path in target.iterdir():
        (draft / path.name).symlink_to(path)
    name = {"fewer tokens": "config.json", "another order": "tokenizer.json"}[kind]
    content = json.loads((target / name).read_text())
    if kind == "fewer tokens":
        content["vocab_size"] = 40_000
    else:
        ids = content["model"]["vocab"]
        content["model"]["vocab"] = dict(zip(ids, reversed(ids.values()), strict=True))
    (draft / name).unlink()
    (draft / name).write_text(json.dumps(content))
    drafters = [{"algorithm": "STANDALONE", "model": str(draft), "steps": 2, "topk": 1}]
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match=r"^preflight: vocabulary: .* Take a draft of the same family\.$") as caught:
        sweep.run_sweep(SweepSettings(engine="embedded", drafters=drafters), tmp_path / "run")
    assert "\n" not in str(caught.value) and not any((tmp_path / "run").iterdir())


def test_the_shipped_head_fits_a_model_of_its_kind() -> None:
    draft = model_files.read_model(LOCAL, embedded_drafter.FOLDER)
    target = model(hidden_size=576, vocab_size=49152, max_position_embeddings=8192)
    assert model_checks.check_drafter(Drafter("EAGLE3"), target, draft, 2048) == []
