"""Killed at every write, link, rename, unlink, chmod and fsync in turn: what `status` names helps.

The command runs in a child that is gone, without clean-up, at one step; then `status` is asked, and
what it says to type is typed. Whatever the step, the end is the target as released, to the byte, or
with the whole series, to the byte.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import test_interrupted
import world

from patchseries import cli

counted_writes = test_interrupted.counted_writes


def die() -> None:
    os._exit(9)


def is_killed(work: Callable[[], int], folder: Path, at: int) -> bool:
    """Run work in a child that is gone at a step. False if it got through."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            test_interrupted.run_stopped(work, folder, at, die)
            code = 0
        finally:
            os._exit(code)
    _, state = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(state)
    assert code in (0, 9), code
    return code == 9


class Tool:
    """The command line, on one repository."""

    def __init__(self, small: world.World, capsys: pytest.CaptureFixture[str]) -> None:
        self._repo = ["--repo", str(small.repository.root)]
        self._capsys = capsys

    def run(self, *arguments: str) -> str:
        """Standard output of a command that must be done."""
        assert cli.main([*self._repo, *arguments]) == 0, arguments
        return self._capsys.readouterr().out

    def quietly(self, *arguments: str) -> int:
        return cli.main([*self._repo, *arguments])

    def type(self, command: str, instead_of: Path, on: Path) -> None:
        """Type a command that status named, on another copy of the target."""
        words = shlex.split(command)
        assert words[:3] == ["python", "-m", "patchseries"]
        self.run(*(str(on) if word == str(instead_of) else word for word in words[3:]))


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Path]:
    """A place for hundreds of copies: in memory where that is to be had."""
    memory = Path("/dev/shm")
    above = memory if os.access(memory, os.W_OK | os.X_OK) else tmp_path
    with tempfile.TemporaryDirectory(prefix="patchseries-test-", dir=above) as folder:
        yield Path(folder)


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (("apply",), None),
        (("apply",), world.FIRST),
        (("reverse",), "all"),
        (("apply", "--with-tests"), None),
        (("reverse",), "all, with tests"),
    ],
)
def test_killed_at_every_step(
    arguments: tuple[str, ...],
    start: str | None,
    small: world.World,
    room: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    tool = Tool(small, capsys)
    tests = "--with-tests" in arguments or start == "all, with tests"
    extra = ["--with-tests"] if tests else []
    released, whole, before = (
        small.checkout(name) if tests else small.unpacked(name)
        for name in ("released", "whole", "before")
    )
    for each in (released, whole, before) if tests else ():
        world.write(each, {"test/README": "upstream's\n"})
        shutil.rmtree(each / ".git")  # differs from one checkout to the next
        (each / ".git").mkdir()
    tool.run("apply", str(whole), *extra)
    if start is not None:
        tool.run("apply", str(before), "--through", start.partition(",")[0], *extra)
    ends = {"released": world.snapshot(released), "whole": world.snapshot(whole)}
    target, again = room / "target", room / "again"
    told: set[str] = set()
    at = 0
    while True:
        at += 1
        shutil.copytree(before, target)
        if not is_killed(lambda: tool.quietly(*arguments, str(target)), target, at):
            break
        found = json.loads(tool.run("status", str(target), "--json"))
        commands = {each["does"]: each["type"] for each in found["commands"]}
        told.add(found["state"])
        if not commands:  # killed before anything was recorded, or after all of it was done
            assert world.snapshot(target) in (world.snapshot(before), *ends.values()), at
        for does, command in commands.items():
            shutil.copytree(target, again)
            tool.type(command, target, again)
            end = "whole" if shlex.split(command)[3] == "apply" else "released"
            if does != "sweep up":
                goal = "released" if "reverse" in arguments else "whole"
                assert does == ("complete it" if end == goal else "undo it"), (at, command)
            right = [ends[end], world.snapshot(before)] if does == "sweep up" else [ends[end]]
            assert world.snapshot(again) in right, (at, does, command)
            shutil.rmtree(again)
        if "complete it" not in commands:
            tool.run(*arguments, str(target))
            end = "released" if "reverse" in arguments else "whole"
            assert world.snapshot(target) == ends[end], at
        shutil.rmtree(target)
    assert at > 60
    assert "partly applied" in told
    name = f"{' '.join(arguments)} from {start or 'as released'}"
    record_testsuite_property(f"stopping points of {name}", at - 1)
    with capsys.disabled():
        print(f"\n{name}: {at - 1} stopping points, each ends as released or with all of it")
