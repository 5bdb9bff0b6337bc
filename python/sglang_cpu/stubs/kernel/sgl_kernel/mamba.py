# ruff: noqa: PLR0917 - the signatures are those of sgl_kernel
"""What ``sgl_kernel.mamba`` offers to the gated delta net on a CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from .convolution import causal_conv1d_fwd, causal_conv1d_update
from .delta_rule import chunk_gated_delta_rule_cpu

__all__ = ["causal_conv1d_fn_cpu", "causal_conv1d_update_cpu", "chunk_gated_delta_rule_cpu"]

_NO_PADDING = -1


def causal_conv1d_fn_cpu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    conv_states: Tensor,
    has_initial_state: Tensor | None,
    cache_indices: Tensor | None,
    query_start_loc: Tensor,
    seq_lens_cpu: object = None,
) -> Tensor:
    """As `convolution.causal_conv1d_fwd`, into a new tensor [dim, tokens]."""
    out = x.clone(memory_format=torch.contiguous_format)
    causal_conv1d_fwd(
        out,
        weight,
        bias,
        conv_states,
        query_start_loc,
        cache_indices,
        has_initial_state,
        activation in ("silu", "swish"),
        _NO_PADDING,
    )
    return out


def causal_conv1d_update_cpu(
    x: Tensor,
    conv_states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activation: str | None,
    conv_state_indices: Tensor | None,
) -> Tensor:
    """Convolve one token for each request, x [requests, dim], into a new tensor of that shape."""
    out = x.clone(memory_format=torch.contiguous_format).unsqueeze(-1)
    silu = activation in ("silu", "swish")
    causal_conv1d_update(
        out, conv_states, weight, bias, silu, None, conv_state_indices, _NO_PADDING
    )
    return out.squeeze(-1)
