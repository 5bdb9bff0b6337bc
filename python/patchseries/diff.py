"""Strict application of git diffs, in memory: the exact lines at the exact place, or an error.

unidiff parses; nothing is searched for, so a hunk that would fit some lines further down is
refused. Only what the series needs is understood: files changed, added and deleted. Renames,
copies, mode changes, links and binary patches are refused by name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterator

from unidiff.constants import (
    LINE_TYPE_ADDED,
    LINE_TYPE_EMPTY,
    LINE_TYPE_NO_NEWLINE,
    LINE_TYPE_REMOVED,
)
from unidiff.errors import UnidiffParseError
from unidiff.patch import Hunk as ParsedHunk
from unidiff.patch import PatchedFile, PatchSet

from patchseries.errors import PatchSeriesError

ABSENT = "absent"
"""Stands where a hash would, for a file that is not there."""

PREFIX = "python/sglang/"
"""Every path of a patch starts so: the wheel holds nothing else of the git repository."""

_INDEX = re.compile(r"index ([0-9a-f]+)\.\.([0-9a-f]+)(?: (\d{6}))?$")
_MODE = re.compile(r"(new|deleted) file mode (100644|100755)$")


@dataclasses.dataclass(frozen=True)
class Hunk:
    """One run of changed lines with its context.

    old_start, new_start: 0-based index of the first line on either side.
    old, new: the lines as bytes, each with its newline if it has one.
    line: where the hunk starts in the patch file, from 1.
    """

    old_start: int
    new_start: int
    old: tuple[bytes, ...]
    new: tuple[bytes, ...]
    line: int


@dataclasses.dataclass(frozen=True)
class FileChange:
    """What a patch does to one file.

    path: as in the git repository, `python/sglang/...`, with `/`.
    old_blob, new_blob: git's object ids from the index line; None on the side that has no file.
    mode: permission bits of an added or deleted file, else None.
    added, removed: count of lines.
    """

    path: str
    old_blob: str | None
    new_blob: str | None
    mode: int | None
    hunks: tuple[Hunk, ...]
    added: int
    removed: int
    line: int
    patch: str

    def reverse(self) -> FileChange:
        """The change that takes this one back."""
        return dataclasses.replace(
            self,
            old_blob=self.new_blob,
            new_blob=self.old_blob,
            added=self.removed,
            removed=self.added,
            hunks=tuple(
                dataclasses.replace(
                    hunk,
                    old_start=hunk.new_start,
                    new_start=hunk.old_start,
                    old=hunk.new,
                    new=hunk.old,
                )
                for hunk in self.hunks
            ),
        )

    def apply(self, content: bytes | None) -> bytes | None:
        """The content of the file after this change; None stands for no file.

        Raises PatchSeriesError that names the patch, the line of the hunk and the line of the file.
        """
        if (content is None) != (self.old_blob is None):
            raise PatchSeriesError(
                "the file is not there" if content is None else "the file is already there",
                where=f"{self.patch}:{self.line}: {self.path}",
                expected="a file to change" if content is None else "no file, as the patch adds it",
            )
        lines = split_lines(content or b"")
        result: list[bytes] = []
        position = 0
        for hunk in self.hunks:
            end = hunk.old_start + len(hunk.old)
            self._check_hunk(hunk, lines[hunk.old_start : end], position)
            result += lines[position : hunk.old_start]
            result += hunk.new
            position = end
        result += lines[position:]
        if any(not line.endswith(b"\n") for line in result[:-1]):
            raise self._does_not_apply(self.hunks[-1].line, "a line in mid-file has no newline")
        if self.new_blob is None:
            if result:
                raise self._does_not_apply(self.line, f"deleting it leaves {len(result)} lines")
            return None
        return b"".join(result)

    def _check_hunk(self, hunk: Hunk, found: list[bytes], position: int) -> None:
        if hunk.old_start < position:
            raise self._does_not_apply(hunk.line, "hunks overlap or are out of order")
        for offset, expected in enumerate(hunk.old):
            actual = found[offset] if offset < len(found) else None
            if actual != expected:
                shown = (
                    "the end of the file"
                    if actual is None
                    else repr(actual.decode(errors="replace"))
                )
                raise self._does_not_apply(
                    hunk.line,
                    f"line {hunk.old_start + offset + 1} of the file is {shown}",
                    repr(expected.decode(errors="replace")),
                )

    def _does_not_apply(self, line: int, why: str, expected: str = "") -> PatchSeriesError:
        return PatchSeriesError(
            f"{self.path}: the patch does not apply: {why}",
            where=f"{self.patch}:{line}",
            expected=expected,
        )


def split_lines(content: bytes) -> list[bytes]:
    r"""Lines with their ends. Only `\n` ends a line, as for git; `bytes.splitlines` knows more."""
    lines = [line + b"\n" for line in content.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def sha256(content: bytes | None) -> str:
    """Hex SHA-256 of a file's content, or `ABSENT`."""
    return ABSENT if content is None else hashlib.sha256(content).hexdigest()


