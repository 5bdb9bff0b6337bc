"""A load-back that is called off: the request goes on from what the device has.

Its prefix ends sooner then than its match did, and so it needs the state that is
there, or none; the slots and locks taken for the load-back are given back. start()
and serve() of the harness compare what a request reuses with the bytes of a cold run.
"""

import dataclasses
import unittest
from array import array
from contextlib import contextmanager
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

from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InitLoadBackParams
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.mem_cache.unified_cache.components import mamba_component
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.test.ci.ci_register import register_cpu_ci, register_cuda_ci
from sglang.test.test_utils import CustomTestCase

register_cpu_ci(est_time=20, suite="base-a-test-cpu")
register_cuda_ci(est_time=20, suite="base-b-test-1-gpu-small")

PROMPT = tokens_of(1, 24)
FILLERS = [tokens_of(seed, 8) for seed in range(10, 20)]


def configs(components=((FULL, MAMBA), (FULL, SWA, MAMBA)), **kwargs):
    for pools in components:
        for page_size, extra_buffer in ((1, False), (1, True), (4, True)):
            yield CacheConfig(
                components=pools,
                page_size=page_size,
                extra_buffer=extra_buffer,
                kv_size=128,
                **kwargs,
            )


def on_host(config, device_prefix=0):
    """PROMPT is on the host, and its beginning on the device, with a state, too."""
    harness = UnifiedHiCacheHarness(config)
    for tokens in (PROMPT[:device_prefix], PROMPT):
        if tokens:
            harness.insert(tokens)
            harness.poll()
    harness.evict_device()
    if device_prefix:
        harness.insert(PROMPT[:device_prefix])
        harness.poll()
    matched = harness.match(PROMPT)
    assert len(matched.device_indices) == device_prefix
    assert matched.best_match_node == harness.node(PROMPT).id
    return harness


def window_on_host(config, device_prefix=0):
    """PROMPT's KV and state are on the device, but not all of the window before it."""
    harness = UnifiedHiCacheHarness(config)
    for length in (device_prefix, len(PROMPT) - 4, len(PROMPT)):
        if length:
            harness.insert(PROMPT[:length])
    harness.poll()
    if device_prefix:
        harness.match(PROMPT[:device_prefix])
    node = harness.node(PROMPT)
    while node.parent.component_data[SWA].value is not None:
        harness.cache.evict(EvictParams(swa_num_tokens=1))
    assert node.component_data[MAMBA].value is not None
    matched = harness.match(PROMPT)
    assert len(matched.device_indices) == device_prefix
    assert matched.best_match_node == node.id
    return harness


def alloc_all(alloc):
    """All that is left of a pool, slot by slot."""
    slots = []
    while (slot := alloc(1)) is not None:
        slots.append(slot)
    return slots


def new_request(tokens):
    return Req(
        rid="",
        origin_input_text="",
        origin_input_ids=array("q", tokens),
        sampling_params=SamplingParams(max_new_tokens=1),
    )


def match(harness, req):
    """Match a request and load back; return the length of what it can reuse."""
    cache = harness.cache
    req.init_next_round_input(cache)
    node, admission = req.last_node, cache.inc_lock_ref(req.last_node)
    loaded, _ = cache.init_load_back(
        InitLoadBackParams(
            best_match_node=req.best_match_node,
            host_hit_length=req.host_hit_length,
            req=req,
        )
    )
    cache.dec_lock_ref(node, admission.to_dec_params())
    return len(req.prefix_indices) + len(loaded)


@contextmanager
def shortage(harness, of):
    """Other requests hold all of one kind of slots while a load-back is tried."""
    load_back = harness.cache.load_back
    left = 1 if of == "second slot" else 0
    quota = -harness.config.kv_size if of == "quota" else None
    alloc, free = pool_of(harness, of)
    results = []

    def short_load_back(node_id, mem_quota=None, req=None):
        taken = alloc_all(alloc)
        for _ in range(left):
            free(taken.pop())
        results.append(load_back(node_id, quota, req=req))
        for slot in taken:
            free(slot)
        return results[-1]

    with mock.patch.object(harness.cache, "load_back", short_load_back):
        yield results


def pool_of(harness, of):
    """Functions that take one slot or page of a pool of the device, and give it back."""
    allocator = harness.allocator
    if of == "quota":
        return lambda _: None, None
    if "slot" in of:
        allocator = harness.req_to_token_pool.mamba_allocator
        return allocator.alloc, allocator.free
    if harness.config.has_swa:
        window = of == "window"
        allocator = (
            allocator.swa_attn_allocator if window else allocator.full_attn_allocator
        )
    return lambda n: allocator.alloc(n * harness.config.page_size), allocator.free


def locks(harness):
    """Device locks by node, where there are any; none of the host's may be left."""
    assert harness.cache.ongoing_load_back == {}
    nodes = harness.core._collect_all_nodes()
    data = {node.id: node.component_data for node in nodes}
    del data[harness.core.root_node.id]
    assert not any(cd.host_lock_ref for cds in data.values() for cd in cds)
    held = {key: [cd.lock_ref for cd in cds] for key, cds in data.items()}
    return {key: refs for key, refs in held.items() if any(refs)}


