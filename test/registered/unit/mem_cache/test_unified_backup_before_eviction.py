"""A component state that the host lacks is backed up before eviction drops it.

Of a leaf, before it is demoted; of an internal node, before a walk over the states, or
over the sliding windows above them, or the cap on the states of a path drops it. That
an eviction waits once for its copies is the subject of
test_unified_eviction_waits_once.py.
"""

import contextlib
import dataclasses
import functools
import itertools
import unittest
from unittest import mock

import unified_hicache_harness
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
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=30, suite="base-a-test-cpu")
register_cuda_ci(est_time=30, suite="base-b-test-1-gpu-small")

PREFIX = tokens_of(1, 16)
LONG = PREFIX + tokens_of(2, 8)
LONGER = LONG + tokens_of(4, 8)
OTHER = PREFIX + tokens_of(3, 8)
STATE = {"mamba": 1}
POLICIES = ("write_back", "write_through")


def config_of(policy, **kwargs):
    # With such a window no insert of these tests is cut in two.
    return CacheConfig(write_policy=policy, window=64, **kwargs)


def every_config(policy):
    """Pages, buffers, routes and components of a hybrid model."""
    yield config_of(policy)
    yield config_of(policy, io_backend="kernel", layout="page_first")
    yield config_of(policy, page_size=4, extra_buffer=True)
    yield config_of(policy, components=(FULL, SWA, MAMBA))
    yield config_of(
        policy, components=(FULL, SWA, MAMBA), page_size=4, extra_buffer=True
    )


@contextlib.contextmanager
def at_most(harness, count=12):
    """Let a walk that does not come to an end fail after so many tries to copy."""
    execute, tries = harness.cache._execute_and_commit_kv_backup, []

    def counted(*args, **kwargs):
        tries.append(args)
        assert len(tries) <= count, "the walk asks for the same copies again"
        return execute(*args, **kwargs)

    with mock.patch.object(harness.cache, "_execute_and_commit_kv_backup", counted):
        yield


def evict(harness, ct, count=EVERYTHING):
    """Evict what one component can, and return what was copied to the host."""
    field = {FULL: "num_tokens", SWA: "swa_num_tokens", MAMBA: "mamba_num"}[ct]
    with harness.recorded_backups() as recorded, at_most(harness):
        harness.cache.evict(EvictParams(**{field: count}))
    return copied_slots(recorded)


def whole(config, tokens):
    """What a backup of a node of so many tokens copies, as copied_slots() says it."""
    swa = {"swa": tokens} if config.has_swa else {}
    return {"kv": tokens, **swa, "mamba": 1}


def take_all(pool, but=0):
    """Take all slots of a host pool but some."""
    return pool.alloc(pool.available_size() - but)


def insert_refused(harness, tokens, ct=MAMBA):
    """Insert while one host pool has no room, so that nothing is backed up."""
    taken = take_all(harness.host_pools[ct])
    with harness.recorded_backups() as recorded:
        harness.insert(tokens)
    assert copied_slots(recorded) == []
    harness.host_pools[ct].free(taken)


def state_on_device_only(config, leaf):
    """A harness in which the Full KV of PREFIX is on both tiers and its state on the
    device only. The tail of LONG is on the host, and on the device too unless PREFIX is
    to be a leaf there."""
    harness = UnifiedHiCacheHarness(config)
    harness.insert(LONG)
    if config.write_policy == "write_back":
        # An insert backs nothing up, so the new state stays where it is.
        harness.evict_device()
        harness.load_back(LONG)
        harness.insert(PREFIX)
    else:
        harness.poll()
        insert_refused(harness, PREFIX)
    harness.insert(LONG)  # so that the state of PREFIX is the oldest
    if leaf:
        assert evict(harness, FULL, 8) == []
    node = harness.node(PREFIX)
    assert node.backuped and node.component_data[MAMBA].host_value is None
    assert node.component_data[MAMBA].value is not None
    assert harness.node(LONG).evicted == leaf
    return harness, node


@contextlib.contextmanager
def waits(harness):
    """A list that grows with each wait for copies in flight."""
    waited, writing_check = [], harness.cache.writing_check

    def check(*args, **kwargs):
        if kwargs.get("write_back") and harness.controller.ack_write_queue:
            waited.append(len(harness.controller.ack_write_queue))
        writing_check(*args, **kwargs)

    with mock.patch.object(harness.cache, "writing_check", check):
        yield waited


