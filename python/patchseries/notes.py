"""What `status` says beside the state itself: what was found, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from patchseries import laid, pip_record
from patchseries.report import Condition, Report
from patchseries.state import Phase
from patchseries.targets import Target

LOCAL = "+hicache."
"""Stands in the version of every wheel that `wheel` builds."""


def further(report: Report, left: list[Path]) -> Iterator[str]:
    """Lines about what was left behind, and what else is there."""
    if left:
        yield f"a command that was stopped left {len(left)} files behind: {left[0]}"
    if report.is_from_wheel:
        yield f"installed as the wheel {report.wheel}; pip takes it out, not reverse"
    if report.record and report.record.tests:
        yield f"{len(report.record.tests)} registered test files are laid in test/registered/"
        for name in laid.changed(report.target, report.record):
            yield f"a laid test file was changed or removed: {report.target.path(name)}"


def ways_on(report: Report) -> tuple[tuple[str, str], ...]:
    """What completes and what undoes a command that was stopped, by name of what to type."""
    named = shlex.quote(str(report.target.named))
    undo = f"python -m patchseries reverse {named}"
    if report.record is None:
        return (("sweep up", undo),) if not report.count else ()
    if report.condition is Condition.DRIFTED or report.count is None:
        return (("undo it", undo),)
    through = report.record.patches[-1].name.removesuffix(".patch")
    apply = f"python -m patchseries apply {named} --through {through}"
    if report.record.phase is Phase.APPLIED and report.condition is Condition.APPLIED:
        return (("sweep up", apply),)
    if report.record.phase is Phase.REVERSING:
        return (("complete it", undo), ("undo it", apply))
    return (("complete it", apply), ("undo it", undo))


def local_version(target: Target) -> str:
    """The version that the distribution beside sglang/ has, if `wheel` built it; else empty."""
    folder = pip_record.dist_info(target)
    version = folder.name.removesuffix(".dist-info").partition("-")[2] if folder else ""
    return version if LOCAL in version else ""
