"""A backup that the host had no room for is done once there is room.

Room appears in two ways: slots of a host pool become free, or what lies on the host
lets go of its device copy, so that it may give way.
"""

import unittest
from array import array
from unittest import mock

import torch
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

from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=20, suite="base-a-test-cpu")
register_cuda_ci(est_time=20, suite="base-b-test-1-gpu-small")

PREFIX = tokens_of(1, 16)
LONG = PREFIX + tokens_of(2, 8)
OTHER = PREFIX + tokens_of(3, 8)
STATE = [{"mamba": 1}]
CONFIGS = (
    CacheConfig(),
    CacheConfig(components=(FULL, SWA, MAMBA)),
    CacheConfig(page_size=4, extra_buffer=True),
    CacheConfig(io_backend="kernel", layout="page_first"),
)


class Harness(UnifiedHiCacheHarness):
    """With host slots that somebody else has taken."""

    def __init__(self, config=CacheConfig()):
        super().__init__(config)
        none = torch.empty(0, dtype=torch.int64)
        self.taken = dict.fromkeys(config.components, none)

    def take(self, ct, leave=0):
        """Take all free host slots of one pool but ``leave``."""
        pool = self.host_pools[ct]
        slots = pool.alloc(pool.available_size() - leave)
        self.taken[ct] = torch.cat([self.taken[ct], slots])

    def give(self, ct, count=EVERYTHING):
        """Give ``count`` of them back."""
        self.host_pools[ct].free(self.taken[ct][:count])
        self.taken[ct] = self.taken[ct][count:]

    def host_used(self):
        used = super().host_used()
        return {ct: count - len(self.taken[ct]) for ct, count in used.items()}

    def backups_of(self, operation, *args, **kwargs):
        """What an operation copies to the host."""
        with self.recorded_backups() as recorded:
            operation(*args, **kwargs)
        self.check()
        return copied_slots(recorded)

    def backups_of_poll(self):
        return self.backups_of(self.poll)

    def attempts_of_poll(self, polls=1):
        """How often polling asks for a transfer."""
        write = self.controller.write
        with mock.patch.object(self.controller, "write", wraps=write) as recorded:
            for _ in range(polls):
                self.poll()
        self.check()
        return recorded.call_count

    def pin_on_host(self, tokens):
        """Let the state after the tokens not give way to another on the host."""
        self.cache.inc_host_lock_ref(self.node(tokens).id)

    def lose_state_on_host(self, tokens):
        """Let the host lose the state after the tokens."""
        node = self.node(tokens)
        cd = node.component_data[MAMBA]
        if self.core.host_lru_lists[MAMBA].in_list(node):
            self.core.host_lru_lists[MAMBA].remove_node(node)
        self.host_pools[MAMBA].free(cd.host_value)
        cd.host_value = None

    def is_on_host(self, tokens):
        return self.node(tokens).backuped

    def has_state_on_host(self, tokens):
        host_value = self.node(tokens).component_data[MAMBA].host_value
        return host_value is not None and self.host_state_is(tokens, host_value)


class RefusedTestCase(CustomTestCase):
    def assert_found(self, harness, tokens):
        """The path of the tokens leaves the device and comes back as it was."""
        harness.poll()
        harness.evict_device()
        self.assertTrue(harness.node(tokens).evicted)
        matched = harness.load_back(tokens + tokens_of(9, 8))
        self.assertEqual(len(matched.device_indices), len(tokens))
        first = max(0, len(tokens) - harness.config.window)
        wrong = harness.wrong_kv_planes(tokens, matched.device_indices, swa=False)
        wrong += harness.wrong_kv_planes(tokens, matched.device_indices, first)
        self.assertEqual(wrong, [])
        state = harness.node(tokens).component_data[MAMBA].value
        self.assertTrue(harness.state_is(tokens, state))
        harness.check()

    def assert_nothing_owed(self, harness):
        """With all the room there is, no backup is left to do."""
        for ct in harness.config.components:
            harness.give(ct)
        self.assertEqual(harness.attempts_of_poll(), 0)

    def assert_nothing_left(self, harness):
        for ct in harness.config.components:
            harness.give(ct)
        harness.evict_all()
        harness.check()
        self.assertFalse(any(harness.host_used().values()))


