"""All Mamba slots are taken: wait for transfers in flight, then do without a slot.

A transfer in flight locks the state that it copies until it is acknowledged, so that
eviction finds nothing although the state is free as soon as the copy is done. Slots
of running requests stay taken, whatever one waits for. The same for a load-back is
the subject of test_unified_load_back_called_off.py.
"""

import unittest
from array import array
from types import SimpleNamespace
from unittest import mock

import torch
from unified_hicache_harness import (
    FULL,
    MAMBA,
    SWA,
    CacheConfig,
    UnifiedHiCacheHarness,
    needs_host_copies,
    tokens_of,
)

from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.allocation import alloc_req_slots
from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.mem_cache.unified_cache.components import mamba_component
from sglang.srt.runtime_context import get_server_args
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=20, suite="base-a-test-cpu")
register_cuda_ci(est_time=20, suite="base-b-test-1-gpu-small")

PREFIX = tokens_of(1, 16)
PROMPT = tokens_of(2, 24)
NEIGHBOUR = tokens_of(3, 8)
FILLERS = [tokens_of(seed, 8) for seed in range(10, 20)]


def configs(mamba_size, **kwargs):
    """Caches of each kind; ``mamba_size`` is a function of a request's own slots."""
    for components in ((FULL, MAMBA), (FULL, SWA, MAMBA)):
        for page_size, extra_buffer in ((1, False), (1, True), (4, True)):
            yield CacheConfig(
                components=components,
                page_size=page_size,
                extra_buffer=extra_buffer,
                mamba_size=mamba_size(own_slots(extra_buffer)),
                **kwargs,
            )


def own_slots(extra_buffer):
    """A request runs on one state, and tracks in two more with the extra buffer."""
    return 3 if extra_buffer else 1


def start(harness, tokens):
    """Start a request; what is in flight stays in flight, as within a step."""
    with mock.patch.object(harness, "poll"):
        return harness.start(tokens)


def new_request(tokens):
    return Req(
        rid="",
        origin_input_text="",
        origin_input_ids=array("q", tokens),
        sampling_params=SamplingParams(max_new_tokens=1),
    )


def run(harness, tokens):
    """A request that goes on running, and so keeps its slots."""
    req, _ = start(harness, tokens)
    harness._forward(req, tokens, len(tokens))
    return req


def locked_by_transfers(harness, prompts, load_back=False):
    """Cache the prompts; a transfer of each is in flight when this returns."""
    for tokens in prompts:
        harness.insert(tokens)
    if load_back:
        harness.poll()
        harness.evict_device()
        for tokens in prompts:
            harness.cache.load_back(harness.match(tokens).best_match_node)
        harness.cache.ready_to_load_host_cache()
    locks = [harness.node(tokens).component_data[MAMBA] for tokens in prompts]
    assert all(cd.value is not None and cd.lock_ref == 1 for cd in locks)


def on_device(harness, prompts):
    """Which prompts' states are on the device."""
    nodes = [harness.node(tokens) for tokens in prompts]
    return [node.component_data[MAMBA].value is not None for node in nodes]


def no_waiting(harness):
    """Context manager: a mock in place of the wait, which must not be called."""
    return mock.patch.object(
        harness.cache, "wait_for_transfers", create=True, return_value=False
    )


def account(harness, *reqs):
    """No slot is lost or held twice while requests run."""
    pool = harness.req_to_token_pool
    states, tokens = [harness.held(MAMBA, False)], [harness.held(FULL, False)]
    page = harness.config.page_size
    for req in reqs:
        states.append(req.mamba_pool_idx.view(1).cpu())
        if req.mamba_ping_pong_track_buffer is not None:
            states.append(req.mamba_ping_pong_track_buffer.cpu())
        row = pool.req_to_token[req.req_pool_idx].cpu().to(torch.int64)
        pages = row[req.cache_protected_len : req.kv.kv_allocated_len] // page
        tokens.append(pages.unique().repeat_interleave(page))
        tokens[-1] = tokens[-1] * page + torch.arange(len(tokens[-1])) % page
    sizes = {MAMBA: harness.config.mamba_size, FULL: harness.config.kv_size}
    for ct, slots in ((MAMBA, torch.cat(states)), (FULL, torch.cat(tokens))):
        assert len(slots) == len(slots.unique()), f"{ct}: slot held twice"
        used = sizes[ct] - harness.device_available()[ct]
        assert len(slots) == used, f"{ct}: {len(slots)} slots held, {used} given out"
    harness.cache.sanity_check()


