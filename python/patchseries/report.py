"""What there is to say of the state of a target."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from patchseries.ladder import Ladder
from patchseries.pip_record import Record
from patchseries.state import State
from patchseries.targets import Target

CRLF = "CRLF line ends"
MISSING = "file missing"
PATCHED_CHANGED = "patched file changed"
STILL_RELEASED = "as released"
UPSTREAM_CHANGED = "upstream file changed"
ALREADY_PATCHED = "as patched"


class Condition(enum.Enum):
    """The one state that a target is in."""

    NOT_APPLIED = "not applied"
    APPLIED = "applied"
    PARTLY_APPLIED = "partly applied"
    OTHER_VERSION = "applied by another version of the series"
    DRIFTED = "drifted"


@dataclasses.dataclass(frozen=True)
class FileReason:
    """Why one file does not fit.

    expected: the hashes that would, as released first. found: hash or `absent`.
    """

    path: str
    reason: str
    expected: tuple[str, ...]
    found: str


@dataclasses.dataclass(frozen=True)
class Report:
    """What was found.

    count: patches of today's series that are in, or (partly applied) were going in; None where that
        cannot be said.
    ladder: what the files were held against, the recorded patches or today's.
    contents: path to content of every file that the record or the series touches.
    pip: RECORD of the distribution, where there is one. wheel: the local version that it has, where
        `wheel` of this tool built it, else empty.
    commands: what to type next, each with what it does, where a command was stopped.
    """

    target: Target
    condition: Condition
    base: str
    count: int | None
    through: str
    ladder: Ladder
    record: State | None = None
    contents: Mapping[str, bytes | None] = dataclasses.field(default_factory=dict)
    reasons: tuple[FileReason, ...] = ()
    notes: tuple[str, ...] = ()
    pip: Record | None = None
    wheel: str = ""
    commands: tuple[tuple[str, str], ...] = ()

    @property
    def touched(self) -> tuple[str, ...]:
        """Names of all files that a command may change, as `Target.path` takes them."""
        names = {*self.contents, *(self.record.tests if self.record else ())}
        return tuple(sorted(names | ({self.pip.name} if self.pip else set())))

    @property
    def is_from_wheel(self) -> bool:
        """Patched because a wheel was installed that `wheel` built, not by apply?"""
        return bool(self.wheel and self.count and self.record is None)

    def as_json(self) -> dict[str, Any]:
        """For `status --json`; contents left out."""
        return {
            "schema": 1,
            "target": str(self.target.named),
            "state": self.condition.value,
            "base": self.base,
            "through": self.through,
            "patches": self.count,
            "recorded": self.record is not None,
            "files": [dataclasses.asdict(each) for each in self.reasons],
            "notes": list(self.notes),
            "tests": sorted(self.record.tests) if self.record else [],
            "wheel": self.wheel,
            "commands": [{"does": does, "type": typed} for does, typed in self.commands],
        }
