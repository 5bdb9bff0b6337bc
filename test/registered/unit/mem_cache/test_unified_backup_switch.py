"""With SGLANG_HICACHE_INCREMENTAL_BACKUP off, a node is backed up once, and whole.

Random operations are recorded: what the cache allocates, frees, copies, locks and
evicts, and what its tree becomes. Where the recording with the switch on shows what
is new, the one with it off must show nothing of the kind. Recordings hold nothing
that depends on the process, so that those of two source trees can be compared.
"""

import collections
import itertools
import os
import random
import unittest
from typing import Any, Callable, Iterator, Optional
from unittest import mock

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

from sglang.srt.mem_cache.base_prefix_cache import EvictParams, EvictResult
from sglang.srt.mem_cache.hicache_storage import PoolTransfer
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=40, suite="base-a-test-cpu")
register_cuda_ci(est_time=40, suite="base-b-test-1-gpu-small")

SWITCH = "SGLANG_HICACHE_INCREMENTAL_BACKUP"
STEPS, SEEDS = 80, (0, 1)


class Trace:
    """Random operations, decided by the seed and by what the cache holds."""

    WEIGHTS = dict(
        insert=6, serve=5, match=2, load_back=1, poll=2, evict=5, evict_host=4
    )

    def __init__(self, harness: UnifiedHiCacheHarness, seed: int):
        self.harness = harness
        self.page = harness.config.page_size
        self.random = random.Random(seed)

    def step(self) -> str:
        """Do one operation; return what it was and what came of it."""
        name = self.random.choices([*self.WEIGHTS], [*self.WEIGHTS.values()])[0]
        return f"{name} {getattr(self, name)()}"

    def prompt(self) -> list[int]:
        """One of few page-aligned paths, so that they meet, split and return."""
        tokens = []
        for depth in range(self.random.randint(1, 3)):
            branch = 10 * depth + self.random.randint(0, 2)
            pages = self.random.choice((2, 4, 5))
            tokens += tokens_of(branch + 1, pages * self.page)
        return tokens

    def has_room(self, tokens: int, states: int) -> bool:
        """Whether the device can hold so much, once what is not locked is evicted."""
        free = self.harness.device_available()
        if free.pop(MAMBA) < states:
            self.harness.evict_states(states)
        if min(free.values()) < tokens + self.page:
            self.harness.evict_device()
        free = self.harness.device_available()
        return free.pop(MAMBA) >= states and min(free.values()) >= tokens + self.page

    def insert(self) -> str:
        tokens, chunked = self.prompt(), self.random.random() < 0.2
        if not self.has_room(len(tokens), states=1):
            return "has no room"
        result = self.harness.insert(tokens, chunked=chunked)
        return f"{len(tokens)} {chunked=}: {result.prefix_len} {result.mamba_exist}"

    def serve(self) -> str:
        tokens = self.prompt() + [9] * self.random.randint(0, 1)
        chunk = self.random.choice((None, None, 3 * self.page))
        if not self.has_room(2 * len(tokens), states=0):
            return "has no room"
        return f"{len(tokens)} {chunk=}: {self.harness.serve(tokens, chunk)} cached"

    def match(self) -> str:
        found = self.harness.match(self.prompt())
        return f"{rendered(found.device_indices)} + {found.host_hit_length} on the host"

    def load_back(self) -> str:
        tokens = self.prompt()
        if not self.has_room(len(tokens), states=0):
            return "has no room"
        return rendered(self.harness.load_back(tokens).device_indices)

    def poll(self) -> str:
        self.harness.poll()
        return ""

    def evict(self) -> str:
        ct = self.random.choice(self.harness.config.components)
        count = self.random.randint(1, 3 if ct is MAMBA else 8 * self.page)
        name = {FULL: "num_tokens", SWA: "swa_num_tokens", MAMBA: "mamba_num"}[ct]
        return rendered(self.harness.cache.evict(EvictParams(**{name: count})))

    def evict_host(self) -> str:
        ct = self.random.choice(self.harness.config.components)
        count = self.random.randint(1, 3 * self.page)
        return f"{ct.name} {self.harness.cache.evict_host(count, ct)}"


