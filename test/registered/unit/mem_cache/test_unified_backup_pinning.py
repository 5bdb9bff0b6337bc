"""A backup of a component alone keeps nothing from eviction; who evicts it waits.

As long as a component of a node is locked, eviction cannot pass the node, so that all
of its path would have to count as protected for the sake of one state.
"""

import random
import unittest
from unittest import mock

from unified_hicache_harness import (
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

from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=15, suite="base-a-test-cpu")
register_cuda_ci(est_time=15, suite="base-b-test-1-gpu-small")

HYBRID = ((FULL, MAMBA), (FULL, SWA, MAMBA))
STATE = {"mamba": 1}


def evictable(harness):
    core = harness.core
    return {ct: core.component_evictable_size_[ct] for ct in harness.config.components}


def protected(harness):
    core = harness.core
    return {ct: core.component_protected_size_[ct] for ct in harness.config.components}


def evict_everything(harness):
    """Evict all that can be; what was freed of each component."""
    result = harness.cache.evict(
        EvictParams(
            num_tokens=EVERYTHING, swa_num_tokens=EVERYTHING, mamba_num=EVERYTHING
        )
    )
    freed = {
        FULL: result.num_tokens_evicted,
        SWA: result.swa_num_tokens_evicted,
        MAMBA: result.mamba_num_evicted,
    }
    return {ct: freed[ct] for ct in harness.config.components}


def with_states_in_flight(config, prefixes, suffix):
    """A harness in which the host has each prefix's KV, and now gets its state."""
    harness = UnifiedHiCacheHarness(config)
    for seed, prefix in enumerate(prefixes):
        harness.insert(prefix + tokens_of(500 + seed, suffix))
    harness.poll()
    with harness.recorded_backups() as recorded:
        for prefix in prefixes:
            harness.insert(prefix)
    assert copied_slots(recorded) == [STATE] * len(prefixes)
    return harness


@needs_host_copies
class TestNothingIsPinned(CustomTestCase):
    def assert_all_goes(self, harness):
        """Evicting everything frees what was announced, which is all there is."""
        all_of_it = {
            ct: len(harness.held(ct, host=False)) for ct in harness.config.components
        }
        self.assertEqual(protected(harness), dict.fromkeys(all_of_it, 0))
        self.assertEqual(evictable(harness), all_of_it)
        self.assertEqual(evict_everything(harness), all_of_it)
        harness.check()
        harness.poll()
        harness.check()
        self.assertFalse(harness.cache.ongoing_write_through)
        self.assertEqual(protected(harness), dict.fromkeys(all_of_it, 0))

    def assert_states_on_host(self, harness, prefixes):
        for prefix in prefixes:
            cd = harness.node(prefix).component_data[MAMBA]
            self.assertTrue(harness.host_state_is(prefix, cd.host_value))

    def test_ten_long_prefixes(self):
        for components in HYBRID:
            with self.subTest(components=components):
                config = CacheConfig(
                    components=components,
                    page_size=64,
                    extra_buffer=True,
                    kv_size=16_384,
                    mamba_size=24,
                    window=128,
                )
                prefixes = [tokens_of(seed + 1, 640) for seed in range(10)]
                harness = with_states_in_flight(config, prefixes, suffix=64)
                self.assertEqual(evictable(harness)[FULL], 10 * (640 + 64))
                self.assert_all_goes(harness)
                self.assert_states_on_host(harness, prefixes)

    def test_states_at_random_places(self):
        """Some on one path, some beside it; some nodes split while in flight."""
        for components in HYBRID:
            for seed in range(6):
                with self.subTest(components=components, seed=seed):
                    rng = random.Random(seed)
                    harness = UnifiedHiCacheHarness(CacheConfig(components=components))
                    paths = [tokens_of(rng.randint(1, 2), 24) for _ in range(3)]
                    paths = [path + tokens_of(9 + i, 8) for i, path in enumerate(paths)]
                    for path in paths:
                        harness.insert(path)
                        harness.poll()
                    ends = [rng.randint(1, 31) for _ in paths]
                    for path, end in zip(paths, ends):
                        harness.insert(path[:end])
                        harness.match(path[: rng.randint(1, end)])
                    self.assertTrue(harness.cache.ongoing_write_through)
                    self.assert_all_goes(harness)
                    self.assert_states_on_host(
                        harness, [path[:end] for path, end in zip(paths, ends)]
                    )

    def test_the_transfer_of_its_whole_node_still_locks_it(self):
        for components in HYBRID:
            with self.subTest(components=components):
                config = CacheConfig(components=components, window=64)
                harness = UnifiedHiCacheHarness(config)
                prefix = tokens_of(1, 16)
                harness.insert(prefix + tokens_of(2, 8))
                harness.insert(prefix)
                self.assertEqual(len(harness.cache.ongoing_write_through), 2)
                node = harness.node(prefix + tokens_of(2, 8))
                for locked in (node, node.parent):
                    self.assertEqual(locked.component_data[FULL].lock_ref, 1)
                announced = evictable(harness)
                self.assertEqual(announced[MAMBA], 1)
                self.assertEqual(announced[FULL], 0)
                self.assertEqual(evict_everything(harness), announced)
                harness.poll()
                harness.check()
                self.assertEqual(protected(harness), dict.fromkeys(components, 0))


