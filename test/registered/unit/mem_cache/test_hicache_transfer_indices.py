"""A backup's indices are checked where they enter, before anything changes."""

import unittest

import torch
from unified_hicache_harness import (
    FULL,
    MAMBA,
    CacheConfig,
    UnifiedHiCacheHarness,
    needs_host_copies,
    tokens_of,
)

from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")
register_cuda_ci(est_time=10, suite="base-b-test-1-gpu-small")

NOT_INDICES = {
    "list": [1, 2],
    "float": torch.ones(2),
    "bool": torch.ones(2, dtype=torch.bool),
    "uint8": torch.ones(2, dtype=torch.uint8),
    "2-D": torch.ones(1, 2, dtype=torch.int64),
    "0-D": torch.tensor(1),
}


def _copy(harness):
    """A copy of every host buffer."""
    kv, mamba = harness.host_pools[FULL], harness.host_pools[MAMBA]
    buffers = [kv.k_buffer, kv.v_buffer, *mamba.conv_buffer, mamba.temporal_buffer]
    return [buffer.clone() for buffer in buffers]


@needs_host_copies
class TestHiCacheTransferIndices(CustomTestCase):
    def setUp(self):
        self.harness = UnifiedHiCacheHarness(CacheConfig())
        self.controller = self.harness.controller
        self.kv = self.harness.allocator.alloc(4)
        self.harness.write_kv(tokens_of(1, 4), 0, self.kv)
        self.state = self.harness.req_to_token_pool.mamba_allocator.alloc(1)
        self.harness.write_state(tokens_of(1, 4), self.state)

    def assert_nothing_happens(self, message, call):
        """``call`` raises; no host slot, no host byte and no queue has changed."""
        before, used = _copy(self.harness), self.harness.host_used()
        with self.assertRaisesRegex(ValueError, message):
            call()
        self.assertEqual(self.harness.host_used(), used)
        self.assertEqual(self.controller.write_queue, [])
        self.assertEqual(self.controller.ack_write_queue, [])
        for now, then in zip(_copy(self.harness), before):
            self.assertTrue(torch.equal(now, then))

    def group_backup(self, host, device, transfers=None):
        self.harness.cache.host_pool_group.backup_from_device_all_layer(
            None, host, device, "direct", pool_transfers=transfers
        )

    def mamba(self, host_indices=None, device_indices=None):
        return PoolTransfer(
            name=PoolName.MAMBA,
            host_indices=host_indices,
            device_indices=device_indices,
        )

    def test_write_refuses_kv_indices(self):
        for kind, bad in NOT_INDICES.items():
            with self.subTest(kind=kind):
                self.assert_nothing_happens(
                    "transfer of kv", lambda: self.controller.write(bad)
                )

    def test_write_refuses_extra_pool_indices(self):
        for kind, bad in NOT_INDICES.items():
            with self.subTest(kind=kind):
                self.assert_nothing_happens(
                    "transfer of mamba",
                    lambda: self.controller.write(
                        self.kv, extra_pools=[self.mamba(device_indices=bad)]
                    ),
                )

    def test_write_refuses_extra_pool_lengths_that_differ(self):
        given = self.mamba(torch.tensor([1, 2]), self.state)
        self.assert_nothing_happens(
            r"transfer of mamba.*int64\[2\].*int64\[1\]",
            lambda: self.controller.write(self.kv, extra_pools=[given]),
        )

    def test_group_refuses_anchor_indices(self):
        host = torch.arange(4)
        for kind, bad in NOT_INDICES.items():
            with self.subTest(kind=kind):
                for call in (
                    lambda: self.group_backup(bad, self.kv),
                    lambda: self.group_backup(host, bad),
                ):
                    self.assert_nothing_happens("transfer of kv", call)

    def test_group_refuses_anchor_lengths_that_differ(self):
        self.assert_nothing_happens(
            r"transfer of kv.*int64\[0\].*int64\[4\]",
            lambda: self.group_backup(torch.empty(0, dtype=torch.int64), self.kv),
        )

    def test_group_checks_extra_pools_before_the_anchor_is_copied(self):
        for bad in (self.state.float(), torch.tensor([1, 2]), None):
            with self.subTest(bad=bad):
                transfer = self.mamba(torch.tensor([4]), bad)
                self.assert_nothing_happens(
                    "transfer of mamba",
                    lambda: self.group_backup(torch.arange(4), self.kv, [transfer]),
                )

    def test_int32_and_zero_length_are_indices(self):
        from sglang.srt.mem_cache.memory_pool_host import check_transfer_indices

        none = torch.empty(0, dtype=torch.int32)
        check_transfer_indices(PoolName.KV)
        check_transfer_indices(PoolName.KV, none, none.long())
        check_transfer_indices(PoolName.KV, torch.arange(3).int(), torch.arange(3))

    def test_write_of_a_state_alone_takes_no_kv_slot(self):
        host = self.controller.write(
            torch.empty(0, dtype=torch.int64),
            extra_pools=[self.mamba(device_indices=self.state)],
        )
        self.assertEqual(len(host), 0)
        self.assertEqual(self.harness.host_used(), {FULL: 0, MAMBA: 1})
        self.assertEqual(len(self.controller.ack_write_queue), 1)


if __name__ == "__main__":
    unittest.main()
