"""One run on a user's server as JSON, and several of them in one table."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from rich import box
from rich.console import Console
from rich.table import Table

from hicache_bench.client import TIERS, Answer
from hicache_bench.errors import UsageError
from hicache_bench.results import logprob_difference
from hicache_bench.url.advice import Advice
from hicache_bench.url.facts import Facts
from hicache_bench.url.workload import Measured, Plan

# Raised when a key changes its meaning or goes away; new keys do not raise it.
SCHEMA = 1
WORKLOAD = "shared-prefix-url"


def document(
    name: str, facts: Facts, plan: Plan, notes: Sequence[Advice], measured: Measured
) -> dict[str, Any]:
    """All of one run as JSON values. Tokens, seconds; logprob differences in nats."""
    prompt = sum(answer.prompt for answer in measured.measured)
    tiers = {
        tier: sum(answer.tiers[index] for answer in measured.measured)
        for index, tier in enumerate(TIERS)
    }
    return {
        "schema": SCHEMA,
        "workload": WORKLOAD,
        "name": name,
        "server": asdict(facts),
        "plan": asdict(plan),
        "notes": [str(note) for note in notes],
        "prefix_hits": measured.hits(plan.prefix),
        "families": plan.families,
        "prompt_tokens": prompt,
        "tokens": {**tiers, "computed": prompt - sum(tiers.values())},
        "token_hit_rate": sum(tiers.values()) / prompt,
        "copied": None,  # a server that we did not launch does not count its bytes
        "worst_logprob_difference": _worst(measured),
        "created_cached": [answer.cached for answer in measured.created],
        "measured": [_answer(answer) for answer in measured.measured],
        "sentinels": [
            {"name": probe, "length": length, "tiers": dict(zip(TIERS, found, strict=True))}
            for probe, length, found in measured.probes
        ],
        "seconds": {"all": measured.seconds, **measured.phase_seconds},
        "failed_expectations": failed_expectations(measured),
    }


def failed_expectations(measured: Measured) -> list[str]:
    """Why the run says nothing about hits; empty where it does."""
    lines = []
    for name, length, (device, host, storage) in measured.probes:
        if device or host + storage < length:
            lines.append(
                f"{name}: of the sentinel's {length} tokens {device} came from the device, {host} "
                f"from the host, {storage} from storage; expected none from the device and all "
                "from below it: the flood or the host pool is too small (other traffic on the "
                "server counts too), and the hits mean nothing"
            )
    return lines


def _worst(measured: Measured) -> float | None:
    """Largest difference to the cold run; None where none was made."""
    pairs = list(zip(measured.cold, measured.measured, strict=False))
    return max((logprob_difference(cold, warm) for cold, warm in pairs), default=None)


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "prompt": answer.prompt,
        "cached": answer.cached,
        "tiers": dict(zip(TIERS, answer.tiers, strict=True)),
    }


def load(path: Path) -> dict[str, Any]:
    """A document written earlier. Raises UsageError where it is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot be read ({error}); expected the JSON of an earlier run; type: "
            "python -m hicache_bench server --url http://127.0.0.1:30000 --json before.json"
        ) from error
    if not isinstance(value, dict) or value.get("workload") != WORKLOAD:
        raise UsageError(
            f"{path}: not the result of `hicache_bench server --url`; expected one; type: "
            "python -m hicache_bench server --url http://127.0.0.1:30000 --json before.json"
        )
    if value.get("schema") != SCHEMA:
        raise UsageError(
            f"{path}: written in schema {value.get('schema')}; expected {SCHEMA}; measure again"
        )
    return value


def differences(values: Sequence[dict[str, Any]]) -> list[str]:
    """What else differs between runs that are compared, and so may explain a difference."""
    lines = []
    for key in ("families", "prefix", "suffix"):
        seen = [value["plan"][key] for value in values]
        if len(set(seen)) > 1:
            lines.append(f"{key} differs: {', '.join(map(str, seen))}")
    for key in (
        "model",
        "version",
        "policy",
        "strategy",
        "page",
        "device_tokens",
        "device_states",
        "host_ratio",
        "host_gb",
        "chunk",
    ):
        seen = [value["server"][key] for value in values]
        if len(set(seen)) > 1:
            lines.append(f"the servers' {key} differs: {', '.join(map(str, seen))}")
    return lines


def print_table(values: Sequence[dict[str, Any]], stream: IO[str]) -> None:
    """One row for each run."""
    terminal = Console(file=stream).is_terminal
    # Off a terminal nothing is to be wrapped or cut; no table comes near this width.
    console = Console(file=stream, highlight=False, width=None if terminal else 500)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("run", vertical="bottom")
    for head in (
        "prefix\nhits",
        "token\nhit rate",
        "tokens from\ndevice / host / storage / computed",
        "worst logprob\ndifference",
        "measured\nphase",
        "counts",
    ):
        table.add_column(head, justify="right")
    for value in values:
        worst = value["worst_logprob_difference"]
        table.add_row(
            value["name"],
            f"{value['prefix_hits']}/{value['families']}",
            f"{value['token_hit_rate']:.4f}",
            " / ".join(str(value["tokens"][tier]) for tier in (*TIERS, "computed")),
            "-" if worst is None else f"{worst:.1e}",
            f"{value['seconds']['measure']:.2f} s",
            "no" if value["failed_expectations"] else "yes",
        )
    with console.capture() as captured:
        console.print(table)
    stream.write("".join(f"{line.rstrip()}\n" for line in captured.get().strip("\n").split("\n")))


def title(value: dict[str, Any]) -> str:
    """What was run, in one line."""
    plan, server = value["plan"], value["server"]
    return (
        f"{plan['families']} families of {plan['prefix']} + {plan['suffix']} tokens, "
        f"{server['policy']}, page {server['page']}, {server['device_tokens']} device tokens, "
        f"sglang {server['version']}"
    )