class EvictionCase(CustomTestCase):
    def assert_state(self, harness, tokens, device, host):
        """Where the state after the tokens is; on the host it has the right bytes."""
        cd = harness.node(tokens).component_data[MAMBA]
        self.assertEqual(
            (cd.value is not None, cd.host_value is not None), (device, host)
        )
        if host:
            self.assertTrue(harness.host_state_is(tokens, cd.host_value))

    def assert_served(self, harness, tokens, length, seed=9):
        """A request finds so many of the tokens; serve() compares their bytes."""
        page = harness.config.page_size
        with at_most(harness, 50):
            cached = harness.serve(tokens + tokens_of(seed, page + 1))
        self.assertEqual(cached, length)
        harness.poll()
        harness.check()

    def assert_all_free(self, harness):
        harness.poll()
        harness.check()
        with at_most(harness, 50):
            harness.evict_all()
        harness.check()
        self.assertEqual(
            harness.host_used(), dict.fromkeys(harness.config.components, 0)
        )
        self.assertEqual(len(harness.core._collect_all_nodes()), 1)


@needs_host_copies
class TestStateOfLeaf(EvictionCase):
    """The Full KV of the leaf is on the host, its state is not."""

    def test_is_saved_alone(self):
        for policy in POLICIES:
            for config in every_config(policy):
                for ct in config.components:
                    with self.subTest(config=str(config), evict=ct):
                        harness, node = state_on_device_only(config, leaf=True)
                        used = harness.host_used()
                        self.assertEqual(evict(harness, ct), [STATE])
                        used[MAMBA] += 1
                        self.assertEqual(harness.host_used(), used)
                        self.assertTrue(node.evicted)
                        self.assert_state(harness, PREFIX, device=False, host=True)
                        harness.check()
                        self.assert_served(harness, OTHER, len(PREFIX))
                        self.assert_all_free(harness)

    def test_is_saved_in_place_of_an_older_one(self):
        for policy in POLICIES:
            with self.subTest(policy=policy):
                harness, node = state_on_device_only(config_of(policy), leaf=True)
                pool = harness.host_pools[MAMBA]
                taken = take_all(pool)
                self.assertEqual(evict(harness, FULL), [STATE])
                self.assertTrue(node.evicted)
                self.assert_state(harness, PREFIX, device=False, host=True)
                pool.free(taken)
                harness.check()
                self.assertIsNone(harness.node(LONG))
                self.assert_served(harness, OTHER, len(PREFIX))
                self.assert_all_free(harness)

    def without_room(self, harness):
        """Take the host's room for states, down to the last that it could evict."""
        harness.cache.evict_host(EVERYTHING, MAMBA)
        return take_all(harness.host_pools[MAMBA])

    def test_is_dropped_where_the_host_has_no_room(self):
        for policy in POLICIES:
            for config in every_config(policy):
                for ct in config.components:
                    with self.subTest(config=str(config), evict=ct):
                        harness, node = state_on_device_only(config, leaf=True)
                        taken = self.without_room(harness)
                        with self.assertNoLogs("sglang.srt.mem_cache", "WARNING"):
                            self.assertEqual(evict(harness, ct), [])
                        self.assertTrue(node.evicted)
                        self.assert_state(harness, PREFIX, device=False, host=False)
                        harness.host_pools[MAMBA].free(taken)
                        harness.check()
                        # The next state there finds room.
                        harness.insert(PREFIX)
                        harness.poll()
                        evict(harness, ct)
                        self.assert_state(harness, PREFIX, device=False, host=True)
                        self.assert_served(harness, OTHER, len(PREFIX))
                        self.assert_all_free(harness)

    def test_is_not_copied_again(self):
        for policy in POLICIES:
            with self.subTest(policy=policy):
                harness, node = state_on_device_only(config_of(policy), leaf=True)
                evict(harness, FULL)
                harness.load_back(PREFIX)
                self.assertFalse(node.evicted)
                self.assertEqual(evict(harness, FULL), [])
                self.assertTrue(node.evicted)
                self.assert_served(harness, OTHER, len(PREFIX))

    def test_without_a_state_is_demoted_as_before(self):
        """A split left the upper part of a node without a state."""
        harness = UnifiedHiCacheHarness(config_of("write_back"))
        harness.insert(LONG)
        harness.insert(OTHER)
        self.assertEqual(
            evict(harness, FULL), [whole(harness.config, 8)] * 2 + [{"kv": 16}]
        )
        harness.load_back(LONG)
        self.assertEqual(evict(harness, FULL), [])
        self.assert_served(harness, LONG, len(LONG))
        self.assert_all_free(harness)


