"""Change several files as one: all of them, or none.

Every write, link, rename and fsync that changes a target goes through this module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType

NEW_SUFFIX = ".patchseries-new"
OLD_SUFFIX = ".patchseries-old"


@dataclasses.dataclass(frozen=True)
class Write:
    """One file to be written or deleted.

    content: None deletes it. mode: permission bits for a file that is not there yet; a file that is
    there keeps its own.
    """

    path: Path
    content: bytes | None
    mode: int = 0o644


class RollbackFailedError(OSError):
    """A change failed half-way, and going back failed too."""


class Transaction:
    """Write beside, then rename, with the way back kept open until the end.

    with Transaction(writes) as transaction:  # writes every new file beside its place
        transaction.commit()                  # renames
        ...                                   # an exception here undoes the renames

    What was there is kept under a second name beside it (a hard link where the file system has
    them), so that going back needs no space and restores the very inode. Names start with a dot:
    nothing can import a half-written module.
    """

    def __init__(self, writes: Sequence[Write]) -> None:
        self._writes = list(writes)
        self._renamed: list[Write] = []
        self._existed: dict[Path, bool] = {}
        self.created_folders: list[Path] = []

    def __enter__(self) -> Transaction:
        try:
            for write in self._writes:
                self._stage(write)
        except BaseException:
            self.rollback()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.rollback()
            return
        with contextlib.suppress(OSError):  # all is done; what stays behind is swept up next time
            clean(write.path for write in self._writes)

    def commit(self) -> None:
        """Rename everything into place, and make the renames durable."""
        for write in self._writes:
            self._renamed.append(write)
            if write.content is None:
                write.path.unlink()
            else:
                beside(write.path, NEW_SUFFIX).replace(write.path)
        for folder in {write.path.parent for write in self._writes}:
            sync_folder(folder)

    def rollback(self) -> None:
        """Put back what was there, and leave nothing beside it.

        Raises RollbackFailedError when that cannot be done.
        """
        try:
            self._put_back()
        except OSError as error:
            raise RollbackFailedError(error.errno, error.strerror, error.filename) from error

    def _put_back(self) -> None:
        for write in reversed(self._renamed):
            old = beside(write.path, OLD_SUFFIX)
            if self._existed[write.path]:
                # Onto a link to the same inode this does nothing; clean() takes the second name.
                old.replace(write.path)
            else:
                write.path.unlink(missing_ok=True)
        self._renamed.clear()
        clean(write.path for write in self._writes)
        remove_folders(self.created_folders)

    def _stage(self, write: Write) -> None:
        self._make_parents(write.path.parent)
        clean([write.path])
        self._existed[write.path] = write.path.exists()
        if self._existed[write.path]:
            old = beside(write.path, OLD_SUFFIX)
            try:
                os.link(write.path, old)
            except OSError:  # no hard links here: a copy serves as well
                write_durably(old, write.path.read_bytes(), like=write.path)
        if write.content is not None:
            like = write.path if self._existed[write.path] else None
            write_durably(beside(write.path, NEW_SUFFIX), write.content, write.mode, like=like)

    def _make_parents(self, folder: Path) -> None:
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        for each in reversed(missing):
            each.mkdir()
            self.created_folders.append(each)


def beside(path: Path, suffix: str) -> Path:
    """The hidden name next to a file."""
    return path.with_name(f".{path.name}{suffix}")


def clean(paths: Iterable[Path]) -> None:
    """Remove what a run that was killed may have left beside these files."""
    for path in paths:
        for suffix in (NEW_SUFFIX, OLD_SUFFIX):
            beside(path, suffix).unlink(missing_ok=True)


def leftovers(paths: Sequence[Path]) -> list[Path]:
    """The hidden files that a run that was killed has left beside these files."""
    both = [beside(path, suffix) for path in paths for suffix in (NEW_SUFFIX, OLD_SUFFIX)]
    return [path for path in both if path.exists()]


def remove_folders(folders: Sequence[Path]) -> None:
    """Remove folders that were made, innermost first, unless something is in them now."""
    for folder in sorted(folders, key=lambda each: len(each.parts), reverse=True):
        try:
            folder.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise


def write_durably(
    path: Path, content: bytes, mode: int = 0o644, *, like: Path | None = None
) -> None:
    """Create or overwrite a file and fsync it.

    like: a file whose owner (as far as allowed), permission bits and set-id bits it takes over.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if like is None:
            os.fchmod(descriptor, mode)
        else:
            model = like.stat()
            if (model.st_uid, model.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(PermissionError):
                    os.fchown(descriptor, model.st_uid, model.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(model.st_mode))
        os.fsync(descriptor)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(descriptor)


def replace_durably(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace one file whole: whoever reads it, even after a kill, sees the old or the new one."""
    new = beside(path, NEW_SUFFIX)
    try:
        write_durably(new, content, mode, like=path if path.exists() else None)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # file systems that know no such thing
            raise
    finally:
        os.close(descriptor)