def rendered(value: Any) -> str:
    """A value as text that is the same in every process; ids of transfers left out."""
    if value is None or isinstance(value, (int, str, torch.dtype)):
        return str(value)
    if isinstance(value, torch.Tensor):
        return str(value.tolist()).replace(" ", "")
    if isinstance(value, PoolTransfer):
        slots = f"{rendered(value.device_indices)} {rendered(value.host_indices)}"
        return f"{value.name.value} {slots}"
    if isinstance(value, (list, tuple)):
        return f"({' '.join(map(rendered, value))})"
    if isinstance(value, (EvictParams, EvictResult)):
        return repr(value)
    # Pools, and what a lock returns for its release: no decision is in them.
    return type(value).__name__


def tree_state(harness: UnifiedHiCacheHarness) -> list[str]:
    """What every node holds and is locked by, and the orders in which nodes go."""
    core, components = harness.core, harness.config.components
    first = core.root_node.id
    nodes = sorted(core._collect_all_nodes(), key=lambda node: node.id)
    lines = []
    for node in nodes:
        parts = [f"node {node.id - first}"]
        if node is not core.root_node:
            parts.append(f"of {node.parent.id - first}, {len(node.key)} tokens")
            parts.append(f"hits {node.hit_count}, in flight {is_pending(node)}")
        for ct in components:
            cd = node.component_data[ct]
            slots = f"{rendered(cd.value)} {rendered(cd.host_value)}"
            parts.append(f"{ct.name} {slots} locks {cd.lock_ref} {cd.host_lock_ref}")
        lines.append("; ".join(parts))
    by_access = sorted(nodes, key=lambda node: node.last_access_time)
    lines.append(f"accessed: {[node.id - first for node in by_access]}")
    for tier, lists in (("device", core.lru_lists), ("host", core.host_lru_lists)):
        for ct in components[1:]:
            ids = [node.id - first for node in _in_lru_order(lists[ct])]
            lines.append(f"{ct.name} LRU on the {tier}: {ids}")
    for tier in ("device", "host"):
        leaves = getattr(core, f"evictable_{tier}_leaves")
        lines.append(f"{tier} leaves: {sorted(node.id - first for node in leaves)}")
    for ct in components:
        sizes = core.component_evictable_size_[ct], core.component_protected_size_[ct]
        lines.append(f"{ct.name} evictable and protected: {sizes}")
    return lines


def is_pending(node: Any) -> bool:
    return node.write_through_pending_id is not None


def _in_lru_order(lru: Any) -> Iterator[Any]:
    node = lru.head.lru_next[lru._pt]
    while node is not lru.tail:
        yield node
        node = node.lru_next[lru._pt]


class Recorder:
    """Writes down, in order, what a cache does; everything still happens."""

    def __init__(self, harness: UnifiedHiCacheHarness):
        self.harness = harness
        self.log: list[str] = []
        # Backups by what is copied, and by the call in which they are ordered.
        self.backups: collections.Counter[tuple[str, str]] = collections.Counter()
        self._within = ["elsewhere"]
        self._state: list[str] = []
        self._record_pools()
        self._record_calls()

    def note(self, line: str) -> None:
        """Write a line of the caller's, and what changed in the tree."""
        self.log.append(line)
        state = tree_state(self.harness)
        self.log += [changed for changed in state if changed not in self._state]
        self._state = state

    def _record_pools(self) -> None:
        harness, mamba = self.harness, self.harness.req_to_token_pool
        pools: dict[str, Any] = {"device KV": harness.allocator}
        if harness.config.has_swa:
            pools["device Full"] = harness.allocator.full_attn_allocator
            pools["device SWA"] = harness.allocator.swa_attn_allocator
        pools["device Mamba"] = mamba.mamba_allocator
        pools |= {f"host {ct.name}": pool for ct, pool in harness.host_pools.items()}
        for label, pool in pools.items():
            for name in ("alloc", "free", "free_segment", "free_swa"):
                if hasattr(pool, name):
                    self._record(pool, name, f"{label} {name}")
        self._record(mamba.mamba_pool, "copy_from", "state copied on the device")

    def _record_calls(self) -> None:
        cache, core = self.harness.cache, self.harness.core
        # What routers are told.
        for name in ("_record_store_event", "_record_remove_event"):
            self._record(core, name, name, of_node=True)
        for name in ("write", "load"):
            self._record(cache.cache_controller, name, name)
        for name in ("backup_from_device_all_layer", "load_to_device_per_layer"):
            self._record(cache.host_pool_group, name, name)
        for name in ("inc_lock_ref", "dec_lock_ref", "load_back"):
            self._record(cache, name, name, of_node=True)
        for name in ("inc_host_lock_ref", "dec_host_lock_ref"):
            self._record(cache, name, name, of_node=True)
        for name in ("insert", "evict", "evict_host", "check_hicache_events"):
            self._record(cache, name, name)

    def _record(self, owner: Any, name: str, label: str, of_node: bool = False) -> None:
        call: Callable[..., Any] = getattr(owner, name)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            self._within.append(name)
            result = call(*args, **kwargs)
            self._within.pop()
            if name == "backup_from_device_all_layer":
                what = "whole" if len(args[1]) else "component"
                self.backups[what, self._orderer()] += 1
            if of_node:
                node_id = args[0] if isinstance(args[0], int) else args[0].id
                node_id -= self.harness.core.root_node.id
                args = (f"node {node_id}", *args[1:])
            kwargs.pop("node_id", None)  # of a transfer
            given = [*map(rendered, args), *map(rendered, kwargs.items())]
            self.log.append(f"{label} {', '.join(given)} -> {rendered(result)}")
            return result

        setattr(owner, name, recorded)

    def _orderer(self) -> str:
        calls = ("insert", "evict", "check_hicache_events")
        return next(name for name in reversed(self._within) if name in calls)


