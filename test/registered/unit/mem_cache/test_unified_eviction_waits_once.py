"""An eviction issues all its copies to the host, waits for them once, then frees.

What is to be copied is the subject of test_unified_backup_before_eviction.py; here it
is what write-back always copied: whole leaves.
"""

import contextlib
import functools
import itertools
import os
import tempfile
import unittest
from unittest import mock

import unified_hicache_harness
from unified_hicache_harness import (
    EVERYTHING,
    FULL,
    MAMBA,
    SWA,
    TRANSFERS_OVERLAP,
    CacheConfig,
    UnifiedHiCacheHarness,
    needs_host_copies,
    tokens_of,
)

from sglang.srt.disaggregation.kv_events import BlockRemoved, BlockStored, StorageMedium
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import ServerArgs
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=15, suite="base-a-test-cpu")
register_cuda_ci(est_time=15, suite="base-b-test-1-gpu-small")

POOLS = ((FULL,), (FULL, SWA), (FULL, MAMBA), (FULL, SWA, MAMBA))
PREFIX = tokens_of(1, 16)
LONG = PREFIX + tokens_of(2, 8)


def write_back(**kwargs):
    # With such a window no leaf of these tests is cut in two.
    return CacheConfig(write_policy="write_back", window=16, **kwargs)


@contextlib.contextmanager
def slow_copies(harness):
    """Hold each copy to the host until the cache waits for it, and overwrite each device
    slot that it frees, as the next owner would. Yields what happened, in order."""
    cache, group, happened, held = harness.cache, harness.cache.host_pool_group, [], []
    copy, writing_check = group.backup_from_device_all_layer, cache.writing_check

    def hold(*args, **kwargs):
        happened.append("copy")
        held.append(functools.partial(copy, *args, **kwargs))

    def check(*args, **kwargs):
        if kwargs.get("write_back") and harness.controller.ack_write_queue:
            happened.append("wait")
        while held:
            held.pop(0)()
        writing_check(*args, **kwargs)

    def freeing(allocator, buffers):
        free = allocator.free

        def overwrite(slots):
            if slots.numel():
                happened.append("free")
                for buffer in buffers:
                    buffer[slots] = -1
            free(slots)

        return mock.patch.object(allocator, "free", overwrite)

    with contextlib.ExitStack() as stack:
        stack.enter_context(
            mock.patch.object(group, "backup_from_device_all_layer", hold)
        )
        stack.enter_context(mock.patch.object(cache, "writing_check", check))
        for allocator, buffers in device_pools(harness):
            stack.enter_context(freeing(allocator, buffers))
        yield happened
        assert not held, "nobody waited for a copy"


def device_pools(harness):
    """Each allocator of device slots, and the buffers that are indexed by its slots."""
    allocators = [harness.allocator]
    if harness.config.has_swa:
        allocators = [
            harness.allocator.full_attn_allocator,
            harness.allocator.swa_attn_allocator,
        ]
    for allocator, (pool, _) in zip(allocators, harness._planes):
        yield allocator, [*pool.k_buffer, *pool.v_buffer]
    if harness.config.has_mamba:
        yield (
            harness.req_to_token_pool.mamba_allocator,
            [layer for buffer in harness._state_buffers() for layer in buffer],
        )


def phases(happened):
    """What happened, runs of the same kind once."""
    return [kind for kind, _ in itertools.groupby(happened)]


def evict(harness, ct):
    """Evict everything that one component can."""
    field = {FULL: "num_tokens", SWA: "swa_num_tokens", MAMBA: "mamba_num"}[ct]
    return harness.cache.evict(EvictParams(**{field: EVERYTHING}))


def take_all(pool, but=0):
    """Take all slots of a host pool but some."""
    return pool.alloc(pool.available_size() - but)


