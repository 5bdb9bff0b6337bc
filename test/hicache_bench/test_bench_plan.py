"""Which servers a run starts, what each runs, and in what order the rows come."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_world import CORE, EXTENDED, RELEASED, SHAPE, answer, family, row

from hicache_bench import plan, runner, workloads
from hicache_bench.errors import UsageError
from hicache_bench.models import Checkpoint

TREES = [RELEASED, CORE, EXTENDED]
MODELS = [Checkpoint(name, Path(name), 2048, 4096) for name in ("lfm2", "qwen3next")]


def jobs(policy: str | None = None, *names: str) -> list[plan.Job]:
    policies = workloads.check_policies(policy)
    return plan.jobs(MODELS, TREES, policies, workloads.chosen(names, policies))


def test_by_default_the_first_model_runs_everything_and_the_second_the_first_workload() -> None:
    made = jobs()
    runs = {
        (job.checkpoint.name, job.policy): [each.name for each in job.workloads] for job in made
    }
    assert runs == {
        ("lfm2", "write_through"): ["shared-prefix", "same-step", "clients"],
        ("lfm2", "write_back"): ["leaf", "internal", "host", "both", "clients"],
        ("qwen3next", "write_through"): ["shared-prefix"],
    }
    assert [job.tree for job in made] == TREES * 3
    assert len({job.name for job in made}) == len(made)


def test_a_policy_or_a_workload_that_is_asked_for_runs_alone() -> None:
    assert {job.policy for job in jobs("write_back")} == {"write_back"}
    (each,) = {tuple(job.workloads) for job in jobs("write_through_selective")}
    assert each == (workloads.SHARED_PREFIX,)
    made = jobs(None, "both", "same-step")
    first = [job for job in made if job.checkpoint.name == "lfm2"]
    assert [(job.policy, [each.name for each in job.workloads]) for job in first] == [
        *[("write_through", ["same-step"])] * 3,
        *[("write_back", ["both"])] * 3,
    ]


@pytest.mark.parametrize(
    ("policy", "name", "says"),
    [
        (None, "nothing", "--workload nothing: expected one of shared-prefix, same-step"),
        ("write_back", "same-step", "expected write_through; type: .* --policy write_through"),
        ("write_through", "both", "expected write_back; type: .* --policy write_back"),
    ],
)
def test_a_workload_that_there_is_not_or_not_under_that_policy_is_refused(
    policy: str | None, name: str, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        workloads.chosen([name], workloads.check_policies(policy))


def test_rows_come_by_model_and_workload_with_trees_side_by_side() -> None:
    made = jobs(None, "shared-prefix", "clients")
    found = [
        row(job.tree, [family(answer())], job.policy, model=job.checkpoint.name, workload=each)
        for job in reversed(made)
        for each in job.workloads
    ]
    ordered = [
        (each.model, each.workload.name, each.policy) for each in runner.side_by_side(made, found)
    ]
    assert ordered == [
        *[("lfm2", "shared-prefix", "write_through")] * 3,
        *[("lfm2", "clients", "write_through")] * 3,
        *[("lfm2", "clients", "write_back")] * 3,
        *[("qwen3next", "shared-prefix", "write_through")] * 3,
    ]


def test_a_request_says_its_prompt_and_what_it_must_find() -> None:
    request = workloads.Request("pab", device="p", host="a")
    assert request.what == "the prefix + suffix a + suffix b"
    assert request.expected(SHAPE) == (128, 72)
