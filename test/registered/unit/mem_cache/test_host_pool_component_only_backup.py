"""HostPoolGroup copies the extra pools alone where the anchor has zero length."""

import unittest
from unittest import mock

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

NONE = torch.empty(0, dtype=torch.int64)
ROUTES = (("direct", "page_first_direct"), ("kernel", "page_first"))


@needs_host_copies
class TestHostPoolComponentOnlyBackup(CustomTestCase):
    def backup(self, harness, host, device, transfers):
        """Run one group backup; return the anchor pool's recorded copies."""
        group = harness.cache.host_pool_group
        anchor = group.anchor_entry.host_pool
        if harness.config.io_backend == "kernel" and harness.device == "cuda":
            device = device.to(harness.device)
        with mock.patch.object(
            anchor,
            "backup_from_device_all_layer",
            wraps=anchor.backup_from_device_all_layer,
        ) as recorded:
            group.backup_from_device_all_layer(
                None, host, device, harness.config.io_backend, pool_transfers=transfers
            )
        if harness.device == "cuda":
            torch.cuda.synchronize()
        return recorded

    def harness(self, io_backend, layout):
        harness = UnifiedHiCacheHarness(
            CacheConfig(io_backend=io_backend, layout=layout)
        )
        tokens = tokens_of(1, 8)
        slots = harness.allocator.alloc(len(tokens))
        harness.write_kv(tokens, 0, slots)
        state = harness.req_to_token_pool.mamba_allocator.alloc(1)
        harness.write_state(tokens, state)
        return harness, tokens, slots, state

    def mamba(self, state, host=4):
        return PoolTransfer(
            name=PoolName.MAMBA,
            host_indices=torch.tensor([host]),
            device_indices=state,
        )

    def test_zero_length_anchor_copies_the_extra_pool_alone(self):
        for route in ROUTES:
            with self.subTest(route=route):
                harness, tokens, _, state = self.harness(*route)
                kv_host = harness.host_pools[FULL]
                before = [kv_host.k_buffer.clone(), kv_host.v_buffer.clone()]
                recorded = self.backup(harness, NONE, NONE, [self.mamba(state)])
                recorded.assert_not_called()
                self.assertTrue(harness.host_state_is(tokens, torch.tensor(4)))
                self.assertTrue(torch.equal(kv_host.k_buffer, before[0]))
                self.assertTrue(torch.equal(kv_host.v_buffer, before[1]))

    def test_anchor_and_extra_pool_are_copied_together(self):
        for route in ROUTES:
            with self.subTest(route=route):
                harness, tokens, slots, state = self.harness(*route)
                host = torch.arange(8)
                recorded = self.backup(harness, host, slots, [self.mamba(state)])
                recorded.assert_called_once()
                self.assertTrue(harness.host_state_is(tokens, torch.tensor(4)))
                harness.write_kv(tokens_of(2, 8), 0, slots)
                anchor = harness.cache.host_pool_group.anchor_entry
                for layer in range(2):
                    anchor.host_pool.load_to_device_per_layer(
                        anchor.device_pool,
                        host.to(slots.device) if route[0] == "kernel" else host,
                        slots,
                        layer,
                        route[0],
                    )
                self.assertEqual(harness.wrong_kv_planes(tokens, slots), [])

    def test_transfers_without_a_pool_or_host_slots_are_left_out(self):
        harness, tokens, _, state = self.harness(*ROUTES[0])
        mamba = harness.host_pools[MAMBA]
        before = mamba.temporal_buffer.clone()
        unresolved = PoolTransfer(name=PoolName.MAMBA, device_indices=state)
        foreign = PoolTransfer(
            name=PoolName.INDEXER, host_indices=NONE, device_indices=NONE
        )
        self.backup(harness, NONE, NONE, [unresolved, foreign])
        self.backup(harness, NONE, NONE, None)
        self.assertTrue(torch.equal(mamba.temporal_buffer, before))


if __name__ == "__main__":
    unittest.main()
