"""`server --url` against servers of our own: with all flags, and without those that it needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hicache_bench import launch, models, trees, workload
from hicache_bench.server import Server, Servers, ServerSpec

SIZES = ["--families", "2", "--prefix", "128", "--suffix", "72"]
SHAPE = workload.Shape(families=2)


def spec(name: str, folder: Path, *left_out: str, policy: str = "write_through") -> ServerSpec:
    """A server of the whole series, without some of its switches, or with another policy."""
    checkpoint = models.make("lfm2", folder)
    tree = trees.resolve(trees.parse("v0.5.17:extended"))
    made = launch.spec(
        name, checkpoint, tree.path, shape=SHAPE, policy=policy, logs=folder / "logs"
    )
    environ = {**made.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [word for word in made.command if word not in left_out]
    return replace(made, command=command, environ=environ)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Server]]:
    folder = tmp_path_factory.mktemp("url")
    missing = {
        "all": (),
        "no hierarchical cache": ("--enable-hierarchical-cache",),
        "no cache report": ("--enable-cache-report",),
    }
    with Servers() as running:
        started = {
            name: running.start(spec(name, folder, *flags)) for name, flags in missing.items()
        }
        write_back = spec("write_back", folder, policy="write_back")
        started["write_back"] = running.start(write_back)
        for server in started.values():
            server.wait_ready(400)
        yield started


def run(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hicache_bench", "server", "--url", server.url, *SIZES, *words],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_with_all_flags_every_prefix_is_found(servers: dict[str, Server], tmp_path: Path) -> None:
    file = tmp_path / "after.json"
    done = run(servers["all"], "--flush", "--name", "after", "--json", str(file))
    assert done.returncode == 0, done.stderr
    value = json.loads(file.read_text())
    assert (value["prefix_hits"], value["tokens"]["host"]) == (2, 256)
    assert value["token_hit_rate"] == 0.64
    assert value["worst_logprob_difference"] < 1e-5
    assert "requests" in done.stderr
    assert "prompt tokens, about" in done.stderr


def test_a_second_run_finds_nothing_of_the_first(servers: dict[str, Server]) -> None:
    done = run(servers["all"], "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["created_cached"] == [0, 0]


def test_an_estimate_measures_nothing(servers: dict[str, Server]) -> None:
    done = run(servers["all"], "--estimate")
    assert (done.returncode, done.stdout) == (0, "")
    assert "prompt tokens, about" in done.stderr


def test_without_the_hierarchical_cache_nothing_is_sent(servers: dict[str, Server]) -> None:
    done = run(servers["no hierarchical cache"])
    assert (done.returncode, done.stdout) == (1, "")
    assert "launch it with --enable-hierarchical-cache" in done.stderr
    assert "nothing was sent" in done.stderr


def test_with_write_back_every_prefix_is_found(servers: dict[str, Server]) -> None:
    done = run(servers["write_back"], "--flush", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert "only a tree with group extended" in done.stderr
    value = json.loads(done.stdout)
    assert (value["prefix_hits"], value["tokens"]["host"]) == (2, 256)
    assert value["worst_logprob_difference"] < 1e-5


def test_a_host_pool_smaller_than_the_workload_is_said(servers: dict[str, Server]) -> None:
    done = run(servers["all"], "--families", "100")
    assert (done.returncode, done.stdout) == (1, "")
    assert "its host pool holds" in done.stderr
    assert "launch it with --hicache-ratio" in done.stderr


def test_sent_anyway_a_workload_that_does_not_fit_is_no_result(
    servers: dict[str, Server],
) -> None:
    done = run(servers["all"], "--families", "100", "--anyway")
    assert done.returncode == 1
    assert "the hits mean nothing" in done.stderr


def test_without_the_cache_report_it_is_noted_and_measured(servers: dict[str, Server]) -> None:
    done = run(servers["no cache report"], "--json", "-")
    assert done.returncode == 0, done.stderr
    assert "launch it with --enable-cache-report" in done.stderr
    assert json.loads(done.stdout)["tokens"]["host"] == 256
