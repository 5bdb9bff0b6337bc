"""The workloads of the replay that stand for traffic. Each gives plain JSON values."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from hicache_bench.cache.engine import Engine, Served
from hicache_bench.cache.replay import Replay, floor
from hicache_bench.cache.sizes import Chat, Deep, Pools, SharedPrefix, Tenants

MakeEngine = Callable[[Pools], Engine]


def shared_prefix(engine: Engine, shape: SharedPrefix) -> dict[str, Any]:
    """Families in five phases: prefix + a; flood; prefix + b; flood; prefix + c, which counts.

    The state at the prefix's end is made by prefix + b, when its Full KV is on the host already:
    a and b part there, so that is where the scheduler keeps the state of that forward pass.
    """
    replay = Replay(engine, shape.seed)
    fresh = replay.prompts.fresh
    common = fresh(shape.common)
    prefixes = [common + fresh(shape.prefix - shape.common) for _ in range(shape.families)]

    def ask(prefix: array[int]) -> Served:
        return engine.serve(prefix + fresh(shape.suffix))

    def flood() -> int:
        return replay.flood(prefixes, shape.flood, common, shape.left)

    if common:
        # Where two prompts part, the second keeps its state there and nothing beyond it. These two
        # do so for the common tokens, or a family would have to.
        for _ in range(2):
            engine.serve(common + fresh(shape.flood - shape.common))
    for prefix in prefixes:
        ask(prefix)
    floods = [flood()]
    replay.phase("fill")
    for prefix in prefixes:
        ask(prefix)
    replay.phase("create")
    floods.append(flood())
    left = replay.on_device(prefixes, shape.common)
    replay.phase("flood")
    for prefix in reversed(prefixes) if shape.newest_first else prefixes:
        replay.count(ask(prefix), shape.prefix)
    replay.phase("measure")
    return replay.result(families_left_on_device=left, flood_prompts=floods)


def chat(engine: Engine, shape: Chat) -> dict[str, Any]:
    """Conversations in turns, one after the other; every request counts.

    A turn can reuse what the one before it has left: everything up to the last page of its prompt.
    """
    replay = Replay(engine, shape.seed)
    fresh = replay.prompts.fresh
    system = fresh(shape.system)
    talks = [array("q", system) for _ in range(shape.conversations)]
    for turn in range(shape.turns):
        for index in range(shape.conversations):
            before = len(talks[index]) - shape.answer
            talks[index] += fresh(shape.message)
            served = engine.serve(talks[index])
            replay.count(served, floor(before, engine.pools.page) if turn else None)
            talks[index] += fresh(shape.answer)
    replay.phase("all")
    return replay.result()


def tenants(engine: Engine, shape: Tenants) -> dict[str, Any]:
    """Questions below the system prompts of many tenants; every request counts.

    The first request of a tenant leaves its Full KV, the second one the state at the end of its
    system prompt; a later one can reuse both.
    """
    replay = Replay(engine, shape.seed)
    fresh = replay.prompts.fresh
    chance = random.Random(shape.seed)
    systems = [fresh(chance.randint(shape.least, shape.most)) for _ in range(shape.tenants)]
    weights = [1 / (rank + 1) ** shape.skew for rank in range(shape.tenants)]
    seen = [0] * shape.tenants
    for index in chance.choices(range(shape.tenants), weights, k=shape.requests):
        question = fresh(chance.randint(2 * engine.pools.page, shape.question))
        served = engine.serve(systems[index] + question)
        reusable = floor(len(systems[index]), engine.pools.page)
        replay.count(served, reusable if seen[index] >= 2 else None)
        seen[index] += 1
    replay.phase("all")
    return replay.result()


def deep(engine: Engine, shape: Deep) -> dict[str, Any]:
    """Long conversations whose messages are edited at once and, much later, edited again.

    The first edit of a turn parts from it where the answer before it ends, and the state is made
    there, on an internal node. Few device states make room for each other. When the conversations
    have ended and left the device, the early turns are edited again: that counts.
    """
    replay = Replay(engine, shape.seed)
    fresh, page = replay.prompts.fresh, engine.pools.page
    talks = [fresh(shape.system) for _ in range(shape.conversations)]
    histories: list[array[int]] = []
    for turn in range(shape.turns):
        for index, history in enumerate(talks):
            if 0 < turn <= shape.measured:
                histories.append(history)
            edited = history + fresh(shape.message)
            with engine.slow_copies() if shape.slow else nullcontext():
                if turn:
                    engine.serve(history + fresh(shape.message))
                engine.serve(edited)
            talks[index] = edited + fresh(shape.answer)
    states = sum(engine.tree.on_device(_whole(h, page))[1] for h in histories)
    replay.phase("create")
    floods = [replay.flood(talks, shape.flood)]
    replay.phase("flood")
    for history in histories:
        replay.count(engine.serve(history + fresh(shape.message)), floor(len(history), page))
    replay.phase("measure")
    return replay.result(states_left_on_device=states, flood_prompts=floods)


def growth(make: MakeEngine, pools: Pools, lengths: list[int], suffix: int) -> list[dict[str, Any]]:
    """One family for each prefix length, each on a fresh cache of twice a prompt's size.

    Prefill is not chunked here: the end of a chunk would leave a state inside the prefix, and the
    prefix be resumed from there also as released.
    """
    rows = []
    for length in lengths:
        prompt = length + suffix
        room = floor(2 * prompt, pools.page) + 4 * pools.page
        engine = make(
            Pools(room, pools.device_states, pools.host_ratio, pools.page, prompt, pools.policy)
        )
        shape = SharedPrefix(1, length, suffix, flood=prompt // 2, seed=length)
        rows.append({"prefix": length, **shared_prefix(engine, shape)})
    return rows


def _whole(tokens: array[int], page: int) -> array[int]:
    return tokens[: floor(len(tokens), page)]
