"""A state that arrives while its node's own transfer is in flight is backed up as well.

What keeps two transfers of one node apart is the subject of
test_unified_overlapping_transfers.py.
"""

import contextlib
import dataclasses
import unittest
from unittest import mock

from unified_hicache_harness import (
    FULL,
    MAMBA,
    SWA,
    CacheConfig,
    UnifiedHiCacheHarness,
    copied_slots,
    needs_host_copies,
    tokens_of,
)

from sglang.srt.mem_cache.common import release_kv_cache
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=20, suite="base-a-test-cpu")
register_cuda_ci(est_time=20, suite="base-b-test-1-gpu-small")

PREFIX = tokens_of(1, 16)
LONG = PREFIX + tokens_of(2, 8)
OTHER = PREFIX + tokens_of(3, 8)
CONFIGS = (
    CacheConfig(),
    CacheConfig(components=(FULL, SWA, MAMBA)),
    CacheConfig(page_size=4, extra_buffer=True),
    CacheConfig(io_backend="kernel", layout="page_first"),
)


@contextlib.contextmanager
def held_backups(harness):
    """No backup is acknowledged in here, as with copies that take long."""
    real, queue = harness.cache._count_ready_acks, harness.controller.ack_write_queue
    with mock.patch.object(
        harness.cache,
        "_count_ready_acks",
        side_effect=lambda acks: 0 if acks is queue else real(acks),
    ):
        yield


class InFlightTestCase(CustomTestCase):
    def assert_copied_once(self, harness, recorded):
        """Each KV slot of the host was written once, and each of its states."""
        copied = copied_slots(recorded)
        used = harness.host_used()
        for ct, name in ((FULL, "kv"), (SWA, "swa"), (MAMBA, "mamba")):
            total = sum(slots.get(name, 0) for slots in copied)
            self.assertEqual(total, used.get(ct, 0), copied)

    def assert_found(self, harness, tokens):
        """The path of the tokens leaves the device and comes back as it was."""
        node = harness.node(tokens)
        cd = node.component_data[MAMBA]
        self.assertEqual(len(cd.host_value), 1)
        self.assertTrue(harness.host_state_is(tokens, cd.host_value))
        harness.evict_device()
        self.assertTrue(node.evicted)
        matched = harness.load_back(tokens + tokens_of(9, 8))
        self.assertEqual(len(matched.device_indices), len(tokens))
        first = max(0, len(tokens) - harness.config.window)
        wrong = harness.wrong_kv_planes(tokens, matched.device_indices, swa=False)
        wrong += harness.wrong_kv_planes(tokens, matched.device_indices, first)
        self.assertEqual(wrong, [])
        self.assertTrue(harness.state_is(tokens, cd.value))
        harness.check()

    def assert_nothing_left(self, harness):
        self.assertEqual(harness.cache.ongoing_write_through, {})
        harness.evict_all()
        harness.check()
        self.assertFalse(any(harness.host_used().values()))


@needs_host_copies
class TestStateOfNodeInFlight(InFlightTestCase):
    def backups_of(self, harness, tokens, **kwargs):
        """What the cache copies to the host while it inserts."""
        with harness.recorded_backups() as recorded:
            harness.insert(tokens, **kwargs)
        harness.check()
        return copied_slots(recorded)

    def test_follows_the_leaf_that_it_splits(self):
        """The transfer in flight is of a leaf; the state comes to its upper part."""
        for config in CONFIGS:
            for order in (1, -1):
                with self.subTest(config=str(config), order=order):
                    harness = UnifiedHiCacheHarness(config)
                    with harness.recorded_backups() as recorded:
                        harness.insert(LONG)
                        harness.insert(PREFIX)
                    self.assertEqual(copied_slots(recorded)[-1], {"mamba": 1})
                    self.assert_copied_once(harness, recorded)
                    harness.check()
                    acks = harness.controller.ack_write_queue
                    acks[:] = acks[::order]
                    harness.poll()
                    self.assert_found(harness, PREFIX)
                    self.assert_found(harness, LONG)
                    self.assert_nothing_left(harness)

    def test_follows_each_of_several_splits(self):
        harness = UnifiedHiCacheHarness()
        harness.insert(LONG)
        for length in (16, 4, 12, 8):
            self.assertEqual(self.backups_of(harness, PREFIX[:length]), [{"mamba": 1}])
        harness.poll()
        harness.check()
        for length in (8, 12, 4, 16):
            self.assert_found(harness, PREFIX[:length])
        self.assert_nothing_left(harness)

    def test_follows_the_full_kv_that_its_own_insert_sends(self):
        """The walk crosses the hit count, and only then is the state attached."""
        for config in CONFIGS:
            for threshold in (2, 3):
                config = dataclasses.replace(config, threshold=threshold)
                with self.subTest(config=str(config)):
                    harness = UnifiedHiCacheHarness(config)
                    for i in range(threshold - 1):
                        # Not as long as the window, where SWA would split it off.
                        tail = tokens_of(4 + i, 4)
                        self.assertEqual(self.backups_of(harness, PREFIX + tail), [])
                    with harness.recorded_backups() as recorded:
                        harness.insert(PREFIX)
                    *full, last = copied_slots(recorded)
                    self.assertEqual(last, {"mamba": 1})
                    self.assertEqual(sum(slots["kv"] for slots in full), len(PREFIX))
                    self.assert_copied_once(harness, recorded)
                    harness.check()
                    harness.poll()
                    self.assert_found(harness, PREFIX)
                    self.assert_nothing_left(harness)

    def test_comes_between_two_prefill_chunks(self):
        harness = UnifiedHiCacheHarness()
        harness.insert(LONG)
        self.assertEqual(self.backups_of(harness, PREFIX, chunked=True), [{"mamba": 1}])
        harness.poll()
        self.assert_found(harness, PREFIX)
        self.assert_nothing_left(harness)

    def test_that_is_on_its_way_is_not_sent_again(self):
        harness = UnifiedHiCacheHarness()
        harness.insert(LONG)
        self.assertEqual(self.backups_of(harness, PREFIX), [{"mamba": 1}])
        self.assertEqual(self.backups_of(harness, PREFIX), [])
        self.assertEqual(self.backups_of(harness, LONG), [])
        harness.poll()
        self.assertEqual(self.backups_of(harness, PREFIX), [])
        self.assert_found(harness, PREFIX)
        self.assert_nothing_left(harness)

    def test_is_not_lost_to_an_eviction_before_its_acknowledgement(self):
        harness = UnifiedHiCacheHarness()
        harness.insert(LONG)
        harness.insert(PREFIX)
        with mock.patch.object(harness.cache, "_count_ready_acks", return_value=1):
            harness.cache.writing_check()
        self.assertEqual(len(harness.controller.ack_write_queue), 1)
        harness.evict_device()
        harness.check()
        cd = harness.node(PREFIX).component_data[MAMBA]
        if harness.cache.ongoing_write_through:
            self.assertTrue(harness.state_is(PREFIX, cd.value))
        harness.poll()
        self.assert_found(harness, PREFIX)
        self.assert_nothing_left(harness)


