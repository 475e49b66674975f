"""A SGLang and a FlashInfer in miniature: the shape of the real gates, in forms that a test can vary."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

TERMS = (
    "({sm90} or {sm100})",
    "_has_flashinfer",
    "tokens > 0",
    "tokens <= MAX_TOKENS",
    "not is_dp_attention_enabled()",
    "get_server_args().{flag} is not None",
)


def conjunction(terms: list[str]) -> str:
    return "    return (\n        " + "\n        and ".join(terms) + "\n    )\n"


def one_line(terms: list[str]) -> str:
    return f"    return {' and '.join(terms)}\n"


def early_returns(terms: list[str]) -> str:
    return "".join(f"    if not ({term}):\n        return False\n" for term in terms) + "    return True\n"


def nested_ifs(terms: list[str]) -> str:
    lines = [f"{'    ' * (depth + 1)}if {term}:\n" for depth, term in enumerate(terms)]
    return "".join(lines) + "    " * (len(terms) + 1) + "return True\n    return False\n"


def de_morgan(terms: list[str]) -> str:
    return f"    return not ({' or '.join(f'(not ({term}))' for term in terms)})\n"


def hoisted(terms: list[str]) -> str:
    lines = [f"    part{number} = {term}\n" for number, term in enumerate(terms)]
    return "".join(lines) + f"    return {' and '.join(f'part{number}' for number in range(len(terms)))}\n"


def flag_variable(terms: list[str]) -> str:
    return "    ok = False\n" + f"    if {' and '.join(terms)}:\n        ok = True\n" + "    return ok\n"


def conditional_expression(terms: list[str]) -> str:
    return f"    return True if ({' and '.join(terms)}) else False\n"


def all_of(terms: list[str]) -> str:
    return f"    return all([{', '.join(f'bool({term})' for term in terms)}])\n"


FORMS = (
    conjunction,
    one_line,
    early_returns,
    nested_ifs,
    de_morgan,
    hoisted,
    flag_variable,
    conditional_expression,
    all_of,
)

PREDICATES = {
    "partial": (
        "is_sm90 = lru_cache(maxsize=1)(partial(_of_major, majors=[9], cuda=(12, 3)))\n"
        "is_sm100 = lru_cache(maxsize=1)(partial(_of_major, majors=[10], cuda=(12, 8)))\n"
        "is_sm120 = lru_cache(maxsize=1)(partial(_of_major, majors=[12], cuda=(12, 8)))\n"
    ),
    "functions": (
        "def is_sm90():\n    return torch.cuda.get_device_capability()[0] == 9\n\n\n"
        "def is_sm100():\n    major, minor = torch.cuda.get_device_capability()\n    return 10 <= major < 11\n\n\n"
        "def is_sm120():\n    return torch.cuda.get_device_capability() >= (12, 0)\n"
    ),
    "lambdas": "is_sm90 = lambda: _of_major([9], (12, 3))\nis_sm100 = lambda: _of_major([10], (12, 8))\n"
    "is_sm120 = lambda: _of_major([12], (12, 8))\n",
    "properties": (
        "def is_sm90():\n    return torch.cuda.get_device_properties(0).major in {9}\n\n\n"
        "def is_sm100():\n    return f'{torch.cuda.get_device_properties(0).major}0' == '100'\n\n\n"
        "def is_sm120():\n    return torch.cuda.get_device_properties(0).major == 12\n"
    ),
}


@dataclass
class Miniature:
    """The choices a test varies; the defaults are the plain form."""

    order: list[int] = field(default_factory=lambda: list(range(len(TERMS))))
    form: int = 0
    predicates: str = "partial"
    gate: str = "fusion_applies"
    sm90: str = "_is_sm90"
    flag: str = "flashinfer_allreduce_fusion_backend"
    gate_file: str = "layers/communicator.py"
    decoys: bool = False
    majors: str = "[9, 10, 12]"

    def write(self, root: Path) -> Path:
        for name, text in (self.sglang() | self.flashinfer()).items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    def sglang(self) -> dict[str, str]:
        terms = [TERMS[index].format(sm90=self.sm90, sm100="_is_sm100", flag=self.flag) for index in self.order]
        gate_module = "sglang.srt." + self.gate_file.removesuffix(".py").replace("/", ".")
        files = {
            "utils.py": UTILS.replace("PREDICATES", PREDICATES[self.predicates]),
            "server_args.py": SERVER_ARGS.replace("FLAG", self.flag),
            "layers/dp_attention.py": DP_ATTENTION,
            "layers/layernorm.py": LAYERNORM,
            "layers/fusion_ops.py": FUSION_OPS.replace("FLAG", self.flag),
            "layers/blocks.py": BLOCKS.replace("GATE_MODULE", gate_module).replace("GATE", self.gate),
            "models/deepseek.py": MODEL,
        }
        gate = GATE.replace("NAME", self.gate).replace("SM90", self.sm90) + FORMS[self.form](terms)
        files[self.gate_file] = files.get(self.gate_file, "") + gate
        if self.decoys:
            files |= {
                "layers/decoy.py": f"def {self.gate}(tokens):\n    return True\n",
                "notes.py": f'"""{self.gate}: if is_sm120(): fused_norm()"""\n# {self.flag} = "auto" on sm120\n',
                "old.py": DEAD_PATH,
            }
        files |= {"__init__.py": "", "layers/__init__.py": "", "models/__init__.py": ""}
        return {"sglang/__init__.py": "", **{f"sglang/srt/{name}": text for name, text in files.items()}}

    def flashinfer(self) -> dict[str, str]:
        return {
            "flashinfer/__init__.py": "",
            "flashinfer/compilation_context.py": COMPILATION,
            "flashinfer/jit/__init__.py": "",
            "flashinfer/jit/core.py": JIT_CORE,
            "flashinfer/jit/comm.py": JIT_COMM.replace("MAJORS", self.majors),
            "flashinfer/comm/__init__.py": "from .trtllm_ar import create_ws, trtllm_allreduce_fusion\n",
            "flashinfer/comm/trtllm_ar.py": TRTLLM_AR,
        }


UTILS = """
from functools import lru_cache, partial
import importlib.util
import torch


