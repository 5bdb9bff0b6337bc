"""Which component says that the host lacks its state (needs_incremental_backup)."""

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

from sglang.srt.mem_cache.unified_cache.components import FullComponent, SWAComponent
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=10, suite="base-a-test-cpu")
register_cuda_ci(est_time=10, suite="base-b-test-1-gpu-small")


@needs_host_copies
class TestComponentBackupNeed(CustomTestCase):
    def setUp(self):
        self.harness = UnifiedHiCacheHarness(CacheConfig(components=(FULL, SWA, MAMBA)))
        self.tokens = tokens_of(1, 16)
        self.harness.insert(self.tokens)
        self.node = self.harness.node(self.tokens)

    def needs(self, ct):
        return self.harness.core.components_by_type[ct].needs_incremental_backup(
            self.node
        )

    def test_mamba_needs_it_for_device_data_without_host_copy(self):
        cd = self.node.component_data[MAMBA]
        device, host = torch.tensor([3]), torch.tensor([5])
        for value, host_value, expected in (
            (None, None, False),
            (None, host, False),
            (device, host, False),
            (device, None, True),
        ):
            with self.subTest(value=value, host_value=host_value):
                cd.value, cd.host_value = value, host_value
                self.assertIs(self.needs(MAMBA), expected)

    def test_full_never_needs_it(self):
        cd = self.node.component_data[FULL]
        self.assertIsNotNone(cd.value)
        cd.host_value = None
        self.assertIs(self.needs(FULL), False)
        self.assertNotIn("needs_incremental_backup", vars(FullComponent))

    def test_swa_says_no_explicitly(self):
        cd = self.node.component_data[SWA]
        self.assertIsNotNone(cd.value)
        cd.host_value = None
        self.assertIs(self.needs(SWA), False)
        self.assertIn("needs_incremental_backup", vars(SWAComponent))


if __name__ == "__main__":
    unittest.main()
