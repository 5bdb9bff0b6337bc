"""What the results of a replay come to: sums, ratios, and whether all is as expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hicache_bench.cache.plan import Finds, Plan, Workload
from hicache_bench.cache.run import Outcome
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
    every = {
        pool: sum(phase["slots"][kind][pool] for phase in phases for kind in KINDS)
        for pool in POOLS
    }
    again = sum(phase["full_tokens_not_copied_again"] for phase in phases)
    component_bytes = slots["kv"] * result["token_bytes"] + slots["mamba"] * result["state_bytes"]
    return {
        "bytes": {
            pool: {way: sum(phase["bytes"][pool][way] for phase in phases) for way in WAYS}
            for pool in POOLS
        },
        "backups": backups,
        "slots": every,
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
    for workload in plan.workloads():
        for tree in trees:
            lines += failed_row(outcome.rows[workload.name], workload, tree, trees)
    for tree in trees:
        for row in outcome.growth.get(tree.name, []):
            where = f"prefix of {row['prefix']} tokens, {tree.name}"
            if not tree.peer:
                lines += _found(row, "all" if tree.incremental else "none", where)
            lines += _copied(row, where)
    for inserts in outcome.inserts:
        for name, measured in inserts["trees"].items():
            if measured["backups"]:
                lines.append(
                    f"inserts, {inserts['nodes']} nodes, {name}: they triggered "
                    f"{measured['backups']} backups; expected none"
                )
    return lines


def failed_row(
    by_tree: dict[str, Any], workload: Workload, tree: Tree, trees: Sequence[Tree]
) -> list[str]:
    """What is not as it should be in one row of the table. by_tree: the workload's results."""
    result, where = by_tree[tree.name], f"{workload.name}, {tree.name}"
    lines = [
        *_made(result, workload, where),
        *_found(result, workload.finds.get(tree.group), where),
        *_copied(result, where),
    ]
    if tree.group in ("core", "extended"):
        lines += _no_fewer(result, by_tree, trees, where)
    return lines


def _made(result: dict[str, Any], workload: Workload, where: str) -> list[str]:
    """The floods and the pressure must have done their work, or the hits mean nothing."""
    if result.get("families_left_on_device", 0) > workload.left:
        return [f"{where}: {result['families_left_on_device']} families were left on the device"]
    if result.get("states_left_on_device", 0):
        return [f"{where}: {result['states_left_on_device']} states were left on the device"]
    return []


def _found(result: dict[str, Any], finds: Finds | None, where: str) -> list[str]:
    hits, wanted = result["prefix_hits"], result["eligible"]
    if finds == "all" and hits < wanted:
        return [f"{where}: {hits}/{wanted} prefixes found; expected all"]
    most = {"none": 0, "one": 1}.get(finds or "", wanted)
    if hits > most:
        return [f"{where}: {hits}/{wanted} prefixes found; expected at most {most}"]
    if result["prefixes_compared"] < hits:
        return [
            f"{where}: bytes of {result['prefixes_compared']} prefixes were compared, {hits} found"
        ]
    return []


def _no_fewer(
    result: dict[str, Any], by_tree: dict[str, Any], trees: Sequence[Tree], where: str
) -> list[str]:
    """A patched tree finds what the release finds, in any workload."""
    for tree in trees:
        if tree.group == "released" and result["prefix_hits"] < by_tree[tree.name]["prefix_hits"]:
            return [
                f"{where}: {result['prefix_hits']} prefixes found, {tree.name} found "
                f"{by_tree[tree.name]['prefix_hits']}; expected no fewer"
            ]
    return []


def _copied(result: dict[str, Any], where: str) -> list[str]:
    """A component-only backup takes one host state slot and no KV slot; each slot is copied once.

    So the bytes are those of the slots: nothing is copied that no backup took a slot for.
    """
    lines, found = [], totals(result)
    component = found["backups"]["component"]
    if found["component_slots"] != {"kv": 0, "mamba": component}:
        lines.append(
            f"{where}: {component} component-only backups took {found['component_slots']} host "
            f"slots; expected no KV slot and {component} states"
        )
    sizes = {"kv": result["token_bytes"], "mamba": result["state_bytes"]}
    for pool in POOLS:
        copied, due = found["bytes"][pool]["device_to_host"], found["slots"][pool] * sizes[pool]
        if copied != due:
            lines.append(
                f"{where}: {copied} bytes of {pool} were copied to the host for slots of {due}"
            )
    ratio = bytes_ratio(result)
    if ratio is not None and ratio != 1.0:
        lines.append(f"{where}: {ratio:.4f} states' bytes were copied for each; expected 1.0000")
    return lines
