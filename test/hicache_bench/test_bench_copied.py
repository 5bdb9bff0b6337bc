"""Bytes of a server's copies: by pool and direction, from one reading to the next, in words."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from bench_world import COPIED, KINDS

import sglang_cpu
from hicache_bench import copied
from hicache_bench.errors import BenchError
from sglang_cpu import totals
from sglang_cpu.kinds import KINDS as ALL


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process counts, as a server would."""
    monkeypatch.setenv(sglang_cpu.COPIED, str(tmp_path))
    totals.start()
    return tmp_path


def ways(backup: int, load: int) -> dict[str, int]:
    return {"device_to_host": backup, "host_to_device": load}


def test_kinds_become_pools_and_directions() -> None:
    assert set(KINDS) == set(ALL)
    assert copied.by_pool(KINDS) == {"kv": ways(2_900_000, 24_600), "mamba": ways(32_800, 120)}


def test_bytes_in_words() -> None:
    assert copied.cells(COPIED) == ("2.9 MB / 32.8 kB", "24.6 kB / 120 B")
    assert copied.cells(None) == ("not known", "not known")


def test_each_reading_has_what_came_since_the_one_before(folder: Path) -> None:
    watch = copied.Watch(folder, lambda: None)
    totals.count("kv_backup", 100)
    assert watch.taken() == {"kv": ways(100, 0), "mamba": ways(0, 0)}
    totals.count("kv_load", 7)
    totals.count("conv_backup", 30)
    totals.count("temporal_backup", 5)
    assert watch.taken() == {"kv": ways(0, 7), "mamba": ways(35, 0)}
    assert watch.taken() == {"kv": ways(0, 0), "mamba": ways(0, 0)}


def test_a_backup_after_the_last_answer_is_waited_for(folder: Path) -> None:
    """The scheduler copies in steps of its own, and answers in between."""
    late = iter([0, 8, 0, 8])
    watch = copied.Watch(folder, lambda: totals.count("kv_backup", next(late, 0)))
    assert watch.taken() == {"kv": ways(16, 0), "mamba": ways(0, 0)}


def test_a_server_that_never_rests_is_one_clear_error(folder: Path) -> None:
    watch = copied.Watch(folder, lambda: totals.count("kv_backup", 8), limit_s=0.2)
    began = time.monotonic()
    with pytest.raises(BenchError, match="still copies 0 s after its last answer; expected"):
        watch.taken()
    assert time.monotonic() - began < 30


def test_where_nobody_counts_nothing_is_known_and_nothing_asked(tmp_path: Path) -> None:
    def ask() -> None:
        raise AssertionError("nobody counts")

    assert copied.Watch(tmp_path, ask).taken() is None
