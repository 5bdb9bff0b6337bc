"""What kind of copy is being made, and the switch that drops one kind.

SGLANG_CPU_DROP=conv_backup,kv_load in the environment makes those copies do nothing, silently. It
exists to prove that a test notices a lost copy: a count of cached tokens does not, bytes and
log-probabilities do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch  # seconds; who only reads totals does without

DROP = "SGLANG_CPU_DROP"
"""Name of the environment variable; its value is a comma-separated list of `KINDS`."""

KINDS = ("kv_backup", "kv_load", "conv_backup", "conv_load", "temporal_backup", "temporal_load")
"""What is copied (keys and values, convolution state, temporal state), and where to: a backup goes
to the host, a load to the device."""

_operation: ContextVar[tuple[Any, Any, str] | None] = ContextVar("operation", default=None)


@contextmanager
def operation(host_pool: object, device_pool: object, direction: str) -> Iterator[None]:
    """Say that the block is one call of a host pool; `direction` is "backup" or "load"."""
    token = _operation.set((host_pool, device_pool, direction))
    try:
        yield
    finally:
        _operation.reset(token)


def current_pools() -> tuple[object, ...]:
    """The host pool and the device pool of the `operation` under way; empty outside of one."""
    current = _operation.get()
    return () if current is None else current[:2]


def current_kind(tensors: Sequence[torch.Tensor]) -> str:
    """The kind of a copy between these tensors; empty outside of `operation`."""
    current = _operation.get()
    if current is None:
        return ""
    host_pool, _, direction = current
    temporal = getattr(host_pool, "temporal_buffer", None)
    if temporal is None:
        return f"kv_{direction}"
    start = temporal.untyped_storage().data_ptr()
    is_temporal = any(tensor.untyped_storage().data_ptr() == start for tensor in tensors)
    return f"{'temporal' if is_temporal else 'conv'}_{direction}"


def dropped() -> frozenset[str]:
    """The kinds that the environment says to drop.

    Raises:
        ValueError: the variable names something that is no kind; nothing would be dropped, and no
            test could tell.
    """
    names = frozenset(name.strip() for name in os.environ.get(DROP, "").split(",") if name.strip())
    if unknown := names.difference(KINDS):
        raise ValueError(
            f"{DROP}: no such kind of copy: {', '.join(sorted(unknown))}; "
            f"expected {', '.join(KINDS)}"
        )
    return names
