# ruff: noqa: PLR0917 - the signatures are those of the CUDA copies
"""The copies of ``--hicache-io-backend kernel``, on the host, by address.

Signatures and rules as in ``sgl_kernel.kvcacheio`` (sglang-kernel 0.4.5) and
``sglang.kernels.ops.mamba.transfer_mamba`` (sglang 0.5.17). Indices are int64 tensors of shape
[n]; sizes are bytes. A layer is a tensor or an entry of a uint64 table of addresses. Layouts, with
the distance between the items of one layer:

- lf, layer first: ``item_size``;
- pf, page first: ``layout_dim``, and layer l begins at ``l * item_size``;
- ph, page head: [pages, heads, page_size, layers, item_size / heads], ``layout_dim`` bytes for all
  layers of an item.
"""

from __future__ import annotations

from torch import Tensor

from sglang_cpu import checks
from sglang_cpu.launch import check, launch, layer_first, layer_table, page_first, page_head


def transfer_kv_per_layer(
    src_k: Tensor,
    dst_k: Tensor,
    src_v: Tensor,
    dst_v: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    block_quota: int = 2,
    num_warps_per_block: int = 32,
) -> None:
    """Copy keys and values of one layer, lf to lf.

    Raises (as all copies here):
        RuntimeError: the arguments do not fit together, or there is nothing to copy.
        IndexError: a slot is out of range.
    """
    name = "transfer_kv_per_layer"
    check(name, src_indices, dst_indices, item_size)
    pairs = [
        (layer_first(src_k, item_size), layer_first(dst_k, item_size)),
        (layer_first(src_v, item_size), layer_first(dst_v, item_size)),
    ]
    launch(name, src_indices, dst_indices, pairs, [src_k, dst_k, src_v, dst_v])


def transfer_kv_per_layer_pf_lf(
    src_k: Tensor,
    dst_k: Tensor,
    src_v: Tensor,
    dst_v: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
    block_quota: int = 2,
    num_warps_per_block: int = 32,
) -> None:
    """Load keys and values of one layer, pf to lf."""
    name = "transfer_kv_per_layer_pf_lf"
    check(name, src_indices, dst_indices, item_size)
    pairs = [
        (page_first(src, item_size, src_layout_dim, layer_id), layer_first(dst, item_size))
        for src, dst in ((src_k, dst_k), (src_v, dst_v))
    ]
    launch(name, src_indices, dst_indices, pairs, [src_k, dst_k, src_v, dst_v])


def transfer_kv_per_layer_ph_lf(
    src_k: Tensor,
    dst_k: Tensor,
    src_v: Tensor,
    dst_v: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
    page_size: int,
    head_num: int,
    block_quota: int = 2,
    num_warps_per_block: int = 32,
) -> None:
    """Load keys and values of one layer, ph to lf."""
    name = "transfer_kv_per_layer_ph_lf"
    check(name, src_indices, dst_indices, item_size)
    checks.item_size(name, item_size, head_num)
    pairs = [
        (
            page_head(
                src, item_size, src_layout_dim, layer_id, page_size=page_size, heads=head_num
            ),
            layer_first(dst, item_size),
        )
        for src, dst in ((src_k, dst_k), (src_v, dst_v))
    ]
    launch(name, src_indices, dst_indices, pairs, [src_k, dst_k, src_v, dst_v])


def transfer_kv_all_layer(
    src_k_layers: Tensor,
    dst_k_layers: Tensor,
    src_v_layers: Tensor,
    dst_v_layers: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    num_layers: int,
    block_quota: int = 2,
    num_warps_per_block: int = 32,
) -> None:
    """Back up keys and values of all layers, lf to lf; all four are tables of addresses."""
    name = "transfer_kv_all_layer"
    check(name, src_indices, dst_indices, item_size)
    pairs = [
        pair
        for src, dst in ((src_k_layers, dst_k_layers), (src_v_layers, dst_v_layers))
        for pair in zip(
            layer_table(name, src, item_size, num_layers),
            layer_table(name, dst, item_size, num_layers),
            strict=True,
        )
    ]
    tensors = [src_k_layers, dst_k_layers, src_v_layers, dst_v_layers]
    launch(name, src_indices, dst_indices, pairs, tensors)


def transfer_kv_all_layer_lf_pf(
    src_k_layers: Tensor,
    dst_k: Tensor,
    src_v_layers: Tensor,
    dst_v: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
    block_quota: int = 2,
    num_warps_per_block: int = 32,
) -> None:
    """Back up keys and values of all layers, lf (tables of addresses) to pf."""
    name = "transfer_kv_all_layer_lf_pf"
    check(name, src_indices, dst_indices, item_size)
    pairs = [
        (src, page_first(dst, item_size, dst_layout_dim, layer))
        for table, dst in ((src_k_layers, dst_k), (src_v_layers, dst_v))
        for layer, src in enumerate(layer_table(name, table, item_size, num_layers))
    ]
    launch(name, src_indices, dst_indices, pairs, [src_k_layers, dst_k, src_v_layers, dst_v])


def transfer_kv_all_layer_lf_ph(
    src_k_layers: Tensor,
    dst_k: Tensor,
    src_v_layers: Tensor,
    dst_v: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
    page_size: int,
    head_num: int,
    block_quota: int = 2,
    num_warps_per_block: int = 32,
) -> None:
    """Back up keys and values of all layers, lf (tables of addresses) to ph."""
    name = "transfer_kv_all_layer_lf_ph"
    check(name, src_indices, dst_indices, item_size)
    checks.item_size(name, item_size, head_num)
    pairs = [
        (src, page_head(dst, item_size, dst_layout_dim, layer, page_size=page_size, heads=head_num))
        for table, dst in ((src_k_layers, dst_k), (src_v_layers, dst_v))
        for layer, src in enumerate(layer_table(name, table, item_size, num_layers))
    ]
    launch(name, src_indices, dst_indices, pairs, [src_k_layers, dst_k, src_v_layers, dst_v])