class Watched:
    """The event behind a copy: it is complete once somebody has waited for it."""

    def __init__(self, event, log):
        self.event, self.log = event, log
        self.waited_for = False

    def query(self):
        return self.waited_for

    def synchronize(self):
        self.event.synchronize()
        self.log.append("wait")
        self.waited_for = True


def watch_newest_copy(harness, log):
    queue = harness.controller.ack_write_queue
    queue[-1] = queue[-1]._replace(finish_event=Watched(queue[-1].finish_event, log))


@needs_host_copies
class TestEvictionWaits(CustomTestCase):
    """The state's slot is not free for others before its copy has been made."""

    PREFIX, SUFFIX = tokens_of(1, 16), tokens_of(2, 8)

    def in_flight(self, components):
        """A harness with PREFIX's state in flight, and the log of waits and frees."""
        harness = UnifiedHiCacheHarness(CacheConfig(components=components))
        harness.insert(self.PREFIX + self.SUFFIX)
        harness.poll()
        harness.insert(self.PREFIX)
        self.assertEqual(len(harness.cache.ongoing_write_through), 1)
        log = []
        watch_newest_copy(harness, log)
        return harness, log

    def watched_frees(self, harness, log):
        slot = int(harness.node(self.PREFIX).component_data[MAMBA].value)
        allocator = harness.req_to_token_pool.mamba_allocator
        free = allocator.free

        def watched(freed):
            if slot in freed.tolist():
                log.append("free")
            free(freed)

        return mock.patch.object(allocator, "free", watched)

    def assert_waits(self, evict, expected):
        for components in HYBRID:
            with self.subTest(components=components):
                harness, log = self.in_flight(components)
                with self.watched_frees(harness, log):
                    evict(harness)
                self.assertEqual(log, expected)
                harness.check()
                harness.poll()
                harness.check()
                node = harness.node(self.PREFIX)
                self.assertIsNone(node.component_data[MAMBA].value)
                self.assertTrue(
                    harness.host_state_is(
                        self.PREFIX, node.component_data[MAMBA].host_value
                    )
                )

    def test_for_the_state_of_an_internal_node(self):
        self.assert_waits(lambda harness: harness.evict_states(), ["wait", "free"])

    def test_for_the_state_of_a_leaf(self):
        self.assert_waits(lambda harness: harness.evict_device(), ["wait", "free"])

    def test_only_if_it_takes_that_state(self):
        harness, log = self.in_flight((FULL, MAMBA))
        with self.watched_frees(harness, log):
            harness.cache.evict(EvictParams(num_tokens=len(self.SUFFIX)))
            self.assertEqual(log, [])
            self.assertTrue(harness.cache.ongoing_write_through)
            harness.cache.evict(EvictParams(num_tokens=1))
        self.assertEqual(log, ["wait", "free"])
        harness.check()

    def test_but_not_the_cap_on_the_states_of_a_path(self):
        """It is a soft one, and passes over a state in flight, as over a locked one."""
        for components in HYBRID:
            with self.subTest(components=components):
                harness, log = self.in_flight(components)
                self.assertEqual(protected(harness), dict.fromkeys(components, 0))
                harness.cache.components[MAMBA].mamba_max_states_per_path = 1
                path = self.PREFIX + self.SUFFIX
                harness.insert(path + tokens_of(3, 8))
                self.assertEqual(log, [])
                for tokens, kept in ((self.PREFIX, True), (path, False)):
                    state = harness.node(tokens).component_data[MAMBA]
                    self.assertEqual(state.value is not None, kept)
                    self.assertTrue(harness.host_state_is(tokens, state.host_value))
                harness.check()
                harness.controller.ack_write_queue[0].finish_event.synchronize()
                harness.poll()
                harness.insert(path + tokens_of(3, 16))
                self.assertIsNone(harness.node(self.PREFIX).component_data[MAMBA].value)
                harness.check()

    def test_for_a_node_that_is_gone_when_its_acknowledgement_comes(self):
        """The rescue of two other states takes all room that the host has for some."""
        harness, log = self.in_flight((FULL, MAMBA))
        pool = harness.host_pools[MAMBA]
        taken = pool.alloc(pool.available_size())
        others = [tokens_of(seed, 8) for seed in (7, 8)]
        for other in others:
            harness.insert(other)
            self.assertFalse(harness.node(other).backuped)
        harness.evict_device()
        self.assertEqual(log, ["wait"])
        self.assertIsNone(harness.node(self.PREFIX))
        self.assertFalse(harness.cache.ongoing_write_through)
        for other in others:
            host_value = harness.node(other).component_data[MAMBA].host_value
            self.assertTrue(harness.host_state_is(other, host_value))
        pool.free(taken)
        harness.check()


if __name__ == "__main__":
    unittest.main()
