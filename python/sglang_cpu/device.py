"""What ``torch.get_device_module()`` gives to sglang where there is no accelerator.

`torch.cpu`, with streams and events that can be held (`sglang_cpu.streams`).
"""

from __future__ import annotations

from typing import Any

import torch

from sglang_cpu.streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    stream,
    synchronize,
)

__all__ = ["Event", "Stream", "current_stream", "default_stream", "stream", "synchronize"]


def empty_cache() -> None:
    """Do nothing: the host keeps no cache of freed device memory."""


def is_current_stream_capturing() -> bool:
    """False: there are no graphs to capture."""
    return False


def __getattr__(name: str) -> Any:
    return getattr(torch.cpu, name)