def is_cuda():
    return torch.cuda.is_available() and torch.version.cuda is not None


def _of_major(majors, cuda):
    if not is_cuda():
        return False
    return (
        torch.cuda.get_device_capability()[0] in majors
        and tuple(map(int, torch.version.cuda.split(".")[:2])) >= cuda
    )


PREDICATES

def is_flashinfer_available():
    return importlib.util.find_spec("flashinfer") is not None and is_cuda()
"""
SERVER_ARGS = """
import dataclasses
from typing import Literal, Optional
from sglang.srt.utils import is_sm90, is_sm100

_ARGS = None


@dataclasses.dataclass
class ServerArgs:
    model_path: str
    tp_size: int = 1
    nnodes: int = 1
    enable_dp_attention: bool = False
    moe_a2a_backend: str = "none"
    FLAG: Optional[Literal["auto", "trtllm"]] = None

    def __post_init__(self):
        self.adjust()

    def adjust(self):
        arch = self.get_hf_config().architectures[0]
        if (
            self.FLAG is None
            and arch in ["DeepseekV3ForCausalLM", "GptOssForCausalLM"]
            and (is_sm90() or is_sm100())
            and not self.enable_dp_attention
            and self.moe_a2a_backend == "none"
        ):
            self.FLAG = "auto"


def get_server_args() -> ServerArgs:
    if _ARGS is None:
        raise ValueError("not set")
    return _ARGS
"""
DP_ATTENTION = """
_ENABLED = False


def initialize(server_args):
    global _ENABLED
    _ENABLED = server_args.enable_dp_attention


def is_dp_attention_enabled():
    return _ENABLED
"""
LAYERNORM = """
from sglang.srt.layers.fusion_ops import fused_norm


class RMSNorm:
    def forward_fused(self, x, residual):
        out = fused_norm(x, residual, self.weight)
        return out if out is not None else self.forward(x, residual)

    def forward(self, x, residual):
        return x, residual
"""
FUSION_OPS = """
import flashinfer.comm as fi
from sglang.srt.server_args import get_server_args
from sglang.srt.utils import is_sm90, is_sm100


