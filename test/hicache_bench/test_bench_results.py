"""What counts as a hit, what is expected of each tree, and every way to miss it."""

from __future__ import annotations

import pytest
from bench_world import (
    BY_NAME,
    CORE,
    EXTENDED,
    LOGPROBS,
    PEER,
    RELEASED,
    answer,
    core,
    extended,
    family,
    released,
    row,
)

from hicache_bench.client import Answer
from hicache_bench.measurement import Probe, Step
from hicache_bench.results import Row, failed_expectations
from hicache_bench.workloads import WORKLOADS

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


def test_a_row_looks_at_every_answer_that_has_a_cold_run() -> None:
    wrong = answer(tokens=(11, 12, 13, 15), logprobs=(-1.0, -2.0, -0.5, -3.5))
    pairs = ((answer(), answer()), (answer(), wrong))
    compared = row(CORE, [HIT, family(answer(host=128), compared=pairs)])
    assert compared.worst_logprob_difference == 0.5
    assert compared.changed_outputs == 1


@pytest.mark.parametrize("good", [released(), core(), extended()], ids=lambda row: row.tree.name)
def test_what_each_tree_should_show_is_as_expected(good: Row) -> None:
    assert failed_expectations(good) == []


# By workload: what is released without the series, with core, with both groups, and what 0.5.18 and
# 0.5.23 are as released.
EXPECTED = {
    ("shared-prefix", "write_through"): ("none", "all", "all", "all", "all"),
    ("shared-prefix", "write_through_selective"): ("none", "all", "all", "all", "all"),
    ("same-step", "write_through"): ("none", "none", "all", "none", "none"),
    ("leaf", "write_back"): ("none", "none", "all", "none", "all"),
    ("internal", "write_back"): ("none", "none", "all", "none", "all"),
    ("host", "write_back"): ("none", "none", "all", "none", "none"),
    ("both", "write_back"): ("none", "none", "all", "none", "none"),
    ("clients", "write_through"): ("none", "all", "all", "all", "all"),
    ("clients", "write_back"): ("any", "any", "all", "any", "any"),
}
COLUMNS = ((RELEASED, "0.5.17"), (CORE, "0.5.17"), (EXTENDED, "0.5.17"))
PEERS = ((PEER, "0.5.18"), (PEER, "0.5.23"))


def test_each_tree_has_its_own_expectation_in_each_workload() -> None:
    made = {
        (workload.name, policy): tuple(
            row(tree, [HIT], policy, workload=workload, version=version).expected_hits
            for tree, version in (*COLUMNS, *PEERS)
        )
        for workload in WORKLOADS
        for policy in workload.policies
    }
    assert made == EXPECTED


def test_a_release_that_nobody_looked_at_is_judged_only_where_core_decides() -> None:
    def expected(name: str) -> str:
        return row(PEER, [HIT], workload=BY_NAME[name], version="0.5.30").expected_hits

    assert [expected(name) for name in ("shared-prefix", "same-step", "both")] == [
        "all",
        "any",
        "any",
    ]


@pytest.mark.parametrize("name", ["leaf", "internal", "host", "both"])
def test_write_back_is_expected_to_find_nothing_without_extended(name: str) -> None:
    for tree in (RELEASED, CORE):
        for hits, failures in ((0, 0), (1, 1)):
            families = [HIT] * hits + [MISS] * (4 - hits)
            made = row(tree, families, "write_back", workload=BY_NAME[name])
            assert len(failed_expectations(made)) == failures
    assert failed_expectations(row(EXTENDED, [HIT] * 4, "write_back", workload=BY_NAME[name])) == []
    (line,) = failed_expectations(
        row(EXTENDED, [HIT] * 3 + [MISS], "write_back", workload=BY_NAME[name])
    )
    assert "3/4 prefixes found, token hit rate 0.4800; expected all, 0.6400" in line


def test_hits_of_any_number_are_fine_where_nothing_is_expected() -> None:
    for hits in (0, 2, 4):
        families = [HIT] * hits + [MISS] * (4 - hits)
        made = row(CORE, families, "write_back", workload=BY_NAME["clients"])
        assert failed_expectations(made) == []


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
            "3/4 prefixes found, token hit rate 0.4800; expected all, 0.6400",
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
            other(answer(host=128), compared=((answer(host=3), answer()),)),
            "family 3: the cold run found 3 cached tokens",
            id="another cold run not cold",
        ),
        pytest.param(
            other(answer(host=128), steps=(Step("suffix a", (2, 0, 0), (0, 0)),)),
            "family 3: the request for suffix a found 2 tokens on the device, 0 on the host, 0 in "
            "storage; expected 0, 0 and none",
            id="state already there",
        ),
        pytest.param(
            other(answer(host=128), steps=(Step("suffix a", (0, 128, 0), (128, 0)),)),
            "family 3: the request for suffix a found 0 tokens on the device, 128 on the host",
            id="state elsewhere",
        ),
        pytest.param(
            other(answer(host=128), one_pass=False),
            "family 3: the prompts of one call were not computed in one forward pass",
            id="not in one step",
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
    assert line.startswith(f"lfm2, shared prefix, write_through, {bad.tree.name}: ")


def test_a_difference_within_the_tolerance_is_no_failure() -> None:
    close = tuple(logprob + 9e-6 for logprob in LOGPROBS)
    assert failed_expectations(other(answer(host=128, logprobs=close))) == []
