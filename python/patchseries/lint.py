"""Everything that must hold of a committed series: every problem is told, not just the first."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from patchseries import diff, lint_patch, pin, series, wheels
from patchseries.errors import PatchSeriesError
from patchseries.lint_patch import Problem
from patchseries.repository import PIN_NAME, SERIES_NAME, Repository
from patchseries.series import Entry, Patch


def lint(repository: Repository, base: str) -> list[Problem]:
    """All problems of a base, in the order of the series. Writes nothing but the wheel cache.

    Raises PatchSeriesError for a base that does not exist or a wheel that cannot be had.
    """
    folder = repository.folder(base)
    shown = Path("patches") / base
    problems = list(_series_file(folder, shown))
    patches: list[Patch] = []
    for entry in series.read_entries(folder / SERIES_NAME):
        if any(patch.name == entry.name for patch in patches):
            continue
        if (folder / entry.name).is_file():
            try:
                text = series.read_text(folder / entry.name)
            except PatchSeriesError as error:
                problems.append(Problem.from_error(shown / entry.name, error))
                continue
            patch = Patch(entry.name, entry.group, text, entry.line)
            patches.append(patch)
            problems += lint_patch.problems(patch, shown / entry.name, base, repository.root)
    return problems + list(_against_pin(folder, shown, patches))


def _series_file(folder: Path, shown: Path) -> Iterator[Problem]:
    path = shown / SERIES_NAME
    edit = f"edit {path}"
    if not (folder / SERIES_NAME).is_file():
        yield Problem(path, 1, "no series file", "a file that lists the patches", edit)
        return
    entries = series.read_entries(folder / SERIES_NAME)
    seen: dict[str, Entry] = {}
    finished: list[str] = []
    for entry in entries:
        if entry.name in seen:
            first = f"once; it is also in line {seen[entry.name].line}"
            yield Problem(path, entry.line, f"{entry.name} is there twice", first, edit)
        seen[entry.name] = entry
        if "/" in entry.name or not entry.name.endswith(".patch"):
            yield Problem(path, entry.line, f"{entry.name} names no patch", "NAME.patch", edit)
        elif not (folder / entry.name).is_file():
            what = f"no file for the entry {entry.name}"
            yield Problem(path, entry.line, what, f"{shown / entry.name}", edit)
        if entry.group in (series.BASE, series.ALL):
            what = f"a group is named {entry.group}, which --through takes otherwise"
            yield Problem(path, entry.line, what, "another name", edit)
        if not entry.group:
            what = f"{entry.name} is in no group"
            yield Problem(path, entry.line, what, "a line '# group: NAME' above it", edit)
        if entry.group not in finished[-1:]:
            if entry.group in finished:
                what = f"group {entry.group} is torn apart by {finished[-1]}"
                yield Problem(path, entry.line, what, "its patches side by side", edit)
            finished.append(entry.group)
    for patch in sorted(folder.glob("*.patch")):
        if patch.name not in seen:
            command = f"add it to {path}, or rm {shown / patch.name}"
            yield Problem(shown / patch.name, 1, "not in the series", f"a line in {path}", command)


class _PinCheck:
    """Applies a series in order to the pinned files, and holds base.toml against what comes out."""

    def __init__(self, folder: Path, shown: Path, pinned: pin.Pin) -> None:
        self._base = folder.name
        self._shown = shown
        self._pinned = pinned
        self._lines = series.read_text(folder / PIN_NAME).split("\n")

    def problems(
        self, patches: list[Patch], released: dict[str, bytes | None]
    ) -> Iterator[Problem]:
        if self._pinned.base != self._base:
            yield self._problem("base", f"base is {self._pinned.base!r}", repr(self._base))
        yield from self._released(released)
        names = [patch.name for patch in patches]
        if names != [each.name for each in self._pinned.patches]:
            what = "[[patches]] are not those of the series"
            yield self._problem("[[patches]]", what, ", ".join(names) or "none")
        results = {each.name: each for each in self._pinned.patches}
        current = dict(released)
        hashes = {name: diff.sha256(content) for name, content in released.items()}
        for patch in patches:
            touched: dict[str, str] = {}
            for change in patch.changes:
                problem = _apply_one(self._shown / patch.name, change, current)
                if problem is not None:
                    yield problem
                    return  # what comes after stands on this
                touched[change.path] = diff.sha256(current[change.path])
            hashes.update(touched)
            if patch.name in results:
                yield from self._result(results[patch.name], touched, pin.tree_digest(hashes))
        yield from self._form()

    def _released(self, released: dict[str, bytes | None]) -> Iterator[Problem]:
        pinned = self._pinned.files
        for name, content in sorted(released.items()):
            found = diff.sha256(content)
            if name not in pinned:
                what = f"{name} is touched by a patch but not pinned"
                yield self._problem("[files]", what, found)
            elif pinned[name] != found:
                what = f"{name} is pinned to {pinned[name]}"
                yield self._problem(name, what, f"{found}, as released")
        for name in sorted(set(pinned) - set(released)):
            what = f"{name} is pinned but no patch touches it"
            yield self._problem(name, what, "touched files only")

    def _result(
        self, result: pin.PatchResult, touched: dict[str, str], digest: str
    ) -> Iterator[Problem]:
        after = f"after {result.name}"
        for name in sorted({*result.files, *touched}):
            found, expected = result.files.get(name), touched.get(name)
            if found != expected:
                what = f"{after}, {name} is pinned to {found or 'nothing'}"
                yield self._problem(result.name, what, expected or "no line for it")
        if result.tree != digest:
            yield self._problem(
                result.tree, f"{after}, the tree is pinned to {result.tree}", digest
            )

    def _form(self) -> Iterator[Problem]:
        canonical = pin.render(self._pinned).split("\n")
        for number, pair in enumerate(itertools.zip_longest(self._lines, canonical), 1):
            if pair[0] != pair[1]:
                what = f"not as pin writes it: {pair[0]!r}"
                command = f"python -m patchseries pin --base {self._base}"
                yield Problem(self._shown / PIN_NAME, number, what, repr(pair[1]), command)
                return

    def _problem(self, near: str, what: str, expected: str) -> Problem:
        line = next((number for number, text in enumerate(self._lines, 1) if near in text), 1)
        command = f"python -m patchseries pin --base {self._base}"
        return Problem(self._shown / PIN_NAME, line, what, expected, command)


def _against_pin(folder: Path, shown: Path, patches: list[Patch]) -> Iterator[Problem]:
    try:
        pinned = pin.read(folder)
    except PatchSeriesError as error:
        yield Problem.from_error(shown / PIN_NAME, error)
        return
    try:
        paths = series.Series(folder.name, folder, tuple(patches)).paths
    except PatchSeriesError:
        return  # reported with the patch already; nothing after it can be applied
    released = wheels.read(wheels.fetch(pinned, wheels.for_reading(pinned)), paths)
    yield from _PinCheck(folder, shown, pinned).problems(patches, released)


def _apply_one(
    shown: Path, change: diff.FileChange, current: dict[str, bytes | None]
) -> Problem | None:
    """Apply one change in place; the problem where it does not fit, or is not what git wrote."""
    before = current[change.path]
    try:
        current[change.path] = change.apply(before)
    except PatchSeriesError as error:
        return Problem.from_error(shown, error)
    sides = (
        ("old", change.old_blob, before),
        ("new", change.new_blob, current[change.path]),
    )
    for side, written, content in sides:
        real = diff.blob_id(content)
        if written is not None and written != real[: len(written)]:
            what = f"the index line names another {side} blob for {change.path}: {written}"
            return Problem(shown, change.line, what, real, lint_patch.EXPORT)
    return None
