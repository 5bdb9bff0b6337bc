"""A short run of every configuration, always the same one; scripts/fuzz is the long one."""

from __future__ import annotations

from collections import Counter

import pytest

from hicache_fuzz import api, campaign, configs

SEED, RUNS = 400, 4

_tally: Counter[str] = Counter()
_ran: set[str] = set()

REACHED = (
    "backups",
    "backups of a component alone",
    "loads",
    "operation abort",
    "operation release",
    "requests that reuse from the device",
    "requests that reuse from the host",
    "prefetches from storage",
    "states dropped: on the host",
)
REACHED_WITH_EXTENDED = ("operation lose_ack", "operation repeat_ack")


@pytest.mark.parametrize("name", configs.ALL)
def test_random_operations(name: str) -> None:
    seed = SEED + list(configs.ALL).index(name)
    failure = campaign.run(
        configs.ALL[name], seed, runs=RUNS, keeps_states=api.waits_for_transfers(), tally=_tally
    )
    _ran.add(name)
    assert failure is None, "\n".join([failure.error, *failure.script, *failure.trace])


def test_the_runs_got_everywhere() -> None:
    if _ran != set(configs.ALL):
        pytest.skip("not all configurations ran")
    wanted = REACHED + REACHED_WITH_EXTENDED * api.waits_for_transfers()
    assert not [what for what in wanted if not _tally[what]], _tally
    assert campaign.steps_in(_tally) > 100 * len(configs.ALL)


def test_a_seed_gives_the_same_run_again() -> None:
    tallies = [Counter[str](), Counter[str]()]
    for tally in tallies:
        config = configs.ALL["swa-mamba-page4-write_back"]
        campaign.run(config, SEED, runs=2, keeps_states=False, tally=tally)
    assert tallies[0] == tallies[1]
    assert campaign.steps_in(tallies[0]) > 50
