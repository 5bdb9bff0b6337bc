"""Counts what HiCache moves: bytes where they are copied, backups where they are ordered.

A copy that is held back (`Engine.slow_copies`) counts when it is issued.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from hicache_bench.cache.engine import Engine
from hicache_bench.copied import DIRECTIONS, POOLS
from sglang_cpu import direct_copies, kinds

# The side of a copy whose tensors hold one layer's rows, by the name of the copy.
_ROWS = {
    "transfer_kv_direct": ("src_layers", "src_indices"),
    "transfer_kv_all_layer_direct_lf_pf": ("src_ptrs", "src_indices"),
    "transfer_kv_per_layer_direct_pf_lf": ("dst_ptrs", "dst_indices"),
}

_bytes: Counter[tuple[str, str]] = Counter()


def install() -> None:
    """Count the bytes of every direct copy of this process from now on; once is enough."""
    for name, (rows, indices) in _ROWS.items():
        original = getattr(direct_copies, name)
        counted = _counted(original, rows, indices)
        for module_name, module in list(sys.modules.items()):
            if (
                module_name.startswith("sglang.srt.mem_cache")
                and getattr(module, name, None) is original
            ):
                setattr(module, name, counted)


def _counted(original: Callable[..., None], rows: str, indices: str) -> Callable[..., None]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def counted(*args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        tensors: list[torch.Tensor] = given[rows]
        every = [part for value in given.values() if isinstance(value, list) for part in value]
        kind, _, direction = kinds.current_kind(every).partition("_")
        original(*args, **kwargs)
        row = sum(tensor[0].numel() * tensor.element_size() for tensor in tensors)
        _bytes[POOLS[kind], DIRECTIONS[direction]] += row * len(given[indices])

    return counted


class Meter:
    """What one engine's cache moved since `reset`.

    bytes: by pool ("kv", "mamba") and direction. backups: ordered backups by kind: "whole" (KV and
    state), "kv" (KV alone), "component" (state alone). slots: host slots that the backups of a kind
    took, by kind and pool. again: Full KV tokens of the nodes that had a component-only backup,
    which a whole backup would have copied again.
    """

    def __init__(self, engine: Engine) -> None:
        self._tree = engine.tree
        self.reset()
        controller, core = engine.cache.cache_controller, engine.cache.tree_core
        self._write, self._spec = controller.write, core.build_backup_spec
        self._node_id = -1
        controller.write = self._recorded
        # An acknowledgement may have an id of its own, so the node is known by what is asked first.
        core.build_backup_spec = self._asked

    def reset(self) -> None:
        """Count from zero."""
        _bytes.clear()
        self.backups: Counter[str] = Counter()
        self.slots: Counter[tuple[str, str]] = Counter()
        self.again = 0

    def _asked(self, node_id: int, *args: Any, **kwargs: Any) -> Any:
        self._node_id = node_id
        return self._spec(node_id, *args, **kwargs)

    def _recorded(self, device_indices: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        taken = self._write(device_indices, *args, **kwargs)
        if taken is None:
            return None
        extra = kwargs.get("extra_pools") or []
        states = sum(len(transfer.host_indices) for transfer in extra)
        kind = "component" if not len(taken) else "whole" if states else "kv"
        self.backups[kind] += 1
        self.slots[kind, "kv"] += len(taken)
        self.slots[kind, "mamba"] += states
        if kind == "component":
            self.again += self._tree.node_tokens(self._node_id)
        return taken

    def report(self) -> dict[str, Any]:
        """Everything as JSON values; bytes in bytes, slots and tokens in numbers of them."""
        return {
            "bytes": {
                pool: {way: _bytes[pool, way] for way in DIRECTIONS.values()}
                for pool in ("kv", "mamba")
            },
            "backups": {kind: self.backups[kind] for kind in ("whole", "kv", "component")},
            "slots": {
                kind: {pool: self.slots[kind, pool] for pool in ("kv", "mamba")}
                for kind in ("whole", "kv", "component")
            },
            "full_tokens_not_copied_again": self.again,
        }