@needs_host_copies
class TestWaitForTransfers(CustomTestCase):
    def test_nothing_in_flight(self):
        harness = UnifiedHiCacheHarness()
        self.assertIs(harness.cache.wait_for_transfers(), False)
        harness.insert(PREFIX)
        harness.poll()
        self.assertIs(harness.cache.wait_for_transfers(), False)
        # Caches that know no transfers, with or without a host pool.
        self.assertIs(BasePrefixCache.wait_for_transfers(harness.cache), False)
        harness.cache.cache_controller = None
        self.assertIs(harness.cache.wait_for_transfers(), False)

    def test_unlocks_what_backups_and_load_backs_lock(self):
        for load_back in (False, True):
            with self.subTest(load_back=load_back):
                harness = UnifiedHiCacheHarness()
                locked_by_transfers(harness, FILLERS[:2], load_back)
                self.assertIs(harness.cache.wait_for_transfers(), True)
                self.assertEqual(harness.core.mamba_protected_size(), 0)
                self.assertEqual(harness.cache.ongoing_write_through, {})
                self.assertEqual(harness.cache.ongoing_load_back, {})
                self.assertIs(harness.cache.wait_for_transfers(), False)
                harness.check()


@needs_host_copies
class TestCopyOnWrite(CustomTestCase):
    """A request needs a slot to copy the state to that its prefix ends with."""

    def test_waits_for_transfers(self):
        for policy, load_back in (
            ("write_through", False),
            ("write_through", True),
            ("write_back", True),
        ):
            # A neighbour's slots, the new request's own, and the state of PREFIX.
            for config in configs(lambda own: 2 * own + 1, write_policy=policy):
                with self.subTest(config=str(config), load_back=load_back):
                    self.check_wait(UnifiedHiCacheHarness(config), load_back)

    def check_wait(self, harness, load_back):
        fillers = FILLERS[: own_slots(harness.config.extra_buffer)]
        neighbour = run(harness, NEIGHBOUR)
        locked_by_transfers(harness, [*fillers, PREFIX], load_back)
        self.assertEqual(harness.device_available()[MAMBA], 0)
        req, cached = start(harness, PREFIX + [7])
        self.assertEqual(cached, len(PREFIX))
        self.assertEqual(on_device(harness, [*fillers, PREFIX])[-1], True)
        self.assertEqual(sum(on_device(harness, fillers)), 0)
        harness._forward(req, PREFIX + [7], len(PREFIX) + 1)
        account(harness, neighbour, req)
        release_kv_cache(req, harness.cache)
        release_kv_cache(neighbour, harness.cache)
        harness.check()
        for tokens in (fillers[0], PREFIX):
            self.assertEqual(harness.serve(tokens + [8]), len(tokens))
        harness.check()

    def test_no_match_where_requests_have_all_other_slots(self):
        for config in configs(lambda own: own + 1):
            with self.subTest(config=str(config)):
                harness = UnifiedHiCacheHarness(config)
                neighbour = run(harness, NEIGHBOUR)
                harness.insert(PREFIX)
                harness.poll()
                req = new_request(PREFIX + [7])
                req.init_next_round_input(harness.cache)
                self.check_no_match(harness, req)
                account(harness, neighbour)
                # The state is still there for the next one, or this one later on.
                release_kv_cache(neighbour, harness.cache)
                harness.check()
                self.assertEqual(harness.match(PREFIX).best_match_node, self.node.id)
                req.init_next_round_input(harness.cache)
                self.assertEqual(len(req.prefix_indices), len(PREFIX))
                self.assertIsNotNone(req.mamba_cow_src_index)

    def check_no_match(self, harness, req):
        """What a request has whose prompt nobody has sent before."""
        self.node = harness.node(PREFIX)
        root = harness.core.root_node.id
        self.assertEqual((len(req.prefix_indices), req.cache_protected_len), (0, 0))
        self.assertEqual(
            {req.last_node, req.best_match_node, req.last_host_node}, {root}
        )
        self.assertFalse(req.needs_host_load_back())
        self.assertIsNone(req.mamba_pool_idx)
        self.assertIsNone(req.mamba_cow_src_index)
        for ct in harness.config.components:
            self.assertEqual(self.node.component_data[ct].lock_ref, 0)

    def test_request_without_a_match_takes_the_slot_of_its_prefix(self):
        for config in configs(lambda own: own + 1):
            if config.extra_buffer:
                continue
            with self.subTest(config=str(config)):
                harness = UnifiedHiCacheHarness(config)
                neighbour = run(harness, NEIGHBOUR)
                harness.insert(PREFIX)
                harness.poll()
                req, cached = harness.start(PREFIX + [7])
                self.assertEqual(cached, 0)
                self.assertTrue(req.mamba_needs_clear)
                self.assertEqual(on_device(harness, [PREFIX]), [False])
                harness._forward(req, PREFIX + [7], len(PREFIX) + 1)
                account(harness, neighbour, req)
                release_kv_cache(req, harness.cache)
                release_kv_cache(neighbour, harness.cache)
                harness.check()
                self.assertEqual(harness.serve(PREFIX + [8]), len(PREFIX))
                harness.check()

    def test_no_wait_where_a_slot_is_free_or_can_be_evicted(self):
        for free in (0, 1):
            with self.subTest(free=free):
                harness = UnifiedHiCacheHarness(CacheConfig(mamba_size=3 + free))
                for tokens in (PREFIX, FILLERS[0]):
                    harness.insert(tokens)
                harness.poll()
                harness.insert(FILLERS[1])
                with no_waiting(harness) as wait:
                    req, cached = start(harness, PREFIX + [7])
                self.assertEqual(cached, len(PREFIX))
                wait.assert_not_called()
                self.assertEqual(len(harness.cache.ongoing_write_through), 1)
                self.assertEqual(on_device(harness, FILLERS[1:2]), [True])


