"""``python -m hicache_fuzz``, and ``scripts/fuzz``."""

from __future__ import annotations

import argparse
import re
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hicache_fuzz import api, configs, script
from hicache_fuzz.worker import Options
from patchseries import trees
from patchseries.errors import PatchSeriesError
from patchseries.repository import Repository

_DESCRIPTION = """\
Do random operations on the real UnifiedRadixCache of a source tree: requests in chunks, matches,
loads, evictions by component, aborts, flushes, storage, transfers held back and released in any
order, acknowledgements lost and repeated. After each, the tree's own check, every slot of every
pool, every byte, and that no state was lost while the host had room. A failure is made as short as
can be, printed, and written to a file."""

_EPILOG = """\
examples:
  scripts/fuzz --steps 10000
  scripts/fuzz --tree v0.5.17:core --keeps-states yes       what core loses
  scripts/fuzz --tree /path/that/holds/sglang --config mamba-page1-write_back
  scripts/fuzz --replay build/fuzz/mamba-page1-write_back-seed7.py

exit status: 0 nothing wrong, 1 a failure, 2 wrong usage"""


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="scripts/fuzz",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--tree",
        default="v0.5.17:all",
        metavar="TREE",
        help="BASE:THROUGH (a group, a patch, base or all), or a folder that holds sglang/; "
        "default: v0.5.17:all",
    )
    made.add_argument(
        "--steps", type=int, default=10_000, metavar="N", help="operations; default: 10000"
    )
    made.add_argument(
        "--seed", type=int, metavar="N", help="of the first round; default: drawn, and printed"
    )
    made.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="NAME",
        help=f"a configuration, repeatable; default: all, in turn: {', '.join(configs.ALL)}",
    )
    made.add_argument(
        "--keeps-states",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether no state may be lost; default: auto, where the tree has the group `extended`",
    )
    made.add_argument("--replay", metavar="FILE", help="do what a file says that a failure wrote")
    made.add_argument(
        "--out",
        default=str(Repository.default().build / "fuzz"),
        metavar="FOLDER",
        help="where the script of a failure goes; default: build/fuzz",
    )
    return made


def resolve(text: str) -> Path:
    """The folder of a tree.

    Raises:
        ValueError: there is none; it says what was expected.
    """
    folder = Path(text).expanduser()
    if (folder / "sglang" / "__init__.py").is_file():
        return folder.resolve()
    base, colon, through = text.partition(":")
    if not (colon and re.fullmatch(r"v\d[\w.]*", base) and re.fullmatch(r"[\w.+-]+", through)):
        raise ValueError(
            f"--tree {text}: expected a folder that holds sglang/, or BASE:THROUGH; "
            "type: scripts/fuzz --tree v0.5.17:all"
        )
    try:
        return trees.cached(base, None if through == "all" else through)
    except PatchSeriesError as error:
        raise ValueError(f"--tree {text}: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Run in a process of the tree. Returns the exit status."""
    given = parser().parse_args(argv)
    try:
        if given.steps < 1:
            raise ValueError(
                f"--steps {given.steps}: expected at least 1; type: scripts/fuzz --steps 10000"
            )
        configs.named(given.config)
        if given.replay:
            script.read(Path(given.replay))
        tree = resolve(given.tree)
    except ValueError as error:
        print(f"scripts/fuzz: {error}", file=sys.stderr)
        return 2
    options = Options(
        tree=given.tree,
        configs=tuple(given.config),
        steps=given.steps,
        seed=secrets.randbelow(1 << 31) if given.seed is None else given.seed,
        keeps=given.keeps_states,
        out=given.out,
        replay=given.replay,
    )
    return run(tree, options)


def run(tree: Path, options: Options) -> int:
    """Run the worker on a tree, its output going where ours goes; Ctrl-C ends both."""
    command = [sys.executable, "-W", "ignore", "-m", "hicache_fuzz.worker", options.as_json()]
    with subprocess.Popen(command, env=api.environment(tree)) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.kill()
            return 130
