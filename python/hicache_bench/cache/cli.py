"""``python -m hicache_bench cache``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hicache_bench import trees
from hicache_bench.cache import plan, plot, report, run, sizes
from hicache_bench.cli_common import default_out, resolve_trees
from hicache_bench.errors import BenchError
from hicache_bench.progress import Reporter
from hicache_bench.report import write_json

_DESCRIPTION = """\
Replay workloads on the real UnifiedRadixCache of each source tree, with real device and host pools
and no model, in the scheduler's order of calls, and compare every byte that a request reuses.
Without options: upstream's own size; v0.5.17 as released, with group core and with group extended,
and v0.5.23 as released with the tree core that it starts with; some three minutes on two cores and
10 GB of memory."""

_EPILOG = """\
examples:
  python -m hicache_bench cache
  python -m hicache_bench cache --only --prefix 12800 --suffix 1000
  python -m hicache_bench cache --trees v0.5.17:base --trees mine=/src/sglang/python --json -

exit status: 0 where each tree shows what it should (with group extended every prefix is found, with
core those whose state is made at a moment that core acts on, as released none, and never fewer than
as released; a component-only backup takes no host KV slot and copies its state's bytes only; what a
later release finds is shown, not judged); 1 where not; 2 wrong usage"""


def parser() -> argparse.ArgumentParser:
    """The options of `cache`."""
    made = argparse.ArgumentParser(
        prog="python -m hicache_bench cache",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    pools, shape = sizes.Pools(), sizes.SharedPrefix()
    made.add_argument(
        "--trees",
        action="append",
        metavar="TREE",
        help="a source tree, repeatable: BASE:THROUGH or NAME=FOLDER; the first is the reference "
        f"of the insert times; default: {', '.join(plan.TREES)}; "
        "example: --trees mine=/src/sglang/python",
    )
    numbers = (
        ("--families", shape.families, "shared prefixes", "20"),
        ("--prefix", shape.prefix, "tokens of one, a multiple of the page size 64", "12800"),
        ("--suffix", shape.suffix, "tokens of what follows it", "1000"),
        ("--device-tokens", pools.device_tokens, "Full KV slots on the device", "262144"),
        ("--device-states", pools.device_states, "Mamba state slots on the device", "64"),
        ("--chunk", pools.chunk, "most tokens of one prefill step", "8192"),
    )
    for option, default, what, example in numbers:
        made.add_argument(
            option,
            type=int,
            default=default,
            metavar="N",
            help=f"{what}; default: {default}; example: {option} {example}",
        )
    made.add_argument(
        "--host-ratio",
        type=float,
        default=pools.host_ratio,
        metavar="R",
        help=f"host slots for each device slot; default: {pools.host_ratio:g}; "
        "example: --host-ratio 4",
    )
    made.add_argument(
        "--only",
        action="store_true",
        help="the shared-prefix workload alone: no other workload, growth or insert times; "
        "example: --only",
    )
    made.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where results and logs go; default: build/bench; example: --out /tmp/bench",
    )
    made.add_argument(
        "--json",
        metavar="FILE",
        help="the result as JSON, - for standard output; default: OUT/cache.json; "
        "example: --json -",
    )
    return made


def main(argv: Sequence[str]) -> int:
    """Run `cache`. Returns the exit status; raises BenchError."""
    chosen = parser().parse_args(argv)
    wanted = _plan(chosen)
    sizes.check(wanted.pools, wanted.shape)
    specs = trees.parse_all(chosen.trees or plan.TREES)
    out: Path = (chosen.out or default_out()).resolve()
    with Reporter() as reporter:
        found = resolve_trees(specs, reporter)
        outcome = run.run(found, wanted, out / "logs", reporter)
    value = report.document(outcome, wanted, found)
    _show(value, chosen.json, out)
    for line in value["failed_expectations"]:
        print(f"hicache_bench: not as expected: {line}", file=sys.stderr)
    return 1 if value["failed_expectations"] else 0


def _plan(chosen: argparse.Namespace) -> plan.Plan:
    pools = sizes.Pools(
        device_tokens=chosen.device_tokens,
        device_states=chosen.device_states,
        host_ratio=chosen.host_ratio,
        chunk=chosen.chunk,
    )
    shape = sizes.SharedPrefix(
        families=chosen.families,
        prefix=chosen.prefix,
        suffix=chosen.suffix,
        flood=max(2 * pools.page, min(sizes.SharedPrefix().flood, chosen.device_tokens // 8)),
    )
    if chosen.only:
        return plan.Plan(pools, shape, others=False)
    return plan.Plan(
        pools,
        shape,
        growth=plan.GROWTH,
        inserts=(sizes.Inserts(1_000), sizes.Inserts(100_000)),
    )


def _show(value: dict[str, Any], json_option: str | None, out: Path) -> None:
    """Print the tables, write JSON and plots. JSON on standard output sends tables to stderr."""
    to_stdout = json_option == "-"
    stream = sys.stderr if to_stdout else sys.stdout
    json_path = Path(json_option) if json_option and not to_stdout else out / "cache.json"
    print(report.title(value), file=stream)
    report.print_tables(value, stream)
    drawn = {"plot": (plot.hits(value), out / "cache.png")}
    if value["growth"]:
        drawn["growth"] = (plot.growth(value), out / "cache_growth.png")
    try:
        write_json(value, json_path)
        for figure, path in drawn.values():
            plot.write(figure, path)
    except OSError as error:
        raise BenchError(
            f"the result could not be written: {error}; expected a folder that can be written; "
            "type: python -m hicache_bench cache --out /tmp/bench"
        ) from error
    print(f"JSON: {json_path}", file=stream)
    for name, (_, path) in drawn.items():
        print(f"{name}: {path}", file=stream)
    if to_stdout:
        print(json.dumps(value, indent=2))
