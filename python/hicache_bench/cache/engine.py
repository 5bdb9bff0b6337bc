"""One real UnifiedRadixCache with real device and host pools, served requests without a model.

The order of the calls is that of sglang's scheduler (`scheduler`): match, lock, load back,
allocate, prefill in chunks, cache the unfinished and then the finished request, poll
acknowledgements. Where the model would compute, `contents` writes the bytes that a prefix must
have, and every byte that a request reuses is compared with them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from hicache_bench.cache import patterns, treeview
from hicache_bench.cache.contents import Contents
from hicache_bench.cache.scheduler import scheduler
from hicache_bench.cache.sizes import Pools
from sglang_cpu import transfers

# Small dimensions; what is copied is counted in slots and bytes, and stated for published models in
# `shapes`. The controller walks layers 0, 1, ..., so their numbers must leave no gap.
_FULL_LAYERS, _MAMBA_LAYERS = [0, 1], [2, 3]


@dataclass(frozen=True)
class Served:
    """One request: tokens of its prompt, and those reused from the device and from the host."""

    prompt: int
    device: int
    host: int

    @property
    def cached(self) -> int:
        """Tokens that were not computed."""
        return self.device + self.host


class Engine:
    """The cache, its pools and the requests of one replay. api: see `hicache_bench.cache.api`."""

    def __init__(self, api: Any, pools: Pools) -> None:
        self.api = api
        self.pools = pools
        self._served = 0
        self._held: transfers.Held | None = None
        args = self._server_args()
        kv_pool = self._build_pools()
        params = api.CacheInitParams(
            disable=False,
            req_to_token_pool=self.req_pool,
            token_to_kv_pool_allocator=self.allocator,
            page_size=pools.page,
            enable_mamba_extra_buffer=True,
            tree_components=(api.ComponentType.FULL, api.ComponentType.MAMBA),
        )
        self.cache = api.UnifiedRadixCache(params)
        self.cache.init_hicache(args, params)
        group = self.cache.host_pool_group
        self.host_kv = group.get_pool(api.PoolName.KV)
        self.host_states = group.get_pool(api.PoolName.MAMBA)
        self.contents = Contents(kv_pool, self.req_pool.mamba_pool)
        self.scheduler = scheduler(api, self.cache, self.req_pool, self.allocator)
        self.tree = treeview.of(api, self.cache)

    def _server_args(self) -> Any:
        pools = self.pools
        args = self.api.ServerArgs(
            model_path="dummy",
            page_size=pools.page,
            hicache_ratio=pools.host_ratio,
            hicache_size=0,
            hicache_write_policy=pools.policy,
            hicache_io_backend="direct",
            hicache_mem_layout="page_first_direct",
            mamba_radix_cache_strategy="extra_buffer",
        )
        args._mamba_cache_chunk_size = pools.page
        self.api.set_global_server_args_for_scheduler(args)
        return args

    def _build_pools(self) -> Any:
        """Make the device's pools and their allocator. Returns the pool of the Full KV."""
        api, pools = self.api, self.pools
        shape = api.Mamba2StateShape.create(
            tp_world_size=1,
            intermediate_size=16,
            n_groups=1,
            num_heads=2,
            head_dim=8,
            state_size=4,
            conv_kernel=3,
        )
        dtype = api.Mamba2StateDType(conv=torch.bfloat16, temporal=torch.float32)
        self.req_pool = api.HybridReqToTokenPool(
            size=4,
            mamba_size=pools.device_states,
            mamba_spec_state_size=0,
            max_context_len=pools.device_tokens,
            device="cpu",
            enable_memory_saver=False,
            cache_params=api.Mamba2CacheParams(shape=shape, layers=_MAMBA_LAYERS, dtype=dtype),
            mamba_layer_ids=_MAMBA_LAYERS,
            enable_mamba_extra_buffer=True,
        )
        kv_pool = api.HybridLinearKVPool(
            size=pools.device_tokens,
            dtype=torch.bfloat16,
            page_size=pools.page,
            head_num=1,
            head_dim=pools.head_dim,
            full_attention_layer_ids=_FULL_LAYERS,
            device="cpu",
            mamba_pool=self.req_pool.mamba_pool,
        )
        self.allocator = api.PagedTokenToKVPoolAllocator(
            pools.device_tokens, pools.page, torch.bfloat16, "cpu", kv_pool, need_sort=False
        )
        return kv_pool.full_kv_pool

    # Requests

    def serve(self, tokens: array[int]) -> Served:
        """Prefill one prompt in chunks, finish it, poll. Raises WrongBytesError."""
        prefill = Prefill(self, tokens)
        while not prefill.step():
            pass
        return prefill.served

    def request(self, tokens: array[int]) -> Any:
        """A request of sglang's for this prompt."""
        self._served += 1
        return self.api.Req(
            rid=str(self._served),
            origin_input_text="",
            origin_input_ids=tokens,
            sampling_params=self.api.SamplingParams(max_new_tokens=1),
        )

    def poll(self) -> None:
        """One step of the scheduler in which no request comes."""
        self.cache.check_hicache_events()

    # What stands in a backup's way

    @contextmanager
    def slow_copies(self) -> Iterator[transfers.Held]:
        """No copy is made, and so none acknowledged, before the block ends or one is waited for."""
        with transfers.hold() as self._held:
            yield self._held
        self._held = None
        self.poll()

    def wait_for_loads(self) -> None:
        """Wait for what is being loaded, as the forward pass that reads it does."""
        for transfer in self._held.pending if self._held else ():
            if transfer.is_load:
                transfer.release()

    @contextmanager
    def full_host(self, pool: str) -> Iterator[Callable[[], int]]:
        """All that is free of a host pool ("kv" or "mamba") is taken while the block lasts.

        That is what a large prefetch from storage does until it ends. What the block gets tells how
        many slots are free nevertheless.
        """
        host = {"kv": self.host_kv, "mamba": self.host_states}[pool]
        taken = host.alloc(host.available_size())
        yield lambda: int(host.available_size())
        host.free(taken)
        self.poll()

    # What the pools hold

    def host_used(self) -> dict[str, int]:
        """Host slots in use, by pool."""
        return {
            "kv": self.host_kv.size - self.host_kv.available_size(),
            "mamba": self.host_states.size - self.host_states.available_size(),
        }