@needs_host_copies
class TestRefusedLeaf(EvictionCase):
    """Write-through, and the host had no room for the leaf as a whole."""

    def refused(self, *paths, **kwargs):
        config = config_of("write_through", **kwargs)
        harness = UnifiedHiCacheHarness(config)
        for tokens in paths:
            insert_refused(harness, tokens, FULL)
        return harness

    def test_is_saved_if_there_is_room_now(self):
        for config in every_config("write_through"):
            for ct in config.components:
                with self.subTest(config=str(config), evict=ct):
                    harness = UnifiedHiCacheHarness(config)
                    insert_refused(harness, PREFIX, FULL)
                    self.assertEqual(evict(harness, ct), [whole(config, 16)])
                    self.assertTrue(harness.node(PREFIX).evicted)
                    self.assert_state(harness, PREFIX, device=False, host=True)
                    harness.check()
                    self.assert_served(harness, OTHER, len(PREFIX))
                    self.assert_all_free(harness)

    def test_follows_its_ancestors(self):
        harness = self.refused(PREFIX, LONG)
        config = harness.config
        self.assertEqual(evict(harness, FULL, 8), [whole(config, 16), whole(config, 8)])
        self.assertTrue(harness.node(LONG).evicted)
        self.assertFalse(harness.node(PREFIX).evicted)
        harness.check()
        self.assertEqual(evict(harness, FULL), [])
        for tokens in (PREFIX, LONG):
            self.assert_state(harness, tokens, device=False, host=True)
            self.assert_served(harness, tokens, len(tokens))
        self.assert_all_free(harness)

    def test_is_deleted_if_there_is_room_for_its_ancestors_only(self):
        harness = self.refused(PREFIX, LONG)
        pool = harness.host_pools[FULL]
        taken = take_all(pool, but=20)
        with self.assertNoLogs("sglang.srt.mem_cache", "WARNING"):
            self.assertEqual(evict(harness, FULL), [whole(harness.config, 16)])
        self.assertIsNone(harness.node(LONG))
        self.assert_state(harness, PREFIX, device=False, host=True)
        pool.free(taken)
        harness.check()
        self.assert_served(harness, LONG, len(PREFIX))
        self.assert_all_free(harness)

    def test_its_ancestors_are_on_the_host_after_it_was_deleted(self):
        harness = self.refused(PREFIX, LONG)
        pool = harness.host_pools[FULL]
        taken = take_all(pool, but=20)
        self.assertEqual(evict(harness, FULL, 8), [whole(harness.config, 16)])
        self.assertIsNone(harness.node(LONG))
        self.assert_state(harness, PREFIX, device=True, host=True)
        pool.free(taken)
        harness.check()
        self.assertEqual(evict(harness, FULL), [])
        self.assert_served(harness, LONG, len(PREFIX))
        self.assert_all_free(harness)

    def test_is_deleted_if_there_is_no_room(self):
        for ct in (FULL, MAMBA):
            with self.subTest(full_pool=ct):
                harness = self.refused(PREFIX, LONG, tokens_of(3, 8))
                pool = harness.host_pools[ct]
                taken = take_all(pool)
                with self.assertNoLogs("sglang.srt.mem_cache", "WARNING"):
                    self.assertEqual(evict(harness, FULL), [])
                pool.free(taken)
                harness.check()
                self.assertEqual(len(harness.core._collect_all_nodes()), 1)
                self.assert_all_free(harness)

    def test_below_its_hit_threshold_is_deleted_as_before(self):
        harness = UnifiedHiCacheHarness(config_of("write_through", threshold=3))
        harness.insert(PREFIX)
        harness.insert(LONG)
        with self.assertNoLogs("sglang.srt.mem_cache", "WARNING"):
            self.assertEqual(evict(harness, FULL), [])
        harness.check()
        self.assertEqual(len(harness.core._collect_all_nodes()), 1)

    def test_of_write_back_is_dropped_with_a_warning(self):
        harness = UnifiedHiCacheHarness(config_of("write_back"))
        harness.insert(PREFIX)
        pool = harness.host_pools[MAMBA]
        taken = take_all(pool)
        with self.assertLogs("sglang.srt.mem_cache", "WARNING") as logs:
            self.assertEqual(evict(harness, FULL), [])
        self.assertIn("KV subtree dropped without backup", "".join(logs.output))
        pool.free(taken)
        harness.check()
        self.assertIsNone(harness.node(PREFIX))


