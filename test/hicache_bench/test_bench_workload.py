"""The workload on an engine in this process, its prompts, and the sizes that it asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bench_world import CORE, RELEASED, Engine
from hypothesis import given
from hypothesis import strategies as st

from hicache_bench.errors import UsageError
from hicache_bench.models import Checkpoint
from hicache_bench.results import Row, failed_expectations
from hicache_bench.trees import Tree
from hicache_bench.workload import (
    MIN_PREFIX,
    NEW_TOKENS,
    POLICIES,
    Measurement,
    Policy,
    Shape,
    SharedPrefix,
    Sizes,
    check,
    check_shape,
    sizes_for,
)

SHAPE = Shape(families=3, prefix=32, suffix=8)
SIZES = sizes_for(SHAPE, "write_through")
VOCABULARY = 2048


def measure(engine: Engine, sizes: Sizes = SIZES) -> Measurement:
    return SharedPrefix(engine, SHAPE, sizes, VOCABULARY).run()


def as_row(tree: Tree, measurement: Measurement) -> Row:
    return Row("toy", tree, "write_through", "0", measurement, 0.0, 0.0)


@pytest.mark.parametrize("tree", [RELEASED, CORE], ids=["released", "core"])
def test_the_workload_tells_the_two_apart(tree: Tree) -> None:
    measured = as_row(tree, measure(Engine(tree.incremental, SIZES.device_states)))
    assert failed_expectations(measured) == []
    assert measured.hits == (3 if tree.incremental else 0)
    assert measured.token_hit_rate == (0.8 if tree.incremental else 0.0)


def test_a_flood_that_is_too_small_is_noticed() -> None:
    small = replace(SIZES, flood_prompts=SIZES.device_states // 2)
    measured = as_row(CORE, measure(Engine(True, SIZES.device_states), small))
    lines = failed_expectations(measured)
    assert any(
        "first flood: of the sentinel's 16 tokens 16 came from the device" in x for x in lines
    )
    assert any("second flood" in x for x in lines)


def test_a_host_pool_that_is_too_small_is_noticed() -> None:
    # The families' states survive in the toy's 30, the oldest sentinel's does not.
    measured = as_row(CORE, measure(Engine(True, SIZES.device_states, host_states=30)))
    assert any("host pool: of the sentinel's" in line for line in failed_expectations(measured))


def test_progress_ends_at_its_total_and_follows_the_phases() -> None:
    steps: list[tuple[str, int, int]] = []
    engine = Engine(True, SIZES.device_states)
    for policy in POLICIES:
        sizes = sizes_for(SHAPE, policy)
        SharedPrefix(engine, SHAPE, sizes, VOCABULARY, lambda *step: steps.append(step)).run()
        assert steps[-1][1] == steps[-1][2]
    phases = list(dict.fromkeys(phase for phase, _, _ in steps))
    assert [phase for phase in phases if not phase.startswith("probe")] == [
        "cold",
        "warm",
        "flood",
        "create",
        "flood again",
        "measure",
    ]


def test_families_share_exactly_the_prefix_and_nothing_else() -> None:
    engine = Engine(True, SIZES.device_states)
    measure(engine)
    assert engine.flushes == 2
    cold, warm = engine.prompts[:3], engine.prompts[4:7]
    for one, other in zip(cold, warm, strict=True):
        assert one[: SHAPE.prefix] == other[: SHAPE.prefix]
        assert one[SHAPE.prefix] != other[SHAPE.prefix]
        assert len(one) == len(other) == SHAPE.prompt
        assert engine.prompts.count(one) == 2  # cold and measured
        assert one[: SHAPE.prefix] in engine.prompts  # the request that creates the state
    starts = {prompt[0] for prompt in engine.prompts}
    sentinels = 3  # asked for again by their probes
    repeated = 3 * len(cold) + sentinels
    assert len(starts) == len(engine.prompts) - repeated
    assert all(3 <= token < VOCABULARY for prompt in engine.prompts for token in prompt)


def test_the_same_seed_gives_the_same_prompts() -> None:
    engines = [Engine(True, SIZES.device_states) for _ in range(2)]
    for engine in engines:
        measure(engine)
    assert engines[0].prompts == engines[1].prompts


@given(
    st.integers(1, 400),
    st.integers(MIN_PREFIX, 8192),
    st.integers(2, 8192),
    st.sampled_from(POLICIES),
)
def test_the_sizes_fit_the_workload(
    families: int, prefix: int, suffix: int, policy: Policy
) -> None:
    shape = Shape(families, prefix, suffix)
    sizes = sizes_for(shape, policy)
    # One request and what it loads back fit on the device.
    assert sizes.device_tokens >= 2 * (shape.prompt + NEW_TOKENS)
    # A flood takes every slot of both device pools.
    assert sizes.flood_prompts >= sizes.device_states
    assert sizes.flood_prompts * sizes.flood_length >= sizes.device_tokens
    # A single flood prompt, the sentinels and a probe fit as well.
    assert sizes.flood_length + NEW_TOKENS < sizes.device_tokens
    # All that is ever written fits on the host.
    states = 2 * (3 * families + 2 * sizes.flood_prompts + 6)
    tokens = families * (prefix + 2 * (suffix + NEW_TOKENS))
    tokens += 2 * sizes.flood_prompts * sizes.flood_length + 6 * (sizes.sentinel + 5)
    assert sizes.host_ratio * sizes.device_states >= states
    assert sizes.host_ratio * sizes.device_tokens >= tokens


def test_selective_sends_each_prompt_twice() -> None:
    engine = Engine(True, SIZES.device_states)
    measure(engine, sizes_for(SHAPE, "write_through_selective"))
    sent = [engine.prompts.count(prompt) for prompt in engine.prompts[3:11]]
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
    fitting = Shape(prefix=4000, suffix=4096 - 4000 - NEW_TOKENS)
    check(fitting, checkpoint())
    with pytest.raises(UsageError, match="/models/toy has 4096 positions"):
        check(replace(fitting, suffix=fitting.suffix + 1), checkpoint())
    needed = 4 + 2 * SIZES.flood_prompts + 6 + 3
    check(Shape(families=4), checkpoint(vocab_size=needed))
    with pytest.raises(UsageError, match="each begin with a token of their own"):
        check(Shape(families=4), checkpoint(vocab_size=needed - 1))