def refused_states(*lengths, config=CacheConfig()):
    """A harness with LONG on both tiers, the host's pool of states full, and the states
    after so many tokens of PREFIX refused, in this order."""
    harness = Harness(config)
    harness.insert(LONG)
    harness.poll()
    harness.take(MAMBA)
    for length in lengths:
        assert harness.backups_of(harness.insert, PREFIX[:length]) == []
        assert harness.is_on_host(PREFIX[:length])
    return harness


@needs_host_copies
class TestRefusedStates(RefusedTestCase):
    """The Full KV is on the host, and its pool of states is full."""

    def test_are_backed_up_once_a_slot_is_free(self):
        for config in CONFIGS:
            with self.subTest(config=str(config)):
                harness = refused_states(16, config=config)
                self.assertEqual(harness.backups_of_poll(), [])
                harness.give(MAMBA, 1)
                self.assertEqual(harness.backups_of_poll(), STATE)
                harness.poll()
                self.assertTrue(harness.has_state_on_host(PREFIX))
                self.assert_nothing_owed(harness)
                self.assert_found(harness, PREFIX)
                self.assert_nothing_left(harness)

    def test_are_backed_up_once_another_state_may_give_way(self):
        for config in CONFIGS:
            with self.subTest(config=str(config)):
                harness = refused_states(16, config=config)
                leaf = harness.node(LONG)
                self.assertEqual(harness.attempts_of_poll(), 0)
                harness.evict_states(1)
                self.assertTrue(leaf.evicted)
                self.assertEqual(harness.backups_of_poll(), STATE)
                self.assertIsNone(leaf.component_data[MAMBA].host_value)
                self.assert_found(harness, PREFIX)
                self.assert_nothing_left(harness)

    def test_are_backed_up_in_the_order_of_refusal(self):
        order = (16, 4, 12, 8)
        for slots in (1, 3):
            with self.subTest(slots=slots):
                harness = refused_states(*order)
                done = 0
                while done < len(order):
                    harness.give(MAMBA, slots)
                    done = min(done + slots, len(order))
                    harness.backups_of_poll()
                    for i, length in enumerate(order):
                        self.assertEqual(
                            harness.has_state_on_host(PREFIX[:length]), i < done
                        )
                self.assert_nothing_owed(harness)
                for length in sorted(order):
                    self.assert_found(harness, PREFIX[:length])
                self.assert_nothing_left(harness)

    def test_are_not_tried_while_nothing_changes(self):
        harness = refused_states(16, 8)
        self.assertEqual(harness.attempts_of_poll(polls=3), 0)
        harness.give(MAMBA, 1)
        self.assertEqual(harness.attempts_of_poll(), 2)
        self.assertEqual(harness.attempts_of_poll(polls=3), 0)
        self.assertTrue(harness.has_state_on_host(PREFIX))
        # Another pool: it is tried, and that is remembered.
        harness.take(FULL, leave=8)
        self.assertEqual(harness.attempts_of_poll(), 1)
        self.assertEqual(harness.attempts_of_poll(polls=3), 0)

    def test_find_the_room_that_appeared_before_another_refusal(self):
        harness = refused_states(16)
        harness.give(MAMBA, 1)
        harness.take(FULL)
        self.assertEqual(harness.backups_of(harness.insert, tokens_of(5, 8)), [])
        self.assertEqual(harness.backups_of_poll(), STATE)
        self.assertTrue(harness.has_state_on_host(PREFIX))

    def test_are_compared_with_the_room_at_their_own_refusal(self):
        """Not with that of what was refused, and done, before."""
        harness = refused_states(16)
        harness.give(MAMBA, 1)
        self.assertEqual(harness.backups_of_poll(), STATE)
        harness.give(MAMBA, 1)
        harness.take(MAMBA)
        harness.take(FULL, leave=9)
        self.assertEqual(harness.backups_of(harness.insert, PREFIX[:8]), [])
        self.assertEqual(harness.attempts_of_poll(polls=3), 0)
        harness.give(MAMBA, 1)
        self.assertEqual(harness.backups_of_poll(), STATE)

    def test_that_were_refused_during_a_transfer_of_the_node(self):
        harness = Harness()
        harness.insert(LONG)
        harness.take(MAMBA)
        self.assertEqual(harness.backups_of(harness.insert, PREFIX), [])
        harness.give(MAMBA, 1)
        self.assertEqual(harness.backups_of_poll(), STATE)
        self.assert_found(harness, PREFIX)
        self.assert_nothing_left(harness)

    def test_stay_with_the_lower_part_of_a_split_node(self):
        harness = refused_states(16)
        harness.match(PREFIX[:8] + [7])
        self.assertIsNotNone(harness.node(PREFIX[:8]))
        harness.give(MAMBA, 1)
        self.assertEqual(harness.backups_of_poll(), STATE)
        self.assert_nothing_owed(harness)
        self.assert_found(harness, PREFIX)
        self.assert_nothing_left(harness)

    def test_that_left_the_device_are_forgotten(self):
        """By the eviction of a state alone, and of the whole path."""
        for evict in (UnifiedHiCacheHarness.evict_states, Harness.evict_device):
            with self.subTest(evict=evict.__name__):
                harness = refused_states(16)
                harness.pin_on_host(LONG)
                evict(harness)
                self.assertIsNone(harness.node(PREFIX).component_data[MAMBA].value)
                self.assertFalse(harness.has_state_on_host(PREFIX))
                self.assertFalse(harness.core.has_refused_backup())
                self.assert_nothing_owed(harness)

    def test_that_came_again_queue_up_again(self):
        harness = refused_states(16, 8)
        harness.pin_on_host(LONG)
        harness.evict_states(2)  # LONG's, and that of PREFIX
        self.assertIsNone(harness.node(PREFIX).component_data[MAMBA].value)
        self.assertEqual(harness.backups_of(harness.insert, PREFIX), [])
        harness.give(MAMBA, 1)
        self.assertEqual(harness.backups_of_poll(), STATE)
        self.assertTrue(harness.has_state_on_host(PREFIX[:8]))
        self.assertFalse(harness.has_state_on_host(PREFIX))

    def test_that_were_backed_up_meanwhile_are_done(self):
        harness = refused_states(16)
        harness.give(MAMBA)
        self.assertEqual(harness.backups_of(harness.insert, PREFIX), STATE)
        self.assertFalse(harness.core.has_refused_backup())
        self.assert_nothing_owed(harness)
        self.assert_found(harness, PREFIX)
        self.assert_nothing_left(harness)

    def test_that_the_host_got_in_another_way_are_passed_over(self):
        """As by a prefetch from storage, of which the cache is not told."""
        harness = refused_states(16, 8)
        harness.give(MAMBA, 1)
        cd = harness.node(PREFIX).component_data[MAMBA]
        cd.host_value = harness.host_pools[MAMBA].alloc(1)
        harness.give(MAMBA, 1)
        self.assertEqual(harness.backups_of_poll(), STATE)
        self.assertTrue(harness.has_state_on_host(PREFIX[:8]))
        self.assert_nothing_owed(harness)

    def test_that_are_the_only_ones_left_stale_do_no_harm(self):
        harness = refused_states(16)
        harness.give(MAMBA, 1)
        cd = harness.node(PREFIX).component_data[MAMBA]
        cd.host_value = harness.host_pools[MAMBA].alloc(1)
        harness.give(MAMBA, 1)
        self.assertEqual(harness.attempts_of_poll(), 0)
        self.assert_nothing_owed(harness)

    def test_are_forgotten_at_a_flush(self):
        harness = refused_states(16)
        harness.cache.reset()
        harness.allocator.clear()
        harness.req_to_token_pool.mamba_allocator.clear()
        harness.taken = dict.fromkeys(harness.taken, torch.empty(0, dtype=torch.int64))
        self.assert_nothing_owed(harness)
        self.assertEqual(
            harness.backups_of(harness.insert, PREFIX), [{"kv": 16, "mamba": 1}]
        )
        self.assert_found(harness, PREFIX)

    def test_survive_what_storage_is_asked_for_at_run_time(self):
        harness = refused_states(16)
        self.assertFalse(harness.cache.attach_storage_backend("file")[0])
        self.assertFalse(harness.cache.detach_storage_backend()[0])
        self.assertEqual(harness.attempts_of_poll(), 0)
        harness.give(MAMBA, 1)
        self.assertEqual(harness.backups_of_poll(), STATE)
        self.assert_found(harness, PREFIX)

    def test_survive_the_loss_of_another_component_on_the_host(self):
        """The host copy of SWA goes; the state is still on the device alone."""
        harness = Harness(CacheConfig(components=(FULL, SWA, MAMBA)))
        harness.insert(LONG)
        harness.poll()
        harness.take(MAMBA)
        harness.cache.evict(EvictParams(swa_num_tokens=1))
        node = harness.node(PREFIX)
        self.assertIsNone(node.component_data[SWA].value)
        slots = harness._alloc_kv(len(PREFIX))
        harness.write_kv(PREFIX, 0, slots)
        state = harness.req_to_token_pool.mamba_allocator.alloc(1)
        harness.write_state(PREFIX, state)
        harness.cache.insert(
            InsertParams(
                key=RadixKey(array("q", PREFIX)),
                value=slots,
                mamba_value=state,
                swa_evicted_seqlen=len(PREFIX),
            )
        )
        harness.check()
        self.assertIsNone(node.component_data[SWA].value)
        harness.cache.evict_host(1, SWA)
        harness.check()
        self.assertIsNone(node.component_data[SWA].host_value)
        harness.give(MAMBA, 1)
        self.assertEqual(harness.backups_of_poll(), STATE)
        harness.poll()
        self.assertTrue(harness.has_state_on_host(PREFIX))


