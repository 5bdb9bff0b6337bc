"""The committed series on the released sglang: the pinned wheel itself, and real git."""

from __future__ import annotations

from pathlib import Path

import pytest
import world

from patchseries import (
    apply,
    diff,
    edit,
    export,
    lint,
    pin,
    plan,
    series,
    status,
    targets,
    trees,
    wheels,
)
from patchseries.repository import Repository

BASE = "v0.5.17"
REPOSITORY = Repository.default()


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.build(BASE, "base", tmp_path_factory.mktemp("released") / "tree")


def test_lint() -> None:
    assert lint.lint(REPOSITORY, BASE) == []


def test_all_eight_wheels_are_pinned() -> None:
    pinned = pin.read(REPOSITORY.folder(BASE))
    assert {wheel.file for wheel in pinned.wheels} == {
        f"sglang-0.5.17-cp3{minor}-cp3{minor}-manylinux_2_34_{machine}.whl"
        for minor in (10, 11, 12, 13)
        for machine in ("x86_64", "aarch64")
    }
    assert wheels.hash_file(wheels.fetch(pinned, wheels.for_this_python(pinned)))


def test_apply_and_reverse_leave_the_wheel_as_it_was(released: Path, tmp_path: Path) -> None:
    before, stamps = world.snapshot(released), world.identities(released)
    apply.execute(plan.to_apply(REPOSITORY, targets.locate(released)))
    whole = trees.build(BASE, None, tmp_path / "tree")
    assert world.snapshot(released) == world.snapshot(whole)
    applied = world.identities(released)
    apply.execute(plan.to_apply(REPOSITORY, targets.locate(released)))
    assert world.identities(released) == applied
    apply.execute(plan.to_reverse(REPOSITORY, targets.locate(released)))
    assert world.snapshot(released) == before
    after = world.identities(released)
    touched = {path.removeprefix("python/") for path in status.load(REPOSITORY, BASE).pin.files}
    touched.add("sglang-0.5.17.dist-info/RECORD")
    assert {
        name for name in stamps if (released / name).is_file() and stamps[name] != after[name]
    } == touched


def test_every_prefix_is_what_git_apply_makes(released: Path, tmp_path: Path) -> None:
    known = status.load(REPOSITORY, BASE)
    checkout = tmp_path / "checkout"
    contents = targets.locate(released).read(known.pin.files)
    world.write(checkout, {path: text for path, text in contents.items() if text is not None})
    world.git(checkout, "init", "--quiet")
    world.commit(checkout, "released")
    for count, patch in enumerate(known.series.patches, 1):
        world.git(checkout, "am", "--keep-non-patch", str(known.series.folder / patch.name))
        found = targets.Target(checkout, checkout / "python/sglang", checkout).read(contents)
        expected = known.ladder.after(count)
        assert {path: diff.sha256(text) for path, text in found.items()} == expected
        subject = world.git(checkout, "log", "-1", "--format=%s").rstrip("\n")
        assert subject == patch.message.subject


def test_round_trip_is_empty(tmp_path: Path) -> None:
    count = edit.edit(REPOSITORY, BASE, tmp_path / "edit")
    assert count == len(series.load(REPOSITORY, BASE).patches)
    assert export.export(REPOSITORY, tmp_path / "edit", check=True).is_same
