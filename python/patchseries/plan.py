"""Work out and check all that apply or reverse is going to do, before any of it is done."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from patchseries import diff, files, laid, pin, pip_record, refusals, status
from patchseries.errors import PatchSeriesError
from patchseries.ladder import Ladder
from patchseries.report import MISSING, UPSTREAM_CHANGED, Condition, FileReason, Report
from patchseries.repository import Repository
from patchseries.series import Patch
from patchseries.state import Phase, State
from patchseries.targets import Target


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a command is going to do, worked out and checked before anything is written.

    writes: the files that change. previous, state: the record now and afterwards, None for none.
    touched: paths of all files concerned. done: what to tell the user when all of it is done.
    """

    target: Target
    writes: tuple[files.Write, ...]
    previous: State | None
    state: State | None
    touched: tuple[str, ...]
    done: str

    @property
    def actions(self) -> list[tuple[str, Path]]:
        """What happens to which file: change, add or delete."""
        writing = {each.path: "change" if each.path.exists() else "add" for each in self.writes}
        deleted = {each.path: "delete" for each in self.writes if each.content is None}
        return [(does, path) for path, does in (writing | deleted).items()]

    @property
    def changes_nothing(self) -> bool:
        """True when there is nothing to write, record or sweep up."""
        is_settled = not self.writes and self.previous == self.state
        return is_settled and not self.target.leftovers(self.touched)


def to_apply(
    repository: Repository,
    target: Target,
    base: str | None = None,
    through: str | None = None,
    *,
    with_tests: bool = False,
) -> Plan:
    """Work out how to get a target to a prefix of the series.

    with_tests: also lay the registered tests of that prefix into the checkout.

    From a shorter prefix, and from an apply or reverse that was stopped, it goes on. From a longer
    one or another version of the series it refuses: taking patches out is for `reverse` to say.

    Raises PatchSeriesError that names the file, when the target is not what the series is for.
    """
    report = status.examine(repository, target, base)
    known = status.load(repository, report.base)
    count = known.series.count(through)
    refusals.refuse_unfit(report, count)
    if with_tests:
        laid.require_place(target)
    label = f"{report.base} through {known.series.label(count)}"
    if count == 0 or report.is_from_wheel:
        done = "nothing to apply: no patch was asked for"
        if count:
            done = f"already applied: {label}, by the wheel {report.wheel}"
        return Plan(target, (), report.record, report.record, report.touched, done)
    patches = known.series.patches[:count]
    released = {path: _as_released(report, known, count, path) for path in known.pin.files}
    patched = pin.apply_checked(known.pin, patches, released)
    state = _new_state(known, count, target, released, report.record)
    writes = _writes(target, report.contents, patched, _added_modes(patches))
    done = f"applied {label}: {_counted(count, 'patch', 'patches')}, {_files(writes)} changed"
    tests: list[files.Write] = []
    if with_tests or _is_laying(report.record):
        wanted = laid.belonging(repository, known.series, count)
        tests, now_laid = laid.to_lay(target, report.record, wanted)
        made = laid.missing_folders(target, now_laid)
        state = dataclasses.replace(
            state, tests=now_laid, folders=tuple(sorted({*state.folders, *made}))
        )
        done += f"; {_counted(len(now_laid), 'test file', 'test files')} laid"
    record = _pip_writes(target, report, known.ladder, patched, is_in=True)
    if not writes and not tests:
        done = f"already applied: {label}"
        if report.record != state or record:
            done += "; its record is renewed"
    touched = tuple(sorted({*report.touched, *state.tests}))
    return Plan(target, (*writes, *tests, *record), report.record, state, touched, done)


def to_reverse(repository: Repository, target: Target) -> Plan:
    """Work out how to take out what the record says was applied.

    Raises PatchSeriesError that names the file, when a file is no version that the record knows.
    """
    report = status.examine(repository, target)
    record = report.record
    touched = report.touched
    if record is None:
        if report.condition is Condition.NOT_APPLIED:
            done = f"not applied: {report.base} is as released"
            return Plan(target, (), None, None, touched, done)
        raise refusals.nothing_recorded(report)
    if report.condition is not Condition.NOT_APPLIED:
        refusals.refuse_drifted(report)
    released = {path: record.ladder.rewind(path, report.contents[path]) for path in record.before}
    writes = _writes(target, report.contents, released, record.modes)
    tests = laid.to_remove(target, record)
    count = _counted(len(record.patches), "patch", "patches")
    done = f"reversed {count}: {_files(writes)} as released again"
    if report.condition is Condition.NOT_APPLIED:
        done = "not applied: the files are as released; what was left of an apply is removed"
    if tests:
        done += f"; {_counted(len(tests), 'test file', 'test files')} taken away"
    pip = _pip_writes(target, report, record.ladder, released, is_in=False)
    return Plan(target, (*writes, *tests, *pip), record, None, touched, done)