class Prefill:
    """One request under way. A step computes one chunk; others may be served between steps."""

    def __init__(self, engine: Engine, tokens: array[int]) -> None:
        self._engine = engine
        self._tokens = tokens
        self._hashes = patterns.prefix_hashes(tokens)
        self._req = engine.request(tokens)
        scheduler_ = engine.scheduler
        on_device, self._prefix = scheduler_.admit(self._req)
        cached = len(self._prefix)
        self.served = Served(len(tokens), on_device, cached - on_device)
        if cached:
            engine.wait_for_loads()
            engine.contents.compare(
                self._hashes[:cached], self._prefix, scheduler_.state_slot(self._req)
            )

    def step(self) -> bool:
        """Compute the next chunk; whether it was the last one, and the request is done."""
        engine, scheduler_ = self._engine, self._engine.scheduler
        start = len(self._prefix)
        end = min(start + engine.pools.chunk, len(self._tokens))
        self._compute(start, end)
        if end == len(self._tokens):
            scheduler_.finish(self._req)
            return True
        scheduler_.stash(self._req)
        self._prefix = scheduler_.prefix_of_chunk(self._req)
        return False

    def _compute(self, start: int, end: int) -> None:
        contents, scheduler_, req = self._engine.contents, self._engine.scheduler, self._req
        slots = scheduler_.extend(req, start, end, self._prefix)
        contents.write_kv(self._hashes[start:end], slots)
        contents.write_state(self._hashes[end - 1 : end], scheduler_.state_slot(req))
        kept = scheduler_.kept_state(req)
        if kept:
            length, slot = kept
            contents.write_state(self._hashes[length - 1 : length], slot)
