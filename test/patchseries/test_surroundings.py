"""Places that resist: no rights, no room, read-only, line ends that git rewrote."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import world

from patchseries import cli

NOBODY = 65534


@contextlib.contextmanager
def mounted(folder: Path, size: str) -> Iterator[None]:
    """A small file system in memory at folder; skips where this user may not mount."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder)],
        capture_output=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"cannot mount: {done.stderr.decode().strip()}; failures are also injected")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def tool(small: world.World, *arguments: str) -> int:
    return cli.main(["--repo", str(small.repository.root), *arguments])


@pytest.mark.parametrize("room", [0, 4, 12, 20])
def test_full_disk(room: int, small: world.World, capsys: pytest.CaptureFixture[str]) -> None:
    """room: KiB that are left; the record alone needs more than the least of them."""
    with mounted(small.folder / "disk", "400k"):
        target = small.folder / "disk" / "target"
        shutil.copytree(small.unpacked(), target)
        before = world.snapshot(target)
        filler = small.folder / "disk" / "filler"
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        os.truncate(filler, filler.stat().st_size // 4096 * 4096 - room * 1024)
        assert tool(small, "apply", str(target)) == 1
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "No space left on device; every file is as it was; " in said
        assert str(target) in said
        assert world.snapshot(target) == before
        filler.unlink()
        assert tool(small, "apply", str(target)) == 0
        assert tool(small, "reverse", str(target)) == 0
        assert world.snapshot(target) == before


def test_read_only_file_system(small: world.World, capsys: pytest.CaptureFixture[str]) -> None:
    with mounted(small.folder / "disk", "1m"):
        target = small.folder / "disk" / "target"
        shutil.copytree(small.unpacked(), target)
        applied = small.folder / "disk" / "applied"
        shutil.copytree(target, applied)
        assert tool(small, "apply", str(applied)) == 0
        subprocess.run(["mount", "-o", "remount,ro", str(small.folder / "disk")], check=True)
        capsys.readouterr()
        for command, place in (("apply", target), ("reverse", applied)):
            assert tool(small, command, str(place)) == 1
            said = capsys.readouterr().err
            assert "Read-only file system; every file is as it was; " in said
        # What writes nothing works all the same.
        assert tool(small, "status", str(applied), "--expect", "applied") == 0
        assert tool(small, "apply", str(applied)) == 0
        assert tool(small, "check", str(target)) == 1
        assert "may not change a folder" in capsys.readouterr().err


def as_nobody(work: Callable[[], int]) -> int:
    """Run work in a child without root's rights, and return its exit code."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def public(small: world.World) -> Iterator[world.World]:
    """The world where any user may read it."""
    with tempfile.TemporaryDirectory(prefix="patchseries-test-") as folder:
        Path(folder).chmod(0o755)
        shutil.copytree(small.folder, Path(folder) / "world", symlinks=True)
        (Path(folder) / "world").chmod(0o755)
        yield world.World(Path(folder) / "world")


@pytest.mark.parametrize("closed", ["sglang/srt", "sglang/srt/__pycache__", "."])
def test_folder_that_may_not_be_changed(closed: str, public: world.World) -> None:
    target = public.unpacked()
    world.write(target, {"sglang/srt/__pycache__/pool.cpython-311.pyc": "stale"})
    for path in [target, *target.rglob("*")]:
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)
    (target / closed).chmod(0o555)
    before = world.snapshot(target)
    log = public.folder / "log"
    log.touch()
    log.chmod(0o666)

    def work() -> int:
        with log.open("w") as file, contextlib.redirect_stderr(file):
            return tool(public, "apply", str(target))

    assert as_nobody(work) == 1
    said = log.read_text()
    assert "could not write: Permission denied; every file is as it was; /" in said
    assert said.count("\n") == 1
    assert world.snapshot(target) == before
    (target / closed).chmod(0o755)
    assert as_nobody(work) == 0


def test_checkout_with_crlf(small: world.World, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that the error names mends it."""
    original = small.checkout("original")
    checkout = small.folder / "crlf checkout"
    clone = ("-c", "core.autocrlf=true", "clone", "--quiet", original.name, checkout.name)
    world.git(small.folder, *clone)
    world.git(checkout, "config", "core.autocrlf", "true")
    assert b"\r\n" in (checkout / world.POOL).read_bytes()
    before = world.snapshot(checkout / "python")
    assert tool(small, "apply", str(checkout)) == 1
    said = capsys.readouterr().err
    assert "CRLF line ends in 3 files, as git's core.autocrlf makes them" in said
    assert world.snapshot(checkout / "python") == before
    (command,) = re.findall(r"type: (.*) \(commit your own changes before\)", said)
    subprocess.run(command, shell=True, check=True, capture_output=True)
    assert tool(small, "apply", str(checkout)) == 0
