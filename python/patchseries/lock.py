"""One command at a time per target: an advisory lock that leaves no file and dies with its process.

The folder that holds `sglang/` is itself locked (flock(2) takes any descriptor, opened for reading
only), so that there is nothing to write in a read-only place, and nothing to sweep up after a kill.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from patchseries.errors import PatchSeriesError
from patchseries.targets import Target

_BUSY = (errno.EWOULDBLOCK, errno.EACCES)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.ENOSYS, errno.EINVAL)
_LOCKS = Path("/proc/locks")


def _say(line: str) -> None:
    print(f"patchseries: {line}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def hold(target: Target, *, wait: bool = True, say: Callable[[str], None] = _say) -> Iterator[None]:
    """Hold the lock of a target; where another process has it, say who and wait.

    On a file system without locks (some network mounts) it says so and goes on.

    Raises PatchSeriesError that names the holder, when `wait` is false.
    """
    folder = target.package.parent
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _take(descriptor, folder, wait=wait, say=say)
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, folder: Path, *, wait: bool, say: Callable[[str], None]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            say(f"{folder} has no locks ({error.strerror}): let nobody else change it meanwhile")
            return
        if error.errno not in _BUSY:
            raise
        who = describe(holder(folder))
        if not wait:
            raise PatchSeriesError(
                f"{who} is changing this target",
                where=folder,
                expected="one apply or reverse at a time",
                command="the same again when it is done, or without --no-wait",
            ) from None
        say(f"waiting for {who}, which is changing {folder}")
        fcntl.flock(descriptor, fcntl.LOCK_EX)


def describe(process: int | None) -> str:
    """How the holder is named to the user."""
    return f"process {process}" if process else "another process"


def holder(folder: Path) -> int | None:
    """The process that holds the lock of a folder; None for nobody, or where that cannot be seen.

    The kernel lists who holds some lock; which of them holds this folder is told by their open
    files, as the device numbers in the list are not those of stat(2) on every file system.
    """
    try:
        listed = _LOCKS.read_text().splitlines()
        meant = folder.stat()
    except OSError:
        return None
    for line in listed:
        fields = line.split()
        if "->" in fields or "FLOCK" not in fields or "WRITE" not in fields:
            continue
        process = fields[fields.index("WRITE") + 1]
        if process.isdigit() and _has_open(process, meant):
            return int(process)
    return None


def _has_open(process: str, meant: os.stat_result) -> bool:
    with contextlib.suppress(OSError):
        for each in Path("/proc", process, "fd").iterdir():
            with contextlib.suppress(OSError):
                if os.path.samestat(each.stat(), meant):
                    return True
    return False
