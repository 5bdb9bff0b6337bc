"""The tables of a README in Markdown, from the results of the last runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hicache_bench.client import TIERS
from hicache_bench.copied import HEADS, cells, size

# A row of the servers: heads, and keys in the results.
_ROW = ("model", "workload on real servers", "write policy")
_ROW_KEYS = ("model", "label", "policy")
_TOKENS = "tokens from " + " / ".join(TIERS[:2])


def section(value: dict[str, Any]) -> str:
    """The tables in Markdown; ends with a newline."""
    cache = value["cache"]
    server = value["server"]
    parts = [
        _servers(server),
        *_copied(server),
        _found(cache),
        _folded("Bytes by pool and direction, backups by kind", _moved(cache)),
        _shapes(cache["published_shapes"]),
    ]
    if cache["inserts"]:
        parts.append(_inserts(cache["inserts"]))
    return "\n" + "\n".join(parts) + "\n"


def _servers(value: dict[str, Any]) -> str:
    """What each tree found on servers of our own: a line for each model, workload and policy."""
    return _side_by_side(
        _ROW,
        [(tuple(row[key] for key in _ROW_KEYS), row, row["families"]) for row in value["rows"]],
        [tree["name"] for tree in value["trees"]],
        (
            "worst logprob difference",
            lambda rows: f"{max(row['worst_logprob_difference'] for row in rows):.1e}",
        ),
    )


def _copied(value: dict[str, Any]) -> list[str]:
    """What the servers copied, a line for each row; no table where that is known of none."""
    rows = value["rows"]
    # results of runs before the bytes were counted lack the key
    if all(row.get("copied") is None for row in rows):
        return []
    table = _markdown(
        (*_ROW, "tree", _TOKENS, *HEADS),
        [
            (
                *(row[key] for key in _ROW_KEYS),
                row["tree"],
                _tokens(row["tokens_by_tier"]),
                *cells(row.get("copied")),
            )
            for row in rows
        ],
    )
    return [_folded("Bytes by pool and direction on real servers", table)]


def _found(value: dict[str, Any]) -> str:
    """What each tree found in the cache alone: a line for each workload."""
    return _side_by_side(
        ("workload on the cache alone",),
        [
            ((workload["name"],), row, row["eligible"])
            for workload in value["workloads"]
            for row in workload["rows"]
        ],
        [tree["name"] for tree in value["trees"]],
    )


def _side_by_side(
    heads: Sequence[str],
    found: Sequence[tuple[tuple[str, ...], dict[str, Any], int]],
    trees: Sequence[str],
    last: tuple[str, Callable[[list[dict[str, Any]]], str]] | None = None,
) -> str:
    """Prefix hits and token hit rate, a column for each tree.

    found: what a line goes by, a row of the results, and the prefixes that it could have found.
    last: head of one more column, and what stands in it for the rows of a line.
    """
    lines: dict[tuple[str, ...], dict[str, tuple[dict[str, Any], int]]] = {}
    for line, row, wanted in found:
        lines.setdefault(line, {})[row["tree"]] = row, wanted
    made = []
    for line, by_tree in lines.items():
        cells = []
        for tree in trees:
            row, wanted = by_tree.get(tree, ({}, 0))
            hits = row and f"{row['prefix_hits']}/{wanted} ({row['token_hit_rate']:.4f})"
            cells.append(hits or "")
        more = [last[1]([row for row, _ in by_tree.values()])] if last else []
        made.append((*line, *cells, *more))
    return _markdown((*heads, *trees, *([last[0]] if last else [])), made)


def _moved(value: dict[str, Any]) -> str:
    return _markdown(
        (
            "workload",
            "tree",
            _TOKENS,
            *HEADS,
            "backups: whole / KV / component",
            "component-only: copied / the naive way",
            "host KV slots for them",
        ),
        [_moved_row(workload, row) for workload in value["workloads"] for row in workload["rows"]],
    )


def _moved_row(workload: dict[str, Any], row: dict[str, Any]) -> tuple[str, ...]:
    totals = row["totals"]
    return (
        workload["name"],
        row["tree"],
        _tokens(row["tokens"]),
        *cells(totals["bytes"]),
        " / ".join(str(totals["backups"][kind]) for kind in ("whole", "kv", "component")),
        f"{size(totals['component_bytes'])} / {size(totals['naive_bytes'])}",
        str(totals["component_slots"]["kv"]),
    )


def _tokens(by_tier: dict[str, int]) -> str:
    return " / ".join(f"{by_tier[tier]:,}" for tier in TIERS[:2])


def _shapes(shapes: dict[str, Any]) -> str:
    longest = max(shapes, key=int)
    return _markdown(
        (f"one backup at {int(longest):,} tokens", "component-only", "Full KV again"),
        [
            (model["model"], size(model["component_only_bytes"]), size(model["naive_bytes"]))
            for model in shapes[longest]
        ],
    )


def _inserts(sizes: Sequence[dict[str, Any]]) -> str:
    return _markdown(
        (
            "inserts that trigger nothing",
            "tree",
            "ratio to the first tree",
            "95 % interval",
            "two processes of the first tree",
        ),
        [
            (
                f"{inserts['nodes']:,} nodes",
                name,
                f"{row['ratio']:.3f}",
                "{:.3f} to {:.3f}".format(*row["interval"]),
                f"{next(iter(inserts['trees'].values()))['own_processes_ratio']:.3f}",
            )
            for inserts in sizes
            for name, row in list(inserts["trees"].items())[1:]
        ],
    )


def _folded(summary: str, table: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{table}\n</details>\n"


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
