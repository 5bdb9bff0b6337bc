"""Real host pools of sglang, with small device pools in front of them, for the tests here."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

SLOTS = 24
LAYERS = 3


@dataclass
class Side:
    """One pool pair, and the buffers of its device side by kind: {"kv": [layer tensors], ...}."""

    device: Any
    host: Any
    buffers: dict[str, list[torch.Tensor]]


def _kv_device(v_head_dim: int, page_size: int) -> Any:
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    return MHATokenToKVPool(
        size=SLOTS,
        page_size=page_size,
        dtype=torch.bfloat16,
        head_num=2,
        head_dim=8,
        v_head_dim=v_head_dim,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )


def kv(layout: str, page_size: int, v_head_dim: int = 8) -> Side:
    """Keys and values; another `v_head_dim` than 8 makes the pool with two buffers."""
    from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls

    device = _kv_device(v_head_dim, page_size)
    host = get_mha_host_pool_cls(device)(device, 2.0, 0, page_size, layout)
    return Side(device, host, {"kv": [*device.k_buffer, *device.v_buffer]})


def mla(layout: str, page_size: int) -> Side:
    """The compressed keys and values of multi-head latent attention."""
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    device = MLATokenToKVPool(
        size=SLOTS,
        page_size=page_size,
        dtype=torch.bfloat16,
        kv_lora_rank=12,
        qk_rope_head_dim=4,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )
    host = MLATokenToKVPoolHost(device, 2.0, 0, page_size, layout)
    return Side(device, host, {"kv": list(device.kv_buffer)})


def keys_only(layout: str, page_size: int) -> Side:
    """Keys without values."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKOnlyPool
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKOnlyPoolHost

    device = MHATokenToKOnlyPool(
        size=SLOTS,
        page_size=page_size,
        dtype=torch.bfloat16,
        head_num=2,
        head_dim=8,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )
    anchor = kv(layout, page_size).host
    host = MHATokenToKOnlyPoolHost(device, anchor, layout)
    return Side(device, host, {"kv": list(device.k_buffer)})


def mamba(layout: str, temporal: bool = True) -> Side:
    """Convolution states of two shapes, and temporal states unless `temporal` is False."""
    from sglang.srt.mem_cache.memory_pool import MambaPool

    try:
        from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost  # from 0.5.18 on
    except ModuleNotFoundError:
        from sglang.srt.mem_cache.memory_pool_host import MambaPoolHost

    shape = SimpleNamespace(
        conv=[(8, 2), (4, 4)], temporal=(2, 4, 4) if temporal else (0, 0, 0), conv_kernel=3
    )
    params = SimpleNamespace(
        shape=shape,
        dtype=SimpleNamespace(conv=torch.bfloat16, temporal=torch.float32),
        is_kda=False,
    )
    device = MambaPool(
        size=SLOTS,
        spec_state_size=0,
        cache_params=params,
        mamba_layer_ids=list(range(LAYERS)),
        device="cpu",
    )
    host = MambaPoolHost(device, 2.0, 0, layout=layout)
    cache = device.mamba_cache
    buffers = {"conv": [layer for conv in cache.conv for layer in conv]}
    if temporal:
        buffers["temporal"] = list(cache.temporal)
    return Side(device, host, buffers)


def group(sides: dict[str, Side]) -> Any:
    """A HostPoolGroup: the first side is the anchor, every side has the same layers."""
    from sglang.srt.mem_cache.memory_pool_host import HostPoolGroup, PoolEntry

    return HostPoolGroup(
        [
            PoolEntry(
                name=name,
                host_pool=side.host,
                device_pool=side.device,
                layer_mapper=lambda layer: layer,
                is_primary_index_anchor=not position,
            )
            for position, (name, side) in enumerate(sides.items())
        ]
    )


def fill(side: Side, seed: int) -> None:
    """Give every element of the device buffers its own random bits."""
    generator = torch.Generator().manual_seed(seed)
    for buffer in (b for buffers in side.buffers.values() for b in buffers):
        raw = torch.randint(0, 256, (buffer.numel() * buffer.element_size(),), generator=generator)
        buffer.copy_(raw.to(torch.uint8).view(buffer.dtype).view(buffer.shape))


def state(side: Side) -> dict[str, list[torch.Tensor]]:
    """A copy of the device buffers, as bytes: NaNs compare equal to themselves that way."""
    return {
        kind: [b.clone().view(torch.uint8).view(b.shape[0], -1) for b in buffers]
        for kind, buffers in side.buffers.items()
    }
