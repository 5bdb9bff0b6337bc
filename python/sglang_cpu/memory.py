"""Host memory as the kernels see it: an address, and how items lie from there on.

The kernels get bare addresses, or tables of them. What lies at an address is looked up among the
tensors of the two pools whose copy is being made, so that a slot behind the end of a buffer is an
error here, not a crash.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

import torch

_DEPTH = 3  # pool, its State, the list of its layers


@dataclass(frozen=True)
class Items:
    """Items of `heads` pieces of `piece` bytes, `per_page` of them in a page, all strides in bytes.

    Item i lies in page i // per_page at place i % per_page. Without pages, per_page and heads are
    1.
    """

    address: int
    extent: int
    page_stride: int
    piece: int
    per_page: int = 1
    place_stride: int = 0
    heads: int = 1
    head_stride: int = 0

    @property
    def count(self) -> int:
        """How many items end within the extent."""
        last = (
            (self.per_page - 1) * self.place_stride
            + (self.heads - 1) * self.head_stride
            + self.piece
        )
        if self.extent < last:
            return 0
        return ((self.extent - last) // self.page_stride + 1) * self.per_page

    @property
    def size(self) -> int:
        """Bytes of one item."""
        return self.heads * self.piece

    def grid(self) -> torch.Tensor:
        """The memory itself, not a copy: uint8 [pages, per_page, heads, piece]."""
        raw = torch.frombuffer(
            (ctypes.c_uint8 * self.extent).from_address(self.address), dtype=torch.uint8
        )
        return raw.as_strided(
            (self.count // self.per_page, self.per_page, self.heads, self.piece),
            (self.page_stride, self.place_stride, self.head_stride, 1),
        )


def copy_items(src: Items, dst: Items, src_slots: torch.Tensor, dst_slots: torch.Tensor) -> None:
    """Copy item src_slots[k] to dst_slots[k] for all k; both int64 of shape [n], in range."""
    data = src.grid()[src_slots // src.per_page, src_slots % src.per_page]
    shape = (len(dst_slots), dst.heads, dst.piece)
    dst.grid()[dst_slots // dst.per_page, dst_slots % dst.per_page] = data.reshape(shape)


class Extents:
    """How far the memory at an address reaches, by the tensors of some objects."""

    def __init__(self, owners: tuple[object, ...]) -> None:
        self._spans = sorted({span for owner in owners for span in _spans(owner, _DEPTH)})

    def of(self, address: int) -> int:
        """Bytes from `address` to the end of the tensor that it points into.

        Raises:
            IndexError: none of the tensors holds that address.
        """
        ends = [start + size for start, size in self._spans if start <= address < start + size]
        if not ends:
            raise IndexError(f"address {address:#x} lies in no buffer of the pools being copied")
        return max(ends) - address


def _spans(owner: object, depth: int) -> Iterator[tuple[int, int]]:
    if isinstance(owner, torch.Tensor):
        if owner.numel() and owner.device.type == "cpu":
            yield owner.data_ptr(), reach(owner)
    elif isinstance(owner, (list, tuple)):
        for part in owner:
            yield from _spans(part, depth)
    elif depth and is_dataclass(owner):
        for field in fields(owner):
            yield from _spans(getattr(owner, field.name), depth - 1)
    elif depth and hasattr(owner, "__dict__") and type(owner).__module__.startswith("sglang."):
        for part in vars(owner).values():
            yield from _spans(part, depth - 1)


def reach(tensor: torch.Tensor) -> int:
    """Bytes from the first to the last element of a tensor, both included, whatever its strides."""
    if not tensor.numel():
        return 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