def require_writable(planned: Plan) -> None:
    """Raise PatchSeriesError where it can be seen beforehand that a folder may not be changed."""
    for write in planned.writes:
        folder = write.path.parent
        while not folder.exists():
            folder = folder.parent
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PatchSeriesError(
                "this user may not change a folder",
                where=folder,
                expected="a folder that can be written to",
                command="the same as the user who owns it, or make it writable",
            )


def _is_laying(record: State | None) -> bool:
    """Was a command stopped that had tests to lay?"""
    return record is not None and record.phase is not Phase.APPLIED and bool(record.tests)


def _pip_writes(
    target: Target,
    report: Report,
    ladder: Ladder,
    wanted: Mapping[str, bytes | None],
    *,
    is_in: bool,
) -> tuple[files.Write, ...]:
    if report.pip is None:
        return ()
    contents = {**report.contents, **wanted}
    content = pip_record.updated(report.pip, ladder, contents, is_in=is_in)
    if content == report.pip.content:
        return ()
    return (files.Write(target.path(report.pip.name), content),)


def _new_state(
    known: status.Known,
    count: int,
    target: Target,
    released: Mapping[str, bytes | None],
    earlier: State | None,
) -> State:
    """The record of the first count patches; what was made or deleted before is taken over."""
    results = known.ladder.results[:count]
    touched = sorted({path for result in results for path in result})
    ladder = Ladder(
        released={path: known.pin.files[path] for path in touched},
        patches=known.series.patches[:count],
        results=results,
    )
    after = ladder.after(count)
    modes = dict(earlier.modes) if earlier else {}
    folders = set(earlier.folders) if earlier else set()
    for path in touched:
        place = target.path(path)
        if after[path] == diff.ABSENT and place.exists():
            modes[path] = place.stat().st_mode & 0o7777
    added = {path for path in touched if released[path] is None and after[path] != diff.ABSENT}
    for path in added:
        parts = path.split("/")
        above = ["/".join(parts[:depth]) for depth in range(3, len(parts))]
        folders.update(folder for folder in above if _is_made(target, folder, added, earlier))
    return State(
        base=known.base,
        phase=Phase.APPLIED,
        ladder=ladder,
        modes={path: modes[path] for path in touched if path in modes},
        folders=tuple(sorted(folders)),
        tests=dict(earlier.tests) if earlier else {},
    )


def _is_made(target: Target, folder: str, added: set[str], earlier: State | None) -> bool:
    """Is a folder there for added files only?

    Without a record of the apply that put them there, one that holds nothing else is taken for it.
    """
    place = target.path(folder)
    if not place.exists():
        return True
    if earlier is not None:
        return False
    inside = [each for each in place.rglob("*") if each.is_file() and each.suffix != ".pyc"]
    ours = {target.path(path) for path in added}
    return bool(inside) and ours.issuperset(inside)


def _as_released(report: Report, known: status.Known, count: int, path: str) -> bytes | None:
    """The content of a file without any patch.

    Raises PatchSeriesError where a recorded shorter prefix leaves a file out, and it has drifted.
    """
    content = report.contents[path]
    if path in report.ladder.released:
        return report.ladder.rewind(path, content)
    found, expected = diff.sha256(content), known.pin.files[path]
    if found != expected and any(path in each for each in known.ladder.results[:count]):
        reason = MISSING if content is None else UPSTREAM_CHANGED
        drift = FileReason(path, reason, (expected,), found)
        refusals.refuse_drifted(
            dataclasses.replace(report, condition=Condition.DRIFTED, reasons=(drift,))
        )
    return content


def _writes(
    target: Target,
    now: Mapping[str, bytes | None],
    wanted: Mapping[str, bytes | None],
    modes: Mapping[str, int],
) -> tuple[files.Write, ...]:
    """The files whose content changes.

    Raises PatchSeriesError for a link, which a rename would replace by a file.
    """
    writes = []
    for path, content in sorted(wanted.items()):
        if content == now[path]:
            continue
        place = target.path(path)
        if place.is_symlink():
            raise PatchSeriesError(
                "the file is a symbolic link",
                where=place,
                expected="a file of its own",
                command=f"apply to where it leads instead: {place.resolve()}",
            )
        writes.append(files.Write(place, content, modes.get(path, 0o644)))
    return tuple(writes)


def _added_modes(patches: Iterable[Patch]) -> dict[str, int]:
    return {
        change.path: change.mode
        for patch in patches
        for change in patch.changes
        if change.mode is not None and change.old_blob is None
    }


def _files(writes: tuple[files.Write, ...]) -> str:
    return _counted(len(writes), "file", "files")


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
