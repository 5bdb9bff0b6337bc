"""The bytes in the device's pools: written where a model would compute, compared where reused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from hicache_bench.cache import patterns


class WrongBytesError(Exception):
    """What a request was given back is not what its prefix should have left."""


class Contents:
    """What the KV pool and the state pool hold, by `patterns`.

    kv_pool: keys and values, a buffer [slots, ...] for each layer. state_pool: convolution and
    temporal states, buffers [layers, slots, ...].
    """

    def __init__(self, kv_pool: Any, state_pool: Any) -> None:
        self._kv = [*_alternating(kv_pool.k_buffer, kv_pool.v_buffer)]
        kinds = [*state_pool.mamba_cache.conv, state_pool.mamba_cache.temporal]
        self._states = [
            (1000 + 100 * kind + layer, buffer[layer])
            for kind, buffer in enumerate(kinds)
            for layer in range(len(buffer))
        ]
        self.compared = 0
        """Reused prefixes whose bytes were compared."""

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's Full KV, all layers."""
        return _row_bytes(self._kv)

    @property
    def state_bytes(self) -> int:
        """Bytes of one Mamba state, all layers."""
        return _row_bytes(self._states)

    def write_kv(self, hashes: torch.Tensor, slots: torch.Tensor) -> None:
        """Write the KV of tokens. hashes, slots: int64 [n]."""
        for plane, buffer in self._kv:
            buffer[slots] = patterns.rows(hashes, plane, buffer)

    def write_state(self, hash_: torch.Tensor, slot: int) -> None:
        """Write the state after the token of `hash_`, int64 [1]."""
        for plane, buffer in self._states:
            buffer[slot] = patterns.rows(hash_, plane, buffer)[0]

    def compare(self, hashes: torch.Tensor, slots: torch.Tensor, state: int) -> None:
        """Compare reused KV (int64 slots [n]) and the reused state with their prefix's bytes.

        Raises WrongBytesError that names the plane.
        """
        for plane, buffer in self._kv:
            if not patterns.same_bytes(buffer[slots], patterns.rows(hashes, plane, buffer)):
                raise WrongBytesError(f"reused KV of {len(slots)} tokens differs in plane {plane}")
        for plane, buffer in self._states:
            if not patterns.same_bytes(buffer[state], patterns.rows(hashes[-1:], plane, buffer)[0]):
                raise WrongBytesError(
                    f"the reused state is not the one after {len(slots)} tokens (plane {plane})"
                )
        self.compared += 1


def _alternating(
    keys: list[torch.Tensor], values: list[torch.Tensor]
) -> Iterator[tuple[int, torch.Tensor]]:
    """Number and buffer of each layer's keys and of its values."""
    for layer, pair in enumerate(zip(keys, values, strict=True)):
        for part, buffer in enumerate(pair):
            yield 2 * layer + part, buffer


def _row_bytes(planes: list[tuple[int, torch.Tensor]]) -> int:
    return sum(buffer[0].numel() * buffer.element_size() for _, buffer in planes)
