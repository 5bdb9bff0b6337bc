"""Transfers of one node that are in flight together do not disturb each other.

The transfers are ordered by hand here: a node's Full KV, then its state, then its state
once more. When the cache orders the second one by itself is the subject of
test_unified_backup_in_flight.py.
"""

import itertools
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

from sglang.srt.disaggregation.kv_events import BlockStored, StorageMedium
from sglang.srt.mem_cache.unified_cache.cache_action import BackupKV
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=15, suite="base-a-test-cpu")
register_cuda_ci(est_time=15, suite="base-b-test-1-gpu-small")

PREFIX = tokens_of(1, 16)
LONG = PREFIX + tokens_of(2, 8)
OTHER = PREFIX + tokens_of(3, 8)

# No insert orders a backup by itself: what is in flight is what a test ordered.
BY_HAND = CacheConfig(threshold=99)
CONFIGS = (
    BY_HAND,
    CacheConfig(threshold=99, components=(FULL, SWA, MAMBA)),
    CacheConfig(threshold=99, page_size=4, extra_buffer=True),
    CacheConfig(threshold=99, io_backend="kernel", layout="page_first"),
)


class Transfers:
    """Transfers of the node of PREFIX: of its Full KV, and then of its state. Each has
    its acknowledgement, and what it locked of the node."""

    def __init__(self, config=BY_HAND, count=1):
        self.harness = UnifiedHiCacheHarness(config)
        self.acks, self.locked = [], []
        self.harness.insert(LONG)
        self.harness.match(OTHER)  # splits the leaf: PREFIX has no state
        self.node = self.harness.node(PREFIX)
        assert self.state.value is None
        for order in (self.order, self.order_state, self.order_state_again)[:count]:
            order()
        self.harness.check()

    @property
    def state(self):
        return self.node.component_data[MAMBA]

    def order(self, node=None):
        """Start a transfer of what the host lacks of the node."""
        before = locks(self.node)
        action = BackupKV([(node or self.node).id])
        self.harness.cache._execute_and_commit_kv_backup(action)
        self.acks.append(self.harness.controller.ack_write_queue[-1])
        after = locks(self.node)
        self.locked.append({ct: after[ct] - before[ct] for ct in after})

    def order_state(self):
        """Bring the state, and start its transfer."""
        with mock.patch.object(self.harness.cache, "_execute_and_commit_kv_backup"):
            self.harness.insert(PREFIX)
        assert self.state.value is not None
        self.order()

    def order_state_again(self):
        """Let the host lose the state, and start another transfer of it."""
        self.harness.host_pools[MAMBA].free(self.state.host_value)
        self.state.host_value = None
        self.order()

    def acknowledge(self, *turns):
        """Let the cache see these acknowledgements, in this order, and no other."""
        acks, queue = [self.acks[turn] for turn in turns], self.queue
        others = [ack for ack in queue if all(ack is not given for given in acks)]
        queue[:] = acks
        self.harness.poll()
        assert not queue
        queue[:] = others
        self.harness.check()

    @property
    def queue(self):
        return self.harness.controller.ack_write_queue

    def locks_of(self, turns):
        """What the locks of the node are while these transfers are in flight."""
        return {
            ct: sum(self.locked[turn][ct] for turn in turns)
            for ct in (FULL, SWA, MAMBA)
        }

    def in_flight(self):
        """The transfers that the node counts itself to be in."""
        pending = [self.node.write_through_pending_id]
        pending += self.node.write_through_older_ids
        return sorted(ack_id for ack_id in pending if ack_id is not None)


def locks(node):
    return {ct: node.component_data[ct].lock_ref for ct in (FULL, SWA, MAMBA)}


