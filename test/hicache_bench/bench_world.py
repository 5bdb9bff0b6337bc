"""Rows as a run gives them, and a small engine that caches as sglang does, for tests without a
server.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hicache_bench.client import Answer
from hicache_bench.copied import Copied, by_pool
from hicache_bench.measurement import Family, Measurement, Probe, Step
from hicache_bench.results import Row
from hicache_bench.trees import Tree
from hicache_bench.workload import Policy, Shape, sizes_for
from hicache_bench.workloads import SHARED_PREFIX, WORKLOADS, Workload

SHAPE = Shape(families=4, prefix=128, suffix=72)
RELEASED = Tree("v0.5.17 as released", Path("/trees/base"), "a" * 64, incremental=False)
CORE = Tree("v0.5.17 + core", Path("/trees/core"), "b" * 64, incremental=True)
EXTENDED = Tree(
    "v0.5.17 + extended", Path("/trees/extended"), "c" * 64, incremental=True, extended=True
)
PEER = Tree("v0.5.23 as released", Path("/trees/peer"), "d" * 64, incremental=True, peer=True)
LOGPROBS = (-1.0, -2.0, -0.5, -3.0)
# What a server copied, in bytes by kind, and the same as rows have it.
KINDS = {
    "kv_backup": 2_900_000,
    "kv_load": 24_600,
    "conv_backup": 30_000,
    "conv_load": 100,
    "temporal_backup": 2_800,
    "temporal_load": 20,
}
COPIED = by_pool(KINDS)
BY_NAME = {workload.name: workload for workload in WORKLOADS}


def answer(device: int = 0, host: int = 0, **changes: Any) -> Answer:
    """An answer of a prompt of prefix + suffix."""
    cached = device + host
    made = Answer(SHAPE.prompt, cached, (device, host, 0), (11, 12, 13, 14), LOGPROBS)
    return replace(made, **changes)


def steps(workload: Workload = SHARED_PREFIX) -> tuple[Step, ...]:
    """Steps that found what they must."""
    made = []
    for request in (*workload.first, *workload.create):
        expected = request.expected(SHAPE)
        made.append(Step(request.what, (*expected, 0), expected))
    return tuple(made)


def family(measured: Answer, **changes: Any) -> Family:
    """A family whose earlier phases found nothing, as they should."""
    return replace(Family(answer(), steps(), measured), **changes)


def row(
    tree: Tree,
    families: Sequence[Family],
    policy: Policy = "write_through",
    *,
    model: str = "lfm2",
    probes: Sequence[Probe] | None = None,
    workload: Workload = SHARED_PREFIX,
    version: str = "0.5.17",
    copied: Copied | None = None,
) -> Row:
    """A row of these families."""
    if probes is None:
        names = ("first flood", "second flood", "host pool")
        probes = [Probe(name, 16, (0, 16, 0)) for name in names]
    shape = replace(SHAPE, families=len(families))
    measured = Measurement(shape, sizes_for(shape, policy), tuple(families), tuple(probes))
    return Row(
        model,
        tree,
        policy,
        workload,
        version,
        measured,
        start_seconds=20.0,
        run_seconds=2.0,
        copied=copied,
    )


def released(model: str = "lfm2") -> Row:
    """What 0.5.17 as released shows."""
    return row(RELEASED, [family(answer())] * 4, model=model)


def core(model: str = "lfm2") -> Row:
    """What 0.5.17 with core shows; the noise of one family is 5e-7."""
    noisy = answer(host=128, logprobs=(-1.0, -2.0 + 5e-7, -0.5, -3.0))
    return row(CORE, [family(answer(host=128))] * 3 + [family(noisy)], model=model)


def extended(name: str = "host") -> Row:
    """What 0.5.17 with both groups shows in a workload under write-back."""
    found = family(answer(host=128), steps=steps(BY_NAME[name]))
    return row(EXTENDED, [found] * 4, "write_back", workload=BY_NAME[name])


class Engine:
    """An engine with a device and a host tier, each going by least recent use.

    Prompts are found by a common prefix that has its KV and, at its very end, a state. KV goes to
    the host whole: under write-through when a prompt is new, under write-back when it is evicted
    and nothing on the device continues it. A state whose KV is there already follows only where
    `incremental` is set, and not while that KV is being written, in the same pass: that is the
    difference between 0.5.17 as released and with core. With `extended` no state is lost.
    """

    def __init__(
        self,
        incremental: bool,
        device_states: int,
        host_states: int = 10_000,
        *,
        extended: bool = False,
        write_back: bool = False,
    ) -> None:
        self._incremental = incremental
        self._extended = extended
        self._write_back = write_back
        self._device: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self._host: OrderedDict[tuple[int, ...], None] = OrderedDict()
        self._kv_on_host: set[tuple[int, ...]] = set()
        self._limits = (device_states, host_states)
        self._one_at_a_time = threading.RLock()
        self._passes = 0
        self.prompts: list[list[int]] = []
        self.flushes = 0
        self.clients = 1

    def flush(self) -> None:
        for kept in (self._device, self._host, self._kv_on_host):
            kept.clear()
        self.flushes += 1

    def another(self) -> Engine:
        with self._one_at_a_time:
            self.clients += 1
        return self

    def close(self) -> None:
        with self._one_at_a_time:
            self.clients -= 1

    def generate(self, ids: Sequence[int], new_tokens: int) -> Answer:
        return self.generate_together([ids], new_tokens)[0]

    def generate_together(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[Answer]:
        with self._one_at_a_time:
            self._passes += 1
            found = [self._match(tuple(ids)) for ids in prompts]
            in_flight: set[tuple[int, ...]] = set()
            for ids, (_, prefix) in zip(prompts, found, strict=True):
                self.prompts.append(list(ids))
                if prefix:
                    self._put_on_device(prefix)
                self._put_on_device(tuple(ids))
                if not self._write_back:
                    self._write_through(tuple(ids), in_flight)
            return [
                self._answer(ids, tiers, new_tokens)
                for ids, (tiers, _) in zip(prompts, found, strict=True)
            ]

    def _answer(self, ids: Sequence[int], tiers: tuple[int, int, int], new_tokens: int) -> Answer:
        logprobs = tuple(-1.0 - index for index in range(new_tokens))
        tokens = tuple(range(new_tokens))
        return Answer(len(ids), sum(tiers), tiers, tokens, logprobs, float(self._passes))

    def _match(self, ids: tuple[int, ...]) -> tuple[tuple[int, int, int], tuple[int, ...]]:
        for length in range(len(ids) - 1, 0, -1):
            if ids[:length] in self._device:
                return (length, 0, 0), ids[:length]
            if ids[:length] in self._host:
                return (0, length, 0), ids[:length]
        return (0, 0, 0), ()

    def _write_through(self, ids: tuple[int, ...], in_flight: set[tuple[int, ...]]) -> None:
        known = _covered(ids, self._kv_on_host)
        if not known:
            self._kv_on_host.add(ids)
            in_flight.add(ids)
        if not known or self._extended or (self._incremental and not _covered(ids, in_flight)):
            self._put_on_host(ids)

    def _evicted(self, ids: tuple[int, ...]) -> None:
        """Write-back: keep what leaves the device, where the tree does."""
        known = _covered(ids, self._kv_on_host)
        leaf = not any(len(other) > len(ids) and _begins(other, ids) for other in self._device)
        if self._extended or (leaf and not known):
            self._kv_on_host.add(ids)
            self._put_on_host(ids)

    def _put_on_device(self, ids: tuple[int, ...]) -> None:
        self._device[ids] = None
        self._device.move_to_end(ids)
        while len(self._device) > self._limits[0]:
            out, _ = self._device.popitem(last=False)
            if self._write_back and out not in self._host:
                self._evicted(out)

    def _put_on_host(self, ids: tuple[int, ...]) -> None:
        self._host[ids] = None
        self._host.move_to_end(ids)
        while len(self._host) > self._limits[1]:
            self._host.popitem(last=False)


def _begins(ids: tuple[int, ...], prefix: tuple[int, ...]) -> bool:
    return ids[: len(prefix)] == prefix


def _covered(ids: tuple[int, ...], written: set[tuple[int, ...]]) -> bool:
    return any(_begins(other, ids) for other in written)
