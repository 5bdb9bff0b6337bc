"""What the package uses of sglang and of the harness of the registered tests.

They have no types here: the tree is chosen at run time, and its source is not part of this
repository. `environment` makes the process in which both can be imported.
"""

from __future__ import annotations

import importlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import sglang_cpu
from patchseries.repository import Repository

_PLUGIN = "sglang_cpu.pytest_plugin"
_RESERVING = (
    "sglang.srt.mem_cache.memory_pool_host",
    "sglang.srt.mem_cache.pool_host.base",
    "sglang.srt.mem_cache.pool_host.mha",
)


def environment(tree: Path) -> dict[str, str]:
    """The environment of a process that fuzzes the tree.

    Args:
        tree: a folder that holds ``sglang/``.

    Raises:
        FileNotFoundError: the tree holds no sglang.
    """
    base = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    env = sglang_cpu.environment(tree, base)
    folders = [
        *env["PYTHONPATH"].split(os.pathsep),
        str(Path(__file__).resolve().parents[1]),
        str(Repository.default().registered / "unit" / "mem_cache"),
    ]
    return {**env, "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders))}


@lru_cache
def harness() -> Any:
    """The module ``unified_hicache_harness``, with the CPU in place of a GPU where there is none.

    Raises:
        ImportError: not in a process of `environment`.
    """
    importlib.import_module(_PLUGIN)
    module = importlib.import_module("unified_hicache_harness")
    for name in _RESERVING:
        # sglang leaves so much memory free for others; these pools take some hundred kilobytes.
        vars(importlib.import_module(name))["HICACHE_HOST_MEMORY_RESERVE_BYTES"] = 0
    return module


def waits_for_transfers() -> bool:
    """Whether the tree is one in which no owed state may be lost (the series' group `extended`)."""
    return hasattr(harness().UnifiedRadixCache, "wait_for_transfers")


def reset_node_ids() -> None:
    """Let the ids of tree nodes begin with 0 again."""
    importlib.import_module(
        "sglang.srt.mem_cache.unified_cache.unified_tree_core"
    ).UnifiedTreeNode.counter = 0
