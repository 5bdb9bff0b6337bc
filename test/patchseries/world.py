"""Makes what the tests of the tool work on: a release, a series on it, and its registered tests."""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
import io
import os
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path

from patchseries import edit, export, pinning
from patchseries.repository import Repository

BASE = "v1.0"
WHEEL = "sglang-1.0-py3-none-any.whl"

CACHE = "python/sglang/srt/cache.py"
POOL = "python/sglang/srt/pool.py"
OLD = "python/sglang/srt/old.py"
NEW = "python/sglang/srt/hybrid/state.py"

FIRST = "HiCache-Let-a-node-say-what-the-host-lacks.patch"
SECOND = "HiCache-Back-up-a-state-alone.patch"
THIRD = "HiCache-Drop-the-old-way.patch"

RELEASED = {
    "python/sglang/__init__.py": "",
    "python/sglang/version.py": '__version__ = "1.0"\n',
    "python/sglang/srt/__init__.py": "",
    CACHE: "".join(f"def step_{n}():\n    return {n}\n\n\n" for n in range(12)),
    POOL: '"""Pool of the host: größer als nötig."""\n\nSIZE = 4\nKIND = "host"',
    OLD: "WAY = 'old'\n",
    "python/sglang/srt/other.py": "OTHER = 1\n",
}

TESTS = '''\
"""Registered tests of the small series."""

import unittest

from sglang.srt import cache, pool


class TestFirst(unittest.TestCase):
    def test_size(self):
        self.assertEqual(pool.SIZE, 8)

    def test_step(self):
        for step in (1, 2):
            with self.subTest(step=step):
                self.assertEqual(cache.step_2(), 20)


class TestAlways(unittest.TestCase):
    def test_kind(self):
        self.assertEqual(pool.KIND, "host")

    @unittest.skip("needs a GPU")
    def test_gpu(self):
        pass
'''

TESTS_OF_NEW = '''\
"""Registered tests that cannot even be imported without the second patch."""

import unittest

from sglang.srt.hybrid import state


class TestState(unittest.TestCase):
    def test_state(self):
        self.assertEqual(state.STATE, 1)
'''

TESTS_OF_THIRD = '''\
"""Registered tests of the third patch."""

import importlib.util


def test_old_is_gone():
    assert importlib.util.find_spec("sglang.srt.old") is None
'''


@dataclasses.dataclass(frozen=True)
class World:
    """A folder with `repo/` (a repository of patches), `cache/` (its wheel) and `edit/`."""

    folder: Path

    @property
    def repository(self) -> Repository:
        return Repository(self.folder / "repo")

    @property
    def patches(self) -> Path:
        return self.repository.patches / BASE

    @property
    def wheel(self) -> Path:
        return self.folder / "cache" / "wheels" / WHEEL

    @property
    def edited(self) -> Path:
        """The repository that the series was exported from."""
        return self.folder / "edit"

    def unpacked(self, name: str = "target") -> Path:
        """A fresh folder that holds the released `sglang/`."""
        target = self.folder / name
        with zipfile.ZipFile(self.wheel) as archive:
            archive.extractall(target)
        return target

    def checkout(self, name: str = "checkout") -> Path:
        """A fresh git checkout that holds the released `python/sglang/`."""
        target = self.folder / name
        write(target, RELEASED)
        git(target, "init", "--quiet")
        git(target, "add", "--all")
        commit(target, "released")
        return target


def make(folder: Path) -> World:
    """The small base and its series; $HICACHE_CACHE must be `folder/cache`."""
    made = World(folder)
    make_wheel(made.wheel, RELEASED)
    write(
        made.repository.root,
        {
            "test/registered/unit/test_small_first.py": TESTS,
            "test/registered/unit/test_small_second.py": TESTS_OF_NEW,
            "test/registered/unit/test_small_third.py": TESTS_OF_THIRD,
        },
    )
    pinning.renew(made.repository, BASE, wheel_folder=made.wheel.parent)
    edit.edit(made.repository, BASE, made.edited)
    _first(made.edited)
    _second(made.edited)
    _third(made.edited)
    export.export(made.repository, made.edited)
    series = f"# The order.\n# group: core\n{FIRST}\n{SECOND}\n\n# group: extended\n{THIRD}\n"
    (made.patches / "series").write_text(series)
    return made


