# ruff: noqa: PLR0917 - the signatures are those of the CUDA copies
"""The `kernel` copies of one buffer instead of keys and values: MLA, keys only, Mamba states.

As `sglang_cpu.kernel_copies`, which says what the layouts and arguments are.
"""

from __future__ import annotations

from torch import Tensor

from sglang_cpu import checks
from sglang_cpu.launch import check, launch, layer_first, layer_table, page_first


def transfer_kv_per_layer_mla(
    src: Tensor,
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    block_quota: int = 2,
    num_warps_per_block: int = 32,
) -> None:
    """Copy one layer, lf to lf."""
    name = "transfer_kv_per_layer_mla"
    check(name, src_indices, dst_indices, item_size)
    pairs = [(layer_first(src, item_size), layer_first(dst, item_size))]
    launch(name, src_indices, dst_indices, pairs, [src, dst])


def transfer_kv_per_layer_mla_pf_lf(
    src: Tensor,
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
    block_quota: int = 2,
    num_warps_per_block: int = 32,
) -> None:
    """Load one layer, pf to lf."""
    name = "transfer_kv_per_layer_mla_pf_lf"
    check(name, src_indices, dst_indices, item_size)
    pairs = [(page_first(src, item_size, src_layout_dim, layer_id), layer_first(dst, item_size))]
    launch(name, src_indices, dst_indices, pairs, [src, dst])


def transfer_kv_all_layer_mla(
    src_layers: Tensor,
    dst_layers: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    num_layers: int,
    block_quota: int = 2,
    num_warps_per_block: int = 32,
) -> None:
    """Back up all layers, lf to lf; both are tables of addresses."""
    name = "transfer_kv_all_layer_mla"
    check(name, src_indices, dst_indices, item_size)
    pairs = list(
        zip(
            layer_table(name, src_layers, item_size, num_layers),
            layer_table(name, dst_layers, item_size, num_layers),
            strict=True,
        )
    )
    launch(name, src_indices, dst_indices, pairs, [src_layers, dst_layers])


def transfer_kv_all_layer_mla_lf_pf(
    src_layers: Tensor,
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
    block_quota: int = 2,
    num_warps_per_block: int = 32,
) -> None:
    """Back up all layers, lf (a table of addresses) to pf."""
    name = "transfer_kv_all_layer_mla_lf_pf"
    check(name, src_indices, dst_indices, item_size)
    pairs = [
        (src, page_first(dst, item_size, dst_layout_dim, layer))
        for layer, src in enumerate(layer_table(name, src_layers, item_size, num_layers))
    ]
    launch(name, src_indices, dst_indices, pairs, [src_layers, dst])


def transfer_kv_mamba_pf_lf(
    src: Tensor,
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
    num_warps_per_item: int = 32,
) -> None:
    """Load one layer of a Mamba state, pf to lf; nothing to copy is no error."""
    name = "transfer_kv_mamba_pf_lf"
    checks.indices(name, src_indices, dst_indices)
    checks.item_size(name, item_size, 16)
    pairs = [(page_first(src, item_size, src_layout_dim, layer_id), layer_first(dst, item_size))]
    launch(name, src_indices, dst_indices, pairs, [src, dst])


def transfer_kv_mamba_lf_pf(
    src_ptrs: Tensor,
    dst: Tensor,
    src_indices: Tensor,
    dst_indices: Tensor,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
    num_warps_per_item: int = 32,
) -> None:
    """Back up all layers of Mamba states, lf (a table) to pf; nothing to copy is no error."""
    name = "transfer_kv_mamba_lf_pf"
    checks.indices(name, src_indices, dst_indices)
    checks.item_size(name, item_size, 16)
    pairs = [
        (src, page_first(dst, item_size, dst_layout_dim, layer))
        for layer, src in enumerate(layer_table(name, src_ptrs, item_size, num_layers))
    ]
    launch(name, src_indices, dst_indices, pairs, [src_ptrs, dst])
