# ruff: noqa: PLR0917 - two signatures are those of Triton kernels
"""Put the host in the place of the accelerator, in the sglang modules of this process.

Nothing of sglang's source changes. A module is patched for what it contains, not for its name,
since releases move host pools from one module to another.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from sglang_cpu import device, direct_copies, kernel_copies, single_copies, totals
from sglang_cpu.kinds import dropped, operation

COPIES: dict[str, Callable[..., None]] = {
    name: function
    for module in (direct_copies, kernel_copies, single_copies)
    for name, function in vars(module).items()
    if name.startswith("transfer_kv_")
}
"""The stand-ins by name: ``sgl_kernel.kvcacheio``'s, and the two of ``transfer_mamba``."""

_CALL = re.compile(r"^[ \t]+(transfer_kv_\w+)\(", re.MULTILINE)
_DIRECTIONS = {"backup_from_device_all_layer": "backup", "load_to_device_per_layer": "load"}

_installed = False


def installed() -> bool:
    """Whether `install` has run in this process."""
    return _installed


def install() -> None:
    """Patch torch's choice of a device module and sglang's memory cache; nothing the second time.

    Raises:
        ValueError: SGLANG_CPU_DROP names no kind of copy, or SGLANG_CPU_COPIED no folder that can
            be written.
    """
    global _installed  # noqa: PLW0603 - a process is patched once
    if _installed:
        return
    dropped()
    totals.start()
    _patch_device_module()
    for module in list(_modules_with_copies()):
        _patch_copies(module)
        for cls in list(vars(module).values()):
            if _is_host_pool(cls, module):
                _patch_host_pool(cls)
    _patch_paged_allocator()
    _installed = True


def _patch_device_module() -> None:
    original = torch.get_device_module

    @functools.wraps(original)
    def get_device_module(name: torch.device | str | None = None) -> Any:
        if name is None or torch.device(name).type in ("cpu", "cuda"):
            return device
        return original(name)

    torch.get_device_module = get_device_module  # type: ignore[assignment]
    common = importlib.import_module("sglang.srt.utils.common")
    common.get_device_module.cache_clear()
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang.") and getattr(module, "device_module", None) in (
            torch.cpu,
            torch.cuda,
        ):
            module.device_module = device  # type: ignore[attr-defined]


def _modules_with_copies() -> Iterator[ModuleType]:
    package = importlib.import_module("sglang.srt.mem_cache")
    for info in _walk(package.__path__, "sglang.srt.mem_cache."):
        spec = info.module_finder.find_spec(info.name, None)
        source = getattr(spec and spec.loader, "get_source", lambda _: None)(info.name) or ""
        # a module that defines one itself has its own answer to a missing kernel
        if _CALL.search(source) and "def transfer_kv_" not in source:
            yield importlib.import_module(info.name)


def _walk(path: Any, prefix: str) -> Iterator[Any]:
    # not pkgutil.walk_packages: it imports every package, storage backends and all
    info: Any
    for info in pkgutil.iter_modules(path, prefix):
        if info.ispkg and not info.name.endswith(".storage"):
            spec = info.module_finder.find_spec(info.name, None)
            yield from _walk(spec.submodule_search_locations, info.name + ".")
        yield info


def _patch_copies(module: ModuleType) -> None:
    # a call of something else (other accelerators, newer releases) stays what it is: a NameError
    for name in COPIES.keys() & set(_CALL.findall(inspect.getsource(module))):
        setattr(module, name, COPIES[name])


def _is_host_pool(cls: object, module: ModuleType) -> bool:
    return (
        isinstance(cls, type)
        and cls.__module__ == module.__name__
        and any(base.__name__ == "HostKVCache" for base in cls.__mro__)
    )


def _patch_host_pool(cls: type) -> None:
    own = vars(cls)
    if "__init__" in own and "pin_memory" in inspect.signature(own["__init__"]).parameters:
        cls.__init__ = _unpinned(own["__init__"])  # type: ignore[misc]
    for name, direction in _DIRECTIONS.items():
        if name in own:
            setattr(cls, name, _announced(own[name], direction))


def _unpinned(init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)

    @functools.wraps(init)
    def unpinned(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.arguments["pin_memory"] = False
        init(*bound.args, **bound.kwargs)

    return unpinned


def _announced(method: Callable[..., Any], direction: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def announced(self: Any, device_pool: Any, *args: Any, **kwargs: Any) -> Any:
        with operation(self, device_pool, direction):
            return method(self, device_pool, *args, **kwargs)

    return announced


class _Launchable:
    """Stands where a Triton kernel stood: ``kernel[grid](...)`` calls the function."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __getitem__(self, grid: object) -> Callable[..., None]:
        return self._function


def _patch_paged_allocator() -> None:
    """Replace the two Triton kernels of the paged allocator, where the release has no path in
    torch itself.

    Without enough free pages they leave the output as it is: the allocator looks at the number
    afterwards, and answers None.
    """
    paged: Any = importlib.import_module("sglang.srt.mem_cache.allocator.paged")

    def extend(
        prefix_lens: torch.Tensor,
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out_indices: torch.Tensor,
        batch_size: int,
        page_size: int,
    ) -> None:
        pages = (seq_lens + page_size - 1) // page_size - (prefix_lens + page_size - 1) // page_size
        if int(pages.sum()) <= len(free_pages):
            # sglang's own loop in torch
            paged.alloc_extend_naive(
                prefix_lens, seq_lens, last_loc, free_pages, out_indices, page_size, "cpu"
            )

    def decode(
        seq_lens: torch.Tensor,
        last_loc: torch.Tensor,
        free_pages: torch.Tensor,
        out_indices: torch.Tensor,
        batch_size: int,
        page_size: int,
    ) -> None:
        # the next slot of the request's last page, or the first one of a fresh page
        fresh = (seq_lens - 1) % page_size == 0
        if int(fresh.sum()) <= len(free_pages):
            out_indices.copy_(last_loc + 1)
            out_indices[fresh] = free_pages[: int(fresh.sum())] * page_size

    if hasattr(paged, "alloc_extend_kernel") and hasattr(paged, "alloc_extend_naive"):
        paged.alloc_extend_kernel = _Launchable(extend)
    if hasattr(paged, "alloc_decode_kernel"):
        paged.alloc_decode_kernel = _Launchable(decode)
