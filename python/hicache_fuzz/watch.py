"""The rule: no state leaves the device while its Full KV is kept and the host has room for it.

A plain model beside the cache. It looks at the tree before and after each operation, and at the
host pools at the moment in which the engine drops a state from the device; it knows nothing of how
the engine decides.

- A state that is dropped must be on the host already, or its node must go with it, unless the
  host's pools had no room at that moment, counting what may be evicted there as room; or unless the
  policy did not want the node on the host: under write-through a node whose Full KV is not there is
  not (it is below its hit threshold, or was itself refused).
- Once every transfer is done (write-through policies): where the host has a state slot that is free
  or can be, no node whose Full KV is on the host lacks its state there. Where the host has free
  slots for each node that reached its hit threshold and is not on the host, none of these has a
  state. (They are done in their order, so one that does not fit may keep the others waiting.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hicache_fuzz.contents import path_tokens
from hicache_fuzz.engine import Engine


@dataclass(frozen=True)
class Drop:
    """A state that left the device. reason: why nothing is wrong with that; empty for no reason."""

    node_id: int
    reason: str


class Watch:
    """Watches one engine. Use: ``before()``, one operation, ``after()``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._states: set[int] = set()
        self._drops: dict[int, Drop] = {}
        self._api = engine.api
        component = engine.cache.components[engine.api.MAMBA]
        self._evict = component.evict_component
        component.evict_component = self._evict_component

    def before(self) -> None:
        """Take note of the states that are on the device."""
        self._drops.clear()
        self._states = self._with_state()

    def forget(self) -> None:
        """The cache was emptied: what was there before is no longer asked for."""
        self._states.clear()
        self._drops.clear()

    def after(self) -> None:
        """Judge every state that has left the device since `before`.

        Raises:
            AssertionError: one was dropped for nothing, or in a way that went unseen.
        """
        nodes = {node.id: node for node in self._engine.nodes()}
        for drop in self._drops.values():
            if not drop.reason and drop.node_id in nodes:
                raise AssertionError(self._lost(nodes[drop.node_id]))
        for node_id in self._states - self._with_state() - set(self._drops):
            if node_id in nodes:
                raise AssertionError(f"node {node_id}: its state left the device unevicted")

    def _lost(self, node: Any) -> str:
        tokens = path_tokens(node)
        tier = "the host" if node.backuped else "the device"
        return (
            f"state lost: node {node.id} ({len(tokens)} tokens) has its Full KV on {tier}, its "
            "state was dropped from the device and is not on the host, which had room for it"
        )

    def settled(self) -> None:
        """Judge the tree when every transfer is done and the events are polled.

        Raises:
            AssertionError: something owed was not done, and the host has free slots for it.
        """
        if self._engine.config.policy == "write_back":
            return
        free = self._free()
        for node in self._engine.nodes():
            state = node.component_data[self._api.MAMBA]
            owes = node.backuped and state.value is not None and state.host_value is None
            if owes and (room := self._room(node)["mamba"]) >= 1:
                raise AssertionError(
                    f"state owed: node {node.id} ({len(path_tokens(node))} tokens) has its Full KV "
                    "on the host and its state on the device alone; no transfer is in flight, and "
                    f"the host has {room} state slots that are free or can be"
                )
        owed = [node for node in self._engine.nodes() if self._owes_all(node)]
        with_state = [n for n in owed if n.component_data[self._api.MAMBA].value is not None]
        if with_state and all(self._chain_fits(node, free) for node in owed):
            node = with_state[0]
            raise AssertionError(
                f"backup owed: node {node.id} ({len(path_tokens(node))} tokens) was hit "
                f"{node.hit_count} times and is not on the host; no transfer is in flight, and the "
                f"host has free slots: {free}"
            )

    # What the model knows of the tree

    def _with_state(self) -> set[int]:
        mamba = self._api.MAMBA
        return {n.id for n in self._engine.nodes() if n.component_data[mamba].value is not None}

    def _evict_component(self, node: Any, *args: Any, **kwargs: Any) -> Any:
        state = node.component_data[self._api.MAMBA]
        held = state.value is not None
        reason = self._reason(node) if held else ""
        result = self._evict(node, *args, **kwargs)
        if held and state.value is None:
            self._drops[node.id] = Drop(node.id, reason)
            self._engine.tally[f"states dropped: {reason or 'for nothing, or with the node'}"] += 1
        return result

    def _reason(self, node: Any) -> str:
        """Why the state of a node may be dropped now; empty where it may not."""
        if node.component_data[self._api.MAMBA].host_value is not None:
            return "on the host"
        if not node.backuped and self._engine.config.policy != "write_back":
            return "not wanted on the host"
        room = self._room(node)
        if room["mamba"] < 1:
            return "no room for a state"
        if node.backuped:
            return ""
        for name in self._engine.config.components:
            value = node.component_data[self._engine.types[name]].value
            if name != "mamba" and value is not None and room[name] < len(value):
                return f"no room for its {name} KV"
        return ""

    def _free(self) -> dict[str, int]:
        pools = self._engine.harness.host_pools
        return {ct.name.lower(): pool.available_size() for ct, pool in pools.items()}

    def _room(self, dropped: Any) -> dict[str, int]:
        """Host slots by component that are free, or held by what may be evicted for `dropped`."""
        room = self._free()
        for node in self._engine.nodes():
            if node is dropped:
                continue
            for name in room:
                data = node.component_data[self._engine.types[name]]
                if name == "full":
                    evictable = self._removable(node)
                else:
                    evictable = data.value is None and data.host_lock_ref == 0
                if evictable and data.host_value is not None:
                    room[name] += len(data.host_value)
        return room

    def _removable(self, node: Any) -> bool:
        """Whether a node can be evicted from the host, from the leaves on."""
        return (
            node.evicted
            and node.backuped
            and not any(data.host_lock_ref for data in node.component_data)
            and all(self._removable(child) for child in node.children.values())
        )

    def _owes_all(self, node: Any) -> bool:
        return (
            not node.backuped
            and not node.evicted
            and node.hit_count >= self._engine.config.threshold
        )

    def _chain_fits(self, node: Any, free: dict[str, int]) -> bool:
        """Whether a node and those above it that are not on the host fit into the free slots."""
        needed = dict.fromkeys(free, 0)
        for each in _not_backed_up(node):
            for name in needed:
                value = each.component_data[self._engine.types[name]].value
                needed[name] += 0 if value is None else len(value)
        return all(needed[name] <= free[name] for name in free)


