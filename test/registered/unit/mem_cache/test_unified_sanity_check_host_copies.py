"""sanity_check notices host copies and pending marks that cannot be right."""

import unittest

import torch
from unified_hicache_harness import (
    FULL,
    MAMBA,
    SWA,
    CacheConfig,
    UnifiedHiCacheHarness,
    needs_host_copies,
    tokens_of,
)

from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")
register_cuda_ci(est_time=10, suite="base-b-test-1-gpu-small")


@needs_host_copies
class TestSanityCheckHostCopies(CustomTestCase):
    def setUp(self):
        self.harness = UnifiedHiCacheHarness(CacheConfig(components=(FULL, SWA, MAMBA)))
        self.harness.insert(tokens_of(1, 8))
        self.node = self.harness.node(tokens_of(1, 8))
        self.harness.cache.sanity_check()

    def assert_noticed(self, message):
        with self.assertRaisesRegex(AssertionError, message):
            self.harness.cache.sanity_check()

    def test_full_host_copy_of_zero_length(self):
        self.node.component_data[FULL].host_value = torch.empty(0, dtype=torch.int64)
        self.assert_noticed("host slots=0 != 8")

    def test_swa_host_copy_of_another_length(self):
        cd = self.node.component_data[SWA]
        cd.host_value = cd.host_value[:-1]
        self.assert_noticed("host slots=7 != 8")

    def test_two_host_slots_for_one_state(self):
        cd = self.node.component_data[MAMBA]
        cd.host_value = torch.cat([cd.host_value, cd.host_value])
        self.assert_noticed("host slots=2 != 1")

    def test_host_only_state_of_two_slots(self):
        self.harness.poll()
        self.harness.evict_device()
        cd = self.node.component_data[MAMBA]
        self.assertIsNone(cd.value)
        self.harness.cache.sanity_check()
        cd.host_value = torch.cat([cd.host_value, cd.host_value])
        self.assert_noticed("host slots=2 != 1")

    def test_pending_mark_without_a_transfer(self):
        self.harness.poll()
        self.harness.cache.sanity_check()
        self.node.write_through_pending_id = self.node.id
        self.assert_noticed("which is not ongoing")

    def test_pending_mark_without_full_kv_on_the_host(self):
        self.assertIsNotNone(self.node.write_through_pending_id)
        for cd in self.node.component_data:
            cd.host_value = None
        self.assert_noticed("without Full.host_value")


if __name__ == "__main__":
    unittest.main()
