"""The one exception type that reaches the user, and the exit codes."""

from __future__ import annotations

import enum
import os


class ExitCode(enum.IntEnum):
    """What the process tells its caller."""

    DONE = 0
    NOT_SO = 1
    USAGE = 2


class PatchSeriesError(Exception):
    """Something the user has to know and can act on.

    what: what is wrong, in one clause.
    where: the file, line or value concerned.
    expected: what would have been right.
    command: what to type next.
    code: `ExitCode.USAGE` where the request itself makes no sense.
    """

    def __init__(
        self,
        what: str,
        *,
        where: object = "",
        expected: str = "",
        command: str = "",
        code: ExitCode = ExitCode.NOT_SO,
    ) -> None:
        self.what = what
        self.where = str(where)
        self.expected = expected
        self.command = command
        self.code = code
        super().__init__(str(self))

    def __str__(self) -> str:
        parts = [self.what]
        if self.where:
            parts.append(self.where)
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.command:
            parts.append(f"type: {as_typed(self.command)}")
        return "; ".join(parts)


def as_typed(command: str) -> str:
    """A command as the user can type it: scripts/patchseries says by what name it was called."""
    ours = os.environ.get("PATCHSERIES_COMMAND", "python -m patchseries")
    return command.replace("python -m patchseries", ours)
