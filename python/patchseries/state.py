"""The record that apply leaves and reverse works from: `state.json`.

It holds the exact text of the patches that were applied and the hash of every file before and
after, so that the way back does not depend on today's series. The same series on the same release
gives the same bytes: no times, no absolute paths, no names of users or machines.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from patchseries import files
from patchseries.errors import PatchSeriesError
from patchseries.ladder import Ladder
from patchseries.series import Patch

SCHEMA = 1


class Phase(enum.Enum):
    """How far the command got that wrote the record."""

    APPLYING = "applying"
    APPLIED = "applied"
    REVERSING = "reversing"


@dataclasses.dataclass(frozen=True)
class State:
    """What was applied.

    ladder: the patches to the byte, and the hashes of their files before and after each.
    modes: permission bits of files that the patches delete. folders: made for files that they add.
    tests: path of each test file that was laid, to the hashes that it may have.
    """

    base: str
    phase: Phase
    ladder: Ladder
    modes: Mapping[str, int]
    folders: tuple[str, ...]
    tests: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def patches(self) -> tuple[Patch, ...]:
        return self.ladder.patches

    @property
    def before(self) -> Mapping[str, str]:
        """Path to hash as released, of every file that these patches touch."""
        return self.ladder.released

    @property
    def after(self) -> Mapping[str, str]:
        """Path to hash when all of them are in."""
        return self.ladder.after(len(self.patches))


def read(path: Path) -> State | None:
    """The record at path, or None where there is none.

    Raises PatchSeriesError when it is not one that this version can read.
    """
    try:
        data = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise _unreadable(path, f"not JSON: {error}") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise PatchSeriesError(
            f"the record has schema {schema}",
            where=path,
            expected=f"schema {SCHEMA}",
            command="use the version of this tool that applied the series",
        )
    try:
        return _from_data(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(path, f"missing or wrong: {error}") from None


def _unreadable(path: Path, why: str) -> PatchSeriesError:
    return PatchSeriesError(
        f"the record is damaged: {why}",
        where=path,
        expected="the state.json that apply wrote",
        command=f"reinstall sglang, then rm -r '{path.parent}'",
    )


def _from_data(data: dict[str, Any]) -> State:
    listed, patches = data["files"], data["patches"]
    ladder = Ladder(
        released={path: str(each["before"]) for path, each in listed.items()},
        patches=tuple(Patch(each["name"], each["group"], each["text"]) for each in patches),
        results=tuple(dict(each["files"]) for each in patches),
    )
    state = State(
        base=str(data["base"]),
        phase=Phase(data["phase"]),
        ladder=ladder,
        modes={path: int(each["mode"], 8) for path, each in listed.items() if "mode" in each},
        folders=tuple(str(folder) for folder in data["folders"]),
        tests={path: tuple(map(str, hashes)) for path, hashes in data["tests"].items()},
    )
    if {path: each["after"] for path, each in listed.items()} != state.after:
        raise ValueError("the hashes of the patches and of the files disagree")
    for patch, each in zip(ladder.patches, patches, strict=True):
        if patch.sha256 != each["sha256"]:
            raise ValueError(f"the text of {patch.name} is not what its hash says")
    return state


def render(state: State) -> bytes:
    """The bytes of the state file."""
    listed: dict[str, dict[str, str]] = {}
    for path in sorted(state.before):
        listed[path] = {"before": state.before[path], "after": state.after[path]}
        if path in state.modes:
            listed[path]["mode"] = f"{state.modes[path]:04o}"
    patches = [
        {
            "name": patch.name,
            "group": patch.group,
            "sha256": patch.sha256,
            "files": dict(sorted(result.items())),
            "text": patch.text,
        }
        for patch, result in zip(state.patches, state.ladder.results, strict=True)
    ]
    data = {
        "schema": SCHEMA,
        "base": state.base,
        "phase": state.phase.value,
        "patches": patches,
        "files": listed,
        "folders": sorted(state.folders),
        "tests": {path: list(hashes) for path, hashes in sorted(state.tests.items())},
    }
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def write(path: Path, state: State) -> None:
    """Write the record, whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    files.replace_durably(path, render(state))


def remove(path: Path) -> None:
    """Remove the record and its folder."""
    files.clean([path])
    path.unlink(missing_ok=True)
    files.remove_folders([path.parent])


def restore(path: Path, previous: State | None) -> None:
    """Put back what was recorded before, after a command that failed."""
    if previous is None:
        remove(path)
    else:
        write(path, previous)
