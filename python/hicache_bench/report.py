"""The result as a table and as JSON."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from rich import box
from rich.console import Console
from rich.table import Table

from hicache_bench import copied
from hicache_bench.client import TIERS, Answer
from hicache_bench.measurement import Family
from hicache_bench.results import LOGPROB_TOLERANCE, Row, failed_expectations, logprob_difference
from hicache_bench.workload import Shape

# Raised when a key changes its meaning or goes away; new keys do not raise it.
SCHEMA = 2

_PACKAGES = ("torch", "transformers", "sglang-hicache-patches")


def print_table(rows: Sequence[Row], stream: IO[str]) -> None:
    """One table: lines and colours on a terminal, aligned plain text elsewhere."""
    table = _table(
        stream,
        "prefix\nhits",
        "token\nhit rate",
        f"hits by tier\n{' / '.join(TIERS)}",
        "worst logprob\ndifference",
    )
    table.add_column("as\nexpected")
    for index, row in enumerate(rows):
        if index and group(row) != group(rows[index - 1]):
            table.add_section()
        failed = bool(failed_expectations(row))
        table.add_row(
            *group(row),
            row.tree.name,
            f"{row.hits}/{row.families}",
            f"{row.token_hit_rate:.4f}",
            " / ".join(str(row.hits_by_tier[tier]) for tier in TIERS),
            f"{row.worst_logprob_difference:.1e}",
            "no" if failed else "yes",
            style="red" if failed else None,
        )
    _print(table, stream)


def print_copied(rows: Sequence[Row], stream: IO[str]) -> None:
    """One more table: bytes by pool and direction; nothing where they are known of no row."""
    if all(row.copied is None for row in rows):
        return
    table = _table(
        stream,
        f"tokens from\n{' / '.join(TIERS[:2])}",
        *(head.replace(": ", ":\n") for head in copied.HEADS),
    )
    for index, row in enumerate(rows):
        if index and group(row) != group(rows[index - 1]):
            table.add_section()
        table.add_row(
            *group(row),
            row.tree.name,
            " / ".join(f"{row.tokens_by_tier[tier]:,}" for tier in TIERS[:2]),
            *copied.cells(row.copied),
        )
    _print(table, stream)


def _table(stream: IO[str], *numbers: str) -> Table:
    """A table of rows: `group` and tree in its first columns, then these."""
    terminal = Console(file=stream).is_terminal
    table = Table(box=box.ROUNDED if terminal else box.SIMPLE_HEAD, pad_edge=terminal)
    for head in ("model", "workload", "policy", "tree"):
        table.add_column(head, vertical="bottom")
    for head in numbers:
        table.add_column(head, justify="right")
    return table


def _print(table: Table, stream: IO[str]) -> None:
    terminal = Console(file=stream).is_terminal
    # Off a terminal nothing is to be wrapped or cut; no table comes near this width.
    console = Console(file=stream, highlight=False, width=None if terminal else 500)
    with console.capture() as captured:
        console.print(table)
    stream.write("".join(f"{line.rstrip()}\n" for line in captured.get().strip("\n").split("\n")))


def group(row: Row) -> tuple[str, str, str]:
    """What rows have in common whose trees stand side by side: model, workload and policy."""
    return row.model, row.workload.label, row.policy


def title(shape: Shape) -> str:
    """What was run, in one line."""
    return (
        f"{shape.families} families of {shape.prefix} + {shape.suffix} tokens, "
        "real servers on the CPU"
    )


def document(rows: Sequence[Row], options: dict[str, Any]) -> dict[str, Any]:
    """All of the result as JSON values, in a fixed order of keys.

    Apart from versions, paths and `seconds`, the same options give the same document, since prompts
    are seeded; only where several clients send at once, what they find depends on who comes first.
    """
    workloads = {row.workload.name: row.workload for row in rows}
    trees = {row.tree.name: row.tree for row in rows}
    return {
        "schema": SCHEMA,
        "workloads": [
            {"name": name, "label": each.label, "clients": each.clients}
            for name, each in workloads.items()
        ],
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in _PACKAGES},
        },
        "machine": {"platform": platform.platform(), "cpus": os.cpu_count()},
        "options": options,
        "logprob_tolerance": LOGPROB_TOLERANCE,
        "trees": [
            {
                "name": tree.name,
                "sglang": next(row.version for row in rows if row.tree == tree),
                "sha256": tree.sha256,
                "component_only_backup": tree.incremental,
                "extended": tree.extended,
            }
            for tree in trees.values()
        ],
        "rows": [_row(row) for row in rows],
        "failed_expectations": [line for row in rows for line in failed_expectations(row)],
    }


def _row(row: Row) -> dict[str, Any]:
    sizes = row.measurement.sizes
    return {
        "model": row.model,
        "tree": row.tree.name,
        "workload": row.workload.name,
        "label": row.workload.label,
        "policy": row.policy,
        "expected_hits": row.expected_hits,
        "as_expected": not failed_expectations(row),
        "families": row.families,
        "prefix_hits": row.hits,
        "prompt_tokens": row.prompt_tokens,
        "token_hit_rate": round(row.token_hit_rate, 6),
        "hits_by_tier": row.hits_by_tier,
        "tokens_by_tier": row.tokens_by_tier,
        "copied": row.copied,
        "worst_logprob_difference": row.worst_logprob_difference,
        "changed_outputs": row.changed_outputs,
        "sizes": {
            "device_tokens": sizes.device_tokens,
            "device_states": sizes.device_states,
            "host_ratio": sizes.host_ratio,
            "flood_prompts": sizes.flood_prompts,
            "flood_length": sizes.flood_length,
            "sentinel": sizes.sentinel,
            "repeats": sizes.repeats,
        },
        "family_detail": [_family(family) for family in row.measurement.families],
        "sentinels": [
            {
                "name": probe.name,
                "length": probe.length,
                "tiers": dict(zip(TIERS, probe.tiers, strict=True)),
            }
            for probe in row.measurement.probes
        ],
        "seconds": {"start": round(row.start_seconds, 1), "workload": round(row.run_seconds, 1)},
    }


def _family(family: Family) -> dict[str, Any]:
    return {
        "cold_cached": family.cold.cached,
        "steps": [
            {
                "prompt": step.what,
                "tiers": dict(zip(TIERS, step.tiers, strict=True)),
                "expected": None if step.expected is None else list(step.expected),
            }
            for step in family.steps
        ],
        "one_pass": family.one_pass,
        "measured": _answer(family.measured),
        "cold_logprobs": list(family.cold.logprobs),
        "measured_logprobs": list(family.measured.logprobs),
        "logprob_difference": max(logprob_difference(*pair) for pair in family.pairs),
        "compared_prompts": len(family.pairs),
        "same_tokens": all(cold.tokens == later.tokens for cold, later in family.pairs),
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "prompt": answer.prompt,
        "cached": answer.cached,
        "tiers": dict(zip(TIERS, answer.tiers, strict=True)),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None  # our own package is run from the checkout, not installed


def write_json(value: dict[str, Any], path: Path) -> None:
    """Write a JSON file whole or not at all."""
    text = json.dumps(value, indent=2, allow_nan=False) + "\n"
    write_beside(path, lambda file: file.write_text(text, encoding="utf-8"))


def write_beside(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside `path`, then rename it: `path` is never half written.

    A link goes on leading where it leads; a device or a pipe is written to, never replaced.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        write(path)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    beside = Path(name)
    try:
        write(beside)
        beside.chmod(0o644)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