def resolve_backend(server_args):
    backend = server_args.FLAG
    if backend is None:
        return None
    if not (is_sm90() or is_sm100()):
        raise ValueError("needs SM90 or SM10X")
    return "trtllm"


def fused_norm(x, residual, weight):
    if resolve_backend(get_server_args()) is None:
        return None
    out = x.new_empty(x.shape)
    fi.trtllm_allreduce_fusion(allreduce_in=x, residual_in=residual, rms_gamma=weight, norm_out=out)
    return out
"""
GATE = """
from sglang.srt.layers.dp_attention import is_dp_attention_enabled
from sglang.srt.server_args import get_server_args
from sglang.srt.utils import is_cuda, is_flashinfer_available, is_sm90, is_sm100

SM90 = is_cuda() and is_sm90()
_is_sm100 = is_cuda() and is_sm100()
_has_flashinfer = is_flashinfer_available()
MAX_TOKENS = 2048


def NAME(tokens):
"""
BLOCKS = """
from GATE_MODULE import GATE


class Block:
    def attend(self, x, residual, norm):
        if GATE(x.shape[0]) and hasattr(norm, "forward_fused"):
            return norm.forward_fused(x, residual)
        return norm.forward(x, residual)
"""
MODEL = """
from sglang.srt.layers.blocks import Block
from sglang.srt.layers.layernorm import RMSNorm


class DeepseekV3ForCausalLM:
    def __init__(self):
        self.block = Block()
        self.norm = RMSNorm()

    def forward(self, x, residual):
        return self.block.attend(x, residual, self.norm)
"""
DEAD_PATH = """
import flashinfer.comm as fi


def fused_norm_everywhere(x, residual, weight):
    fi.trtllm_allreduce_fusion(allreduce_in=x, residual_in=residual, rms_gamma=weight)
"""
COMPILATION = """
import os
import torch


class CompilationContext:
    def __init__(self):
        self.TARGET_CUDA_ARCHS = set()
        if "FLASHINFER_CUDA_ARCH_LIST" in os.environ:
            for arch in os.environ["FLASHINFER_CUDA_ARCH_LIST"].split(" "):
                self.TARGET_CUDA_ARCHS.add((int(arch.split(".")[0]), arch.split(".")[1]))
        else:
            for device in range(torch.cuda.device_count()):
                major, minor = torch.cuda.get_device_capability(device)
                if major >= 9:
                    minor = str(minor) + "a"
                self.TARGET_CUDA_ARCHS.add((int(major), str(minor)))

    def get_nvcc_flags_list(self, supported_major_versions=None):
        archs = [pair for pair in self.TARGET_CUDA_ARCHS if pair[0] in supported_major_versions]
        if len(archs) == 0:
            raise RuntimeError(f"No supported CUDA architectures found for major versions {supported_major_versions}.")
        return [f"-gencode=arch=compute_{major}{minor},code=sm_{major}{minor}" for major, minor in archs]
"""
JIT_CORE = """
from ..compilation_context import CompilationContext

current_compilation_context = CompilationContext()


def gen_jit_spec(name, sources, extra_cuda_cflags=None):
    return name
"""
JIT_COMM = """
from .core import current_compilation_context, gen_jit_spec


def gen_decoy_comm_module():
    flags = current_compilation_context.get_nvcc_flags_list(supported_major_versions=[8, 9, 10, 11, 12])
    return gen_jit_spec("decoy", [], extra_cuda_cflags=flags)


def gen_trtllm_comm_module():
    nvcc_flags = current_compilation_context.get_nvcc_flags_list(supported_major_versions=MAJORS)
    return gen_jit_spec("trtllm_comm", [], extra_cuda_cflags=nvcc_flags)
"""
TRTLLM_AR = """
import functools
from ..jit.comm import gen_trtllm_comm_module


@functools.cache
def get_module():
    return gen_trtllm_comm_module().build_and_load()


def create_ws():
    return None


def trtllm_allreduce_fusion(allreduce_in, **kwargs):
    get_module().trtllm_allreduce_fusion(allreduce_in)
"""
