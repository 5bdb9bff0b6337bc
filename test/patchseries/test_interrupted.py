"""A command that fails or is killed at any step leaves one of two states, and says which.

Every step that changes the disk is found with an audit hook (and a wrapped fsync), not by knowing
the code: a step that is added later is stopped at as well.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import world

from patchseries import apply, plan, status, targets
from patchseries.errors import PatchSeriesError
from patchseries.status import Condition

_CHANGING = {
    "os.rename",
    "os.remove",
    "os.link",
    "os.mkdir",
    "os.rmdir",
    "os.chmod",
    "os.chown",
    "os.truncate",
}


class Steps:
    """Counts steps below a folder, and calls `stop` at the one with the given number, from 1."""

    def __init__(self) -> None:
        self.active = False
        self.folder = ""
        self.count = 0
        self.at = 0
        self.stop: Callable[[], None] = lambda: None

    def seen(self) -> None:
        self.count += 1
        if self.count == self.at:
            self.stop()

    def hook(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.active:
            return
        changes = event in _CHANGING
        if event == "open":
            flags = arguments[2]
            changes = isinstance(flags, int) and bool(
                flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            )
        if changes and (isinstance(arguments[0], int) or str(arguments[0]).startswith(self.folder)):
            self.seen()


STEPS = Steps()
sys.addaudithook(STEPS.hook)


@pytest.fixture(autouse=True)
def counted_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that is stopped got half of it out; nothing is synced, as no power fails here."""
    real = os.write

    def fsync(descriptor: int) -> None:
        if STEPS.active:
            STEPS.seen()

    def write(descriptor: int, content: memoryview) -> int:
        if not STEPS.active or len(content) < 2:
            return real(descriptor, content)
        done = real(descriptor, content[: len(content) // 2])
        STEPS.seen()
        return done

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "write", write)


def run_stopped(work: Callable[[], object], folder: Path, at: int, stop: Callable[[], None]) -> int:
    """Run work with a stop at one step; return the number of steps that came."""
    STEPS.folder, STEPS.count, STEPS.at, STEPS.stop = str(folder), 0, at, stop
    STEPS.active = True
    try:
        work()
    finally:
        STEPS.active = False
    return STEPS.count


def put_in(small: world.World, target: Path, through: str | None = None) -> None:
    apply.execute(plan.to_apply(small.repository, targets.locate(target), through=through))


def take_out(small: world.World, target: Path) -> None:
    apply.execute(plan.to_reverse(small.repository, targets.locate(target)))


def further(small: world.World, target: Path) -> None:
    put_in(small, target, None)


def prepare(small: world.World, what: Callable[..., None]) -> tuple[Path, Path, Path]:
    """A target right before `what`, the same as released, and the same with the whole series."""
    released, whole, before = (small.unpacked(name) for name in ("released", "whole", "before"))
    put_in(small, whole)
    if what is take_out:
        put_in(small, before)
    if what is further:
        put_in(small, before, world.FIRST)
    return before, released, whole


def fail() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("what", [put_in, further, take_out])
def test_failure_at_any_step_is_rolled_back(
    what: Callable[[world.World, Path], None], small: world.World
) -> None:
    before, released, whole = prepare(small, what)
    expected = world.snapshot(before)
    done = world.snapshot(released if what is take_out else whole)
    target, at, failed = small.folder / "target", 0, 0
    while True:
        at += 1
        shutil.copytree(before, target)
        kept = world.identities(target / "sglang" / "srt")
        try:
            steps = run_stopped(lambda: what(small, target), target, at, fail)
        except PatchSeriesError as error:
            assert "No space left" in str(error)
            failed += 1
            if "tidied up" in str(error):
                what(small, target)
                assert world.snapshot(target) == done, at
                shutil.rmtree(target)
                continue
            assert world.snapshot(target) == expected, at
            now = world.identities(target / "sglang" / "srt")
            assert {name: now[name] for name in kept if "." in name[1:]} == {
                name: kept[name] for name in kept if "." in name[1:]
            }, at
        else:
            left = [path for path in target.rglob("*") if ".patchseries-" in path.name]
            if at > steps:
                assert not left
                break
            # Only sweeping up may fail without undoing the rest: all of it is done by then.
            for path in left:
                path.unlink()
            assert world.snapshot(target) == done, at
        shutil.rmtree(target)
    assert failed > 20


def test_what_was_left_behind_is_told_and_swept_up(small: world.World) -> None:
    target = small.unpacked()
    before = world.snapshot(target)
    world.write(
        target,
        {
            "sglang/srt/.cache.py.patchseries-new": "half",
            ".patchseries/.state.json.patchseries-new": "",
        },
    )
    report = status.examine(small.repository, targets.locate(target))
    assert report.condition is Condition.NOT_APPLIED
    assert report.notes[0].startswith("a command that was stopped left 2 files behind: ")
    take_out(small, target)
    assert world.snapshot(target) == before


def test_rollback_that_fails_keeps_the_journal(
    small: world.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = small.unpacked()
    before = world.snapshot(target)
    real, renames = Path.replace, []

    def replace(self: Path, other: Path) -> Path:
        if "srt" in str(other):
            renames.append(other)
            if len(renames) >= 2:
                fail()
        return real(self, other)

    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(PatchSeriesError, match=r"could not put back.*reverse"):
        put_in(small, target)
    monkeypatch.undo()
    report = status.examine(small.repository, targets.locate(target))
    assert report.condition is Condition.PARTLY_APPLIED
    take_out(small, target)
    assert world.snapshot(target) == before