def oldest_in_the_middle(config):
    """A harness with the nodes PREFIX, LONG and LONGER on the device, and none of them on
    the host. The state of LONG is the oldest."""
    harness = UnifiedHiCacheHarness(config)
    with harness.recorded_backups() as recorded:
        for tokens in (LONG, PREFIX, LONGER):
            harness.insert(tokens)
    assert copied_slots(recorded) == []
    return harness


@needs_host_copies
class TestStateOfInternalNode(EvictionCase):
    """The node has a child on the device, and its Full KV stays there."""

    def assert_dropped_from_device(self, harness, tokens, saved):
        """The node has lost its device state, and that alone."""
        node = harness.node(tokens)
        self.assertFalse(node.evicted)
        self.assert_state(harness, tokens, device=False, host=saved)
        harness.check()

    def test_is_saved_alone_where_full_is_on_host(self):
        for policy in POLICIES:
            for config in every_config(policy):
                with self.subTest(config=str(config)):
                    harness, _ = state_on_device_only(config, leaf=False)
                    used = harness.host_used()
                    self.assertEqual(evict(harness, MAMBA, 1), [STATE])
                    used[MAMBA] += 1
                    self.assertEqual(harness.host_used(), used)
                    self.assert_dropped_from_device(harness, PREFIX, saved=True)
                    self.assert_state(harness, LONG, device=True, host=True)
                    self.assert_served(harness, OTHER, len(PREFIX))
                    harness.evict_device()
                    self.assert_served(harness, OTHER, len(PREFIX), seed=8)
                    self.assert_all_free(harness)

    def test_is_saved_with_its_node_and_no_other_by_write_back(self):
        for config in every_config("write_back"):
            with self.subTest(config=str(config)):
                harness = oldest_in_the_middle(config)
                self.assertEqual(evict(harness, MAMBA, 1), [whole(config, 8)])
                self.assert_dropped_from_device(harness, LONG, saved=True)
                self.assertFalse(harness.node(PREFIX).backuped)
                # Its node is on the host now, and is not copied again.
                self.assertEqual(
                    evict(harness, FULL), [whole(config, 8), whole(config, 16)]
                )
                for tokens in (LONG, PREFIX, LONGER):
                    self.assert_served(harness, tokens, len(tokens))
                self.assert_all_free(harness)

    def test_is_dropped_below_the_hit_threshold_of_write_through(self):
        for config in every_config("write_through"):
            with self.subTest(config=str(config)):
                config = dataclasses.replace(config, threshold=9)
                harness = oldest_in_the_middle(config)
                self.assertEqual(evict(harness, MAMBA, 1), [])
                self.assert_dropped_from_device(harness, LONG, saved=False)
                self.assertFalse(harness.node(LONG).backuped)
                self.assert_all_free(harness)

    def test_is_saved_with_its_path_if_write_through_was_refused(self):
        config = config_of("write_through")
        harness = UnifiedHiCacheHarness(config)
        for tokens in (LONG, PREFIX, LONGER):
            insert_refused(harness, tokens, FULL)
        self.assertEqual(
            evict(harness, MAMBA, 1), [whole(config, 16), whole(config, 8)]
        )
        self.assert_dropped_from_device(harness, LONG, saved=True)
        self.assert_state(harness, PREFIX, device=True, host=True)
        for tokens in (LONG, PREFIX):
            self.assert_served(harness, tokens, len(tokens))
        self.assert_all_free(harness)

    def test_is_dropped_where_the_host_has_no_room(self):
        """The walk goes on, and gets all that it was asked for."""
        for policy, full_pool in itertools.product(POLICIES, (FULL, MAMBA)):
            for ct in (SWA, MAMBA):
                config = config_of(policy, components=(FULL, SWA, MAMBA))
                with self.subTest(config=str(config), evict=ct, full_pool=full_pool):
                    harness = UnifiedHiCacheHarness(config)
                    taken = take_all(harness.host_pools[full_pool])
                    for tokens in (LONG, PREFIX, LONGER):
                        harness.insert(tokens)
                    harness.poll()
                    field = "mamba_num" if ct is MAMBA else "swa_num_tokens"
                    with at_most(harness):
                        result = harness.cache.evict(EvictParams(**{field: EVERYTHING}))
                    self.assertEqual(result.mamba_num_evicted, 3)
                    self.assertEqual(len(harness.held(MAMBA, host=False)), 0)
                    self.assertEqual(len(harness.held(MAMBA, host=True)), 0)
                    harness.host_pools[full_pool].free(taken)
                    harness.check()
                    self.assert_all_free(harness)

    def test_next_state_is_saved_after_one_was_dropped(self):
        for policy in POLICIES:
            with self.subTest(policy=policy):
                config = config_of(policy, components=(FULL, SWA, MAMBA))
                harness, _ = state_on_device_only(config, leaf=False)
                pool = harness.host_pools[MAMBA]
                taken = take_all(pool)
                self.assertEqual(evict(harness, MAMBA, 1), [])
                pool.free(taken)
                self.assert_dropped_from_device(harness, PREFIX, saved=False)
                insert_refused(harness, PREFIX)
                harness.insert(LONG)
                self.assertEqual(evict(harness, MAMBA, 1), [STATE])
                self.assert_dropped_from_device(harness, PREFIX, saved=True)
                self.assert_served(harness, OTHER, len(PREFIX))
                self.assert_all_free(harness)

    def test_gives_what_was_asked_for(self):
        for count in (1, 2, 3):
            with self.subTest(count=count):
                harness = oldest_in_the_middle(config_of("write_back"))
                before = harness.device_available()[MAMBA]
                with waits(harness) as waited, at_most(harness):
                    result = harness.cache.evict(EvictParams(mamba_num=count))
                self.assertEqual(len(waited), 1)
                self.assertEqual(result.mamba_num_evicted, count)
                self.assertEqual(harness.device_available()[MAMBA], before + count)
                harness.check()
                for tokens in (LONG, PREFIX, LONGER):
                    self.assert_served(harness, tokens, len(tokens))
                self.assert_all_free(harness)

    def test_is_saved_below_a_running_request(self):
        """The request locks the Full KV of the path, and the state at its end."""
        for full_on_host in (False, True):
            with self.subTest(full_on_host=full_on_host):
                config = config_of("write_back")
                if full_on_host:
                    harness, _ = state_on_device_only(config, leaf=False)
                else:
                    harness = UnifiedHiCacheHarness(config)
                    harness.insert(PREFIX)
                    harness.insert(LONG)
                tokens = LONG + tokens_of(5, 4)
                req, cached = harness.start(tokens)
                self.assertEqual(cached, len(LONG))
                copies = [STATE] if full_on_host else [whole(config, 16)]
                self.assertEqual(evict(harness, MAMBA), copies)
                self.assert_state(harness, PREFIX, device=False, host=True)
                self.assertIsNotNone(harness.node(LONG).component_data[MAMBA].value)
                harness._forward(req, tokens, len(tokens))
                release_kv_cache(req, harness.cache)
                self.assert_served(harness, OTHER, len(PREFIX))
                self.assert_served(harness, tokens, len(tokens))
                self.assert_all_free(harness)


