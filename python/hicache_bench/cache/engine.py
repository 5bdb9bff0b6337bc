"""One real UnifiedRadixCache with real device and host pools, served requests without a model.

The order of the calls is that of sglang's scheduler: match, lock, load back, allocate, prefill in
chunks, cache the unfinished and then the finished request, poll acknowledgements. Where the model
would compute, `patterns` write the bytes that a prefix must have, and every byte that a request
reuses is compared with them.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from hicache_bench.cache import patterns
from hicache_bench.cache.sizes import Pools

# Small dimensions; what is copied is counted in slots and bytes, and stated for published models in
# `shapes`. The controller walks layers 0, 1, ..., so their numbers must leave no gap.
_FULL_LAYERS, _MAMBA_LAYERS = [0, 1], [2, 3]
_HEAD_DIM = 8


class WrongBytesError(Exception):
    """What a request was given back is not what its prefix should have left."""


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
        self.compared = 0
        """Reused prefixes whose bytes were compared."""
        self._served = 0
        args = self._server_args()
        self._build_pools()
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

    def _build_pools(self) -> None:
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
            head_dim=_HEAD_DIM,
            full_attention_layer_ids=_FULL_LAYERS,
            device="cpu",
            mamba_pool=self.req_pool.mamba_pool,
        )
        self._kv = kv_pool.full_kv_pool
        self.allocator = api.PagedTokenToKVPoolAllocator(
            pools.device_tokens, pools.page, torch.bfloat16, "cpu", kv_pool, need_sort=False
        )

    # Bytes

    def _kv_planes(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Number and buffer [slots, ...] of each layer's keys and of its values."""
        for layer in range(len(_FULL_LAYERS)):
            yield 2 * layer, self._kv.k_buffer[layer]
            yield 2 * layer + 1, self._kv.v_buffer[layer]

    def _state_planes(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Number and buffer [slots, ...] of each layer's part of each kind of state."""
        state = self.req_pool.mamba_pool.mamba_cache
        for kind, buffer in enumerate([*state.conv, state.temporal]):
            for layer in range(len(_MAMBA_LAYERS)):
                yield 1000 + 100 * kind + layer, buffer[layer]

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's Full KV, all layers."""
        return sum(b[0].numel() * b.element_size() for _, b in self._kv_planes())

    @property
    def state_bytes(self) -> int:
        """Bytes of one Mamba state, all layers."""
        return sum(b[0].numel() * b.element_size() for _, b in self._state_planes())

    def _write_state(self, hash_: torch.Tensor, slot: int) -> None:
        for plane, buffer in self._state_planes():
            buffer[slot] = patterns.rows(hash_, plane, buffer)[0]

    def _compare(self, hashes: torch.Tensor, slots: torch.Tensor, state: int) -> None:
        """Compare reused KV (int64 slots [n]) and the reused state with their prefix's bytes."""
        for plane, buffer in self._kv_planes():
            if not patterns.same_bytes(buffer[slots], patterns.rows(hashes, plane, buffer)):
                raise WrongBytesError(f"reused KV of {len(slots)} tokens differs in plane {plane}")
        for plane, buffer in self._state_planes():
            if not patterns.same_bytes(buffer[state], patterns.rows(hashes[-1:], plane, buffer)[0]):
                raise WrongBytesError(
                    f"the reused state is not the one after {len(slots)} tokens (plane {plane})"
                )
        self.compared += 1

    # Requests

    def serve(self, tokens: array[int]) -> Served:
        """Prefill one prompt in chunks, finish it, poll. Raises WrongBytesError."""
        hashes = patterns.prefix_hashes(tokens)
        req, served = self._start(tokens, hashes)
        while True:
            end = min(len(req.prefix_indices) + self.pools.chunk, len(tokens))
            self._prefill(req, hashes, end)
            if end == len(tokens):
                break
            self.cache.cache_unfinished_req(req, chunked=True)
            req.init_next_round_input()
            self.cache.check_hicache_events()
        self.api.release_kv_cache(req, self.cache)
        self.cache.check_hicache_events()
        return served

    def _start(self, tokens: array[int], hashes: torch.Tensor) -> tuple[Any, Served]:
        """Match, lock, load back, take the state over, and check what the request reuses."""
        cache, pool, api = self.cache, self.req_pool, self.api
        self._served += 1
        req = api.Req(
            rid=str(self._served),
            origin_input_text="",
            origin_input_ids=tokens,
            sampling_params=api.SamplingParams(max_new_tokens=1),
        )
        cache.check_hicache_events()
        pool.mamba_allocator.alloc_group_begin(1)
        req.init_next_round_input(cache)
        on_device = len(req.prefix_indices)
        admitted, admission = req.last_node, cache.inc_lock_ref(req.last_node)
        if req.needs_host_load_back():
            loaded, req.last_node = cache.init_load_back(
                api.InitLoadBackParams(
                    best_match_node=req.best_match_node,
                    host_hit_length=req.host_hit_length,
                    req=req,
                )
            )
            req.prefix_indices = torch.cat([req.prefix_indices, loaded])
            req.cache_protected_len = len(req.prefix_indices)
        lock = cache.inc_lock_ref(req.last_node)
        req.swa_uuid_for_lock = lock.swa_uuid_for_lock
        req.skip_lock_node_ids = lock.skip_lock_node_ids
        cache.dec_lock_ref(admitted, admission.to_dec_params())
        pool.mamba_allocator.alloc_group_end()
        cache.ready_to_load_host_cache()
        api.alloc_req_slots(pool, [req], cache)
        cached = len(req.prefix_indices)
        if cached:
            if req.mamba_cow_src_index is not None:
                pool.mamba_pool.copy_from(
                    req.mamba_cow_src_index.view(-1), req.mamba_pool_idx.view(-1)
                )
            self._compare(hashes[:cached], req.prefix_indices, int(req.mamba_pool_idx))
        return req, Served(len(tokens), on_device, cached - on_device)

    def _prefill(self, req: Any, hashes: torch.Tensor, end: int) -> None:
        """Allocate and compute the tokens from the end of the prefix to `end`."""
        api, pool, page = self.api, self.req_pool, self.pools.page
        start = len(req.prefix_indices)
        req.set_extend_range(start, end)
        room = -(-(end - start) // page) * page
        api.evict_from_tree_cache(self.cache, room + page)
        slots = self.allocator.alloc(room)
        if slots is None:
            raise RuntimeError(
                f"no {room} slots on the device: {self.cache.available_and_evictable_str()}"
            )
        slots = slots[: end - start]
        pool.write((req.req_pool_idx, slice(0, start)), req.prefix_indices)
        pool.write((req.req_pool_idx, slice(start, end)), slots)
        req.kv = api.ReqKvInfo(kv_allocated_len=end, swa_evicted_seqlen=0)
        req.kv_committed_len = end
        for plane, buffer in self._kv_planes():
            buffer[slots] = patterns.rows(hashes[start:end], plane, buffer)
        self._write_state(hashes[end - 1 : end], int(req.mamba_pool_idx))
        batch = SimpleNamespace(req_to_token_pool=pool, tree_cache=self.cache)
        entry = api.ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(batch, req)
        if entry.track_mask:
            kept = req.mamba_last_track_seqlen
            self._write_state(hashes[kept - 1 : kept], int(entry.track_index))

    # What the tree holds

    def on_device(self, tokens: array[int]) -> tuple[int, bool]:
        """Tokens of the path of `tokens` whose KV is on the device, and whether its state is.

        The tree is looked at, not asked: a match would change the order of eviction.
        """
        api = self.api
        node, found = self.cache.tree_core.root_node, 0
        key = api.RadixKey(tokens)
        while len(key):
            child = node.children.get(key.child_key(self.pools.page))
            shared = 0 if child is None else child.key.match(key, page_size=self.pools.page)
            if child is None or child.component_data[api.ComponentType.FULL].value is None:
                return found, False
            found += shared
            if shared < len(child.key):
                return found, False
            node, key = child, key[shared:]
        return found, node.component_data[api.ComponentType.MAMBA].value is not None

    def host_used(self) -> dict[str, int]:
        """Host slots in use, by pool."""
        return {
            "kv": self.host_kv.size - self.host_kv.available_size(),
            "mamba": self.host_states.size - self.host_states.available_size(),
        }

    def nodes(self) -> int:
        """Nodes of the tree, the root left out."""
        return len(self.cache.tree_core._collect_all_nodes()) - 1
