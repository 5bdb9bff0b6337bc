"""What the results of a replay come to: sums, ratios, and whether all is as expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hicache_bench.cache.run import Outcome, Plan
from hicache_bench.cache.shapes import SHAPES
from hicache_bench.trees import Tree

POOLS = ("kv", "mamba")
WAYS = ("device_to_host", "host_to_device")
KINDS = ("whole", "kv", "component")


def totals(result: dict[str, Any]) -> dict[str, Any]:
    """Sums over the phases of one workload: bytes, backups by kind, cost beside the naive way.

    naive_bytes: what the component-only backups would have copied with Full KV copied again.
    """
    phases = list(result["copied"].values())
    backups = {kind: sum(phase["backups"][kind] for phase in phases) for kind in KINDS}
    slots = {pool: sum(phase["slots"]["component"][pool] for phase in phases) for pool in POOLS}
    again = sum(phase["full_tokens_not_copied_again"] for phase in phases)
    component_bytes = slots["kv"] * result["token_bytes"] + slots["mamba"] * result["state_bytes"]
    return {
        "bytes": {
            pool: {way: sum(phase["bytes"][pool][way] for phase in phases) for way in WAYS}
            for pool in POOLS
        },
        "backups": backups,
        "component_slots": slots,
        "component_bytes": component_bytes,
        "naive_bytes": component_bytes + again * result["token_bytes"],
        "full_tokens_not_copied_again": again,
    }


def bytes_ratio(result: dict[str, Any]) -> float | None:
    """Bytes copied in the phase that makes the states, over its component-only states' bytes.

    1.0 where nothing else was copied; None where there was no such backup.
    """
    create = result["copied"].get("create")
    if create is None or not create["backups"]["component"]:
        return None
    if create["backups"]["whole"] or create["backups"]["kv"]:
        return None  # something else was backed up too; its bytes cannot be told apart
    copied: float = sum(create["bytes"][pool]["device_to_host"] for pool in POOLS)
    states: float = create["backups"]["component"] * result["state_bytes"]
    return copied / states


def at_published_shapes(tokens: int) -> list[dict[str, Any]]:
    """A component-only backup at the end of `tokens` tokens beside a whole one, in bytes."""
    return [
        {
            "model": shape.model,
            "token_bytes": shape.token_bytes,
            "state_bytes": shape.state_bytes,
            "component_only_bytes": shape.state_bytes,
            "naive_bytes": shape.state_bytes + tokens * shape.token_bytes,
            "source": shape.source,
        }
        for shape in SHAPES
    ]


def failed_expectations(outcome: Outcome, plan: Plan, trees: Sequence[Tree]) -> list[str]:
    """One line for each thing that is not as it should be; empty when all is well."""
    lines = []
    shape = plan.shape
    for name, by_tree in outcome.rows.items():
        for tree in trees:
            result, where = by_tree[tree.name], f"{name}, {tree.name}"
            if name.startswith("shared prefix"):
                lines += _shared_prefix(result, name, where, tree.incremental)
            lines += _backups(result, where)
    for tree in trees:
        for row in outcome.growth.get(tree.name, []):
            wanted = 1 if tree.incremental else 0
            if row["prefix_hits"] != wanted:
                lines.append(
                    f"prefix of {row['prefix']} tokens, {tree.name}: {row['prefix_hits']}/1 found; "
                    f"expected {wanted}/1"
                )
            lines += _backups(row, f"prefix of {row['prefix']} tokens, {tree.name}")
    for inserts in outcome.inserts:
        for name, measured in inserts["trees"].items():
            if measured["backups"]:
                lines.append(
                    f"inserts, {inserts['nodes']} nodes, {name}: they triggered "
                    f"{measured['backups']} backups; expected none"
                )
    reference = shape.prefix / (shape.prefix + shape.suffix)
    for tree in trees:
        rate = outcome.rows["shared prefix"][tree.name]["token_hit_rate"]
        if tree.incremental and rate < reference:
            lines.append(
                f"shared prefix, {tree.name}: token hit rate {rate:.4f}; expected {reference:.4f}"
            )
    return lines


def _shared_prefix(result: dict[str, Any], name: str, where: str, incremental: bool) -> list[str]:
    hits, families = result["prefix_hits"], result["eligible"]
    left = 1 if name.endswith("one left") else 0
    if incremental and not name.endswith("write-back"):
        if hits != families:
            return [f"{where}: {hits}/{families} prefixes found; expected all"]
    elif hits > left:
        return [f"{where}: {hits}/{families} prefixes found; expected at most {left}"]
    if result["families_left_on_device"] > left:
        return [f"{where}: {result['families_left_on_device']} families were left on the device"]
    return []


def _backups(result: dict[str, Any], where: str) -> list[str]:
    """Component-only backups take one host state slot each, no KV slot, and copy one state each."""
    lines, found = [], totals(result)
    component = found["backups"]["component"]
    if found["component_slots"] != {"kv": 0, "mamba": component}:
        lines.append(
            f"{where}: {component} component-only backups took {found['component_slots']} host "
            f"slots; expected no KV slot and {component} states"
        )
    ratio = bytes_ratio(result)
    if ratio is not None and ratio != 1.0:
        lines.append(f"{where}: {ratio:.4f} states' bytes were copied for each; expected 1.0000")
    return lines
