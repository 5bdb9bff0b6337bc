"""One run of the benchmark's own command line, with real servers on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RELEASED, CORE, EXTENDED = "v0.5.17:base", "v0.5.17:core", "v0.5.17:extended"
# Where the node of a state can be when the state is made, under write-back.
PLACE_NAMES = ("leaf", "internal", "host", "both")
PLACES = [word for name in PLACE_NAMES for word in ("--workload", name)]


@dataclass(frozen=True)
class Run:
    """Exit status, standard error, the JSON ({} where there is none), the logs that were kept."""

    status: int
    stderr: str
    result: dict[str, Any]
    logs: list[Path]

    def rows(self, tree: str) -> dict[str, dict[str, Any]]:
        """The rows of one tree by workload and policy ("leaf, write_back")."""
        return {
            f"{row['workload']}, {row['policy']}": row
            for row in self.result["rows"]
            if row["tree"] == tree
        }


def command(out: Path, models: Path, *words: str) -> list[str]:
    """The command line of a run of two families into the new folder `out`.

    models: folder of checkpoints that runs share, so that each is made once.
    """
    out.mkdir()
    (out / "models").symlink_to(models, target_is_directory=True)
    made = [sys.executable, "-m", "hicache_bench", "--families", "2", "--out", str(out)]
    return [*made, *words]


def run(out: Path, models: Path, *words: str, **environment: str) -> Run:
    """Run it to its end."""
    done = subprocess.run(
        command(out, models, "--json", "-", *words),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    result = json.loads(done.stdout) if done.stdout else {}
    return Run(done.returncode, done.stderr, result, sorted((out / "logs").glob("*.log")))
