"""The workloads of the replay. Each gives plain JSON values."""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable
from typing import Any

from hicache_bench.cache.engine import Engine, Served
from hicache_bench.cache.meter import Meter
from hicache_bench.cache.sizes import Chat, Pools, SharedPrefix, Tenants

MakeEngine = Callable[[Pools], Engine]


class _Prompts:
    """Random tokens of one seed: int64, so that no two prompts share a page by chance."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def fresh(self, length: int) -> array[int]:
        tokens = array("q")
        tokens.frombytes(self._random.randbytes(8 * length))
        # token ids are not negative, and stay far from overflow
        return array("q", [token & 0xFFFFFFFF for token in tokens])


class _Requests:
    """The requests whose hits count: what each reused, and what it could have reused."""

    def __init__(self) -> None:
        self._served: list[Served] = []
        self._eligible = 0
        self._hits = 0

    def add(self, served: Served, reusable: int | None) -> None:
        """reusable: tokens that a hit must cover; None where nothing could be found."""
        self._served.append(served)
        if reusable is not None:
            self._eligible += 1
            self._hits += served.cached >= reusable

    def report(self) -> dict[str, Any]:
        prompt = sum(served.prompt for served in self._served)
        device = sum(served.device for served in self._served)
        host = sum(served.host for served in self._served)
        return {
            "requests": len(self._served),
            "eligible": self._eligible,
            "prefix_hits": self._hits,
            "prompt_tokens": prompt,
            "tokens": {"device": device, "host": host, "computed": prompt - device - host},
            "token_hit_rate": (device + host) / prompt,
        }


def shared_prefix(engine: Engine, shape: SharedPrefix) -> dict[str, Any]:
    """Families in five phases: prefix + a; flood; prefix + b; flood; prefix + c, which counts.

    The state at the prefix's end is made by prefix + b, when its Full KV is on the host already:
    a and b part there, so that is where the scheduler keeps the state of that forward pass.
    """
    prompts, meter = _Prompts(shape.seed), Meter(engine)
    began = time.perf_counter()
    common = prompts.fresh(shape.common)
    prefixes = [common + prompts.fresh(shape.prefix - shape.common) for _ in range(shape.families)]

    def ask(prefix: array[int]) -> Served:
        return engine.serve(prefix + prompts.fresh(shape.suffix))

    def flood() -> int:
        sent = 0
        while sum(_holds(engine, prefix, shape.common) for prefix in prefixes) > shape.left:
            engine.serve(common + prompts.fresh(shape.flood - shape.common))
            sent += 1
        return sent

    if common:
        # Where two prompts part, the second keeps its state there and nothing beyond it. These two
        # do so for the common tokens, or a family would have to.
        for _ in range(2):
            engine.serve(common + prompts.fresh(shape.flood - shape.common))
    for prefix in prefixes:
        ask(prefix)
    floods = [flood()]
    whole = meter.report()
    meter.reset()
    for prefix in prefixes:
        ask(prefix)
    create = meter.report()
    floods.append(flood())
    left = sum(_holds(engine, prefix, shape.common) for prefix in prefixes)
    flooding = _minus(meter.report(), create)
    meter.reset()
    measured = _Requests()
    for prefix in reversed(prefixes) if shape.newest_first else prefixes:
        measured.add(ask(prefix), shape.prefix)
    return {
        **measured.report(),
        "copied": {
            "fill": whole,
            "create": create,
            "flood": flooding,
            "measure": meter.report(),
        },
        "families_left_on_device": left,
        "flood_prompts": floods,
        **_end(engine, began),
    }


def _holds(engine: Engine, prefix: array[int], common: int) -> bool:
    """Whether anything of a family beyond the common tokens is on the device."""
    tokens, state = engine.on_device(prefix)
    return state or tokens > common


def chat(engine: Engine, shape: Chat) -> dict[str, Any]:
    """Conversations in turns, one after the other; every request counts.

    A turn can reuse what the one before it has left: everything up to the last page of its prompt.
    """
    prompts, meter = _Prompts(shape.seed), Meter(engine)
    began = time.perf_counter()
    system = prompts.fresh(shape.system)
    talks = [array("q", system) for _ in range(shape.conversations)]
    requests = _Requests()
    for turn in range(shape.turns):
        for index in range(shape.conversations):
            before = len(talks[index]) - shape.answer
            talks[index] += prompts.fresh(shape.message)
            served = engine.serve(talks[index])
            requests.add(served, _floor(before, engine.pools.page) if turn else None)
            talks[index] += prompts.fresh(shape.answer)
    return {**requests.report(), "copied": {"all": meter.report()}, **_end(engine, began)}


def tenants(engine: Engine, shape: Tenants) -> dict[str, Any]:
    """Questions below the system prompts of many tenants; every request counts.

    The first request of a tenant leaves its Full KV, the second one the state at the end of its
    system prompt; a later one can reuse both.
    """
    prompts, meter = _Prompts(shape.seed), Meter(engine)
    chance = random.Random(shape.seed)
    began = time.perf_counter()
    systems = [prompts.fresh(chance.randint(shape.least, shape.most)) for _ in range(shape.tenants)]
    weights = [1 / (rank + 1) ** shape.skew for rank in range(shape.tenants)]
    seen = [0] * shape.tenants
    requests = _Requests()
    for index in chance.choices(range(shape.tenants), weights, k=shape.requests):
        question = prompts.fresh(chance.randint(2 * engine.pools.page, shape.question))
        served = engine.serve(systems[index] + question)
        reusable = _floor(len(systems[index]), engine.pools.page)
        requests.add(served, reusable if seen[index] >= 2 else None)
        seen[index] += 1
    return {**requests.report(), "copied": {"all": meter.report()}, **_end(engine, began)}


def growth(make: MakeEngine, pools: Pools, lengths: list[int], suffix: int) -> list[dict[str, Any]]:
    """One family for each prefix length, each on a fresh cache of twice a prompt's size.

    Prefill is not chunked here: the end of a chunk would leave a state inside the prefix, and the
    prefix be resumed from there also as released.
    """
    rows = []
    for length in lengths:
        prompt = length + suffix
        room = _floor(2 * prompt, pools.page) + 4 * pools.page
        engine = make(
            Pools(room, pools.device_states, pools.host_ratio, pools.page, prompt, pools.policy)
        )
        shape = SharedPrefix(1, length, suffix, flood=prompt // 2, seed=length)
        rows.append({"prefix": length, **shared_prefix(engine, shape)})
    return rows


def _end(engine: Engine, began: float) -> dict[str, Any]:
    """What every workload ends with; the cache's own check of its tree raises on a fault."""
    engine.cache.sanity_check()
    return {
        "host_slots": engine.host_used(),
        "host_size": {"kv": engine.host_kv.size, "mamba": engine.host_states.size},
        "nodes": engine.nodes(),
        "prefixes_compared": engine.compared,
        "token_bytes": engine.token_bytes,
        "state_bytes": engine.state_bytes,
        "seconds": time.perf_counter() - began,
    }


def _floor(length: int, page: int) -> int:
    return length // page * page


def _minus(later: Any, earlier: Any) -> Any:
    if isinstance(later, dict):
        return {key: _minus(value, earlier[key]) for key, value in later.items()}
    return later - earlier
