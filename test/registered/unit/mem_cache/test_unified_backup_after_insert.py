"""A state that an insert brings to a host-backed node is backed up right after it.

One test for each condition of the decision; what the backup does is the subject of
test_unified_component_only_backup.py.
"""

import unittest
from unittest import mock

from unified_hicache_harness import (
    FULL,
    MAMBA,
    SAVED_BEFORE_EVICTION,
    SWA,
    TRANSFERS_OVERLAP,
    CacheConfig,
    UnifiedHiCacheHarness,
    copied_slots,
    needs_host_copies,
    tokens_of,
)

from sglang.srt.mem_cache.unified_cache.components import FullComponent
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=20, suite="base-a-test-cpu")
register_cuda_ci(est_time=20, suite="base-b-test-1-gpu-small")

PREFIX = tokens_of(1, 16)
LONG = PREFIX + tokens_of(2, 8)
OTHER = PREFIX + tokens_of(3, 8)
STATE = [{"mamba": 1}]


def host_backed(config=CacheConfig(), settle=True):
    """A harness with LONG on both tiers; PREFIX is inside, without a state."""
    harness = UnifiedHiCacheHarness(config)
    for _ in range(config.threshold):
        harness.insert(LONG)
    if settle:
        harness.poll()
    assert harness.node(LONG).backuped
    return harness


def backups_of(harness, tokens, **kwargs):
    """What the cache copies to the host while it inserts."""
    with harness.recorded_backups() as recorded:
        harness.insert(tokens, **kwargs)
    return copied_slots(recorded)


@needs_host_copies
class TestStateOfHostBackedNode(CustomTestCase):
    """The insert ends on an existing node whose Full KV is on the host."""

    def test_is_backed_up_alone(self):
        for threshold in (1, 3):
            for components in ((FULL, MAMBA), (FULL, SWA, MAMBA)):
                config = CacheConfig(components=components, threshold=threshold)
                with self.subTest(config=str(config)):
                    harness = host_backed(config)
                    self.assertEqual(backups_of(harness, PREFIX), STATE)
                    harness.check()
                    host_value = harness.node(PREFIX).component_data[MAMBA].host_value
                    harness.poll()
                    self.assertTrue(harness.host_state_is(PREFIX, host_value))

    def test_is_backed_up_between_two_prefill_chunks(self):
        self.assertEqual(backups_of(host_backed(), PREFIX, chunked=True), STATE)

    def test_is_backed_up_again_once_the_host_dropped_it(self):
        harness = host_backed()
        harness.insert(PREFIX)
        harness.poll()
        node = harness.node(PREFIX)
        cd = node.component_data[MAMBA]
        harness.host_pools[MAMBA].free(cd.host_value)
        cd.host_value = None
        self.assertEqual(backups_of(harness, PREFIX), STATE)
        harness.check()

    def test_is_found_after_eviction(self):
        harness = host_backed()
        harness.insert(PREFIX)
        harness.poll()
        harness.evict_device()
        matched = harness.load_back(OTHER)
        self.assertEqual(len(matched.device_indices), len(PREFIX))
        self.assertEqual(harness.wrong_kv_planes(PREFIX, matched.device_indices), [])
        self.assertTrue(
            harness.state_is(PREFIX, harness.node(PREFIX).component_data[MAMBA].value)
        )


@needs_host_copies
class TestNoComponentBackup(CustomTestCase):
    """One condition of the decision does not hold."""

    def test_state_that_is_on_the_host(self):
        harness = host_backed()
        harness.insert(PREFIX)
        harness.poll()
        with mock.patch.object(
            harness.cache, "_execute_and_commit_kv_backup"
        ) as execute:
            harness.insert(PREFIX)
            harness.insert(LONG)
        execute.assert_not_called()

    @unittest.skipIf(TRANSFERS_OVERLAP, "the state's transfer follows")
    def test_transfer_in_flight(self):
        harness = host_backed(settle=False)
        self.assertEqual(backups_of(harness, PREFIX), [])
        self.assertEqual(
            list(harness.cache.ongoing_write_through), [harness.node(LONG).id]
        )
        harness.check()
        harness.poll()
        harness.check()
        self.assertEqual(
            [cd.lock_ref for cd in harness.node(LONG).component_data], [0, 0, 0]
        )

    def test_full_kv_that_is_not_on_the_host(self):
        harness = UnifiedHiCacheHarness(CacheConfig(threshold=9))
        harness.insert(LONG)
        self.assertEqual(backups_of(harness, PREFIX), [])
        self.assertFalse(harness.node(PREFIX).backuped)
        harness.check()

    def test_hicache_off(self):
        harness = host_backed()
        harness.core.enable_hicache = False
        self.assertEqual(backups_of(harness, PREFIX), [])

    def test_write_back(self):
        harness = host_backed()
        harness.core.is_write_back = True
        self.assertEqual(backups_of(harness, PREFIX), [])

    def test_full_only_and_swa(self):
        for components in ((FULL,), (FULL, SWA)):
            with self.subTest(components=components):
                harness = host_backed(CacheConfig(components=components))
                with mock.patch.object(
                    harness.cache, "_execute_and_commit_kv_backup"
                ) as execute:
                    harness.insert(PREFIX)
                execute.assert_not_called()

    def test_need_of_full_does_not_count(self):
        harness = host_backed(CacheConfig(components=(FULL,)))
        with (
            mock.patch.object(
                FullComponent,
                "needs_incremental_backup",
                create=True,
                return_value=True,
            ),
            mock.patch.object(
                harness.cache, "_execute_and_commit_kv_backup"
            ) as execute,
        ):
            harness.insert(PREFIX)
        execute.assert_not_called()


