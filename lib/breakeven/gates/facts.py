"""What is taken as given: the GPU, the launch settings, and the few facts of other packages that gates rest on."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from breakeven.gates.program import Module, Program
from breakeven.gates.values import External, Value, free, known, lift, opaque

DEFAULT_TP = 8
"""GPUs of the launch where nobody says how many."""

# What a value can depend on: the launch settings and the GPU facts that a context fixes.
LAUNCH_DEPS = frozenset(
    f"setting:{name}" for name in ("tp_size", "nnodes", "enable_dp_attention", "enable_deterministic_inference")
)
CONTEXT_DEPS = ("arch", "model architecture", "model type", "device name")

# A question to the hardware or its driver that is not answered here must not pass for a harmless one.
_DEVICE_WORDS = re.compile(r"cuda|nvml|device|capab|arch|\bsm_?\d|gpu", re.I)
# Outside code whose answers say nothing about the GPU's architecture.
_HARMLESS = (
    "torch.compiler", "torch.distributed", "torch.cuda.current_stream", "torch.cuda.stream", "torch.cuda.graph",
    "torch.cuda.Stream", "torch.cuda.Event", "torch.cuda.is_current_stream_capturing", "torch.cuda.synchronize",
    "torch.cuda.empty_cache", "torch.device", "torch.cuda.device", "torch.cuda.set_device", "torch.get_device_module",
    "cuda.bindings", "cuda.cuda", "cuda.driver", "cuda.cudart", "inspect", "logging",
)  # fmt: skip
_TORCH_PARTS = {"cuda", "version", "distributed", "compile", "ops", "library", "Tensor", "nn", "compiler", "backends"}
_OTHER_BACKENDS = {"xpu", "hpu", "npu", "mps", "musa", "mlu", "sdaa", "gcu", "maca", "privateuseone"}
_OTHER_IS_AVAILABLE = re.compile(rf"torch\.(backends\.)?({'|'.join(sorted(_OTHER_BACKENDS))})\.is_available")


@dataclass(frozen=True)
class Context:
    """The question's circumstances: one GPU architecture and one way to launch the server."""

    capability: tuple[int, int]
    model_arch: str | None = None
    tp: int = DEFAULT_TP
    nnodes: int = 1
    device_name: str | None = None
    dp_attention: bool = False
    deterministic: bool = False
    cuda: str = "13.0"
    assumed: tuple[str, ...] = ()  # what nobody stated

    def described(self) -> dict[str, Any]:
        """The launch that is judged, as it stands in the answer; ``assumed`` names what was not given."""
        described = asdict(self)
        described["assumed"] = list(self.assumed)
        return {name: value for name, value in described.items() if name not in ("capability", "cuda")}


