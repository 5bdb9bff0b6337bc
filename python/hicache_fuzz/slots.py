"""The accounts: every slot of every pool is free, in the tree or with a request, and only once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from hicache_fuzz.engine import Engine


def check(engine: Engine) -> None:
    """Account for every slot of every pool.

    Raises:
        AssertionError: names the pool and the slots that are lost, or held twice.
    """
    for name in engine.config.components:
        device, host = free_slots(engine, name)
        _check_device(engine, name, device.tolist())
        _check_host(engine, name, host.tolist())


def check_empty(engine: Engine) -> None:
    """All slots are free and nothing is locked.

    Raises:
        AssertionError: names the pool, or the nodes.
    """
    check(engine)
    for node in engine.nodes():
        raise AssertionError(f"node {node.id} is left in the tree after evicting everything")
    root = engine.core.root_node
    for name in engine.config.components:
        data = root.component_data[engine.types[name]]
        if data.lock_ref != 1 or data.host_lock_ref != 0:
            raise AssertionError(
                f"the root's {name} locks are {data.lock_ref} and {data.host_lock_ref} (host); "
                "expected 1 and 0"
            )


def check_unlocked(engine: Engine) -> None:
    """Nothing is locked, as no request and no transfer is left.

    Raises:
        AssertionError: names the nodes.
    """
    for node in engine.nodes():
        for name in engine.config.components:
            data = node.component_data[engine.types[name]]
            if data.lock_ref or data.host_lock_ref:
                raise AssertionError(
                    f"node {node.id}: {name} is locked {data.lock_ref} times on the device and "
                    f"{data.host_lock_ref} times on the host, and nothing is left that holds it"
                )


def free_slots(engine: Engine, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The free slots of one component on the device and on the host; int64 [n] each."""
    pool = engine.harness.host_pools[engine.types[name]]
    host = torch.cat([pool.free_slots, *pool.release_slots]).long()
    if name == "mamba":
        return engine.harness.req_to_token_pool.mamba_allocator.free_slots.long(), host
    allocator, page = engine.harness.allocator, engine.config.page
    if "swa" in engine.config.components:
        allocator = allocator.swa_attn_allocator if name == "swa" else allocator.full_attn_allocator
    pages = torch.cat([allocator.free_pages, allocator.release_pages]).long()
    return (pages[:, None] * page + torch.arange(page)).reshape(-1), host


def _check_device(engine: Engine, name: str, free: list[int]) -> None:
    tree = _in_tree(engine, name, host=False)
    config, page = engine.harness.config, engine.config.page
    if name == "mamba":
        numbers, given = range(1, 1 + config.mamba_size), _request_states(engine)
    else:
        numbers = range(page, page + config.kv_size)
        pages = _pages(_request_tokens(engine, name), page)
        given = [page * number + place for number in pages for place in range(page)]
    _check(f"{name} slots on the device", numbers, free=free, tree=tree, requests=given)


def _check_host(engine: Engine, name: str, free: list[int]) -> None:
    numbers = range(engine.harness.host_pools[engine.types[name]].size)
    tree = _in_tree(engine, name, host=True)
    _check(f"{name} slots on the host", numbers, free=free, tree=tree)


def _in_tree(engine: Engine, name: str, host: bool) -> list[int]:
    found: list[int] = engine.harness.held(engine.types[name], host).tolist()
    return found


def _request_states(engine: Engine) -> list[int]:
    states: list[int] = []
    for request in engine.requests:
        req = request.req
        if req.mamba_pool_idx is not None:
            states.append(int(req.mamba_pool_idx))
        if req.mamba_ping_pong_track_buffer is not None:
            states += [slot for slot in req.mamba_ping_pong_track_buffer.tolist() if slot != -1]
    return states


def _request_tokens(engine: Engine, name: str) -> list[int]:
    """Slots that requests have computed into and the tree does not hold."""
    slots: list[int] = []
    for request in engine.requests:
        req = request.req
        if req.kv is None:
            continue
        row: Any = engine.harness.req_to_token_pool.req_to_token[req.req_pool_idx]
        own = row[req.cache_protected_len : req.kv.kv_allocated_len].long()
        if name == "swa":
            own = engine.harness.allocator.translate_loc_from_full_to_swa(own)
            own = own[own > 0]
        slots += own.tolist()
    return slots


def _pages(slots: Iterable[int], page: int) -> list[int]:
    """The pages of slots; one that begins twice counts twice."""
    pages: list[int] = []
    for slot in slots:
        if slot % page == 0 or not pages or pages[-1] != slot // page:
            pages.append(slot // page)
    return pages


def _check(
    pool: str,
    numbers: range,
    *,
    free: list[int],
    tree: list[int],
    requests: Sequence[int] = (),
) -> None:
    count = Counter([*free, *tree, *requests])
    twice = sorted(slot for slot, times in count.items() if times > 1)
    lost = sorted(set(numbers) - set(count))
    foreign = sorted(set(count) - set(numbers))
    if not (twice or lost or foreign):
        return
    places = {"free": set(free), "in the tree": set(tree), "with a request": set(requests)}
    where = {slot: [name for name, held in places.items() if slot in held] for slot in twice}
    raise AssertionError(
        f"{pool}: lost {lost}, held more than once {where}, outside of the pool {foreign}"
    )
