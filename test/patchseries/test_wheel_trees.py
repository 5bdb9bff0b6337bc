"""Trees from the wheel: the pinned one or none, the same as apply, whole or not at all."""

from __future__ import annotations

import stat
import sys
import zipfile
from pathlib import Path

import pytest
import world

from patchseries import apply, pin, plan, targets, trees, wheels
from patchseries.errors import ExitCode, PatchSeriesError


def build(small: world.World, name: str, through: str | None = None) -> Path:
    return trees.build(world.BASE, through, small.folder / name, small.repository)


def test_tree_is_the_wheel_with_apply(small: world.World) -> None:
    target = small.unpacked()
    (target / "sglang/srt/run.sh").chmod(0o755)
    apply.execute(plan.to_apply(small.repository, targets.locate(target)))
    assert world.snapshot(build(small, "tree")) == world.snapshot(target)


def test_tree_as_released_is_the_wheel(small: world.World) -> None:
    target = small.unpacked()
    (target / "sglang/srt/run.sh").chmod(0o755)
    tree = build(small, "tree", "base")
    assert world.snapshot(tree) == world.snapshot(target)
    assert tree.stat().st_mode == target.stat().st_mode


def test_destination(small: world.World) -> None:
    empty, taken = small.folder / "empty", small.folder / "taken"
    empty.mkdir()
    assert (build(small, "empty") / "sglang").is_dir()
    world.write(taken, {"f": ""})
    with pytest.raises(PatchSeriesError, match="not empty") as caught:
        build(small, "taken")
    assert caught.value.code is ExitCode.USAGE
    assert [path.name for path in taken.iterdir()] == ["f"]
    file = small.folder / "file"
    file.write_text("")
    with pytest.raises(PatchSeriesError, match="not empty"):
        build(small, "file")


def test_failure_leaves_nothing(small: world.World) -> None:
    path = small.patches / world.THIRD
    path.write_text(path.read_text().replace("+    return 50\n", "+    return 51\n"))
    with pytest.raises(PatchSeriesError, match="than the pin says"):
        build(small, "tree")
    assert not [each for each in small.folder.iterdir() if "tree" in each.name]


def test_cached_wheel_that_is_not_the_pinned_one_stops(small: world.World) -> None:
    world.make_wheel(small.wheel, {**world.RELEASED, world.OLD: "other\n"})
    with pytest.raises(PatchSeriesError, match=r"another SHA-256.*expected [0-9a-f]{64}.*rm '"):
        build(small, "tree")
    assert not (small.folder / "tree").exists()


def serve_by_pip(small: world.World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Take the wheel out of the cache and put it where the real pip looks, with no index."""
    index = small.folder / "index"
    index.mkdir()
    small.wheel.rename(index / world.WHEEL)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return index / world.WHEEL


def test_wheel_is_downloaded_once(small: world.World, monkeypatch: pytest.MonkeyPatch) -> None:
    served = serve_by_pip(small, monkeypatch)
    build(small, "tree")
    assert small.wheel.read_bytes() == served.read_bytes()
    assert [path.name for path in small.wheel.parent.iterdir()] == [world.WHEEL]
    served.unlink()
    build(small, "again")


def test_downloaded_wheel_that_is_not_the_pinned_one_stops(
    small: world.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = serve_by_pip(small, monkeypatch)
    world.make_wheel(served, {**world.RELEASED, world.OLD: "other\n"})
    with pytest.raises(PatchSeriesError, match="another SHA-256"):
        build(small, "tree")
    assert list(small.wheel.parent.iterdir()) == []


def test_download_that_fails(small: world.World, monkeypatch: pytest.MonkeyPatch) -> None:
    serve_by_pip(small, monkeypatch).unlink()
    with pytest.raises(PatchSeriesError, match=r"pip could not download .*by hand"):
        build(small, "tree")
    assert list(small.wheel.parent.iterdir()) == []


def pinned(*names: str) -> pin.Pin:
    listed = tuple(pin.Wheel(name, "0" * 64) for name in names)
    return pin.Pin("v1", "v1", None, "sglang", "1", listed, {}, ())


def test_the_wheel_for_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        f"sglang-1-{tag}-{tag}-manylinux_2_34_{machine}.whl"
        for tag in ("cp310", "cp311", "cp312", "cp313")
        for machine in ("aarch64", "x86_64")
    ]
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    monkeypatch.setattr(sys, "platform", "linux")
    assert wheels.for_this_python(pinned(*names)).file == names[4]
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(
        PatchSeriesError, match=r"cp312 on linux riscv64.*expected one of sglang-1-"
    ):
        wheels.for_this_python(pinned(*names))
    assert wheels.for_reading(pinned(*names)).file == names[0]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("../outside.py", 0o644),
        ("sglang/../../outside.py", 0o644),
        ("/outside.py", 0o644),
        ("sglang\\..\\outside.py", 0o644),
        ("sglang/link.py", stat.S_IFLNK | 0o777),
    ],
)
def test_unsafe_member_is_not_unpacked(name: str, mode: int, tmp_path: Path) -> None:
    wheel, inside = tmp_path / "x.whl", tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        member = zipfile.ZipInfo("x")
        member.filename = name
        member.external_attr = mode << 16
        archive.writestr(member, "x")
    with pytest.raises(PatchSeriesError, match="will not unpack"):
        wheels.unpack(wheel, inside)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "x.whl"]


def test_member_twice_is_not_unpacked(tmp_path: Path) -> None:
    wheel = tmp_path / "x.whl"
    with zipfile.ZipFile(wheel, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("a.py", "1")
        archive.writestr("a.py", "2")
    (tmp_path / "out").mkdir()
    with pytest.raises(PatchSeriesError, match=r"will not unpack 'a\.py'"):
        wheels.unpack(wheel, tmp_path / "out")


def cached(small: world.World, through: str | None = None) -> Path:
    return trees.cached(world.BASE, through, small.repository)


def test_cached_tree_is_reused(small: world.World) -> None:
    first = cached(small)
    before = world.identities(first / "sglang")
    assert cached(small, "extended") == first
    assert world.identities(first / "sglang") == before
    assert first.parent == small.repository.build / "trees"


def test_cached_tree_follows_the_patches(small: world.World) -> None:
    whole, core, base = cached(small), cached(small, "core"), cached(small, "base")
    path = small.patches / world.THIRD
    path.write_text(path.read_text().replace("What was wrong", "What was very wrong"))
    assert cached(small) != whole
    assert cached(small, "core") == core
    assert cached(small, "base") == base
    assert len({whole, core, base}) == 3


def test_cached_tree_that_was_changed_stops(small: world.World) -> None:
    tree = cached(small)
    with (tree / "sglang/srt/cache.py").open("a") as file:
        file.write("# mine\n")
    with pytest.raises(PatchSeriesError, match=r"cached tree was changed.*cache\.py.*rm -r"):
        cached(small)


def test_only_the_last_cached_trees_of_a_prefix_are_kept(small: world.World) -> None:
    core = cached(small, "core")
    path = small.patches / world.THIRD
    text = path.read_text()
    made = []
    for number in (0, 1, 2, 0, 3, 4):
        path.write_text(text.replace("What was wrong", f"What was wrong {number}"))
        made.append(cached(small))
    assert made[0] == made[3]
    assert [tree.exists() for tree in made] == [True, False, False, True, True, True]
    assert core.exists()
