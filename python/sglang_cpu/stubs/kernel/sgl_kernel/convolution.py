# ruff: noqa: PLR0917 - the signatures are those of sgl_kernel
"""Causal depthwise convolution with a state: the last ``width - 1`` inputs of each request."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def _convolve(inputs: Tensor, weight: Tensor, bias: Tensor | None, silu: bool) -> Tensor:
    """Convolve [requests, dim, width - 1 + tokens] to [requests, dim, tokens]."""
    out = F.conv1d(inputs, weight.unsqueeze(1), bias, groups=weight.shape[0])
    return F.silu(out) if silu else out


def causal_conv1d_fwd(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    conv_states: Tensor | None,
    query_start_loc: Tensor,
    cache_indices: Tensor | None,
    has_initial_state: Tensor | None,
    silu_activation: bool,
    pad_slot_id: int,
) -> None:
    """Convolve whole prompts in place, and leave each one's last inputs in its state.

    Args:
        x: [dim, tokens], prompt after prompt; overwritten with the result.
        weight: [dim, width].
        bias: [dim].
        conv_states: [slots, dim, at least width - 1]; the last width - 1 columns are the state.
        query_start_loc: int32 [prompts + 1], where each prompt starts, and the end.
        cache_indices: int32 [prompts], the slot of each; by default its number.
        has_initial_state: bool [prompts], whether to go on from the slot's state instead of from
            zeros.
        silu_activation: apply SiLU to the result.
        pad_slot_id: prompts with this slot are skipped.
    """
    history = weight.shape[1] - 1
    bounds = query_start_loc.tolist()
    slots = list(range(len(bounds) - 1)) if cache_indices is None else cache_indices.tolist()
    resumed = [False] * len(slots) if has_initial_state is None else has_initial_state.tolist()
    for slot, resume, start, end in zip(slots, resumed, bounds, bounds[1:], strict=False):
        if slot == pad_slot_id or start == end:
            continue
        segment = x[:, start:end]
        before = segment.new_zeros(segment.shape[0], history)
        if resume and conv_states is not None:
            before = conv_states[slot, :, -history:].to(segment.dtype)
        inputs = torch.cat([before, segment], dim=1)
        if conv_states is not None:
            conv_states[slot, :, -history:] = inputs[:, -history:].to(conv_states.dtype)
        x[:, start:end] = _convolve(inputs.unsqueeze(0), weight, bias, silu_activation)[0]


def causal_conv1d_update(
    x: Tensor,
    conv_state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu_activation: bool,
    cache_seqlens: Tensor | None,
    conv_state_indices: Tensor | None,
    pad_slot_id: int,
) -> None:
    """Convolve the next tokens of running requests in place, and move their states on.

    Args:
        x: [requests, dim, tokens]; overwritten with the result.
        conv_state: [slots, dim, at least width - 1].
        weight: [dim, width].
        bias: [dim].
        silu_activation: apply SiLU to the result.
        cache_seqlens: must be None; a ring buffer is not among the stand-ins.
        conv_state_indices: int32 [requests], the slot of each; by default its number.
        pad_slot_id: requests with this slot are skipped.

    Raises:
        NotImplementedError: `cache_seqlens` is given.
    """
    if cache_seqlens is not None:
        raise NotImplementedError("causal_conv1d_update: cache_seqlens is not among the stand-ins")
    history = weight.shape[1] - 1
    slots = torch.arange(x.shape[0]) if conv_state_indices is None else conv_state_indices.long()
    live = slots != pad_slot_id
    slots = slots[live]
    inputs = torch.cat([conv_state[slots, :, -history:].to(x.dtype), x[live]], dim=2)
    conv_state[slots, :, -history:] = inputs[:, :, -history:].to(conv_state.dtype)
    x[live] = _convolve(inputs, weight, bias, silu_activation)
