"""Time of inserts that trigger nothing: the path is there, KV and state on both tiers."""

from __future__ import annotations

import gc
import random
import time
from array import array
from dataclasses import dataclass
from typing import Any

import torch

from hicache_bench.cache.engine import Engine
from hicache_bench.cache.sizes import Inserts, Pools

_FAN = 9  # leaves below each shared page
_NO_BACKUP = 1 << 30  # a hit count that no node reaches


@dataclass(frozen=True)
class _Path:
    """A leaf's path: token ids, and their device slots (int64 [len(tokens)])."""

    tokens: array[int]
    slots: torch.Tensor


class InsertTree:
    """A tree of a wanted size, and batches of inserts into it.

    Families of one shared page and leaves of one page below it. `targets` of the leaves are on both
    tiers, with their states: there a tree with component-only backup asks all of its questions
    before it finds that nothing is to be copied.
    """

    def __init__(self, api: Any, wanted: Inserts, page: int) -> None:
        self._wanted = wanted
        families = -(-wanted.nodes // (_FAN + 1))
        leaves = families * _FAN
        room = (leaves + families + 64) * page
        # Slots of the tree's own nodes, and of the one insert under way. No byte of them is looked
        # at, so a token has few.
        self.engine = Engine(api, Pools(room, leaves + 64, 1.1, page, room, head_dim=1))
        self._random = random.Random(wanted.seed)
        self._targets: list[_Path] = []
        every = max(1, leaves // wanted.targets)
        # The collector would look through a growing tree again and again.
        gc.disable()
        try:
            self._fill(families, every)
        finally:
            gc.enable()
        gc.collect()
        self.nodes = self.engine.tree.nodes()

    def _fill(self, families: int, every: int) -> None:
        cache, page = self.engine.cache, self.engine.pools.page
        threshold = cache.write_through_threshold
        for family in range(families):
            shared = array("q", range(page * family, page * (family + 1)))
            slots = self.engine.allocator.alloc(page)
            for leaf in range(_FAN):
                own = page * (families + family * _FAN + leaf)
                path = _Path(
                    shared + array("q", range(own, own + page)),
                    torch.cat([slots, self.engine.allocator.alloc(page)]),
                )
                target = (family * _FAN + leaf) % every == 0
                cache.write_through_threshold = threshold if target else _NO_BACKUP
                # The first leaf brings the shared page too, the others find it.
                self._insert(path, known=page if leaf else 0)
                if target:
                    cache.check_hicache_events()
                    self._targets.append(path)
        cache.write_through_threshold = _NO_BACKUP

    def _insert(self, path: _Path, known: int) -> float:
        """Insert a path of which the tree knows the first `known` tokens; seconds that it took.

        Like a request that reuses them, it brings the tree's own slots for these, so that no slot
        is given back: the leanest insert there is, of which whatever a patch adds is the most.
        """
        engine, api = self.engine, self.engine.api
        state = engine.req_pool.mamba_allocator.alloc(1)
        params = api.InsertParams(
            key=api.RadixKey(path.tokens),
            value=path.slots,
            mamba_value=state,
            prev_prefix_len=known,
        )
        began = time.perf_counter()
        result = engine.cache.insert(params)
        seconds = time.perf_counter() - began
        if result.mamba_exist:
            engine.req_pool.mamba_allocator.free(state)
        return seconds

    def batch(self) -> dict[str, Any]:
        """One batch of inserts at random targets: seconds of each, and what they triggered.

        slots: device slots that they took or gave back.
        """
        writes, free = self._writes(), self.engine.allocator.available_size()
        chosen = [self._random.choice(self._targets) for _ in range(self._wanted.batch)]
        gc.disable()
        try:
            seconds = [self._insert(path, known=len(path.tokens)) for path in chosen]
        finally:
            gc.enable()
        return {
            "seconds": seconds,
            "backups": self._writes() - writes,
            "slots": free - self.engine.allocator.available_size(),
        }

    def _writes(self) -> int:
        """States on the host: each backup would add one."""
        return self.engine.host_used()["mamba"]

    def targets_on_both_tiers(self) -> int:
        """Targets whose KV and state are on the device and on the host."""
        api, core = self.engine.api, self.engine.cache.tree_core
        count = 0
        for node in core._collect_all_nodes():
            parts = node.component_data
            values = [
                value
                for kind in (api.ComponentType.FULL, api.ComponentType.MAMBA)
                for value in (parts[kind].value, parts[kind].host_value)
            ]
            count += all(isinstance(value, torch.Tensor) for value in values)
        return count