def configs(mamba_size: int = 14) -> Iterator[CacheConfig]:
    """Small pools on both tiers, so that eviction and refusal are the rule."""
    for components, page_size, (policy, threshold) in itertools.product(
        ((FULL, MAMBA), (FULL, SWA, MAMBA)),
        (1, 4),
        (("write_through", 1), ("write_through", 3), ("write_back", 1)),
    ):
        yield CacheConfig(
            components=components,
            page_size=page_size,
            extra_buffer=page_size > 1,
            write_policy=policy,
            threshold=threshold,
            kv_size=160 * page_size,
            mamba_size=mamba_size,
            host_ratio=0.4,
            window=4 * page_size,
        )


def record(config: CacheConfig, seed: int, steps: int = STEPS) -> Recorder:
    """Run a trace on a new cache, up to its end with nothing left in the tree."""
    harness = UnifiedHiCacheHarness(config)
    recorder, trace = Recorder(harness), Trace(harness, seed)
    for _ in range(steps):
        recorder.note(trace.step())
    harness.evict_all()
    recorder.note("end")
    harness.check()
    return recorder


@needs_host_copies
class TestSwitch(CustomTestCase):
    def recorded(self, value: Optional[str], config: CacheConfig, seed: int):
        with mock.patch.dict(os.environ, {} if value is None else {SWITCH: value}):
            if value is None:
                os.environ.pop(SWITCH, None)
            return record(config, seed)

    def compare(self, policy: str, as_before: tuple[str, str]):
        """Backups that were ordered with the switch on, over all configurations."""
        total: collections.Counter[tuple[str, str]] = collections.Counter()
        for config, seed in itertools.product(configs(), SEEDS):
            if config.write_policy != policy:
                continue
            with self.subTest(config=str(config), seed=seed):
                on, off = (self.recorded(value, config, seed) for value in ("1", "0"))
                self.assertFalse(on.log == off.log, "the trace notices nothing")
                self.assertEqual(set(off.backups), {as_before})
                total += on.backups
        return total

    def test_write_through(self):
        """Off: at inserts only, and whole. On: also at evictions and polls."""
        on = self.compare("write_through", ("whole", "insert"))
        for what in ("whole", "component"):
            for where in ("insert", "evict", "check_hicache_events"):
                self.assertGreater(on[what, where], 0, f"{what} in {where}")

    def test_write_back(self):
        """Off: at evictions only, and whole. On: also components alone."""
        on = self.compare("write_back", ("whole", "evict"))
        self.assertGreater(on["component", "evict"], 0)
        self.assertEqual(set(on), {("whole", "evict"), ("component", "evict")})

    def test_default_is_on(self):
        config = next(configs())
        default, on, off = (
            self.recorded(value, config, seed=0).log for value in (None, "1", "0")
        )
        self.assertTrue(default == on)
        self.assertFalse(default == off)


if __name__ == "__main__":
    unittest.main()
