"""What the workloads share: prompts, floods, the requests that count, what each phase copied."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable
from typing import Any

from hicache_bench.cache.engine import Engine, Served
from hicache_bench.cache.meter import Meter


class Prompts:
    """Random tokens of one seed: int64, so that no two prompts share a page by chance."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def fresh(self, length: int) -> array[int]:
        """`length` tokens that came in no prompt before."""
        tokens = array("q")
        tokens.frombytes(self._random.randbytes(8 * length))
        # token ids are not negative, and stay far from overflow
        return array("q", [token & 0xFFFFFFFF for token in tokens])


class MissedMomentError(Exception):
    """The situation that a workload is about did not come about, so its hits mean nothing."""


class Replay:
    """One workload under way on one engine."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine = engine
        self.prompts = Prompts(seed)
        self._meter = Meter(engine)
        self._copied: dict[str, Any] = {}
        self._served: list[Served] = []
        self._eligible = 0
        self._hits = 0
        self._began = time.perf_counter()

    def phase(self, name: str) -> None:
        """What was copied since the last phase ended is that of `name`."""
        self._copied[name] = self._meter.report()
        self._meter.reset()

    def count(self, served: Served, reusable: int | None) -> None:
        """Let a request count. reusable: tokens that a hit must cover; None: nothing to find."""
        self._served.append(served)
        if reusable is not None:
            self._eligible += 1
            self._hits += served.cached >= reusable

    def flood(
        self, paths: list[array[int]], length: int, common: array[int] | None = None, left: int = 0
    ) -> int:
        """Serve unrelated prompts until nothing of the paths is on the device; how many it took.

        common: what the prompts begin with, as the paths do; it may stay. left: paths of which
        something may stay. Raises MissedMomentError where the prompts do not do it.
        """
        begin, pools = common or array("q"), self.engine.pools
        return self._serve_until(
            lambda: self.on_device(paths, len(begin)) <= left,
            lambda: begin + self.prompts.fresh(length - len(begin)),
            most=8 * (pools.device_tokens // length + pools.device_states),
        )

    def press_states(self, gone: Callable[[], bool]) -> int:
        """Serve prompts of two pages, each of which takes a state, until `gone`; how many.

        Raises MissedMomentError where the prompts do not do it.
        """
        pools = self.engine.pools
        return self._serve_until(
            gone, lambda: self.prompts.fresh(2 * pools.page), most=8 * pools.device_states
        )

    def _serve_until(
        self, done: Callable[[], bool], prompt: Callable[[], array[int]], most: int
    ) -> int:
        for sent in range(most):
            if done():
                return sent
            self.engine.serve(prompt())
        raise MissedMomentError(f"after {most} prompts it was still on the device")

    def on_device(self, paths: list[array[int]], common: int = 0) -> int:
        """Paths of which more than the common tokens is on the device, or the state at the end."""
        found = [self.engine.tree.on_device(path) for path in paths]
        return sum(state or tokens > common for tokens, state in found)

    def result(self, **more: Any) -> dict[str, Any]:
        """Everything as JSON values. The cache's own check of its tree raises on a fault."""
        engine = self.engine
        engine.cache.sanity_check()
        prompt = sum(served.prompt for served in self._served)
        device = sum(served.device for served in self._served)
        host = sum(served.host for served in self._served)
        return {
            "requests": len(self._served),
            "eligible": self._eligible,
            "prefix_hits": self._hits,
            "prompt_tokens": prompt,
            "tokens": {"device": device, "host": host, "computed": prompt - device - host},
            "token_hit_rate": (device + host) / prompt,
            "copied": self._copied,
            **more,
            "host_slots": engine.host_used(),
            "host_size": {"kv": engine.host_kv.size, "mamba": engine.host_states.size},
            "nodes": engine.tree.nodes(),
            "tree_core": type(engine.cache.tree_core).__name__,
            "prefixes_compared": engine.contents.compared,
            "token_bytes": engine.contents.token_bytes,
            "state_bytes": engine.contents.state_bytes,
            "seconds": time.perf_counter() - self._began,
        }


def floor(length: int, page: int) -> int:
    """Tokens of the whole pages of `length`."""
    return length // page * page
