"""All ranks decide the same, whenever each of them sees its copies finish.

Two and four processes run one trace over gloo. Each copy looks unfinished for a number
of polls that differs from rank to rank, so that only what all ranks have seen may be
acted upon. After every step the ranks compare all that their caches have done.
"""

import collections
import datetime
import functools
import hashlib
import itertools
import multiprocessing
import os
import random
import tempfile
import traceback
import unittest
from typing import Any, Callable, Iterator
from unittest import mock

import torch
import torch.distributed as dist
import unified_hicache_harness
from test_unified_backup_switch import Recorder, Trace
from unified_hicache_harness import (
    COMPONENTS_ARE_NOT_LOCKED,
    FULL,
    MAMBA,
    SWA,
    CacheConfig,
    UnifiedHiCacheHarness,
    needs_host_copies,
)

from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.test.ci.ci_register import register_cpu_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=50, suite="base-a-test-cpu")

STEPS = 70
MAX_SKEW = 6
# Ends ranks that wait for each other in different places; nothing else takes so long.
HANG = datetime.timedelta(minutes=5)


class RankHarness(UnifiedHiCacheHarness):
    """A cache in groups of processes, as the scheduler of a tensor-parallel rank sets
    it up, whose copies look unfinished for a while of its own."""

    def __init__(self, config: CacheConfig, group: dist.ProcessGroup, seed: str):
        in_group = functools.partial(
            CacheInitParams, tp_cache_group=group, attn_tp_cache_group=group
        )
        with mock.patch.object(unified_hicache_harness, "CacheInitParams", in_group):
            super().__init__(config)
        self.skew = random.Random(seed)
        self.polls = 0
        self.counts: collections.Counter[str] = collections.Counter()
        self._skew_copies("start_writing", self.controller.ack_write_queue)
        self._skew_copies("start_loading", self.controller.ack_load_queue)

    def _skew_copies(self, start_name: str, queue: list) -> None:
        start = getattr(self.controller, start_name)

        def skewed() -> Any:
            before = len(queue)
            result = start()
            if len(queue) > before:
                event = SkewedEvent(queue[-1].finish_event, self)
                queue[-1] = queue[-1]._replace(finish_event=event)
            return result

        setattr(self.controller, start_name, skewed)

    def poll(self) -> None:
        self.polls += 1
        queues = self.controller.ack_write_queue, self.controller.ack_load_queue
        ready = [len(q) - self.cache._count_ready_acks(q) for q in queues]
        super().poll()
        if ready != [len(q) for q in queues]:
            self.counts["polls held up by another rank"] += 1


class SkewedEvent:
    """The event behind a copy, seen late by the polls of one rank."""

    def __init__(self, event: Any, rank: RankHarness):
        self.event, self.rank = event, rank
        self.ready_at = rank.polls + rank.skew.randint(0, MAX_SKEW)

    def query(self) -> bool:
        return self.rank.polls >= self.ready_at and self.event.query()

    def synchronize(self) -> None:
        if not self.query():
            self.rank.counts["copies waited for"] += 1
        self.event.synchronize()
        self.ready_at = 0

    def elapsed_time(self, end: Any) -> float:
        return self.event.elapsed_time(end)


