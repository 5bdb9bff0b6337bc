"""sglang with HiCache where there is no accelerator; see `environment`."""

from __future__ import annotations

from sglang_cpu.env import environment

__all__ = ["environment"]