class EvictionCase(CustomTestCase):
    def assert_restored(self, harness, tokens, length=None):
        """The host gives the tokens back, the first ``length`` of them, byte by byte."""
        length = len(tokens) if length is None else length
        matched = harness.load_back(tokens)
        self.assertEqual(len(matched.device_indices), length)
        if length:
            window = harness.config.window if harness.config.has_swa else length
            slots, first = matched.device_indices, max(0, length - window)
            wrong = harness.wrong_kv_planes(tokens[:length], slots, swa=False)
            wrong += harness.wrong_kv_planes(tokens[:length], slots, first)
            self.assertEqual(wrong, [])
            if harness.config.has_mamba:
                node = harness.node(tokens[:length])
                self.assertTrue(
                    harness.state_is(tokens[:length], node.component_data[MAMBA].value)
                )
        harness.check()

    def assert_all_free(self, harness):
        harness.evict_all()
        harness.check()
        self.assertEqual(
            harness.host_used(), dict.fromkeys(harness.config.components, 0)
        )
        self.assertEqual(len(harness.core._collect_all_nodes()), 1)


@needs_host_copies
class TestOneWait(EvictionCase):
    def test_of_many_leaves(self):
        for components, page_size, (io_backend, layout) in itertools.product(
            POOLS,
            (1, 4),
            (("direct", "page_first_direct"), ("kernel", "page_first")),
        ):
            config = write_back(
                components=components,
                page_size=page_size,
                extra_buffer=page_size > 1 and MAMBA in components,
                io_backend=io_backend,
                layout=layout,
            )
            for ct in components:
                with self.subTest(config=str(config), evict=ct):
                    harness = UnifiedHiCacheHarness(config)
                    leaves = [tokens_of(seed, 12) for seed in range(1, 6)]
                    for leaf in leaves:
                        harness.insert(leaf)
                    with slow_copies(harness) as happened:
                        evict(harness, ct)
                    self.assertEqual(phases(happened), ["copy", "wait", "free"])
                    self.assertEqual(happened.count("copy"), len(leaves))
                    harness.check()
                    for leaf in leaves:
                        self.assertTrue(harness.node(leaf).evicted)
                        self.assert_restored(harness, leaf)
                    self.assert_all_free(harness)

    def test_of_a_path(self):
        """A parent becomes a leaf when its child is gone, and follows it."""
        for components in POOLS:
            with self.subTest(components=components):
                harness = UnifiedHiCacheHarness(write_back(components=components))
                harness.insert(PREFIX)
                harness.insert(LONG)
                with slow_copies(harness) as happened:
                    evict(harness, FULL)
                self.assertEqual(phases(happened), ["copy", "wait", "free"])
                self.assertGreaterEqual(happened.count("copy"), 2)
                harness.check()
                self.assert_restored(harness, LONG)
                self.assert_all_free(harness)

    def test_of_all_components_of_one_eviction(self):
        harness = UnifiedHiCacheHarness(write_back(components=(FULL, SWA, MAMBA)))
        leaves = [tokens_of(seed, 12) for seed in range(1, 5)]
        for leaf in leaves:
            harness.insert(leaf)
        with slow_copies(harness) as happened:
            harness.cache.evict(
                EvictParams(num_tokens=12, swa_num_tokens=24, mamba_num=3)
            )
        self.assertEqual(phases(happened), ["copy", "wait", "free"])
        self.assertEqual(happened.count("copy"), 3)
        self.assertEqual(harness.device_available()[FULL], 512 - 12)
        harness.check()
        for leaf in leaves:
            self.assert_restored(harness, leaf)
        self.assert_all_free(harness)

    def test_room_is_there_after_each_eviction(self):
        """Nothing stays held from one eviction to the next."""
        harness = UnifiedHiCacheHarness(write_back())
        for seed in range(1, 4):
            harness.insert(tokens_of(seed, 12))
        for left in (2, 1, 0):
            with slow_copies(harness) as happened:
                result = harness.cache.evict(EvictParams(num_tokens=12))
            self.assertEqual(phases(happened), ["copy", "wait", "free"])
            self.assertEqual(result.num_tokens_evicted, 12)
            self.assertEqual(harness.device_available()[FULL], 512 - 12 * left)
            harness.check()
        with slow_copies(harness) as happened:
            evict(harness, FULL)
        self.assertEqual(happened, [])

    def test_what_is_on_the_host_already_is_freed_without_waiting(self):
        harness = UnifiedHiCacheHarness(write_back())
        harness.insert(LONG)
        harness.evict_device()
        self.assert_restored(harness, LONG)
        with slow_copies(harness) as happened:
            evict(harness, FULL)
        self.assertEqual(phases(happened), ["free"])
        self.assertTrue(harness.node(LONG).evicted)
        self.assert_restored(harness, LONG)
        self.assert_all_free(harness)


