"""The bytes: what each node holds on the device and on the host follows from its tokens.

All nodes are compared in one go, plane by plane; a plane is one layer's keys, or values, or one
layer's part of one kind of state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from hicache_fuzz.engine import Engine
from hicache_fuzz.slots import free_slots


def path_tokens(node: Any) -> list[int]:
    """Token ids from the root to the end of a node."""
    parts: list[list[int]] = []
    while node is not None:
        parts.append(list(node.key.token_ids[: len(node.key)]))
        node = node.parent
    return [token for part in reversed(parts) for token in part]


def check(engine: Engine) -> None:
    """Compare every byte that the tree holds, but for what a copy in flight may still change.

    Raises:
        AssertionError: names the node, the component and the tier.
    """
    nodes = [(node, _hashes(engine.api, tuple(path_tokens(node)))) for node in engine.nodes()]
    for name in engine.config.components:
        for on_host in (False, True):
            if engine.pending_backups if on_host else engine.pending_loads:
                continue
            held = _held(engine, nodes, name, on_host)
            if held.owners:
                _compare(engine, held, name, on_host)


@lru_cache(maxsize=4096)
def _hashes(api: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    hashes: torch.Tensor = api._prefix_hashes(list(tokens))
    return hashes


@dataclass
class _Held:
    """What the tree holds of one component on one tier: slots, their hashes, and whose they are."""

    slots: list[torch.Tensor] = field(default_factory=list)
    hashes: list[torch.Tensor] = field(default_factory=list)
    owners: list[Any] = field(default_factory=list)

    def add(self, node: Any, slots: torch.Tensor, hashes: torch.Tensor) -> None:
        self.slots.append(slots.long())
        self.hashes.append(hashes)
        self.owners += [node] * len(slots)


def _held(engine: Engine, nodes: list[tuple[Any, torch.Tensor]], name: str, on_host: bool) -> _Held:
    found = _Held()
    for node, hashes in nodes:
        data = node.component_data[engine.types[name]]
        slots = data.host_value if on_host else data.value
        if slots is not None:
            found.add(node, slots, hashes[-1:] if name == "mamba" else hashes[-len(node.key) :])
            if name == "swa" and not on_host:
                _check_mapping(engine, node, slots)
    return found


def _check_mapping(engine: Engine, node: Any, slots: torch.Tensor) -> None:
    full = node.component_data[engine.api.FULL].value
    mapped = engine.harness.allocator.translate_loc_from_full_to_swa(full.long())
    if not torch.equal(mapped.long(), slots.long()):
        raise AssertionError(
            f"node {node.id}: the mapping of its Full KV leads to SWA slots {mapped.tolist()}, "
            f"the tree holds {slots.tolist()}"
        )


def _compare(engine: Engine, held: _Held, name: str, on_host: bool) -> None:
    slots, hashes = torch.cat(held.slots), torch.cat(held.hashes)
    rows = {
        ("mamba", False): _device_states,
        ("mamba", True): _host_states,
    }.get((name, on_host), _host_kv if on_host else _device_kv)
    for plane, found in rows(engine, name, slots):
        wanted = engine.api._pattern(hashes, plane, tuple(found.shape[1:]))
        if not torch.equal(found, wanted):
            wrong = (found != wanted).reshape(len(found), -1).any(dim=1).nonzero()[0]
            node = held.owners[int(wrong)]
            raise AssertionError(
                f"node {node.id} ({len(path_tokens(node))} tokens): {name}, plane {plane}, on the "
                f"{'host' if on_host else 'device'} is not what its tokens leave, in slot "
                f"{int(slots[wrong])}"
            )


Rows = Iterator[tuple[int, torch.Tensor]]
"""Numbers of planes, and their rows [n, ...] in the slots asked for."""


def _first_plane(engine: Engine, name: str) -> int:
    return 2 * len(engine.api.FULL_LAYERS) if name == "swa" else 0


def _device_kv(engine: Engine, name: str, slots: torch.Tensor) -> Rows:
    pool, _ = engine.harness._planes[1 if name == "swa" else 0]
    first = _first_plane(engine, name)
    for layer in range(pool.layer_num):
        yield first + 2 * layer, pool.k_buffer[layer][slots]
        yield first + 2 * layer + 1, pool.v_buffer[layer][slots]


def _host_kv(engine: Engine, name: str, slots: torch.Tensor) -> Rows:
    """Layout page_first_direct: keys or values, page, layer, place in the page, head, dimension."""
    pool = engine.harness.host_pools[engine.types[name]]
    first, page, place = _first_plane(engine, name), slots // pool.page_size, slots % pool.page_size
    for layer in range(pool.layer_num):
        for kind in (0, 1):
            yield first + 2 * layer + kind, pool.kv_buffer[kind][page, layer, place]


def _device_states(engine: Engine, name: str, slots: torch.Tensor) -> Rows:
    for kind, buffer in enumerate(engine.harness._state_buffers()):
        for layer in range(buffer.shape[0]):
            yield kind * 8 + layer, buffer[layer, slots]


def _host_states(engine: Engine, name: str, slots: torch.Tensor) -> Rows:
    pool = engine.harness.host_pools[engine.types[name]]
    for kind, buffer in enumerate([*pool.conv_buffer, pool.temporal_buffer]):
        for layer in range(buffer.shape[1]):
            yield kind * 8 + layer, buffer[slots, layer, 0]


_POISON = -1.0
"""No byte pattern of the harness."""


def poison(engine: Engine) -> None:
    """Overwrite every free slot: whoever still reads one, or was given one unwritten, shows it."""
    for name in engine.config.components:
        device, host = free_slots(engine, name)
        pool = engine.harness.host_pools[engine.types[name]]
        if name == "mamba":
            for buffer in engine.harness._state_buffers():
                buffer[:, device] = _POISON
            for buffer in [*pool.conv_buffer, pool.temporal_buffer]:
                buffer[host] = _POISON
            continue
        device_pool, _ = engine.harness._planes[1 if name == "swa" else 0]
        for layer in range(device_pool.layer_num):
            device_pool.k_buffer[layer][device] = _POISON
            device_pool.v_buffer[layer][device] = _POISON
        pool.kv_buffer[:, host // pool.page_size, :, host % pool.page_size] = _POISON
