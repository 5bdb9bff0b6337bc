"""The cache under test: the registered tests' harness, with requests that stay and transfers held.

Nothing is replaced. The harness makes the real UnifiedRadixCache over real pools; here its
requests are taken apart into steps, so that other operations come in between.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

from hicache_fuzz import api, storage
from hicache_fuzz.configs import Config
from sglang_cpu import transfers

MOST_LOADS = 2
"""Loads that may be in flight: sglang has three layer counters, and asserts that one is free."""


@dataclass(frozen=True)
class Pools:
    """Sizes. requests: how many run at most; sglang reserves state slots for each. spare_states:
    how many more there are on the device. pages: pages of KV there. host_ratio: host slots for each
    slot on the device, of every pool. states_per_path: as --mamba-max-states-per-path; -1: no cap.
    """

    requests: int
    spare_states: int
    pages: int
    host_ratio: float
    states_per_path: int = -1


@dataclass
class Request:
    """A request between its admission and its end. prefilled: all its tokens are computed."""

    req: Any
    tokens: list[int]
    cached: int
    prefilled: bool = False


class Engine:
    """One cache with its pools, its requests and its transfers."""

    def __init__(self, config: Config, pools: Pools, tally: Counter[str] | None = None) -> None:
        module = api.harness()
        self.config = config
        self.tally: Counter[str] = Counter() if tally is None else tally
        """How often what happened; a run that never gets somewhere proves nothing about it."""
        self.api = module
        self.types = {ct.name.lower(): ct for ct in (module.FULL, module.SWA, module.MAMBA)}
        # Ids are printed, and a shorter script should not print other ones.
        api.reset_node_ids()
        self._folders = ExitStack()
        with storage.switched_on(module, self._folders) if config.storage else nullcontext():
            self.harness = module.UnifiedHiCacheHarness(self._cache_config(pools))
        self.cache = self.harness.cache
        self.cache.components[module.MAMBA].mamba_max_states_per_path = pools.states_per_path
        self.core = self.harness.core
        self.controller = self.harness.controller
        self.storage = storage.Storage(self.harness) if config.storage else None
        self.requests: list[Request] = []
        self._states = pools.requests * config.states_per_request + pools.spare_states
        self.waits = api.waits_for_transfers()
        self.lost_acks = 0
        self._holding = ExitStack()
        self._held: transfers.Held | None = None
        self._issue_loads = self.cache.ready_to_load_host_cache
        self.cache.ready_to_load_host_cache = self._issue_loads_and_wait
        group = self.cache.host_pool_group
        self._copy_back_up = group.backup_from_device_all_layer
        group.backup_from_device_all_layer = self._back_up
        self._write = self.controller.write
        self.controller.write = self._write_if_there_is_room

    def _cache_config(self, pools: Pools) -> Any:
        config = self.config
        return self.api.CacheConfig(
            components=tuple(self.types[name] for name in config.components),
            page_size=config.page,
            extra_buffer=config.extra_buffer,
            write_policy=config.policy,
            threshold=config.threshold,
            kv_size=pools.pages * config.page,
            mamba_size=pools.requests * config.states_per_request + pools.spare_states,
            window=config.window,
            # Storage is read only into what the host has more than the device.
            host_ratio=pools.host_ratio + config.storage,
        )

    def tokens(self, path: list[tuple[int, int]], tail: int = 0) -> list[int]:
        """Token ids of a path of (branch, pages), and of `tail` tokens behind it.

        Paths that begin with the same branches share their beginning, up to where the number of
        pages differs.
        """
        ids: list[int] = []
        for depth, (branch, pages) in enumerate(path):
            ids += self.api.tokens_of(1 + 10 * depth + branch, pages * self.config.page)
        ids += self.api.tokens_of(99, tail)
        return ids

    def nodes(self) -> list[Any]:
        """The nodes of the tree but its root."""
        return [node for node in self.core._collect_all_nodes() if node is not self.core.root_node]

    # Transfers

    def hold(self) -> None:
        """Keep every copy from now on in flight until it is released; held already: nothing."""
        if self._held is None:
            self._held = self._holding.enter_context(transfers.hold())

    def end_hold(self) -> None:
        """Let what is held run, in the order of its issue, and hold nothing from now on."""
        self._held = None
        self._holding.close()

    @property
    def holds(self) -> bool:
        """Whether copies are held."""
        return self._held is not None

    @property
    def pending(self) -> tuple[transfers.HeldTransfer, ...]:
        """The copies in flight, in the order of their issue."""
        return self._held.pending if self._held else ()

    @property
    def pending_loads(self) -> tuple[transfers.HeldTransfer, ...]:
        """Those of them that go from the host to the device."""
        return tuple(held for held in self.pending if held.is_load)

    @property
    def pending_backups(self) -> tuple[transfers.HeldTransfer, ...]:
        """Those of them that go from the device to the host."""
        return tuple(held for held in self.pending if held.is_backup)

    def _free_a_layer_counter(self) -> None:
        for held in self.pending_loads[: len(self.pending_loads) - MOST_LOADS + 1]:
            held.release()

    def _issue_loads_and_wait(self) -> Any:
        """Issue the loads, and let them run: the forward pass that follows waits for each layer."""
        self._free_a_layer_counter()
        producer = self._issue_loads()
        for held in self.pending_loads:
            held.release()
        return producer

    def load_back(self, tokens: list[int]) -> None:
        """Bring what the host holds of `tokens` to the device; it may stay in flight."""
        matched = self.harness.match(tokens)
        self._free_a_layer_counter()
        loaded = self.cache.load_back(matched.best_match_node)
        self._issue_loads()
        self.tally["loads" if loaded else "loads of nothing, or refused"] += 1

    def _back_up(self, device_pool: Any, host_slots: Any, *args: Any, **kwargs: Any) -> Any:
        self.tally["backups" if len(host_slots) else "backups of a component alone"] += 1
        return self._copy_back_up(device_pool, host_slots, *args, **kwargs)

    def _write_if_there_is_room(self, device_slots: Any, *args: Any, **kwargs: Any) -> Any:
        host_slots = self._write(device_slots, *args, **kwargs)
        if host_slots is None:
            what = "backups" if len(device_slots) else "backups of a component alone"
            self.tally[f"{what}, refused"] += 1
        return host_slots

    # Room

    def make_room(self, tokens: int, states: int) -> bool:
        """Evict until so many slots are free on the device; say whether they are."""
        free = self.harness.device_available()
        short = {ct: max(0, self._wanted(ct, tokens, states) - free[ct]) for ct in free}
        if any(short.values()):
            self.cache.evict(
                self.api.EvictParams(
                    num_tokens=short[self.api.FULL],
                    swa_num_tokens=short.get(self.api.SWA, 0),
                    mamba_num=short[self.api.MAMBA],
                )
            )
        free = self.harness.device_available()
        return all(free[ct] >= self._wanted(ct, tokens, states) for ct in free)

    def _wanted(self, ct: Any, tokens: int, states: int) -> int:
        return states if ct is self.api.MAMBA else tokens

    def _states_for(self, step: str) -> int:
        """State slots without which a step is not begun: none where the engine waits for them.

        As released, an allocation that finds all states locked by transfers fails an assertion.
        """
        if self.waits:
            return 0
        return {"begin": self.config.states_per_request + 1, "compute": 1}[step]

    # Requests

    def admits(self, tokens: list[int]) -> bool:
        """Whether the scheduler would admit a request now; makes room for it, and polls."""
        room = self._paged(len(tokens)) + self.config.page
        self.harness.poll()
        # Each lost acknowledgement keeps a state locked for ever.
        most = (self._states - self.lost_acks) // self.config.states_per_request
        if len(self.requests) >= most or not self.make_room(room, self._states_for("begin")):
            self.tally["requests not admitted"] += 1
            return False
        return True

    def begin(self, tokens: list[int]) -> Request:
        """Admit a request: match, lock, load back, allocate, check the bytes that it reuses."""
        self._free_a_layer_counter()
        req, cached = self.harness.start(tokens)
        request = Request(req, tokens, cached)
        self.requests.append(request)
        return request

    def compute(self, request: Request, pages: int) -> bool:
        """Compute the next pages of a request and cache it unfinished; False: there is no room."""
        if request.prefilled or not self._forward(request, pages):
            return False
        last = request.prefilled
        self.cache.cache_unfinished_req(request.req, chunked=not last)
        if not last:
            request.req.init_next_round_input()
        return True

    def finish(self, request: Request) -> bool:
        """Compute what is left of a request and finish it; False: there is no room."""
        if not request.prefilled and not self._forward(request, len(request.tokens)):
            return False
        self._release(request, is_insert=True)
        return True

    def abort(self, request: Request) -> None:
        """End a request without caching it, as the scheduler does with one that is retracted."""
        req = request.req
        if req.kv is None:  # admitted, and nothing computed: the prefix is all it has
            start = len(req.prefix_indices)
            self.harness.req_to_token_pool.write(
                (req.req_pool_idx, slice(0, start)), req.prefix_indices
            )
            req.kv = self.api.ReqKvInfo(kv_allocated_len=start, swa_evicted_seqlen=0)
            req.kv_committed_len = start
        self._release(request, is_insert=False)

    def _release(self, request: Request, is_insert: bool) -> None:
        self.api.release_kv_cache(request.req, self.cache, is_insert=is_insert)
        self.requests.remove(request)

    def _forward(self, request: Request, pages: int) -> bool:
        start, whole = len(request.req.prefix_indices), len(request.tokens)
        end = min(start + pages * self.config.page, whole)
        if not self.make_room(self._paged(end - start), self._states_for("compute")):
            return False
        self.harness._forward(request.req, request.tokens, end)
        request.prefilled = end == whole
        return True

    def _paged(self, count: int) -> int:
        page = self.config.page
        return -(-count // page) * page

    def insert(self, tokens: list[int], chunked: bool) -> None:
        """Insert computed KV and a state without a request; nothing where there is no room."""
        if self.make_room(len(tokens), 1):
            self.harness.insert(tokens, chunked=chunked)

    # Beginning and end

    def close(self) -> None:
        """End what the engine has started."""
        self.end_hold()
        if self.storage:
            self.storage.stop()
        self._folders.close()

    def flush(self) -> None:
        """Empty the cache as the scheduler does, which it does only without requests."""
        if self.storage:
            self.storage.stop()
        self.cache.reset()
        self.harness.req_to_token_pool.clear()
        self.harness.allocator.clear()
        for held in self.pending:
            held.release()
        self.lost_acks = 0

    def settle(self) -> None:
        """Let every transfer finish, and poll until nothing happens any more."""
        for _ in range(20):
            for held in self.pending:
                held.release()
            busy = self._awaits_acks()
            self.harness.poll()
            if self.storage:
                self.storage.quiet()
                busy = busy or bool(self.cache.ongoing_backup)
            # A poll may begin what the host had no room for before.
            if not busy and not self._awaits_acks():
                return
        raise AssertionError("transfers go on after 20 polls, with every copy finished")

    def _awaits_acks(self) -> bool:
        return bool(self.controller.ack_write_queue or self.controller.ack_load_queue)
