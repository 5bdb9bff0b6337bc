"""When a plan cannot be made: what is wrong with the target, and what to type."""

from __future__ import annotations

import contextlib
import re

from patchseries import report as reports
from patchseries.errors import PatchSeriesError
from patchseries.report import Condition, Report

_PIP = "pip install --force-reinstall --no-deps sglang"


def refuse_unfit(report: Report, count: int) -> None:
    """Raise PatchSeriesError unless apply can get from here to the first count patches."""
    reverse = f"python -m patchseries reverse '{report.target.named}', then apply again"
    if report.is_from_wheel and report.count != count:
        raise _from_wheel(report)
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
    if first.reason == reports.CRLF:
        raise _crlf(report, first)
    release = report.base.removeprefix("v")
    found = _release(report)
    what, command = f"{first.reason}: {first.found}", f"restore the file: git checkout, or {_PIP}"
    if found not in ("", release):
        what = f"this is sglang {found}, not {release}; {what}"
        command = f"give it sglang {release}: git checkout v{release}, or {_PIP}"
    raise PatchSeriesError(
        what,
        where=report.target.path(first.path),
        expected=f"{' or '.join(first.expected)}, from {report.base}",
        command=f"python -m patchseries status '{report.target.named}', then {command}=={release}",
    )


def _release(report: Report) -> str:
    """What sglang's own _version.py says, to explain a refusal; never to decide about one."""
    version = report.target.package / "_version.py"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        said = re.search(
            r"^__version__ = .*?['\"]([\w.+]+)['\"]$", version.read_text(), re.MULTILINE
        )
        return said[1] if said else ""
    return ""


def nothing_recorded(report: Report) -> PatchSeriesError:
    """What apply and reverse say to patched files that this tool did not patch."""
    named = report.target.named
    if report.is_from_wheel:
        return _from_wheel(report)
    if report.condition is Condition.APPLIED:
        command = f"python -m patchseries apply '{named}' --through {report.through}, to record it"
        return PatchSeriesError(
            f"applied through {report.through}, but there is no record to reverse from",
            where=report.target.record,
            expected="the state.json that apply writes",
            command=command,
        )
    for each in report.reasons:
        if each.reason == reports.ALREADY_PATCHED:
            return PatchSeriesError(
                f"{report.condition.value}, and there is no record: this file is patched",
                where=report.target.path(each.path),
                expected=f"{each.expected[0]}, from {report.base}",
                command="git checkout, or pip install --force-reinstall --no-deps, then again",
            )
    refuse_drifted(report)
    raise AssertionError(f"nothing is wrong with {named}")


def _from_wheel(report: Report) -> PatchSeriesError:
    release = report.base.removeprefix("v")
    return PatchSeriesError(
        f"the series came with the wheel {report.wheel}, through {report.through}",
        where=report.target.package,
        expected="a sglang that apply has patched, or one as released",
        command=f"pip install --force-reinstall --no-deps sglang=={release}",
    )


def _crlf(report: Report, first: reports.FileReason) -> PatchSeriesError:
    checkout = report.target.package.parent.parent
    command = "unpack or install it again without converting line ends"
    if report.target.package.parent.name == "python" and (checkout / ".git").exists():
        git = f"git -C '{checkout}'"
        command = f"{git} config core.autocrlf false && {git} rm -r -q --cached . && "
        command += f"{git} reset --hard (commit your own changes before)"
    return PatchSeriesError(
        f"{first.reason} in {len(report.reasons)} files, as git's core.autocrlf makes them",
        where=report.target.path(first.path),
        expected=f"LF line ends, as in {report.base}",
        command=command,
    )
