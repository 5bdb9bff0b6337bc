"""The workloads on real servers: as released, with core, with extended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import real_bench

from hicache_bench.server import alive

MODELS = ["lfm2", "qwen3next"]
# Bytes in float32. KV of a token: two attention layers, keys and values, two heads of 16.
TOKEN = 2 * 2 * 2 * 16 * 4
# A state: two layers, each with a window of 64 channels, two steps; or with one of 128 channels,
# three steps, and four temporal matrices of 16 x 16.
STATE = {"lfm2": 2 * (64 * 2) * 4, "qwen3next": 2 * (128 * 3 + 4 * 16 * 16) * 4}
CORE_NAME, EXTENDED_NAME = "v0.5.17 + core", "v0.5.17 + extended"


def all_is_well(row: dict[str, Any]) -> bool:
    """Whether the answers are those of the cold runs, and the floods did their work."""
    hosts = [probe["tiers"]["host"] for probe in row["sentinels"]]
    restored = row["worst_logprob_difference"] <= 1e-5 and row["changed_outputs"] == 0
    return restored and set(hosts) == {16} and row["as_expected"]


def shared_prefix_tokens(row: dict[str, Any]) -> int:
    """Tokens whose KV is new to the host, in the shared prefix under write-through."""
    sizes, families = row["sizes"], row["families"]
    cold = 200 + 3  # a cold run's answer has four tokens; the last of them is never computed
    measured = 72 + 3
    probes = 3 * 4  # what follows a sentinel that is asked for again
    sentinels = 3 * sizes["sentinel"]
    floods = 2 * sizes["flood_prompts"] * sizes["flood_length"]
    created = 200  # p + a; then p has nothing new
    return families * (cold + created + measured) + sentinels + floods + probes


def loaded_tokens(row: dict[str, Any]) -> int:
    """Tokens that were found on the host by any request of a workload."""
    steps = [step for family in row["family_detail"] for step in family["steps"]]
    return row["tokens_by_tier"]["host"] + sum(
        found["tiers"]["host"] for found in (*steps, *row["sentinels"])
    )


def whole_states(row: dict[str, Any]) -> bool:
    """Whether states went both ways, each of them whole."""
    sizes = row["copied"]["mamba"].values()
    return all(size > 0 and size % STATE[row["model"]] == 0 for size in sizes)


@pytest.mark.parametrize("model", MODELS)
def test_core_finds_every_prefix_that_0_5_17_computes_again(
    tmp_path: Path, models: Path, model: str
) -> None:
    trees = ["--trees", real_bench.RELEASED, "--trees", real_bench.CORE]
    words = ["--model", model, *trees, "--workload", "shared-prefix"]
    run = real_bench.run(tmp_path / "out", models, *words)
    assert run.status == 0, run.stderr
    released, core = run.result["rows"]
    assert (released["tree"], core["tree"]) == ("v0.5.17 as released", CORE_NAME)
    assert (released["prefix_hits"], core["prefix_hits"]) == (0, 2)
    assert (released["token_hit_rate"], core["token_hit_rate"]) == (0.0, 0.64)
    assert core["tokens_by_tier"] == {"device": 0, "host": 256, "storage": 0}
    for row in (released, core):
        assert all_is_well(row)
        assert len(row["family_detail"][0]["cold_logprobs"]) == 4
        assert row["copied"]["kv"] == {
            "device_to_host": shared_prefix_tokens(row) * TOKEN,
            "host_to_device": loaded_tokens(row) * TOKEN,
        }
        assert whole_states(row)
    more = [row["copied"]["mamba"]["device_to_host"] for row in (core, released)]
    assert more[0] - more[1] == 2 * STATE[model]  # the two that 0.5.17 loses, and not one more
    assert {tree["sglang"] for tree in run.result["trees"]} == {"0.5.17"}
    assert len({tree["sha256"] for tree in run.result["trees"]}) == 2
    assert run.logs == []  # kept only where something went wrong


def test_extended_finds_what_core_loses_under_either_policy(tmp_path: Path, models: Path) -> None:
    trees = ["--trees", real_bench.CORE, "--trees", real_bench.EXTENDED]
    run = real_bench.run(tmp_path / "out", models, "--model", "lfm2", *trees)
    assert run.status == 0, run.stderr
    core, extended = run.rows(CORE_NAME), run.rows(EXTENDED_NAME)
    lost = [*(f"{name}, write_back" for name in real_bench.PLACE_NAMES), "same-step, write_through"]
    assert [core[name]["prefix_hits"] for name in lost] == [0] * 5
    assert [extended[name]["prefix_hits"] for name in lost] == [2] * 5
    assert {extended[name]["token_hit_rate"] for name in lost} == {0.64}
    assert {extended[name]["hits_by_tier"]["host"] for name in lost} == {2}
    assert all(family["one_pass"] for family in core[lost[-1]]["family_detail"])
    for policy in ("write_through", "write_back"):
        clients = extended[f"clients, {policy}"]
        assert (clients["prefix_hits"], clients["families"]) == (8, 8)
        assert {family["compared_prompts"] for family in clients["family_detail"]} == {4}
    for name, row in core.items():
        assert all_is_well(row)
        assert all_is_well(extended[name])
        assert whole_states(row)
        assert whole_states(extended[name])
        assert row["copied"]["kv"]["device_to_host"] > 0
        if name in lost:
            saved = [each["copied"]["mamba"]["device_to_host"] for each in (row, extended[name])]
            assert saved[0] < saved[1]
            assert extended[name]["copied"]["kv"]["host_to_device"] == (
                loaded_tokens(extended[name]) * TOKEN
            )


def test_extended_saves_temporal_states_under_write_back(tmp_path: Path, models: Path) -> None:
    words = ["--model", "qwen3next", "--trees", real_bench.EXTENDED, "--policy", "write_back"]
    run = real_bench.run(tmp_path / "out", models, *words)
    assert run.status == 0, run.stderr
    rows = run.rows(EXTENDED_NAME)
    found = {name: (row["prefix_hits"], row["families"]) for name, row in rows.items()}
    assert found == {
        **{f"{name}, write_back": (2, 2) for name in real_bench.PLACE_NAMES},
        "clients, write_back": (8, 8),
    }
    assert all(all_is_well(row) for row in rows.values())


@pytest.mark.parametrize("model", MODELS)
def test_a_dropped_copy_is_noticed_although_the_counts_look_right(
    dropped: dict[tuple[str, str], real_bench.Run], model: str
) -> None:
    run = dropped["core", model]
    (core,) = run.result["rows"]
    assert core["prefix_hits"] == 2
    assert core["token_hit_rate"] == 0.64
    assert core["worst_logprob_difference"] > 1e-3
    assert run.status == 1
    name = f"{model}, shared prefix, write_through, {CORE_NAME}"
    assert f"not as expected: {name}: logprobs differ" in run.stderr
    (log,) = run.logs
    assert f"log: {log}" in run.stderr
    assert "The server is fired up" in log.read_text()


@pytest.mark.parametrize("place", real_bench.PLACE_NAMES)
def test_a_state_that_was_not_copied_before_its_eviction_is_noticed(
    dropped: dict[tuple[str, str], real_bench.Run], place: str
) -> None:
    run = dropped["extended", "lfm2"]
    row = run.rows(EXTENDED_NAME)[f"{place}, write_back"]
    assert row["prefix_hits"] == 2  # the count knows nothing of bytes
    assert row["copied"]["mamba"]["device_to_host"] == 0
    assert row["copied"]["mamba"]["host_to_device"] > 0
    assert row["worst_logprob_difference"] > 1e-3
    assert f"{row['label']}, write_back, {EXTENDED_NAME}: logprobs differ" in run.stderr
    assert run.status == 1


def test_interrupt_ends_the_server_and_its_children(tmp_path: Path, models: Path) -> None:
    words = ["--model", "lfm2", "--trees", real_bench.RELEASED, "--policy", "write_through"]
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
