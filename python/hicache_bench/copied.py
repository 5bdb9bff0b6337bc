"""Bytes copied between device and host by pool and direction: read from a server, and in words."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import sglang_cpu
from hicache_bench.errors import BenchError

POOLS = {"kv": "kv", "conv": "mamba", "temporal": "mamba"}
DIRECTIONS = {"backup": "device_to_host", "load": "host_to_device"}
"""Names in results of what a kind of `sglang_cpu.kinds.KINDS` is made of, as conv_backup."""

Copied = Mapping[str, Mapping[str, int]]
"""Bytes by pool ("kv", "mamba") and direction."""

HEADS = ("to the host: KV / states", "to the device: KV / states")
"""Heads of the columns that `cells` fills."""

# Unchanged this often, with the server's scheduler back in its loop each time, means all is copied.
_SAME = 3
_PAUSE_S = 0.05
_LIMIT_S = 60.0


class Watch:
    """Tells what one server has copied from one call of `taken` to the next.

    folder: where its processes count (`sglang_cpu.COPIED`). ask: asks the server for something that
    its scheduler answers, between two steps.
    """

    def __init__(self, folder: Path, ask: Callable[[], object], limit_s: float = _LIMIT_S) -> None:
        self._folder = folder
        self._ask = ask
        self._limit_s = limit_s
        self._before: dict[str, int] = {}

    def taken(self) -> Copied | None:
        """Bytes since the last call, or since the start; None where nobody counts (a GPU).

        Waits until they stay the same: a backup can be ordered in the step after the last answer.
        Raises BenchError where they never do, and what `ask` raises.
        """
        now = self._settled()
        if now is None:
            return None
        before, self._before = self._before, now
        return by_pool({kind: size - before.get(kind, 0) for kind, size in now.items()})

    def _settled(self) -> dict[str, int] | None:
        deadline = time.monotonic() + self._limit_s
        last, same = sglang_cpu.copied(self._folder), 0
        while last is not None and same < _SAME:
            if time.monotonic() > deadline:
                raise BenchError(
                    f"the server still copies {self._limit_s:.0f} s after its last answer; "
                    "expected it to rest"
                )
            self._ask()
            time.sleep(_PAUSE_S)
            now = sglang_cpu.copied(self._folder)
            last, same = now, same + 1 if now == last else 0
        return last


def by_pool(kinds: Mapping[str, int]) -> Copied:
    """Bytes by kind (`sglang_cpu.kinds.KINDS`) as bytes by pool and direction."""
    made = {pool: dict.fromkeys(DIRECTIONS.values(), 0) for pool in POOLS.values()}
    for kind, size in kinds.items():
        pool, _, direction = kind.partition("_")
        made[POOLS[pool]][DIRECTIONS[direction]] += size
    return made


def cells(copied: Copied | None) -> tuple[str, ...]:
    """As "22.4 MB / 42.2 kB" for each direction: KV, then states."""
    if copied is None:
        return ("not known",) * len(DIRECTIONS)
    return tuple(
        f"{size(copied['kv'][way])} / {size(copied['mamba'][way])}" for way in DIRECTIONS.values()
    )


def size(count: float) -> str:
    """Bytes in decimal units: 77.3 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