@needs_host_copies
class TestStateBelowAWindow(EvictionCase):
    """A node that loses its sliding window loses its state as well."""

    def config(self, policy, **kwargs):
        return config_of(policy, components=(FULL, SWA, MAMBA), **kwargs)

    def assert_window_dropped(self, harness, tokens, saved):
        node = harness.node(tokens)
        self.assertFalse(node.evicted)
        self.assertIsNone(node.component_data[SWA].value)
        self.assert_state(harness, tokens, device=False, host=saved)
        harness.check()

    def test_is_saved_alone_where_full_is_on_host(self):
        for policy in POLICIES:
            with self.subTest(policy=policy):
                harness, _ = state_on_device_only(self.config(policy), leaf=False)
                self.assertEqual(evict(harness, SWA, 1), [STATE])
                self.assert_window_dropped(harness, PREFIX, saved=True)
                self.assert_served(harness, OTHER, len(PREFIX))
                self.assert_all_free(harness)

    def test_is_saved_with_its_node_by_write_back(self):
        config = self.config("write_back")
        harness = UnifiedHiCacheHarness(config)
        harness.insert(PREFIX)
        harness.insert(LONG)
        self.assertEqual(evict(harness, SWA, 1), [whole(config, 16)])
        self.assert_window_dropped(harness, PREFIX, saved=True)
        self.assertEqual(evict(harness, FULL), [whole(config, 8)])
        for tokens in (PREFIX, LONG):
            self.assert_served(harness, tokens, len(tokens))
        self.assert_all_free(harness)

    def test_is_dropped_below_the_hit_threshold_of_write_through(self):
        harness = UnifiedHiCacheHarness(self.config("write_through", threshold=9))
        harness.insert(PREFIX)
        harness.insert(LONG)
        self.assertEqual(evict(harness, SWA, 1), [])
        self.assert_window_dropped(harness, PREFIX, saved=False)

    def test_window_without_a_state_is_dropped_as_before(self):
        for policy in POLICIES:
            with self.subTest(policy=policy):
                harness = UnifiedHiCacheHarness(self.config(policy, threshold=9))
                harness.insert(LONG)
                harness.insert(OTHER)
                # LONG's tail is older, and PREFIX comes next.
                leaf = [whole(harness.config, 8)] * (policy == "write_back")
                self.assertEqual(evict(harness, SWA, 9), leaf)
                self.assert_window_dropped(harness, PREFIX, saved=False)


