"""What others paid for (section 3 of the design): each trap, shown with the real git, then avoided.

The first part of a test shows that the trap is there, so that it fails when git changes its ways;
the second that this tool does not step into it. The docstring says where it is tested further.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import world

from patchseries import apply, edit, export, pin, pinning, plan, state, status, targets, testids
from patchseries.errors import PatchSeriesError
from patchseries.report import Condition

HERE = Path(__file__).resolve().parent


def put_in(small: world.World, target: Path, through: str | None = None) -> None:
    apply.execute(plan.to_apply(small.repository, targets.locate(target), through=through))


def take_out(small: world.World, target: Path) -> None:
    apply.execute(plan.to_reverse(small.repository, targets.locate(target)))


def test_git_apply_in_a_work_tree_of_another_repository(small: world.World) -> None:
    """It does nothing there and exits 0: a target is never given to git.

    Further: test_apply_reverse.py::test_inside_another_repository
    Further: test_edit_export.py::test_inside_another_repository
    """
    outer = small.folder / "outer"
    shutil.copytree(small.checkout("inner") / "python", outer / "vendor" / "python")
    world.git(outer, "init", "--quiet")
    before = world.snapshot(outer / "vendor")
    done = subprocess.run(
        ["git", "apply", str(small.patches / world.FIRST)],
        cwd=outer / "vendor",
        capture_output=True,
        check=False,
    )
    assert (done.returncode, world.snapshot(outer / "vendor")) == (0, before)
    put_in(small, outer / "vendor")
    changed = world.snapshot(outer / "vendor/python")
    expected = status.load(small.repository, world.BASE).ladder.after(3)
    assert all(
        (pin.diff.sha256(changed[path.removeprefix("python/")][1]) == digest)
        for path, digest in expected.items()
        if digest != "absent"
    )


def test_git_am_eats_the_tag_of_a_subject(small: world.World) -> None:
    """Without --keep-non-patch `[HiCache]` is gone from the commit; edit and export keep it.

    Further: test_real_series.py::test_every_prefix_is_what_git_apply_makes
    """
    eaten = small.checkout("eaten")
    world.git(eaten, "am", "--quiet", str(small.patches / world.FIRST))
    assert world.git(eaten, "log", "-1", "--format=%s") == "Let a node say what the host lacks\n"
    edit.edit(small.repository, world.BASE, small.folder / "again")
    shown = world.git(small.folder / "again", "log", "-3", "--format=%s").splitlines()
    assert all(subject.startswith("[HiCache] ") for subject in shown)
    assert export.export(small.repository, small.folder / "again", check=True).is_same


def test_export_depends_on_the_settings_of_the_user(
    small: world.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """format-patch alone adds what format.signOff and format.attach say; export does not.

    Further: test_edit_export.py::test_each_setting_alone
    Further: test_edit_export.py::test_each_surrounding_alone
    Further: test_edit_export.py::test_settings_of_user_and_repository_change_nothing
    """
    home = small.folder / "home"
    world.write(home, {".gitconfig": "[format]\nsignOff = true\nattach = true\n"})
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for name in ("NAME", "EMAIL"):
        monkeypatch.setenv(f"GIT_COMMITTER_{name}", "else@example.com")
    command = ["git", "format-patch", "-1", "--stdout"]
    shown = subprocess.check_output(command, cwd=small.edited, text=True)
    assert "Signed-off-by: else@example.com" in shown
    assert "multipart/mixed" in shown
    assert export.export(small.repository, small.edited, check=True).is_same


def test_git_am_3_makes_no_commit_of_what_upstream_has(small: world.World) -> None:
    """It exits 0 without a commit: commits are counted, and such a patch is called upstreamed."""
    has_it = small.checkout("upstream")
    patch = str(small.patches / world.FIRST)
    world.git(has_it, "am", "--quiet", "--keep-non-patch", patch)
    world.git(has_it, "am", "--quiet", "-3", "--keep-non-patch", patch)
    assert world.git(has_it, "rev-list", "--count", "HEAD") == "2\n"
    # The same series on a release that has the first patch.
    sources = {
        name: (has_it / name).read_text() for name in world.RELEASED if (has_it / name).exists()
    }
    world.make_wheel(small.wheel, sources)
    path = small.patches / "base.toml"
    old = pin.read(small.patches).wheels[0].sha256
    path.write_text(path.read_text().replace(old, pinning.wheels.hash_file(small.wheel)))
    with pytest.raises(PatchSeriesError, match=rf"upstreamed: v1\.0 has every.*{world.FIRST}"):
        edit.edit(small.repository, world.BASE, small.folder / "again")
    assert not (small.folder / "again").exists()


def test_failed_check_is_not_already_applied(small: world.World) -> None:
    """`git apply --check` fails for both; here the file hashes tell them apart, file by file.

    Further: test_apply_reverse.py::test_drifted_base_is_refused
    Further: test_apply_reverse.py::test_patched_file_that_changed_is_refused
    Further: test_apply_reverse.py::test_partly_applied_by_hand
    Further: test_apply_reverse.py::test_other_version_of_the_series
    """
    found = {}
    for name in ("applied", "drifted", "as released", "partly"):
        checkout = small.checkout(name)
        if name in ("applied", "partly"):
            put_in(small, checkout)
        if name == "partly":
            world.git(checkout, "checkout", "--quiet", "--", world.CACHE)
        if name == "drifted":
            (checkout / world.POOL).write_text("mine\n")
        check = ["git", "apply", "--check", str(small.patches / world.FIRST)]
        code = subprocess.run(check, cwd=checkout, capture_output=True, check=False).returncode
        report = status.examine(small.repository, targets.locate(checkout))
        found[name] = (code == 0, report.condition, {each.path for each in report.reasons})
    assert found == {
        "as released": (True, Condition.NOT_APPLIED, set()),
        "applied": (False, Condition.APPLIED, set()),
        "drifted": (False, Condition.DRIFTED, {world.POOL}),
        "partly": (
            False,
            Condition.PARTLY_APPLIED,
            {world.CACHE, world.POOL, world.NEW, world.OLD},
        ),
    }


def test_state_file_is_never_half_written(small: world.World) -> None:
    """Written beside and renamed; one that is cut off all the same is named, not guessed at.

    Further: test_killed.py::test_killed_at_every_step
    Further: test_interrupted.py::test_failure_at_any_step_is_rolled_back
    """
    target = small.unpacked()
    put_in(small, target)
    record = target / ".patchseries/state.json"
    whole = record.read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 3):
        record.write_bytes(whole[:size])
        with pytest.raises(PatchSeriesError, match=r"damaged: not JSON.*state\.json.*reinstall"):
            state.read(record)


def test_reverse_uses_the_text_that_was_applied(small: world.World) -> None:
    """Today's series may be another one, or gone.

    Further: test_apply_reverse.py::test_reverse_needs_no_series
    """
    target = small.unpacked()
    before = world.snapshot(target)
    put_in(small, target)
    patches = {name: (small.patches / name).read_text() for name in (world.FIRST, world.SECOND)}
    recorded = state.read(target / ".patchseries/state.json")
    assert recorded is not None
    assert {each.name: each.text for each in recorded.patches[:2]} == patches
    for name in patches:
        (small.patches / name).write_text("gone\n")
    with pytest.raises(PatchSeriesError):
        put_in(small, small.unpacked("other"))
    shutil.rmtree(small.patches)
    take_out(small, target)
    assert world.snapshot(target) == before


def test_pin_is_more_than_a_tag(small: world.World) -> None:
    """A tag that was moved, or a wheel of the same name with other bytes, stops everything.

    Further: test_wheel_trees.py::test_cached_wheel_that_is_not_the_pinned_one_stops
    Further: test_wheel_trees.py::test_downloaded_wheel_that_is_not_the_pinned_one_stops
    Further: test_apply_reverse.py::test_wrong_release_is_refused
    """
    checkout = small.checkout()
    world.git(checkout, "tag", world.BASE)
    world.write(checkout, {world.POOL: "moved\n"})
    world.commit(checkout, "moved")
    world.git(checkout, "tag", "--force", world.BASE)
    before = world.identities(checkout)
    with pytest.raises(PatchSeriesError, match=r"upstream file changed.*pool\.py"):
        put_in(small, checkout)
    assert world.identities(checkout) == before


def test_every_test_that_is_pointed_at_is_there() -> None:
    pointed = [
        line.strip().removeprefix("Further: ")
        for line in Path(__file__).read_text().splitlines()
        if line.strip().startswith("Further: ")
    ]
    assert len(pointed) > 12
    for each in pointed:
        file, _, name = each.partition("::")
        path = HERE / file
        assert name in testids.read(path, path.stat().st_mtime_ns).functions, each
