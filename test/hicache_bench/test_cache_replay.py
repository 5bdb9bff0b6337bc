"""The replay itself: the real cache of real trees, in processes of their own, at a small size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from hicache_bench import trees
from hicache_bench.cache import judge, plan
from hicache_bench.cache.driver import Process
from hicache_bench.cache.sizes import Chat, Deep, Inserts, OneState, Pools, SharedPrefix, Tenants
from hicache_bench.errors import BenchError

POOLS = Pools(device_tokens=8_192, device_states=32, host_ratio=8.0, chunk=4_096)
SHAPE = SharedPrefix(families=4, prefix=640, suffix=360, flood=512)
NO_GPU = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}


DEEP = Deep(conversations=2, turns=10, measured=3, system=200, message=70, answer=130, flood=3_000)
# The workloads of families, at this size, and conversations that fit it.
WORKLOADS = {
    workload.name: workload
    for workload in plan.Plan(POOLS, SHAPE).workloads()
    if isinstance(workload.shape, SharedPrefix | OneState)
} | {
    workload.name: replace(
        workload,
        shape=replace(DEEP, slow=workload.shape.slow),
        pools=replace(POOLS, policy=workload.pools.policy, device_states=16),
    )
    for workload in plan.Plan(POOLS, SHAPE).workloads()
    if isinstance(workload.shape, Deep)
}


def worker(name: str, folder: Path, **environ: str) -> Process:
    tree = trees.resolve(trees.parse(name))
    given = {**NO_GPU, **dict(tree.environ), **environ}
    return Process(name, tree.path, folder / f"{tree.sha256[:8]}.log", given)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Process]]:
    folder = tmp_path_factory.mktemp("logs")
    with (
        worker("v0.5.17:base", folder) as base,
        worker("v0.5.17:core", folder) as core,
        worker("v0.5.17:extended", folder) as extended,
        worker("v0.5.17:core", folder / "dropped", SGLANG_CPU_DROP="temporal_load") as dropped,
        worker("v0.5.17:extended", folder / "off", SGLANG_HICACHE_INCREMENTAL_BACKUP="0") as off,
    ):
        yield {"base": base, "core": core, "extended": extended, "dropped": dropped, "off": off}


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Process]]:
    folder = tmp_path_factory.mktemp("peers")
    with (
        worker("v0.5.23:base@rust", folder / "rust") as rust,
        worker("v0.5.23:base@python", folder / "python") as python,
    ):
        yield {"rust": rust, "python": python}


def do(process: Process, workload: plan.Workload) -> Any:
    return process.do(workload.command, **plan.sent(workload))


def shared_prefix(process: Process, shape: SharedPrefix = SHAPE, pools: Pools = POOLS) -> Any:
    return process.do("shared_prefix", pools=asdict(pools), shape=asdict(shape))


def test_each_process_has_the_sglang_of_its_tree(workers: dict[str, Process]) -> None:
    for name in ("base", "core"):
        path = Path(workers[name].do("hello")["sglang"]).parents[1]
        assert path == trees.resolve(trees.parse(f"v0.5.17:{name}")).path


def test_as_released_no_prefix_is_found(workers: dict[str, Process]) -> None:
    found = shared_prefix(workers["base"])
    assert (found["prefix_hits"], found["token_hit_rate"]) == (0, 0.0)
    assert found["copied"]["create"] == {
        "bytes": {pool: {"device_to_host": 0, "host_to_device": 0} for pool in ("kv", "mamba")},
        "backups": {"whole": 0, "kv": 0, "component": 0},
        "slots": {kind: {"kv": 0, "mamba": 0} for kind in ("whole", "kv", "component")},
        "full_tokens_not_copied_again": 0,
    }


def test_with_core_every_prefix_is_found_for_a_state_s_bytes_each(
    workers: dict[str, Process],
) -> None:
    found = shared_prefix(workers["core"])
    assert found["prefix_hits"] == 4
    assert found["tokens"] == {"device": 0, "host": 4 * 640, "computed": 4 * 360}
    assert found["token_hit_rate"] == 0.64
    create = found["copied"]["create"]
    assert create["backups"] == {"whole": 0, "kv": 0, "component": 4}
    assert create["slots"]["component"] == {"kv": 0, "mamba": 4}
    assert create["bytes"]["kv"]["device_to_host"] == 0
    assert create["bytes"]["mamba"]["device_to_host"] == 4 * found["state_bytes"]
    assert create["full_tokens_not_copied_again"] == 4 * 640
    assert judge.bytes_ratio(found) == 1.0
    assert found["copied"]["measure"]["bytes"]["kv"]["host_to_device"] == 4 * 640 * 64
    assert found["prefixes_compared"] == 4


def test_one_state_that_is_left_on_the_device_is_found_by_either(
    workers: dict[str, Process],
) -> None:
    shape = SharedPrefix(
        families=4, prefix=640, suffix=360, common=128, left=1, newest_first=True, flood=512
    )
    base, core = (shared_prefix(workers[name], shape) for name in ("base", "core"))
    assert (base["prefix_hits"], base["tokens"]["device"]) == (1, 640 + 3 * 128)
    assert core["prefix_hits"] == 4


def test_a_chunk_s_end_within_the_prefix_serves_either(workers: dict[str, Process]) -> None:
    pools = Pools(**{**asdict(POOLS), "chunk": 256})
    base, core = (shared_prefix(workers[name], pools=pools) for name in ("base", "core"))
    assert (base["prefix_hits"], base["tokens"]["host"]) == (0, 4 * 512)
    assert core["prefix_hits"] == 4


@pytest.mark.parametrize("name", WORKLOADS)
def test_what_each_tree_finds_and_copies(workers: dict[str, Process], name: str) -> None:
    workload = WORKLOADS[name]
    for group, process in (("released", "base"), ("core", "core"), ("extended", "extended")):
        found = do(workers[process], workload)
        most = {"all": found["eligible"], "none": 0, "one": 1}[workload.finds[group]]
        assert found["prefix_hits"] == most, group
        assert found["eligible"] > 1
        tree = trees.Tree(group, Path(), "", incremental=group != "released")
        assert judge.failed_row({group: found}, replace(workload, finds={}), tree, [tree]) == []


@pytest.mark.parametrize("name", WORKLOADS)
def test_turned_off_it_is_as_released(workers: dict[str, Process], name: str) -> None:
    base, off = (do(workers[process], WORKLOADS[name]) for process in ("base", "off"))
    assert {**off, "seconds": 0} == {**base, "seconds": 0}


def test_a_state_costs_its_own_bytes_whenever_it_is_made(workers: dict[str, Process]) -> None:
    """Where core never saves the state, extended copies one state for each family, and no KV."""
    for name in ("state in flight", "state between chunks", "state at the threshold"):
        base, extended = (
            do(workers[process], WORKLOADS[name])["copied"]["create"]
            for process in ("base", "extended")
        )
        assert extended["backups"] == {**base["backups"], "component": 4}, name
        assert extended["bytes"]["kv"] == base["bytes"]["kv"], name
        moved = [one["bytes"]["mamba"]["device_to_host"] for one in (base, extended)]
        assert moved[1] - moved[0] == 4 * 704, name


def test_write_back_saves_at_eviction_what_core_does_not(workers: dict[str, Process]) -> None:
    workload = WORKLOADS["write-back, node on the host"]
    base, core, extended = (do(workers[name], workload) for name in ("base", "core", "extended"))
    assert base["copied"] == core["copied"]
    assert extended["copied"]["create"] == base["copied"]["create"]
    assert extended["copied"]["flood"]["backups"]["component"] == 4
    internal = do(workers["extended"], WORKLOADS["write-back, node internal"])["copied"]
    assert internal["create"]["backups"] == {"whole": 0, "kv": 0, "component": 0}
    assert internal["pressure"]["backups"]["whole"] >= 4


@pytest.mark.parametrize("core", ["rust", "python"])
def test_a_later_release_runs_on_the_tree_core_that_was_asked_for(
    peers: dict[str, Process], core: str
) -> None:
    plain = do(peers[core], WORKLOADS["shared prefix"])
    assert plain["tree_core"] == {"rust": "RustUnifiedTreeCore", "python": "UnifiedTreeCore"}[core]
    assert plain["prefix_hits"] == plain["prefixes_compared"] == 4
    assert plain["copied"]["create"]["full_tokens_not_copied_again"] == 4 * 640
    assert judge.bytes_ratio(plain) == 1.0
    assert do(peers[core], WORKLOADS["write-back, node on the host"])["prefix_hits"] == 0


@pytest.mark.parametrize("name", WORKLOADS)
def test_both_tree_cores_of_a_later_release_find_and_copy_the_same(
    peers: dict[str, Process], name: str
) -> None:
    rust, python = (do(peers[core], WORKLOADS[name]) for core in ("rust", "python"))
    for key in ("prefix_hits", "tokens", "copied", "host_slots", "flood_prompts"):
        assert rust[key] == python[key], key


@pytest.mark.parametrize(
    ("name", "pools", "says"),
    [
        ("state between chunks", {"chunk": 4_096}, "a was one chunk"),
        ("state between chunks", {"chunk": 256}, "a was more than two chunks"),
        ("state at the threshold", {"policy": "write_through"}, "a was backed up by itself"),
        ("state in flight", {"policy": "write_back"}, "nothing was in flight"),
        ("write-back, leaf to the end", {"policy": "write_through"}, "something was on the host"),
        ("write-back, node internal", {"device_tokens": 5_120}, "KV of a prefix left the device"),
        ("deep conversations", {"device_tokens": 65_536}, "it was still on the device"),
    ],
)
def test_a_moment_that_did_not_come_about_ends_the_run(
    workers: dict[str, Process], name: str, pools: dict[str, Any], says: str
) -> None:
    workload = WORKLOADS[name]
    with pytest.raises(BenchError, match=f"MissedMomentError: .*{says}"):
        do(workers["base"], replace(workload, pools=replace(workload.pools, **pools)))


def test_a_lost_copy_is_noticed(workers: dict[str, Process]) -> None:
    with pytest.raises(BenchError, match="the reused state is not the one after 640 tokens"):
        shared_prefix(workers["dropped"])


def test_chat_gains_nothing_and_costs_next_to_nothing(workers: dict[str, Process]) -> None:
    shape = Chat(conversations=6, turns=5, system=300, message=200, answer=100)
    base, core = (
        workers[name].do("chat", pools=asdict(POOLS), shape=asdict(shape))
        for name in ("base", "core")
    )
    assert base["prefix_hits"] == core["prefix_hits"] > 0
    assert base["tokens"] == core["tokens"]
    assert core["tokens"]["host"] > 0
    extra = judge.totals(core)["component_bytes"]
    moved = [judge.totals(found)["bytes"]["mamba"]["device_to_host"] for found in (base, core)]
    assert moved[1] - moved[0] == extra <= 2 * core["state_bytes"]


def test_tenants_gain_and_the_same_requests_count(workers: dict[str, Process]) -> None:
    shape = Tenants(tenants=8, requests=60, least=300, most=900, question=400)
    base, core = (
        workers[name].do("tenants", pools=asdict(POOLS), shape=asdict(shape))
        for name in ("base", "core")
    )
    assert base["eligible"] == core["eligible"]
    assert base["prefix_hits"] < core["prefix_hits"] == core["eligible"]
    assert judge.totals(base)["backups"]["component"] == 0


def test_growth_gives_a_row_for_each_length(workers: dict[str, Process]) -> None:
    rows = workers["core"].do("growth", pools=asdict(POOLS), lengths=[256, 1024], suffix=360)
    assert [(row["prefix"], row["prefix_hits"]) for row in rows] == [(256, 1), (1024, 1)]
    copied = [row["copied"]["create"]["bytes"]["mamba"]["device_to_host"] for row in rows]
    assert copied[0] == copied[1] == rows[0]["state_bytes"]


def test_inserts_trigger_nothing_where_both_tiers_have_everything(
    workers: dict[str, Process],
) -> None:
    wanted = Inserts(nodes=200, batch=20, targets=50)
    for name in ("base", "core"):
        grown = workers[name].do("grow_tree", inserts=asdict(wanted), page=64)
        assert grown["nodes"] == 200
        assert grown["targets"] >= 50
        batch = workers[name].do("insert")
        assert (batch["backups"], batch["slots"]) == (0, 0)
        assert len(batch["seconds"]) == 20
        assert min(batch["seconds"]) > 0


def test_an_unknown_command_is_an_error_and_the_process_lives(workers: dict[str, Process]) -> None:
    with pytest.raises(BenchError, match="no attribute 'nothing'"):
        workers["base"].do("nothing")
    assert workers["base"].do("hello")


def test_a_tree_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sglang").mkdir(parents=True)
    (tree / "sglang" / "__init__.py").write_text("raise RuntimeError('broken on purpose')\n")
    with (
        Process("broken", tree, tmp_path / "log", NO_GPU) as process,
        pytest.raises(BenchError, match="broken on purpose"),
    ):
        process.do("hello")
