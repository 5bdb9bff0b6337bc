"""Drive a real UnifiedRadixCache over real pools, and know which bytes must be found.

Every KV row and every Mamba state gets a pattern that is a function of the tokens
before it, so that a restored buffer can be compared with what a cold run would hold.
Transfers stay in flight until ``poll()``, as between two scheduler steps.
"""

import dataclasses
import inspect
import unittest
import zlib
from array import array
from typing import Iterator, Optional
from unittest import mock

import torch

from sglang.srt.configs.mamba_utils import (
    Mamba2CacheParams,
    Mamba2StateDType,
    Mamba2StateShape,
)
from sglang.srt.managers.schedule_batch import Req, ReqKvInfo, ScheduleBatch
from sglang.srt.mem_cache import memory_pool_host
from sglang.srt.mem_cache.allocation import alloc_req_slots
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    EvictParams,
    InitLoadBackParams,
    InsertParams,
    InsertResult,
    MatchPrefixParams,
    MatchResult,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.memory_pool import (
    HybridLinearKVPool,
    HybridReqToTokenPool,
    MHATokenToKVPool,
    ReqToTokenPool,
)
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.cache_action import (
    ReplaceWriteThroughOnNodeSplit,
)
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_cache.unified_tree_core import UnifiedTreeCore
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

FULL, SWA, MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA
EVERYTHING = 1 << 20

# The CPU runs these tests where something supplies the host copies that the CUDA
# build imports; without them there is nothing to test.
HAS_HOST_COPIES = hasattr(memory_pool_host, "transfer_kv_direct")
needs_host_copies = unittest.skipUnless(
    HAS_HOST_COPIES, "host copies need CUDA or a plugin that supplies them"
)

# What later changes of the cache settle; a test of what was before is skipped then.
TRANSFERS_OVERLAP = hasattr(ReplaceWriteThroughOnNodeSplit, "older_ack_ids")
SAVED_BEFORE_EVICTION = hasattr(UnifiedTreeCore, "_should_backup_before_eviction")
COMPONENTS_ARE_NOT_LOCKED = (
    "unlocked_ack_ids" in inspect.signature(UnifiedTreeCore.sanity_check).parameters
)
COMPONENTS_ARE_LOCKED = (
    hasattr(UnifiedTreeCore, "_should_backup_after_insert")
    and not COMPONENTS_ARE_NOT_LOCKED
)

FULL_LAYERS, MAMBA_LAYERS, SWA_LAYERS = (0, 1), (2, 3), (4,)
HEAD_DIM = 8


@dataclasses.dataclass(frozen=True)
class CacheConfig:
    """One way to set the cache up; sizes are slots (tokens, or Mamba states)."""

    components: tuple[ComponentType, ...] = (FULL, MAMBA)
    page_size: int = 1
    extra_buffer: bool = False
    layout: str = "page_first_direct"
    io_backend: str = "direct"
    write_policy: str = "write_through"
    threshold: int = 1
    kv_size: int = 512
    mamba_size: int = 12
    window: int = 8
    host_ratio: float = 4.0

    @property
    def has_mamba(self) -> bool:
        return MAMBA in self.components

    @property
    def has_swa(self) -> bool:
        return SWA in self.components

    @property
    def swa_layers(self) -> tuple[int, ...]:
        """The controller walks layers 0, 1, ..., so the ids must have no gap."""
        return SWA_LAYERS if self.has_mamba else MAMBA_LAYERS[:1]

    def __str__(self) -> str:
        names = "+".join(ct.name.title() for ct in self.components)
        buffer = "extra_buffer" if self.extra_buffer else "no_buffer"
        return (
            f"{names} page={self.page_size} {buffer} {self.layout}/{self.io_backend} "
            f"{self.write_policy}@{self.threshold}"
        )


def tokens_of(seed: int, length: int) -> list[int]:
    """``length`` token ids that differ from those of any other seed at each place."""
    return [seed * 100_000 + i + 1 for i in range(length)]


def _prefix_hashes(tokens: list[int]) -> torch.Tensor:
    """int64 [len(tokens)]: 16 bits that stand for the tokens up to each position."""
    crc, out = 0, []
    for token in tokens:
        crc = zlib.crc32(token.to_bytes(8, "little"), crc)
        out.append((crc & 0xFFFF) + 1)
    return torch.tensor(out, dtype=torch.int64)