@needs_host_copies
class TestWriteThroughWaitsForNothing(EvictionCase):
    def test_transfers_in_flight_stay_in_flight(self):
        for settled in (False, True):
            with self.subTest(settled=settled):
                harness = UnifiedHiCacheHarness()
                harness.insert(PREFIX)
                if settled:
                    harness.poll()
                harness.insert(tokens_of(3, 8))
                with slow_copies(harness) as happened:
                    harness.evict_device()
                self.assertEqual(phases(happened), ["free"] * settled)
                self.assertEqual(len(harness.controller.ack_write_queue), 2 - settled)
                self.assertEqual(harness.node(PREFIX).evicted, settled)
                harness.check()
                harness.poll()
                self.assert_all_free(harness)

    @unittest.skipUnless(TRANSFERS_OVERLAP, "as released there is no such transfer")
    def test_state_in_flight_is_read_before_its_slot_is_used_again(self):
        """Whether it is locked meanwhile, or waited for when it is evicted."""
        for components in ((FULL, MAMBA), (FULL, SWA, MAMBA)):
            with self.subTest(components=components):
                harness = UnifiedHiCacheHarness(CacheConfig(components=components))
                harness.insert(LONG)
                harness.poll()
                with slow_copies(harness) as happened:
                    harness.insert(PREFIX)
                    self.assertEqual(happened.count("copy"), 1)
                    harness.evict_device()
                    harness.poll()
                node = harness.node(PREFIX)
                self.assertTrue(
                    harness.host_state_is(PREFIX, node.component_data[MAMBA].host_value)
                )
                self.assertEqual(harness.cache.ongoing_write_through, {})
                harness.evict_device()
                self.assert_restored(harness, PREFIX)
                self.assert_all_free(harness)

    def test_window_released_while_a_state_is_in_flight(self):
        """Its slots are free at once, they wait for no eviction."""
        harness = UnifiedHiCacheHarness(CacheConfig(components=(FULL, SWA, MAMBA)))
        harness.insert(PREFIX)
        harness.poll()
        node = harness.node(PREFIX)
        cd = node.component_data[MAMBA]
        harness.host_pools[MAMBA].free(cd.host_value)
        cd.host_value = None
        harness.insert(PREFIX)
        lock = harness.cache.inc_lock_ref(node.id, (FULL, MAMBA))
        harness.cache.dec_swa_lock_only(
            node.id, lock.swa_uuid_for_lock, lock.skip_lock_node_ids
        )
        held = len(harness.held(SWA, host=False))
        self.assertEqual(harness.device_available()[SWA], harness.config.kv_size - held)


