"""What a replay's results come to, and that each thing that can be wrong with them is said."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from hicache_bench.cache import judge, plan, plot, report, run, sizes
from hicache_bench.errors import UsageError
from hicache_bench.trees import Tree

RELEASED = Tree("as released", Path("/trees/base"), "a" * 64, incremental=False)
CORE = Tree("core", Path("/trees/core"), "b" * 64, incremental=True)
EXTENDED = Tree("extended", Path("/trees/all"), "c" * 64, incremental=True, extended=True)
PEER = Tree("0.5.23", Path("/trees/peer"), "d" * 64, incremental=True, peer=True)
TREES = [RELEASED, CORE, EXTENDED, PEER]
PLAN = plan.Plan(sizes.Pools(), sizes.SharedPrefix(), others=False)
WHOLE = plan.Plan(sizes.Pools(), sizes.SharedPrefix())


def phase(whole: int = 0, component: int = 0, kv_bytes: int = 0, states: int = 0) -> dict[str, Any]:
    return {
        "bytes": {
            "kv": {"device_to_host": kv_bytes, "host_to_device": 0},
            "mamba": {"device_to_host": states * 704, "host_to_device": 0},
        },
        "backups": {"whole": whole, "kv": 0, "component": component},
        "slots": {
            "whole": {"kv": whole * 100, "mamba": whole},
            "kv": {"kv": 0, "mamba": 0},
            "component": {"kv": 0, "mamba": component},
        },
        "full_tokens_not_copied_again": component * 6400,
    }


def result(hits: int, component: int) -> dict[str, Any]:
    return {
        "requests": 10,
        "eligible": 10,
        "prefix_hits": hits,
        "prompt_tokens": 100_000,
        "tokens": {"device": 0, "host": hits * 6400, "computed": 100_000 - hits * 6400},
        "token_hit_rate": hits * 0.064,
        "copied": {
            "fill": phase(whole=10, kv_bytes=64_000, states=10),
            "create": phase(component=component, states=component),
            "flood": phase(whole=3, kv_bytes=19_200, states=3),
            "measure": phase(),
        },
        "families_left_on_device": 0,
        "prefixes_compared": hits,
        "host_slots": {"kv": 1300, "mamba": 13 + component},
        "token_bytes": 64,
        "state_bytes": 704,
    }


def outcome() -> run.Outcome:
    found = run.Outcome()
    found.rows["shared prefix"] = {RELEASED.name: result(0, 0), CORE.name: result(10, 10)}
    found.growth = {
        tree.name: [{"prefix": 1024, **result(hits, hits), "eligible": 1}]
        for tree, hits in ((RELEASED, 0), (CORE, 1))
    }
    found.inserts = [
        {
            "nodes": 1000,
            "inserts": 100,
            "trees": {
                tree.name: {
                    "nodes": 1000,
                    "targets": 500,
                    "backups": 0,
                    "microseconds": 40.0,
                    "ratio": 1.01,
                    "interval": [1.0, 1.02],
                    "own_processes_ratio": 0.99,
                }
                for tree in (RELEASED, CORE)
            },
        }
    ]
    return found


def whole_outcome() -> run.Outcome:
    """Every workload on every tree, each as it should be; the peer finds nothing anywhere."""
    found = run.Outcome()
    for workload in WHOLE.workloads():
        found.rows[workload.name] = {
            tree.name: result(10 if workload.finds.get(tree.group) == "all" else 0, 0)
            for tree in TREES
        }
    return found


def failed(found: run.Outcome) -> list[str]:
    return judge.failed_expectations(found, PLAN, [RELEASED, CORE])


def failed_whole(found: run.Outcome) -> list[str]:
    return judge.failed_expectations(found, WHOLE, TREES)


def test_what_is_as_it_should_be_has_no_complaint() -> None:
    assert failed(outcome()) == []
    assert failed_whole(whole_outcome()) == []


def core(found: run.Outcome) -> dict[str, Any]:
    row: dict[str, Any] = found.rows["shared prefix"][CORE.name]
    return row


def test_a_lost_prefix_is_said() -> None:
    found = outcome()
    core(found)["prefix_hits"] = 9
    assert failed(found) == ["shared prefix, core: 9/10 prefixes found; expected all"]


def test_a_prefix_found_as_released_is_said() -> None:
    found = outcome()
    found.rows["shared prefix"][RELEASED.name]["prefix_hits"] = 1
    assert failed(found) == ["shared prefix, as released: 1/10 prefixes found; expected at most 0"]


JUDGED = [
    (workload.name, tree, finds)
    for workload in WHOLE.workloads()
    for tree in TREES
    if (finds := workload.finds.get(tree.group))
]


@pytest.mark.parametrize(("name", "tree", "finds"), JUDGED, ids=str)
def test_each_judged_row_fails_where_it_shows_something_else(
    name: str, tree: Tree, finds: plan.Finds
) -> None:
    wrong, says = {
        "all": (9, "expected all"),
        "none": (1, "expected at most 0"),
        "one": (2, "expected at most 1"),
    }[finds]
    found = whole_outcome()
    found.rows[name][tree.name] = result(wrong, 0)
    lines = failed_whole(found)
    assert f"{name}, {tree.name}: {wrong}/10 prefixes found; {says}" in lines


def test_extended_must_find_all_where_core_and_as_released_find_nothing() -> None:
    only = [
        workload.name
        for workload in WHOLE.workloads()
        if [workload.finds.get(tree.group) for tree in TREES[:3]] == ["none", "none", "all"]
    ]
    assert only == [
        "state in flight",
        "state between chunks",
        "state at the threshold",
        "host states full",
        "host KV full",
        "write-back, node on the host",
        "write-back, node on both tiers",
        "write-back, node a leaf",
        "write-back, node internal",
        "deep conversations, slow copies",
        "deep conversations, write-back",
    ]


def test_a_later_release_is_judged_in_one_workload_alone() -> None:
    judged = {name for name, tree, _ in JUDGED if tree is PEER}
    assert judged == {"write-back, node on the host"}


@pytest.mark.parametrize("name", ["chat", "tenants"])
def test_a_patched_tree_that_finds_less_than_as_released_is_said(name: str) -> None:
    found = whole_outcome()
    found.rows[name][RELEASED.name] = result(10, 0)
    found.rows[name][EXTENDED.name] = result(9, 0)
    (line,) = [line for line in failed_whole(found) if "no fewer" in line and "extended" in line]
    assert line == f"{name}, extended: 9 prefixes found, as released found 10; expected no fewer"


def test_a_hit_whose_bytes_were_not_compared_is_said() -> None:
    found = outcome()
    core(found)["prefixes_compared"] = 9
    assert failed(found) == ["shared prefix, core: bytes of 9 prefixes were compared, 10 found"]


def test_a_host_kv_slot_taken_by_a_component_only_backup_is_said() -> None:
    found = outcome()
    core(found)["copied"]["create"]["slots"]["component"]["kv"] = 64
    assert "took {'kv': 64, 'mamba': 10} host slots" in failed(found)[0]


def test_bytes_beyond_the_states_are_said() -> None:
    found = outcome()
    core(found)["copied"]["create"]["bytes"]["kv"]["device_to_host"] = 7040
    assert failed(found) == [
        "shared prefix, core: 90240 bytes of kv were copied to the host for slots of 83200",
        "shared prefix, core: 2.0000 states' bytes were copied for each; expected 1.0000",
    ]


@pytest.mark.parametrize("name", ["shared prefix", "write-back, node internal"])
def test_a_state_whose_slot_got_no_bytes_is_said(name: str) -> None:
    found = whole_outcome()
    found.rows[name][EXTENDED.name]["copied"]["flood"]["bytes"]["mamba"]["device_to_host"] = 0
    assert failed_whole(found) == [
        f"{name}, extended: 7040 bytes of mamba were copied to the host for slots of 9152"
    ]


def test_a_family_that_was_not_flooded_out_is_said() -> None:
    found = outcome()
    core(found)["families_left_on_device"] = 1
    assert failed(found) == ["shared prefix, core: 1 families were left on the device"]
    found = whole_outcome()
    found.rows["shared prefix, one left"][CORE.name]["families_left_on_device"] = 1
    found.rows["deep conversations"][CORE.name]["states_left_on_device"] = 2
    assert failed_whole(found) == ["deep conversations, core: 2 states were left on the device"]


def test_inserts_that_triggered_something_and_prefixes_that_do_not_grow_are_said() -> None:
    found = outcome()
    found.inserts[0]["trees"][CORE.name]["backups"] = 2
    found.growth[CORE.name][0]["prefix_hits"] = 0
    assert failed(found) == [
        "prefix of 1024 tokens, core: 0/1 prefixes found; expected all",
        "inserts, 1000 nodes, core: they triggered 2 backups; expected none",
    ]


def test_growth_and_insert_times_are_of_the_trees_that_they_tell_something_of() -> None:
    assert run.growing(TREES) == [RELEASED, CORE]
    assert run.inserting(TREES) == [RELEASED, CORE, EXTENDED]
    for alone in ([PEER], [EXTENDED]):
        assert run.growing(alone) == run.inserting(alone) == alone


@pytest.mark.parametrize(
    ("prefix", "suffix", "families"), [(6_400, 3_600, 10), (640, 360, 10), (12_800, 3_600, 6)]
)
def test_the_moments_fit_other_prompts_too(prefix: int, suffix: int, families: int) -> None:
    """What the workloads ask of their sizes; that they get it, they see for themselves."""
    shape = sizes.SharedPrefix(prefix=prefix, suffix=suffix)
    by_name = {w.name: w for w in plan.Plan(sizes.Pools(), shape).workloads()}
    between = by_name["state between chunks"]
    assert isinstance(between.shape, sizes.OneState)
    assert prefix + between.shape.later <= between.pools.chunk < prefix + suffix
    assert between.pools.chunk % between.pools.page == 0
    full = by_name["host states full"].shape
    assert isinstance(full, sizes.OneState)
    assert full.families == families
    held = families * (prefix + suffix + full.later)
    assert held + prefix + suffix <= sizes.Pools().device_tokens


def test_totals_are_sums_over_the_phases_and_state_the_naive_way() -> None:
    totals = judge.totals(result(10, 10))
    assert totals["backups"] == {"whole": 13, "kv": 0, "component": 10}
    assert totals["bytes"]["kv"]["device_to_host"] == 83_200
    assert totals["component_bytes"] == 7040
    assert totals["naive_bytes"] == 7040 + 64_000 * 64


def test_the_ratio_is_of_neighbours_so_that_a_slow_stretch_hits_both() -> None:
    reference = [1.0, 1.0, 5.0, 5.0, 1.0]
    other = [value * 1.02 for value in reference]
    found = run.ratio(reference, other)
    assert found["ratio"] == pytest.approx(1.02)
    low, high = found["interval"]  # type: ignore[misc]
    assert low == pytest.approx(1.02)
    assert high == pytest.approx(1.02)


def test_insert_times_average_a_tree_s_processes_and_tell_what_they_differ_by() -> None:
    def batches(*seconds: float) -> list[dict[str, Any]]:
        return [{"seconds": [value] * 3, "backups": 1} for value in seconds]

    found = run.insert_times(
        sizes.Inserts(1000, batch=3, batches=2),
        {"a": {"nodes": 1000}, "b": {"nodes": 1001}},
        {"a": [batches(1.0, 2.0), batches(3.0, 6.0)], "b": [batches(2.1, 4.2)] * 2},
    )
    assert found["inserts"] == 12
    assert found["trees"]["a"]["ratio"] == 1.0
    assert found["trees"]["a"]["own_processes_ratio"] == 3.0
    assert found["trees"]["b"]["ratio"] == pytest.approx(1.05)
    assert found["trees"]["b"]["own_processes_ratio"] == 1.0
    assert found["trees"]["b"]["backups"] == 4
    assert found["trees"]["b"]["nodes"] == 1001


def test_a_row_says_whether_it_is_as_expected() -> None:
    found = whole_outcome()
    found.rows["host KV full"][EXTENDED.name] = result(9, 0)
    document = report.document(found, WHOLE, TREES)
    said = {
        (workload["name"], row["tree"])
        for workload in document["workloads"]
        for row in workload["rows"]
        if not row["as_expected"]
    }
    assert said == {("host KV full", "extended")}
    assert document["trees"][2]["group"] == "extended"
    assert len(document["failed_expectations"]) == 1


def test_the_document_is_stable_and_can_be_shown_and_drawn(tmp_path: Path) -> None:
    first = report.document(outcome(), PLAN, [RELEASED, CORE])
    again = report.document(copy.deepcopy(outcome()), PLAN, [RELEASED, CORE])
    assert first == again
    with (tmp_path / "tables").open("w") as stream:
        report.print_tables(first, stream)
    shown = (tmp_path / "tables").read_text()
    assert "10/10" in shown
    assert "0.6400" in shown
    assert "7.0 kB / 4.1 MB" in shown
    assert "77.3 MB" in shown
    for name, figure in (("hits", plot.hits(first)), ("growth", plot.growth(first))):
        plot.write(figure, tmp_path / f"{name}.png")
        plot.write(figure, tmp_path / f"{name}2.png")
        data = (tmp_path / f"{name}.png").read_bytes()
        assert data.startswith(b"\x89PNG")
        assert data == (tmp_path / f"{name}2.png").read_bytes()


@pytest.mark.parametrize(
    ("pools", "shape", "says"),
    [
        ({}, {"families": 0}, "--families 0: expected at least 1"),
        ({}, {"suffix": 100}, "--suffix 100: expected at least 128"),
        ({}, {"prefix": 100}, "--prefix 100: expected a positive multiple of the page size 64"),
        ({}, {"common": 6400}, "--common 6400: expected a multiple of 64 below"),
        ({"device_tokens": 20_000}, {}, "--device-tokens 20000: prompts of 10000 tokens need"),
        ({"device_tokens": 64_001}, {}, "--device-tokens 64001: expected a multiple"),
    ],
)
def test_sizes_that_make_no_workload_are_refused(
    pools: dict[str, Any], shape: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says.split(":", maxsplit=1)[0]) as caught:
        sizes.check(sizes.Pools(**pools), sizes.SharedPrefix(**shape))
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (77_266_944, "77.3 MB"), (3.3e12, "3300.0 GB")],
)
def test_sizes_are_shown_in_decimal_units(count: float, text: str) -> None:
    assert report.size(count) == text
