"""The order of the patches (file `series`) and the patches themselves."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
from pathlib import Path

from patchseries import diff, message
from patchseries.errors import ExitCode, PatchSeriesError
from patchseries.repository import SERIES_NAME, Repository

BASE = "base"
"""Stands for no patch at all wherever the end of a prefix is named."""

ALL = "all"
"""Stands for the whole series there."""

_GROUP = re.compile(r"#\s*group:\s*(\S+)\s*$")


@dataclasses.dataclass(frozen=True)
class Patch:
    """One patch file, parsed when asked. group: as the series file says; line: its line there."""

    name: str
    group: str
    text: str
    line: int = dataclasses.field(default=0, compare=False)

    @property
    def sha256(self) -> str:
        return diff.sha256(self.text.encode())

    @functools.cached_property
    def message(self) -> message.Message:
        return message.parse(self.text, self.name)

    @functools.cached_property
    def changes(self) -> tuple[diff.FileChange, ...]:
        return diff.parse(self.message.diff, self.name, self.message.diff_line)

    def apply(self, files: dict[str, bytes | None]) -> None:
        """Apply to files in memory (path to content, None for no file), in place.

        Raises PatchSeriesError where a hunk does not apply exactly; files is then half changed.
        """
        for change in self.changes:
            files[change.path] = change.apply(files.get(change.path))

    def reverse(self, files: dict[str, bytes | None]) -> None:
        """Take the patch back from files in memory, in place; errors as in `apply`."""
        for change in reversed(self.changes):
            files[change.path] = change.reverse().apply(files.get(change.path))


@dataclasses.dataclass(frozen=True)
class Series:
    """The patches of one base, in order."""

    base: str
    folder: Path
    patches: tuple[Patch, ...]

    @property
    def groups(self) -> list[str]:
        """Group names in order."""
        return list(dict.fromkeys(patch.group for patch in self.patches))

    @property
    def paths(self) -> list[str]:
        """Every path that some patch touches, sorted."""
        return sorted({change.path for patch in self.patches for change in patch.changes})

    def count(self, through: str | None) -> int:
        """How many patches a `--through` value stands for.

        through: a group, a patch file name with or without `.patch`, `base`, or `all` or None.

        Raises PatchSeriesError (usage) for anything else.
        """
        if through in (None, ALL):
            return len(self.patches)
        if through == BASE:
            return 0
        for position in range(len(self.patches), 0, -1):
            patch = self.patches[position - 1]
            if through in (patch.group, patch.name, patch.name.removesuffix(".patch")):
                return position
        raise PatchSeriesError(
            f"no patch or group is named {through!r}",
            where=self.folder / SERIES_NAME,
            expected=f"'{BASE}', '{ALL}', a group ({', '.join(self.groups)}) or a patch file name",
            command=f"python -m patchseries list --base {self.base}",
            code=ExitCode.USAGE,
        )

    def through(self, through: str | None) -> tuple[Patch, ...]:
        """The prefix that a `--through` value stands for; errors as in `count`."""
        return self.patches[: self.count(through)]

    def label(self, count: int) -> str:
        """How the prefix of that many patches is named to the user."""
        return self.patches[count - 1].name.removesuffix(".patch") if count else BASE


@dataclasses.dataclass(frozen=True)
class Entry:
    """A line of the series file that names a patch, with the comments right above it."""

    name: str
    group: str
    line: int
    comments: tuple[str, ...] = ()


def read_entries(path: Path) -> list[Entry]:
    """Read a series file; no file is an empty series."""
    if not path.exists():
        return []
    entries: list[Entry] = []
    group, comments = "", []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            matched = _GROUP.match(line)
            group = matched[1] if matched else group
            comments.append(line)
        else:
            entries.append(Entry(line.strip(), group, number, tuple(comments)))
            comments = []
    return entries


def render_entries(names: Sequence[str], previous: Sequence[Entry], default_group: str) -> str:
    """The series file for names in this order, groups and comments taken over from previous.

    A new name joins the group of the name before it, the first one that of the first group.

    Raises PatchSeriesError when a group would be torn apart.
    """
    known = {entry.name: entry for entry in previous}
    group = previous[0].group if previous else default_group
    lines: list[str] = []
    written: list[str] = []
    for name in names:
        entry = known.get(name)
        group = entry.group if entry else group
        comments = [] if entry is None else list(entry.comments)
        comments = [line for line in comments if not _GROUP.match(line)]
        if group not in written[-1:]:
            if group in written:
                raise PatchSeriesError(
                    f"{name} of group {group} comes after a patch of another group",
                    where=SERIES_NAME,
                    expected="the patches of a group side by side",
                    command="reorder the commits, or change the group lines of the series file",
                )
            if written:
                comments = ["", *[line for line in comments if line]]
            if group:
                comments.append(f"# group: {group}")
            written.append(group)
        lines += [*comments, name]
    return "\n".join(lines) + "\n" if lines else ""


def read_text(path: Path) -> str:
    """Read UTF-8 text without touching its line ends.

    Raises PatchSeriesError when the file is missing or not UTF-8.
    """
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise PatchSeriesError(
            "no such file", where=path, expected="a file of the series"
        ) from None
    except UnicodeDecodeError as error:
        raise PatchSeriesError(
            f"not UTF-8 at byte {error.start}", where=path, expected="UTF-8 text"
        ) from None


def load(repository: Repository, base: str) -> Series:
    """Read the series of a base with all its patches.

    Raises PatchSeriesError for an unknown base, a repeated name, or a name without a file.
    """
    folder = repository.folder(base)
    patches: list[Patch] = []
    for entry in read_entries(folder / SERIES_NAME):
        if entry.name in {patch.name for patch in patches}:
            raise PatchSeriesError(
                f"{entry.name} is there twice",
                where=f"{folder / SERIES_NAME}:{entry.line}",
                expected="each patch once",
            )
        if not (folder / entry.name).is_file():
            raise PatchSeriesError(
                f"no file for the entry {entry.name}",
                where=f"{folder / SERIES_NAME}:{entry.line}",
                expected=f"a patch file in {folder}",
                command=f"python -m patchseries lint --base {base}",
            )
        text = read_text(folder / entry.name)
        patches.append(Patch(entry.name, entry.group, text, entry.line))
    return Series(base, folder, tuple(patches))
