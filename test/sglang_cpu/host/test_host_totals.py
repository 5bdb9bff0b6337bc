"""The bytes that each kind of copy is counted with, on sglang's real pools."""

from __future__ import annotations

import math
from pathlib import Path

import host_pools as pools
import pytest
from test_host_copies import ROUTES, slots

import sglang_cpu
from sglang_cpu import transfers
from sglang_cpu.kinds import DROP, KINDS

NOTHING = dict.fromkeys(KINDS, 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process counts during the test."""
    monkeypatch.setenv(sglang_cpu.COPIED, str(tmp_path))
    return tmp_path


def row_bytes(side: pools.Side) -> dict[str, int]:
    """Bytes of one slot, all layers, by the shapes of the device buffers."""
    return {
        kind: sum(math.prod(buffer.shape[1:]) * buffer.element_size() for buffer in buffers)
        for kind, buffers in side.buffers.items()
    }


def move(side: pools.Side, io_backend: str, page_size: int) -> None:
    """Back up three pages, and load one of them."""
    device, host = slots([1, 4, 2], page_size), slots([2, 0, 3], page_size)
    side.host.backup_from_device_all_layer(side.device, host, device, io_backend)
    for layer in range(pools.LAYERS):
        side.host.load_to_device_per_layer(
            side.device, host[:page_size], device[:page_size], layer, io_backend
        )


def expected(side: pools.Side, page_size: int) -> dict[str, int]:
    """What `move` copies."""
    made = dict(NOTHING)
    for kind, row in row_bytes(side).items():
        made[f"{kind}_backup"] = 3 * page_size * row
        made[f"{kind}_load"] = page_size * row
    return made


@pytest.mark.parametrize("route", ROUTES)
def test_both_directions_count_every_layer_of_every_slot(route: str, folder: Path) -> None:
    make, io_backend, page_size = ROUTES[route]
    side = make()
    move(side, io_backend, page_size)
    assert sglang_cpu.copied(folder) == expected(side, page_size)


@pytest.mark.parametrize("direction", ["backup", "load"])
@pytest.mark.parametrize("route", ROUTES)
def test_a_dropped_copy_counts_nothing(
    route: str, direction: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, io_backend, page_size = ROUTES[route]
    side = make()
    dropped = [f"{kind}_{direction}" for kind in side.buffers][-1]
    monkeypatch.setenv(DROP, dropped)
    move(side, io_backend, page_size)
    assert sglang_cpu.copied(folder) == {**expected(side, page_size), dropped: 0}


@pytest.mark.parametrize(
    ("io_backend", "layout"), [("direct", "page_first_direct"), ("kernel", "page_first")]
)
def test_the_sizes_are_those_of_the_pools(io_backend: str, layout: str, folder: Path) -> None:
    """By hand: 12 tokens of keys and values, 2 heads of 8 in bfloat16; 3 states; 3 layers."""
    move(pools.kv(layout, 4), io_backend, 4)
    move(pools.mamba(layout), io_backend, 1)
    token = 3 * 2 * 2 * 8 * 2
    conv, temporal = 3 * (8 * 2 + 4 * 4) * 2, 3 * (2 * 4 * 4) * 4
    assert sglang_cpu.copied(folder) == {
        "kv_backup": 12 * token,
        "kv_load": 4 * token,
        "conv_backup": 3 * conv,
        "conv_load": conv,
        "temporal_backup": 3 * temporal,
        "temporal_load": temporal,
    }


@pytest.mark.parametrize(
    ("io_backend", "layout"), [("direct", "page_first_direct"), ("kernel", "page_first")]
)
def test_a_held_copy_counts_when_it_is_issued(io_backend: str, layout: str, folder: Path) -> None:
    side = pools.kv(layout, 4)
    with transfers.hold() as held:
        move(side, io_backend, 4)
        assert held.pending
        assert sglang_cpu.copied(folder) == expected(side, 4)
    assert sglang_cpu.copied(folder) == expected(side, 4)


def test_a_copy_that_is_refused_counts_nothing(folder: Path) -> None:
    for io_backend, layout in (("direct", "page_first_direct"), ("kernel", "page_first")):
        side = pools.kv(layout, 4)
        with pytest.raises(IndexError):
            side.host.backup_from_device_all_layer(
                side.device, slots([4096], 4), slots([1], 4), io_backend
            )
    assert not any((sglang_cpu.copied(folder) or NOTHING).values())


def test_without_the_variable_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(sglang_cpu.COPIED, raising=False)
    monkeypatch.chdir(tmp_path)
    side = pools.kv("page_first", 1)
    move(side, "kernel", 1)
    assert sglang_cpu.copied(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
