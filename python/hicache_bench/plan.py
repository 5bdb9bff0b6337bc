"""Which servers a run starts, and what each of them is driven with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hicache_bench.models import Checkpoint
from hicache_bench.trees import Tree
from hicache_bench.workload import Policy
from hicache_bench.workloads import Workload

# 0.5.18 has group core as upstream took it; 0.5.23 is the newest release that was looked at.
TREES = (
    "v0.5.17:base",
    "v0.5.17:core",
    "v0.5.17:extended",
    "v0.5.18:base",
    "v0.5.23:base@rust",
)


@dataclass(frozen=True)
class Job:
    """One server, and the workloads that it runs, one after the other."""

    checkpoint: Checkpoint
    tree: Tree
    policy: Policy
    workloads: tuple[Workload, ...]

    @property
    def name(self) -> str:
        """Its name in messages; also of its log."""
        return f"{self.checkpoint.name}, {self.policy}, {self.tree.name}"


def jobs(
    checkpoints: Sequence[Checkpoint],
    trees: Sequence[Tree],
    policies: Sequence[Policy],
    workloads: Sequence[Workload],
) -> list[Job]:
    """A server for each checkpoint, policy and tree that has workloads to run.

    The first checkpoint runs all workloads. Each one after it runs the first workload alone: it
    shows that another kind of state is saved just as well, and a start takes the time of all the
    workloads together.
    """
    made = []
    for number, checkpoint in enumerate(checkpoints):
        chosen = list(workloads) if number == 0 else list(workloads)[:1]
        for policy in policies:
            mine = tuple(each for each in chosen if policy in each.policies)
            made += [Job(checkpoint, tree, policy, mine) for tree in trees if mine]
    return made
