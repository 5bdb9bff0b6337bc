"""``python -m hicache_bench readme``: a README's figures from committed JSON, and the check."""

from __future__ import annotations

import argparse
import difflib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hicache_bench.cache import plot as cache_plot
from hicache_bench.cache.report import SCHEMA as CACHE_SCHEMA
from hicache_bench.cli_common import default_out
from hicache_bench.errors import BenchError, UsageError
from hicache_bench.readme_tables import section
from hicache_bench.report import SCHEMA, write_beside, write_json

BEGIN, END = "<!-- bench: begin -->", "<!-- bench: end -->"
SOURCES = {"server": "shared_prefix.json", "cache": "cache.json"}
_ROOT = Path(__file__).resolve().parents[2]

_EPILOG = f"""\
examples:
  python -m hicache_bench readme              rewrite README.md's figures from docs/bench.json
  python -m hicache_bench readme --check      say whether they are those of docs/bench.json
  python -m hicache_bench readme --take       take the last runs' results into docs/bench.json first

The text between {BEGIN} and {END} in the README is replaced.
exit status: 0 written, or they agree; 1 they do not agree; 2 wrong usage"""


def parser() -> argparse.ArgumentParser:
    """The options of `readme`."""
    made = argparse.ArgumentParser(
        prog="python -m hicache_bench readme",
        description="Write the README's benchmark tables from the committed JSON.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--check", action="store_true", help="change nothing, compare; example: --check"
    )
    made.add_argument(
        "--take",
        nargs="?",
        type=Path,
        const=default_out(),
        metavar="FOLDER",
        help="take shared_prefix.json and cache.json from there first, and draw docs/*.png; "
        "default: build/bench; example: --take /tmp/bench",
    )
    made.add_argument(
        "--json",
        type=Path,
        default=_ROOT / "docs" / "bench.json",
        metavar="FILE",
        help="the committed results; default: docs/bench.json; example: --json /tmp/bench.json",
    )
    made.add_argument(
        "--readme",
        type=Path,
        default=_ROOT / "README.md",
        metavar="FILE",
        help="default: README.md; example: --readme /tmp/README.md",
    )
    return made


def main(argv: Sequence[str]) -> int:
    """Run `readme`. Returns the exit status; raises BenchError."""
    chosen = parser().parse_args(argv)
    if chosen.take:
        _take(chosen.take, chosen.json)
    text = _read(chosen.readme)
    wanted = replace(text, section(_load(chosen.json)), chosen.readme)
    if text == wanted:
        return 0
    if chosen.check:
        sys.stderr.writelines(
            difflib.unified_diff(
                text.splitlines(keepends=True),
                wanted.splitlines(keepends=True),
                str(chosen.readme),
                f"as {chosen.json} has it",
            )
        )
        print(
            f"hicache_bench: {chosen.readme}: its figures are not those of {chosen.json}; type: "
            "python -m hicache_bench readme",
            file=sys.stderr,
        )
        return 1
    write_beside(chosen.readme, lambda file: file.write_text(wanted, encoding="utf-8"))
    print(f"wrote {chosen.readme}")
    return 0


def replace(text: str, inside: str, path: Path) -> str:
    """`text` with what is between the marks replaced. Raises UsageError where they are missing."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end or BEGIN in tail:
        raise UsageError(f"{path}: expected {BEGIN} and {END}, once each, in this order")
    return f"{head}{BEGIN}\n{inside}{END}{tail}"


def _take(folder: Path, target: Path) -> None:
    """Put the results of the last runs into one file, and their pictures beside it."""
    value = {name: _json(folder / file) for name, file in SOURCES.items()}
    _check_schemas(value, folder)
    for name, file in SOURCES.items():
        if value[name]["failed_expectations"]:
            raise BenchError(
                f"{folder / file}: the run was not as expected; figures of such a run are not "
                "published; measure again"
            )
    write_json(value, target)
    cache_plot.write(cache_plot.hits(value["cache"]), target.parent / "cache.png")
    if value["cache"]["growth"]:
        cache_plot.write(cache_plot.growth(value["cache"]), target.parent / "cache_growth.png")
    picture = folder / "shared_prefix.png"
    if picture.is_file():
        write_beside(
            target.parent / picture.name, lambda file: file.write_bytes(picture.read_bytes())
        )


def _load(path: Path) -> dict[str, Any]:
    value = _json(path)
    if not set(SOURCES) <= value.keys():
        raise UsageError(
            f"{path}: expected the keys {', '.join(SOURCES)}; type: "
            "python -m hicache_bench readme --take"
        )
    _check_schemas(value, path)
    return value


def _check_schemas(value: dict[str, Any], path: Path) -> None:
    for name, wanted in (("server", SCHEMA), ("cache", CACHE_SCHEMA)):
        if value[name].get("schema") != wanted:
            raise UsageError(
                f"{path}: {name} is written in schema {value[name].get('schema')}; expected "
                f"{wanted}; measure again"
            )


def _json(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = json.loads(_read(path))
    except ValueError as error:
        raise UsageError(
            f"{path}: not JSON ({error}); expected results of the benchmark"
        ) from error
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}); type: python -m hicache_bench && "
            "python -m hicache_bench cache && python -m hicache_bench readme --take"
        ) from error
