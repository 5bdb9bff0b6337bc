"""Two commands on one target at the same time, in processes of their own."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import world

from patchseries import cli, lock, targets
from patchseries.errors import PatchSeriesError

HOLD = """
import sys
from pathlib import Path
from patchseries import lock, targets
with lock.hold(targets.locate(Path(sys.argv[1]))):
    print("held", flush=True)
    sys.stdin.read()
"""


class Holder:
    """A process that holds the lock of a target until it is let go or killed."""

    def __init__(self, target: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(target)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def let_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@pytest.fixture
def target(small: world.World) -> Path:
    return small.unpacked()


@pytest.fixture
def holder(target: Path) -> Iterator[Holder]:
    made = Holder(target)
    yield made
    made.process.kill()
    made.process.wait()


def tool(small: world.World, *arguments: str | Path) -> list[str]:
    command = [sys.executable, "-m", "patchseries", "--repo", str(small.repository.root)]
    return [*command, *map(str, arguments)]


@pytest.mark.parametrize("command", ["apply", "reverse"])
def test_no_wait_says_who(command: str, small: world.World, target: Path, holder: Holder) -> None:
    before = world.identities(target)
    done = subprocess.run(
        tool(small, command, target, "--no-wait"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"process {holder.process.pid} is changing this target; {target}" in done.stderr
    assert world.identities(target) == before


def test_second_waits_and_then_goes_on(small: world.World, target: Path, holder: Holder) -> None:
    second = subprocess.Popen(
        tool(small, "apply", target), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert second.stderr is not None
    said = second.stderr.readline()
    assert said == (
        f"patchseries: waiting for process {holder.process.pid}, which is changing {target}\n"
    )
    assert second.poll() is None
    holder.let_go()
    out, _ = second.communicate()
    assert second.returncode == 0
    assert "applied v1.0" in out


def test_killed_holder_blocks_nobody(small: world.World, target: Path, holder: Holder) -> None:
    holder.process.send_signal(signal.SIGKILL)
    holder.process.wait()
    subprocess.run(tool(small, "apply", target, "--no-wait"), check=True, capture_output=True)


def test_status_while_another_works(
    small: world.World, target: Path, holder: Holder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--repo", str(small.repository.root), "status", str(target)]) == 0
    said = capsys.readouterr().out
    assert f"note: process {holder.process.pid} is changing this target right now" in said
    assert "stopped" not in said


def test_every_name_of_a_target_has_one_lock(small: world.World) -> None:
    checkout = small.checkout()
    link = small.folder / "link"
    link.symlink_to(checkout)
    with lock.hold(targets.locate(checkout)):
        for named in (checkout / "python", checkout / "python/sglang", link):
            with (
                pytest.raises(PatchSeriesError, match=f"process {os.getpid()} is changing"),
                lock.hold(targets.locate(named), wait=False),
            ):
                pass


def test_lock_leaves_nothing(target: Path) -> None:
    before = world.identities(target)
    with lock.hold(targets.locate(target)):
        assert world.identities(target) == before
    assert world.identities(target) == before


def test_file_system_without_locks(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(descriptor: int, operation: int) -> None:
        raise OSError(lock._NO_LOCKS[0], "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    said: list[str] = []
    with lock.hold(targets.locate(target), say=said.append):
        pass
    assert "has no locks (No locks available)" in said[0]
