"""The options of the command line."""

from __future__ import annotations

import argparse
from pathlib import Path

from hicache_bench import models, plan, workload, workloads

_DESCRIPTION = """\
Boot a real sglang server on the CPU for each source tree, write policy and tiny hybrid checkpoint,
drive it over HTTP with prompts that share prefixes, and show how many prefixes the hierarchical
cache finds again, in each of several ways to make their states. Without options: v0.5.17 as
released, with the core patches and with all patches, 0.5.18 and 0.5.23 as released; all workloads
on LFM2, the first on Qwen3-Next; write-through and write-back; about five minutes."""

_EPILOG = """\
examples:
  python -m hicache_bench
  python -m hicache_bench --model lfm2 --families 8 --prefix 512
  python -m hicache_bench --trees v0.5.17:core --trees mine=/src/sglang/python --policy write_back
  python -m hicache_bench --trees v0.5.17:core --trees v0.5.23:base@rust --trees v0.5.23:base@python
  python -m hicache_bench --json - | jq '.rows[].prefix_hits'

exit status: 0 where each tree shows what it should: one with component-only backup finds every
prefix (none under write_back), one without finds none, and logprobs equal a cold run's;
1 where something is not so, or a server did not run; 2 wrong usage"""


def parser() -> argparse.ArgumentParser:
    """The parser. Its values are checked where they are used, by errors that exit with status 2."""
    made = argparse.ArgumentParser(
        prog="python -m hicache_bench",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _what(made)
    _where(made)
    return made


def _what(made: argparse.ArgumentParser) -> None:
    shape = workload.Shape()
    made.add_argument(
        "--trees",
        action="append",
        metavar="TREE",
        help="a source tree, repeatable: BASE:THROUGH (v0.5.17:base as released, v0.5.17:core, "
        "v0.5.17:extended, v0.5.17:PATCH; later releases, from patches/peers.toml: v0.5.18:base) "
        "or NAME=FOLDER; @rust or @python behind it chooses the tree core, where there are both; "
        f"default: {', '.join(plan.TREES)}; "
        "example: --trees mine=/src/sglang/python",
    )
    made.add_argument(
        "--model",
        default="both",
        metavar="MODEL",
        help=f"{', '.join(models.names())}, both, or a folder with a hybrid checkpoint; the second "
        "of both runs the first workload alone; default: both; example: --model lfm2",
    )
    made.add_argument(
        "--families",
        type=int,
        default=shape.families,
        metavar="N",
        help=f"number of shared prefixes; default: {shape.families}; example: --families 8",
    )
    made.add_argument(
        "--prefix",
        type=int,
        default=shape.prefix,
        metavar="TOKENS",
        help=f"length of a prefix; default: {shape.prefix}; example: --prefix 512",
    )
    made.add_argument(
        "--suffix",
        type=int,
        default=shape.suffix,
        metavar="TOKENS",
        help=f"length of what follows it; default: {shape.suffix}; example: --suffix 288",
    )
    made.add_argument(
        "--policy",
        choices=workload.POLICIES,
        help="HiCache's write policy; default: write_through and write_back, a server each; "
        "example: --policy write_back",
    )
    made.add_argument(
        "--workload",
        action="append",
        default=[],
        metavar="NAME",
        help=f"a workload, repeatable: {', '.join(workloads.names())}; default: all that mean "
        "something under the policy; example: --workload same-step",
    )
    made.add_argument(
        "--jobs",
        type=int,
        default=2,
        metavar="N",
        help="servers that run at the same time; default: 2; example: --jobs 1",
    )


def _where(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="where checkpoints, results and logs go; default: build/bench; "
        "example: --out /tmp/bench",
    )
    made.add_argument(
        "--json",
        metavar="FILE",
        help="the result as JSON, - for standard output; default: OUT/shared_prefix.json; "
        "example: --json -",
    )
    made.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="the result as a PNG; default: OUT/shared_prefix.png; example: --plot /tmp/hits.png",
    )
    made.add_argument(
        "--keep-logs",
        action="store_true",
        help="keep the servers' logs also when all went well; example: --keep-logs",
    )
