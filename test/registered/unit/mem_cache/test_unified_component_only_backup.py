"""Back up one component of a node whose Full KV is on the host already.

The backup is ordered directly here; when the cache orders it by itself is the
subject of test_unified_backup_after_insert.py.
"""

import unittest
from unittest import mock

import torch
from unified_hicache_harness import (
    COMPONENTS_ARE_LOCKED,
    EVERYTHING,
    FULL,
    MAMBA,
    SWA,
    CacheConfig,
    UnifiedHiCacheHarness,
    copied_slots,
    needs_host_copies,
    tokens_of,
)

from sglang.srt.mem_cache.unified_cache.cache_action import BackupKV
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=15, suite="base-a-test-cpu")
register_cuda_ci(est_time=15, suite="base-b-test-1-gpu-small")

PREFIX = tokens_of(1, 16)
LONG = PREFIX + tokens_of(2, 8)
OTHER = PREFIX + tokens_of(3, 8)


def order(harness, *nodes):
    """Execute a backup of the nodes; return what says whether Full KV was written."""
    return harness.cache._execute_and_commit_kv_backup(
        BackupKV([node.id for node in nodes])
    )


def branching_point(config=CacheConfig(), settle=True):
    """A harness with PREFIX's Full KV on both tiers and its state on the device only.

    The state is set aside while the cache inserts it, so that no backup of it is
    ordered whatever the cache would decide.
    """
    harness = UnifiedHiCacheHarness(config)
    harness.insert(LONG)
    if settle:
        harness.poll()
    with mock.patch.object(harness.cache, "_execute_and_commit_kv_backup"):
        harness.insert(PREFIX)
    node = harness.node(PREFIX)
    assert node.backuped and node.component_data[MAMBA].host_value is None
    return harness, node


@needs_host_copies
class TestBackupSpec(CustomTestCase):
    def spec(self, harness, node):
        value, transfers = harness.core.build_backup_spec(node.id)
        self.assertEqual((value.dim(), value.dtype), (1, torch.int64))
        self.assertEqual(value.device.type, harness.device)
        return len(value), {
            ct: [len(x.device_indices) for x in xfers]
            for ct, xfers in transfers.items()
        }

    def test_full_on_host_leaves_the_state_alone_to_copy(self):
        harness, node = branching_point()
        self.assertEqual(self.spec(harness, node), (0, {MAMBA: [1]}))

    def test_swa_is_not_listed_where_full_is_on_host(self):
        harness, node = branching_point(CacheConfig(components=(FULL, SWA, MAMBA)))
        self.assertIsNotNone(node.component_data[SWA].value)
        self.assertEqual(self.spec(harness, node), (0, {MAMBA: [1]}))
        harness.host_pools[SWA].free(node.component_data[SWA].host_value)
        node.component_data[SWA].host_value = None
        self.assertEqual(self.spec(harness, node), (0, {MAMBA: [1]}))

    def test_state_on_host_leaves_nothing_to_copy(self):
        harness, node = branching_point()
        order(harness, node)
        self.assertEqual(self.spec(harness, node), (0, {}))

    def test_node_that_is_only_on_host_leaves_nothing_to_copy(self):
        harness, node = branching_point()
        harness.evict_device()
        self.assertTrue(node.evicted)
        self.assertEqual(self.spec(harness, node), (0, {}))

    def test_node_without_host_copy_is_copied_whole(self):
        config = CacheConfig(components=(FULL, SWA, MAMBA), threshold=9)
        harness = UnifiedHiCacheHarness(config)
        harness.insert(tokens_of(1, 8))
        self.assertEqual(
            self.spec(harness, harness.node(tokens_of(1, 8))),
            (8, {SWA: [8], MAMBA: [1]}),
        )


