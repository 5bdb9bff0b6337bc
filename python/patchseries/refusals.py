"""When a plan cannot be made: what is wrong with the target, and what to type."""

from __future__ import annotations

from patchseries import status
from patchseries.errors import PatchSeriesError
from patchseries.status import Condition, Report


def refuse_unfit(report: Report, count: int) -> None:
    """Raise PatchSeriesError unless apply can get from here to the first count patches."""
    reverse = f"python -m patchseries reverse '{report.target.named}', then apply again"
    is_other = report.condition is Condition.OTHER_VERSION
    if is_other or (report.condition is Condition.PARTLY_APPLIED and report.count is None):
        if report.record is not None:
            raise PatchSeriesError(
                f"{report.condition.value}"
                + ("" if is_other else ", by another version of the series"),
                where=report.target.record,
                expected="no patch, or patches of this version",
                command=reverse,
            )
        raise nothing_recorded(report)
    if (report.count or 0) > count:
        raise PatchSeriesError(
            f"more is applied than was asked for: {report.count} patches",
            where=report.target.named,
            expected=f"at most {count}",
            command=reverse,
        )
    refuse_drifted(report)


def refuse_drifted(report: Report) -> None:
    """Raise PatchSeriesError, with both hashes, where a file is no version that is known."""
    if report.condition is not Condition.DRIFTED:
        return
    first = report.reasons[0]
    raise PatchSeriesError(
        f"{first.reason}: {first.found}",
        where=report.target.path(first.path),
        expected=f"{' or '.join(first.expected)}, from {report.base}",
        command=f"python -m patchseries status '{report.target.named}', then restore the file "
        "(git checkout, or pip install --force-reinstall --no-deps), or use a pinned release",
    )


def nothing_recorded(report: Report) -> PatchSeriesError:
    """What apply and reverse say to patched files that this tool did not patch."""
    named = report.target.named
    if report.condition is Condition.APPLIED:
        command = f"python -m patchseries apply '{named}' --through {report.through}, to record it"
        return PatchSeriesError(
            f"applied through {report.through}, but there is no record to reverse from",
            where=report.target.record,
            expected="the state.json that apply writes",
            command=command,
        )
    for each in report.reasons:
        if each.reason == status.ALREADY_PATCHED:
            return PatchSeriesError(
                f"{report.condition.value}, and there is no record: this file is patched",
                where=report.target.path(each.path),
                expected=f"{each.expected[0]}, from {report.base}",
                command="git checkout, or pip install --force-reinstall --no-deps, then again",
            )
    refuse_drifted(report)
    raise AssertionError(f"nothing is wrong with {named}")
