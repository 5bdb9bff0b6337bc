"""The order in which sglang's scheduler calls the cache for a request, release by release.

One request is under way in each `Prefill`; a workload that wants two of them at the same time has
two. `Scheduler` is the order of 0.5.17 to 0.5.20, `SchedulerOfTreeLocks` that of the releases in
which a request holds its lock of the tree as one object, and its place in the pools as another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

_NONE = torch.empty(0, dtype=torch.int64)


class Scheduler:
    """Calls of one cache and its pools. api: see `hicache_bench.cache.api`."""

    def __init__(self, api: Any, cache: Any, req_pool: Any, allocator: Any) -> None:
        self.api = api
        self.cache = cache
        self.req_pool = req_pool
        self.allocator = allocator
        # Stands for the batch whose methods are called unbound.
        self._batch = SimpleNamespace(
            req_to_token_pool=req_pool,
            tree_cache=cache,
            model_config=SimpleNamespace(hf_text_config=SimpleNamespace()),
        )

    # One request, in this order

    def admit(self, req: Any) -> tuple[int, torch.Tensor]:
        """Match, lock, load back, allocate what does not depend on the length.

        Returns how many tokens of the prefix were on the device, and all its slots (int64 [n]).
        """
        self.cache.check_hicache_events()
        self.req_pool.mamba_allocator.alloc_group_begin(1)
        req.init_next_round_input(self.cache)
        on_device = self._match_and_load(req)
        self.req_pool.mamba_allocator.alloc_group_end()
        self.cache.ready_to_load_host_cache()
        slots = self._prefix(req)
        self.api.alloc_req_slots(self.req_pool, [req], self.cache)
        source = self._state_source(req)
        if source is not None:
            self.req_pool.mamba_pool.copy_from(
                source.view(-1), torch.tensor([self.state_slot(req)], dtype=source.dtype)
            )
        return on_device, slots

    def extend(self, req: Any, start: int, end: int, prefix: torch.Tensor) -> torch.Tensor:
        """Allocate the tokens from `start` to `end`, behind `prefix` (int64 [start]).

        Returns their slots, int64 [end - start]. Raises RuntimeError where there is no room.
        """
        page = self.cache.page_size
        self._set_range(req, start, end)
        room = -(-(end - start) // page) * page
        self.api.evict_from_tree_cache(self.cache, room + page)
        slots = self.allocator.alloc(room)
        if slots is None:
            raise RuntimeError(
                f"no {room} slots on the device: {self.cache.available_and_evictable_str()}"
            )
        taken: torch.Tensor = slots[: end - start]
        row = self._row(req)
        self.req_pool.write((row, slice(0, start)), prefix)
        self.req_pool.write((row, slice(start, end)), taken)
        self._allocated(req, end)
        return taken

    def kept_state(self, req: Any) -> tuple[int, int] | None:
        """Where this forward pass keeps a state: tokens before it, and its slot; or nowhere."""
        prepare = self.api.ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend
        entry = prepare(self._batch, req)
        if not entry.track_mask:
            return None
        return req.mamba_last_track_seqlen, int(entry.track_index)

    def stash(self, req: Any) -> None:
        """Put what a chunk has computed into the tree."""
        self.cache.cache_unfinished_req(req, chunked=True)
        req.init_next_round_input()
        self.cache.check_hicache_events()

    def finish(self, req: Any) -> None:
        """Put the request into the tree and give back what it held."""
        self.api.release_kv_cache(req, self.cache)
        self.cache.check_hicache_events()

    def prefix_of_chunk(self, req: Any) -> torch.Tensor:
        """Slots of all that a chunked request has computed, int64 [n]."""
        return self._prefix(req)

    def state_slot(self, req: Any) -> int:
        """The slot of the state that the request computes with."""
        return int(req.mamba_pool_idx)

    # What differs between releases

    def _match_and_load(self, req: Any) -> int:
        cache = self.cache
        on_device = len(req.prefix_indices)
        admitted, admission = req.last_node, cache.inc_lock_ref(req.last_node)
        if req.needs_host_load_back():
            loaded, req.last_node = cache.init_load_back(self._load_params(req))
            req.prefix_indices = torch.cat([req.prefix_indices, loaded])
            req.cache_protected_len = len(req.prefix_indices)
        lock = cache.inc_lock_ref(req.last_node)
        req.swa_uuid_for_lock = lock.swa_uuid_for_lock
        req.skip_lock_node_ids = lock.skip_lock_node_ids
        cache.dec_lock_ref(admitted, admission.to_dec_params())
        return on_device

    def _load_params(self, req: Any) -> Any:
        return self.api.InitLoadBackParams(
            best_match_node=req.best_match_node,
            host_hit_length=req.host_hit_length,
            req=req,
        )

    def _prefix(self, req: Any) -> torch.Tensor:
        slots: torch.Tensor = req.prefix_indices
        return slots

    def _state_source(self, req: Any) -> torch.Tensor | None:
        source: torch.Tensor | None = req.mamba_cow_src_index
        return source

    def _set_range(self, req: Any, start: int, end: int) -> None:
        req.set_extend_range(start, end)

    def _row(self, req: Any) -> int:
        return int(req.req_pool_idx)

    def _allocated(self, req: Any, end: int) -> None:
        req.kv = self.api.ReqKvInfo(kv_allocated_len=end, swa_evicted_seqlen=0)
        req.kv_committed_len = end


class SchedulerOfTreeLocks(Scheduler):
    """The order of 0.5.23."""

    def kept_state(self, req: Any) -> tuple[int, int] | None:
        """See `Scheduler.kept_state`."""
        prepare = self.api.ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend
        entry = prepare(self._batch, req)
        if not entry.track_mask:
            return None
        slot = req.kv.mamba_ping_pong_track_buffer[entry.track_position]
        return req.kv.mamba_last_track_seqlen, int(slot)

    def stash(self, req: Any) -> None:
        """See `Scheduler.stash`."""
        self.api.checkpoint_kv_cache(req, self.cache)
        req.init_next_round_input()
        self.cache.check_hicache_events()

    def finish(self, req: Any) -> None:
        """See `Scheduler.finish`."""
        req.finished_reason = self.api.FINISH_LENGTH(length=0)
        self.api.release_kv_cache(req, self.cache, checkpoint=True)
        self.cache.check_hicache_events()

    def state_slot(self, req: Any) -> int:
        """See `Scheduler.state_slot`."""
        return int(req.kv.mamba_pool_idx)

    def _match_and_load(self, req: Any) -> int:
        cache = self.cache
        on_device: int = req.prefix_len
        with self._locked(req.last_node):
            if req.needs_host_load_back():
                with self._locked(req.best_match_node, host=True):
                    loaded, req.last_node = cache.init_load_back(self._load_params(req))
                req.host_loaded_length = loaded
                req.prefix_len += loaded
                req.kv.cache_protected_len = req.prefix_len
            req.lock = cache.lock(req.last_node)
        return on_device

    @contextmanager
    def _locked(self, node: Any, host: bool = False) -> Iterator[None]:
        cache = self.cache
        on_host = cache.inc_host_lock_ref(node).to_dec_params() if host else None
        lock = cache.lock(node)
        try:
            yield
        finally:
            cache.unlock(lock)
            if on_host is not None:
                cache.dec_host_lock_ref(node, on_host)

    def _prefix(self, req: Any) -> torch.Tensor:
        if req.kv.holds_kv:
            row = self.req_pool.req_to_token[self._row(req)]
            held: torch.Tensor = row[: req.prefix_len].to(torch.int64)
            return held
        if not req.prefix_len:
            return _NONE
        matched: torch.Tensor = self.cache.prefix_device_indices(req)
        return matched

    def _state_source(self, req: Any) -> torch.Tensor | None:
        source: torch.Tensor | None = req.kv.mamba_cow_src_index
        req.kv.mamba_cow_src_index = None
        req.kv.mamba_needs_clear = False
        return source

    def _set_range(self, req: Any, start: int, end: int) -> None:
        assert req.prefix_len == start
        req.extend_end = end

    def _row(self, req: Any) -> int:
        return int(req.kv.req_pool_idx)

    def _allocated(self, req: Any, end: int) -> None:
        req.kv.kv_allocated_len = req.kv.kv_committed_len = end


def scheduler(api: Any, cache: Any, req_pool: Any, allocator: Any) -> Scheduler:
    """The scheduler of the release that `api` is of."""
    kind = SchedulerOfTreeLocks if hasattr(api, "checkpoint_kv_cache") else Scheduler
    return kind(api, cache, req_pool, allocator)
