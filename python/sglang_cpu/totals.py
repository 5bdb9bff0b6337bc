"""How many bytes this process has copied, by kind, for whoever watches it from outside.

    env = {**sglang_cpu.environment(tree), sglang_cpu.COPIED: str(folder)}
    server = subprocess.Popen([sys.executable, "-m", "sglang.launch_server", ...], env=env)
    sglang_cpu.copied(folder)       # {"kv_backup": 204800, "kv_load": 0, ...}, at any time

SGLANG_CPU_COPIED=FOLDER in the environment gives each process a small file of its own there,
mapped into its memory, so that a reader sees a copy at once and no copy waits for a disk. Without
it nothing is counted. A copy counts when it is issued; one that SGLANG_CPU_DROP drops does not.
"""

from __future__ import annotations

import functools
import mmap
import os
import tempfile
import threading
from pathlib import Path

from sglang_cpu.kinds import KINDS

COPIED = "SGLANG_CPU_COPIED"
"""Name of the environment variable; its value is a folder that exists."""

_SUFFIX = ".copied"
_WORD = 8  # bytes of an int64
_SIZE = _WORD * len(KINDS)


class _Totals:
    """Bytes by kind in a new file: int64, in the order of `KINDS`."""

    def __init__(self, folder: str) -> None:
        handle, _ = tempfile.mkstemp(prefix=f"{os.getpid()}-", suffix=_SUFFIX, dir=folder)
        with os.fdopen(handle, "r+b") as file:
            file.write(bytes(_SIZE))  # not truncate(): a full disk is to show here
            file.flush()
            self._cells = memoryview(mmap.mmap(file.fileno(), _SIZE)).cast("q")
        self._lock = threading.Lock()

    def add(self, kind: str, size: int) -> None:
        with self._lock:
            self._cells[KINDS.index(kind)] += size


@functools.cache
def _totals(folder: str, process: int) -> _Totals:
    # by process: after a fork, two would add to the same cells, and lose what the other added
    try:
        return _Totals(folder)
    except OSError as error:
        raise ValueError(
            f"{COPIED}: {folder}: {error.strerror}; expected a folder that can be written"
        ) from error


def start() -> None:
    """Make this process's file, where the environment asks for it; nothing the second time.

    Raises:
        ValueError: the variable names no folder, or one that cannot be written.
    """
    if folder := os.environ.get(COPIED):
        _totals(folder, os.getpid())


def count(kind: str, size: int) -> None:
    """Add `size` bytes to a kind of `KINDS`, where the environment asks for it.

    What is copied outside of `sglang_cpu.kinds.operation` has no kind and is not counted.

    Raises:
        ValueError: as `start`.
    """
    folder = os.environ.get(COPIED)
    if folder and kind and size:
        _totals(folder, os.getpid()).add(kind, size)


def copied(folder: Path) -> dict[str, int] | None:
    """Bytes by kind that all processes which count in `folder` have copied since they started.

    Processes that have ended are included. None where none has counted there: with a GPU present,
    sglang_cpu does nothing.
    """
    files = [file.read_bytes() for file in Path(folder).glob(f"*{_SUFFIX}")]
    if not files:
        return None
    # a file that is just being made is empty
    words = [memoryview(data).cast("q") for data in files if len(data) == _SIZE]
    return {kind: sum(cells[index] for cells in words) for index, kind in enumerate(KINDS)}
