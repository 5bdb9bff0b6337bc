"""SGLANG_CPU_COPIED: several processes in one folder, and values that are no use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_cpu
from sglang_cpu import probe
from sglang_cpu.kinds import KINDS

# A layer of 6 slots, 4 numbers of float32 in each: a backup of 16 bytes for each slot named.
COPY = """
import os, sys
from types import SimpleNamespace
import torch
from sglang_cpu import direct_copies, kinds

def copy(slots, direction="backup"):
    layers = [torch.zeros(6, 4)], [torch.zeros(6, 4)]
    indices = torch.tensor(slots)
    with kinds.operation(SimpleNamespace(), SimpleNamespace(), direction):
        direct_copies.transfer_kv_direct(*layers, indices, indices, 1)
"""


def start(folder: Path, script: str, **environment: str) -> subprocess.Popen[str]:
    """A process that counts in `folder`; it waits wherever it reads a line."""
    return subprocess.Popen(
        [sys.executable, "-c", COPY + script],
        env={
            **os.environ,
            "PYTHONPATH": str(Path(sglang_cpu.__file__).parents[1]),
            sglang_cpu.COPIED: str(folder),
            **environment,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def expected(**sizes: int) -> dict[str, int]:
    return {**dict.fromkeys(KINDS, 0), **sizes}


def test_the_sum_is_of_all_processes_while_they_run_and_when_they_have_ended(
    tmp_path: Path,
) -> None:
    script = "copy([1, 2]); print('copied', flush=True); input(); copy([3], 'load')"
    with start(tmp_path, script) as one, start(tmp_path, script) as other:
        for process in (one, other):
            assert process.stdout.readline() == "copied\n"
        assert sglang_cpu.copied(tmp_path) == expected(kv_backup=2 * 32)
        for process in (one, other):
            process.communicate("\n")
    assert sglang_cpu.copied(tmp_path) == expected(kv_backup=2 * 32, kv_load=2 * 16)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_process_that_forks_shares_no_file_with_its_child(tmp_path: Path) -> None:
    fork = "copy([1])\nif not os.fork(): copy([2]); os._exit(0)\nos.wait(); copy([3])"
    with start(tmp_path, fork) as process:
        process.communicate()
    assert process.returncode == 0
    assert sglang_cpu.copied(tmp_path) == expected(kv_backup=3 * 16)
    assert len(list(tmp_path.iterdir())) == 2


def test_threads_lose_no_copy_of_each_other(tmp_path: Path) -> None:
    threads = """
import threading, time
from sglang_cpu import totals
class Slow:
    def __init__(self, cells): self.cells = cells
    def __getitem__(self, index):
        read = self.cells[index]; time.sleep(0.001)  # the other threads have their turn here
        return read
    def __setitem__(self, index, value): self.cells[index] = value
mine = totals._totals(os.environ["SGLANG_CPU_COPIED"], os.getpid())
mine._cells = Slow(mine._cells)
def many():
    for _ in range(10): totals.count("conv_load", 8)
threads = [threading.Thread(target=many) for _ in range(4)]
for each in threads: each.start()
for each in threads: each.join()
"""
    with start(tmp_path, threads) as process:
        process.communicate()
    assert sglang_cpu.copied(tmp_path) == expected(conv_load=40 * 8)


def test_a_dropped_kind_counts_nothing(tmp_path: Path) -> None:
    with start(tmp_path, "copy([1]); copy([1], 'load')", SGLANG_CPU_DROP="kv_backup") as process:
        process.communicate()
    assert sglang_cpu.copied(tmp_path) == expected(kv_load=16)


def test_a_file_that_is_just_being_made_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "1-new.copied").touch()
    assert sglang_cpu.copied(tmp_path) == expected()


def test_where_nobody_counts_nothing_is_known(tmp_path: Path) -> None:
    assert sglang_cpu.copied(tmp_path) is None
    assert sglang_cpu.copied(tmp_path / "absent") is None


@pytest.mark.skipif(probe.accelerator_present(), reason="with a GPU nothing is counted")
@pytest.mark.parametrize("value", ["absent", "file", "/proc"])
def test_a_folder_that_cannot_be_written_is_one_clear_error(
    value: str, tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / value
    done = subprocess.run(
        [sys.executable, "-c", "import sglang_cpu.server; sglang_cpu.server.register()"],
        env={**sglang_cpu.environment(tree), sglang_cpu.COPIED: str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"sglang_cpu: cannot let sglang run on the host: SGLANG_CPU_COPIED: {folder}: "
    )
    assert line.endswith("; expected a folder that can be written")
