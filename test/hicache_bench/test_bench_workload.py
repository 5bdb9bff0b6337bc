"""The workloads on an engine in this process, their prompts, and the sizes that they ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from bench_world import BY_NAME, CORE, EXTENDED, RELEASED, Engine
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.client import Answer
from hicache_bench.errors import UsageError
from hicache_bench.measurement import Measurement
from hicache_bench.models import Checkpoint
from hicache_bench.results import Row, failed_expectations
from hicache_bench.shared_prefix import SharedPrefix
from hicache_bench.trees import Tree
from hicache_bench.workload import (
    CLIENTS,
    MIN_PREFIX,
    NEW_TOKENS,
    POLICIES,
    Policy,
    Shape,
    Sizes,
    check,
    check_shape,
    sizes_for,
)
from hicache_bench.workloads import SHARED_PREFIX, WORKLOADS, Workload

SHAPE = Shape(families=3, prefix=32, suffix=8)
SIZES = sizes_for(SHAPE, "write_through")
VOCABULARY = 2048
RUNS = [(workload, policy) for workload in WORKLOADS for policy in workload.policies]


def engine(tree: Tree, policy: Policy = "write_through", **limits: int) -> Engine:
    return Engine(
        tree.incremental,
        **{"device_states": SIZES.device_states, **limits},
        extended=tree.extended,
        write_back=policy == "write_back",
    )


def measure(made: Engine, sizes: Sizes = SIZES, workload: Workload = SHARED_PREFIX) -> Measurement:
    return SharedPrefix(made, workload, SHAPE, sizes, VOCABULARY).run()


def as_row(
    tree: Tree,
    measurement: Measurement,
    workload: Workload = SHARED_PREFIX,
    policy: Policy = "write_through",
) -> Row:
    return Row("toy", tree, policy, workload, "0.5.17", measurement, 0.0, 0.0)


@pytest.mark.parametrize("tree", [RELEASED, CORE, EXTENDED], ids=lambda tree: tree.name)
@pytest.mark.parametrize(("workload", "policy"), RUNS, ids=lambda value: getattr(value, "name", ""))
def test_each_workload_tells_the_trees_apart(
    workload: Workload, policy: Policy, tree: Tree
) -> None:
    measurement = measure(engine(tree, policy), sizes_for(SHAPE, policy), workload)
    row = as_row(tree, measurement, workload, policy)
    assert failed_expectations(row) == []
    found = row.expected_hits == "all"
    assert row.families == (CLIENTS if workload.clients > 1 else 3)
    if row.expected_hits != "any":
        assert row.hits == (row.families if found else 0)
        assert row.token_hit_rate == (0.8 if found else 0.0)


def test_a_flood_that_is_too_small_is_noticed() -> None:
    small = replace(SIZES, flood_prompts=SIZES.device_states // 2)
    lines = failed_expectations(as_row(CORE, measure(engine(CORE), small)))
    assert any(
        "first flood: of the sentinel's 16 tokens 16 came from the device" in x for x in lines
    )
    assert any("second flood" in x for x in lines)


def test_a_host_pool_that_is_too_small_is_noticed() -> None:
    # The families' states survive in the toy's 28, the oldest sentinel's does not.
    lines = failed_expectations(as_row(CORE, measure(engine(CORE, host_states=28))))
    assert any("host pool: of the sentinel's" in line for line in lines)


class Chunked(Engine):
    """Computes prompts that were sent together one after the other."""

    def generate_together(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> list[Answer]:
        return [super(Chunked, self).generate_together([ids], new_tokens)[0] for ids in prompts]


class Silent(Engine):
    """Does not tell when a forward pass began."""

    def _answer(self, *words: object) -> Answer:
        return replace(super()._answer(*words), entered=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Chunked, Silent])
def test_prompts_that_were_not_seen_to_be_computed_together_are_noticed(
    kind: type[Engine],
) -> None:
    same_step = BY_NAME["same-step"]
    measurement = measure(kind(True, SIZES.device_states), workload=same_step)
    lines = failed_expectations(as_row(CORE, measurement, same_step))
    assert any("were not computed in one forward pass" in line for line in lines)


def test_clients_send_at_the_same_time_and_every_answer_is_compared() -> None:
    made = engine(EXTENDED)
    seen: list[int] = []

    def watch(phase: str, done: int, total: int) -> None:
        if phase in ("create", "measure"):
            seen.append(made.clients)

    workload = BY_NAME["clients"]
    measurement = SharedPrefix(made, workload, SHAPE, SIZES, VOCABULARY, progress=watch).run()
    assert max(seen) > 2  # clients, beside the one that sends all the rest
    assert made.clients == 1  # each has hung up
    assert all(len(family.pairs) == 4 for family in measurement.families)
    assert all(len(family.steps) == 3 for family in measurement.families)


def test_an_answer_of_a_client_that_differs_is_noticed() -> None:
    class Wrong(Engine):
        def _answer(self, ids: Sequence[int], tiers: tuple[int, int, int], new: int) -> Answer:
            right = super()._answer(ids, tiers, new)
            busy = self.clients > 1 and len(ids) == SHAPE.prefix
            return replace(right, logprobs=(-9.0,) * new) if busy else right

    workload = BY_NAME["clients"]
    measurement = measure(Wrong(True, 8, extended=True), workload=workload)
    (line,) = failed_expectations(as_row(EXTENDED, measurement, workload))
    assert "logprobs differ from the cold run by" in line


def test_a_client_that_fails_fails_the_run() -> None:
    class Broken(Engine):
        def generate_together(
            self, prompts: Sequence[Sequence[int]], new_tokens: int
        ) -> list[Answer]:
            if self.clients > 1:
                raise OSError("no answer")
            return super().generate_together(prompts, new_tokens)

    with pytest.raises(OSError, match="no answer"):
        measure(Broken(True, 8), workload=BY_NAME["clients"])


@pytest.mark.parametrize(("workload", "policy"), RUNS, ids=lambda value: getattr(value, "name", ""))
def test_progress_ends_at_its_total_and_follows_the_phases(
    workload: Workload, policy: Policy
) -> None:
    reported: list[tuple[str, int, int]] = []
    SharedPrefix(
        engine(CORE, policy),
        workload,
        SHAPE,
        sizes_for(SHAPE, policy),
        VOCABULARY,
        progress=lambda *step: reported.append(step),
    ).run()
    assert reported[-1][1] == reported[-1][2]
    phases = list(dict.fromkeys(phase for phase, _, _ in reported))
    early = ["flood"] if workload.first else []
    assert [phase for phase in phases if not phase.startswith("probe")] == [
        "cold",
        "warm",
        *early,
        "create",
        "flood again",
        "measure",
    ]


def test_families_share_exactly_the_prefix_and_nothing_else() -> None:
    made = engine(CORE)
    measure(made)
    assert made.flushes == 2
    cold, warm = made.prompts[:3], made.prompts[4:7]
    for one, other in zip(cold, warm, strict=True):
        assert one[: SHAPE.prefix] == other[: SHAPE.prefix]
        assert one[SHAPE.prefix] != other[SHAPE.prefix]
        assert len(one) == len(other) == SHAPE.prompt
        assert made.prompts.count(one) == 2  # cold and measured
        assert one[: SHAPE.prefix] in made.prompts  # the request that creates the state
    starts = {prompt[0] for prompt in made.prompts}
    sentinels = 3  # asked for again by their probes
    repeated = 3 * len(cold) + sentinels
    assert len(starts) == len(made.prompts) - repeated
    assert all(3 <= token < VOCABULARY for prompt in made.prompts for token in prompt)


def test_the_same_seed_gives_the_same_prompts() -> None:
    engines = [engine(CORE) for _ in range(2)]
    for made in engines:
        measure(made)
    assert engines[0].prompts == engines[1].prompts


@given(
    st.integers(1, 400),
    st.integers(MIN_PREFIX, 8192),
    st.integers(2, 8192),
    st.sampled_from(POLICIES),
)
def test_the_sizes_fit_the_workloads(
    families: int, prefix: int, suffix: int, policy: Policy
) -> None:
    shape = Shape(families, prefix, suffix)
    sizes = sizes_for(shape, policy)
    # One request and what it loads back fit on the device; so does a prompt beside its prefix.
    assert sizes.device_tokens >= 2 * (shape.prompt + NEW_TOKENS)
    # A flood takes every slot of both device pools; the tokens' also where few prompts stay.
    assert sizes.flood_prompts >= sizes.device_states
    assert sizes.device_states // 2 * sizes.flood_length >= sizes.device_tokens
    # A single flood prompt, the sentinels and a probe fit as well.
    assert 2 * (sizes.flood_length + NEW_TOKENS) < sizes.device_tokens
    # All that is ever written by any workload fits on the host.
    for workload in WORKLOADS:
        number = workload.families(shape)
        requests = len(workload.first) + len(workload.create) + 1
        states = 2 * (requests * number + 2 * sizes.flood_prompts + 6)
        written = sum(len(each.parts) - 1 for each in (*workload.first, *workload.create)) + 1
        tokens = number * (prefix + written * (suffix + NEW_TOKENS))
        tokens += 2 * sizes.flood_prompts * sizes.flood_length + 6 * (sizes.sentinel + 5)
        assert sizes.host_ratio * sizes.device_states >= states
        assert sizes.host_ratio * sizes.device_tokens >= tokens


def test_selective_sends_each_prompt_twice() -> None:
    made = engine(CORE)
    measure(made, sizes_for(SHAPE, "write_through_selective"))
    sent = [made.prompts.count(prompt) for prompt in made.prompts[3:11]]
    assert sent == [2] * 8  # a sentinel and three families


@pytest.mark.parametrize(
    ("shape", "option"),
    [
        (Shape(families=0), "--families 0"),
        (Shape(prefix=15), "--prefix 15"),
        (Shape(suffix=1), "--suffix 1"),
    ],
)
def test_numbers_that_make_no_workload_are_refused(shape: Shape, option: str) -> None:
    with pytest.raises(UsageError, match=f"^{option}: expected at least"):
        check_shape(shape)


def checkpoint(vocab_size: int = 2048, max_positions: int = 4096) -> Checkpoint:
    return Checkpoint("toy", Path("/models/toy"), vocab_size, max_positions)


def test_a_workload_that_the_checkpoint_cannot_serve_is_refused() -> None:
    fitting = Shape(prefix=4000, suffix=(4096 - 4000 - NEW_TOKENS) // 2)
    check(fitting, checkpoint())
    with pytest.raises(UsageError, match="/models/toy has 4096 positions"):
        check(replace(fitting, suffix=fitting.suffix + 1), checkpoint())
    needed = CLIENTS + 2 * SIZES.flood_prompts + 6 + 3
    check(Shape(families=4), checkpoint(vocab_size=needed))
    with pytest.raises(UsageError, match="each begin with a token of their own"):
        check(Shape(families=4), checkpoint(vocab_size=needed - 1))
