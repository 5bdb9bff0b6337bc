"""Wheels of the patched release: the same to the byte, true metadata, installed by the real pip."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import world
from test_installed import Environment

from patchseries import archive, cli, localwheel, pin, trees, wheels
from patchseries.errors import PatchSeriesError
from patchseries.repository import Repository

NAME = "sglang-1.0+hicache.1-py3-none-any.whl"


def build(small: world.World, out: str, through: str | None = None) -> Path:
    pinned = pin.read(small.patches)
    built = localwheel.build(
        small.repository, world.BASE, through, small.folder / out, pinned.wheels[0]
    )
    assert built.size == built.path.stat().st_size
    return built.path


def test_same_to_the_byte(small: world.World, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build(small, "one")
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    monkeypatch.setattr(time, "time", lambda: 2e9)
    before = os.umask(0o077)
    monkeypatch.chdir("/")
    second = build(small, "deep/er")
    os.umask(before)
    assert first.name == second.name == NAME
    assert first.read_bytes() == second.read_bytes()


def test_holds_the_patched_tree_and_says_what_it_is(small: world.World) -> None:
    tree = trees.build(world.BASE, None, small.folder / "tree", small.repository)
    with zipfile.ZipFile(build(small, "dist")) as whole:
        assert whole.testzip() is None
        found = {name: whole.read(name) for name in whole.namelist()}
        modes = {info.filename: info.external_attr >> 16 for info in whole.infolist()}
        assert {info.date_time for info in whole.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    names = list(found)
    assert names[:-1] == sorted(names[:-1])
    assert names[-1] == "sglang-1.0+hicache.1.dist-info/RECORD"
    assert {mode & 0o777 for name, mode in modes.items() if name != "sglang/srt/run.sh"} == {0o644}
    assert modes["sglang/srt/run.sh"] & 0o777 == 0o755
    inside = {
        path.relative_to(tree).as_posix(): path.read_bytes()
        for path in (tree / "sglang").rglob("*")
        if path.is_file()
    }
    others = {"sglang/version.py", "sglang/_hicache_patches.py"}
    assert {name: each for name, each in found.items() if "dist-info" not in name} == {
        **inside,
        **{name: found[name] for name in others},
    }
    assert found["sglang/version.py"] == b'__version__ = "1.0+hicache.1"\n'
    rows = found[names[-1]].decode().splitlines()
    assert rows == [
        *(world.record_row(name, each) for name, each in list(found.items())[:-1]),
        f"{names[-1]},,",
    ]
    info = "sglang-1.0+hicache.1.dist-info"
    assert b"\nVersion: 1.0+hicache.1\n" in found[f"{info}/METADATA"]
    assert found[f"{info}/WHEEL"].startswith(b"Wheel-Version: 1.0\n")


@pytest.mark.parametrize(
    ("through", "version"),
    [("core", "1.0+hicache.1.2"), (world.FIRST, "1.0+hicache.1.1"), (None, "1.0+hicache.1")],
)
def test_each_prefix_has_a_version(through: str | None, version: str, small: world.World) -> None:
    assert build(small, "dist", through).name.startswith(f"sglang-{version}-")


def test_revision_is_told_by_the_pin(small: world.World) -> None:
    path = small.patches / "base.toml"
    path.write_text(path.read_text().replace("revision = 1 ", "revision = 12 "))
    assert pin.read(small.patches).revision == 12
    assert build(small, "dist").name.startswith("sglang-1.0+hicache.12-")
    path.write_text(path.read_text().replace("revision = 12", 'revision = "x"'))
    with pytest.raises(PatchSeriesError, match="wrong type"):
        pin.read(small.patches)


def test_no_patch_no_wheel(small: world.World) -> None:
    with pytest.raises(PatchSeriesError, match="no patch, no wheel"):
        build(small, "dist", "base")
    assert not (small.folder / "dist").exists()


def test_failure_leaves_nothing(small: world.World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(archive, "stored", fail)
    with pytest.raises(OSError, match="No space"):
        build(small, "dist")
    assert list((small.folder / "dist").iterdir()) == []


def test_installed_by_pip(small: world.World, capsys: pytest.CaptureFixture[str]) -> None:
    env = Environment(small)
    released = env.files()
    repo = ["--repo", str(small.repository.root)]
    assert cli.main([*repo, "wheel", "--out", str(small.folder / "dist")]) == 0
    said = capsys.readouterr().out
    assert re.fullmatch(rf"\S+/{re.escape(NAME)}: 0\.0 MB, upstream's 0\.0 MB; \d+\.\d s\n", said)
    env.pip("install", str(small.folder / "dist" / NAME))
    assert env.size() == 8
    assert "already satisfied: sglang==1.0" in env.pip("install", "sglang==1.0")
    assert env.pip("check") == "No broken requirements found.\n"
    (found,) = importlib.metadata.distributions(name="sglang", path=[str(env.site)])
    assert found.version == "1.0+hicache.1"
    (point,) = found.entry_points.select(group="sglang.srt.plugins")
    assert point.value == "sglang._hicache_patches:announce"
    # Status knows it, apply leaves it alone, reverse names pip.
    said = env.tool("status", "--installed", "--expect", "applied").stdout
    assert "installed as the wheel 1.0+hicache.1; pip takes it out" in said
    assert "already applied" in env.tool("apply", "--installed").stdout
    assert not (env.site / ".patchseries").exists()
    refused = env.tool("reverse", "--installed", code=1).stderr
    assert "type: pip install --force-reinstall --no-deps sglang==1.0" in refused
    env.tool("apply", "--installed", "--through", world.FIRST, code=1)
    env.pip("install", "--force-reinstall", str(small.wheel))
    assert env.files() == released


def test_one_line_at_start(small: world.World) -> None:
    """The plugin speaks in the first process only."""
    (small.folder / "tree").mkdir()
    wheels.unpack(build(small, "dist"), small.folder / "tree")
    ask = (
        "import multiprocessing as m; from sglang import _hicache_patches as p\n"
        "if __name__ == '__main__':\n"
        "    p.announce()\n"
        "    child = m.get_context('spawn').Process(target=p.announce)\n"
        "    child.start(); child.join(); assert child.exitcode == 0\n"
    )
    script = small.folder / "ask.py"
    script.write_text(ask)
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(small.folder / "tree")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == (
        "sglang 1.0+hicache.1: 1.0 with 3 patches for HiCache, "
        f"through {world.THIRD.removesuffix('.patch')}\n"
    )


def test_the_real_wheel(tmp_path: Path) -> None:
    repository = Repository.default()
    pinned = pin.read(repository.folder("v0.5.17"))
    chosen = wheels.for_this_python(pinned)
    made = [localwheel.build(repository, "v0.5.17", None, tmp_path / each, chosen) for each in "ab"]
    assert made[0].path.read_bytes() == made[1].path.read_bytes()
    with (
        zipfile.ZipFile(made[0].path) as whole,
        zipfile.ZipFile(wheels.fetch(pinned, chosen)) as released,
    ):
        assert whole.testzip() is None
        version = whole.read("sglang/_version.py").decode()
        assert f"__version__ = version = '0.5.17+hicache.{pinned.revision}'\n" in version
        assert f" = (0, 5, 17, 'hicache.{pinned.revision}')\n" in version
        info = f"sglang-0.5.17+hicache.{pinned.revision}.dist-info"
        assert "killall_sglang = " in whole.read(f"{info}/entry_points.txt").decode()
        changed = {
            name
            for name in whole.namelist()
            if "dist-info" not in name
            and (name not in released.namelist() or whole.read(name) != released.read(name))
        }
    assert changed == {
        "sglang/_version.py",
        "sglang/_hicache_patches.py",
        *(path.removeprefix("python/") for path in pinned.files),
    }
    assert made[0].size < made[0].released_size * 1.1
