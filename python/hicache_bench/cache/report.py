"""The result of a replay as tables and as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from typing import IO, Any

from rich import box
from rich.console import Console
from rich.table import Table

from hicache_bench.cache import judge
from hicache_bench.cache.plan import Plan, Workload
from hicache_bench.cache.run import Outcome
from hicache_bench.copied import cells, size
from hicache_bench.trees import Tree

# Raised when a key changes its meaning or goes away; new keys do not raise it.
SCHEMA = 2
LONGEST = 128 * 1024


def document(outcome: Outcome, plan: Plan, trees: Sequence[Tree]) -> dict[str, Any]:
    """All of the result as JSON values. Sizes in tokens, slots and bytes, times in seconds."""
    return {
        "schema": SCHEMA,
        "workload": "cache",
        "versions": {"python": platform.python_version(), "torch": metadata.version("torch")},
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
        "pools": asdict(plan.pools),
        "trees": [
            {
                "name": t.name,
                "sha256": t.sha256,
                "group": t.group,
                "component_only_backup": t.incremental,
            }
            for t in trees
        ],
        "workloads": [
            {
                "name": workload.name,
                "note": workload.note,
                "pools": asdict(workload.pools),
                "shape": asdict(workload.shape),
                "finds": dict(workload.finds),
                "rows": [
                    _row(tree, outcome.rows[workload.name], workload, trees) for tree in trees
                ],
            }
            for workload in plan.workloads()
        ],
        "published_shapes": {
            str(tokens): judge.at_published_shapes(tokens)
            for tokens in (plan.shape.prefix, LONGEST)
        },
        "growth": [{"tree": name, "rows": rows} for name, rows in outcome.growth.items()],
        "inserts": outcome.inserts,
        "failed_expectations": judge.failed_expectations(outcome, plan, trees),
    }


def _row(
    tree: Tree, by_tree: dict[str, Any], workload: Workload, trees: Sequence[Tree]
) -> dict[str, Any]:
    result = by_tree[tree.name]
    return {
        "tree": tree.name,
        **result,
        "totals": judge.totals(result),
        "bytes_per_state_bytes": judge.bytes_ratio(result),
        "as_expected": not judge.failed_row(by_tree, workload, tree, trees),
    }


def print_tables(value: dict[str, Any], stream: IO[str]) -> None:
    """Print a `document`: workloads, bytes at published shapes, inserts."""
    _print(_workloads(value), stream)
    _print(_shapes(value), stream)
    if value["inserts"]:
        _print(_inserts(value), stream)


def title(value: dict[str, Any]) -> str:
    """What was run, in one line."""
    pools = value["pools"]
    return (
        f"real UnifiedRadixCache, page {pools['page']}, {pools['device_tokens']} device tokens, "
        f"{pools['device_states']} states, host ratio {pools['host_ratio']:g}, chunks of "
        f"{pools['chunk']}"
    )


def _workloads(value: dict[str, Any]) -> Table:
    table = _table("workload", "tree")
    for head in (
        "prefix\nhits",
        "token\nhit rate",
        "tokens from\ndevice / host / computed",
        "device to host\nKV / states",
        "host to device\nKV / states",
        "host slots\nKV / states",
        "backups: whole /\nKV / component",
        "component-only\ncopied / naive",
        "as\nexpected",
    ):
        table.add_column(head, justify="right")
    for workload in value["workloads"]:
        for index, row in enumerate(workload["rows"]):
            found, tokens = row["totals"], row["tokens"]
            table.add_row(
                "" if index else workload["name"],
                row["tree"],
                f"{row['prefix_hits']}/{row['eligible']}",
                f"{row['token_hit_rate']:.4f}",
                f"{tokens['device']} / {tokens['host']} / {tokens['computed']}",
                *cells(found["bytes"]),
                f"{row['host_slots']['kv']} / {row['host_slots']['mamba']}",
                " / ".join(str(found["backups"][kind]) for kind in judge.KINDS),
                f"{size(found['component_bytes'])} / {size(found['naive_bytes'])}",
                "yes" if row["as_expected"] else "no",
                style=None if row["as_expected"] else "red",
                end_section=index == len(workload["rows"]) - 1,
            )
    return table


def _shapes(value: dict[str, Any]) -> Table:
    table = _table("published model")
    for head in ("KV of a token", "one state"):
        table.add_column(head, justify="right")
    lengths = list(value["published_shapes"])
    for length in lengths:
        table.add_column(f"a backup at {int(length):,}\ncomponent / naive", justify="right")
    table.add_column("source of the shapes")
    for models in zip(*value["published_shapes"].values(), strict=True):
        table.add_row(
            models[0]["model"],
            size(models[0]["token_bytes"]),
            size(models[0]["state_bytes"]),
            *(
                f"{size(model['component_only_bytes'])} / {size(model['naive_bytes'])}"
                for model in models
            ),
            models[0]["source"],
        )
    return table


def _inserts(value: dict[str, Any]) -> Table:
    table = _table("inserts that trigger nothing", "tree")
    for head in (
        "median",
        "ratio to the first tree",
        "95 % interval",
        "between the tree's own two processes",
        "backups",
    ):
        table.add_column(head, justify="right")
    for inserts in value["inserts"]:
        for name, row in inserts["trees"].items():
            low, high = row["interval"]
            table.add_row(
                f"{inserts['nodes']:,} nodes",
                name,
                f"{row['microseconds']:.1f} us",
                f"{row['ratio']:.3f}",
                f"{low:.3f} to {high:.3f}",
                f"{row['own_processes_ratio']:.3f}",
                str(row["backups"]),
            )
    return table


def _table(*heads: str) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads:
        made.add_column(head, vertical="bottom")
    return made


def _print(table: Table, stream: IO[str]) -> None:
    terminal = Console(file=stream).is_terminal
    # Off a terminal nothing is to be wrapped or cut; no table comes near this width.
    console = Console(file=stream, highlight=False, width=None if terminal else 500)
    with console.capture() as captured:
        console.print(table)
    stream.write("".join(f"{line.rstrip()}\n" for line in captured.get().strip("\n").split("\n")))