def _not_backed_up(node: Any) -> Iterable[Any]:
    while node.parent is not None and not node.backuped:
        yield node
        node = node.parent


@dataclass(frozen=True)
class Found:
    """How many tokens of a prompt can be resumed: from the device alone, and with the host."""

    device: int
    all: int


def expected(engine: Engine, tokens: list[int]) -> Found:
    """What a match of `tokens` must find, by what the nodes of the tree hold.

    A prefix can be resumed at the end of a node that has a state, where the sliding window in front
    of it is complete.
    """
    api, window = engine.api, engine.config.window
    node, begin = engine.core.root_node, 0
    best = {"device": 0, "all": 0}
    run: dict[str, float] = {"device": float("inf"), "all": float("inf")}
    while node is not None:
        node = _next(node, tokens[begin:], engine.config.page)
        if node is None:
            break
        begin += len(node.key)
        full, swa, state = (node.component_data[ct] for ct in (api.FULL, api.SWA, api.MAMBA))
        for tier in best:
            on_host = tier == "all"
            if "swa" in engine.config.components:
                held = swa.value is not None or (on_host and swa.host_value is not None)
                run[tier] = run[tier] + len(node.key) if held else 0
            if (
                (full.value is not None or on_host)
                and (state.value is not None or (on_host and state.host_value is not None))
                and run[tier] >= window
            ):
                best[tier] = begin
    return Found(best["device"], best["all"])


def _next(node: Any, tokens: list[int], page: int) -> Any:
    """The child whose whole key begins `tokens`; None if there is none."""
    for child in node.children.values():
        key = list(child.key.token_ids[: len(child.key)])
        if len(key) <= len(tokens) // page * page and tokens[: len(key)] == key:
            return child
    return None