@needs_host_copies
class TestComponentOnlyBackup(CustomTestCase):
    def test_copies_one_state_and_no_kv(self):
        for config in (
            CacheConfig(),
            CacheConfig(io_backend="kernel", layout="page_first"),
            CacheConfig(components=(FULL, SWA, MAMBA)),
            CacheConfig(page_size=4, extra_buffer=True),
        ):
            with self.subTest(config=str(config)):
                harness, node = branching_point(config)
                full_slots = node.component_data[FULL].host_value.clone()
                used = harness.host_used()
                with harness.recorded_backups() as recorded:
                    order(harness, node)
                self.assertEqual(copied_slots(recorded), [{"mamba": 1}])
                used[MAMBA] += 1
                self.assertEqual(harness.host_used(), used)
                self.assertTrue(
                    torch.equal(node.component_data[FULL].host_value, full_slots)
                )
                harness.check()
                harness.poll()
                harness.check()
                self.assertTrue(
                    harness.host_state_is(PREFIX, node.component_data[MAMBA].host_value)
                )

    def test_bytes_copied_are_the_states(self):
        harness, node = branching_point()
        mamba = harness.host_pools[MAMBA]
        buffers = [*mamba.conv_buffer, mamba.temporal_buffer]
        kv = harness.host_pools[FULL]
        for buffer in (*buffers, kv.k_buffer, kv.v_buffer):
            buffer[:] = -1
        order(harness, node)
        harness.poll()
        changed = sum(int((b != -1).sum()) * b.element_size() for b in buffers)
        self.assertEqual(changed, harness.state_bytes)
        self.assertEqual(mamba.size_per_token, harness.state_bytes)
        for buffer in (kv.k_buffer, kv.v_buffer):
            self.assertEqual(int((buffer != -1).sum()), 0)

    def test_prefix_is_found_with_the_same_bytes_after_eviction(self):
        for config in (CacheConfig(), CacheConfig(page_size=4, extra_buffer=True)):
            with self.subTest(config=str(config)):
                harness, node = branching_point(config)
                order(harness, node)
                harness.poll()
                harness.evict_device()
                self.assertEqual(len(harness.match(OTHER).device_indices), 0)
                matched = harness.load_back(OTHER)
                self.assertEqual(len(matched.device_indices), len(PREFIX))
                self.assertEqual(
                    harness.wrong_kv_planes(PREFIX, matched.device_indices), []
                )
                self.assertTrue(
                    harness.state_is(PREFIX, node.component_data[MAMBA].value)
                )
                harness.check()

    def test_node_is_pending_until_the_acknowledgement(self):
        harness, node = branching_point()
        order(harness, node)
        self.assertEqual(node.write_through_pending_id, node.id)
        self.assertEqual(list(harness.cache.ongoing_write_through), [node.id])
        harness.check()
        harness.poll()
        self.assertIsNone(node.write_through_pending_id)
        self.assertEqual(harness.cache.ongoing_write_through, {})
        self.assertEqual([cd.lock_ref for cd in node.component_data], [0, 0, 0])
        harness.check()

    @unittest.skipUnless(COMPONENTS_ARE_LOCKED, "who evicts the state waits")
    def test_state_is_locked_until_the_acknowledgement(self):
        harness, node = branching_point()
        order(harness, node)
        self.assertEqual(node.component_data[MAMBA].lock_ref, 1)
        harness.evict_device()
        self.assertIsNotNone(node.component_data[MAMBA].value)
        harness.poll()
        self.assertIsNone(node.write_through_pending_id)
        self.assertEqual([cd.lock_ref for cd in node.component_data], [0, 0, 0])
        harness.evict_device()
        self.assertTrue(node.evicted)
        harness.check()

    def test_nodes_with_nothing_left_are_skipped(self):
        harness, node = branching_point()
        order(harness, node)
        harness.poll()
        leaf = harness.node(LONG)
        with harness.recorded_backups() as recorded:
            order(harness, node, leaf)
        recorded.assert_not_called()
        self.assertEqual(harness.cache.ongoing_write_through, {})
        self.assertIsNone(node.write_through_pending_id)
        harness.check()

    def test_skipped_node_does_not_end_the_chain(self):
        harness, node = branching_point()
        with harness.recorded_backups() as recorded:
            order(harness, harness.node(LONG), node)
        self.assertEqual(copied_slots(recorded), [{"mamba": 1}])

    def test_full_kv_alone_is_copied(self):
        harness = UnifiedHiCacheHarness(CacheConfig(components=(FULL,), threshold=9))
        harness.insert(PREFIX)
        with harness.recorded_backups() as recorded:
            self.assertTrue(order(harness, harness.node(PREFIX)))
        self.assertEqual(copied_slots(recorded), [{"kv": len(PREFIX)}])
        harness.check()

    def test_split_while_in_flight(self):
        harness, node = branching_point()
        order(harness, node)
        short = PREFIX[:6]
        with mock.patch.object(harness.cache, "_execute_and_commit_kv_backup"):
            harness.insert(short)
        upper = harness.node(short)
        self.assertIs(harness.node(PREFIX), node)
        self.assertEqual(upper.write_through_pending_id, node.id)
        harness.check()
        harness.poll()
        self.assertIsNone(upper.write_through_pending_id)
        self.assertIsNone(node.write_through_pending_id)
        harness.check()
        harness.evict_device()
        matched = harness.load_back(OTHER)
        self.assertEqual(len(matched.device_indices), len(PREFIX))
        self.assertEqual(harness.wrong_kv_planes(PREFIX, matched.device_indices), [])
        self.assertTrue(harness.state_is(PREFIX, node.component_data[MAMBA].value))
        harness.check()


