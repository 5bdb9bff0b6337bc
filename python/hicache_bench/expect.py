"""What each tree must show in each workload: all prefixes found, none, or whatever it does.

A run fails where a tree shows something else: patched ones for what they must find, those as
released for what they cannot, so that a workload that shows nothing is noticed as well.
"""

from __future__ import annotations

from typing import Literal

from hicache_bench.trees import Tree
from hicache_bench.workload import Policy
from hicache_bench.workloads import Workload

Expected = Literal["all", "none", "any"]

# Releases as their users have them, where they differ from group core of ours. 0.5.23 saves the
# state of an internal node that is evicted, if the node's Full KV is not on the host.
_PEERS: dict[tuple[str, str], Expected] = {("0.5.23", "leaf"): "all", ("0.5.23", "internal"): "all"}
# The releases that were looked at in the workloads below; of others nothing is known there.
_KNOWN = ("0.5.17", "0.5.18", "0.5.23")


def expected_hits(workload: Workload, policy: Policy, tree: Tree, version: str) -> Expected:
    """What `tree`, whose server reports sglang's `version`, must find in `workload`."""
    if tree.extended:
        return "all"
    if workload.clients > 1 and policy == "write_back":
        # Whether a state is evicted at a leaf, and so with its node, depends on who came when.
        return "any"
    if workload.name in ("shared-prefix", "clients"):
        return "all" if tree.incremental else "none"
    if version not in _KNOWN:
        return "any"
    return _PEERS.get((version, workload.name), "none")