@needs_host_copies
class TestCapOnTheStatesOfAPath(EvictionCase):
    """--mamba-max-states-per-path: an insert drops the states above its own."""

    def insert(self, harness, tokens, cap=0):
        """Insert, and return what was copied to the host."""
        harness.cache.components[MAMBA].mamba_max_states_per_path = cap
        with harness.recorded_backups() as recorded:
            harness.insert(tokens)
        return copied_slots(recorded)

    def test_full_is_on_host(self):
        for policy in POLICIES:
            for config in every_config(policy):
                with self.subTest(config=str(config)):
                    harness, _ = state_on_device_only(config, leaf=False)
                    own = [] if policy == "write_back" else [whole(config, 8)]
                    with waits(harness) as waited:
                        self.assertEqual(self.insert(harness, LONGER), [STATE] + own)
                    self.assertEqual(len(waited), 1)
                    self.assert_state(harness, PREFIX, device=False, host=True)
                    self.assert_state(harness, LONG, device=False, host=True)
                    harness.check()
                    self.assert_served(harness, OTHER, len(PREFIX))
                    self.assert_all_free(harness)

    def test_full_is_not_on_host(self):
        """Each node is copied whole, without those above it, and all copies are waited
        for together."""
        config = config_of("write_back")
        for cap, copies, kept in (
            (-1, [], (PREFIX, LONG)),
            (0, [whole(config, 16), whole(config, 8)], ()),
            (2, [whole(config, 16)], (LONG,)),
            (3, [], (PREFIX, LONG)),
        ):
            with self.subTest(cap=cap):
                harness = UnifiedHiCacheHarness(config)
                harness.insert(PREFIX)
                harness.insert(LONG)
                before = harness.device_available()[MAMBA]
                with waits(harness) as waited:
                    self.assertEqual(self.insert(harness, LONGER, cap), copies)
                self.assertEqual(len(waited), min(1, len(copies)))
                for tokens in (PREFIX, LONG):
                    device = tokens in kept
                    self.assert_state(harness, tokens, device=device, host=not device)
                self.assertEqual(
                    harness.device_available()[MAMBA], before + 1 - len(kept)
                )
                harness.check()
                harness.evict_device()
                for tokens in (PREFIX, LONG, LONGER):
                    self.assert_served(harness, tokens, len(tokens))
                self.assert_all_free(harness)

    def test_below_the_hit_threshold_of_write_through(self):
        harness = UnifiedHiCacheHarness(config_of("write_through", threshold=9))
        harness.insert(PREFIX)
        self.assertEqual(self.insert(harness, LONG), [])
        self.assert_state(harness, PREFIX, device=False, host=False)
        self.assert_all_free(harness)

    def test_host_without_room(self):
        for policy in POLICIES:
            with self.subTest(policy=policy):
                harness, _ = state_on_device_only(config_of(policy), leaf=False)
                pool = harness.host_pools[MAMBA]
                taken = take_all(pool)
                # LONG's host copy is a sole one now, and gives way to LONGER's.
                own = [] if policy == "write_back" else [whole(harness.config, 8)]
                self.assertEqual(self.insert(harness, LONGER), own)
                self.assert_state(harness, PREFIX, device=False, host=False)
                pool.free(taken)
                self.assert_all_free(harness)