@needs_host_copies
class TestComponentOnlyBackupWithoutRoom(CustomTestCase):
    def assert_refused(self, harness, node):
        """Nothing copied, taken, locked or lost."""
        used, state = harness.host_used(), node.component_data[MAMBA].value.clone()
        with harness.recorded_backups() as recorded:
            self.assertFalse(order(harness, node))
        recorded.assert_not_called()
        self.assertEqual(harness.host_used(), used)
        self.assertTrue(torch.equal(node.component_data[MAMBA].value, state))
        self.assertTrue(harness.state_is(PREFIX, state))
        self.assertIsNone(node.component_data[MAMBA].host_value)
        self.assertEqual([cd.lock_ref for cd in node.component_data], [0, 0, 0])
        self.assertIsNone(node.write_through_pending_id)
        self.assertEqual(harness.cache.ongoing_write_through, {})

    def test_full_mamba_pool_keeps_the_state_on_the_device(self):
        harness, node = branching_point()
        pool = harness.host_pools[MAMBA]
        taken = pool.alloc(pool.available_size())
        self.assert_refused(harness, node)
        pool.free(taken)
        harness.check()
        order(harness, node)
        harness.check()
        self.assertTrue(
            harness.host_state_is(PREFIX, node.component_data[MAMBA].host_value)
        )

    def test_full_mamba_pool_gives_way_to_the_newer_state(self):
        harness, node = branching_point()
        harness.evict_states(1)  # LONG's, which stays on the host
        self.assertIsNotNone(node.component_data[MAMBA].value)
        pool = harness.host_pools[MAMBA]
        taken = pool.alloc(pool.available_size())
        order(harness, node)
        self.assertTrue(
            harness.host_state_is(PREFIX, node.component_data[MAMBA].host_value)
        )
        pool.free(taken)
        harness.check()

    def test_full_kv_pool_does_not_matter(self):
        harness, node = branching_point()
        pool = harness.host_pools[FULL]
        taken = pool.alloc(pool.available_size())
        with mock.patch.object(harness.cache, "evict_host") as evict_host:
            order(harness, node)
        evict_host.assert_not_called()
        harness.poll()
        self.assertTrue(
            harness.host_state_is(PREFIX, node.component_data[MAMBA].host_value)
        )
        pool.free(taken)
        harness.check()

    def test_indices_that_are_none_leak_nothing(self):
        harness, node = branching_point()
        cd = node.component_data[MAMBA]
        good, cd.value = cd.value, cd.value.view(1, 1)
        used = harness.host_used()
        with self.assertRaisesRegex(ValueError, "transfer of mamba"):
            order(harness, node)
        cd.value = good
        self.assertEqual(harness.host_used(), used)
        self.assertEqual([cd.lock_ref for cd in node.component_data], [0, 0, 0])
        self.assertEqual(harness.cache.ongoing_write_through, {})
        harness.check()
        harness.cache.evict_host(EVERYTHING, MAMBA)


if __name__ == "__main__":
    unittest.main()
