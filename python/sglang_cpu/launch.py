"""What the `kernel` copies have in common: argument checks, layouts, the launch.

Sizes are bytes. A layer is a tensor, or an entry of a uint64 table of addresses.
"""

from __future__ import annotations

from functools import partial

import torch

from sglang_cpu import checks, totals
from sglang_cpu.kinds import current_kind, current_pools, dropped
from sglang_cpu.memory import Extents, Items, copy_items, reach
from sglang_cpu.streams import submit

Tensor = torch.Tensor
Pairs = list[tuple[Items, Items]]


def launch(
    name: str, src_indices: Tensor, dst_indices: Tensor, pairs: Pairs, tensors: list[Tensor]
) -> None:
    """Check the slots against every pair of layers, and give the copies to the current stream.

    Args:
        name: the kernel's name, for messages.
        src_indices: int64 of shape [n], the items to read.
        dst_indices: int64 of shape [n], the items to write.
        pairs: from where to where, for each layer of each buffer.
        tensors: all tensors of the call; they are kept until the copy has run.

    Raises:
        IndexError: an item is out of range.
    """
    checks.in_range(name, "source", src_indices, min(src.count for src, _ in pairs))
    checks.in_range(name, "destination", dst_indices, min(dst.count for _, dst in pairs))
    kind = current_kind(tensors)
    if kind in dropped():
        pairs = []
    keep = (current_pools(), tensors)
    submit(partial(_copy, pairs, src_indices, dst_indices, keep), kind)
    totals.count(kind, len(src_indices) * sum(src.size for src, _ in pairs))


def _copy(pairs: Pairs, src_indices: Tensor, dst_indices: Tensor, keep: object) -> None:
    # keep: what the addresses point into has to live until a held copy has run
    for src, dst in pairs:
        copy_items(src, dst, src_indices, dst_indices)


def check(name: str, src_indices: Tensor, dst_indices: Tensor, item_size: int) -> None:
    """Check what every precompiled kernel checks, and that there is something to copy.

    Raises:
        RuntimeError: the indices or the item size are wrong, or there are no indices.
    """
    checks.indices(name, src_indices, dst_indices)
    checks.item_size(name, item_size, 8)
    checks.not_empty(name, src_indices)


def layer_first(buffer: Tensor, item_size: int) -> Items:
    """The items of one layer's own buffer, back to back."""
    return Items(buffer.data_ptr(), reach(buffer), item_size, item_size)


def page_first(buffer: Tensor, item_size: int, layout_dim: int, layer: int) -> Items:
    """One layer's items in a buffer with `layout_dim` bytes for all layers of an item."""
    offset = layer * item_size
    return Items(buffer.data_ptr() + offset, reach(buffer) - offset, layout_dim, item_size)


def page_head(
    buffer: Tensor, item_size: int, layout_dim: int, layer: int, *, page_size: int, heads: int
) -> Items:
    """One layer's items in a buffer [pages, heads, page_size, layers, bytes of a head]."""
    piece = item_size // heads
    return Items(
        buffer.data_ptr() + layer * piece,
        reach(buffer) - layer * piece,
        page_stride=page_size * layout_dim,
        piece=piece,
        per_page=page_size,
        place_stride=layout_dim // heads,
        heads=heads,
        head_stride=page_size * layout_dim // heads,
    )


def layer_table(name: str, table: Tensor, item_size: int, num_layers: int) -> list[Items]:
    """The layer-first items behind a table of addresses, one entry for each layer.

    Raises:
        RuntimeError: the table is not uint64 of shape [num_layers].
        IndexError: an address lies in no buffer of the pools under way.
    """
    if table.dtype != torch.uint64 or tuple(table.shape) != (num_layers,):
        raise RuntimeError(
            f"{name}: table of addresses {tuple(table.shape)} {table.dtype}; expected "
            f"({num_layers},) torch.uint64"
        )
    # A layer may seem to reach over those behind it in the same tensor. The last one does not, and
    # a launch checks its slots against the shortest.
    extents = Extents(current_pools())
    return [Items(address, extents.of(address), item_size, item_size) for address in table.tolist()]
