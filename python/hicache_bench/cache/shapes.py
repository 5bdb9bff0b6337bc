"""What a token's Full KV and a state weigh in published models, with the source of every number.

A replay counts tokens and states; these sizes turn them into the bytes that a production server
would move. All numbers are of the whole model (tensor parallel size 1); keys and values in
bfloat16, convolution states in bfloat16 and temporal states in float32, as sglang keeps them by
default
(`mamba2_state_dtype` in sglang/srt/configs/mamba_utils.py).
"""

from __future__ import annotations

from dataclasses import dataclass

_BF16, _FP32 = 2, 4


@dataclass(frozen=True)
class Shape:
    """Dimensions of one model, in elements.

    full_layers: attention layers. kv_elements: elements of one token's KV in one of them.
    state_layers: Mamba or linear-attention layers. conv_elements, temporal_elements: elements of
    one state in one of them. source: where the numbers are from.
    """

    model: str
    full_layers: int
    kv_elements: int
    state_layers: int
    conv_elements: int
    temporal_elements: int
    source: str

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's Full KV."""
        return self.full_layers * self.kv_elements * _BF16

    @property
    def state_bytes(self) -> int:
        """Bytes of one state."""
        layer = self.conv_elements * _BF16 + self.temporal_elements * _FP32
        return self.state_layers * layer


SHAPES = (
    Shape(
        "Qwen3-Next-80B-A3B",
        full_layers=12,  # each fourth of 48
        kv_elements=2 * 2 * 256,  # keys and values, 2 heads of 256
        state_layers=36,
        conv_elements=(32 * 128 + 2 * 16 * 128) * (4 - 1),  # values, keys and queries; kernel 4
        temporal_elements=32 * 128 * 128,  # value heads x value dimension x key dimension
        source="transformers 5 Qwen3NextConfig defaults (its docstring names this checkpoint)",
    ),
    Shape(
        "Kimi-Linear-48B-A3B",
        full_layers=7,  # of 27
        kv_elements=512 + 64,  # MLA: the latent and the rotary part, no heads
        state_layers=20,
        conv_elements=3 * 32 * 128 * (4 - 1),  # queries, keys, values; kernel 4
        temporal_elements=32 * 128 * 128,
        source="layout: sglang KimiLinearStateShape; numbers: the published config.json, from "
        "memory, not checked here (neither package carries them)",
    ),
    Shape(
        "Nemotron-H-8B",
        full_layers=4,  # * in the pattern
        kv_elements=2 * 8 * 128,
        state_layers=24,  # M in the pattern
        conv_elements=(128 * 64 + 2 * 8 * 128) * (4 - 1),  # inner size and 8 groups of B and C
        temporal_elements=128 * 64 * 128,
        source="sglang 0.5.17 NemotronHConfig defaults (pattern of 52 layers)",
    ),
    Shape(
        "LFM2-1.2B",
        full_layers=6,  # of 16
        kv_elements=2 * 8 * 64,
        state_layers=10,
        conv_elements=2048 * (3 - 1),  # hidden size, kernel 3; there is no temporal state
        temporal_elements=0,
        source="layout: sglang Lfm2Config; numbers: the published config.json, from memory, not "
        "checked here (the defaults of transformers' Lfm2Config are those of no checkpoint)",
    ),
)
