"""Every kind of copy moves the very bytes, on sglang's real pools; and a dropped one is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import host_pools as pools
import pytest
import torch

from sglang_cpu.kinds import DROP

Make = Callable[[], pools.Side]


KV_ROUTES = (
    ("direct", "layer_first"),
    ("direct", "page_first_direct"),
    ("kernel", "layer_first"),
    ("kernel", "page_first"),
    ("kernel", "page_head"),
)
MAMBA_ROUTES = (
    ("direct", "page_first_direct"),
    ("direct", "page_first"),
    ("kernel", "page_first"),
    ("kernel", "page_first_direct"),
)


def _routes() -> Iterator[tuple[str, Make, str, int]]:
    for page_size in (1, 4):
        for io_backend, layout in KV_ROUTES:
            name = f"{io_backend}-{layout}-{page_size}"
            yield f"kv-{name}", partial(pools.kv, layout, page_size), io_backend, page_size
            if layout == "page_head":
                continue
            yield f"mla-{name}", partial(pools.mla, layout, page_size), io_backend, page_size
            yield f"keys-{name}", partial(pools.keys_only, layout, page_size), io_backend, page_size
            if layout != "layer_first":
                make = partial(pools.kv, layout, page_size, v_head_dim=4)
                yield f"kv_two_buffers-{name}", make, io_backend, page_size
    for io_backend, layout in MAMBA_ROUTES:
        name = f"{io_backend}-{layout}"
        yield f"mamba-{name}", partial(pools.mamba, layout), io_backend, 1
        yield f"conv_only-{name}", partial(pools.mamba, layout, temporal=False), io_backend, 1


ROUTES = {name: (make, io_backend, page_size) for name, make, io_backend, page_size in _routes()}


def slots(pages: list[int], page_size: int) -> torch.Tensor:
    """All slots of these pages, int64."""
    return (torch.tensor(pages)[:, None] * page_size + torch.arange(page_size)).reshape(-1)


def round_trip(side: pools.Side, io_backend: str, page_size: int) -> dict[str, bool]:
    """Back up, overwrite the device, load elsewhere.

    Return for each kind whether those bytes came back, and every other slot is as it was.
    """
    source, target = slots([1, 4, 2], page_size), slots([5, 0, 3], page_size)
    host = slots([2, 0, 7], page_size)
    pools.fill(side, seed=1)
    written = pools.state(side)
    side.host.backup_from_device_all_layer(side.device, host, source, io_backend)
    pools.fill(side, seed=2)
    expected = pools.state(side)
    for kind, buffers in expected.items():
        for buffer, before in zip(buffers, written[kind], strict=True):
            buffer[target] = before[source]
    for layer in range(pools.LAYERS):
        side.host.load_to_device_per_layer(side.device, host, target, layer, io_backend)
    found = pools.state(side)
    return {
        kind: all(torch.equal(a, b) for a, b in zip(buffers, found[kind], strict=True))
        for kind, buffers in expected.items()
    }


@pytest.mark.parametrize("route", ROUTES)
def test_round_trip(route: str) -> None:
    make, io_backend, page_size = ROUTES[route]
    side = make()
    assert round_trip(side, io_backend, page_size) == dict.fromkeys(side.buffers, True)


@pytest.mark.parametrize("direction", ["backup", "load"])
@pytest.mark.parametrize("route", ROUTES)
def test_a_dropped_copy_is_noticed(
    route: str, direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, io_backend, page_size = ROUTES[route]
    for kind in make().buffers:
        side = make()
        monkeypatch.setenv(DROP, f"{kind}_{direction}")
        found = round_trip(side, io_backend, page_size)
        assert found == {other: other != kind for other in side.buffers}


@pytest.mark.parametrize(
    "io_backend, layout", [("direct", "page_first_direct"), ("kernel", "page_first")]
)
def test_group_copies_every_pool(io_backend: str, layout: str) -> None:
    from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

    sides = {PoolName.KV: pools.kv(layout, 4), PoolName.MAMBA: pools.mamba(layout)}
    group = pools.group(sides)
    kv_host, kv_source = slots([3, 1], 4), slots([0, 5], 4)
    states = [
        PoolTransfer(
            PoolName.MAMBA, host_indices=torch.tensor([9]), device_indices=torch.tensor([4])
        )
    ]
    expected = {}
    for seed, (name, side) in enumerate(sides.items()):
        pools.fill(side, seed)
        expected[name] = pools.state(side)
    group.backup_from_device_all_layer(None, kv_host, kv_source, io_backend, pool_transfers=states)
    for side in sides.values():
        pools.fill(side, 9)
    for layer in range(pools.LAYERS):
        group.load_to_device_per_layer(
            None, kv_host, kv_source, layer, io_backend, pool_transfers=states
        )
    for name, moved in ((PoolName.KV, kv_source), (PoolName.MAMBA, torch.tensor([4]))):
        for kind, buffers in pools.state(sides[name]).items():
            for buffer, before in zip(buffers, expected[name][kind], strict=True):
                assert torch.equal(buffer[moved], before[moved])


@pytest.mark.parametrize("io_backend", ["direct", "kernel"])
def test_drop_refuses_an_unknown_kind(io_backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    side = pools.kv("layer_first", 1)
    monkeypatch.setenv(DROP, "kv_backup,mamba_load")
    with pytest.raises(ValueError, match=r"SGLANG_CPU_DROP.*mamba_load.*expected kv_backup"):
        side.host.backup_from_device_all_layer(
            side.device, slots([1], 1), slots([2], 1), io_backend
        )
