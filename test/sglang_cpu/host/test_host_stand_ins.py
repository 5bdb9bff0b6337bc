"""The stand-ins for sgl_kernel and torchvision, against transformers' own code."""

from __future__ import annotations

import pytest
import sgl_kernel
import torch
import torch.nn.functional as F
from sgl_kernel import mamba

GENERATOR = torch.Generator().manual_seed(0)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=GENERATOR)


@pytest.mark.parametrize("activation", [None, "silu"])
def test_convolution_of_prompts(activation: str | None) -> None:
    weight, bias, lengths = random(6, 4), random(6), [5, 1, 0, 9]
    starts = torch.tensor([0, 5, 6, 6, 15], dtype=torch.int32)
    x, states = random(6, 15), random(8, 6, 3)
    slots = torch.tensor([3, 0, 1, 6], dtype=torch.int32)
    resumed = torch.tensor([True, False, True, False])
    before = states.clone()
    out = mamba.causal_conv1d_fn_cpu(x, weight, bias, activation, states, resumed, slots, starts)
    assert out.data_ptr() != x.data_ptr()
    for slot, resume, part, result in zip(
        slots.tolist(), resumed.tolist(), x.split(lengths, 1), out.split(lengths, 1), strict=True
    ):
        if not part.shape[1]:
            assert torch.equal(states[slot], before[slot])
            continue
        history = before[slot] if resume else torch.zeros(6, 3)
        inputs = torch.cat([history, part], 1)
        expected = torch.stack(
            [(inputs[:, t : t + 4] * weight).sum(1) + bias for t in range(part.shape[1])], 1
        )
        torch.testing.assert_close(result, F.silu(expected) if activation else expected)
        assert torch.equal(states[slot], inputs[:, -3:])
    untouched = [slot for slot in range(8) if slot not in slots.tolist()]
    assert torch.equal(states[untouched], before[untouched])


def test_convolution_token_by_token_as_the_whole_prompt() -> None:
    weight, x = random(6, 3), random(6, 12)
    whole_states, states = torch.zeros(4, 6, 2), torch.zeros(4, 6, 2)
    starts, fresh = torch.tensor([0, 12], dtype=torch.int32), torch.tensor([False])
    slot = torch.tensor([2], dtype=torch.int32)
    whole = mamba.causal_conv1d_fn_cpu(x, weight, None, "silu", whole_states, fresh, slot, starts)
    for token in range(12):
        out = mamba.causal_conv1d_update_cpu(x[None, :, token], states, weight, None, "silu", slot)
        torch.testing.assert_close(out[0], whole[:, token])
    torch.testing.assert_close(states, whole_states)


def test_convolution_skips_padding() -> None:
    weight, x, states = random(6, 3), random(2, 6, 1), random(4, 6, 2)
    out, before = x.clone(), states.clone()
    slots = torch.tensor([-1, 1], dtype=torch.int32)
    torch.ops.sgl_kernel.causal_conv1d_update(out, states, weight, None, False, None, slots, -1)
    assert torch.equal(out[0], x[0]) and not torch.equal(out[1], x[1])
    assert torch.equal(states[[0, 2, 3]], before[[0, 2, 3]])
    prompts = x[:, :, 0].T.contiguous()
    out = prompts.clone()
    starts = torch.tensor([0, 1, 2], dtype=torch.int32)
    sgl_kernel.causal_conv1d_fwd(out, weight, None, states, starts, slots, None, False, -1)
    assert torch.equal(out[:, 0], prompts[:, 0]) and not torch.equal(out[:, 1], prompts[:, 1])


def _delta_inputs(tokens: int) -> tuple[torch.Tensor, ...]:
    q, k, v = random(1, tokens, 2, 8), random(1, tokens, 2, 8), random(1, tokens, 4, 6)
    a, b = random(tokens, 4), random(tokens, 4)
    return q, k, v, a, b


def test_delta_rule_as_transformers_has_it() -> None:
    from transformers.models.qwen3_next import modeling_qwen3_next as reference

    lengths, slots = [7, 4], [5, 2]
    q, k, v, a, b = _delta_inputs(11)
    a_log, bias, states = random(4), random(4), random(6, 4, 6, 8)
    before = states.clone()
    g, beta = torch.ops.sgl_kernel.fused_gdn_gating_cpu(a_log, a, b, bias)
    torch.testing.assert_close(g[0], -a_log.exp() * F.softplus(a + bias))
    torch.testing.assert_close(beta[0], b.sigmoid())
    starts = torch.tensor([0, 7, 11], dtype=torch.int32)
    out, last, _ = mamba.chunk_gated_delta_rule_cpu(
        q, k, v, g, beta, states, starts, False, True, torch.tensor(slots, dtype=torch.int32)
    )
    assert last is states
    parts = [
        x.split(lengths, 1)
        for x in (q.repeat_interleave(2, 2), k.repeat_interleave(2, 2), v, g, beta)
    ]
    for slot, result, part in zip(
        slots, out.split(lengths, 1), zip(*parts, strict=True), strict=True
    ):
        expected, state = reference.torch_recurrent_gated_delta_rule(
            *part, before[slot].transpose(-1, -2)[None], True, use_qk_l2norm_in_kernel=True
        )
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(states[slot], state[0].transpose(-1, -2))
    assert torch.equal(states[[0, 1, 3, 4]], before[[0, 1, 3, 4]])


