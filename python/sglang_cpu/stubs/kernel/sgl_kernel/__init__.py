# ruff: noqa: PLR0917 - the signatures are those of sgl_kernel
"""Stand-in for sgl_kernel where the real one cannot load: the operators of LFM2 and Qwen3-Next, in
plain torch.

Argument order and shapes are those of the call sites in sglang 0.5.17. The rest of the names that
end in ``_cpu`` can be imported, as sglang does at module level for speculative decoding, and raise
when they are called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor

from .convolution import causal_conv1d_fwd, causal_conv1d_update
from .delta_rule import (
    fused_gdn_gating_cpu,
    fused_sigmoid_gating_delta_rule_update_cpu,
)

__all__ = ["assign_req_to_token_pool_cpu", "causal_conv1d_fwd", "causal_conv1d_update"]

_library: Any = torch.library.Library("sgl_kernel", "FRAGMENT")  # type: ignore[no-untyped-call]


def _operator(schema: str, function: Callable[..., object]) -> None:
    _library.define(schema)
    _library.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")


_operator(
    "causal_conv1d_update(Tensor(a!) x, Tensor(b!) conv_state, Tensor weight, Tensor? bias,"
    " bool silu, Tensor? cache_seqlens, Tensor? conv_state_indices, int pad_slot_id) -> ()",
    causal_conv1d_update,
)
_operator(
    "fused_gdn_gating_cpu(Tensor A_log, Tensor a, Tensor b, Tensor dt_bias) -> (Tensor, Tensor)",
    fused_gdn_gating_cpu,
)
_operator(
    "fused_sigmoid_gating_delta_rule_update_cpu(Tensor A_log, Tensor dt_bias, Tensor q, Tensor k,"
    " Tensor v, Tensor a, Tensor b, Tensor(a!) initial_state_source, Tensor initial_state_indices,"
    " Tensor cu_seqlens, bool use_qk_l2norm_in_kernel, float softplus_beta=1.0,"
    " float softplus_threshold=20.0) -> Tensor",
    fused_sigmoid_gating_delta_rule_update_cpu,
)


def assign_req_to_token_pool_cpu(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
    pool_len: int,
) -> None:
    """Write the new slots of each request into its row of the token table.

    Args:
        req_pool_indices: integer [requests], the rows.
        req_to_token: integer [rows, pool_len], written in place.
        start_offset: integer [requests], the first column of each.
        end_offset: integer [requests], the column after the last of each.
        out_cache_loc: integer [sum of the lengths], the slots, request after request.
        pool_len: columns of the table.
    """
    taken = 0
    for row, start, end in zip(
        req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist(), strict=True
    ):
        slots = out_cache_loc[taken : taken + end - start]
        req_to_token[row, start:end] = slots.to(req_to_token.dtype)
        taken += end - start


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if not name.endswith("_cpu"):
        raise AttributeError(f"module 'sgl_kernel' (the stand-in of sglang_cpu) has no {name!r}")

    def missing(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name}: not among the stand-ins of sglang_cpu")

    return missing
