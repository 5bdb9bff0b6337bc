"""sglang with HiCache where there is no accelerator; see `environment`, and `copied`."""

from __future__ import annotations

from sglang_cpu.env import environment
from sglang_cpu.totals import COPIED, copied

__all__ = ["COPIED", "copied", "environment"]
