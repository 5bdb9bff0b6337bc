"""Entry point of the sglang plugin: sglang calls it first thing in each of its processes."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch
import torch.nn.functional as F

from sglang_cpu import probe
from sglang_cpu.install import install


def register() -> None:
    """Let this sglang process run on the host; nothing where a GPU is present.

    Raises:
        SystemExit: the process cannot be set up. sglang logs and forgets any `Exception` of a
            plugin, and would go on into errors that say nothing of the cause.
    """
    if probe.accelerator_present():
        return
    try:
        install()
        _patch_gated_norm()
        _patch_convolution()
    except Exception as error:
        raise SystemExit(f"sglang_cpu: cannot let sglang run on the host: {error}") from error


def _patch_gated_norm() -> None:
    """Give the gated RMSNorm of the delta-net layers a path in torch: sglang has Triton and AMX."""
    name = "sglang.kernels.ops.attention.fla.fused_norm_gate"
    if importlib.util.find_spec(name) is None:
        return
    module: Any = importlib.import_module(name)

    def forward(self: Any, x: torch.Tensor, g: torch.Tensor, **options: object) -> torch.Tensor:
        if any(value is not None and value is not False for value in options.values()):
            raise NotImplementedError(f"gated RMSNorm on the host: {options} is not supported")
        normal = F.rms_norm(x.float(), (x.shape[-1],), self.weight.float(), self.eps)
        gate = g.float().sigmoid() if self.activation == "sigmoid" else F.silu(g.float())
        return (normal * gate).to(x.dtype)

    module.FusedRMSNormGated.forward = forward


def _patch_convolution() -> None:
    """Send the causal convolution to sgl_kernel's operators.

    0.5.17 looks for them by itself. From 0.5.18 on only CUDA has them, and everything else goes to
    Triton, which needs a GPU too.
    """
    module: Any = importlib.import_module("sglang.srt.layers.attention.mamba.causal_conv1d")
    if getattr(module, "_HAS_CONV1D_KERNEL", True):
        return
    kernels: Any = importlib.import_module("sgl_kernel")
    module._HAS_CONV1D_KERNEL = True
    module.causal_conv1d_fwd = kernels.causal_conv1d_fwd
    module.causal_conv1d_update_kernel = kernels.causal_conv1d_update
