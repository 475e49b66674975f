"""What happens when SGLang asks for an operation that this stand-in does not have: an error that says who wanted it."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import torch
from torch._ops import _OpNamespace

# Where in SGLang the request came from -> what on the command line led there. First match wins.
WANTED_BY = (
    ("/layers/attention/linear/", "a model with linear attention (Qwen3-Next, Kimi-Linear)"),
    ("/layers/attention/mamba/", "a model with Mamba layers"),
    ("/layers/attention/", "--attention-backend, or a model whose attention is not Llama's"),
    ("/layers/moe/", "a mixture-of-experts model"),
    ("/kernels/ops/moe/", "a mixture-of-experts model"),
    ("/layers/quantization/unquant.py", "a mixture-of-experts model"),
    ("/layers/quantization/", "--quantization, or quantised weights"),
    ("/kernels/ops/quantization/", "--quantization, or quantised weights"),
    ("/lora/", "--lora-paths"),
    ("/speculative/", "--speculative-algorithm"),
    ("/constrained/", "--grammar-backend"),
    ("/disaggregation/", "--disaggregation-mode"),
    ("/mem_cache/", "--kv-cache-dtype or the cache's layout"),
    ("/models/", "the model's own code"),
)
IMPORT_MACHINERY = "<frozen importlib"


def explain(name: str) -> str:
    """One line: the operation, the file of SGLang that asked for it, and the model or flag behind that where known."""
    caller = _caller()
    reason = next((text for part, text in WANTED_BY if part in caller), None)
    wanted = f"; wanted by {reason}" if reason else ""
    return (
        f"sgl_kernel.{name} has no CPU version in the embedded engine, which serves dense Llama models; "
        f"asked for in {caller}{wanted}"
    )


def raising(name: str) -> Callable[..., NoReturn]:
    """A function of that name which raises NotImplementedError, with the explanation, when it is called."""

    def absent(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotImplementedError(explain(name))

    absent.__name__ = absent.__qualname__ = name
    return absent


class _CpuOperations(_OpNamespace):
    """``torch.ops.sgl_kernel``: the operations given, and an AttributeError that explains itself for any other.

    ``hasattr`` keeps working, so SGLang's probes for optional fused operations see that they are absent.
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):
                raise
            raise AttributeError(explain(name)) from None


def install_namespace(**operations: Callable[..., Any]) -> None:
    """Put ``operations`` where SGLang looks them up: as attributes of ``torch.ops.sgl_kernel``."""
    namespace = _CpuOperations("sgl_kernel")
    for name, operation in operations.items():
        setattr(namespace, name, operation)
    setattr(torch.ops, namespace.name, namespace)


def _caller() -> str:
    """File and line of the nearest frame outside this package and the import machinery."""
    package = __file__.rpartition("/")[0]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((package, IMPORT_MACHINERY)):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown place"