@needs_host_copies
class TestUnfinishedRequest(CustomTestCase):
    """A request leaves a state behind at the end of each chunk of its prompt."""

    def chunk(self, harness, req, end, chunked=True):
        req.init_next_round_input()
        harness._forward(req, PROMPT, end)
        harness.cache.cache_unfinished_req(req, chunked=chunked)

    def test_waits_for_transfers(self):
        for load_back in (False, True):
            for config in configs(lambda own: own + 2):
                with self.subTest(config=str(config), load_back=load_back):
                    harness = UnifiedHiCacheHarness(config)
                    req, _ = harness.start(PROMPT)
                    harness._forward(req, PROMPT, 8)
                    locked_by_transfers(harness, FILLERS[:2], load_back)
                    self.assertEqual(harness.device_available()[MAMBA], 0)
                    harness.cache.cache_unfinished_req(req, chunked=True)
                    state = harness.node(PROMPT[:8]).component_data[MAMBA].value
                    self.assertTrue(harness.state_is(PROMPT[:8], state))
                    self.assertEqual(req.cache_protected_len, 8)
                    self.assertEqual(on_device(harness, FILLERS[:2]), [False, True])
                    account(harness, req)
                    release_kv_cache(req, harness.cache)
                    harness.check()
                    self.assertEqual(harness.serve(FILLERS[0] + [7]), 8)
                    harness.check()

    def test_is_skipped_where_requests_have_all_slots(self):
        # Two requests' slots, and one for the state after the first chunk.
        for config in configs(lambda own: 2 * own + 1):
            with self.subTest(config=str(config)):
                self.check_skip(UnifiedHiCacheHarness(config))

    def check_skip(self, harness):
        pool = harness.req_to_token_pool
        neighbour = run(harness, NEIGHBOUR)
        req, _ = harness.start(PROMPT)
        self.chunk(harness, req, 8)
        node, state = harness.node(PROMPT[:8]), req.mamba_pool_idx
        self.assertEqual(harness.device_available()[MAMBA], 0)
        self.chunk(harness, req, 16)
        # As before the chunk, but for the KV that the next one starts from.
        row = pool.req_to_token[req.req_pool_idx, :16].to(torch.int64)
        self.assertEqual(req.prefix_indices.dtype, torch.int64)
        self.assertTrue(torch.equal(req.prefix_indices, row))
        self.assertIsNone(harness.node(PROMPT[:16]))
        self.assertEqual((req.last_node, req.cache_protected_len), (node.id, 8))
        self.assertEqual(node.component_data[MAMBA].lock_ref, 1)
        self.assertEqual(node.component_data[FULL].lock_ref, 1)
        self.assertIs(req.mamba_pool_idx, state)
        account(harness, neighbour, req)
        # Once there is a slot, the next chunk leaves its state behind as ever.
        release_kv_cache(neighbour, harness.cache)
        self.chunk(harness, req, 24, chunked=False)
        state = harness.node(PROMPT).component_data[MAMBA].value
        self.assertTrue(harness.state_is(PROMPT, state))
        account(harness, req)
        release_kv_cache(req, harness.cache)
        harness.check()
        self.assertEqual(harness.serve(PROMPT + [7]), len(PROMPT))
        harness.check()

    def test_request_can_finish_or_be_retracted_after_a_skip(self):
        for is_insert in (True, False):
            for config in configs(lambda own: 2 * own):
                with self.subTest(config=str(config), is_insert=is_insert):
                    harness = UnifiedHiCacheHarness(config)
                    neighbour = run(harness, NEIGHBOUR)
                    req, _ = harness.start(PROMPT)
                    self.chunk(harness, req, len(PROMPT), chunked=False)
                    self.assertEqual(req.cache_protected_len, 0)
                    account(harness, neighbour, req)
                    release_kv_cache(req, harness.cache, is_insert=is_insert)
                    release_kv_cache(neighbour, harness.cache)
                    harness.check()
                    # It keeps the state that it ran on, not one that it tracked.
                    keeps = is_insert and not config.extra_buffer
                    cached = harness.serve(PROMPT + [7])
                    self.assertEqual(cached, len(PROMPT) if keeps else 0)
                    harness.check()

    def test_no_wait_where_a_slot_is_free_or_can_be_evicted(self):
        for free in (0, 1):
            for config in configs(lambda own: own + 2 + free):
                with self.subTest(config=str(config), free=free):
                    harness = UnifiedHiCacheHarness(config)
                    req, _ = harness.start(PROMPT)
                    harness._forward(req, PROMPT, 8)
                    harness.insert(FILLERS[0])
                    harness.poll()
                    harness.insert(FILLERS[1])
                    evict = mock.patch.object(
                        harness.cache, "evict", side_effect=harness.cache.evict
                    )
                    with no_waiting(harness) as wait, evict as evict:
                        harness.cache.cache_unfinished_req(req, chunked=True)
                    wait.assert_not_called()
                    self.assertEqual(evict.call_count, 1 - free)
                    self.assertEqual(on_device(harness, FILLERS[:2]), [free == 1, True])
                    self.assertEqual(req.cache_protected_len, 8)


