"""Our registered tests, laid into the test/ folder of a checkout and taken away again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from patchseries import diff, files
from patchseries.errors import ExitCode, PatchSeriesError
from patchseries.repository import Repository
from patchseries.series import Series
from patchseries.state import State
from patchseries.targets import Target
from patchseries.testids import REGISTERED


def belonging(repository: Repository, loaded: Series, count: int) -> dict[str, bytes]:
    """The files under test/registered/ that go with the first count patches: path to content.

    All but those that only later patches name in their `Tests:` trailers.
    """
    named = [
        {test_id.partition("::")[0] for test_id, _ in patch.message.test_ids()}
        for patch in loaded.patches
    ]
    later = set().union(*named[count:]) - set().union(*named[:count])
    found: dict[str, bytes] = {}
    for path in sorted(repository.registered.rglob("*")):
        name = REGISTERED + path.relative_to(repository.registered).as_posix()
        if path.is_file() and "__pycache__" not in path.parts and name not in later:
            found[name] = path.read_bytes()
    return found


def require_place(target: Target) -> None:
    """Raise PatchSeriesError (usage) unless the target is a checkout with a test/ folder."""
    if target.tests is None:
        raise PatchSeriesError(
            "no place for tests",
            where=target.named,
            expected="a checkout of sglang, with python/sglang/ and test/",
            command="the same without --with-tests",
            code=ExitCode.USAGE,
        )


def to_lay(
    target: Target, record: State | None, wanted: Mapping[str, bytes]
) -> tuple[list[files.Write], dict[str, tuple[str, ...]]]:
    """The files to write, and what `State.tests` is to hold when they are.

    A file that is there with the same content and was not laid is not ours.

    Raises PatchSeriesError for a file that is there and is not one that was laid.
    """
    laid = dict(record.tests) if record else {}
    writes: list[files.Write] = []
    for name, content in wanted.items():
        found, place = _read(target, name), target.path(name)
        digest = diff.sha256(content)
        known = laid.get(name, ())
        if found is None or diff.sha256(found) in known:
            if found != content:
                writes.append(files.Write(place, content))
            laid[name] = (digest,)
        elif found != content:
            raise _not_ours(place, digest, "the same with --with-tests")
    for name in sorted(set(laid) - set(wanted)):  # laid by another version of the series
        writes += _removal(target, name, laid.pop(name))
    return writes, laid


def to_remove(target: Target, record: State) -> list[files.Write]:
    """The writes that take away what was laid.

    Raises PatchSeriesError for a laid file that was changed since.
    """
    return [
        write
        for name, known in sorted(record.tests.items())
        for write in _removal(target, name, known)
    ]


def changed(target: Target, record: State) -> list[str]:
    """Names of the laid files that are not there as they were laid."""
    return [
        name
        for name, known in sorted(record.tests.items())
        if diff.sha256(_read(target, name)) not in known
    ]


def missing_folders(target: Target, names: Mapping[str, object]) -> set[str]:
    """The folders below test/ that have to be made for these files."""
    above = {
        "/".join(parts[:depth])
        for parts in (name.split("/") for name in names)
        for depth in range(2, len(parts))
    }
    return {folder for folder in above if not target.path(folder).exists()}


def _removal(target: Target, name: str, known: tuple[str, ...]) -> list[files.Write]:
    found, place = _read(target, name), target.path(name)
    if found is None:
        return []
    if diff.sha256(found) not in known:
        raise _not_ours(place, known[0], f"python -m patchseries reverse '{target.named}'")
    return [files.Write(place, None)]


def _not_ours(place: Path, expected: str, then: str) -> PatchSeriesError:
    return PatchSeriesError(
        "a test file is there that is not as this tool laid it",
        where=place,
        expected=f"no file, or one that hashes to {expected}",
        command=f"move it away, then {then}",
    )


def _read(target: Target, name: str) -> bytes | None:
    return target.read([name])[name]
