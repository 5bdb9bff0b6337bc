"""Applying to a target and taking out again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import world

from patchseries import apply, export, files, pin, plan, status, targets
from patchseries.errors import ExitCode, PatchSeriesError
from patchseries.status import Condition


def put_in(small: world.World, target: Path, through: str | None = None) -> plan.Plan:
    planned = plan.to_apply(small.repository, targets.locate(target), through=through)
    apply.execute(planned)
    return planned


def take_out(small: world.World, target: Path) -> plan.Plan:
    planned = plan.to_reverse(small.repository, targets.locate(target))
    apply.execute(planned)
    return planned


def condition(small: world.World, target: Path) -> Condition:
    return status.examine(small.repository, targets.locate(target)).condition


def patched_by_git(small: world.World, name: str, count: int) -> Path:
    """The released sources with the first patches applied by git itself."""
    folder = small.checkout(name)
    for patch in (world.FIRST, world.SECOND, world.THIRD)[:count]:
        world.git(folder, "apply", "--index", str(small.patches / patch))
    shutil.rmtree(folder / ".git")
    return folder / "python"


@pytest.mark.parametrize(
    ("through", "count"),
    [("core", 2), (world.FIRST, 1), (world.SECOND.removesuffix(".patch"), 2), (None, 3)],
)
def test_same_as_git_apply(through: str | None, count: int, small: world.World) -> None:
    target = small.unpacked()
    put_in(small, target, through)
    ours = world.snapshot(target / "sglang")
    ours = {name: each for name, each in ours.items() if not name.endswith((".sh", ".json"))}
    assert ours == world.snapshot(patched_by_git(small, "by-git", count) / "sglang")


def test_reverse_gives_back_every_byte(small: world.World) -> None:
    target = small.unpacked()
    (target / "sglang/srt/cache.py").chmod(0o640)
    (target / "sglang/srt/old.py").chmod(0o755)
    before, identities = world.snapshot(target), world.identities(target)
    put_in(small, target)
    assert (target / "sglang/srt/cache.py").stat().st_mode & 0o777 == 0o640
    assert not (target / "sglang/srt/old.py").exists()
    take_out(small, target)
    assert world.snapshot(target) == before
    now = world.identities(target)
    touched = {name for name in identities if name[-3:] == ".py" and identities[name] != now[name]}
    assert touched == {"sglang/srt/cache.py", "sglang/srt/pool.py", "sglang/srt/old.py"}


def test_second_apply_changes_nothing(small: world.World) -> None:
    target = small.unpacked()
    put_in(small, target)
    before = world.identities(target)
    planned = put_in(small, target)
    assert planned.done.startswith("already applied")
    assert world.identities(target) == before


def test_second_reverse_changes_nothing(small: world.World) -> None:
    target = small.unpacked()
    before = world.identities(target)
    assert take_out(small, target).done.startswith("not applied")
    assert world.identities(target) == before


def test_the_record_tells_no_time_place_or_person(small: world.World) -> None:
    targets_made = [small.unpacked("one"), small.folder / "elsewhere"]
    shutil.copytree(small.unpacked("two"), targets_made[1] / "deep")
    put_in(small, targets_made[0])
    put_in(small, targets_made[1] / "deep")
    records = [path.read_bytes() for path in small.folder.rglob("state.json")]
    assert len(records) == 2
    assert records[0] == records[1]
    data = json.loads(records[0])
    assert (data["schema"], data["base"], data["phase"]) == (1, world.BASE, "applied")
    assert [each["text"] for each in data["patches"]] == [
        (small.patches / name).read_text() for name in (world.FIRST, world.SECOND, world.THIRD)
    ]
    assert data["files"][world.NEW]["before"] == "absent"
    assert data["files"][world.OLD]["after"] == "absent"
    assert str(small.folder) not in records[0].decode()


def test_going_further(small: world.World) -> None:
    target, whole = small.unpacked(), small.unpacked("whole")
    before = world.snapshot(target)
    put_in(small, target, world.FIRST)
    put_in(small, target, "core")
    put_in(small, target)
    put_in(small, whole)
    assert world.snapshot(target) == world.snapshot(whole)
    take_out(small, target)
    assert world.snapshot(target) == before


@pytest.mark.parametrize("through", ["core", "base"])
def test_shorter_prefix_is_refused(through: str, small: world.World) -> None:
    target = small.unpacked()
    put_in(small, target)
    before = world.identities(target)
    with pytest.raises(PatchSeriesError, match=r"more is applied.*reverse") as caught:
        put_in(small, target, through)
    assert caught.value.code is ExitCode.NOT_SO
    assert world.identities(target) == before


def test_base_is_no_patch_at_all(small: world.World) -> None:
    target = small.unpacked()
    before = world.identities(target)
    assert put_in(small, target, "base").done.startswith("nothing to apply")
    assert world.identities(target) == before


def test_unknown_prefix_is_a_usage_error(small: world.World) -> None:
    with pytest.raises(PatchSeriesError, match="no patch or group is named 'cor'") as caught:
        put_in(small, small.unpacked(), "cor")
    assert caught.value.code is ExitCode.USAGE


def edit_file(target: Path) -> None:
    with (target / "sglang/srt/pool.py").open("a") as file:
        file.write("# local change\n")


def delete_file(target: Path) -> None:
    (target / "sglang/srt/pool.py").unlink()


def crlf_file(target: Path) -> None:
    path = target / "sglang/srt/pool.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def added_already(target: Path) -> None:
    world.write(target, {"sglang/srt/hybrid/state.py": "mine\n"})


@pytest.mark.parametrize(
    ("spoil", "file", "why"),
    [
        (edit_file, "pool.py", "upstream file changed"),
        (delete_file, "pool.py", "file missing: absent"),
        (crlf_file, "pool.py", "CRLF line ends in 1 files"),
        (added_already, "state.py", "upstream file changed"),
    ],
)
def test_drifted_base_is_refused(
    spoil: Callable[[Path], None], file: str, why: str, small: world.World
) -> None:
    target = small.unpacked()
    spoil(target)
    before = world.identities(target)
    with pytest.raises(
        PatchSeriesError, match=rf"{why}.*{file}; expected (LF|[0-9a-f]{{64}}|absent)"
    ):
        put_in(small, target)
    assert world.identities(target) == before
    report = status.examine(small.repository, targets.locate(target))
    assert report.condition is Condition.DRIFTED
    assert [(each.path[-len(file) :], each.reason) for each in report.reasons] == [
        (file, why.partition(":")[0].partition(" in ")[0])
    ]


def test_wrong_release_is_refused(small: world.World) -> None:
    target = small.folder / "other"
    world.write(target, {"sglang/srt/cache.py": "other\n", "sglang/srt/__init__.py": ""})
    with pytest.raises(PatchSeriesError, match=r"upstream file changed.*cache\.py") as caught:
        put_in(small, target)
    assert caught.value.code is ExitCode.NOT_SO


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("__version__ = version = '1.1'\n", "this is sglang 1.1, not 1.0; upstream file changed"),
        ("__version__ = version = '1.0'\n", "upstream file changed"),
        ("unheard of\n", "upstream file changed"),
        (None, "upstream file changed"),
    ],
)
def test_refusal_says_which_release_it_is(
    version: str | None, said: str, small: world.World
) -> None:
    target = small.folder / "other"
    world.write(target, {"sglang/srt/cache.py": "other\n", "sglang/srt/__init__.py": ""})
    if version is not None:
        world.write(target, {"sglang/_version.py": version})
    with pytest.raises(PatchSeriesError) as caught:
        put_in(small, target)
    assert caught.value.what.startswith(said)
    assert caught.value.command.endswith("sglang==1.0")
    assert ("give it sglang 1.0" in caught.value.command) == said.startswith("this is")


@pytest.mark.parametrize("spoil", [edit_file, delete_file])
def test_patched_file_that_changed_is_refused(
    spoil: Callable[[Path], None], small: world.World
) -> None:
    target = small.unpacked()
    put_in(small, target)
    spoil(target)
    before = world.identities(target)
    reason = "file missing" if spoil is delete_file else "patched file changed"
    for attempt in (take_out, put_in):
        with pytest.raises(PatchSeriesError, match=rf"{reason}.*pool\.py"):
            attempt(small, target)
    assert world.identities(target) == before


def test_file_of_a_later_patch_has_drifted(small: world.World) -> None:
    target = small.unpacked()
    put_in(small, target, "core")
    (target / "sglang/srt/old.py").write_text("changed\n")
    assert put_in(small, target, "core").done.startswith("already applied")
    with pytest.raises(PatchSeriesError, match=r"upstream file changed.*old\.py"):
        put_in(small, target)
    take_out(small, target)
    assert (target / "sglang/srt/old.py").read_text() == "changed\n"


def test_other_version_of_the_series(small: world.World) -> None:
    target = small.unpacked()
    before = world.snapshot(target)
    put_in(small, target)
    world.git(small.edited, "reset", "--quiet", "--hard", "HEAD~1")
    world.write(small.edited, {world.NEW: "STATE = 1\nMORE = 2\n"})
    world.commit(small.edited, world.message("More", "x"))
    export.export(small.repository, small.edited)
    assert condition(small, target) is Condition.OTHER_VERSION
    with pytest.raises(PatchSeriesError, match=r"another version of the series.*reverse"):
        put_in(small, target)
    take_out(small, target)
    assert world.snapshot(target) == before


def test_reverse_needs_no_series(small: world.World) -> None:
    target = small.unpacked()
    before = world.snapshot(target)
    put_in(small, target)
    shutil.rmtree(small.repository.patches)
    small.repository.patches.mkdir()
    assert condition(small, target) is Condition.OTHER_VERSION
    take_out(small, target)
    assert world.snapshot(target) == before


def test_message_of_a_patch_was_reworded(small: world.World) -> None:
    target = small.unpacked()
    before = world.snapshot(target)
    put_in(small, target)
    path = small.patches / world.FIRST
    path.write_text(path.read_text().replace("What was wrong", "What was very wrong"))
    assert condition(small, target) is Condition.APPLIED
    assert put_in(small, target).done.endswith("its record is renewed")
    take_out(small, target)
    assert world.snapshot(target) == before


def test_reinstalled_since(small: world.World) -> None:
    target = small.unpacked()
    before = world.snapshot(target)
    put_in(small, target)
    shutil.rmtree(target / "sglang")
    shutil.copytree(small.unpacked("fresh") / "sglang", target / "sglang")
    report = status.examine(small.repository, targets.locate(target))
    assert report.condition is Condition.NOT_APPLIED
    assert "stale" in report.notes[0]
    put_in(small, target)
    assert condition(small, target) is Condition.APPLIED
    take_out(small, target)
    assert world.snapshot(target) == before


def test_reverse_of_a_stale_record(small: world.World) -> None:
    target = small.unpacked()
    put_in(small, target)
    shutil.rmtree(target / "sglang")
    shutil.copytree(small.unpacked("fresh") / "sglang", target / "sglang")
    before = world.identities(target / "sglang")
    take_out(small, target)
    assert not (target / ".patchseries").exists()
    assert world.identities(target / "sglang") == before


def test_applied_by_git_has_no_record(small: world.World) -> None:
    target = patched_by_git(small, "by-git", 2)
    report = status.examine(small.repository, targets.locate(target))
    assert (report.condition, report.count) == (Condition.APPLIED, 2)
    with pytest.raises(PatchSeriesError, match="no record to reverse from"):
        take_out(small, target)
    put_in(small, target, "core")
    take_out(small, target)
    assert world.snapshot(target) == world.snapshot(small.checkout() / "python")


def test_partly_applied_by_hand(small: world.World) -> None:
    target = small.unpacked()
    whole = patched_by_git(small, "by-git", 3)
    shutil.copy(whole / "sglang/srt/pool.py", target / "sglang/srt/pool.py")
    report = status.examine(small.repository, targets.locate(target))
    assert report.condition is Condition.PARTLY_APPLIED
    reasons = {each.path: each.reason for each in report.reasons}
    assert reasons[world.POOL] == "as patched"
    assert reasons[world.CACHE] == "as released"
    before = world.identities(target)
    for attempt in (put_in, take_out):
        with pytest.raises(PatchSeriesError, match=r"partly applied.*pool\.py"):
            attempt(small, target)
    assert world.identities(target) == before


def test_partly_applied_with_a_record_is_completed_or_undone(small: world.World) -> None:
    target = small.unpacked()
    before = world.snapshot(target)
    put_in(small, target)
    applied = world.snapshot(target)
    shutil.copy(small.unpacked("fresh") / "sglang/srt/pool.py", target / "sglang/srt/pool.py")
    assert condition(small, target) is Condition.PARTLY_APPLIED
    put_in(small, target)
    assert world.snapshot(target) == applied
    shutil.copy(small.folder / "fresh/sglang/srt/pool.py", target / "sglang/srt/pool.py")
    take_out(small, target)
    assert world.snapshot(target) == before


def test_pin_that_does_not_fit_the_patches_stops_apply(small: world.World) -> None:
    path = small.patches / "base.toml"
    known = status.load(small.repository, world.BASE)
    wrong = known.ladder.after(3)[world.CACHE]
    path.write_text(path.read_text().replace(wrong, "0" * 64))
    target = small.unpacked()
    before = world.identities(target)
    with pytest.raises(PatchSeriesError, match=r"gives another .*cache\.py than the pin"):
        put_in(small, target)
    assert world.identities(target) == before


def test_link_is_refused(small: world.World) -> None:
    target = small.unpacked()
    place = target / "sglang/srt/pool.py"
    place.rename(small.folder / "pool.py")
    place.symlink_to(small.folder / "pool.py")
    with pytest.raises(PatchSeriesError, match="symbolic link"):
        put_in(small, target)
    assert place.is_symlink()


def test_hard_linked_copies_are_left_alone(small: world.World) -> None:
    """uv installs by hard links into its cache: the cache must not be patched."""
    target = small.unpacked()
    other = small.folder / "linked.py"
    other.hardlink_to(target / "sglang/srt/pool.py")
    before = other.read_bytes()
    put_in(small, target)
    assert other.read_bytes() == before
    assert (target / "sglang/srt/pool.py").read_bytes() != before


def test_byte_code_of_an_added_module_goes_too(small: world.World) -> None:
    target = small.unpacked()
    before = world.snapshot(target)
    put_in(small, target)
    world.write(target, {"sglang/srt/hybrid/__pycache__/state.cpython-311.pyc": "x"})
    take_out(small, target)
    assert world.snapshot(target) == before


def test_file_that_others_put_into_a_made_folder_stays(small: world.World) -> None:
    target = small.unpacked()
    put_in(small, target)
    world.write(target, {"sglang/srt/hybrid/mine.py": "x"})
    take_out(small, target)
    assert [path.name for path in (target / "sglang/srt/hybrid").iterdir()] == ["mine.py"]


@pytest.mark.parametrize("named", ["", "python", "python/sglang"])
def test_git_checkout(named: str, small: world.World) -> None:
    checkout = small.checkout()
    before = world.snapshot(checkout / "python")
    put_in(small, checkout / named)
    changed = world.git(checkout, "status", "--porcelain", "--untracked-files=all").splitlines()
    assert sorted(changed) == [
        f" D {world.OLD}",
        f" M {world.CACHE}",
        f" M {world.POOL}",
        f"?? {world.NEW}",
    ]
    assert (checkout / ".git/patchseries/state.json").is_file()
    take_out(small, checkout)
    assert world.git(checkout, "status", "--porcelain") == ""
    assert world.snapshot(checkout / "python") == before
    assert not (checkout / ".git/patchseries").exists()


def test_worktree_and_submodule(small: world.World) -> None:
    checkout = small.checkout()
    world.git(checkout, "worktree", "add", "--quiet", "../tree")
    outer = small.folder / "outer"
    world.write(outer, {"f": ""})
    world.git(outer, "init", "--quiet")
    world.git(
        outer,
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "--quiet",
        "add",
        str(checkout),
        "sub",
    )
    for target in (small.folder / "tree", outer / "sub"):
        put_in(small, target)
        assert "patchseries" not in world.git(target, "status", "--porcelain")
        assert condition(small, target) is Condition.APPLIED
    assert (checkout / ".git/worktrees/tree/patchseries/state.json").is_file()
    assert (outer / ".git/modules/sub/patchseries/state.json").is_file()
    assert condition(small, checkout) is Condition.NOT_APPLIED


def test_inside_another_repository(small: world.World) -> None:
    outer = small.folder / "outer"
    shutil.copytree(small.unpacked(), outer / "vendor")
    world.git(outer, "init", "--quiet")
    world.commit(outer, "outer\n")
    put_in(small, outer / "vendor")
    changed = world.git(outer, "status", "--porcelain").splitlines()
    assert " M vendor/sglang/srt/cache.py" in changed
    assert (outer / "vendor/.patchseries/state.json").is_file()
    take_out(small, outer / "vendor")
    assert world.git(outer, "status", "--porcelain") == ""


def test_without_git(small: world.World, monkeypatch: pytest.MonkeyPatch) -> None:
    target = small.unpacked()
    before = world.snapshot(target)
    monkeypatch.setenv("PATH", str(small.folder))
    put_in(small, target)
    assert condition(small, target) is Condition.APPLIED
    take_out(small, target)
    assert world.snapshot(target) == before


def test_blanks_and_umlauts_in_the_path(small: world.World) -> None:
    target = small.unpacked("ein großer Ordner")
    before = world.snapshot(target)
    put_in(small, target)
    take_out(small, target)
    assert world.snapshot(target) == before


@pytest.mark.parametrize(
    ("named", "why"),
    [("nowhere", "no such folder"), ("empty", "no sglang here"), ("sglang/srt", "no sglang here")],
)
def test_no_target(named: str, why: str, small: world.World) -> None:
    target = small.unpacked()
    (target / "empty").mkdir()
    with pytest.raises(PatchSeriesError, match=why) as caught:
        targets.locate(target / named)
    assert caught.value.code is ExitCode.USAGE
    if named == "sglang/srt":
        assert f"status '{target}'" in caught.value.command
    else:
        assert "status --installed" in caught.value.command


def test_a_wheel_is_to_be_unpacked(tmp_path: Path) -> None:
    (tmp_path / "sglang-1.0-py3-none-any.whl").write_bytes(b"PK")
    with pytest.raises(PatchSeriesError) as caught:
        targets.locate(tmp_path / "sglang-1.0-py3-none-any.whl")
    assert caught.value.command.startswith("unzip '")


def test_folder_above_a_checkout(small: world.World) -> None:
    checkout = small.checkout("above/sglang")
    with pytest.raises(PatchSeriesError) as caught:
        targets.locate(checkout.parent)
    assert f"status '{checkout}'" in caught.value.command


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "schema None"),
        ('{"schema": 99}', "schema 99"),
        ('{"schema": 1}', "missing or wrong"),
    ],
)
def test_damaged_record_is_named(text: str, why: str, small: world.World) -> None:
    target = small.unpacked()
    world.write(target, {".patchseries/state.json": text})
    for attempt in (put_in, take_out, condition):
        with pytest.raises(PatchSeriesError, match=rf"{why}.*state\.json"):
            attempt(small, target)


def test_record_whose_text_was_edited_is_refused(small: world.World) -> None:
    target = small.unpacked()
    put_in(small, target)
    record = target / ".patchseries/state.json"
    record.write_text(record.read_text().replace("What was wrong", "What is wrong"))
    with pytest.raises(PatchSeriesError, match="not what its hash says"):
        take_out(small, target)


def test_record_whose_hashes_disagree_is_refused(small: world.World) -> None:
    target = small.unpacked()
    put_in(small, target)
    record = target / ".patchseries/state.json"
    data = json.loads(record.read_text())
    data["files"][world.POOL]["after"] = "0" * 64
    record.write_text(json.dumps(data))
    with pytest.raises(PatchSeriesError, match="disagree"):
        take_out(small, target)


def test_way_back_is_held_against_the_released_hash(small: world.World) -> None:
    whole = status.load(small.repository, world.BASE).ladder
    wrong = dataclasses.replace(whole, released={**whole.released, world.POOL: "0" * 64})
    content = patched_by_git(small, "by-git", 3).joinpath("sglang/srt/pool.py").read_bytes()
    assert whole.rewind(world.POOL, content) == world.RELEASED[world.POOL].encode()
    with pytest.raises(PatchSeriesError, match=r"gives another file.*expected 000"):
        wrong.rewind(world.POOL, content)
    with pytest.raises(PatchSeriesError, match="not a version of this file"):
        whole.rewind(world.POOL, content + b"x")


def test_temporary_names_cannot_be_imported() -> None:
    for suffix in (files.NEW_SUFFIX, files.OLD_SUFFIX):
        hidden = files.beside(Path("x/cache.py"), suffix)
        assert hidden.name.startswith(".")
        assert hidden.suffix != ".py"


def test_tree_digest_is_that_of_sha256sum_lines() -> None:
    digest = pin.tree_digest({"b": "0" * 64, "a": "absent"})
    assert digest == hashlib.sha256(f"absent  a\n{'0' * 64}  b\n".encode()).hexdigest()
