"""Workloads in which a state is made at a moment that decides whether it is kept.

Each family needs one state, that at the end of its prefix. It is made at some moment
(`sizes.OneState` names them), then everything leaves the device, and prefix + c is what counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from hicache_bench.cache.engine import Engine, Prefill
from hicache_bench.cache.replay import MissedMomentError, Replay
from hicache_bench.cache.sizes import Made, OneState


def one_state(engine: Engine, shape: OneState) -> dict[str, Any]:
    """Make each family's state at the moment that the shape names; flood; count prefix + c.

    Raises MissedMomentError, which says what was not so.
    """
    replay = Replay(engine, shape.seed)
    families = _Families(replay, shape)
    before = _MAKE[shape.made](families)
    floods = [*before, families.flood()]
    left = replay.on_device(families.prefixes)
    replay.phase("flood")
    for prefix in families.prefixes:
        replay.count(engine.serve(prefix + families.fresh(shape.suffix)), shape.prefix)
    replay.phase("measure")
    return replay.result(families_left_on_device=left, flood_prompts=floods)


class _Families:
    """The prefixes and the prompts below them."""

    def __init__(self, replay: Replay, shape: OneState) -> None:
        self.replay = replay
        self.engine = replay.engine
        self.shape = shape
        self.fresh = replay.prompts.fresh
        self.prefixes = [self.fresh(shape.prefix) for _ in range(shape.families)]

    def a(self, prefix: array[int]) -> array[int]:
        """A prompt that brings the prefix's KV and a state beyond it."""
        return prefix + self.fresh(self.shape.suffix)

    def b(self, prefix: array[int]) -> array[int]:
        """A prompt that brings the state at the prefix's end, where it parts from a."""
        return prefix + self.fresh(self.shape.later)

    def bare(self, prefix: array[int]) -> array[int]:
        """A prompt whose last whole page is the prefix's, so that its own state is the prefix's."""
        return prefix + self.fresh(1)

    def longer(self, prompt: array[int]) -> array[int]:
        """A prompt that goes on from another, and so uses it again."""
        return prompt + self.fresh(2 * self.engine.pools.page)

    def flood(self) -> int:
        return self.replay.flood(self.prefixes, self.shape.flood)

    def require(self, so: bool, what: str) -> None:
        if not so:
            raise MissedMomentError(f"{self.shape.made}: {what}; the workload shows nothing")


# One function for each moment. Each ends the phase "create", and returns the prompts that it took
# to bring about what comes before.


def _in_flight(families: _Families) -> list[int]:
    for prefix in families.prefixes:
        with families.engine.slow_copies() as held:
            families.engine.serve(families.a(prefix))
            families.require(
                any(transfer.is_backup for transfer in held.pending), "nothing was in flight"
            )
            families.engine.serve(families.b(prefix))
    families.replay.phase("create")
    return []


def _between_chunks(families: _Families) -> list[int]:
    for prefix in families.prefixes:
        first = Prefill(families.engine, families.a(prefix))
        families.require(not first.step(), "a was one chunk")
        families.engine.serve(families.b(prefix))
        families.require(first.step(), "a was more than two chunks")
    families.replay.phase("create")
    return []


def _at_once(families: _Families) -> list[int]:
    for prefix in families.prefixes:
        before = families.engine.host_used()
        families.engine.serve(families.a(prefix))
        families.require(families.engine.host_used() == before, "a was backed up by itself")
        families.engine.serve(families.b(prefix))
    families.replay.phase("create")
    return []


def _leaf_to_the_end(families: _Families) -> list[int]:
    for prefix in families.prefixes:
        families.engine.serve(families.bare(prefix))
    families.require(not any(families.engine.host_used().values()), "something was on the host")
    families.replay.phase("create")
    return []


def _leaf(families: _Families) -> list[int]:
    for prefix in families.prefixes:
        families.engine.serve(families.bare(prefix))
        families.engine.serve(families.a(prefix))
    families.replay.phase("create")
    return [_press(families)]


def _internal(families: _Families) -> list[int]:
    for prefix in families.prefixes:
        a = families.a(prefix)
        families.engine.serve(a)
        families.engine.serve(families.bare(prefix))
        families.engine.serve(families.longer(a))
    families.replay.phase("create")
    return [_press(families)]


def _press(families: _Families) -> int:
    """Let the prefixes' states be evicted, and their KV stay; how many prompts it took."""
    replay, tree = families.replay, families.engine.tree
    pressed = replay.press_states(
        lambda: not any(tree.on_device(prefix)[1] for prefix in families.prefixes)
    )
    families.require(
        all(tree.on_device(prefix)[0] == len(prefix) for prefix in families.prefixes),
        "KV of a prefix left the device together with its state",
    )
    replay.phase("pressure")
    return pressed


def _both_tiers(families: _Families) -> list[int]:
    prompts = [families.a(prefix) for prefix in families.prefixes]
    for a in prompts:
        families.engine.serve(a)
    floods = [families.flood()]
    for a in prompts:
        loaded = families.engine.serve(families.longer(a)).host
        families.require(loaded >= families.shape.prefix, "a was not loaded back")
    families.replay.phase("fill")
    for prefix in families.prefixes:
        families.engine.serve(families.b(prefix))
    families.replay.phase("create")
    return floods


def _host_states_full(families: _Families) -> list[int]:
    for prefix in families.prefixes:
        families.engine.serve(families.a(prefix))
    families.replay.phase("fill")
    with families.engine.full_host("mamba") as room:
        for prefix in families.prefixes:
            families.engine.serve(families.b(prefix))
        families.require(not room(), "the host made room for a state")
    families.replay.phase("create")
    return []


def _host_kv_full(families: _Families) -> list[int]:
    with families.engine.full_host("kv") as room:
        for prefix in families.prefixes:
            families.engine.serve(families.bare(prefix))
        families.require(not room(), "the host made room for KV")
    families.replay.phase("create")
    return []


_MAKE: dict[Made, Callable[[_Families], list[int]]] = {
    "in flight": _in_flight,
    "between chunks": _between_chunks,
    "at once": _at_once,
    "leaf": _leaf,
    "leaf to the end": _leaf_to_the_end,
    "internal": _internal,
    "both tiers": _both_tiers,
    "host states full": _host_states_full,
    "host KV full": _host_kv_full,
}