@dataclass
class Facts:
    """Answers for names that the interpreted source does not define."""

    context: Context
    program: Program
    defaults: Callable[[str], Value | None] = lambda name: None
    chosen: dict[str, Value] = field(default_factory=dict)
    _settings: dict[str, Value | None] = field(default_factory=dict)
    _layouts: dict[str, Value | None] = field(default_factory=dict)

    # ------------------------------------------------------------ launch settings

    def setting(self, name: str) -> Value | None:
        """A launch setting by its field name: as the context fixes it, else its default. None for other names."""
        context = self.context
        fixed = {
            "tp_size": context.tp,
            "tensor_parallel_size": context.tp,
            "nnodes": context.nnodes,
            "enable_dp_attention": context.dp_attention,
            "enable_deterministic_inference": context.deterministic,
        }
        if name in fixed:
            return known(fixed[name], frozenset({f"setting:{name}"}))
        if name == "dp_size" and context.dp_attention:
            return known(context.tp, frozenset({"setting:dp_size"}))
        if name in ("attn_dp_size", "attention_dp_size"):
            return self.layout(name)  # in some releases a setting: DP attention is asked for by giving it a size
        if name in self.chosen:
            return self.chosen[name]
        if name not in self._settings:
            self._settings[name] = self.defaults(name)
        return self._settings[name]

    def layout(self, name: str) -> Value | None:
        """Sizes of the process groups, under the names that SGLang's runtime gives them; None for other names."""
        if name not in self._layouts:
            self._layouts[name] = self._layout(name)
        return self._layouts[name]

    def _layout(self, name: str) -> Value | None:
        name = name.removeprefix("get_").removeprefix("_")
        context = self.context
        deps = frozenset({"setting:tp_size"})
        if name == "attn_dp_size" or name == "attention_dp_size":
            return known(context.tp if context.dp_attention else 1, frozenset({"setting:enable_dp_attention"}))
        if name in ("attn_tp_size", "attention_tp_size"):
            return known(1 if context.dp_attention else context.tp, deps | {"setting:enable_dp_attention"})
        if name in ("attn_dp_enabled", "is_dp_attention_enabled"):
            return known(context.dp_attention, frozenset({"setting:enable_dp_attention"}))
        if re.fullmatch(r"(moe_)?(ep|cp|dp|pp|attn_cp|pipeline_model_parallel|expert_parallel)(_world)?_size", name):
            return known(1)
        if re.fullmatch(r"(moe_tp|tp|tensor_model_parallel|tensor_parallel)?_?(world_)?size", name) and name != "size":
            return known(context.tp, deps)
        return None

    def model_fact(self, name: str) -> Value | None:
        """What the model's configuration says of itself; None for other names."""
        arch = self.context.model_arch
        if name == "architectures":
            deps = frozenset({"model architecture"})
            return known([known(arch, deps) if arch else free("model architecture")], deps)
        if name == "model_type":
            return Value("free", arch, frozenset({"model type"}), None, "model_type")
        return None

    # ------------------------------------------------------------ other packages

    def external(self, name: str) -> Value:
        """The value of a dotted name of another package."""
        if name == "torch.version.cuda":
            return known(self.context.cuda, frozenset({"cuda"}))
        if name.startswith("torch.version."):
            return known(None)
        if name.startswith("gpu."):
            return self._gpu(name.removeprefix("gpu."))
        return known(External(name))

    def has_attribute(self, name: str, attribute: str) -> Value:
        """``hasattr`` of a name of another package."""
        if name == "torch":
            if attribute in _TORCH_PARTS:
                return known(True)
            if attribute in _OTHER_BACKENDS:
                return known(False)
        return free(f"hasattr({name}, {attribute!r})")

    def call(self, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """The result of calling a function of another package."""
        major, minor = self.context.capability
        arch = frozenset({"arch"})
        last = name.rpartition(".")[2]
        if name in ("torch.cuda.get_device_capability",) or last == "nvmlDeviceGetCudaComputeCapability":
            return known((known(major, arch), known(minor, arch)), arch)
        if name == "torch.cuda.get_device_properties":
            return known(External("gpu"))
        if name == "torch.utils.cpp_extension._get_cuda_arch_flags":
            number = f"{major}{minor}"
            return lift([f"-gencode=arch=compute_{number},code=sm_{number}"], arch)
        if name in ("torch.cuda.get_device_name",) or last == "nvmlDeviceGetName":
            return self._gpu("name")
        if name in ("torch.cuda.is_available", "torch.cuda.is_initialized"):
            return known(True)
        if name == "torch.cuda.device_count":
            return known(max(1, self.context.tp // self.context.nnodes), frozenset({"setting:tp_size"}))
        if name == "torch.cuda.current_device":
            return known(0)
        if _OTHER_IS_AVAILABLE.fullmatch(name):
            return known(False)
        if name in ("os.getenv", "os.environ.get"):
            default = args[1] if len(args) > 1 else kwargs.get("default", known(None))
            return default.on("environment")
        if last == "find_spec":
            wanted = args[0].data if args and args[0].is_known else None
            if wanted in ("flashinfer", "sgl_kernel", "torch"):
                return known(External(f"spec.{wanted}"))
            return free(f"whether {wanted} is installed")
        if name.startswith(_HARMLESS):
            return free(name)
        if _DEVICE_WORDS.search(name):
            return opaque(f"{name}()")
        return free(f"{name}()")

    def _gpu(self, fact: str) -> Value:
        major, minor = self.context.capability
        if fact in ("major", "minor"):
            return known(major if fact == "major" else minor, frozenset({"arch"}))
        if fact == "name":
            if self.context.device_name is None:
                return free("device name")
            return known(self.context.device_name, frozenset({"device name"}))
        return opaque(f"get_device_properties().{fact}")


def read_settings(program: Program, module: Module, owner: ast.ClassDef) -> dict[str, tuple[Module, ast.AnnAssign]]:
    """The launch settings' declarations, each with its module: of the class that has the flag, and of its sisters.

    Later releases spread the fields over one file per name space in one folder; all of those count.
    """
    folder = module.rel.rpartition("/")[0]
    classes = [(module, owner)]
    sisters = [rel for rel in program.files if rel.rpartition("/")[0] == folder and rel != module.rel]
    if len(sisters) < 40 and folder.rpartition("/")[2] in ("fields", "server_args", "config", "args", "settings"):
        for rel in sisters:
            sister = program.module(rel)
            classes += [(sister, node) for node in sister.tree.body if isinstance(node, ast.ClassDef)]
        classes += [(module, node) for node in module.tree.body if isinstance(node, ast.ClassDef) and node is not owner]
    return {
        node.target.id: (home, node)
        for home, cls in classes
        for node in cls.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
    }