@needs_host_copies
class TestSessions(EvictionCase):
    """With --enable-session-radix-cache the walks use another cursor."""

    def harness(self, config):
        params = functools.partial(CacheInitParams, enable_session_radix_cache=True)
        with mock.patch.object(unified_hicache_harness, "CacheInitParams", params):
            return UnifiedHiCacheHarness(config)

    def test_internal_nodes(self):
        for components, ct in (
            ((FULL, MAMBA), MAMBA),
            ((FULL, SWA, MAMBA), MAMBA),
            ((FULL, SWA, MAMBA), SWA),
        ):
            config = config_of("write_back", components=components)
            for room in (True, False):
                with self.subTest(config=str(config), evict=ct, room=room):
                    harness = self.harness(config)
                    for tokens in (PREFIX, LONG, LONGER):
                        harness.insert(tokens)
                    pool = harness.host_pools[MAMBA]
                    taken = pool.alloc(0) if room else take_all(pool)
                    with waits(harness) as waited:
                        copies = evict(harness, ct)
                    sizes = (16, 8, 8) if room else ()
                    self.assertEqual(copies, [whole(config, n) for n in sizes])
                    self.assertEqual(len(waited), int(room))
                    self.assertEqual(len(harness.held(MAMBA, host=False)), 0)
                    pool.free(taken)
                    harness.check()
                    for tokens in (PREFIX, LONG, LONGER):
                        self.assert_served(harness, tokens, len(tokens) * room)
                    self.assert_all_free(harness)

    def test_leaf_that_a_session_keeps_on_the_device(self):
        """It is no leaf to the walk over states: it loses its state alone."""
        config = config_of("write_back")
        for room in (True, False):
            with self.subTest(room=room):
                harness = self.harness(config)
                harness.insert(PREFIX)
                node = harness.node(PREFIX)
                harness.cache.components[FULL].register_session_leaf("session", node)
                pool = harness.host_pools[MAMBA]
                taken = pool.alloc(0) if room else take_all(pool)
                self.assertEqual(evict(harness, MAMBA), [whole(config, 16)] * room)
                self.assertFalse(node.evicted)
                self.assert_state(harness, PREFIX, device=False, host=room)
                pool.free(taken)
                harness.check()
                self.assert_served(harness, OTHER, len(PREFIX) * room)
                self.assert_all_free(harness)


@needs_host_copies
class TestDeepConversation(EvictionCase):
    """Each turn leaves its state at its end; the device has slots for a few of them."""

    def test_every_turn_is_found_again(self):
        for policy in POLICIES:
            for page_size, components in (
                (1, (FULL, MAMBA)),
                (4, (FULL, MAMBA)),
                (1, (FULL, SWA, MAMBA)),
            ):
                config = config_of(
                    policy,
                    page_size=page_size,
                    extra_buffer=page_size > 1,
                    components=components,
                    mamba_size=5,
                )
                with self.subTest(config=str(config)):
                    harness = UnifiedHiCacheHarness(config)
                    conversation, turns = tokens_of(1, 80), range(8, 81, 8)
                    for end in turns:
                        with at_most(harness, 50):
                            harness.serve(conversation[:end])
                        harness.poll()
                        harness.check()
                    for end in turns:
                        self.assert_served(harness, conversation[:end], end, seed=end)
                    self.assert_all_free(harness)


if __name__ == "__main__":
    unittest.main()