class Int8Harness(UnifiedHiCacheHarness):
    """Cached states are in a pool of their own, as int8, which excludes HiCache."""

    def __init__(self, config, checkpoints):
        self.checkpoints = checkpoints
        super().__init__(config)
        self.cache.cache_controller = None
        self.core.enable_hicache = False
        self.pool = self.req_to_token_pool.mamba_ckpt_pool

    def _build_pools(self):
        server_args = get_server_args()
        server_args.enable_int8_mamba_checkpoint = True
        server_args.int8_mamba_ckpt_size = self.checkpoints
        super()._build_pools()

    def start(self, tokens):
        active = self.req_to_token_pool.mamba_pool

        def load(source, target):
            self.pool.load_to_active(active, source, target)

        with mock.patch.object(active, "copy_from", load):
            return super().start(tokens)

    def state_is(self, tokens, slot):
        """int8 keeps a state to within half of one step out of 127."""
        return all(
            torch.allclose(
                buffer[layer, int(slot)].cpu(),
                self._state_of(tokens, i, layer),
                rtol=1 / 127,
            )
            for i, buffer in enumerate(self._state_buffers())
            for layer in range(buffer.shape[0])
        )

    def check_slots(self, *reqs):
        """The tree has the checkpoints that are taken, the requests the active slots."""
        held = self.held(MAMBA, False)
        assert len(held) == self.checkpoints - self.pool.available_size()
        own = len(reqs) * own_slots(self.config.extra_buffer)
        available = self.req_to_token_pool.mamba_allocator.available_size()
        assert available == self.config.mamba_size - own, (available, own)


