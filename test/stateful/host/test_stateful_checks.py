"""Each check of the fuzzer notices an engine that is broken in the way that it watches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from hicache_fuzz import api, configs, watch
from hicache_fuzz.campaign import quiet
from hicache_fuzz.machine import CacheMachine, machine_for

LONG, SHORT = [(0, 2), (0, 2)], [(0, 2)]


@pytest.fixture
def state() -> CacheMachine:
    """A cache with one prompt on both tiers, its transfers done."""
    made = machine_for(configs.ALL["mamba-page1-write_through"], keeps_states=True)()
    made.pools(requests=1, spare_states=3, pages=48, host_ratio=2.0, held=False)
    made.insert(path=LONG, chunked=False)
    made.poll()
    yield made
    made.engine.close()


def fails(message: str, *operations: Callable[[], None]) -> None:
    """The last operation fails so, and none before it."""
    for each in operations[:-1]:
        each()
    with pytest.raises(AssertionError, match=message), quiet():
        operations[-1]()


def leaf(state: CacheMachine) -> Any:
    return state.engine.nodes()[0]


def test_a_sound_cache_passes(state: CacheMachine) -> None:
    state.evict(component="mamba", count=1)
    state.load_back(which=0)
    state.teardown()
    assert not state.failed


def test_a_lost_device_slot(state: CacheMachine) -> None:
    with mock.patch.object(state.engine.harness.req_to_token_pool.mamba_allocator, "free"):
        fails("mamba slots on the device: lost", lambda: state.evict(component="mamba", count=1))


def test_a_lost_host_slot(state: CacheMachine) -> None:
    state.evict(component="mamba", count=1)
    pool = state.engine.harness.host_pools[api.harness().FULL]
    with mock.patch.object(pool, "free"):
        fails("full slots on the host: lost", lambda: state.evict_host(component="full", count=64))


def test_a_slot_held_twice(state: CacheMachine) -> None:
    allocator = state.engine.harness.req_to_token_pool.mamba_allocator
    taken = leaf(state).component_data[api.harness().MAMBA].value
    allocator.free_slots = api.harness().torch.cat([allocator.free_slots, taken])
    fails("held more than once.*free.*in the tree", state.poll)


def test_bytes_that_were_not_copied(state: CacheMachine) -> None:
    with mock.patch.object(state.engine, "_copy_back_up"):
        fails(
            "on the host is not what its tokens", lambda: state.insert(path=[(1, 1)], chunked=False)
        )


def test_bytes_that_came_to_another_slot(state: CacheMachine) -> None:
    group = state.engine.cache.host_pool_group
    state.evict(component="mamba", count=1)
    with mock.patch.object(group, "load_to_device_per_layer"):
        fails("on the device is not what its tokens", lambda: state.load_back(which=0))


def test_a_slot_freed_under_a_transfer(state: CacheMachine) -> None:
    """Its bytes are gone before they are read, also where nobody takes the slot."""
    state.hold(held=True)
    state.insert(path=[(1, 1)], chunked=False)
    allocator = state.engine.harness.req_to_token_pool.mamba_allocator
    node = state.engine.harness.node(state.engine.tokens([(1, 1)]))
    slot = node.component_data[api.harness().MAMBA].value
    for buffer in state.engine.harness._state_buffers():
        buffer[:, slot] = -1.0
    assert allocator is not None
    fails("mamba, plane 0, on the device", state.poll)


def test_a_match_that_finds_less(state: CacheMachine) -> None:
    component = state.engine.cache.components[api.harness().MAMBA]
    blind = mock.Mock(return_value=lambda node: False)
    with mock.patch.object(component, "create_match_validator", blind):
        fails("found Found.device=0, all=0.*expected", lambda: state.match(path=LONG))


def test_a_lock_that_stays(state: CacheMachine) -> None:
    state.engine.cache.inc_lock_ref(leaf(state).id)
    fails("locked 1 times on the device", state.teardown)


def test_a_state_dropped_for_nothing(state: CacheMachine) -> None:
    state.insert(path=SHORT, chunked=False)
    state.tend(what="settle")
    node = state.engine.harness.node(state.engine.tokens(SHORT))
    data = node.component_data[api.harness().MAMBA]
    freed, data.host_value = data.host_value, None
    state.engine.harness.host_pools[api.harness().MAMBA].free(freed)
    component = state.engine.cache.components[api.harness().MAMBA]
    state.watch.before()
    frees: dict[Any, list[Any]] = {component.component_type: []}
    component.evict_component(node, device_frees=frees, host_frees={})
    fails("state lost: node .* has its Full KV on the host", state.watch.after)


def test_a_state_that_vanishes(state: CacheMachine) -> None:
    state.watch.before()
    leaf(state).component_data[api.harness().MAMBA].value = None
    fails("its state left the device unevicted", state.watch.after)


def test_a_state_that_stays_owed(state: CacheMachine) -> None:
    data = leaf(state).component_data[api.harness().MAMBA]
    data.host_value = None
    fails("state owed: node .* state slots that are free", state.watch.settled)


def test_a_backup_that_stays_owed(state: CacheMachine) -> None:
    for data in leaf(state).component_data:
        data.host_value = None
    fails("backup owed: node .* was hit 1 times", state.watch.settled)


@pytest.mark.parametrize("free", [0, 1])
def test_a_full_host_is_a_reason(state: CacheMachine, free: int) -> None:
    data = leaf(state).component_data[api.harness().MAMBA]
    data.host_value = None
    pool = state.engine.harness.host_pools[api.harness().MAMBA]
    with mock.patch.object(pool, "available_size", return_value=free):
        assert (state.watch._reason(leaf(state)) == "") == bool(free)


def test_the_model_of_a_match_knows_windows() -> None:
    made = machine_for(configs.ALL["swa-mamba-page1-write_through"], keeps_states=False)()
    made.pools(requests=1, spare_states=3, pages=48, host_ratio=2.0, held=False)
    made.insert(path=LONG, chunked=False)
    tokens = made.engine.tokens(LONG)
    assert watch.expected(made.engine, tokens) == watch.Found(4, 4)
    node = made.engine.harness.node(tokens)
    node.component_data[api.harness().SWA].value = None
    assert watch.expected(made.engine, tokens) == watch.Found(0, 4)
    made.engine.close()
