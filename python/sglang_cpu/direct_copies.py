# ruff: noqa: PLR0917 - the signatures are those of the CUDA copies
"""The copies of ``--hicache-io-backend direct``, on the host.

Signatures and rules as in ``sgl_kernel.kvcacheio`` (sglang-kernel 0.4.5). Indices are int64
tensors of shape [n] and name slots (tokens, or states). Where a page-first buffer is involved,
only the first slot of each page is looked at: a page is copied as one piece, as on a GPU.

Buffers: layer first, one tensor [slots, ...] for each layer; page first, one tensor [pages,
    layers, page_size, ...].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from sglang_cpu import checks, totals
from sglang_cpu.kinds import current_kind, dropped
from sglang_cpu.streams import submit


def _issue(
    copy: Callable[[], None],
    tensors: Sequence[torch.Tensor],
    layers: Sequence[torch.Tensor],
    slots: torch.Tensor,
) -> None:
    """Give a copy to the current stream.

    Args:
        copy: makes it.
        tensors: all tensors of the call.
        layers: those of them that are layer first, on one side of the copy.
        slots: int64 of shape [n], the slots of each of `layers` that are copied.
    """
    kind = current_kind(tensors)
    if kind in dropped():
        submit(lambda: None, kind)
        return
    submit(copy, kind)
    row = sum(math.prod(layer.shape[1:]) * layer.element_size() for layer in layers)
    totals.count(kind, len(slots) * row)


def transfer_kv_direct(
    src_layers: Sequence[torch.Tensor],
    dst_layers: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Copy slots between layer-first buffers, layer by layer.

    Raises:
        RuntimeError: the arguments do not fit together.
        IndexError: a slot is out of range.
    """
    name = "transfer_kv_direct"
    if len(src_layers) != len(dst_layers):
        raise RuntimeError(
            f"{name}: {len(src_layers)} source and {len(dst_layers)} destination layers; "
            "expected equally many"
        )
    checks.indices(name, src_indices, dst_indices, page_size)
    src_slots, dst_slots = src_indices.cpu().clone(), dst_indices.cpu().clone()
    for src, dst in zip(src_layers, dst_layers, strict=True):
        _same_rows(name, src, dst)
        checks.in_range(name, "source", src_slots, src.shape[0])
        checks.in_range(name, "destination", dst_slots, dst.shape[0])

    def copy() -> None:
        for src, dst in zip(src_layers, dst_layers, strict=True):
            dst[dst_slots] = src[src_slots]

    _issue(copy, [*src_layers, *dst_layers], src_layers, src_slots)


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    page_size: int,
) -> None:
    """Back pages up: every layer of `src_ptrs` (layer first) into `dst_ptrs` (page first).

    With two destinations the first half of the sources goes to the first (keys, then values).

    Raises:
        RuntimeError: the arguments do not fit together.
        IndexError: a page or slot is out of range.
    """
    name = "transfer_kv_all_layer_direct_lf_pf"
    checks.indices(name, src_indices, dst_indices, page_size)
    rows = _rows(src_indices, page_size)
    pages = dst_indices.cpu()[::page_size] // page_size
    layers = _layers_per_buffer(name, src_ptrs, dst_ptrs)
    pairs = [
        (src, dst_ptrs[position // layers], position % layers)
        for position, src in enumerate(src_ptrs)
    ]
    for src, dst, layer in pairs:
        _fits(name, dst, src, layer, page_size)
        checks.in_range(name, "source", rows, src.shape[0])
        checks.in_range(name, "destination page", pages, dst.shape[0])

    def copy() -> None:
        for src, dst, layer in pairs:
            dst[pages, layer] = src[rows].reshape(len(pages), *dst.shape[2:])

    _issue(copy, [*src_ptrs, *dst_ptrs], src_ptrs, rows)


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Sequence[torch.Tensor],
    dst_ptrs: Sequence[torch.Tensor],
    src_indices: torch.Tensor,
    dst_indices: torch.Tensor,
    layer_id: int,
    page_size: int,
) -> None:
    """Load pages back: layers from `layer_id` on of `src_ptrs` (page first) into `dst_ptrs` (layer
    first).

    With two sources the first half of the destinations is filled from the first (keys, then
    values).

    Raises:
        RuntimeError: the arguments do not fit together.
        IndexError: a page or slot is out of range.
    """
    name = "transfer_kv_per_layer_direct_pf_lf"
    checks.indices(name, src_indices, dst_indices, page_size)
    rows = _rows(dst_indices, page_size)
    pages = src_indices.cpu()[::page_size] // page_size
    layers = _layers_per_buffer(name, dst_ptrs, src_ptrs)
    pairs = [
        (src_ptrs[position // layers], dst, layer_id + position % layers)
        for position, dst in enumerate(dst_ptrs)
    ]
    for src, dst, layer in pairs:
        _fits(name, src, dst, layer, page_size)
        checks.in_range(name, "source page", pages, src.shape[0])
        checks.in_range(name, "destination", rows, dst.shape[0])

    def copy() -> None:
        for src, dst, layer in pairs:
            dst[rows] = src[pages, layer].reshape(len(rows), *dst.shape[1:])

    _issue(copy, [*src_ptrs, *dst_ptrs], dst_ptrs, rows)


def _rows(indices: torch.Tensor, page_size: int) -> torch.Tensor:
    first = indices.cpu()[::page_size]
    return (first[:, None] + torch.arange(page_size)).reshape(-1)


def _layers_per_buffer(
    name: str, layers: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor]
) -> int:
    if not buffers or not layers or len(layers) % len(buffers):
        raise RuntimeError(
            f"{name}: {len(layers)} layers for {len(buffers)} page-first buffers; "
            "expected the same number for each"
        )
    return len(layers) // len(buffers)


def _same_rows(name: str, src: torch.Tensor, dst: torch.Tensor) -> None:
    if src.dtype != dst.dtype or src.shape[1:] != dst.shape[1:]:
        raise RuntimeError(
            f"{name}: source rows are {tuple(src.shape[1:])} {src.dtype}, destination rows "
            f"{tuple(dst.shape[1:])} {dst.dtype}; expected the same"
        )


def _fits(name: str, paged: torch.Tensor, rows: torch.Tensor, layer: int, page_size: int) -> None:
    if paged.dim() < 3 or paged.shape[2] != page_size or paged.dtype != rows.dtype:
        raise RuntimeError(
            f"{name}: page-first buffer {tuple(paged.shape)} {paged.dtype}; expected "
            f"[pages, layers, {page_size}, ...] {rows.dtype}"
        )
    if paged[0, 0, 0].numel() != rows[0].numel():
        raise RuntimeError(
            f"{name}: a slot has {paged[0, 0, 0].numel()} elements in the page-first buffer and "
            f"{rows[0].numel()} in the layer; expected the same"
        )
    if not 0 <= layer < paged.shape[1]:
        raise IndexError(f"{name}: layer {layer}; expected 0 to {paged.shape[1] - 1}")