def blob_id(content: bytes | None) -> str:
    """Git's SHA-1 object id of a file's content; forty zeros for no file."""
    if content is None:
        return "0" * 40
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def parse(text: str, patch: str, first_line: int = 1) -> tuple[FileChange, ...]:
    """Parse the diff part of a patch.

    text: from the first `diff --git` line to the end.
    patch: name for messages; first_line: where text starts in that file.

    Raises PatchSeriesError for what is malformed, unknown, or left over.
    """
    if "\r" in text:
        line = first_line + text.count("\n", 0, text.index("\r"))
        raise PatchSeriesError(
            "the patch has CRLF line ends",
            where=f"{patch}:{line}",
            expected="LF only; git's autocrlf rewrites files of a checkout",
            command="git config core.autocrlf false, then check the file out again",
        )
    if not text.endswith("\n"):
        raise PatchSeriesError(
            "the patch ends in mid-line", where=patch, expected="a newline at its end"
        )
    try:
        files = PatchSet.from_string(text)
    except UnidiffParseError as error:
        raise PatchSeriesError(
            f"not a diff: {str(error).strip()}",
            where=patch,
            expected="a diff as git writes it, with line counts that are right",
            command="export it again from its commit, do not edit hunks by hand",
        ) from error
    lines = text.split("\n")
    changes = tuple(_change(file, lines, patch, first_line) for file in files)
    understood = sum(_line_count(file) for file in files)
    written = len(text.rstrip("\n").split("\n"))
    if understood != written:
        raise PatchSeriesError(
            f"{abs(written - understood)} lines of the diff belong to no hunk",
            where=patch,
            expected="nothing but diffs after the message, with line counts that are right",
            command="export it again from its commit, do not edit hunks by hand",
        )
    repeated = [change.path for change in changes]
    for path in repeated:
        if repeated.count(path) > 1:
            raise PatchSeriesError("one file twice in a patch", where=f"{patch}: {path}")
    return changes


def _line_count(file: PatchedFile) -> int:
    """Lines of text that unidiff took up as part of this file."""
    lines = len(file.patch_info or ())
    if len(file):
        lines += 2
    for hunk in file:
        lines += 1 + sum(1 for line in hunk if line.line_type != LINE_TYPE_EMPTY)
    return lines


def _change(file: PatchedFile, lines: list[str], patch: str, first_line: int) -> FileChange:
    start = (file.diff_line_no or 1) - 1
    line = first_line + start
    header = [text.rstrip("\n") for text in file.patch_info or ()]
    path, blobs, mode = _read_header(header, f"{patch}:{line}")
    hunks = tuple(_hunk(hunk, first_line) for hunk in file)
    is_added = any(text.startswith("new file") for text in header)
    is_deleted = any(text.startswith("deleted file") for text in header)
    names = lines[start + len(header) :][:2]
    expected = [
        "--- /dev/null" if is_added else f"--- a/{path}",
        "+++ /dev/null" if is_deleted else f"+++ b/{path}",
    ]
    if hunks and names != expected:
        raise PatchSeriesError(
            f"the file names disagree: {' and '.join(names)}",
            where=f"{patch}:{line}",
            expected=" and ".join(expected),
        )
    return FileChange(
        path=path,
        old_blob=None if is_added else blobs[0],
        new_blob=None if is_deleted else blobs[1],
        mode=mode,
        hunks=hunks,
        added=sum(hunk.added for hunk in file),
        removed=sum(hunk.removed for hunk in file),
        line=line,
        patch=patch,
    )


def _read_header(header: list[str], where: str) -> tuple[str, tuple[str, str], int | None]:
    """Path, blob ids, and the mode of an added or deleted file."""
    matched = re.match(r"diff --git a/(\S+) b/(\S+)$", header[0])
    path = matched[1] if matched and matched[1] == matched[2] else ""
    parts = path.split("/")
    if not path.startswith(PREFIX) or "" in parts or "." in parts or ".." in parts or '"' in path:
        raise PatchSeriesError(
            f"cannot take up {header[0]!r}",
            where=where,
            expected=f"one file under {PREFIX}, the same on both sides, no blanks in its name",
        )
    blobs: tuple[str, str] | None = None
    mode: int | None = None
    for text in header[1:]:
        index, file_mode = _INDEX.match(text), _MODE.match(text)
        if index:
            blobs = (index[1], index[2])
        elif file_mode:
            mode = int(file_mode[2], 8) & 0o777
        else:
            raise PatchSeriesError(
                f"cannot take up {text!r}",
                where=f"{where}: {path}",
                expected="a text file changed, added or deleted; no rename, mode change or binary",
            )
    if blobs is None:
        raise PatchSeriesError(
            "no index line", where=f"{where}: {path}", expected="'index OLD..NEW'"
        )
    return path, blobs, mode


def _hunk(hunk: ParsedHunk, first_line: int) -> Hunk:
    old, new = [], []
    for kind, value in _hunk_lines(hunk):
        if kind != LINE_TYPE_ADDED:
            old.append(value)
        if kind != LINE_TYPE_REMOVED:
            new.append(value)
    # A side without lines names the line before it, so that it is already 0-based.
    return Hunk(
        old_start=hunk.source_start - 1 if old else hunk.source_start,
        new_start=hunk.target_start - 1 if new else hunk.target_start,
        old=tuple(old),
        new=tuple(new),
        line=first_line + (hunk[0].diff_line_no or 2) - 2,
    )


def _hunk_lines(hunk: ParsedHunk) -> Iterator[tuple[str, bytes]]:
    lines = [line for line in hunk if line.line_type != LINE_TYPE_EMPTY]
    for position, line in enumerate(lines):
        if line.line_type == LINE_TYPE_NO_NEWLINE:
            continue
        value = line.value.encode()
        following = lines[position + 1] if position + 1 < len(lines) else None
        if following is not None and following.line_type == LINE_TYPE_NO_NEWLINE:
            value = value.removesuffix(b"\n")
        yield line.line_type, value