def _pattern(hashes: torch.Tensor, plane: int, shape: tuple[int, ...]) -> torch.Tensor:
    """float32 [n, *shape]: a row per hash, no two planes (layer and kind) alike."""
    numel = torch.Size(shape).numel()
    # Below 2**24, so that float32 holds it exactly.
    rows = hashes[:, None] * 128 + plane * 8 + torch.arange(numel) % 8
    return rows.to(torch.float32).reshape(-1, *shape)


class UnifiedHiCacheHarness:
    def __init__(self, config: CacheConfig = CacheConfig()):
        self.config = config
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        server_args = ServerArgs(
            model_path="dummy",
            page_size=config.page_size,
            hicache_ratio=config.host_ratio,
            hicache_size=0,
            hicache_write_policy=config.write_policy,
            hicache_io_backend=config.io_backend,
            hicache_mem_layout=config.layout,
            mamba_radix_cache_strategy=(
                "extra_buffer" if config.extra_buffer else "no_buffer"
            ),
        )
        server_args._mamba_cache_chunk_size = config.page_size
        set_global_server_args_for_scheduler(server_args)
        self._build_pools()
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.req_to_token_pool,
            token_to_kv_pool_allocator=self.allocator,
            page_size=config.page_size,
            enable_mamba_extra_buffer=config.extra_buffer,
            sliding_window_size=config.window if config.has_swa else None,
            tree_components=config.components,
        )
        self.cache = UnifiedRadixCache(params)
        self.cache.init_hicache(server_args, params)
        self.cache.write_through_threshold = config.threshold
        self.core = self.cache.tree_core
        self.controller = self.cache.cache_controller
        self.host_pools = {
            FULL: self.cache.host_pool_group.get_pool(PoolName.KV),
            **{
                ct: self.cache.host_pool_group.get_pool(name)
                for ct, name in ((SWA, PoolName.SWA), (MAMBA, PoolName.MAMBA))
                if ct in config.components
            },
        }
        self._rid = 0

    def _build_pools(self) -> None:
        config = self.config
        kv_args = dict(head_num=1, head_dim=HEAD_DIM, device=self.device)
        if config.has_mamba:
            shape = Mamba2StateShape.create(
                tp_world_size=1,
                intermediate_size=16,
                n_groups=1,
                num_heads=2,
                head_dim=8,
                state_size=4,
                conv_kernel=3,
            )
            dtype = Mamba2StateDType(conv=torch.float32, temporal=torch.float32)
            self.req_to_token_pool = HybridReqToTokenPool(
                size=8,
                mamba_size=config.mamba_size,
                mamba_spec_state_size=0,
                max_context_len=config.kv_size,
                device=self.device,
                enable_memory_saver=False,
                cache_params=Mamba2CacheParams(
                    shape=shape, layers=list(MAMBA_LAYERS), dtype=dtype
                ),
                mamba_layer_ids=list(MAMBA_LAYERS),
                enable_mamba_extra_buffer=config.extra_buffer,
            )
        else:
            self.req_to_token_pool = ReqToTokenPool(
                size=8,
                max_context_len=config.kv_size,
                device=self.device,
                enable_memory_saver=False,
            )
        if config.has_swa:
            kv_pool = SWAKVPool(
                size=config.kv_size,
                size_swa=config.kv_size,
                page_size=config.page_size,
                dtype=torch.float32,
                swa_attention_layer_ids=list(config.swa_layers),
                full_attention_layer_ids=list(FULL_LAYERS),
                **kv_args,
            )
            self.allocator = SWATokenToKVPoolAllocator(
                config.kv_size,
                config.kv_size,
                config.page_size,
                torch.float32,
                self.device,
                kv_pool,
                need_sort=False,
            )
            self._planes = [(kv_pool.full_kv_pool, False), (kv_pool.swa_kv_pool, True)]
            return
        if config.has_mamba:
            kv_pool = HybridLinearKVPool(
                size=config.kv_size,
                dtype=torch.float32,
                page_size=config.page_size,
                full_attention_layer_ids=list(FULL_LAYERS),
                mamba_pool=self.req_to_token_pool.mamba_pool,
                **kv_args,
            )
            self._planes = [(kv_pool.full_kv_pool, False)]
        else:
            kv_pool = MHATokenToKVPool(
                size=config.kv_size,
                page_size=config.page_size,
                dtype=torch.float32,
                layer_num=len(FULL_LAYERS),
                enable_memory_saver=False,
                **kv_args,
            )
            self._planes = [(kv_pool, False)]
        if config.page_size == 1:
            self.allocator = TokenToKVPoolAllocator(
                config.kv_size, torch.float32, self.device, kv_pool, need_sort=False
            )
        else:
            self.allocator = PagedTokenToKVPoolAllocator(
                config.kv_size,
                config.page_size,
                torch.float32,
                self.device,
                kv_pool,
                need_sort=False,
            )

    # ---- Bytes ----

    def _kv_buffers(self, slots: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
        """Each KV buffer's plane number and its rows (a view is not promised)."""
        for plane, (buffer, rows) in enumerate(self._kv_places(slots)):
            yield plane, buffer[rows]

    def _kv_places(self, slots: torch.Tensor):
        for pool, is_swa in self._planes:
            rows = (
                self.allocator.translate_loc_from_full_to_swa(slots)
                if is_swa
                else slots
            )
            for layer in range(pool.layer_num):
                yield pool.k_buffer[layer], rows
                yield pool.v_buffer[layer], rows

    def write_kv(self, tokens: list[int], start: int, slots: torch.Tensor) -> None:
        """Compute the KV of ``tokens[start:]`` into the device slots."""
        hashes = _prefix_hashes(tokens)[start:]
        for plane, (buffer, rows) in enumerate(self._kv_places(slots)):
            buffer[rows] = _pattern(hashes, plane, (1, HEAD_DIM)).to(self.device)

    def wrong_kv_planes(
        self, tokens: list[int], slots: torch.Tensor, first: int = 0, swa: bool = True
    ) -> list[int]:
        """Planes whose rows are not the KV of ``tokens[first:]``."""
        hashes = _prefix_hashes(tokens)[first:]
        wrong = []
        for plane, rows in self._kv_buffers(slots[first:]):
            if plane >= 2 * len(FULL_LAYERS) and not swa:
                continue
            if not torch.equal(rows.cpu(), _pattern(hashes, plane, (1, HEAD_DIM))):
                wrong.append(plane)
        return wrong

    def _state_buffers(self) -> list[torch.Tensor]:
        """Mamba buffers of shape [layers, slots, *state]."""
        state = self.req_to_token_pool.mamba_pool.mamba_cache
        return [*state.conv, state.temporal]

    def _state_of(self, tokens: list[int], buffer: int, layer: int) -> torch.Tensor:
        shape = tuple(self._state_buffers()[buffer].shape[2:])
        return _pattern(_prefix_hashes(tokens)[-1:], buffer * 8 + layer, shape)[0]

    def write_state(self, tokens: list[int], slot: torch.Tensor) -> None:
        """Compute the Mamba state after ``tokens`` into one device slot."""
        for i, buffer in enumerate(self._state_buffers()):
            for layer in range(len(MAMBA_LAYERS)):
                buffer[layer, int(slot)] = self._state_of(tokens, i, layer).to(
                    self.device
                )

    def state_is(self, tokens: list[int], slot: torch.Tensor) -> bool:
        return all(
            torch.equal(
                buffer[layer, int(slot)].cpu(), self._state_of(tokens, i, layer)
            )
            for i, buffer in enumerate(self._state_buffers())
            for layer in range(len(MAMBA_LAYERS))
        )

    def host_state_is(self, tokens: list[int], slot: torch.Tensor) -> bool:
        pool = self.host_pools[MAMBA]
        return all(
            torch.equal(buffer[int(slot), layer, 0], self._state_of(tokens, i, layer))
            for i, buffer in enumerate([*pool.conv_buffer, pool.temporal_buffer])
            for layer in range(len(MAMBA_LAYERS))
        )

    @property
    def state_bytes(self) -> int:
        """Bytes of one Mamba state over all layers."""
        return sum(
            buffer[0, 0].numel() * buffer.element_size() * len(MAMBA_LAYERS)
            for buffer in self._state_buffers()
        )

    # ---- Cache operations ----

    def _alloc_kv(self, count: int) -> torch.Tensor:
        """Device slots for ``count`` tokens that start a page; int64 [count]."""
        page = self.config.page_size
        pages = -(-count // page) * page
        if self.config.has_swa and page > 1:
            # Its own alloc() is for pages of one token.
            slots = self.allocator.full_attn_allocator.alloc(pages)
            swa_slots = self.allocator.swa_attn_allocator.alloc(pages)
            self.allocator.set_full_to_swa_mapping(slots, swa_slots)
        else:
            slots = self.allocator.alloc(pages)
        assert slots is not None, "no room for the test's KV on the device"
        return slots[:count]

    def insert(self, tokens: list[int], chunked: bool = False) -> InsertResult:
        """Insert freshly computed KV, and the state at its end, as a request does."""
        slots = self._alloc_kv(len(tokens))
        self.write_kv(tokens, 0, slots)
        state = None
        if self.config.has_mamba:
            state = self.req_to_token_pool.mamba_allocator.alloc(1)
            assert state is not None, "no room for the test's state on the device"
            self.write_state(tokens, state)
        result = self.cache.insert(
            InsertParams(
                key=RadixKey(array("q", tokens)),
                value=slots,
                mamba_value=state,
                chunked=chunked,
            )
        )
        if state is not None and result.mamba_exist:
            self.req_to_token_pool.mamba_allocator.free(state)
        return result

    def match(self, tokens: list[int]) -> MatchResult:
        return self.cache.match_prefix(
            MatchPrefixParams(key=RadixKey(array("q", tokens)))
        )

    def node(self, tokens: list[int]):
        """The node whose path spells exactly ``tokens``; None if there is none."""
        node, key = self.core.root_node, RadixKey(array("q", tokens))
        while len(key):
            node = node.children.get(key.child_key(self.config.page_size))
            if node is None or len(node.key) > len(key):
                return None
            if node.key.match(key, page_size=self.config.page_size) < len(node.key):
                return None
            key = key[len(node.key) :]
        return node

    def poll(self) -> None:
        """Acknowledge every transfer that has finished."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.cache.check_hicache_events()

    def evict_device(self) -> None:
        """Drop from the device all that is not locked."""
        self.cache.evict(
            EvictParams(
                num_tokens=EVERYTHING, swa_num_tokens=EVERYTHING, mamba_num=EVERYTHING
            )
        )

    def evict_states(self, count: int = EVERYTHING) -> None:
        """Drop Mamba states from the device; Full KV goes with those of leaves."""
        self.cache.evict(EvictParams(mamba_num=count))

    def evict_all(self) -> None:
        self.poll()
        self.evict_device()
        for ct in reversed(self.config.components):
            self.cache.evict_host(EVERYTHING, ct)

    def load_back(self, tokens: list[int]) -> MatchResult:
        """Bring what the host holds of ``tokens`` to the device; match it again."""
        matched = self.match(tokens)
        self.cache.load_back(matched.best_match_node)
        self.cache.ready_to_load_host_cache()
        self.poll()
        return self.match(tokens)

    # ---- A request in the scheduler's order ----

    def serve(self, tokens: list[int], chunk: Optional[int] = None) -> int:
        """Prefill one request in chunks and finish it; return its cached tokens.

        What the request reuses is compared with what its tokens should have left.
        """
        req, cached = self.start(tokens)
        chunk = chunk or len(tokens)
        while True:
            end = min(len(req.prefix_indices) + chunk, len(tokens))
            self._forward(req, tokens, end)
            if end == len(tokens):
                break
            self.cache.cache_unfinished_req(req, chunked=True)
            req.init_next_round_input()
        release_kv_cache(req, self.cache)
        return cached

    def start(self, tokens: list[int]) -> tuple[Req, int]:
        """Match, lock, load back and check what a new request reuses."""
        cache, pool = self.cache, self.req_to_token_pool
        self._rid += 1
        req = Req(
            rid=str(self._rid),
            origin_input_text="",
            origin_input_ids=array("q", tokens),
            sampling_params=SamplingParams(max_new_tokens=1),
        )
        self.poll()
        if self.config.has_mamba:
            pool.mamba_allocator.alloc_group_begin(1)
        req.init_next_round_input(cache)
        admission = cache.inc_lock_ref(req.last_node)
        admitted_node = req.last_node
        if req.needs_host_load_back():
            loaded, req.last_node = cache.init_load_back(
                InitLoadBackParams(
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
        cache.dec_lock_ref(admitted_node, admission.to_dec_params())
        if self.config.has_mamba:
            pool.mamba_allocator.alloc_group_end()
        cache.ready_to_load_host_cache()
        cached = len(req.prefix_indices)
        if cached:
            first = max(0, cached - self.config.window) if self.config.has_swa else 0
            wrong = self.wrong_kv_planes(tokens[:cached], req.prefix_indices, swa=False)
            wrong += self.wrong_kv_planes(tokens[:cached], req.prefix_indices, first)
            assert not wrong, f"reused KV differs in planes {sorted(set(wrong))}"
        alloc_req_slots(pool, [req], cache)
        if self.config.has_mamba and cached:
            if req.mamba_cow_src_index is not None:
                pool.mamba_pool.copy_from(
                    req.mamba_cow_src_index.view(-1), req.mamba_pool_idx.view(-1)
                )
            assert self.state_is(
                tokens[:cached], req.mamba_pool_idx
            ), f"reused state is not the one after {cached} tokens"
        return req, cached

    def _forward(self, req: Req, tokens: list[int], end: int) -> None:
        """Allocate and compute ``tokens[len(prefix):end]``, with the states."""
        config, pool = self.config, self.req_to_token_pool
        start = len(req.prefix_indices)
        req.set_extend_range(start, end)
        pages = -(-(end - start) // config.page_size) * config.page_size
        available = self.allocator.available_size()
        if available < pages:
            self.cache.evict(
                EvictParams(
                    num_tokens=pages, swa_num_tokens=pages if config.has_swa else 0
                )
            )
        slots = self._alloc_kv(end - start)
        pool.write((req.req_pool_idx, slice(0, start)), req.prefix_indices)
        pool.write((req.req_pool_idx, slice(start, end)), slots)
        req.kv = ReqKvInfo(kv_allocated_len=end, swa_evicted_seqlen=0)
        req.kv_committed_len = end
        self.write_kv(tokens[:end], start, slots)
        if not config.has_mamba:
            return
        self.write_state(tokens[:end], req.mamba_pool_idx)
        if config.extra_buffer:
            stub = mock.Mock(req_to_token_pool=pool)
            entry = ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend(
                stub, req
            )
            if entry.track_mask:
                self.write_state(
                    tokens[: req.mamba_last_track_seqlen],
                    torch.tensor(entry.track_index),
                )

    # ---- Accounting ----

    def held(self, ct: ComponentType, host: bool) -> torch.Tensor:
        """Slots of one component that the tree holds on one tier; int64 [n]."""
        values = []
        for node in self.core._collect_all_nodes():
            if node is self.core.root_node:
                continue
            cd = node.component_data[ct]
            value = cd.host_value if host else cd.value
            if value is not None:
                values.append(value.cpu().to(torch.int64))
        return torch.cat(values) if values else torch.empty(0, dtype=torch.int64)

    def host_used(self) -> dict[ComponentType, int]:
        return {
            ct: pool.size - pool.available_size()
            for ct, pool in self.host_pools.items()
        }

    def device_available(self) -> dict[ComponentType, int]:
        sizes = {FULL: self.allocator.available_size()}
        if self.config.has_swa:
            sizes[FULL] = self.allocator.full_available_size()
            sizes[SWA] = self.allocator.swa_available_size()
        if self.config.has_mamba:
            sizes[MAMBA] = self.req_to_token_pool.mamba_allocator.available_size()
        return sizes

    def check(self) -> None:
        """The tree's own invariants, and no slot lost or held twice in any pool."""
        self.cache.sanity_check()
        sizes = {FULL: self.config.kv_size, SWA: self.config.kv_size}
        sizes[MAMBA] = self.config.mamba_size
        available, used = self.device_available(), self.host_used()
        for ct in self.config.components:
            for host in (False, True):
                slots = self.held(ct, host)
                where = f"{ct} on {'host' if host else 'device'}"
                assert len(slots) == len(slots.unique()), f"{where}: slot held twice"
                expected = used[ct] if host else sizes[ct] - available[ct]
                assert len(slots) == expected, (
                    f"{where}: the tree holds {len(slots)} slots, "
                    f"the pool has given out {expected}"
                )
        for ct, pool in self.host_pools.items():
            free = torch.cat([pool.free_slots, *pool.release_slots])
            assert len(free) == len(free.unique()), f"{ct} host: slot freed twice"

    def recorded_backups(self):
        """Context manager: a mock that saw every device-to-host copy, which still ran."""
        group = self.cache.host_pool_group
        return mock.patch.object(
            group,
            "backup_from_device_all_layer",
            wraps=group.backup_from_device_all_layer,
        )


def copied_slots(recorded: mock.Mock) -> list[dict[str, int]]:
    """Slots that each recorded backup copied, by pool name; pools with none left out."""
    backups = []
    for call in recorded.call_args_list:
        counts = {"kv": len(call.args[1])}
        for transfer in call.kwargs.get("pool_transfers") or []:
            counts[transfer.name.value] = len(transfer.host_indices)
        backups.append({name: n for name, n in counts.items() if n})
    return backups
