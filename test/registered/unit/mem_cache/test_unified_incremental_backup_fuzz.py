"""Random operations on the cache; after each, the invariants and the bytes hold.

A failure names its configuration and seed; run one again by hand with
``fuzz(config, seed, steps)``.
"""

import random
import unittest

from unified_hicache_harness import (
    FULL,
    MAMBA,
    SAVED_BEFORE_EVICTION,
    SWA,
    CacheConfig,
    UnifiedHiCacheHarness,
    copied_slots,
    needs_host_copies,
    tokens_of,
)

from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=60, suite="base-a-test-cpu")
register_cuda_ci(est_time=60, suite="base-b-test-1-gpu-small")

STEPS, SEEDS = 150, 1


class Fuzzer:
    def __init__(self, config: CacheConfig, seed: int):
        self.random = random.Random(seed)
        self.harness = UnifiedHiCacheHarness(config)
        self.page = config.page_size
        self.component_backups = 0

    def prompt(self) -> list[int]:
        """One of few page-aligned paths, so that they meet, split and return."""
        tokens = []
        for depth in range(self.random.randint(1, 3)):
            branch = 10 * depth + self.random.randint(0, 2)
            pages = self.random.choice((2, 4, 5))
            tokens += tokens_of(branch + 1, pages * self.page)
        return tokens

    def has_room(self, tokens: int) -> bool:
        """Whether a request fits; in flight transfers may hold all there is."""
        free = self.harness.device_available()
        if free.pop(MAMBA, 9) < 6:
            self.harness.evict_states(6)
        if min(free.values()) < tokens + self.page:
            self.harness.evict_device()
        free = self.harness.device_available()
        return free.pop(MAMBA, 9) >= 6 and min(free.values()) >= tokens + self.page

    def insert(self) -> None:
        tokens = self.prompt()
        if self.has_room(len(tokens)):
            self.harness.insert(tokens, chunked=self.random.random() < 0.2)

    def serve(self) -> None:
        tokens = self.prompt()
        if self.random.random() < 0.7:
            tokens.append(9)
        if self.has_room(2 * len(tokens)):
            self.harness.serve(tokens)

    def evict_host(self) -> None:
        ct = self.random.choice(self.harness.config.components)
        self.harness.cache.evict_host(self.random.randint(1, 3 * self.page), ct)

    def step(self) -> None:
        operation = self.random.choices(
            (
                self.insert,
                self.serve,
                lambda: self.harness.match(self.prompt()),
                self.harness.poll,
                lambda: self.harness.evict_states(self.random.randint(1, 3)),
                self.harness.evict_device,
                self.evict_host,
            ),
            weights=(6, 6, 2, 4, 2, 2, 2),
        )[0]
        with self.harness.recorded_backups() as recorded:
            operation()
        for copied in copied_slots(recorded):
            if "kv" not in copied:
                self.component_backups += 1
                assert copied == {"mamba": 1}, f"component-only backup of {copied}"
        self.harness.check()


def fuzz(config: CacheConfig, seed: int, steps: int = STEPS) -> int:
    """Run and clean up; return how many backups were of a component alone."""
    fuzzer = Fuzzer(config, seed)
    for _ in range(steps):
        fuzzer.step()
    fuzzer.harness.evict_all()
    fuzzer.harness.check()
    used = fuzzer.harness.host_used()
    assert not any(used.values()), f"host slots left: {used}"
    return fuzzer.component_backups


@needs_host_copies
class TestIncrementalBackupFuzz(CustomTestCase):
    def run_pools(self, components, **kwargs):
        """Small pools, so that both tiers run full; component-only backups counted."""
        total = 0
        for page_size, extra_buffer in ((1, False), (4, True)):
            for threshold in (1, 3):
                config = CacheConfig(
                    components=components,
                    page_size=page_size,
                    extra_buffer=extra_buffer and MAMBA in components,
                    threshold=threshold,
                    kv_size=80 * page_size,
                    mamba_size=10,
                    host_ratio=1.5,
                    window=4 * page_size,
                    **kwargs,
                )
                for seed in range(SEEDS):
                    with self.subTest(config=str(config), seed=seed):
                        total += fuzz(config, seed)
        return total

    def test_full_and_mamba(self):
        self.assertGreater(self.run_pools((FULL, MAMBA)), 20)

    def test_full_swa_and_mamba(self):
        self.assertGreater(self.run_pools((FULL, SWA, MAMBA)), 20)

    def test_kernel_route(self):
        route = dict(io_backend="kernel", layout="page_first")
        self.assertGreater(self.run_pools((FULL, MAMBA), **route), 20)

    def test_nothing_of_the_kind_without_states(self):
        self.assertEqual(self.run_pools((FULL,)), 0)
        self.assertEqual(self.run_pools((FULL, SWA)), 0)

    @unittest.skipIf(SAVED_BEFORE_EVICTION, "a state is saved at its eviction")
    def test_nothing_of_the_kind_with_write_back(self):
        policy = dict(write_policy="write_back")
        self.assertEqual(self.run_pools((FULL, MAMBA), **policy), 0)


if __name__ == "__main__":
    unittest.main()
