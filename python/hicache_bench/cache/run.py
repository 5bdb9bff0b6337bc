"""Runs every workload on every tree, side by side, and the inserts interleaved."""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hicache_bench.cache.driver import Process
from hicache_bench.cache.plan import Plan, sent
from hicache_bench.cache.sizes import Inserts
from hicache_bench.progress import Reporter
from hicache_bench.trees import Tree


@dataclass
class Outcome:
    """Results by tree: rows[workload][tree], growth[tree], inserts one for each size."""

    rows: dict[str, dict[str, Any]] = field(default_factory=dict)
    growth: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    inserts: list[dict[str, Any]] = field(default_factory=list)


def run(trees: Sequence[Tree], plan: Plan, logs: Path, reporter: Reporter) -> Outcome:
    """Measure all trees. Raises BenchError; whatever happens, no worker is left."""
    outcome = Outcome()
    with ExitStack() as stack:
        workers = {
            tree.name: stack.enter_context(_process(tree, logs / f"cache-{index}.log"))
            for index, tree in enumerate(trees)
        }
        reporter.say("cache: sglang is imported, a process for each tree")
        _each([*workers.values()], "hello")
        for workload in plan.workloads():
            reporter.say(f"cache: {workload.name}")
            outcome.rows[workload.name] = _each(
                [*workers.values()], workload.command, **sent(workload)
            )
        if plan.growth:
            reporter.say(f"cache: prefixes of {plan.growth[0]} to {plan.growth[-1]} tokens")
            outcome.growth = _each(
                [workers[tree.name] for tree in growing(trees)],
                "growth",
                pools=asdict(plan.pools),
                lengths=list(plan.growth),
                suffix=plan.shape.suffix,
            )
        if plan.inserts:
            reporter.say("cache: a second process for each tree, for the times of inserts")
            timed = inserting(trees)
            # The others would only hold memory.
            for name in workers.keys() - {tree.name for tree in timed}:
                workers[name].close()
            again = [
                stack.enter_context(_process(tree, logs / f"cache-{index}-2.log"))
                for index, tree in enumerate(timed)
            ]
            _each(again, "hello")
            first = [workers[tree.name] for tree in timed]
            for inserts in plan.inserts:
                reporter.say(f"cache: inserts into {inserts.nodes} nodes, trees taking turns")
                outcome.inserts.append(
                    _inserts([*first, *again], inserts, plan.pools.page, reporter)
                )
    return outcome


def growing(trees: Sequence[Tree]) -> Sequence[Tree]:
    """The trees whose growth is measured: group `extended` has core's, releases of others too."""
    return [tree for tree in trees if tree.group in ("released", "core")] or trees


def inserting(trees: Sequence[Tree]) -> Sequence[Tree]:
    """The trees whose inserts are timed: those of the series. Another release differs in more."""
    return [tree for tree in trees if not tree.peer] or trees


def _process(tree: Tree, log: Path) -> Process:
    return Process(tree.name, tree.path, log, {**os.environ, **dict(tree.environ)})


def _each(workers: Sequence[Process], command: str, **arguments: Any) -> dict[str, Any]:
    """One command on all workers at the same time; results by tree."""
    for worker in workers:
        worker.send(command, **arguments)
    return {worker.name: worker.receive() for worker in workers}


def _inserts(
    workers: Sequence[Process], wanted: Inserts, page: int, reporter: Reporter
) -> dict[str, Any]:
    """Batches of inserts, the processes taking turns in an order that is drawn anew each round.

    Two processes of one tree differ by a few percent for as long as they live, so each tree has
    two, and what its own two differ by is told beside the ratio.
    """
    grown = _each(workers, "grow_tree", inserts=asdict(wanted), page=page)
    order, chance = list(workers), random.Random(wanted.seed)
    batches: dict[int, list[dict[str, Any]]] = {id(worker): [] for worker in workers}
    for done in range(-2, wanted.batches):  # two rounds to warm up
        chance.shuffle(order)
        for worker in order:
            batch = worker.do("insert")
            if done >= 0:
                batches[id(worker)].append(batch)
        reporter.step(f"inserts, {wanted.nodes} nodes", "batches", max(done, 0), wanted.batches)
    reporter.step(f"inserts, {wanted.nodes} nodes", "done", 1, 1)
    by_tree: dict[str, list[list[dict[str, Any]]]] = {}
    for worker in workers:
        by_tree.setdefault(worker.name, []).append(batches[id(worker)])
    return insert_times(wanted, grown, by_tree)


def insert_times(
    wanted: Inserts,
    grown: dict[str, dict[str, Any]],
    by_tree: dict[str, list[list[dict[str, Any]]]],
) -> dict[str, Any]:
    """What the batches come to. by_tree: for each tree, for each of its processes, its batches."""
    medians = {
        name: [[statistics.median(batch["seconds"]) for batch in one] for one in processes]
        for name, processes in by_tree.items()
    }
    means = {
        name: [statistics.fmean(round_) for round_ in zip(*processes, strict=True)]
        for name, processes in medians.items()
    }
    reference = next(iter(means.values()))
    return {
        "nodes": wanted.nodes,
        "inserts": wanted.batch * wanted.batches * len(next(iter(by_tree.values()))),
        "trees": {
            name: {
                **grown[name],
                "backups": sum(batch["backups"] for one in processes for batch in one),
                "microseconds": 1e6 * statistics.median(means[name]),
                **ratio(reference, means[name]),
                "own_processes_ratio": ratio(medians[name][0], medians[name][-1])["ratio"],
            }
            for name, processes in by_tree.items()
        },
    }


def ratio(
    reference: Sequence[float], other: Sequence[float], draws: int = 2000
) -> dict[str, float | list[float]]:
    """Median of the rounds' ratios, and where it lies in 95 of 100 resampled runs (bootstrap).

    reference, other: seconds of each round, of the first tree and of the one that is compared.
    """
    rounds = [b / a for a, b in zip(reference, other, strict=True)]
    chance = random.Random(0)
    drawn = sorted(statistics.median(chance.choices(rounds, k=len(rounds))) for _ in range(draws))
    return {
        "ratio": statistics.median(rounds),
        "interval": [drawn[int(0.025 * draws)], drawn[int(0.975 * draws) - 1]],
    }