class TransfersTestCase(CustomTestCase):
    def assert_in_flight(self, transfers, missing):
        """The node is in these transfers, and locked as they locked it."""
        self.assertEqual(locks(transfers.node), transfers.locks_of(missing))
        self.assertEqual(len(transfers.in_flight()), len(missing))
        ongoing = transfers.harness.cache.ongoing_write_through
        self.assertEqual(transfers.in_flight(), sorted(ongoing))

    def assert_settled(self, harness, *nodes):
        """Nothing is in flight, nothing is locked, nothing was lost, nothing leaks."""
        harness.check()
        self.assertEqual(harness.cache.ongoing_write_through, {})
        for node in (harness.node(PREFIX), *nodes):
            self.assertIsNone(node.write_through_pending_id)
            self.assertEqual(node.write_through_older_ids, ())
            self.assertEqual(locks(node), {FULL: 0, SWA: 0, MAMBA: 0})
        self.assert_found(harness)
        harness.evict_all()
        harness.check()
        self.assertFalse(any(harness.host_used().values()))

    def assert_found(self, harness):
        """PREFIX leaves the device and comes back as it was."""
        host_value = harness.node(PREFIX).component_data[MAMBA].host_value
        self.assertTrue(harness.host_state_is(PREFIX, host_value))
        harness.evict_device()
        self.assertEqual(len(harness.match(OTHER).device_indices), 0)
        matched = harness.load_back(OTHER)
        self.assertEqual(len(matched.device_indices), len(PREFIX))
        first = max(0, len(PREFIX) - harness.config.window)
        wrong = harness.wrong_kv_planes(PREFIX, matched.device_indices, swa=False)
        wrong += harness.wrong_kv_planes(PREFIX, matched.device_indices, first)
        self.assertEqual(wrong, [])
        state = harness.node(PREFIX).component_data[MAMBA].value
        self.assertTrue(harness.state_is(PREFIX, state))
        harness.check()


