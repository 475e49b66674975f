"""Backends of an all-reduce, each as something to measure: torch.distributed, SGLang's own, FlashInfer's fused one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist

EPS = 1e-6


class Reducer(Protocol):
    """A backend under test. Both methods may write over their inputs."""

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of ``x`` over the ranks."""

    def reduce_and_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """``RMSNorm(residual + sum of x) * weight``; leaves the new residual in ``residual`` or drops it."""

    def capture(self) -> AbstractContextManager[None]:
        """What has to surround the capture of a CUDA graph."""

    operations: tuple[str, ...]
    """Which of the two methods it has."""


class TorchReducer:
    """torch.distributed's all-reduce over the backend that the group was made with."""

    operations: tuple[str, ...] = ("reduce", "reduce_and_norm")

    def __init__(self, job: Mapping[str, Any], rank: int) -> None:
        self.group: Any = dist.new_group(backend=job["backend"])

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x, group=self.group)
        return x

    def reduce_and_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return add_norm(self.reduce(x), residual, weight)

    def capture(self) -> AbstractContextManager[None]:
        return nullcontext()


class SglangCustomReducer(TorchReducer):
    """SGLang's own all-reduce kernel over peer-to-peer memory: what it uses by default below some megabytes."""

    def __init__(self, job: Mapping[str, Any], rank: int) -> None:
        from sglang.srt.distributed.device_communicators.custom_all_reduce import dispatch_custom_allreduce
        from sglang.srt.distributed.parallel_state import init_distributed_environment

        # its check for peer-to-peer access asks SGLang's own group of all ranks
        init_distributed_environment(job["ranks"], rank, f"file://{job['meeting']}", rank, "gloo")
        group = dist.new_group(backend="gloo")
        device = torch.device(f"cuda:{rank}")
        made_by: Any = dispatch_custom_allreduce
        try:
            kind = made_by(group=group, device=device)
        except TypeError:  # before the choice depended on the group
            kind = made_by()
        self.communicator = kind(group=group, device=device)
        if self.communicator.disabled:
            raise RuntimeError(
                "SGLang's custom all-reduce is disabled here: no peer-to-peer access, or this many ranks"
            )

    def reduce(self, x: torch.Tensor) -> torch.Tensor:
        if not self.communicator.should_custom_ar(x):
            raise RuntimeError(f"SGLang's custom all-reduce does not take {x.numel() * x.element_size()} bytes")
        return self.communicator.custom_all_reduce(x)

    def capture(self) -> AbstractContextManager[None]:
        return self.communicator.capture()


class FlashinferFusedReducer(TorchReducer):
    """FlashInfer's all-reduce + residual add + RMSNorm in one kernel (backend trtllm: no NVLink multicast)."""

    operations = ("reduce_and_norm",)

    def __init__(self, job: Mapping[str, Any], rank: int) -> None:
        from flashinfer import comm

        super().__init__(job, rank)
        tokens = max(payload["batch"] * payload["width"] for payload in job["payloads"])
        self.comm = comm
        self.workspace = comm.create_allreduce_fusion_workspace(
            backend="trtllm",
            world_size=job["ranks"],
            rank=rank,
            max_token_num=max(tokens, 128),
            hidden_dim=job["hidden"],
            dtype=torch.bfloat16,
            group=self.group,
        )

    def reduce_and_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        normed = torch.empty_like(x)
        self.comm.allreduce_fusion(
            input=x,
            workspace=self.workspace,
            pattern=self.comm.AllReduceFusionPattern.kARResidualRMSNorm,
            launch_with_pdl=True,
            trigger_completion_at_end=False,  # as SGLang calls it
            residual_out=torch.empty_like(residual),
            norm_out=normed,
            residual_in=residual,
            rms_gamma=weight,
            rms_eps=EPS,
        )
        return normed


def add_norm(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The residual add and RMSNorm that follow an all-reduce in a transformer: one kernel on a GPU with SGLang's."""
    if x.is_cuda and (kernel := _fused_add_norm()):
        kernel(x, residual, weight, EPS)
        return x
    return torch.nn.functional.rms_norm(residual + x, (x.shape[-1],), weight, EPS)


def _fused_add_norm() -> Callable[..., None] | None:
    try:
        from sgl_kernel import fused_add_rmsnorm
    except ImportError:
        return None
    return fused_add_rmsnorm
