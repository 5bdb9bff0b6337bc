"""The shared-prefix workload on real servers, as released and with core."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import real_bench

from hicache_bench.server import alive


@pytest.mark.parametrize("model", ["lfm2", "qwen3next"])
def test_core_finds_every_prefix_that_0_5_17_computes_again(
    tmp_path: Path, models: Path, model: str
) -> None:
    run = real_bench.run(tmp_path / "out", models, "--model", model)
    assert run.status == 0, run.stderr
    released, core = run.result["rows"]
    assert (released["tree"], core["tree"]) == ("v0.5.17 as released", "v0.5.17 + core")
    assert (released["prefix_hits"], core["prefix_hits"]) == (0, 2)
    assert (released["token_hit_rate"], core["token_hit_rate"]) == (0.0, 0.64)
    assert core["tokens_by_tier"] == {"device": 0, "host": 256, "storage": 0}
    for row in (released, core):
        assert row["worst_logprob_difference"] <= 1e-5
        assert row["changed_outputs"] == 0
        assert [probe["tiers"]["host"] for probe in row["sentinels"]] == [16, 16, 16]
        assert len(row["family_detail"][0]["cold_logprobs"]) == 4
    assert {tree["sglang"] for tree in run.result["trees"]} == {"0.5.17"}
    assert len({tree["sha256"] for tree in run.result["trees"]}) == 2
    assert run.logs == []  # kept only where something went wrong


@pytest.mark.parametrize("model", ["lfm2", "qwen3next"])
def test_a_dropped_copy_is_noticed_although_the_counts_look_right(
    dropped: dict[str, real_bench.Run], model: str
) -> None:
    run = dropped[model]
    (core,) = run.result["rows"]
    assert core["prefix_hits"] == 2
    assert core["token_hit_rate"] == 0.64
    assert core["worst_logprob_difference"] > 1e-3
    assert run.status == 1
    assert f"not as expected: {model}, v0.5.17 + core: logprobs differ" in run.stderr
    (log,) = run.logs
    assert f"log: {log}" in run.stderr
    assert "The server is fired up" in log.read_text()


def test_interrupt_ends_the_server_and_its_children(tmp_path: Path, models: Path) -> None:
    words = ["--model", "lfm2", "--trees", "v0.5.17:base"]
    bench = subprocess.Popen(
        real_bench.command(tmp_path / "out", models, *words), stderr=subprocess.PIPE, text=True
    )
    me = psutil.Process(bench.pid)
    started: list[psutil.Process] = []
    while bench.poll() is None and len(started) < 4:  # server, tracker, scheduler, detokenizer
        time.sleep(0.2)
        started = [child for child in me.children(recursive=True) if _is_server(child)]
    os.kill(bench.pid, signal.SIGINT)
    _, stderr = bench.communicate()
    assert "interrupted; every server of this run has been ended" in stderr
    assert bench.returncode == 1
    assert len(started) == 4
    assert not [process for process in started if alive(process)]


def _is_server(process: psutil.Process) -> bool:
    """Whether it is the server or a child of it, by the environment that they inherit."""
    try:
        return "SGLANG_USE_CPU_ENGINE" in process.environ()
    except psutil.Error:
        return False