@needs_host_copies
class TestNewLeafKeepsTheHitCountRule(CustomTestCase):
    """Nothing changes for an insert that ends on a new leaf."""

    def test_at_once_with_threshold_1(self):
        harness = UnifiedHiCacheHarness()
        self.assertEqual(backups_of(harness, PREFIX), [{"kv": len(PREFIX), "mamba": 1}])

    def test_with_the_third_hit_at_threshold_3(self):
        harness = UnifiedHiCacheHarness(CacheConfig(threshold=3))
        self.assertEqual(backups_of(harness, PREFIX), [])
        self.assertEqual(backups_of(harness, PREFIX), [])
        self.assertEqual(backups_of(harness, PREFIX), [{"kv": len(PREFIX), "mamba": 1}])

    def test_not_between_two_prefill_chunks(self):
        harness = UnifiedHiCacheHarness()
        self.assertEqual(backups_of(harness, PREFIX, chunked=True), [])


@needs_host_copies
@unittest.skipIf(SAVED_BEFORE_EVICTION, "the state is saved at its eviction")
class TestWriteBackIsUnchanged(CustomTestCase):
    def test_each_node_is_copied_whole_at_its_eviction_and_the_state_lost(self):
        config = CacheConfig(write_policy="write_back")
        harness = UnifiedHiCacheHarness(config)
        with harness.recorded_backups() as recorded:
            harness.insert(LONG)
            harness.insert(PREFIX)
            self.assertEqual(copied_slots(recorded), [])
            harness.evict_device()
            self.assertEqual(
                copied_slots(recorded), [{"kv": 8, "mamba": 1}, {"kv": 16, "mamba": 1}]
            )
            recorded.reset_mock()
            # PREFIX is on the host, state and all; a new state there is not saved.
            harness.host_pools[MAMBA].free(
                harness.node(PREFIX).component_data[MAMBA].host_value
            )
            node = harness.node(PREFIX)
            harness.core.host_lru_lists[MAMBA].remove_node(node)
            node.component_data[MAMBA].host_value = None
            harness.insert(PREFIX)
            harness.evict_device()
            self.assertEqual(copied_slots(recorded), [])
        harness.check()
        self.assertEqual(
            harness.match(OTHER).best_match_node, harness.core.root_node.id
        )


ROUTES = (("direct", "page_first_direct"), ("kernel", "page_first"))
POOLS = ((FULL,), (FULL, SWA), (FULL, MAMBA), (FULL, SWA, MAMBA))


def every_config():
    """Every cache that a hybrid model can get: pages, buffers, routes, thresholds."""
    for components in POOLS:
        for page_size, extra_buffer in ((1, False), (1, True), (4, True), (64, True)):
            if MAMBA not in components:
                extra_buffer = False
            for io_backend, layout in ROUTES:
                for threshold in (1, 3):
                    yield CacheConfig(
                        components=components,
                        page_size=page_size,
                        extra_buffer=extra_buffer,
                        io_backend=io_backend,
                        layout=layout,
                        threshold=threshold,
                        kv_size=max(512, 24 * page_size),
                        window=max(8, page_size),
                        mamba_size=24,
                    )


def serve_shared_prefix(harness, seed=1):
    """Serve two requests that share a prefix with what is on the host, as the scheduler
    does, with all evicted from the device before each. Returns the tokens that the
    last one found cached, and the length of the prefix."""
    page = harness.config.page_size
    prefix = tokens_of(seed, 4 * max(4, page))
    for _ in range(harness.config.threshold):
        harness.insert(prefix + tokens_of(seed + 1, 2 * page))
    harness.poll()
    harness.check()
    harness.evict_device()
    if harness.config.extra_buffer:
        # The prefix is a branching point: this request leaves its state there.
        harness.serve(prefix + tokens_of(seed + 2, 2 * page) + [7])
    else:
        # Without the buffer a state is left where a request ends.
        harness.serve(prefix)
    harness.poll()
    harness.check()
    harness.evict_device()
    harness.check()
    cached = harness.serve(prefix + tokens_of(seed + 3, 2 * page) + [7])
    harness.check()
    return cached, len(prefix)


@needs_host_copies
class TestSharedPrefix(CustomTestCase):
    """serve() compares what a request reuses with the bytes of a cold run."""

    def test_hybrid_models_find_it_on_the_host(self):
        for config in every_config():
            if MAMBA not in config.components:
                continue
            with self.subTest(config=str(config)):
                harness = UnifiedHiCacheHarness(config)
                cached, expected = serve_shared_prefix(harness)
                self.assertEqual(cached, expected)
                harness.evict_all()
                harness.check()
                self.assertEqual(
                    harness.host_used(), dict.fromkeys(config.components, 0)
                )

    def test_models_without_state_find_it_as_before(self):
        for config in every_config():
            if MAMBA in config.components:
                continue
            with self.subTest(config=str(config)):
                harness = UnifiedHiCacheHarness(config)
                cached, expected = serve_shared_prefix(harness)
                self.assertEqual(cached, expected)
                harness.evict_all()
                harness.check()
                self.assertEqual(
                    harness.host_used(), dict.fromkeys(config.components, 0)
                )

    def test_host_pools_without_room_lose_nothing_else(self):
        for ct in (FULL, MAMBA):
            with self.subTest(full_pool=ct):
                harness = host_backed()
                pool = harness.host_pools[ct]
                taken = pool.alloc(pool.available_size())
                self.assertEqual(
                    backups_of(harness, PREFIX), STATE if ct is FULL else []
                )
                cd = harness.node(PREFIX).component_data[MAMBA]
                self.assertTrue(harness.state_is(PREFIX, cd.value))
                pool.free(taken)
                harness.check()
                harness.poll()
                harness.check()


if __name__ == "__main__":
    unittest.main()
