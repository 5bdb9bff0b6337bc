"""What the pytest plugin adds: host memory where sglang and its tests ask for CUDA's."""

from __future__ import annotations

import importlib
import sys
import unittest
from types import SimpleNamespace

import host_pools as pools
import pytest
import torch

from sglang_cpu import device as host_device


@pytest.mark.parametrize(
    "device", ["cuda", "cuda:0", torch.device("cuda"), torch.device("cuda", 1)]
)
def test_factories(device: str | torch.device) -> None:
    like = torch.ones(2, 3)
    made = [
        torch.zeros(2, 3, device=device),
        torch.empty((2, 3), dtype=torch.int64, device=device),
        torch.tensor([[1, 2, 3]] * 2, device=device),
        torch.arange(6, device=device).view(2, 3),
        torch.full((2, 3), 7, device=device),
        torch.rand(2, 3, device=device),
        torch.as_tensor([[1, 2, 3]] * 2, device=device),
        torch.zeros_like(like, device=device),
        like.new_zeros(2, 3, device=device),
        like.to(device),
        like.to(device=device, dtype=torch.float16),
        like.cuda(),
    ]
    assert {(tensor.device.type, tensor.shape) for tensor in made} == {("cpu", (2, 3))}


def test_other_devices_are_left_alone() -> None:
    assert torch.zeros(2, device="meta").device.type == "meta"
    assert torch.zeros(2, dtype=torch.int32).dtype is torch.int32


def test_pinned_memory() -> None:
    assert not torch.empty(3, pin_memory=True).is_pinned()
    assert torch.equal(torch.ones(3).pin_memory(), torch.ones(3))


HICACHE_MODULES = (
    "sglang.srt.managers.cache_controller",
    "sglang.srt.managers.schedule_batch",
    "sglang.srt.managers.scheduler",
    "sglang.srt.mem_cache.common",
    "sglang.srt.mem_cache.hi_mamba_radix_cache",
    "sglang.srt.mem_cache.hiradix_cache",
    "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller",
    "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler",
    "sglang.srt.mem_cache.memory_pool",
    "sglang.srt.mem_cache.memory_pool_host",
    "sglang.srt.mem_cache.swa_memory_pool",
    "sglang.srt.mem_cache.unified_radix_cache",
    "sglang.test.ci.ci_register",
    "sglang.test.test_utils",
)


def test_what_hicache_s_tests_import_sees_the_host() -> None:
    for name in HICACHE_MODULES:
        importlib.import_module(name)
    seen = {
        name: module.device_module
        for name, module in list(sys.modules.items())
        if name.startswith("sglang.") and hasattr(module, "device_module")
    }
    assert {"sglang.srt.managers.cache_controller"} <= seen.keys()
    assert set(seen.values()) == {host_device}


def test_device_modules_of_other_devices() -> None:
    assert torch.get_device_module("mps") is torch.mps
    assert torch.get_device_module() is torch.get_device_module("cuda:0") is host_device
    assert host_device.current_device() == "cpu"


def test_mamba_pool_with_speculative_buffers() -> None:
    from sglang.srt.mem_cache.memory_pool import MambaPool

    params = SimpleNamespace(
        shape=SimpleNamespace(
            conv=[(8, 2)], temporal=(2, 4, 4), conv_kernel=3, disable_conv_window_dedup=False
        ),
        dtype=SimpleNamespace(conv=torch.bfloat16, temporal=torch.float32),
        is_kda=False,
    )
    pool = MambaPool(
        size=4,
        spec_state_size=4,
        cache_params=params,
        mamba_layer_ids=[0],
        device="cpu",
        speculative_num_draft_tokens=2,
    )
    assert pool.mamba_cache.intermediate_ssm.device.type == "cpu"


def test_host_pools_are_not_pinned() -> None:
    for side in (pools.kv("page_first", 1), pools.mla("page_first", 1), pools.mamba("page_first")):
        assert side.host.pin_memory is False
        assert side.host.get_dummy_flat_data_page().numel() > 0


RAN = []


@unittest.skipUnless(torch.cuda.is_available(), "cache fixtures need CUDA")
class TestUnskipped(unittest.TestCase):
    """As sglang marks its cache suites."""

    def test_runs(self) -> None:
        RAN.append(self.id())


def test_the_marked_class_ran() -> None:
    assert len(RAN) == 1


def test_other_skips_stay() -> None:
    from sglang_cpu import pytest_plugin

    @unittest.skip("needs the CUDA kernels themselves")
    class Marked(unittest.TestCase):
        pass

    pytest_plugin.pytest_pycollect_makeitem("Marked", Marked)
    assert Marked.__unittest_skip__


def test_paged_allocator_extends() -> None:
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

    allocator = PagedTokenToKVPoolAllocator(24, 4, torch.bfloat16, "cpu", None, need_sort=False)
    page = allocator.alloc(4)
    assert page.tolist() == [4, 5, 6, 7]
    prefix, total = torch.tensor([2, 0]), torch.tensor([9, 3])
    slots = allocator.alloc_extend(prefix, prefix, total, total, torch.tensor([5, -1]), 10)
    # the rest of page 1, a whole page, one slot of a third; then three slots of a fourth
    assert slots.tolist() == [6, 7, 8, 9, 10, 11, 12, 16, 17, 18]
    assert allocator.free_pages.tolist() == [5, 6]


def test_paged_allocator_decodes() -> None:
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

    allocator = PagedTokenToKVPoolAllocator(24, 4, torch.bfloat16, "cpu", None, need_sort=False)
    allocator.alloc(8)
    lengths = torch.tensor([5, 3, 9])
    slots = allocator.alloc_decode(lengths, lengths, torch.tensor([7, 9, 11]))
    assert slots.tolist() == [12, 10, 16]
    assert allocator.free_pages.tolist() == [5, 6]


def test_paged_allocator_without_enough_pages() -> None:
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator

    allocator = PagedTokenToKVPoolAllocator(8, 4, torch.bfloat16, "cpu", None, need_sort=False)
    none, long = torch.tensor([0]), torch.tensor([12])
    assert allocator.alloc_extend(none, none, long, long, torch.tensor([-1]), 12) is None
    five = torch.tensor([5, 5, 5])
    assert allocator.alloc_decode(five, five, torch.tensor([3, 7, 11])) is None
    assert allocator.free_pages.tolist() == [1, 2]
