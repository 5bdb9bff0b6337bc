"""What the CUDA code refuses is refused here too, through the pools that make the calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import host_pools as pools
import pytest
import torch

from sglang_cpu import kernel_copies, single_copies
from sglang_cpu.install import COPIES

Make = Callable[[], pools.Side]

ROUTES: dict[str, tuple[Make, str]] = {
    f"{name}-{io_backend}-{layout}": (partial(make, layout, 4), io_backend)
    for name, make in (("kv", pools.kv), ("mla", pools.mla), ("keys", pools.keys_only))
    for io_backend, layout in (
        ("direct", "layer_first"),
        ("direct", "page_first_direct"),
        ("kernel", "layer_first"),
        ("kernel", "page_first"),
        ("kernel", "page_head"),
    )
    if layout != "page_head" or name == "kv"
} | {
    "mamba-direct": (partial(pools.mamba, "page_first_direct"), "direct"),
    "mamba-kernel": (partial(pools.mamba, "page_first"), "kernel"),
}
PAGE = torch.arange(4)


def _backup(side: pools.Side, host: torch.Tensor, device: torch.Tensor, io_backend: str) -> None:
    side.host.backup_from_device_all_layer(side.device, host, device, io_backend)


def _load(side: pools.Side, host: torch.Tensor, device: torch.Tensor, io_backend: str) -> None:
    side.host.load_to_device_per_layer(side.device, host, device, 1, io_backend)


@pytest.fixture(params=[_backup, _load], ids=["backup", "load"])
def copy(request: pytest.FixtureRequest) -> Callable[..., None]:
    return request.param


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "host, device, message",
    [
        (PAGE.int(), PAGE, "expected torch.int64"),
        (PAGE, PAGE.int(), "expected torch.int64"),
        (PAGE, torch.arange(8), "expected equally many"),
        (PAGE[None], PAGE[None], "expected one dimension"),
    ],
)
def test_indices(
    route: str, host: torch.Tensor, device: torch.Tensor, message: str, copy: Callable[..., None]
) -> None:
    make, io_backend = ROUTES[route]
    with pytest.raises(RuntimeError, match=message):
        copy(make(), host, device, io_backend)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("bad", [-4, 4096])
@pytest.mark.parametrize("where", ["host", "device"])
def test_range(route: str, bad: int, where: str, copy: Callable[..., None]) -> None:
    make, io_backend = ROUTES[route]
    host, device = (PAGE + bad, PAGE) if where == "host" else (PAGE, PAGE + bad)
    with pytest.raises(IndexError, match="expected 0 to"):
        copy(make(), host, device, io_backend)


@pytest.mark.parametrize("route", ROUTES)
def test_range_is_exact(route: str, copy: Callable[..., None]) -> None:
    make, io_backend = ROUTES[route]
    side = make()
    host_last = side.host.size - 4 + PAGE
    device_last = side.buffers[next(iter(side.buffers))][0].shape[0] - 4 + PAGE
    copy(side, host_last, device_last, io_backend)
    for host, device in ((host_last + 4, device_last), (host_last, device_last + 4)):
        with pytest.raises(IndexError, match="expected 0 to"):
            copy(side, host, device, io_backend)


@pytest.mark.parametrize("route", [r for r in ROUTES if "direct" in r and "mamba" not in r])
def test_page_size(route: str, copy: Callable[..., None]) -> None:
    make, io_backend = ROUTES[route]
    with pytest.raises(RuntimeError, match="multiple of the page size 4"):
        copy(make(), PAGE[:3], PAGE[:3], io_backend)


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_to_copy(route: str, copy: Callable[..., None]) -> None:
    make, io_backend = ROUTES[route]
    side = make()
    pools.fill(side, 1)
    before = pools.state(side)
    if io_backend == "kernel" and not route.startswith("mamba"):
        with pytest.raises(RuntimeError, match="SIGFPE"):
            copy(side, PAGE[:0], PAGE[:0], io_backend)
    else:
        copy(side, PAGE[:0], PAGE[:0], io_backend)
    for kind, buffers in pools.state(side).items():
        assert all(map(torch.equal, buffers, before[kind]))


def test_mamba_kernels_tolerate_nothing_to_copy() -> None:
    # the pool itself returns early, so the kernels are called as the pool would
    side = pools.mamba("page_first")
    conv, none = side.device.mamba_cache.conv[0], PAGE[:0]
    single_copies.transfer_kv_mamba_pf_lf(side.host.conv_buffer[0], conv[0], none, none, 0, 32, 96)
    from sglang_cpu.kinds import operation

    with operation(side.host, side.device, "backup"):
        single_copies.transfer_kv_mamba_lf_pf(
            side.host.conv_device_ptrs[0], side.host.conv_buffer[0], none, none, 32, 96, 3
        )


def test_item_size() -> None:
    buffer, one = torch.zeros(4, 12, dtype=torch.uint8), PAGE[:1]
    with pytest.raises(RuntimeError, match="12 bytes; expected a positive multiple of 8"):
        single_copies.transfer_kv_per_layer_mla(buffer, buffer, one, one, 12)
    buffer = torch.zeros(4, 24, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="24 bytes; expected a positive multiple of 16"):
        single_copies.transfer_kv_mamba_pf_lf(buffer[:, None], buffer, one, one, 0, 24, 24)
    with pytest.raises(RuntimeError, match="expected a positive multiple of 5"):
        kernel_copies.transfer_kv_per_layer_ph_lf(
            buffer, buffer, buffer, buffer, one, one, 0, 24, 24, 1, 5
        )


def test_table_of_addresses() -> None:
    side, one = pools.mamba("page_first"), PAGE[:1]
    table, conv = side.host.conv_device_ptrs[0], side.host.conv_buffer[0]
    for bad in (table[:2], table.long()):
        with pytest.raises(RuntimeError, match=r"expected \(3,\) torch.uint64"):
            single_copies.transfer_kv_mamba_lf_pf(bad, conv, one, one, 32, 96, 3)
    with pytest.raises(IndexError, match="in no buffer"):  # no pool said to be copied from
        single_copies.transfer_kv_mamba_lf_pf(table, conv, one, one, 32, 96, 3)


def test_direct_copies_check_the_buffers() -> None:
    layers, one = [torch.zeros(4, 8), torch.zeros(4, 8)], PAGE[:1]
    pages = torch.zeros(4, 2, 1, 8)
    direct, backup, load = (
        COPIES[name]
        for name in (
            "transfer_kv_direct",
            "transfer_kv_all_layer_direct_lf_pf",
            "transfer_kv_per_layer_direct_pf_lf",
        )
    )
    with pytest.raises(RuntimeError, match="2 source and 1 destination layers"):
        direct(layers, layers[:1], one, one, 1)
    with pytest.raises(RuntimeError, match="destination rows"):
        direct(layers, [layers[0], layers[1].half()], one, one, 1)
    with pytest.raises(RuntimeError, match="3 layers for 2 page-first buffers"):
        backup([*layers, layers[0]], [pages, pages], one, one, 1)
    with pytest.raises(RuntimeError, match=r"expected \[pages, layers, 1, ...\] torch.float16"):
        backup([layer.half() for layer in layers], [pages], one, one, 1)
    with pytest.raises(
        RuntimeError, match="8 elements in the page-first buffer and 6 in the layer"
    ):
        load([pages], [layers[0][:, :6]], one, one, 0, 1)
    with pytest.raises(IndexError, match="layer 2; expected 0 to 1"):
        load([pages], [layers[0]], one, one, 2, 1)
