"""Bytes that follow from tokens, so that what comes back from the host can be told right or wrong.

The KV of a token and a Mamba state both depend on every token before them. Each gets bytes made
from a 64-bit hash of that prefix, the number of its plane (layer, key or value, kind of state) and
the place in the row: a row from another token, layer, request or position differs.
"""

from __future__ import annotations

from array import array

import torch

# Odd constants of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators,
# 2014), as signed 64-bit numbers.
_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def prefix_hashes(tokens: array[int]) -> torch.Tensor:
    """int64 [len(tokens)]: entry i stands for tokens[: i + 1], in their order."""
    ids = torch.frombuffer(tokens, dtype=torch.int64)
    places = torch.arange(len(ids), dtype=torch.int64)
    return torch.cumsum(_mix(_mix(ids) + places * _GAMMA), 0)


def rows(hashes: torch.Tensor, plane: int, like: torch.Tensor) -> torch.Tensor:
    """One row for each hash, of the shape [len(hashes), *like.shape[1:]] and the type of `like`.

    Bytes are arbitrary: as floating point they may be NaN, so compare with `same_bytes`.
    """
    row = like.shape[1:].numel() * like.element_size()
    words = -(-row // 8)
    places = torch.arange(words, dtype=torch.int64) + (plane + 1) * 0x10001
    data = _mix(hashes[:, None] + places * _GAMMA)
    raw = data.view(torch.uint8)[:, :row].contiguous()
    return raw.view(like.dtype).reshape(len(hashes), *like.shape[1:])


def same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one shape and type hold the same bytes."""
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def _mix(values: torch.Tensor) -> torch.Tensor:
    values = values + _GAMMA
    values = (values ^ _shifted(values, 30)) * _MIX_1
    values = (values ^ _shifted(values, 27)) * _MIX_2
    return values ^ _shifted(values, 31)


def _shifted(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift to the right; torch's own keeps the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
