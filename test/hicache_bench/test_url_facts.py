"""What a server says of itself, and what of it stands in the way."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hicache_bench.errors import BenchError, UsageError
from hicache_bench.url import advice, facts, workload

INFO: dict[str, Any] = {
    "version": "0.5.17",
    "page_size": 64,
    "max_total_num_tokens": 131_072,
    "max_mamba_cache_size": 128,
    "max_req_input_len": 131_000,
    "chunked_prefill_size": 16_384,
    "enable_hierarchical_cache": True,
    "enable_cache_report": True,
    "disable_radix_cache": False,
    "uses_mamba_radix_cache": True,
    "hicache_write_policy": "write_through",
    "hicache_mem_layout": "page_first_direct",
    "hicache_io_backend": "direct",
    "hicache_ratio": 12.0,
    "hicache_size": 0,
    "mamba_radix_cache_strategy": "extra_buffer",
    "dp_size": 1,
    "internal_states": [{"_mamba_cache_chunk_size": 64}],
}


def server(**changes: Any) -> facts.Facts:
    return facts.read("http://s", {**INFO, **changes}, {"model_path": "far/away"})


def plan(found: facts.Facts, **changes: Any) -> workload.Plan:
    given: dict[str, Any] = {
        "families": 10,
        "prefix": 6_400,
        "suffix": 3_600,
        "vocab": None,
        "seed": 1,
        "cold": False,
    }
    return workload.plan(found, **{**given, **changes})


def refusals(found: facts.Facts) -> list[str]:
    return [str(note) for note in advice.flags(found) if note.refuse]


def test_a_server_with_all_flags_has_nothing_in_the_way() -> None:
    found = server()
    assert advice.flags(found) == []
    assert [note for note in advice.sizes(found, plan(found)) if note.refuse] == []
    assert (found.host_tokens, found.host_states) == (12 * 131_072, 12 * 128)
    assert (found.step, found.branches) == (64, True)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"enable_hierarchical_cache": False}, "launch it with --enable-hierarchical-cache"),
        ({"disable_radix_cache": True}, "the prefix cache is off"),
        ({"uses_mamba_radix_cache": False}, "it is no hybrid model"),
        ({"hicache_mem_layout": "layer_first"}, "--hicache-mem-layout page_first_direct"),
        ({"dp_size": 4}, "4 data-parallel replicas"),
    ],
)
def test_a_flag_that_makes_the_result_worthless_is_refused(
    changes: dict[str, Any], says: str
) -> None:
    (only,) = refusals(server(**changes))
    assert says in only


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"enable_cache_report": False}, "launch it with --enable-cache-report"),
        ({"hicache_write_policy": "write_through_selective"}, "each prompt is sent twice"),
        ({"hicache_write_policy": "write_back"}, "only a tree with group extended"),
    ],
)
def test_a_flag_that_is_unhelpful_is_noted(changes: dict[str, Any], says: str) -> None:
    found = server(**changes)
    assert refusals(found) == []
    assert says in " ".join(map(str, advice.flags(found)))


def size_refusals(found: facts.Facts, **changes: Any) -> list[str]:
    notes = advice.sizes(found, plan(found, **changes))
    return [str(note) for note in notes if note.refuse]


def test_a_host_pool_that_is_too_small_is_refused_with_a_ratio_that_is_enough() -> None:
    tokens, states = size_refusals(server(hicache_ratio=1.0))
    assert states.startswith("its host pool holds 128 states")
    assert tokens.startswith("its host pool holds 131072 tokens")
    ratio = float(tokens.rsplit(" ", maxsplit=1)[1])
    assert size_refusals(server(hicache_ratio=ratio)) == []


def test_a_host_pool_with_too_few_states_is_refused() -> None:
    (states,) = size_refusals(server(max_mamba_cache_size=8))
    assert "its host pool holds 96 states" in states


def test_a_host_pool_in_bytes_is_noted_not_refused() -> None:
    found = server(hicache_size=100)
    notes = advice.sizes(found, plan(found))
    assert not any(note.refuse for note in notes)
    assert "--hicache-size 100" in " ".join(map(str, notes))


def test_a_prompt_that_is_too_long_is_refused() -> None:
    (only,) = size_refusals(server(max_req_input_len=9_000))
    assert only.startswith("its longest prompt is 9000 tokens, the workload's 10004")


@pytest.mark.parametrize(("concurrency", "noted"), [(1, False), (2, True)])
def test_chunks_shorter_than_what_is_in_flight_are_noted(concurrency: int, noted: bool) -> None:
    found = server()
    notes = " ".join(map(str, advice.sizes(found, plan(found), concurrency)))
    assert ("in chunks of 16384" in notes) == noted


def test_the_vocabulary_is_the_model_s_where_it_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 2048}}))
    found = facts.read("http://s", INFO, {"model_path": str(tmp_path)})
    assert found.vocab == 2048
    assert plan(found, families=2).vocab == 2048
    assert plan(server()).vocab == workload.DEFAULT_VOCAB
    assert plan(found, vocab=1500, families=2).vocab == 1500


def test_an_answer_without_sizes_is_an_error_that_names_the_route() -> None:
    with pytest.raises(BenchError, match=r"http://s/get_server_info: no usable .*page_size"):
        facts.read("http://s", {}, {})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"families": 0}, "--families 0: expected at least 1"),
        ({"prefix": 32}, "--prefix 32: expected at least 64"),
        ({"prefix": 6_410}, "type: --prefix 6400"),
        ({"suffix": 1}, "--suffix 1: expected at least 2"),
        ({"vocab": 150}, "--vocab 150: "),
    ],
)
def test_numbers_that_make_no_workload_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan(server(), **changes)
    assert says in str(caught.value)


def test_a_server_without_branching_states_is_asked_for_the_bare_prefix() -> None:
    found = server(mamba_radix_cache_strategy="no_buffer", page_size=1)
    assert (found.step, found.branches) == (1, False)
    assert plan(found, prefix=129).prefix == 129


def test_floods_use_up_the_device() -> None:
    found = server()
    made = plan(found)
    assert made.flood_prompts * made.flood_length > 1.2 * found.device_tokens
    small = plan(replace(found, device_tokens=20_000, device_states=6), families=1)
    assert small.flood_prompts >= 8
