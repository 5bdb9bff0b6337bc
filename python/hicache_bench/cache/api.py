"""The names of sglang that the replay uses, taken from whatever tree is on PYTHONPATH.

They have no types here: a tree is chosen at run time, and its source is not part of this
repository.
"""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

_NAMES = {
    "sglang.srt.configs.mamba_utils": (
        "Mamba2CacheParams",
        "Mamba2StateDType",
        "Mamba2StateShape",
    ),
    "sglang.srt.managers.schedule_batch": ("Req", "ReqKvInfo", "ScheduleBatch"),
    "sglang.srt.mem_cache.allocation": ("alloc_req_slots",),
    "sglang.srt.mem_cache.allocator.paged": ("PagedTokenToKVPoolAllocator",),
    "sglang.srt.mem_cache.base_prefix_cache": ("InitLoadBackParams", "InsertParams"),
    "sglang.srt.mem_cache.cache_init_params": ("CacheInitParams",),
    "sglang.srt.mem_cache.common": ("evict_from_tree_cache", "release_kv_cache"),
    "sglang.srt.mem_cache.hicache_storage": ("PoolName",),
    "sglang.srt.mem_cache.memory_pool": ("HybridLinearKVPool", "HybridReqToTokenPool"),
    "sglang.srt.mem_cache.radix_cache": ("RadixKey",),
    "sglang.srt.mem_cache.unified_cache.components": ("ComponentType",),
    "sglang.srt.mem_cache.unified_radix_cache": ("UnifiedRadixCache",),
    "sglang.srt.sampling.sampling_params": ("SamplingParams",),
    "sglang.srt.server_args": ("ServerArgs", "set_global_server_args_for_scheduler"),
}


# Names of some releases only: `hicache_bench.cache.scheduler` goes by whether they are there.
_LATER = {
    "sglang.srt.managers.schedule_batch": ("FINISH_LENGTH",),
    "sglang.srt.mem_cache.common": ("checkpoint_kv_cache",),
}


def load() -> Any:
    """All names as attributes of one object. Raises ImportError where the tree lacks one."""
    found = SimpleNamespace()
    for module_name, names in _NAMES.items():
        module = importlib.import_module(module_name)
        for name in names:
            if not hasattr(module, name):
                raise ImportError(f"{module.__file__}: no {name}; the replay needs it")
            setattr(found, name, getattr(module, name))
    for module_name, names in _LATER.items():
        module = importlib.import_module(module_name)
        for name in names:
            if hasattr(module, name):
                setattr(found, name, getattr(module, name))
    return found