@needs_host_copies
class TestNoRoomOnTheHost(EvictionCase):
    """Eviction makes progress all the same, and loses no slot."""

    def test_at_all(self):
        for components in POOLS:
            for ct in components:
                with self.subTest(components=components, full_pool=ct):
                    harness = UnifiedHiCacheHarness(write_back(components=components))
                    harness.insert(PREFIX)
                    harness.insert(LONG)
                    harness.insert(tokens_of(3, 8))
                    pool = harness.host_pools[ct]
                    taken = take_all(pool)
                    with slow_copies(harness):
                        harness.evict_device()
                    pool.free(taken)
                    harness.check()
                    self.assertEqual(len(harness.held(FULL, host=False)), 0)
                    self.assertEqual(len(harness.match(LONG).device_indices), 0)
                    self.assert_all_free(harness)

    def path_whose_leaf_has_no_state(self):
        """A path of 16 and 8 tokens of which the lower node lost its state, and a host
        that takes KV and no state."""
        harness = UnifiedHiCacheHarness(write_back())
        taken = take_all(harness.host_pools[MAMBA])
        harness.insert(PREFIX)
        harness.insert(LONG)
        harness.insert(LONG + tokens_of(4, 6))
        harness.insert(PREFIX)  # so that the state of LONG is the oldest
        harness.evict_states(1)
        harness.cache.evict(EvictParams(num_tokens=6))
        states = [
            harness.node(tokens).component_data[MAMBA].value is not None
            for tokens in (PREFIX, LONG)
        ]
        assert states == [True, False] and not harness.node(LONG).children
        return harness, taken

    def test_leaf_above_what_the_same_eviction_demoted(self):
        """LONG's tail goes to the host, then the node above it finds no room there."""
        harness, taken = self.path_whose_leaf_has_no_state()
        with slow_copies(harness) as happened:
            with self.assertLogs("sglang.srt.mem_cache", "WARNING") as logs:
                harness.evict_device()
        self.assertEqual(phases(happened), ["copy", "wait", "free"])
        self.assertIn("KV subtree dropped without backup", "".join(logs.output))
        harness.host_pools[MAMBA].free(taken)
        harness.check()
        self.assertEqual(len(harness.core._collect_all_nodes()), 1)
        self.assert_all_free(harness)

    def test_what_follows_a_dropped_leaf_is_waited_for_as_well(self):
        """The host has room for the first and the last of three leaves."""
        harness = UnifiedHiCacheHarness(write_back(components=(FULL,)))
        first, large, last = tokens_of(1, 12), tokens_of(2, 16), tokens_of(3, 12)
        for tokens in (first, large, last):
            harness.insert(tokens)
        pool = harness.host_pools[FULL]
        taken = take_all(pool, but=12)
        with slow_copies(harness) as happened:
            evict(harness, FULL)
        # The large one evicted the first from the host, in vain, as it always did.
        self.assertEqual(
            phases(happened), ["copy", "wait", "free", "copy", "wait", "free"]
        )
        self.assertIsNone(harness.node(first))
        self.assertIsNone(harness.node(large))
        pool.free(taken)
        harness.check()
        self.assert_restored(harness, last)
        self.assert_all_free(harness)