def refused_node(ct=FULL, config=CacheConfig(), leave=0):
    """A harness whose host pool for ``ct`` had no room for LONG."""
    harness = Harness(config)
    harness.take(ct, leave)
    harness.insert(LONG)
    harness.check()
    assert not harness.is_on_host(LONG)
    return harness


@needs_host_copies
class TestRefusedNodes(RefusedTestCase):
    """Nothing of a node is on the host."""

    def whole(self, harness, length=24):
        """What the backup of a node of so many tokens copies, its state included."""
        slots = {"kv": length, "mamba": 1}
        if harness.config.has_swa:
            slots["swa"] = length
        return slots

    def test_are_backed_up_once_slots_are_free(self):
        for config in CONFIGS:
            for ct in config.components:
                with self.subTest(config=str(config), ct=ct):
                    harness = refused_node(ct, config)
                    self.assertEqual(harness.backups_of_poll(), [])
                    harness.give(ct)
                    self.assertNotEqual(harness.backups_of_poll(), [])
                    slots = {FULL: 24, SWA: 24, MAMBA: 1}
                    self.assertEqual(
                        harness.host_used(), {ct: slots[ct] for ct in config.components}
                    )
                    self.assert_nothing_owed(harness)
                    self.assert_found(harness, LONG)
                    self.assert_nothing_left(harness)

    def test_push_nothing_off_the_host(self):
        """A refused node gets free slots, whichever pool had none; what may give way on
        the host stays there."""
        first, second = tokens_of(5, 8), tokens_of(6, 8)
        for components in ((FULL, MAMBA), (FULL, SWA, MAMBA)):
            for ct in components:
                with self.subTest(components=components, ct=ct):
                    harness = Harness(CacheConfig(components=components))
                    harness.insert(first)
                    harness.poll()
                    harness.take(ct)
                    self.assertEqual(harness.backups_of(harness.insert, second), [])
                    harness.match(second)
                    harness.evict_states(1)
                    self.assertTrue(harness.node(first).evicted)
                    self.assertEqual(harness.attempts_of_poll(polls=2), 0)
                    slots = 1 if ct is MAMBA else 8
                    harness.give(ct, slots)
                    self.assertEqual(
                        harness.backups_of_poll(), [self.whole(harness, 8)]
                    )
                    self.assertTrue(harness.is_on_host(first))
                    self.assert_found(harness, second)
                    self.assert_nothing_left(harness)

    def test_push_nothing_off_the_host_for_one_pool_when_another_is_full(self):
        """SWA's slots could be had from a leaf, which would be lost for nothing."""
        first, second = tokens_of(5, 8), tokens_of(6, 8)
        harness = Harness(CacheConfig(components=(FULL, SWA, MAMBA)))
        harness.insert(first)
        harness.poll()
        harness.evict_device()
        harness.lose_state_on_host(first)
        harness.take(MAMBA)
        self.assertEqual(harness.backups_of(harness.insert, second), [])
        harness.take(SWA)
        self.assertEqual(harness.backups_of_poll(), [])
        self.assertTrue(harness.is_on_host(first))
        harness.give(MAMBA)
        harness.give(SWA, 8)
        self.assertEqual(harness.backups_of_poll(), [self.whole(harness, 8)])
        self.assertTrue(harness.is_on_host(first))
        self.assert_nothing_left(harness)

    def test_are_not_tried_before_there_are_slots_enough(self):
        harness = refused_node()
        self.assertEqual(harness.attempts_of_poll(polls=3), 0)
        harness.give(FULL, 23)
        self.assertEqual(harness.attempts_of_poll(polls=3), 0)
        harness.give(FULL, 1)
        self.assertEqual(harness.backups_of_poll(), [self.whole(harness)])
        self.assert_found(harness, LONG)
        self.assert_nothing_left(harness)

    def test_are_not_looked_at_while_nothing_changes(self):
        harness = refused_node()
        harness.give(FULL, 8)
        look = harness.core.next_refused_backup
        with mock.patch.object(
            harness.core, "next_refused_backup", wraps=look
        ) as looked:
            harness.poll()
            looked.assert_called()
            looked.reset_mock()
            harness.poll()
            looked.assert_not_called()

    def test_are_backed_up_in_the_order_of_refusal(self):
        prompts = [tokens_of(seed, 8) for seed in (7, 5, 6)]
        for slots in (8, 16):
            with self.subTest(slots=slots):
                harness = Harness()
                harness.take(FULL)
                for tokens in prompts:
                    harness.insert(tokens)
                done = 0
                while done < len(prompts):
                    harness.give(FULL, slots)
                    done = min(done + slots // 8, len(prompts))
                    harness.poll()
                    harness.check()
                    self.assertEqual(
                        [harness.is_on_host(tokens) for tokens in prompts],
                        [i < done for i in range(len(prompts))],
                    )
                self.assert_nothing_owed(harness)
                for tokens in prompts:
                    self.assertTrue(harness.has_state_on_host(tokens))
                self.assert_nothing_left(harness)

    def test_come_with_their_ancestors(self):
        """Refused at the ancestor, or at the node itself, after its ancestor."""
        for leave in (0, 16):
            with self.subTest(leave=leave):
                harness = Harness(CacheConfig(threshold=2))
                harness.insert(LONG)
                harness.match(OTHER)
                node = harness.node(PREFIX)
                node.hit_count = 0
                harness.take(FULL, leave)
                # The second hit of LONG, and the first of what is above it.
                copied = harness.backups_of(harness.insert, LONG)
                self.assertEqual(copied, [{"kv": 16}] if leave else [])
                self.assertEqual(node.backuped, bool(leave))
                harness.give(FULL, 7 if leave else 23)
                self.assertEqual(
                    harness.backups_of_poll(), [] if leave else [{"kv": 16}]
                )
                harness.give(FULL, 1)
                self.assertEqual(harness.backups_of_poll(), [self.whole(harness, 8)])
                self.assert_nothing_owed(harness)
                self.assert_found(harness, LONG)
                self.assert_nothing_left(harness)

    def test_of_which_the_first_part_was_copied_owe_the_rest_alone(self):
        harness = Harness()
        harness.take(FULL, leave=16)
        harness.insert(PREFIX)
        self.assertEqual(harness.backups_of(harness.insert, LONG), [])
        harness.give(FULL)
        self.assertEqual(harness.backups_of_poll(), [self.whole(harness, 8)])
        self.assert_nothing_owed(harness)

    def test_are_remembered_in_both_parts_of_a_split(self):
        harness = refused_node()
        harness.match(OTHER)
        self.assertIsNotNone(harness.node(PREFIX))
        harness.give(FULL, 24)
        self.assertEqual(
            harness.backups_of_poll(), [{"kv": 16}, self.whole(harness, 8)]
        )
        self.assert_nothing_owed(harness)
        self.assert_found(harness, LONG)
        self.assert_nothing_left(harness)

    def test_are_remembered_in_the_upper_part_when_the_lower_one_goes(self):
        harness = refused_node()
        harness.match(OTHER)
        harness.evict_states(1)
        self.assertIsNone(harness.node(LONG))
        harness.check()
        harness.give(FULL, 16)
        self.assertEqual(harness.backups_of_poll(), [{"kv": 16}])
        self.assert_nothing_owed(harness)
        self.assertEqual(harness.backups_of(harness.insert, PREFIX), STATE)
        self.assert_found(harness, PREFIX)
        self.assert_nothing_left(harness)

    def test_are_not_made_by_splits(self):
        """A node that waits for its hits is not owed, in one part or in two."""
        harness = Harness(CacheConfig(threshold=9))
        harness.insert(LONG)
        harness.match(OTHER)
        self.assertIsNotNone(harness.node(PREFIX))
        self.assert_nothing_owed(harness)
        self.assertFalse(harness.is_on_host(PREFIX))

    def test_that_were_deleted_are_forgotten(self):
        harness = refused_node()
        other = tokens_of(5, 8)
        harness.insert(other)
        harness.evict_states(1)
        self.assertIsNone(harness.node(LONG))
        harness.check()
        harness.give(FULL, 8)
        self.assertEqual(harness.backups_of_poll(), [self.whole(harness, 8)])
        self.assertTrue(harness.is_on_host(other))
        self.assertFalse(harness.core.has_refused_backup())
        self.assert_nothing_owed(harness)
        self.assert_nothing_left(harness)

    def test_that_were_backed_up_below_another_are_done(self):
        harness = refused_node()
        harness.give(FULL)
        longer = LONG + tokens_of(5, 8)
        self.assertEqual(
            harness.backups_of(harness.insert, longer),
            [self.whole(harness), self.whole(harness, 8)],
        )
        self.assertFalse(harness.core.has_refused_backup())
        self.assert_nothing_owed(harness)
        self.assert_found(harness, longer)
        self.assert_nothing_left(harness)

    def test_whose_full_kv_came_first_are_done_with_their_state(self):
        """Refused for want of state slots after its Full KV was on the host."""
        harness = Harness()
        harness.take(FULL)
        harness.insert(LONG)
        harness.insert(PREFIX)
        harness.give(FULL, 24)
        harness.take(MAMBA)
        self.assertEqual(harness.backups_of_poll(), [])
        harness.give(MAMBA)
        self.assertEqual(
            harness.backups_of_poll(), [self.whole(harness, 16), self.whole(harness, 8)]
        )
        self.assert_nothing_owed(harness)
        self.assert_found(harness, PREFIX)
        self.assert_found(harness, LONG)
        self.assert_nothing_left(harness)

    def test_that_will_never_fit_hold_up_nobody(self):
        """Nodes that are larger than the host, or whose path is."""
        small = tokens_of(6, 8)
        for lengths in ((60,), (8, 60), (30, 30)):
            with self.subTest(lengths=lengths):
                harness = Harness(CacheConfig(host_ratio=0.1, threshold=2))
                self.assertEqual(harness.host_pools[FULL].size, 52)
                path = tokens_of(5, sum(lengths))
                harness.insert(path)
                if len(lengths) > 1:
                    harness.match(path[: lengths[0]] + [7])
                    harness.node(path[: lengths[0]]).hit_count = 0
                harness.take(FULL)
                # The second hit: the node, and what is above it.
                self.assertEqual(harness.backups_of(harness.insert, path), [])
                self.assertEqual(harness.backups_of(harness.insert, small), [])
                self.assertEqual(harness.backups_of(harness.insert, small), [])
                harness.give(FULL)
                copied = harness.backups_of_poll()
                self.assertEqual(copied.pop(), self.whole(harness, 8))
                self.assertEqual(copied, [{"kv": n} for n in lengths[:-1]])
                self.assertFalse(harness.is_on_host(path))
                self.assert_nothing_owed(harness)
                self.assert_nothing_left(harness)

    def test_that_just_fit_are_remembered(self):
        harness = Harness(CacheConfig(host_ratio=0.1))
        size = harness.host_pools[FULL].size
        harness.take(FULL)
        harness.insert(tokens_of(5, 8))
        harness.insert(tokens_of(5, size))
        harness.give(FULL)
        self.assertEqual(
            harness.backups_of_poll(),
            [self.whole(harness, 8), self.whole(harness, size - 8)],
        )
        self.assert_nothing_left(harness)

    def test_need_slots_for_their_ancestors_as_well(self):
        """The lower part of a split node was refused first."""
        for ct, slots in ((FULL, 24), (MAMBA, 2)):
            with self.subTest(ct=ct):
                harness = refused_node()
                harness.insert(PREFIX)
                harness.take(ct)
                harness.give(FULL, slots - 1 if ct is FULL else EVERYTHING)
                if ct is MAMBA:
                    harness.give(MAMBA, 1)
                self.assertEqual(harness.attempts_of_poll(), 0)
                harness.give(ct, 1)
                self.assertEqual(
                    harness.backups_of_poll(),
                    [self.whole(harness, 16), self.whole(harness, 8)],
                )
                self.assert_nothing_owed(harness)
                self.assert_found(harness, PREFIX)
                self.assert_nothing_left(harness)

    def test_that_still_wait_do_not_hold_up_states(self):
        harness = Harness()
        harness.insert(LONG)
        harness.poll()
        harness.take(FULL, leave=8)
        harness.take(MAMBA)
        harness.insert(tokens_of(5, 100))
        harness.insert(PREFIX)
        harness.give(MAMBA, 1)
        self.assertEqual(harness.backups_of_poll(), STATE)
        self.assertTrue(harness.has_state_on_host(PREFIX))
        harness.give(FULL)
        harness.give(MAMBA)
        self.assertEqual(harness.backups_of_poll(), [self.whole(harness, 100)])
        self.assert_nothing_owed(harness)
        self.assert_nothing_left(harness)

    def test_are_forgotten_at_a_flush(self):
        harness = refused_node()
        harness.cache.reset()
        harness.allocator.clear()
        harness.req_to_token_pool.mamba_allocator.clear()
        harness.taken = dict.fromkeys(harness.taken, torch.empty(0, dtype=torch.int64))
        self.assert_nothing_owed(harness)

    def test_of_models_without_states(self):
        for components in ((FULL,), (FULL, SWA)):
            with self.subTest(components=components):
                harness = refused_node(config=CacheConfig(components=components))
                harness.give(FULL)
                self.assertNotEqual(harness.backups_of_poll(), [])
                self.assertEqual(harness.host_used(), dict.fromkeys(components, 24))
                self.assert_nothing_owed(harness)
                harness.poll()
                harness.evict_device()
                matched = harness.load_back(LONG)
                self.assertEqual(
                    harness.wrong_kv_planes(LONG, matched.device_indices, 16), []
                )
                self.assert_nothing_left(harness)


@needs_host_copies
class TestWriteBackRemembersNothing(RefusedTestCase):
    def test_of_an_eviction_without_room(self):
        harness = Harness(CacheConfig(write_policy="write_back"))
        harness.take(FULL)
        harness.insert(LONG)
        harness.evict_device()
        self.assertIsNone(harness.node(LONG))
        harness.check()
        self.assert_nothing_owed(harness)
        # With room, it goes to the host as ever.
        harness.insert(LONG)
        self.assertEqual(
            harness.backups_of(harness.evict_device), [{"kv": 24, "mamba": 1}]
        )
        self.assert_found(harness, LONG)
        self.assert_nothing_left(harness)

    def test_of_a_node_that_stays_on_the_device(self):
        """What is below it on the host is in use, so that it cannot be dropped."""
        harness = Harness(CacheConfig(write_policy="write_back"))
        harness.insert(PREFIX)
        harness.insert(LONG)
        harness.match(PREFIX)
        harness.evict_states(1)
        leaf = harness.node(LONG)
        self.assertTrue(leaf.evicted)
        lock = harness.cache.inc_host_lock_ref(leaf.id).to_dec_params()
        harness.take(FULL)
        with harness.recorded_backups() as recorded:
            harness.evict_device()
            self.assertFalse(harness.node(PREFIX).evicted)
            harness.give(FULL)
            harness.poll()
        recorded.assert_not_called()
        harness.cache.dec_host_lock_ref(leaf.id, lock)
        harness.check()
        self.assertEqual(
            harness.backups_of(harness.evict_device), [{"kv": 16, "mamba": 1}]
        )
        self.assert_nothing_left(harness)


if __name__ == "__main__":
    unittest.main()