@needs_host_copies
class TestInt8Checkpoint(CustomTestCase):
    """A running request locks the only checkpoint that there is room for."""

    def locked(self, extra_buffer, mamba_size=12):
        config = CacheConfig(extra_buffer=extra_buffer, mamba_size=mamba_size)
        harness = Int8Harness(config, checkpoints=1)
        harness.serve(PREFIX)
        req, cached = harness.start(PREFIX + [7])
        self.assertEqual(cached, len(PREFIX))
        harness._forward(req, PREFIX + [7], len(PREFIX) + 1)
        return harness, req

    def test_finished_request_keeps_none(self):
        for extra_buffer in (False, True):
            with self.subTest(extra_buffer=extra_buffer):
                harness, req = self.locked(extra_buffer)
                self.assertEqual(harness.serve(PROMPT), 0)
                self.assertIsNone(harness.node(PROMPT))
                harness.check_slots(req)
                release_kv_cache(req, harness.cache)
                harness.check_slots()
                self.assertEqual(harness.serve(PREFIX + [8]), len(PREFIX))
                # What it did not keep is computed, and can be kept now.
                self.assertEqual(harness.serve(PROMPT), 0)
                self.assertEqual(harness.serve(PROMPT + [8]), len(PROMPT))
                harness.check_slots()
                used = harness.config.kv_size - harness.device_available()[FULL]
                self.assertEqual(len(harness.held(FULL, False)), used)

    def test_unfinished_request_keeps_none(self):
        # The second time without an active slot to track in from now on, either.
        for extra_buffer, mamba_size in ((False, 12), (True, 12), (True, 6)):
            with self.subTest(extra_buffer=extra_buffer, mamba_size=mamba_size):
                harness, neighbour = self.locked(extra_buffer, mamba_size)
                req, _ = harness.start(PROMPT)
                harness._forward(req, PROMPT, 8)
                harness.cache.cache_unfinished_req(req, chunked=True)
                self.assertEqual(req.cache_protected_len, 0)
                self.assertIsNone(harness.node(PROMPT[:8]))
                harness.check_slots(neighbour, req)
                release_kv_cache(neighbour, harness.cache)
                req.init_next_round_input()
                harness._forward(req, PROMPT, len(PROMPT))
                harness.cache.cache_unfinished_req(req)
                self.assertEqual(req.cache_protected_len, len(PROMPT))
                harness.check_slots(req)
                release_kv_cache(req, harness.cache)
                harness.check_slots()
                self.assertEqual(harness.serve(PROMPT + [8]), len(PROMPT))