@needs_host_copies
class TestDroppedFromTheHostWithinTheEviction(EvictionCase):
    """The host has room for one of two leaves: the second replaces the first before the
    copy of the first is acknowledged."""

    def leaves_with_room_for_one(self, harness):
        leaves = tokens_of(1, 12), tokens_of(2, 12)
        for leaf in leaves:
            harness.insert(leaf)
        pool = harness.host_pools[FULL]
        return leaves, take_all(pool, but=12)

    def test_acknowledgement_of_a_node_that_is_gone(self):
        for components in POOLS:
            for ct in components:
                with self.subTest(components=components, evict=ct):
                    harness = UnifiedHiCacheHarness(write_back(components=components))
                    (gone, kept), taken = self.leaves_with_room_for_one(harness)
                    with slow_copies(harness) as happened:
                        evict(harness, ct)
                    self.assertEqual(
                        happened[:3] + phases(happened)[2:],
                        ["copy", "copy", "wait", "free"],
                    )
                    self.assertIsNone(harness.node(gone))
                    self.assertEqual(harness.cache.ongoing_write_through, {})
                    self.assertIsNone(harness.node(kept).write_through_pending_id)
                    harness.host_pools[FULL].free(taken)
                    harness.check()
                    self.assert_restored(harness, kept)
                    self.assert_all_free(harness)

    def test_state_alone(self):
        """Of the first leaf and the node above it, the latter stays on the host without
        the state that gave way to the next leaf's."""
        harness = UnifiedHiCacheHarness(write_back())
        harness.insert(PREFIX)
        harness.insert(LONG)
        pool = harness.host_pools[MAMBA]
        taken = take_all(pool, but=1)
        with slow_copies(harness) as happened:
            harness.evict_device()
        self.assertEqual(phases(happened), ["copy", "wait", "free"])
        pool.free(taken)
        harness.check()
        self.assertIsNone(harness.node(LONG))
        self.assert_restored(harness, PREFIX)
        self.assert_all_free(harness)

    def test_events(self):
        harness = UnifiedHiCacheHarness(write_back(page_size=4, extra_buffer=True))
        harness.core.enable_kv_cache_events = True
        (gone, kept), taken = self.leaves_with_room_for_one(harness)
        stored = {
            tuple(event.token_ids): event.block_hashes
            for event in harness.core.take_events()
        }
        hashes = [
            [stored[tuple(tokens[i : i + 4])][0] for i in (0, 4, 8)]
            for tokens in (gone, kept)
        ]
        evict(harness, FULL)
        on_host = set()
        for event in harness.core.take_events():
            if event.medium != StorageMedium.CPU:
                continue
            if isinstance(event, BlockStored):
                on_host.update(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                on_host.difference_update(event.block_hashes)
        self.assertEqual(on_host, set(hashes[1]))
        harness.host_pools[FULL].free(taken)
        harness.check()

    def test_storage_gets_what_is_there(self):
        with tempfile.TemporaryDirectory() as folder:
            config = write_back(page_size=4, extra_buffer=True)
            harness = with_file_storage(config, folder)
            _, taken = self.leaves_with_room_for_one(harness)
            evict(harness, FULL)
            (node,) = harness.core.root_node.children.values()
            while harness.cache.ongoing_backup:
                harness.poll()
            harness.controller.detach_storage_backend()
            stored = {name.split("_")[0].split(".")[0] for name in os.listdir(folder)}
            self.assertEqual(stored, set(node.hash_value))
            harness.host_pools[FULL].free(taken)
            harness.check()


def with_file_storage(config, folder):
    """A harness whose host copies are published to files in the folder."""
    args = functools.partial(ServerArgs, hicache_storage_backend="file")
    with (
        mock.patch.object(unified_hicache_harness, "ServerArgs", args),
        mock.patch.dict(os.environ, SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR=folder),
        get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1),
    ):
        return UnifiedHiCacheHarness(config)


@needs_host_copies
class TestErrorWithinAnEviction(EvictionCase):
    def test_frees_what_it_evicted_before(self):
        """The third of four copies fails: two leaves are on the host, two on the
        device, and the next eviction goes on from there."""
        for components in POOLS:
            with self.subTest(components=components):
                harness = UnifiedHiCacheHarness(write_back(components=components))
                leaves = [tokens_of(seed, 12) for seed in range(1, 5)]
                for leaf in leaves:
                    harness.insert(leaf)
                write, calls = harness.controller.write, []

                def failing(*args, **kwargs):
                    calls.append(args)
                    if len(calls) == 3:
                        raise RuntimeError("the copy failed")
                    return write(*args, **kwargs)

                with slow_copies(harness) as happened:
                    with (
                        mock.patch.object(harness.controller, "write", failing),
                        self.assertRaisesRegex(RuntimeError, "the copy failed"),
                    ):
                        evict(harness, FULL)
                    self.assertEqual(phases(happened), ["copy", "wait", "free"])
                    harness.check()
                    self.assertEqual(
                        [harness.node(leaf).evicted for leaf in leaves],
                        [True, True, False, False],
                    )
                    evict(harness, FULL)
                for leaf in leaves:
                    self.assert_restored(harness, leaf)
                self.assert_all_free(harness)


if __name__ == "__main__":
    unittest.main()
