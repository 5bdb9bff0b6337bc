"""The argument checks of the CUDA copies, and those that the hardware would answer with a crash.

sglang-kernel 0.4.5 checks on the host that indices are int64, equally many, a multiple of the page
size, and that an item is a multiple of 8 bytes; a slot out of range reads or writes foreign memory
there, so here it is an error.
"""

from __future__ import annotations

import torch


def indices(
    copy: str, src_indices: torch.Tensor, dst_indices: torch.Tensor, page_size: int = 1
) -> None:
    """Check the slots of one copy.

    Args:
        copy: its name, for the message.
        src_indices: int64 of shape [n], the slots to read.
        dst_indices: int64 of shape [n], the slots to write.
        page_size: slots in a page; n is a multiple of it.

    Raises:
        RuntimeError: an argument is not so.
    """
    for side, slots in (("source", src_indices), ("destination", dst_indices)):
        if slots.dtype != torch.int64:
            raise RuntimeError(f"{copy}: {side} indices are {slots.dtype}; expected torch.int64")
        if slots.dim() != 1:
            raise RuntimeError(
                f"{copy}: {side} indices have shape {tuple(slots.shape)}; expected one dimension"
            )
    if src_indices.numel() != dst_indices.numel():
        raise RuntimeError(
            f"{copy}: {src_indices.numel()} source indices and {dst_indices.numel()} destination "
            "indices; expected equally many"
        )
    if page_size < 1:
        raise RuntimeError(f"{copy}: page size {page_size}; expected at least 1")
    if src_indices.numel() % page_size:
        raise RuntimeError(
            f"{copy}: {src_indices.numel()} indices; expected a multiple of the page size "
            f"{page_size}"
        )


def item_size(copy: str, size: int, multiple: int) -> None:
    """Check that an item of `size` bytes can be moved in words of `multiple` bytes.

    Raises:
        RuntimeError: it cannot.
    """
    if size <= 0 or size % multiple:
        raise RuntimeError(
            f"{copy}: an item of {size} bytes; expected a positive multiple of {multiple}"
        )


def not_empty(copy: str, slots: torch.Tensor) -> None:
    """Check that a precompiled kernel has something to copy.

    Its launcher divides by the number of items for each warp, which is zero then: on a GPU the
    process dies by SIGFPE.

    Raises:
        RuntimeError: `slots` is empty.
    """
    if slots.numel() == 0:
        raise RuntimeError(
            f"{copy}: launched with no indices; on a GPU the launcher divides by zero here and "
            "the process dies (SIGFPE)"
        )


def in_range(copy: str, side: str, slots: torch.Tensor, count: int) -> None:
    """Check that all of `slots` (int64, shape [n]) are below `count`, and not negative.

    Raises:
        IndexError: one is not; names the first.
    """
    if slots.numel() == 0:
        return
    low, high = (int(bound) for bound in torch.aminmax(slots))
    if low < 0 or high >= count:
        raise IndexError(
            f"{copy}: {side} slot {low if low < 0 else high}; expected 0 to {count - 1}"
        )