@needs_host_copies
class TestAcknowledgements(TransfersTestCase):
    def test_each_transfer_copies_what_it_is_for(self):
        transfers = Transfers(count=0)
        with transfers.harness.recorded_backups() as recorded:
            transfers.order()
            transfers.order_state()
        self.assertEqual(copied_slots(recorded), [{"kv": 16}, {"mamba": 1}])
        transfers.harness.poll()
        self.assert_settled(transfers.harness)

    def test_one_by_one_in_any_order(self):
        for config in CONFIGS:
            for turns in itertools.permutations(range(3)):
                with self.subTest(config=str(config), turns=turns):
                    transfers = Transfers(config, count=3)
                    self.assertEqual(transfers.locked[0][FULL], 1)
                    self.assertEqual(transfers.locked[0][MAMBA], 0)
                    missing = [0, 1, 2]
                    self.assert_in_flight(transfers, missing)
                    for turn in turns:
                        transfers.acknowledge(turn)
                        missing.remove(turn)
                        self.assert_in_flight(transfers, missing)
                    self.assert_settled(transfers.harness)

    def test_all_at_once_in_any_order(self):
        for turns in itertools.permutations(range(3)):
            with self.subTest(turns=turns):
                transfers = Transfers(count=3)
                transfers.acknowledge(*turns)
                self.assert_settled(transfers.harness)

    def test_of_the_first_leaves_the_state_alone(self):
        """It may not leave the device before the end of its own transfer."""
        transfers = Transfers(count=2)
        harness = transfers.harness
        with mock.patch.object(harness.cache, "_count_ready_acks", return_value=1):
            harness.cache.writing_check()
        self.assertEqual(transfers.queue, transfers.acks[1:])
        self.assert_in_flight(transfers, [1])
        harness.evict_device()
        harness.check()
        if harness.cache.ongoing_write_through:
            self.assertTrue(harness.state_is(PREFIX, transfers.state.value))
        harness.poll()
        self.assert_settled(harness)

    def test_of_the_second_releases_the_state(self):
        transfers = Transfers(count=2)
        transfers.acknowledge(1)
        transfers.harness.evict_states()
        self.assertIsNone(transfers.state.value)
        self.assertIsNotNone(transfers.node.component_data[FULL].value)
        transfers.harness.check()
        transfers.acknowledge(0)
        self.assert_settled(transfers.harness)

    def test_that_come_twice_count_once(self):
        for turns in ((0, 0, 1), (0, 1, 0), (1, 1, 0), (1, 0, 1)):
            with self.subTest(turns=turns):
                transfers = Transfers(count=2)
                missing = {0, 1}
                for turn in turns:
                    transfers.acknowledge(turn)
                    missing.discard(turn)
                    self.assert_in_flight(transfers, missing)
                self.assert_settled(transfers.harness)

    def test_that_come_twice_at_once_count_once(self):
        transfers = Transfers(count=2)
        transfers.acknowledge(1, 0, 0, 1)
        self.assert_settled(transfers.harness)

    def test_that_never_come_leave_room_for_a_later_transfer(self):
        for lost in range(2):
            with self.subTest(lost=lost):
                transfers = Transfers(count=2)
                harness = transfers.harness
                transfers.acknowledge(1 - lost)
                transfers.queue.clear()
                with harness.recorded_backups() as recorded:
                    transfers.order_state_again()
                self.assertEqual(copied_slots(recorded), [{"mamba": 1}])
                self.assert_in_flight(transfers, [lost, 2])
                harness.poll()
                harness.check()
                self.assert_in_flight(transfers, [lost])
                self.assertTrue(
                    harness.host_state_is(PREFIX, transfers.state.host_value)
                )

    def test_that_never_come_do_not_hold_up_who_waits_for_all(self):
        for lost in range(2):
            with self.subTest(lost=lost):
                transfers = Transfers(count=2)
                transfers.queue.remove(transfers.acks[lost])
                transfers.harness.cache.writing_check(write_back=True)
                self.assertEqual(transfers.queue, [])
                self.assert_in_flight(transfers, [lost])
                transfers.harness.check()

    def test_of_all_are_waited_for(self):
        transfers = Transfers(count=3)
        transfers.harness.cache.writing_check(write_back=True)
        self.assert_settled(transfers.harness)

    def test_of_a_flushed_tree(self):
        transfers = Transfers(count=3)
        harness = transfers.harness
        harness.cache.reset()
        harness.allocator.clear()
        harness.req_to_token_pool.mamba_allocator.clear()
        harness.check()
        self.assertFalse(any(harness.host_used().values()))
        harness.poll()
        harness.check()
        self.assertEqual(harness.cache.ongoing_write_through, {})
        # What was in flight then does not count for the same prefix now.
        harness.insert(LONG)
        harness.match(OTHER)
        transfers.node = harness.node(PREFIX)
        self.assert_in_flight(transfers, [])
        transfers.order()
        transfers.order_state()
        self.assert_in_flight(transfers, [3, 4])
        harness.poll()
        self.assert_settled(harness)

    def test_of_what_is_below_do_not_count(self):
        transfers = Transfers(count=2)
        leaf = transfers.harness.node(LONG)
        transfers.order(leaf)
        missing = [0, 1, 2]
        for turn in (2, 0, 1):
            self.assertEqual(len(transfers.in_flight()), len({0, 1} & set(missing)))
            transfers.acknowledge(turn)
            missing.remove(turn)
            self.assertEqual(locks(transfers.node), transfers.locks_of(missing))
        self.assert_settled(transfers.harness, leaf)

    def test_that_nobody_expects_are_noticed_by_the_sanity_check(self):
        """A mark of a transfer that is not in flight, beside one that is."""
        transfers = Transfers(count=2)
        transfers.node.write_through_older_ids += (-99,)
        with self.assertRaisesRegex(AssertionError, "pending on -99"):
            transfers.harness.cache.sanity_check()