@needs_host_copies
class TestRequestSlots(CustomTestCase):
    """alloc_req_slots() takes a slot for a request to run on, and two to track in."""

    def test_waits_for_transfers(self):
        for load_back in (False, True):
            # One filler more than the request needs slots: that one stays.
            for config in configs(lambda own: own + 1):
                with self.subTest(config=str(config), load_back=load_back):
                    harness = UnifiedHiCacheHarness(config)
                    own = own_slots(config.extra_buffer)
                    locked_by_transfers(harness, FILLERS[: own + 1], load_back)
                    req, cached = start(harness, PROMPT)
                    self.assertEqual(cached, 0)
                    expected = [False] * own + [True]
                    self.assertEqual(on_device(harness, FILLERS[: own + 1]), expected)
                    harness._forward(req, PROMPT, len(PROMPT))
                    account(harness, req)
                    release_kv_cache(req, harness.cache)
                    harness.check()
                    self.assertEqual(harness.serve(FILLERS[0] + [7]), 8)

    def taken(self, num_fillers, extra_buffer=True, single=False, lazy=False):
        """Fillers that go for a request that has a slot to run on, and a new one."""
        config = CacheConfig(mamba_size=num_fillers + 1, extra_buffer=extra_buffer)
        harness = UnifiedHiCacheHarness(config)
        pool = harness.req_to_token_pool
        pool.mamba_ping_pong_track_buffer_size = 1 if single else 2
        pool.enable_mamba_extra_buffer_lazy = lazy
        reqs = [new_request(PROMPT), new_request(PROMPT)]
        reqs[0].mamba_pool_idx = pool.mamba_allocator.alloc(1)[0]
        fillers = FILLERS[:num_fillers]
        locked_by_transfers(harness, fillers)
        alloc_req_slots(pool, reqs, harness.cache)
        return num_fillers - sum(on_device(harness, fillers))

    def test_takes_what_the_requests_lack(self):
        self.assertEqual(self.taken(7), 5)
        self.assertEqual(self.taken(5), 5)
        self.assertEqual(self.taken(7, single=True), 3)
        self.assertEqual(self.taken(7, lazy=True), 3)
        self.assertEqual(self.taken(7, extra_buffer=False), 1)

    def test_evicts_again_where_the_eviction_itself_waited(self):
        harness = UnifiedHiCacheHarness(CacheConfig(extra_buffer=True, mamba_size=3))
        pool = harness.host_pools[MAMBA]
        harness.insert(PREFIX + [7])
        harness.poll()
        taken = pool.alloc(pool.available_size())
        harness.insert(PREFIX)
        harness.evict_states(1)
        pool.free(taken)
        # Its eviction saves the state of PREFIX, and waits for that, and all others.
        self.assertEqual(on_device(harness, [PREFIX]), [True])
        self.assertIsNone(harness.node(PREFIX).component_data[MAMBA].host_value)
        locked_by_transfers(harness, FILLERS[:2])
        start(harness, PROMPT)
        self.assertEqual(on_device(harness, [PREFIX, *FILLERS[:2]]), [False] * 3)

    def test_fails_where_requests_have_all_slots(self):
        for config in configs(lambda own: own):
            with self.subTest(config=str(config)):
                harness = UnifiedHiCacheHarness(config)
                run(harness, NEIGHBOUR)
                with self.assertRaisesRegex(AssertionError, "Not enough space"):
                    start(harness, PROMPT)

    def test_no_wait_where_only_headroom_is_short(self):
        for config in configs(lambda own: own + 2):
            with self.subTest(config=str(config)):
                harness = UnifiedHiCacheHarness(config)
                locked_by_transfers(harness, FILLERS[:2])
                with no_waiting(harness) as wait:
                    req, _ = start(harness, PROMPT)
                wait.assert_not_called()
                self.assertEqual(on_device(harness, FILLERS[:2]), [True, True])
                harness._forward(req, PROMPT, len(PROMPT))
                account(harness, req)


@needs_host_copies
class TestWarning(CustomTestCase):
    def setUp(self):
        self.harness = UnifiedHiCacheHarness(CacheConfig(mamba_size=2))
        run(self.harness, NEIGHBOUR)
        self.clock = mock.Mock(return_value=0.0)
        patched = mock.patch.object(
            mamba_component, "time", SimpleNamespace(monotonic=self.clock)
        )
        patched.start()
        self.addCleanup(patched.stop)

    def warnings(self, time, action):
        self.clock.return_value = time
        # assertLogs() wants a line at least.
        with self.assertLogs(mamba_component.__name__, "WARNING") as logs:
            mamba_component.logger.warning("start")
            action()
        return logs.output[1:]

    def test_comes_once_in_a_while_with_the_count(self):
        req, _ = self.harness.start(PROMPT)
        self.harness._forward(req, PROMPT, 8)

        def skip():
            self.harness.cache.cache_unfinished_req(req, chunked=True)
            self.assertEqual(req.cache_protected_len, 0)

        (first,) = self.warnings(10.0, skip)
        self.assertIn("No Mamba slot", first)
        self.assertIn("1 times so far", first)
        self.assertIn("--max-mamba-cache-size", first)
        self.assertEqual(self.warnings(69.9, skip), [])
        (second,) = self.warnings(70.0, skip)
        self.assertIn("3 times so far", second)
        self.assertEqual(self.warnings(70.1, skip), [])

    def test_comes_for_a_match_as_well(self):
        self.harness.insert(PREFIX)
        self.harness.poll()
        (line,) = self.warnings(0.0, lambda: start(self.harness, PREFIX + [7]))
        self.assertIn("1 times so far", line)

    def test_does_not_come_for_a_wait(self):
        locked_by_transfers(self.harness, FILLERS[:1])
        self.assertEqual(self.warnings(0.0, lambda: start(self.harness, PROMPT)), [])


if __name__ == "__main__":
    unittest.main()
