"""The series as commits and back: the same bytes, whatever the machine is set to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import world

from patchseries import cli, edit, export, message, pin, pinning, series
from patchseries.errors import PatchSeriesError

HOSTILE = """\
[user]
    name = Somebody Else
    email = else@example.com
[core]
    autocrlf = true
    eol = crlf
    quotePath = true
[commit]
    gpgSign = true
[diff]
    noprefix = true
    mnemonicPrefix = true
    renames = copies
    algorithm = histogram
    context = 9
    external = false
    orderFile = nothing
[format]
    signOff = true
    attach = true
    from = true
    numbered = true
    signature = nobody
    subjectPrefix = HEY
    encodeEmailHeaders = true
    suffix = .txt
    outputDirectory = elsewhere
    headers = "X-Header: x\\n"
    coverLetter = true
    notes = true
[i18n]
    commitEncoding = latin1
    logOutputEncoding = latin1
[color]
    ui = always
[log]
    date = relative
    showSignature = true
"""


def committed(small: world.World) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in small.patches.iterdir()}


def test_round_trip_is_empty(small: world.World) -> None:
    before = committed(small)
    again = small.folder / "again"
    assert edit.edit(small.repository, world.BASE, again) == 3
    assert export.export(small.repository, again, check=True).is_same
    done = export.export(small.repository, again)
    assert done.is_same
    assert sorted(done.unchanged) == sorted(before)
    assert committed(small) == before


def test_commits_are_reproducible(small: world.World) -> None:
    ids = []
    for name in ("one", "two"):
        edit.edit(small.repository, world.BASE, small.folder / name)
        ids.append(world.git(small.folder / name, "rev-parse", "HEAD", "HEAD~3"))
    assert ids[0] == ids[1]


def test_author_and_date_survive(small: world.World) -> None:
    again = small.folder / "again"
    edit.edit(small.repository, world.BASE, again)
    shown = world.git(again, "log", "-1", "--format=%an|%ae|%aI|%s")
    assert shown == (
        "Jöran B. Author|author@example.com|2026-11-02T03:04:05-07:30|[HiCache] Drop the old way\n"
    )


def test_settings_of_user_and_repository_change_nothing(
    small: world.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = small.folder / "home"
    world.write(home, {".gitconfig": HOSTILE, ".config/git/attributes": "*.py -diff\n"})
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("GIT_DIR", str(small.folder / "nowhere"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Somebody Else")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    again = small.folder / "again"
    edit.edit(small.repository, world.BASE, again)
    with (again / ".git" / "config").open("a") as config:
        config.write(HOSTILE)
    assert export.export(small.repository, again, check=True).is_same


SEPARATELY = {
    "noprefix": "[diff]\nnoprefix = true\nmnemonicPrefix = true\n",
    "renames": "[diff]\nrenames = copies\nrenameLimit = 0\n",
    "order": "[diff]\norderFile = /nowhere\nalgorithm = patience\ncontext = 0\n",
    "signoff": "[format]\nsignOff = true\nsignature = nobody\n",
    "attach": "[format]\nattach = true\n",
    "inline": '[format]\nattach = ===\nheaders = "X: y\\n"\n',
    "from": "[format]\nfrom = Else <else@example.com>\nforceInBodyFrom = true\n",
    "cover": "[format]\ncoverLetter = true\nnumbered = true\nthread = deep\nnotes = true\n",
    "autocrlf": "[core]\nautocrlf = true\nsafecrlf = true\neol = crlf\n",
    "quotePath": "[core]\nquotePath = true\nhooksPath = /nowhere\n",
    "gpgsign": "[commit]\ngpgSign = true\n[gpg]\nprogram = false\n",
    "latin1": "[i18n]\ncommitEncoding = latin1\nlogOutputEncoding = latin1\n",
}


@pytest.mark.parametrize("setting", SEPARATELY)
@pytest.mark.parametrize("old_git", [False, True])
def test_each_setting_alone(
    setting: str, old_git: bool, small: world.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the user's own config and in the repository's; with a git that knows no GIT_CONFIG_GLOBAL.

    git before 2.32 takes the global config from the home folder whatever that variable says.
    """
    home = small.folder / "home"
    world.write(home, {".gitconfig": SEPARATELY[setting]})
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    if old_git:
        real = shutil.which("git")
        script = f'#!/bin/sh\nunset GIT_CONFIG_GLOBAL\nexec {real} "$@"\n'
        world.write(small.folder, {"bin/git": script})
        (small.folder / "bin/git").chmod(0o755)
        monkeypatch.setenv("PATH", str(small.folder / "bin"), prepend=":")
    again = small.folder / "again"
    edit.edit(small.repository, world.BASE, again)
    assert export.export(small.repository, again, check=True).is_same
    with (again / ".git" / "config").open("a") as config:
        config.write(SEPARATELY[setting])
    assert export.export(small.repository, again, check=True).is_same