@needs_host_copies
class TestSplits(TransfersTestCase):
    """A transfer publishes all that the node it was ordered for has become."""

    def split(self, harness, *lengths):
        """Split PREFIX's node at these lengths, by matching and by inserting."""
        for i, length in enumerate(lengths):
            if i % 2:
                with mock.patch.object(harness.cache, "_execute_and_commit_kv_backup"):
                    harness.insert(PREFIX[:length])
            else:
                harness.match(PREFIX[:length] + tokens_of(7, harness.config.page_size))
            assert harness.node(PREFIX[:length]) is not None
            harness.check()

    def published(self, transfers, turn):
        """What storage gets at the acknowledgement: how long the paths are of the nodes
        that are written."""
        harness, ack = transfers.harness, transfers.acks[turn]
        transfers.queue.remove(ack)
        transfers.queue.insert(0, ack)
        with (
            mock.patch.object(harness.core, "enable_storage", True),
            mock.patch.object(harness.cache, "write_backup_storage") as write,
        ):
            harness.cache.writing_check(finish_count=1)
        harness.check()
        nodes = {n: harness.node(PREFIX[:n]) for n in range(1, len(PREFIX) + 1)}
        lengths = {node.id: n for n, node in nodes.items() if node is not None}
        return [lengths[call.args[0]] for call in write.call_args_list]

    def assert_published(self, transfers, turns, *expected):
        for turn in turns:
            self.assertEqual(self.published(transfers, turn), expected[turn], turn)
        harness = transfers.harness
        self.assert_settled(harness, *(harness.node(PREFIX[:n]) for n in expected[0]))

    def test_after_both_orders(self):
        for config in CONFIGS:
            for turns in itertools.permutations(range(2)):
                with self.subTest(config=str(config), turns=turns):
                    transfers = Transfers(config, count=2)
                    self.split(transfers.harness, 8)
                    self.assert_published(transfers, turns, [8, 16], [8, 16])

    def test_between_the_orders(self):
        for turns in itertools.permutations(range(2)):
            with self.subTest(turns=turns):
                transfers = Transfers(count=1)
                self.split(transfers.harness, 8)
                transfers.order_state()
                self.assert_published(transfers, turns, [8, 16], [16])

    def test_of_three_transfers_and_of_what_was_split_before(self):
        for turns in itertools.permutations(range(3)):
            with self.subTest(turns=turns):
                transfers = Transfers(count=1)
                self.split(transfers.harness, 8)
                transfers.order_state()
                self.split(transfers.harness, 6, 4, 12)
                transfers.order_state_again()
                self.split(transfers.harness, 2, 14)
                whole = [2, 4, 6, 8, 12, 14, 16]
                self.assert_published(transfers, turns, whole, whole[4:], whole[5:])

    def test_between_the_acknowledgements(self):
        """The node still counts as in flight, so that the split is made known."""
        for turns in itertools.permutations(range(3)):
            with self.subTest(turns=turns):
                transfers = Transfers(count=3)
                for turn, split in zip(turns, ([], [8], [8, 12])):
                    self.split(transfers.harness, *split[-1:])
                    self.assertEqual(self.published(transfers, turn), [*split, 16])
                harness = transfers.harness
                self.assert_settled(harness, harness.node(PREFIX[:8]))

    def test_that_bring_a_state_give_the_upper_part_a_transfer_of_its_own(self):
        """Beside the two that it shares with the lower part."""
        for turns in itertools.permutations(range(3)):
            with self.subTest(turns=turns):
                transfers = Transfers(count=2)
                self.split(transfers.harness, 12, 8)
                transfers.order(transfers.harness.node(PREFIX[:8]))
                whole = [8, 12, 16]
                self.assert_published(transfers, turns, whole, whole, [8])

    def test_let_routers_hear_each_host_block(self):
        for turns in itertools.permutations(range(2)):
            with self.subTest(turns=turns):
                transfers = Transfers(count=2)
                cache = transfers.harness.cache
                transfers.harness.core.enable_kv_cache_events = True
                self.split(transfers.harness, 8)
                cache.take_events()
                for turn in turns:
                    transfers.acknowledge(turn)
                blocks = {
                    token
                    for event in cache.take_events()
                    if isinstance(event, BlockStored)
                    and event.medium == StorageMedium.CPU
                    for token in event.token_ids
                }
                self.assertEqual(blocks, set(PREFIX))


if __name__ == "__main__":
    unittest.main()