class Rank:
    """One rank's run of a trace."""

    def __init__(self, config: CacheConfig, seed: int, group: dist.ProcessGroup):
        self.where = f"{config}, seed {seed}"
        self.harness = RankHarness(config, group, f"{seed} {dist.get_rank()}")
        self.recorder = Recorder(self.harness)
        self.trace = Trace(self.harness, seed)
        self._count("_execute_kv_backup", "backups refused", lambda out: out is None)
        self._count("wait_for_transfers", "waits for a slot", bool)

    def _count(self, name: str, what: str, counts: Callable[[Any], bool]) -> None:
        call = getattr(self.harness.cache, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            self.harness.counts[what] += counts(result)
            return result

        setattr(self.harness.cache, name, counted)

    def run(self, steps: int) -> collections.Counter[str]:
        for step in range(steps):
            seen = len(self.recorder.log)
            try:
                self.recorder.note(self.trace.step())
            except Exception:
                self.recorder.log.append(traceback.format_exc())
            compare(f"{self.where}, step {step}", self.recorder.log[seen:], self.own())
        self.harness.check()
        for (what, orderer), count in self.recorder.backups.items():
            self.harness.counts[f"{what} in {orderer}"] += count
        return self.harness.counts

    def own(self) -> list[str]:
        """Decisions that a recording leaves out: transfers in flight, and refusals."""
        core, cache = self.harness.core, self.harness.cache
        nodes = sorted(core._collect_all_nodes(), key=lambda node: node.id)
        return [
            *(
                f"node {node.id} in flight: {node.write_through_pending_id} "
                f"{node.write_through_older_ids}"
                for node in nodes
            ),
            f"ongoing: {[*cache.ongoing_write_through]} {[*cache.ongoing_load_back]}",
            f"refused: {[*core._refused_nodes]} {[*core._refused_states]}",
        ]


def compare(where: str, done: list[str], held: list[str]) -> None:
    """Compare what this rank has done in a step, and holds after it, with the others.

    AssertionError: the ranks differ, or have failed alike.
    """
    lines = done + held
    digest = hashlib.sha256("\n".join([where, *lines]).encode()).digest()[:8]
    mine = torch.tensor(list(digest), dtype=torch.uint8)
    all_digests = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(all_digests, mine)
    if any(not torch.equal(each, mine) for each in all_digests):
        all_lines: list[list[str]] = [[] for _ in all_digests]
        dist.all_gather_object(all_lines, [where, *lines])
        raise AssertionError(first_difference(where, all_lines))
    assert "Traceback" not in done[-1], f"{where}, on all ranks:\n{done[-1]}"


def first_difference(where: str, all_lines: list[list[str]]) -> str:
    rows = itertools.zip_longest(*all_lines, fillvalue="nothing more")
    place, row = next((i, row) for i, row in enumerate(rows) if len(set(row)) > 1)
    common = all_lines[0][max(1, place - 5) : place]
    return "\n".join(
        [
            f"ranks differ: {where}, entry {place - 1}",
            *(f"  all     {line}" for line in common),
            *(f"  rank {rank}  {line}" for rank, line in enumerate(row)),
        ]
    )


def configs(policy: str) -> Iterator[CacheConfig]:
    """Little room on the host, so that backups are refused; and few states on the
    device, so that requests wait for those that transfers lock."""
    for components, page_size, (mamba_size, host_ratio) in itertools.product(
        ((FULL, MAMBA), (FULL, SWA, MAMBA)), (1, 4), ((14, 0.4), (6, 2.0))
    ):
        yield CacheConfig(
            components=components,
            page_size=page_size,
            extra_buffer=page_size > 1,
            write_policy=policy,
            kv_size=160 * page_size,
            mamba_size=mamba_size,
            host_ratio=host_ratio,
            window=4 * page_size,
        )


def run_rank(rank: int, size: int, store: str, policy: str, seed: int, out: Any):
    """One process: run all traces and send the counts, or the error as text."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # 127.0.0.1
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{store}",
            rank=rank,
            world_size=size,
            timeout=HANG,
        )
        # The cache's own group: what it does there cannot be taken for a comparison.
        group = dist.new_group(backend="gloo", timeout=HANG)
        counts: collections.Counter[str] = collections.Counter()
        for config in configs(policy):
            counts += Rank(config, seed, group).run(STEPS)
        out.send(counts)
    except AssertionError as difference:
        out.send(str(difference))
    except Exception:
        out.send(f"rank {rank}: {traceback.format_exc()}")
    finally:
        out.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def run_ranks(size: int, policy: str, seed: int = 1) -> list:
    """What every rank sent."""
    # With sglang imported already, a forked rank starts at once; CUDA forbids it.
    method = "spawn" if torch.cuda.is_available() else "fork"
    context = multiprocessing.get_context(method)
    ranks = []
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        for rank in range(size):
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(
                target=run_rank, args=(rank, size, store, policy, seed, sender)
            )
            process.start()
            sender.close()
            ranks.append((process, receiver))
        try:
            return [received(receiver) for _, receiver in ranks]
        finally:
            for process, _ in ranks:
                process.kill()
                process.join()


def received(receiver: Any) -> Any:
    try:
        return receiver.recv()
    except EOFError:
        return "ended without a word"


@needs_host_copies
@unittest.skipUnless(COMPONENTS_ARE_NOT_LOCKED, "counts what later changes do")
class TestRanks(CustomTestCase):
    def decide_alike(self, policy: str, *expected: str):
        for size in (2, 4):
            with self.subTest(ranks=size):
                results = run_ranks(size, policy)
                errors = {result for result in results if isinstance(result, str)}
                self.assertFalse(errors, "\n".join(sorted(errors)))
                # A slow rank holds up the others: by that alone, counts may differ.
                held_up = [
                    counts.pop("polls held up by another rank", 0) for counts in results
                ]
                self.assertTrue(all(held_up), held_up)
                for what in expected:
                    self.assertGreater(results[0][what], 0, what)

    def test_write_through(self):
        self.decide_alike(
            "write_through",
            "backups refused",
            "component in check_hicache_events",
            "whole in check_hicache_events",
            "component in evict",
            "waits for a slot",
            "copies waited for",
        )

    def test_write_back(self):
        self.decide_alike(
            "write_back", "component in evict", "whole in evict", "copies waited for"
        )


if __name__ == "__main__":
    unittest.main()
