"""What counts as a hit, what is expected of each tree, and every way to miss it."""

from __future__ import annotations

import pytest
from bench_world import CORE, LOGPROBS, RELEASED, answer, core, family, released, row

from hicache_bench.client import Answer
from hicache_bench.results import Row, failed_expectations
from hicache_bench.workload import Probe

HIT = family(answer(host=128))
MISS = family(answer())


def test_a_row_counts_hits_tokens_and_tiers() -> None:
    mixed = row(
        CORE,
        [
            family(answer(device=100, host=28)),  # found, most of it on the device
            family(answer(host=127)),  # one token short of the prefix: no hit
            family(answer(host=150)),  # more than the prefix
            family(answer(logprobs=(-1.0, -2.25, -0.5, -3.0))),
        ],
    )
    assert (mixed.hits, mixed.families) == (2, 4)
    assert mixed.hits_by_tier == {"device": 1, "host": 1, "storage": 0}
    assert mixed.tokens_by_tier == {"device": 100, "host": 305, "storage": 0}
    assert mixed.prompt_tokens == 800
    assert mixed.token_hit_rate == pytest.approx(405 / 800)
    assert mixed.worst_logprob_difference == 0.25


@pytest.mark.parametrize("good", [released(), core()], ids=["released", "core"])
def test_what_each_tree_should_show_is_as_expected(good: Row) -> None:
    assert failed_expectations(good) == []


@pytest.mark.parametrize("tree", [RELEASED, CORE], ids=["released", "core"])
def test_write_back_is_expected_to_find_nothing_on_either_tree(tree: object) -> None:
    assert isinstance(tree, type(CORE))
    assert failed_expectations(row(tree, [MISS] * 4, policy="write_back")) == []
    assert len(failed_expectations(row(tree, [MISS] * 3 + [HIT], policy="write_back"))) == 1


def test_selective_write_through_is_expected_to_find_all_with_core() -> None:
    assert failed_expectations(row(CORE, [HIT] * 4, policy="write_through_selective")) == []
    assert failed_expectations(row(CORE, [MISS] * 4, policy="write_through_selective"))


def probes(*tiers: tuple[int, int, int]) -> list[Probe]:
    return [Probe("second flood", 16, tier) for tier in tiers]


def other(cached: Answer, **changes: object) -> Row:
    return row(CORE, [HIT] * 3 + [family(cached, **changes)])


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        pytest.param(
            row(RELEASED, [MISS] * 3 + [HIT]), "1/4 prefixes found", id="released finds one"
        ),
        pytest.param(
            row(CORE, [HIT] * 3 + [MISS]),
            "3/4 prefixes found under write_through, token hit rate 0.4800; expected all, 0.6400",
            id="core misses one",
        ),
        pytest.param(other(answer(host=127)), "3/4 prefixes found", id="core is one token short"),
        pytest.param(
            other(answer(device=128)),
            "1 of 4 hits did not come from the host",
            id="from the device",
        ),
        pytest.param(
            other(answer(host=128, logprobs=(-1.0, -2.0, -0.5, -3.0 + 2e-5))),
            "logprobs differ from the cold run by 2.0e-05",
            id="other logprobs",
        ),
        pytest.param(
            other(answer(host=128, tokens=(11, 12, 13, 15))),
            "1 of 4 families generated other tokens",
            id="other tokens",
        ),
        pytest.param(
            other(answer(host=128), cold=answer(device=1)),
            "family 3: the cold run found 1 cached tokens",
            id="cold run not cold",
        ),
        pytest.param(
            other(answer(host=128), warm_cached=2),
            "family 3: the warm request found 2 cached tokens",
            id="warm request not new",
        ),
        pytest.param(
            other(answer(host=128), create_cached=128),
            "family 3: the request for the bare prefix found 128 cached tokens",
            id="state already there",
        ),
        pytest.param(
            row(CORE, [HIT] * 4, probes=probes((16, 0, 0))),
            "second flood: of the sentinel's 16 tokens 16 came from the device",
            id="flood too small",
        ),
        pytest.param(
            row(CORE, [HIT] * 4, probes=probes((1, 15, 0))),
            "second flood: of the sentinel's 16 tokens 1 came from the device, 15 from the host",
            id="flood left a part",
        ),
        pytest.param(
            row(CORE, [HIT] * 4, probes=probes((0, 0, 0))),
            "second flood: of the sentinel's 16 tokens 0 came from the device, 0 from the host",
            id="host pool too small",
        ),
    ],
)
def test_each_failed_expectation_gives_one_line(bad: Row, says: str) -> None:
    (line,) = failed_expectations(bad)
    assert says in line
    assert line.startswith(f"lfm2, {bad.tree.name}: ")


def test_a_difference_within_the_tolerance_is_no_failure() -> None:
    close = tuple(logprob + 9e-6 for logprob in LOGPROBS)
    assert failed_expectations(other(answer(host=128, logprobs=close))) == []