class Scheduler(UnifiedHiCacheHarness):
    def serve_in_two_chunks(self, tokens, chunk, between):
        """Prefill a request's first chunk, do something else, and finish it."""
        req, cached = self.start(tokens)
        assert not cached
        self._forward(req, tokens, chunk)
        self.cache.cache_unfinished_req(req, chunked=True)
        between()
        req.init_next_round_input()
        self._forward(req, tokens, len(tokens))
        release_kv_cache(req, self.cache)


@needs_host_copies
class TestRequests(InFlightTestCase):
    """Requests that share a prefix, in the scheduler's order; the last one, with all
    evicted from the device before, is served the prefix. serve() compares what it
    reuses with the bytes of a cold run."""

    def configs(self, **kwargs):
        for config in (
            CacheConfig(),
            CacheConfig(extra_buffer=True),
            CacheConfig(page_size=4, extra_buffer=True),
            CacheConfig(page_size=4, extra_buffer=True, components=(FULL, SWA, MAMBA)),
            CacheConfig(
                page_size=4,
                extra_buffer=True,
                io_backend="kernel",
                layout="page_first",
            ),
        ):
            yield dataclasses.replace(config, mamba_size=24, **kwargs)

    def leave_state(self, harness):
        """Serve a request that leaves the state of PREFIX."""
        # Without the buffer a state is left where a request ends.
        tail = tokens_of(5, 8) + [7] if harness.config.extra_buffer else []
        harness.serve(PREFIX + tail)

    def assert_served(self, harness):
        harness.poll()
        harness.check()
        harness.evict_device()
        harness.check()
        self.assertEqual(harness.serve(OTHER + [7]), len(PREFIX))
        harness.check()
        harness.poll()
        self.assert_nothing_left(harness)

    def test_back_to_back_with_slow_copies(self):
        for config in self.configs():
            with self.subTest(config=str(config)):
                harness = Scheduler(config)
                with held_backups(harness), harness.recorded_backups() as recorded:
                    harness.serve(LONG + [7])
                    self.leave_state(harness)
                    self.assertGreater(len(harness.cache.ongoing_write_through), 1)
                self.assert_copied_once(harness, recorded)
                self.assert_served(harness)

    def test_that_crosses_the_hit_count(self):
        for config in self.configs(threshold=2):
            with self.subTest(config=str(config)):
                harness = Scheduler(config)
                with harness.recorded_backups() as recorded:
                    harness.serve(PREFIX + tokens_of(4, 4) + [7])
                    self.assertEqual(copied_slots(recorded), [])
                    self.leave_state(harness)
                self.assertEqual(copied_slots(recorded)[-1], {"mamba": 1})
                self.assert_copied_once(harness, recorded)
                self.assert_served(harness)

    def test_between_two_prefill_chunks_of_another(self):
        for config in self.configs():
            with self.subTest(config=str(config)):
                harness = Scheduler(config)
                with harness.recorded_backups() as recorded:
                    harness.serve_in_two_chunks(
                        LONG + tokens_of(6, 8) + [7],
                        len(LONG),
                        lambda: self.leave_state(harness),
                    )
                self.assert_copied_once(harness, recorded)
                self.assert_served(harness)


if __name__ == "__main__":
    unittest.main()
