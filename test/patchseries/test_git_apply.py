"""The strict application in memory gives what real git gives, or refuses."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
import world
from hypothesis import strategies

from patchseries import diff
from patchseries.errors import PatchSeriesError

FILE = "python/sglang/a.py"
LINES = "".join(f"line {n}\n" for n in range(30))

# before, after; None for no file
CASES = {
    "change": (LINES, LINES.replace("line 7\n", "seven\n")),
    "two hunks": (LINES, LINES.replace("line 3\n", "").replace("line 25\n", "x\ny\n")),
    "first line": (LINES, "new first\n" + LINES),
    "last line": (LINES, LINES + "new last\n"),
    "no newline, kept": ("a\nb", "a\nc"),
    "newline lost": ("a\nb\n", "a\nb"),
    "newline gained": ("a\nb", "a\nb\n"),
    "no newline, line added": ("a\nb", "a\nb\nc"),
    "no newline, far from the hunk": (LINES + "end", "x\n" + LINES + "end"),
    "added": (None, "a\nb\n"),
    "added without newline": (None, "a\nb"),
    "added empty": (None, ""),
    "deleted": (LINES, None),
    "deleted without newline": ("a\nb", None),
    "deleted empty": ("", None),
    "filled": ("", "a\n"),
    "emptied": ("a\n", ""),
    "not ASCII": ("größer\n漢字\n", "größte\n漢字\n🙂\n"),
    "other line ends of str.splitlines": (
        "a\x0bb\x0cc\x1cd\x85e\u2028f\n1\n2\n",
        "a\x0bb\x0cc\x1cd\x85e\u2028g\n1\n2\n",
    ),
    "looks like headers": (
        "-- a/x\n++ b/x\n@@ -1 +1 @@\ndiff --git a/x b/x\nindex 1..2\n \n",
        "-- a/y\n++ b/y\n@@ -1 +1 @@\ndiff --git a/x b/x\nindex 1..3\n \n",
    ),
    "looks like no newline": ("\\ No newline at end of file\nx\n", "\\ No newline\nx\n"),
    "blank lines": ("\n\n\n\n\nx\n\n\n\n", "\n\n\n\n\ny\n\n\n\n"),
    "repeated lines": ("a\n" * 20, "a\n" * 9 + "b\n" + "a\n" * 11),
}


def git_diff(folder: Path, before: str | None, after: str | None) -> str:
    """The diff that git makes of one file."""
    world.git(folder, "init", "--quiet")
    world.write(folder, {"keep": "", **({} if before is None else {FILE: before})})
    world.commit(folder, "before\n")
    if after is None:
        (folder / FILE).unlink()
    else:
        world.write(folder, {FILE: after})
    world.git(folder, "add", "--all")
    return world.git(folder, "diff", "--cached", "--full-index", "--no-renames", "HEAD")


def git_apply(folder: Path, text: str, before: str | None) -> bytes | None:
    """The file after git's own apply, in a folder that is no repository."""
    folder.mkdir()
    if before is not None:
        world.write(folder, {FILE: before})
    world.git(folder, "apply", "-", stdin=text)
    return (folder / FILE).read_bytes() if (folder / FILE).exists() else None


def encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


@pytest.mark.parametrize("case", CASES)
def test_same_as_git(case: str, tmp_path: Path) -> None:
    before, after = CASES[case]
    (tmp_path / "made").mkdir()
    text = git_diff(tmp_path / "made", before, after)
    (change,) = diff.parse(text, "x.patch")
    assert change.path == FILE
    result = change.apply(encoded(before))
    assert result == git_apply(tmp_path / "applied", text, before) == encoded(after)
    assert change.reverse().apply(result) == encoded(before)
    if before is not None:
        assert change.old_blob == diff.blob_id(encoded(before))
    if after is not None:
        assert change.new_blob == diff.blob_id(encoded(after))


LINE = strategies.sampled_from(["a", "b", "", "-- a", "++ b", "@@", "ü\x0c", "\\ No"])
TEXT = strategies.builds(
    lambda lines, end: "\n".join(lines) + end, strategies.lists(LINE, max_size=14), LINE
)


