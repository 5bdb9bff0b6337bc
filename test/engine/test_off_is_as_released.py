"""With SGLANG_HICACHE_INCREMENTAL_BACKUP=0 the patched tree does exactly what the release does.

Random traces (both policies, pages of 1 and 4, Full+Mamba and Full+SWA+Mamba, small pools) run in
one process on the tree as released and in one on the patched tree. Every allocation and release
with its slots, every copy with its indices, every lock, event and eviction result, and the state of
the whole tree after every step must be the same, in the same order.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import sglang_cpu
from patchseries import trees

SCRIPT = Path(__file__).with_name("record_traces.py")
SWITCH = "SGLANG_HICACHE_INCREMENTAL_BACKUP"
SEEDS = (1,)
CONTEXT = 6
"""Lines before the first difference that are shown."""

Logs = dict[str, list[str]]
Record = Callable[[Path, str | None], Logs]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """Records the traces of a tree, with the switch set so (None: not set)."""
    out = tmp_path_factory.mktemp("traces") / "logs.json"

    def run(tree: Path, switch: str | None) -> Logs:
        env = sglang_cpu.environment(tree)
        env.pop(SWITCH, None)
        if switch is not None:
            env[SWITCH] = switch
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(out), *map(str, SEEDS)],
            env={**env, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{tree}, {SWITCH}={switch}:\n{done.stderr[-4000:]}"
        logs: Logs = json.loads(out.read_text(encoding="utf-8"))
        return logs

    return run


@pytest.fixture(scope="module")
def released(record: Record) -> Logs:
    """What the tree as released does; it knows no switch."""
    return record(trees.cached("v0.5.17", "base"), None)


@pytest.fixture(scope="module")
def patched() -> Path:
    """The tree with the whole series, or $SGLANG_PATCHED_TREE."""
    if given := os.environ.get("SGLANG_PATCHED_TREE"):
        return Path(given)
    return trees.cached("v0.5.17", None)


def first_difference(name: str, released: list[str], patched: list[str]) -> str | None:
    """Where two logs part, with what led there; None for equal ones."""
    if released == patched:
        return None
    pairs = enumerate(zip(released, patched, strict=False))
    end = min(len(released), len(patched))
    place = next((place for place, (old, new) in pairs if old != new), end)
    return "\n".join(
        [
            f"{name}: entry {place} differs",
            *(f"  both      {line}" for line in released[max(0, place - CONTEXT) : place]),
            *(f"  released  {line}" for line in released[place : place + 3]),
            *(f"  switched off  {line}" for line in patched[place : place + 3]),
        ]
    )


def test_off_does_what_the_release_does(record: Record, released: Logs, patched: Path) -> None:
    off = record(patched, "0")
    assert off.keys() == released.keys()
    differences = [first_difference(name, released[name], off[name]) for name in released]
    found = [each for each in differences if each]
    assert not found, f"{len(found)} of {len(released)} traces differ\n" + "\n\n".join(found[:3])


def test_the_traces_notice_what_is_new(record: Record, released: Logs, patched: Path) -> None:
    on = record(patched, "1")
    same = [name for name in released if released[name] == on[name]]
    assert not same


def test_a_difference_is_shown_where_it_is() -> None:
    said = first_difference("trace", ["a", "b", "c"], ["a", "x", "c"])
    assert said is not None
    assert said.splitlines()[:4] == [
        "trace: entry 1 differs",
        "  both      a",
        "  released  b",
        "  released  c",
    ]
    assert first_difference("trace", ["a"], ["a", "b"]) is not None
    assert first_difference("trace", ["a"], ["a"]) is None
