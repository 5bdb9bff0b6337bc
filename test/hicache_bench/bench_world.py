"""Rows as a run gives them, and a small engine that caches as sglang does, for tests without a
server.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hicache_bench.client import Answer
from hicache_bench.results import Row
from hicache_bench.trees import Tree
from hicache_bench.workload import (
    Family,
    Measurement,
    Policy,
    Probe,
    Shape,
    sizes_for,
)

SHAPE = Shape(families=4, prefix=128, suffix=72)
RELEASED = Tree("v0.5.17 as released", Path("/trees/base"), "a" * 64, incremental=False)
CORE = Tree("v0.5.17 + core", Path("/trees/core"), "b" * 64, incremental=True)
LOGPROBS = (-1.0, -2.0, -0.5, -3.0)


def answer(device: int = 0, host: int = 0, **changes: Any) -> Answer:
    """An answer of a prompt of prefix + suffix."""
    cached = device + host
    made = Answer(SHAPE.prompt, cached, (device, host, 0), (11, 12, 13, 14), LOGPROBS)
    return replace(made, **changes)


def family(measured: Answer, **changes: Any) -> Family:
    """A family whose earlier phases found nothing, as they should."""
    return replace(Family(answer(), 0, 0, measured), **changes)


def row(
    tree: Tree,
    families: Sequence[Family],
    policy: Policy = "write_through",
    model: str = "lfm2",
    probes: Sequence[Probe] | None = None,
) -> Row:
    """A row of these families."""
    if probes is None:
        names = ("first flood", "second flood", "host pool")
        probes = [Probe(name, 16, (0, 16, 0)) for name in names]
    shape = replace(SHAPE, families=len(families))
    measured = Measurement(shape, sizes_for(shape, policy), tuple(families), tuple(probes))
    return Row(model, tree, policy, "0.5.17", measured, start_seconds=20.0, run_seconds=2.0)


def released(model: str = "lfm2") -> Row:
    """What 0.5.17 as released shows."""
    return row(RELEASED, [family(answer())] * 4, model=model)


def core(model: str = "lfm2") -> Row:
    """What 0.5.17 with core shows; the noise of one family is 5e-7."""
    noisy = answer(host=128, logprobs=(-1.0, -2.0 + 5e-7, -0.5, -3.0))
    return row(CORE, [family(answer(host=128))] * 3 + [family(noisy)], model=model)


class Engine:
    """An engine with a device and a host tier, each going by least recent use.

    Prompts are found by a common prefix that has its KV and, at its very end, a state. KV goes to
    the host whole when a prompt is new. A state that comes later follows only where `incremental`
    is set: that is the difference between 0.5.17 as released and with core.
    """

    def __init__(self, incremental: bool, device_states: int, host_states: int = 10_000) -> None:
        self._incremental = incremental
        self._device: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self._host: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self._kv_on_host: set[tuple[int, ...]] = set()
        self._limits = (device_states, host_states)
        self.prompts: list[list[int]] = []
        self.flushes = 0

    def flush(self) -> None:
        for kept in (self._device, self._host, self._kv_on_host):
            kept.clear()
        self.flushes += 1

    def generate(self, ids: Sequence[int], new_tokens: int) -> Answer:
        self.prompts.append(list(ids))
        tiers, found = self._match(tuple(ids))
        if found:
            self._put(self._device, found, 0)
        self._put(self._device, tuple(ids), 0)
        known = any(backed[: len(ids)] == tuple(ids) for backed in self._kv_on_host)
        if not known or self._incremental:
            self._put(self._host, tuple(ids), 1)
        if not known:
            self._kv_on_host.add(tuple(ids))
        logprobs = tuple(-1.0 - index for index in range(new_tokens))
        return Answer(len(ids), sum(tiers), tiers, tuple(range(new_tokens)), logprobs)

    def _match(self, ids: tuple[int, ...]) -> tuple[tuple[int, int, int], tuple[int, ...]]:
        for length in range(len(ids) - 1, 0, -1):
            if ids[:length] in self._device:
                return (length, 0, 0), ids[:length]
            if ids[:length] in self._host:
                return (0, length, 0), ids[:length]
        return (0, 0, 0), ()

    def _put(
        self, tier: OrderedDict[tuple[int, ...], None], ids: tuple[int, ...], which: int
    ) -> None:
        tier[ids] = None
        tier.move_to_end(ids)
        while len(tier) > self._limits[which]:
            tier.popitem(last=False)