def _first(edited: Path) -> None:
    changed = (
        RELEASED[CACHE].replace("return 2\n", "return 20\n").replace("return 9\n", "return 90\n")
    )
    write(edited, {CACHE: changed, POOL: RELEASED[POOL].replace("SIZE = 4", "SIZE = 8")})
    first = "test/registered/unit/test_small_first.py::TestFirst"
    commit(edited, message("Let a node say what the host lacks", first))


def _second(edited: Path) -> None:
    write(
        edited,
        {
            NEW: '"""State of a hybrid model."""\n\nSTATE = 1\n',
            CACHE: (edited / CACHE).read_text() + "STEPS = 12\n",
            POOL: (edited / POOL).read_text() + "\n",
        },
    )
    second = "test/registered/unit/test_small_second.py"
    commit(edited, message("Back up a state alone", f"{second}::TestState::test_state"))


def _third(edited: Path) -> None:
    (edited / OLD).unlink()
    write(edited, {CACHE: (edited / CACHE).read_text().replace("return 5\n", "return 50\n")})
    third = "test/registered/unit/test_small_third.py::test_old_is_gone"
    commit(edited, message("Drop the old way", third))


def message(subject: str, tests: str) -> str:
    """A commit message with every trailer."""
    return (
        f"[HiCache] {subject}\n\nWhat was wrong, what changes, what it costs.\n\n"
        f"Upstream-Status: Pending\nTests: {tests}\nBase: {BASE}\n"
    )


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files below a folder, making folders as needed."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def make_wheel(path: Path, sources: Mapping[str, str]) -> None:
    """A wheel of these sources, with one executable file and the metadata that pip wants."""
    path.parent.mkdir(parents=True, exist_ok=True)
    info = "sglang-1.0.dist-info"
    inside = {name.removeprefix("python/"): text for name, text in sources.items()}
    inside["sglang/srt/run.sh"] = "#!/bin/sh\n"
    inside["sglang/srt/N=1,dtype=fp8.json"] = "{}\n"  # sglang has names like this
    inside[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: sglang\nVersion: 1.0\n"
    inside[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [record_row(name, text.encode()) for name, text in inside.items()]
    inside[f"{info}/RECORD"] = "\r\n".join([*rows, f"{info}/RECORD,,", ""])
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in inside.items():
            member = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            member.external_attr = (0o755 if name.endswith(".sh") else 0o644) << 16
            archive.writestr(member, text.encode())


def record_row(name: str, content: bytes) -> str:
    """A line of pip's RECORD, as pip itself writes it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow([name, f"sha256={digest}", len(content)])
    return line.getvalue()


def git(folder: Path, *arguments: str, stdin: str = "") -> str:
    """Run git as a test's own tool, blind to the machine's settings and to repositories above."""
    environment = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CEILING_DIRECTORIES": str(folder.parent),
        "GIT_AUTHOR_NAME": "Jöran B. Author",
        "GIT_AUTHOR_EMAIL": "author@example.com",
        "GIT_AUTHOR_DATE": "2026-11-02T03:04:05 -0730",
        "GIT_COMMITTER_NAME": "committer",
        "GIT_COMMITTER_EMAIL": "committer@example.com",
        "GIT_EDITOR": "true",
    }
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        env=environment,
        input=stdin.encode(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stderr.decode())
    return done.stdout.decode()


def commit(folder: Path, text: str) -> None:
    """Commit everything in a work tree."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--file=-", "--cleanup=verbatim", stdin=text)


def snapshot(folder: Path) -> dict[str, tuple[str, bytes, int]]:
    """Kind, content and permission bits of everything below a folder."""
    found: dict[str, tuple[str, bytes, int]] = {}
    for path in sorted(folder.rglob("*")):
        name, mode = str(path.relative_to(folder)), path.lstat().st_mode & 0o7777
        if path.is_dir():
            found[name] = ("folder", b"", mode)
        else:
            found[name] = ("file", path.read_bytes(), mode)
    return found


def identities(folder: Path) -> dict[str, tuple[int, int]]:
    """Inode and mtime, in nanoseconds, of everything below a folder."""
    return {
        str(path.relative_to(folder)): (path.lstat().st_ino, path.lstat().st_mtime_ns)
        for path in [folder, *folder.rglob("*")]
    }
