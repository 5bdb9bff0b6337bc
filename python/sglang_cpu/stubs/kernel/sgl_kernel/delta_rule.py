# ruff: noqa: PLR0917 - the signatures are those of sgl_kernel
"""The gated delta rule (https://arxiv.org/abs/2412.06464), token by token.

With S the state [V, K] of a head, one token does, as equation 10 of the paper has it:

    S = exp(g) * S
    S = S + beta * (v - S k) k^T
    o = S q
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def _gates(
    A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor, beta: float, threshold: float
) -> tuple[Tensor, Tensor]:
    step = F.softplus(a.float() + dt_bias.float(), beta=beta, threshold=threshold)
    return -A_log.float().exp() * step, b.float().sigmoid()


def fused_gdn_gating_cpu(
    A_log: Tensor, a: Tensor, b: Tensor, dt_bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Log decay and write strength, float32 [1, tokens, heads], from a and b [tokens, heads]."""
    decay, strength = _gates(A_log, a, b, dt_bias, 1.0, 20.0)
    return decay.unsqueeze(0), strength.unsqueeze(0)


def _prepare(q: Tensor, k: Tensor, v: Tensor, normalize: bool) -> tuple[Tensor, Tensor]:
    """Scale q and k [..., heads, K], and repeat them for v's value heads [..., value heads, V]."""
    q, k = q.float(), k.float()
    if normalize:
        q, k = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    repeats = v.shape[-2] // q.shape[-2]
    q = q * q.shape[-1] ** -0.5
    return q.repeat_interleave(repeats, dim=-2), k.repeat_interleave(repeats, dim=-2)


def _token(
    state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, strength: Tensor
) -> tuple[Tensor, Tensor]:
    """One token: state [..., heads, V, K], q and k [..., heads, K], v [..., heads, V]."""
    state = state * decay.exp()[..., None, None]
    error = v - torch.einsum("...vk,...k->...v", state, k)
    state = state + torch.einsum("...v,...k->...vk", error * strength[..., None], k)
    return state, torch.einsum("...vk,...k->...v", state, q)


def chunk_gated_delta_rule_cpu(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    initial_state: Tensor,
    cu_seqlens: Tensor,
    head_first: bool,
    use_qk_l2norm_in_kernel: bool,
    initial_state_indices: Tensor,
) -> tuple[Tensor, Tensor, None]:
    """Run whole prompts, and leave each one's last state in its slot.

    Args:
        q: [1, tokens, heads, K], prompt after prompt.
        k: [1, tokens, heads, K].
        v: [1, tokens, value heads, V].
        g: float32 [1, tokens, value heads], the log decay.
        beta: float32 [1, tokens, value heads], the write strength.
        initial_state: [slots, value heads, V, K], written in place.
        cu_seqlens: int32 [prompts + 1], where each prompt starts, and the end.
        head_first: must be False.
        use_qk_l2norm_in_kernel: normalize q and k.
        initial_state_indices: integer [prompts], the slot of each.

    Returns:
        The outputs [1, tokens, value heads, V], `initial_state`, and None for the states in
        between.

    Raises:
        NotImplementedError: `head_first`.
    """
    if head_first:
        raise NotImplementedError(
            "chunk_gated_delta_rule_cpu: head_first is not among the stand-ins"
        )
    queries, keys = _prepare(q[0], k[0], v[0], use_qk_l2norm_in_kernel)
    values, out = v[0].float(), torch.empty_like(v)
    bounds = cu_seqlens.tolist()
    for slot, start, end in zip(initial_state_indices.tolist(), bounds, bounds[1:], strict=False):
        state = initial_state[slot].float()
        for t in range(start, end):
            state, out[0, t] = _token(state, queries[t], keys[t], values[t], g[0, t], beta[0, t])
        initial_state[slot] = state.to(initial_state.dtype)
    return out, initial_state, None


def fused_sigmoid_gating_delta_rule_update_cpu(
    A_log: Tensor,
    dt_bias: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor,
    b: Tensor,
    initial_state_source: Tensor,
    initial_state_indices: Tensor,
    cu_seqlens: Tensor,
    use_qk_l2norm_in_kernel: bool,
    softplus_beta: float = 1.0,
    softplus_threshold: float = 20.0,
) -> Tensor:
    """Run the next token of each request, and move its state on.

    Shapes as in `chunk_gated_delta_rule_cpu`, with one token for each request; a and b are
    [requests, value heads]. Returns the outputs [1, requests, value heads, V].

    Raises:
        NotImplementedError: a request has more than one token.
    """
    if len(initial_state_indices) != v.shape[1]:
        raise NotImplementedError(
            "fused_sigmoid_gating_delta_rule_update_cpu: several tokens for a request are not "
            f"among the stand-ins ({v.shape[1]} tokens, {len(initial_state_indices)} requests)"
        )
    queries, keys = _prepare(q[0], k[0], v[0], use_qk_l2norm_in_kernel)
    decay, strength = _gates(A_log, a, b, dt_bias, softplus_beta, softplus_threshold)
    slots = initial_state_indices.long()
    state, out = _token(
        initial_state_source[slots].float(), queries, keys, v[0].float(), decay, strength
    )
    initial_state_source[slots] = state.to(initial_state_source.dtype)
    return out.to(v.dtype).unsqueeze(0)