def test_delta_rule_token_by_token_as_the_whole_prompt() -> None:
    q, k, v, a, b = _delta_inputs(9)
    a_log, bias, initial = random(4), random(4), random(3, 4, 6, 8)
    whole_states, states = initial.clone(), initial.clone()
    slot = torch.tensor([1], dtype=torch.int32)
    g, beta = torch.ops.sgl_kernel.fused_gdn_gating_cpu(a_log, a, b, bias)
    whole, _, _ = mamba.chunk_gated_delta_rule_cpu(
        q, k, v, g, beta, whole_states, torch.tensor([0, 9], dtype=torch.int32), False, True, slot
    )
    for t in range(9):
        one = slice(t, t + 1)
        out = torch.ops.sgl_kernel.fused_sigmoid_gating_delta_rule_update_cpu(
            a_log, bias, q[:, one], k[:, one], v[:, one], a[one], b[one], states, slot,
            torch.tensor([0, 1], dtype=torch.int32), True, 1.0, 20.0,
        )  # fmt: skip
        torch.testing.assert_close(out, whole[:, one])
    torch.testing.assert_close(states, whole_states)


def test_gated_norm_as_transformers_has_it() -> None:
    from sglang.kernels.ops.attention.fla.fused_norm_gate import FusedRMSNormGated
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

    from sglang_cpu import server

    server._patch_gated_norm()
    ours, reference = FusedRMSNormGated(8, eps=1e-6, activation="silu"), Qwen3NextRMSNormGated(8)
    weight, x, gate = random(8), random(5, 8), random(5, 8)
    for module in (ours, reference):
        module.weight.data.copy_(weight)
    torch.testing.assert_close(ours(x, gate), reference(x, gate))
    with pytest.raises(NotImplementedError, match="residual"):
        ours(x, gate, residual=x)


def test_convolution_takes_the_operators_where_only_cuda_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from sglang.srt.layers.attention.mamba import causal_conv1d as module

    from sglang_cpu import server

    for name in ("causal_conv1d_fwd", "causal_conv1d_update_kernel"):
        monkeypatch.setattr(module, name, None)
    monkeypatch.setattr(module, "_HAS_CONV1D_KERNEL", False, raising=False)  # as from 0.5.18 on
    server._patch_convolution()
    assert module._HAS_CONV1D_KERNEL
    assert module.causal_conv1d_fwd is sgl_kernel.causal_conv1d_fwd
    assert module.causal_conv1d_update_kernel is sgl_kernel.causal_conv1d_update


def test_a_server_that_cannot_be_set_up_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang_cpu import server

    def fail() -> None:
        raise ValueError("SGLANG_CPU_DROP: no such kind")

    monkeypatch.setattr(server, "install", fail)
    with pytest.raises(SystemExit, match=r"sglang_cpu: cannot let sglang run .*SGLANG_CPU_DROP"):
        server.register()  # sglang swallows every Exception of a plugin


def test_slots_of_requests() -> None:
    table = torch.zeros(4, 6, dtype=torch.int32)
    sgl_kernel.assign_req_to_token_pool_cpu(
        torch.tensor([2, 0]), table, torch.tensor([1, 3]), torch.tensor([4, 5]),
        torch.tensor([11, 12, 13, 21, 22]), 6,
    )  # fmt: skip
    assert table.tolist() == [[0, 0, 0, 21, 22, 0], [0] * 6, [0, 11, 12, 13, 0, 0], [0] * 6]


def test_what_is_missing_says_so() -> None:
    with pytest.raises(NotImplementedError, match="verify_tree_greedy_cpu"):
        sgl_kernel.verify_tree_greedy_cpu()
    with pytest.raises(AttributeError, match="no 'silu_and_mul'"):
        _ = sgl_kernel.silu_and_mul
    with pytest.raises(NotImplementedError, match="head_first"):
        mamba.chunk_gated_delta_rule_cpu(*[random(1)] * 7, True, True, random(1))
    q, k, v, a, b = _delta_inputs(3)
    with pytest.raises(NotImplementedError, match="3 tokens, 1 requests"):
        sgl_kernel.fused_sigmoid_gating_delta_rule_update_cpu(
            random(4), random(4), q, k, v, a, b, random(2, 4, 6, 8), torch.tensor([0]),
            torch.tensor([0, 3]), True,
        )  # fmt: skip
    with pytest.raises(NotImplementedError, match="cache_seqlens"):
        sgl_kernel.causal_conv1d_update(
            random(1, 6, 1), random(1, 6, 2), random(6, 3), None, True, torch.tensor([1]), None, -1
        )


def test_no_intel_amx_path_is_taken() -> None:
    from sglang.srt.utils import cpu_has_amx_support, is_cpu

    assert is_cpu() and not cpu_has_amx_support()


def test_torchvision_stand_in_is_loud() -> None:
    import torchvision
    from torchvision.io import decode_jpeg
    from torchvision.transforms.functional import pil_to_tensor

    if "sglang-cpu" not in torchvision.__version__:
        return  # the real one loads on this machine
    for function in (decode_jpeg, pil_to_tensor):
        with pytest.raises(NotImplementedError, match="stand-in of sglang_cpu"):
            function(b"")
