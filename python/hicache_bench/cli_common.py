"""What the command lines of the package share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hicache_bench import trees
from hicache_bench.errors import UsageError
from hicache_bench.progress import Reporter


def default_out() -> Path:
    """build/bench of this checkout, or of the current folder where the package is installed."""
    root = Path(__file__).resolve().parents[2]
    return (root if (root / "patches").is_dir() else Path.cwd()) / "build" / "bench"


def check_outputs(*paths: Path) -> None:
    """See before a run that its results can be written. Raises UsageError that names the path."""
    for path in paths:
        folder = path.resolve().parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"{path}: {error.strerror}; expected a place that can be written; "
                "type: python -m hicache_bench --out /tmp/bench"
            ) from error
        if path.is_dir() or not os.access(path if path.exists() else folder, os.W_OK):
            raise UsageError(
                f"{path}: cannot be written; expected a file in a folder that can be written; "
                "type: python -m hicache_bench --out /tmp/bench"
            )


def resolve_trees(specs: Sequence[trees.TreeSpec], reporter: Reporter) -> list[trees.Tree]:
    """Build or find every tree. Raises BenchError."""
    found = []
    for spec in specs:
        reporter.say(f"{spec.name}: source tree")
        tree = trees.resolve(spec)
        reporter.say(f"{spec.name}: {tree.path}")
        found.append(tree)
    return found
