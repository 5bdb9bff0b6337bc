"""The bytes that stand for a prefix differ wherever the prefix, the place or the plane differs."""

from __future__ import annotations

from array import array

import pytest
import torch

from hicache_bench.cache import patterns

TOKENS = array("q", range(1000, 1128))


def test_a_hash_stands_for_all_tokens_up_to_its_place() -> None:
    whole = patterns.prefix_hashes(TOKENS)
    assert whole.shape == (128,)
    assert torch.equal(whole[:50], patterns.prefix_hashes(TOKENS[:50]))
    assert len(whole.unique()) == 128


@pytest.mark.parametrize("place", [0, 31, 62])
def test_one_other_token_changes_every_hash_from_there_on(place: int) -> None:
    other = array("q", TOKENS)
    other[place] += 1
    same = patterns.prefix_hashes(TOKENS) == patterns.prefix_hashes(other)
    assert same[:place].all()
    assert not same[place:].any()


def test_the_order_of_tokens_counts() -> None:
    swapped = array("q", TOKENS)
    swapped[3], swapped[4] = swapped[4], swapped[3]
    last = patterns.prefix_hashes(TOKENS)[-1]
    assert last != patterns.prefix_hashes(swapped)[-1]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_differ_by_hash_and_plane_and_have_the_type_of_the_buffer(dtype: torch.dtype) -> None:
    buffer = torch.zeros((4, 3, 5), dtype=dtype)
    hashes = patterns.prefix_hashes(TOKENS)
    rows = [patterns.rows(hashes, plane, buffer) for plane in range(8)]
    assert rows[0].shape == (128, 3, 5)
    assert rows[0].dtype == dtype
    seen = {bytes(row.contiguous().view(torch.uint8).flatten()) for rows_ in rows for row in rows_}
    assert len(seen) == 8 * 128


def test_bytes_are_compared_as_bytes_not_as_numbers() -> None:
    nan, zero = torch.tensor([float("nan")]), torch.tensor([0.0])
    assert patterns.same_bytes(nan, nan.clone())
    assert not patterns.same_bytes(zero, -zero)