def test_old_git_never_reads_the_home_folder(
    small: world.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A config that git cannot even parse would stop it."""
    home = small.folder / "home"
    world.write(home, {".gitconfig": "[diff\n", ".config/git/config": "[diff\n"})
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    script = f'#!/bin/sh\nunset GIT_CONFIG_GLOBAL\nexec {shutil.which("git")} "$@"\n'
    world.write(small.folder, {"bin/git": script})
    (small.folder / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", str(small.folder / "bin"), prepend=":")
    edit.edit(small.repository, world.BASE, small.folder / "again")
    assert export.export(small.repository, small.folder / "again", check=True).is_same


@pytest.mark.parametrize(
    "surroundings",
    [
        {"LC_ALL": "de_DE.UTF-8", "LANG": "de_DE.UTF-8", "LANGUAGE": "de"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
        {"GIT_COMMITTER_NAME": "Somebody Else", "GIT_COMMITTER_EMAIL": "e@example.com"},
        {"GIT_AUTHOR_DATE": "2001-01-01T00:00:00 +0000", "GIT_COMMITTER_DATE": "@0 +0000"},
        {"TZ": "Asia/Kolkata"},
        {"GIT_DIR": "/nowhere", "GIT_WORK_TREE": "/nowhere", "GIT_INDEX_FILE": "/nowhere"},
        {"GIT_EXTERNAL_DIFF": "false", "GIT_DIFF_OPTS": "-u0", "GIT_PAGER": "false"},
        {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "diff.noprefix", "GIT_CONFIG_VALUE_0": "1"},
    ],
)
def test_each_surrounding_alone(
    surroundings: dict[str, str], small: world.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit.edit(small.repository, world.BASE, small.folder / "before")
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    again = small.folder / "again"
    edit.edit(small.repository, world.BASE, again)
    assert export.export(small.repository, again, check=True).is_same
    for name in surroundings:
        monkeypatch.delenv(name)
    heads = [world.git(small.folder / name, "rev-parse", "HEAD") for name in ("before", "again")]
    assert heads[0] == heads[1]


def test_tree_hashes_are_renewed(small: world.World) -> None:
    before = pin.read(small.patches)
    world.write(small.edited, {world.POOL: (small.edited / world.POOL).read_text() + "MORE = 1\n"})
    world.commit(small.edited, world.message("More", "x"))
    export.export(small.repository, small.edited)
    after = pin.read(small.patches)
    assert after.patches[:3] == before.patches
    assert len({each.tree for each in after.patches}) == 4
    assert not pinning.renew(small.repository, world.BASE, check=True)


def test_renew_keeps_what_was_not_exported(
    small: world.World, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = ["--repo", str(small.repository.root)]
    place = str(small.edited)
    assert cli.main([*tool, "edit", "--renew", place]) == 0
    assert export.export(small.repository, small.edited, check=True).is_same
    world.write(small.edited, {"python/sglang/srt/other.py": "OTHER = 2\n"})
    assert cli.main([*tool, "edit", "--renew", place]) == 1
    assert "not committed" in capsys.readouterr().err
    world.commit(small.edited, world.message("Other", "x"))
    assert cli.main([*tool, "edit", "--renew", place]) == 1
    assert f"export '{place}', or rm -r '{place}'" in capsys.readouterr().err
    assert cli.main([*tool, "export", place]) == 0
    assert cli.main([*tool, "edit", "--renew", place]) == 0
    assert world.git(small.edited, "rev-list", "--count", "HEAD") == "5\n"


def test_inside_another_repository(small: world.World) -> None:
    outer = small.folder / "outer"
    world.write(outer, {"f": ""})
    world.git(outer, "init", "--quiet")
    world.commit(outer, "outer\n")
    edit.edit(small.repository, world.BASE, outer / "again")
    assert export.export(small.repository, outer / "again", check=True).is_same
    assert world.git(outer, "log", "--format=%s") == "outer\n"


def test_new_commit_joins_the_last_group(small: world.World) -> None:
    world.write(small.edited, {"python/sglang/srt/other.py": "OTHER = 2\n"})
    world.commit(small.edited, world.message("Öther: 100 % größer", "x"))
    done = export.export(small.repository, small.edited)
    name = "HiCache-ther-100-gr-er.patch"
    assert sorted(done.written) == [name, "base.toml", "series"]
    loaded = series.load(small.repository, world.BASE)
    assert [(each.name, each.group) for each in loaded.patches][2:] == [
        (world.THIRD, "extended"),
        (name, "extended"),
    ]
    assert loaded.patches[3].message.author == '"Jöran B. Author" <author@example.com>'
    assert (small.patches / "series").read_text().startswith("# The order.\n# group: core\n")
    again = small.folder / "again"
    edit.edit(small.repository, world.BASE, again)
    assert export.export(small.repository, again, check=True).is_same


def reword(small: world.World, old: str, new: str) -> None:
    """Rebuild the edited repository with one subject changed."""
    path = small.patches / old
    text = path.read_text()
    found = message.parse(text, old)
    path.unlink()
    renamed = message.slug(new) + ".patch"
    (small.patches / renamed).write_text(text.replace(found.subject, new))
    listed = small.patches / "series"
    listed.write_text(listed.read_text().replace(old, renamed))
    shutil.rmtree(small.edited)
    edit.edit(small.repository, world.BASE, small.edited)


def test_reworded_commit_renames_the_patch_in_its_group(small: world.World) -> None:
    original = committed(small)
    reword(small, world.SECOND, "[HiCache] Another name")
    shutil.rmtree(small.patches)
    world.write(small.patches, original)
    done = export.export(small.repository, small.edited)
    assert done.deleted == (world.SECOND,)
    groups = {each.name: each.group for each in series.load(small.repository, world.BASE).patches}
    assert groups["HiCache-Another-name.patch"] == "core"
    assert not (small.patches / world.SECOND).exists()


def test_dropped_commit_drops_the_patch(small: world.World) -> None:
    world.git(small.edited, "reset", "--quiet", "--hard", "HEAD~1")
    done = export.export(small.repository, small.edited)
    assert done.deleted == (world.THIRD,)
    assert "extended" not in (small.patches / "series").read_text()


def test_check_writes_nothing(small: world.World) -> None:
    before = world.identities(small.patches)
    world.git(small.edited, "reset", "--quiet", "--hard", "HEAD~1")
    done = export.export(small.repository, small.edited, check=True)
    assert (done.deleted, sorted(done.written)) == ((world.THIRD,), ["base.toml", "series"])
    assert world.identities(small.patches) == before


def uncommitted(edited: Path) -> None:
    world.write(edited, {"python/sglang/srt/other.py": "OTHER = 3\n"})


def untracked(edited: Path) -> None:
    world.write(edited, {"python/sglang/srt/more.py": "MORE = 3\n"})


def rebasing(edited: Path) -> None:
    (edited / ".git" / "rebase-merge").mkdir()


def merged(edited: Path) -> None:
    world.git(edited, "checkout", "--quiet", "-b", "side", "HEAD~1")
    world.write(edited, {"python/sglang/srt/other.py": "OTHER = 4\n"})
    world.commit(edited, world.message("Side", "x"))
    world.git(edited, "merge", "--quiet", "-m", "merge", "series")


def elsewhere(edited: Path) -> None:
    world.git(edited, "checkout", "--quiet", "--orphan", "other")
    world.commit(edited, "other\n")


def same_name(edited: Path) -> None:
    uncommitted(edited)
    world.commit(edited, world.message("Drop the old way!", "x"))


def empty(edited: Path) -> None:
    world.git(edited, "commit", "--quiet", "--allow-empty", "-m", "[HiCache] Nothing")


def cut_short(edited: Path) -> None:
    uncommitted(edited)
    world.commit(edited, world.message("Rule", "x").replace("What was", "Above.\n---\nWhat was"))


def no_blank_line(edited: Path) -> None:
    uncommitted(edited)
    world.commit(edited, world.message("Rule", "x").replace("\n\n", "\ngoes on\n\n", 1))


def renamed_outside(edited: Path) -> None:
    world.write(edited, {"docs/x.md": "x\n"})
    world.commit(edited, world.message("Docs", "x"))


def executable(edited: Path) -> None:
    (edited / "python/sglang/srt/other.py").chmod(0o755)
    world.commit(edited, world.message("Mode", "x"))


def no_base(edited: Path) -> None:
    world.git(edited, "update-ref", "-d", f"refs/patchseries/{world.BASE}")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (uncommitted, "not committed"),
        (untracked, "not committed"),
        (rebasing, "not finished"),
        (merged, "merge"),
        (elsewhere, "not on top of"),
        (same_name, "two commits would give HiCache-Drop-the-old-way.patch"),
        (empty, "changes nothing"),
        (cut_short, "does not survive"),
        (renamed_outside, "cannot take up"),
        (executable, "cannot take up 'old mode"),
        (no_base, "not a repository that edit made"),
    ],
)
def test_unfit_repository_is_refused_whole(spoil, why, small: world.World) -> None:
    spoil(small.edited)
    before = world.identities(small.patches)
    with pytest.raises(PatchSeriesError, match=why):
        export.export(small.repository, small.edited)
    assert world.identities(small.patches) == before


def test_subject_of_two_lines_is_kept_as_one(small: world.World) -> None:
    no_blank_line(small.edited)
    done = export.export(small.repository, small.edited)
    assert "HiCache-Rule-goes-on.patch" in done.written


def test_torn_group_is_refused(small: world.World) -> None:
    (small.patches / "series").write_text(
        f"# group: core\n{world.FIRST}\n# group: b\n{world.SECOND}\n"
    )
    shutil.rmtree(small.edited)
    (small.patches / world.THIRD).unlink()
    edit.edit(small.repository, world.BASE, small.edited)
    entries = series.read_entries(small.patches / "series")
    assert series.render_entries([world.FIRST, "new", world.SECOND], entries, "x") == (
        f"# group: core\n{world.FIRST}\nnew\n\n# group: b\n{world.SECOND}\n"
    )
    with pytest.raises(PatchSeriesError, match="side by side"):
        series.render_entries([world.FIRST, world.SECOND, "new", world.FIRST], entries, "x")


def test_byte_code_is_not_a_change(small: world.World) -> None:
    world.write(small.edited, {"python/sglang/srt/__pycache__/cache.cpython-311.pyc": "x"})
    assert export.export(small.repository, small.edited, check=True).is_same


def test_destination_must_be_free(small: world.World) -> None:
    taken = small.folder / "taken"
    world.write(taken, {"f": ""})
    with pytest.raises(PatchSeriesError, match="not empty"):
        edit.edit(small.repository, world.BASE, taken)
    assert world.snapshot(taken) == {"f": ("file", b"", 0o644)}


def test_series_that_does_not_apply_leaves_no_destination(small: world.World) -> None:
    path = small.patches / world.THIRD
    path.write_text(path.read_text().replace("-    return 5\n", "-    return 6\n"))
    with pytest.raises(PatchSeriesError, match=f"{world.THIRD}:"):
        edit.edit(small.repository, world.BASE, small.folder / "again")
    assert not [each for each in small.folder.iterdir() if "again" in each.name]


def test_without_git(small: world.World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(small.folder))
    with pytest.raises(PatchSeriesError, match="git is not installed"):
        edit.edit(small.repository, world.BASE, small.folder / "again")


def test_pin_of_the_committed_series_is_up_to_date(small: world.World) -> None:
    assert not pinning.renew(small.repository, world.BASE, check=True)


def test_pin_is_renewed(small: world.World) -> None:
    path = small.patches / "base.toml"
    right = path.read_text()
    first = right.index("tree = ")
    path.write_text(right[: first + 8] + "0" * 64 + right[first + 72 :])
    assert pinning.renew(small.repository, world.BASE, check=True)
    assert path.read_text() != right
    assert pinning.renew(small.repository, world.BASE)
    assert path.read_text() == right


def test_pin_keeps_the_commit(small: world.World) -> None:
    path = small.patches / "base.toml"
    path.write_text(
        path.read_text().replace('tag = "v1.0"\n', f'tag = "v1.0"\ncommit = "{"a" * 40}"\n')
    )
    pinning.renew(small.repository, world.BASE)
    assert f'commit = "{"a" * 40}"\n' in path.read_text()


def test_wheels_that_disagree_are_refused(small: world.World) -> None:
    folder = small.folder / "wheels"
    world.make_wheel(folder / "sglang-1.0-cp311-cp311-linux_x86_64.whl", world.RELEASED)
    world.make_wheel(
        folder / "sglang-1.0-cp312-cp312-linux_x86_64.whl", {**world.RELEASED, world.OLD: "x = 1\n"}
    )
    before = committed(small)
    with pytest.raises(PatchSeriesError, match=f"differ in {world.OLD}"):
        pinning.renew(small.repository, world.BASE, wheel_folder=folder)
    assert committed(small) == before
