"""The process in which one source tree's cache runs: commands in, results out, as JSON lines.

``python -m hicache_bench.cache.worker``, with the environment of `sglang_cpu.environment`. It is
started by `hicache_bench.cache.driver`, which sends one object a line, ``{"do": NAME, ...}``, and
gets one a line, ``{"ok": RESULT}`` or ``{"error": TEXT}``. Whatever sglang prints goes to standard
error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from hicache_bench.cache import api, meter, moments, workloads
from hicache_bench.cache.engine import Engine
from hicache_bench.cache.inserts import InsertTree
from hicache_bench.cache.sizes import (
    Chat,
    Deep,
    Inserts,
    OneState,
    Pools,
    SharedPrefix,
    Tenants,
)
from sglang_cpu.install import install


class Worker:
    """The commands; each public method is one."""

    def __init__(self, sglang: Any) -> None:
        self._api = sglang
        self._inserts: InsertTree | None = None

    def hello(self) -> dict[str, Any]:
        """Where sglang came from."""
        return {"sglang": str(sys.modules["sglang"].__file__)}

    def shared_prefix(self, pools: dict[str, Any], shape: dict[str, Any]) -> Any:
        """Run `workloads.shared_prefix` on a fresh cache."""
        return workloads.shared_prefix(self._engine(pools), SharedPrefix(**shape))

    def one_state(self, pools: dict[str, Any], shape: dict[str, Any]) -> Any:
        """Run `moments.one_state` on a fresh cache."""
        return moments.one_state(self._engine(pools), OneState(**shape))

    def deep(self, pools: dict[str, Any], shape: dict[str, Any]) -> Any:
        """Run `workloads.deep` on a fresh cache."""
        return workloads.deep(self._engine(pools), Deep(**shape))

    def chat(self, pools: dict[str, Any], shape: dict[str, Any]) -> Any:
        """Run `workloads.chat` on a fresh cache."""
        return workloads.chat(self._engine(pools), Chat(**shape))

    def tenants(self, pools: dict[str, Any], shape: dict[str, Any]) -> Any:
        """Run `workloads.tenants` on a fresh cache."""
        return workloads.tenants(self._engine(pools), Tenants(**shape))

    def growth(self, pools: dict[str, Any], lengths: list[int], suffix: int) -> Any:
        """Run `workloads.growth`."""
        return workloads.growth(
            lambda given: Engine(self._api, given), Pools(**pools), lengths, suffix
        )

    def grow_tree(self, inserts: dict[str, Any], page: int) -> Any:
        """Build the tree that `insert` times; the one before is dropped."""
        self._inserts = None
        self._inserts = InsertTree(self._api, Inserts(**inserts), page)
        return {
            "nodes": self._inserts.nodes,
            "targets": self._inserts.targets_on_both_tiers(),
        }

    def insert(self) -> Any:
        """Time one batch of inserts."""
        if self._inserts is None:
            raise RuntimeError("insert before grow_tree")
        return self._inserts.batch()

    def _engine(self, pools: dict[str, Any]) -> Engine:
        return Engine(self._api, Pools(**pools))


def main() -> int:
    """Serve commands until standard input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    install()
    meter.install()
    worker = Worker(api.load())
    for line in sys.stdin:
        command = json.loads(line)
        try:
            method: Callable[..., Any] = getattr(worker, command.pop("do"))
            reply = {"ok": method(**command)}
        except Exception as error:
            reply = {
                "error": f"{type(error).__name__}: {error}",
                "traceback": traceback.format_exc(),
            }
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