def starts_from(harness, req, tokens):
    """Whether the forward pass gives the request the state after ``tokens``: it copies
    one, or clears the slot, which holds anything until then."""
    batch, pool = SimpleNamespace(), harness.req_to_token_pool.mamba_pool
    harness.write_state(tokens_of(9, 1), req.mamba_pool_idx)
    ScheduleBatch._collect_deferred_mamba_cow_and_clear(batch, [req])
    if batch.mamba_clear_indices is not None:
        pool.clear_slots(batch.mamba_clear_indices)
    if batch.mamba_cow_src_indices is not None:
        pool.copy_from(batch.mamba_cow_src_indices, batch.mamba_cow_dst_indices)
    if tokens:
        return harness.state_is(tokens, req.mamba_pool_idx)
    slot = int(req.mamba_pool_idx)
    return not any(buffer[:, slot].any() for buffer in harness._state_buffers())


@needs_host_copies
class TestCalledOff(CustomTestCase):
    def check(self, harness, of, device_prefix, prompt=PROMPT + [7]):
        """Serve a prompt whose load-back is called off, and what comes after it."""
        states = harness.device_available()[MAMBA]
        with shortage(harness, of) as results:
            req, cached = harness.start(prompt)
        self.assertEqual(results, [False])
        self.assertEqual((cached, req.cache_protected_len), (device_prefix,) * 2)
        # Nor are tokens of the host reported that were not loaded.
        self.assertFalse(req.needs_host_load_back())
        self.assertTrue(starts_from(harness, req, prompt[:cached]))
        own = 3 if harness.config.extra_buffer else 1
        self.assertEqual(harness.device_available()[MAMBA], states - own)
        last = harness.node(PROMPT[:device_prefix])
        locked = locks(harness)
        self.assertEqual(req.last_node, last.id)
        if device_prefix:
            self.assertEqual(locked.pop(last.id)[-1], 1)
        self.assertEqual([refs[-1] for refs in locked.values() if refs[-1]], [])
        harness._forward(req, prompt, len(prompt))
        release_kv_cache(req, harness.cache)
        harness.poll()
        self.assertEqual(locks(harness), {})
        harness.check()
        self.assertEqual(harness.serve(PROMPT + [8]), len(PROMPT))
        harness.evict_all()
        harness.check()

    def check_all(self, of, components=((FULL, MAMBA), (FULL, SWA, MAMBA))):
        for policy in ("write_through", "write_back"):
            for device_prefix in (0, 8):
                for config in configs(components, write_policy=policy):
                    with self.subTest(config=str(config), prefix=device_prefix):
                        harness = on_host(config, device_prefix)
                        self.check(harness, of, device_prefix)

    def test_for_want_of_a_slot(self):
        self.check_all("slot")

    def test_for_want_of_a_second_slot(self):
        self.check_all("second slot")

    def test_for_want_of_kv(self):
        self.check_all("kv")

    def test_for_want_of_a_window(self):
        self.check_all("window", [(FULL, SWA, MAMBA)])

    def test_for_the_quota(self):
        self.check_all("quota")

    def test_after_a_copy_of_a_later_state(self):
        for of in ("window", "quota"):
            for device_prefix in (0, 8):
                for config in configs([(FULL, SWA, MAMBA)]):
                    with self.subTest(of=of, config=str(config), prefix=device_prefix):
                        harness = window_on_host(config, device_prefix)
                        self.check(harness, of, device_prefix)

    def test_after_the_copy_took_the_slot_of_the_state_before(self):
        for config in configs([(FULL, SWA, MAMBA)]):
            if config.extra_buffer:
                continue
            with self.subTest(config=str(config)):
                harness = window_on_host(config, 8)
                slots = harness.req_to_token_pool.mamba_allocator
                taken = alloc_all(slots.alloc)
                with shortage(harness, "window") as results:
                    req, cached = harness.start(PROMPT + [7])
                self.assertEqual((results, cached), ([False], 0))
                self.assertEqual(req.cache_protected_len, 0)
                self.assertEqual(req.last_node, harness.core.root_node.id)
                self.assertTrue(starts_from(harness, req, []))
                slots.free(torch.cat(taken))
                harness._forward(req, PROMPT + [7], len(PROMPT) + 1)
                release_kv_cache(req, harness.cache)
                harness.poll()
                self.assertEqual(locks(harness), {})
                harness.check()
                self.assertEqual(harness.serve(PROMPT + [8]), len(PROMPT))

    def test_models_without_states_keep_their_device_prefix(self):
        for components in ((FULL,), (FULL, SWA)):
            for of in ("kv", "quota"):
                with self.subTest(components=components, of=of):
                    harness = on_host(CacheConfig(components=components), 8)
                    with shortage(harness, of) as results:
                        req, cached = harness.start(PROMPT + [7])
                    self.assertEqual((results, cached), ([False], 8))
                    harness._forward(req, PROMPT + [7], len(PROMPT) + 1)
                    release_kv_cache(req, harness.cache)
                    harness.poll()
                    self.assertEqual(locks(harness), {})
                    harness.check()

    def test_request_that_is_not_admitted_can_be_matched_again(self):
        for config in configs():
            with self.subTest(config=str(config)):
                harness = on_host(config, 8)
                req = new_request(PROMPT + [7])
                for of in ("slot", "second slot"):
                    load = mock.patch.object(
                        harness.controller, "load", side_effect=harness.controller.load
                    )
                    with shortage(harness, of), load as load:
                        self.assertEqual(match(harness, req), 8)
                    self.assertEqual(load.called, of == "second slot")
                    self.assertIsNone(req.mamba_pool_idx)
                    self.assertEqual(locks(harness), {})
                    harness.check()
                    # As the scheduler does with a request that stays in the queue.
                    req.mamba_cow_src_index, req.mamba_needs_clear = None, False
                self.assertEqual(match(harness, req), len(PROMPT))
                harness.cache.ready_to_load_host_cache()
                harness.poll()
                self.assertTrue(harness.state_is(PROMPT, req.mamba_pool_idx))
                self.assertIsNone(req.mamba_cow_src_index)

    def test_without_a_request_nothing_is_looked_up(self):
        harness = on_host(CacheConfig())
        with shortage(harness, "second slot") as results:
            harness.load_back(PROMPT)
        self.assertEqual((results, locks(harness)), ([True], {}))
        with shortage(harness, "quota") as results:
            harness.evict_device()
            harness.load_back(PROMPT)
        self.assertEqual((results, locks(harness)), ([False], {}))
        harness.check()


