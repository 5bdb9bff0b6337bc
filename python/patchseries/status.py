"""The state of a target, told by the hashes of its files, with a reason for each that is off."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from patchseries import diff, lock, notes, pin, pip_record, series
from patchseries import state as states
from patchseries.errors import ExitCode, PatchSeriesError
from patchseries.ladder import Ladder
from patchseries.report import (
    ALREADY_PATCHED,
    CRLF,
    MISSING,
    PATCHED_CHANGED,
    STILL_RELEASED,
    UPSTREAM_CHANGED,
    Condition,
    FileReason,
    Report,
)
from patchseries.repository import PIN_NAME, Repository
from patchseries.state import Phase, State
from patchseries.targets import Target

_STOPPED = "an apply or reverse was stopped before its end"
_UNRECORDED = "not applied by this tool, or its record is gone: apply again to record it"
_STALE = "the record of an earlier apply is stale: the files were replaced since (reinstalled?)"


@dataclasses.dataclass(frozen=True)
class Known:
    """A base of this repository with its series and pin."""

    series: series.Series
    pin: pin.Pin
    ladder: Ladder

    @property
    def base(self) -> str:
        return self.pin.base


def load(repository: Repository, base: str) -> Known:
    """Read series and pin of a base.

    Raises PatchSeriesError when the two do not list the same patches.
    """
    loaded = series.load(repository, base)
    pinned = pin.read(loaded.folder)
    if [each.name for each in pinned.patches] != [each.name for each in loaded.patches]:
        raise PatchSeriesError(
            "base.toml and series do not list the same patches",
            where=loaded.folder / PIN_NAME,
            expected=", ".join(each.name for each in loaded.patches) or "no patch",
            command=f"python -m patchseries pin --base {base}",
        )
    results = tuple(each.files for each in pinned.patches)
    return Known(loaded, pinned, Ladder(pinned.files, loaded.patches, results))


def examine(repository: Repository, target: Target, base: str | None = None) -> Report:
    """Find out what state a target is in.

    base: hold it against this one; else against the recorded one, else the one that fits best.

    Raises PatchSeriesError for an unknown base, a damaged record, or a series without patches.
    """
    record = states.read(target.record)
    known = [load(repository, name) for name in ([base] if base else repository.bases())]
    known = [each for each in known if each.pin.files]
    if not known and record is None:
        raise PatchSeriesError(
            "there is no patch to recognise a base by",
            where=repository.patches,
            expected="a series with at least one patch",
            command="python -m patchseries list",
            code=ExitCode.USAGE,
        )
    paths = {path for each in known for path in each.pin.files}.union(
        record.before if record else ()
    )
    contents = target.read(sorted(paths))
    hashes = {path: diff.sha256(content) for path, content in contents.items()}
    report = _judge(target, record, known, hashes)
    report = dataclasses.replace(
        report,
        record=record,
        contents=contents,
        reasons=tuple(_name_line_ends(each, contents) for each in report.reasons),
        pip=pip_record.read(target),
        wheel=notes.local_version(target),
    )
    working = lock.holder(target.package.parent)
    if working and working != os.getpid():
        said = f"process {working} is changing this target right now"
        return dataclasses.replace(report, notes=(said,))
    left = target.leftovers(report.touched)
    is_stopped = left or (record is not None and record.phase is not Phase.APPLIED)
    return dataclasses.replace(
        report,
        notes=(
            *(each for each in report.notes if each != _UNRECORDED or not report.is_from_wheel),
            *notes.further(report, left),
        ),
        commands=notes.ways_on(report) if is_stopped else (),
    )


def _judge(
    target: Target, record: State | None, known: list[Known], hashes: Mapping[str, str]
) -> Report:
    if record is None:
        return _by_series(target, _best(known, hashes), hashes)
    fitting = record.ladder.fits(hashes)
    if fitting in (0, len(record.patches)):
        return _by_record(target, record, known, hashes, is_in=fitting != 0)
    if any(each.ladder.fits(hashes) is not None for each in known):
        report = _by_series(target, _best(known, hashes), hashes)
        note = _STALE if record.phase is Phase.APPLIED else _STOPPED
        return dataclasses.replace(report, notes=(note,))
    return _off(target, record.base, _prefix(known, record), record.ladder, hashes, recorded=True)


def _by_record(
    target: Target, record: State, known: list[Known], hashes: Mapping[str, str], *, is_in: bool
) -> Report:
    """Every file is as after, or as before, what was recorded."""
    stopped = record.phase is not Phase.APPLIED
    if not is_in:
        note = _STOPPED if stopped else _STALE
        return Report(
            target, Condition.NOT_APPLIED, record.base, 0, series.BASE, record.ladder, notes=(note,)
        )
    count = _prefix(known, record)
    label = record.patches[-1].name.removesuffix(".patch")
    if count is None:  # the patches read otherwise today; do they still do the same?
        for each in known:
            if each.base == record.base and set(record.before) <= set(each.pin.files):
                count = each.ladder.fits(hashes)
    condition = Condition.OTHER_VERSION if count is None else Condition.APPLIED
    notes = (_STOPPED,) if stopped else ()
    return Report(target, condition, record.base, count, label, record.ladder, notes=notes)


def _by_series(target: Target, known: Known, hashes: Mapping[str, str]) -> Report:
    """Hold the files against today's series: no record, or none that counts."""
    count = known.ladder.fits(hashes)
    if count is None:
        return _off(target, known.base, None, known.ladder, hashes, recorded=False)
    condition = Condition.APPLIED if count else Condition.NOT_APPLIED
    notes = (_UNRECORDED,) if count else ()
    label = known.series.label(count)
    return Report(target, condition, known.base, count, label, known.ladder, notes=notes)


