"""Held transfers of sglang's own controller: when bytes move, events complete, who waits."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import host_pools as pools
import pytest
import torch

from sglang_cpu import device, transfers
from sglang_cpu.kinds import DROP

PAGE = 4


@dataclass
class Rig:
    """The controller that hybrid models use, on real pools, with real allocators."""

    controller: Any
    kv: pools.Side
    mamba: pools.Side

    def write(self, node: int, pages: list[int], state: int | None = None) -> torch.Tensor:
        """Back these pages up, and a state; returns the host slots of the pages."""
        from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

        extra = (
            []
            if state is None
            else [PoolTransfer(PoolName.MAMBA, device_indices=torch.tensor([state]))]
        )
        return self.controller.write(self.slots(pages), node_id=node, extra_pools=extra or None)

    def load(self, node: int, host_indices: torch.Tensor) -> torch.Tensor:
        """Load these host slots back; returns the device slots."""
        device_indices = self.controller.load(host_indices, node_id=node)
        self.controller.start_loading()
        return device_indices

    @staticmethod
    def slots(pages: list[int]) -> torch.Tensor:
        """All slots of these pages."""
        return (
            torch.tensor(pages, dtype=torch.int64)[:, None] * PAGE + torch.arange(PAGE)
        ).reshape(-1)

    def on_host(self, host_indices: torch.Tensor) -> torch.Tensor:
        """The bytes of these host slots: [slots, bytes of keys and values of all layers]."""
        pages = [
            self.kv.host.get_data_page(int(index)).view(torch.uint8)
            for index in host_indices[::PAGE]
        ]
        return torch.stack(pages)

    def ready(self, queue: str = "ack_write_queue") -> int:
        """How many acknowledgements HiCache would handle now, by its own count."""
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        return UnifiedRadixCache._count_ready_acks(None, getattr(self.controller, queue))


@pytest.fixture(params=[("direct", "page_first_direct"), ("kernel", "page_first")], ids="-".join)
def rig(request: pytest.FixtureRequest) -> Rig:
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.hicache_storage import PoolName
    from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController

    io_backend, layout = request.param
    kv, mamba = pools.kv(layout, PAGE), pools.mamba(layout)
    allocator = PagedTokenToKVPoolAllocator(
        pools.SLOTS, PAGE, torch.bfloat16, "cpu", kv.device, need_sort=False
    )
    controller = HybridCacheController(
        token_to_kv_pool_allocator=allocator,
        mem_pool_host=pools.group({PoolName.KV: kv, PoolName.MAMBA: mamba}),
        page_size=PAGE,
        tp_group=None,
        load_cache_event=threading.Event(),
        write_policy="write_through",
        io_backend=io_backend,
        transfer_layer_num=pools.LAYERS,
    )
    pools.fill(kv, 1)
    pools.fill(mamba, 2)
    kv.host.kv_buffer.zero_()
    return Rig(controller, kv, mamba)


def nothing(rig: Rig, host_indices: torch.Tensor) -> bool:
    return not rig.on_host(host_indices).any()


def test_not_held(rig: Rig) -> None:
    host = rig.write(1, [1])
    assert not nothing(rig, host)
    assert rig.ready() == 1


def test_released_in_the_order_of_issue(rig: Rig) -> None:
    with transfers.hold() as held:
        hosts = [rig.write(node, [node]) for node in (1, 2, 3)]
        assert [nothing(rig, host) for host in hosts] == [True] * 3
        for done, transfer in enumerate(held.pending, start=1):
            assert rig.ready() == done - 1
            transfer.release()
            assert [nothing(rig, host) for host in hosts] == [False] * done + [True] * (3 - done)
            assert rig.ready() == done


def test_released_in_another_order(rig: Rig) -> None:
    with transfers.hold() as held:
        hosts = [rig.write(node, [node]) for node in (1, 2, 3)]
        first, second, third = held.pending
        third.release()
        assert [nothing(rig, host) for host in hosts] == [True, True, False]
        acks = rig.controller.ack_write_queue
        assert [ack.finish_event.query() for ack in acks] == [False, False, True]
        assert rig.ready() == 0, "HiCache stops at the first that is not ready"
        first.release()
        assert rig.ready() == 1
        second.release()
        assert rig.ready() == 3
        assert held.pending == ()


def test_the_bytes_are_those_at_the_release(rig: Rig) -> None:
    reused, kept = rig.slots([1]), rig.slots([2])
    with transfers.hold() as held:
        hosts = [rig.write(node, [node]) for node in (1, 2)]
        expected = pools.state(rig.kv)["kv"]
        for buffer in rig.kv.buffers["kv"]:
            buffer[reused] = 7.0  # the slots go to another request too early
        held.release_all()
    assert bool((rig.on_host(hosts[0]).view(torch.bfloat16) == 7.0).all())
    loaded = rig.load(3, hosts[1])
    for buffer, before in zip(pools.state(rig.kv)["kv"], expected, strict=True):
        assert torch.equal(buffer[loaded], before[kept])


def test_a_state_travels_with_its_transfer(rig: Rig) -> None:
    with transfers.hold() as held:
        rig.write(1, [1], state=3)
        (transfer,) = held.pending
        assert set(transfer.kinds) == {"kv_backup", "conv_backup", "temporal_backup"}
        assert transfer.is_backup and not transfer.is_load
        conv = rig.mamba.host.conv_buffer[0]
        conv.zero_()
        transfer.release()
        transfer.release()  # nothing the second time
        assert conv.any()
        assert transfer.released


def test_a_transfer_that_copies_nothing_is_held_too(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DROP, "kv_backup")
    with transfers.hold() as held:
        host = rig.write(1, [1])
        assert rig.ready() == 0
        held.release_all()
        assert rig.ready() == 1
        assert nothing(rig, host)


def test_loads_and_backups_are_independent(rig: Rig) -> None:
    host = rig.write(0, [5])
    with transfers.hold() as held:
        rig.write(1, [1])
        device_slots = rig.load(2, host)
        backup, load = held.pending
        assert backup.is_backup and load.is_load
        before = rig.kv.device.k_buffer[0][device_slots].clone()
        load.release()
        assert not torch.equal(rig.kv.device.k_buffer[0][device_slots], before)
        assert rig.ready("ack_load_queue") == 1
        assert rig.ready() == 1, "the earlier write; the held one is not ready"


def test_waiting_for_an_acknowledgement_releases_it_alone(rig: Rig) -> None:
    with transfers.hold() as held:
        hosts = [rig.write(node, [node]) for node in (1, 2)]
        rig.controller.ack_write_queue[1].finish_event.synchronize()
        assert [nothing(rig, host) for host in hosts] == [True, False]
        assert len(held.pending) == 1


def test_the_forward_pass_waits_for_its_layers(rig: Rig) -> None:
    host = rig.write(0, [5])
    with transfers.hold() as held:
        rig.write(1, [1])
        rig.load(2, host)
        counter = rig.controller.layer_done_counter
        counter.set_consumer(counter.producer_index)
        counter.wait_until(0)
        (left,) = held.pending
        assert left.is_backup


def test_synchronize(rig: Rig) -> None:
    with transfers.hold() as held:
        host = rig.write(0, [5])
        rig.load(1, host)
        assert not rig.controller.write_stream.query()
        rig.controller.write_stream.synchronize()
        assert rig.controller.write_stream.query()
        assert [transfer.is_load for transfer in held.pending] == [True]
        device.synchronize()
        assert held.pending == ()


def test_torch_cuda_synchronize_is_the_host_s(rig: Rig) -> None:
    with transfers.hold() as held:
        rig.write(0, [5])
        torch.cuda.synchronize()
        assert held.pending == ()


def test_the_end_of_the_block_releases(rig: Rig) -> None:
    with pytest.raises(KeyError), transfers.hold():
        host = rig.write(1, [1])
        raise KeyError
    assert rig.ready() == 1
    assert not nothing(rig, host)
    assert not nothing(rig, rig.write(2, [2])), "and nothing is held any more"


def test_not_nested(rig: Rig) -> None:
    with transfers.hold() as held:
        with pytest.raises(RuntimeError, match="cannot be nested"), transfers.hold():
            pass
        host = rig.write(1, [1])
        assert nothing(rig, host), "the outer one goes on"
        assert len(held.pending) == 1


def test_checks_are_made_at_the_issue(rig: Rig) -> None:
    with transfers.hold() as held, pytest.raises(IndexError):
        rig.write(1, [4096])
    assert all(not transfer.kinds for transfer in held.pending)


def test_an_event_recorded_anew(rig: Rig) -> None:
    stream, event = device.Stream(), device.Event()
    assert event.query(), "never recorded: complete"
    with transfers.hold() as held:
        with device.stream(stream):
            event.record()
        with device.stream(stream):
            event.record()
        first, second = held.pending
        first.release()
        assert not event.query()
        second.release()
        assert event.query()


def test_one_stream_waits_for_another(rig: Rig) -> None:
    first, second, order = device.Stream(), device.Stream(), []
    from sglang_cpu.streams import submit

    with transfers.hold() as held:
        with device.stream(first):
            submit(lambda: order.append("first"))
        with device.stream(second):
            second.wait_stream(first)
            submit(lambda: order.append("second"))
        assert order == []
        held.pending[-1].release()
        assert order == ["first", "second"]


def test_a_stream_that_waits_for_itself(rig: Rig) -> None:
    stream, event, order = device.Stream(), device.Event(), []
    from sglang_cpu.streams import submit

    with transfers.hold() as held, device.stream(stream):
        event.record()
        event.wait()
        submit(lambda: order.append("once"))
        (transfer,) = held.pending
        transfer.release()
    assert order == ["once"] and event.query()


def test_a_copy_that_fails_is_not_made_again(rig: Rig) -> None:
    stream, tried = device.Stream(), []
    from sglang_cpu.streams import submit

    def fail() -> None:
        tried.append(1)
        raise RuntimeError("no such memory")

    with transfers.hold() as held:
        with device.stream(stream):
            submit(fail)
        with pytest.raises(RuntimeError, match="no such memory"):
            held.pending[0].release()
    assert tried == [1]


def test_a_stream_waits_before_its_block(rig: Rig) -> None:
    first, second, order = device.Stream(), device.Stream(), []
    from sglang_cpu.streams import submit

    with transfers.hold() as held:
        with device.stream(first):
            submit(lambda: order.append("first"))
        second.wait_event(first.record_event())
        with device.stream(second):
            submit(lambda: order.append("second"))
        held.pending[-1].release()
        assert order == ["first", "second"]


def test_an_event_of_an_idle_stream_is_complete(rig: Rig) -> None:
    with transfers.hold() as held:
        rig.write(1, [1])
        event = device.Event()
        event.record()  # on the default stream: as the controller's start event
        assert event.query() and rig.controller.load_stream.record_event().query()
        assert not rig.controller.write_stream.record_event().query()
        assert len(held.pending) == 1, "a mark alone outside of a block is no transfer"


def test_copies_outside_of_a_stream_are_held_one_by_one(rig: Rig) -> None:
    host, source = rig.slots([1]), rig.slots([2])
    with transfers.hold() as held:
        for _ in range(2):
            rig.kv.host.backup_from_device_all_layer(
                rig.kv.device, host, source, rig.controller.io_backend
            )
        event = device.Event()
        event.record()
        first, second = held.pending
        second.release()
        assert event.query() and not first.released


def test_elapsed_time(rig: Rig) -> None:
    start, end = device.Event(enable_timing=True), device.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="must be recorded"):
        start.elapsed_time(end)
    stream = device.Stream()
    with transfers.hold() as held:
        with device.stream(stream):
            start.record()
            end.record()
        with pytest.raises(RuntimeError, match="complete"):
            start.elapsed_time(end)
        held.release_all()
    assert start.elapsed_time(end) >= 0 >= end.elapsed_time(start)