@needs_host_copies
class TestWaitsForTransfers(CustomTestCase):
    """What could be evicted is locked by transfers in flight."""

    def start(self, harness, fillers, load_back=False):
        """Fill the pools of the device, then start a request that needs a load-back."""
        for tokens in fillers:
            harness.insert(tokens)
        if load_back:
            harness.poll()
            harness.evict_device()
            for tokens in fillers:
                harness.cache.load_back(harness.match(tokens).best_match_node)
            harness.cache.ready_to_load_host_cache()
        with mock.patch.object(harness, "poll"):
            req, cached = harness.start(PROMPT + [7])
        harness._forward(req, PROMPT + [7], len(PROMPT) + 1)
        return req, cached

    def finish(self, harness, req, fillers):
        release_kv_cache(req, harness.cache)
        harness.poll()
        self.assertEqual(locks(harness), {})
        harness.check()
        for tokens in (PROMPT, fillers[0]):
            self.assertEqual(harness.serve(tokens + [8]), len(tokens))
        harness.check()

    def test_for_slots(self):
        # One slot for the tree, one to run on, and two to track in; some are free.
        for free in (0, 1):
            for load_back in (False, True):
                for config in configs(mamba_size=4):
                    if not config.extra_buffer:
                        config = dataclasses.replace(config, mamba_size=2)
                    with self.subTest(config=str(config), free=free, load=load_back):
                        harness = on_host(config)
                        fillers = FILLERS[: config.mamba_size - free]
                        req, cached = self.start(harness, fillers, load_back)
                        self.assertEqual(cached, len(PROMPT))
                        self.finish(harness, req, fillers)

    def test_for_a_window(self):
        for config in configs([(FULL, SWA, MAMBA)]):
            with self.subTest(config=str(config)):
                harness = on_host(config)
                with shortage(harness, "window") as results:
                    req, cached = self.start(harness, FILLERS[:1])
                self.assertEqual((results, cached), ([True], len(PROMPT)))
                self.finish(harness, req, FILLERS[:1])

    def test_not_for_slots_that_are_free_or_can_be_evicted(self):
        for evictable in (False, True):
            for config in configs():
                with self.subTest(config=str(config), evictable=evictable):
                    needed = 4 if config.extra_buffer else 2
                    config = dataclasses.replace(config, mamba_size=needed + 1)
                    harness = on_host(config)
                    for tokens in FILLERS[:needed] if evictable else []:
                        harness.insert(tokens)
                    harness.poll()
                    harness.insert(FILLERS[needed])
                    wait = mock.patch.object(
                        harness.cache,
                        "wait_for_transfers",
                        create=True,
                        return_value=False,
                    )
                    with wait as wait:
                        _, cached = self.start(harness, [])
                    wait.assert_not_called()
                    self.assertEqual(cached, len(PROMPT))
                    self.assertEqual(len(harness.cache.ongoing_write_through), 1)

    def test_warning_for_want_of_a_slot(self):
        harness = on_host(CacheConfig())
        with self.assertLogs(mamba_component.__name__, "WARNING") as logs:
            with shortage(harness, "slot"):
                harness.start(PROMPT + [7])
        self.assertEqual(len(logs.output), 1)
        self.assertIn("No Mamba slot", logs.output[0])


if __name__ == "__main__":
    unittest.main()