@hypothesis.given(before=TEXT, after=TEXT)
@hypothesis.settings(max_examples=40, deadline=None)
def test_same_as_git_on_any_text(
    before: str, after: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hypothesis.assume(before != after)
    folder = tmp_path_factory.mktemp("any")
    (folder / "made").mkdir()
    text = git_diff(folder / "made", before, after)
    (change,) = diff.parse(text, "x.patch")
    assert change.apply(before.encode()) == after.encode()
    assert change.reverse().apply(after.encode()) == before.encode()
    assert git_apply(folder / "applied", text, before) == after.encode()


def one_line_changed(tmp_path: Path) -> tuple[str, diff.FileChange]:
    text = git_diff(tmp_path, LINES, LINES.replace("line 7\n", "seven\n"))
    return text, diff.parse(text, "x.patch")[0]


def test_no_offset_where_git_would_search(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    text, change = one_line_changed(tmp_path / "made")
    shifted = "one more\n" + LINES
    assert git_apply(tmp_path / "applied", text, shifted) is not None
    with pytest.raises(PatchSeriesError, match=r"x\.patch:5.*'line 4") as caught:
        change.apply(shifted.encode())
    assert "line 5 of the file is 'line 3\\n'" in str(caught.value)


def test_no_fuzz(tmp_path: Path) -> None:
    _, change = one_line_changed(tmp_path)
    with pytest.raises(PatchSeriesError, match="line 5 of the file"):
        change.apply(LINES.replace("line 4\n", "changed\n").encode())


@pytest.mark.parametrize(
    ("content", "why"), [(b"line 0\n", "end of the file"), (None, "not there")]
)
def test_other_file_is_refused(content: bytes | None, why: str, tmp_path: Path) -> None:
    _, change = one_line_changed(tmp_path)
    with pytest.raises(PatchSeriesError, match=why):
        change.apply(content)


def test_added_file_must_not_be_there(tmp_path: Path) -> None:
    (change,) = diff.parse(git_diff(tmp_path, None, "a\n"), "x.patch")
    with pytest.raises(PatchSeriesError, match="already there"):
        change.apply(b"a\n")


def test_deleted_file_must_be_whole(tmp_path: Path) -> None:
    (change,) = diff.parse(git_diff(tmp_path, "a\n", None), "x.patch")
    with pytest.raises(PatchSeriesError, match="leaves 1 lines"):
        change.apply(b"a\nb\n")


def test_several_files_in_one_patch(tmp_path: Path) -> None:
    world.git(tmp_path, "init", "--quiet")
    world.write(tmp_path, {FILE: LINES, "python/sglang/b.py": "b\n", "python/sglang/c.py": "c"})
    world.commit(tmp_path, "before\n")
    world.write(
        tmp_path, {FILE: LINES + "x\n", "python/sglang/c.py": "d", "python/sglang/d.py": ""}
    )
    (tmp_path / "python/sglang/b.py").unlink()
    world.git(tmp_path, "add", "--all")
    text = world.git(tmp_path, "diff", "--cached", "--full-index", "--no-renames", "HEAD")
    changes = {change.path[-4:]: change for change in diff.parse(text, "x.patch")}
    assert sorted(changes) == ["a.py", "b.py", "c.py", "d.py"]
    assert changes["c.py"].apply(b"c") == b"d"
    assert changes["b.py"].apply(b"b\n") is None
    assert changes["d.py"].apply(None) == b""
    assert (changes["a.py"].added, changes["c.py"].removed) == (1, 1)


def altered(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("+seven\n", "+seven\r\n", "CRLF"),
        ("-line 7\n", "", "not a diff"),
        ("+seven\n", "+seven\n+eight\n", "belong to no hunk|not a diff"),
        ("index ", "old mode 100644\nnew mode 100755\nindex ", "cannot take up 'old mode"),
        ("index ", "similarity index 90%\nindex ", "cannot take up 'similarity"),
        ("index ", "GIT binary patch\nindex ", "no index line|belong to no hunk|cannot take up"),
        (FILE, "python/sglang/../a.py", "cannot take up"),
        (FILE, "python/other/a.py", "cannot take up"),
        (FILE, "/etc/passwd", "cannot take up"),
        (f"+++ b/{FILE}", "+++ b/python/sglang/z.py", "not a diff"),
        (f"--- a/{FILE}", "--- a/python/sglang/z.py", "file names disagree"),
        (f"--- a/{FILE}", "--- /dev/null", "file names disagree"),
        (" line 10\n", " line 10\n+more\n", "1 lines of the diff belong to no hunk"),
        (" line 10\n", " line 10\nmore\n", "1 lines of the diff belong to no hunk"),
        ("@@ -5,7", "@@ -5,6", "not a diff"),
        (" line 10\n", " line 10", "ends in mid-line"),
    ],
)
def test_malformed_is_refused(old: str, new: str, why: str, tmp_path: Path) -> None:
    text, _ = one_line_changed(tmp_path)
    with pytest.raises(PatchSeriesError, match=why):
        diff.parse(altered(text, old, new), "x.patch")


def test_overlapping_hunks_are_refused(tmp_path: Path) -> None:
    text, _ = one_line_changed(tmp_path)
    hunk = text[text.index("@@") :]
    (change,) = diff.parse(text + hunk, "x.patch")
    with pytest.raises(PatchSeriesError, match="overlap"):
        change.apply(LINES.encode())


def test_line_without_newline_in_mid_file_is_refused() -> None:
    text = f"diff --git a/{FILE} b/{FILE}\nindex {'1' * 40}..{'2' * 40} 100644\n"
    text += f"--- a/{FILE}\n+++ b/{FILE}\n@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n"
    (change,) = diff.parse(text, "x.patch")
    assert change.apply(b"a\n") == b"b"
    with pytest.raises(PatchSeriesError, match="mid-file has no newline"):
        change.apply(b"a\nc\n")


def test_a_file_twice_is_refused(tmp_path: Path) -> None:
    text, _ = one_line_changed(tmp_path)
    with pytest.raises(PatchSeriesError, match="twice"):
        diff.parse(text + text, "x.patch")