def _off(
    target: Target,
    base: str,
    count: int | None,
    ladder: Ladder,
    hashes: Mapping[str, str],
    *,
    recorded: bool,
) -> Report:
    """Partly applied, where every file is some version that is known; else drifted."""
    versions = {path: ladder.versions(path) for path in sorted(ladder.released)}
    there = [(hashes[path], each) for path, each in versions.items() if hashes[path] != diff.ABSENT]
    patched = recorded or any(found in each[1:] for found, each in there)
    strange: list[FileReason] = []
    mixed: list[FileReason] = []
    for path, each in versions.items():
        found = hashes[path]
        if found in each:
            reason = STILL_RELEASED if found == each[0] else ALREADY_PATCHED
            mixed.append(FileReason(path, reason, each, found))
        else:
            changed = PATCHED_CHANGED if patched else UPSTREAM_CHANGED
            reason = MISSING if found == diff.ABSENT else changed
            strange.append(FileReason(path, reason, each, found))
    condition = Condition.DRIFTED if strange else Condition.PARTLY_APPLIED
    return Report(target, condition, base, count, "", ladder, reasons=tuple(strange or mixed))


def _prefix(known: list[Known], record: State) -> int | None:
    """How many patches of today's series the record is, to the byte."""
    recorded = [each.sha256 for each in record.patches]
    for each in known:
        today = [patch.sha256 for patch in each.series.patches[: len(recorded)]]
        if each.base == record.base and today == recorded:
            return len(recorded)
    return None


def _best(known: list[Known], hashes: Mapping[str, str]) -> Known:
    """The base that most files are known from; of equals the last."""

    def share(each: Known) -> float:
        fitting = sum(hashes[path] in each.ladder.versions(path) for path in each.pin.files)
        return fitting / len(each.pin.files)

    return max(reversed(known), key=share)


def _name_line_ends(reason: FileReason, contents: Mapping[str, bytes | None]) -> FileReason:
    content = contents[reason.path]
    if content is None or b"\r\n" not in content or reason.found in reason.expected:
        return reason
    if diff.sha256(content.replace(b"\r\n", b"\n")) in reason.expected:
        return dataclasses.replace(reason, reason=CRLF)
    return reason
