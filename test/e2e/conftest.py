"""Runs of the benchmark's own command line, each with real servers on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Run:
    """Exit status, standard error, and the JSON ({} where there is none)."""

    status: int
    stderr: str
    result: dict[str, Any]


Bench = Callable[..., Run]


@pytest.fixture(scope="session")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder for checkpoints, results and logs, shared so that a checkpoint is made once."""
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="session")
def bench(out: Path) -> Bench:
    """bench(*words, **environment): one run of two families."""

    def run(*words: str, **environment: str) -> Run:
        command = [sys.executable, "-m", "hicache_bench", "--families", "2", "--json", "-"]
        done = subprocess.run(
            [*command, "--out", str(out), *words],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return Run(done.returncode, done.stderr, json.loads(done.stdout) if done.stdout else {})

    return run
