"""Headers, trailers and names of patch files."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest
import world
from hypothesis import strategies

from patchseries import message
from patchseries.errors import PatchSeriesError

DIFF = """\
diff --git a/python/sglang/a.py b/python/sglang/a.py
index 78981922613b2afb6025042ff6bd878ac1994e85..61780798228d17af2d34fce4cfbdf35556832472 100644
--- a/python/sglang/a.py
+++ b/python/sglang/a.py
@@ -1 +1 @@
-a
+b
"""

TEXT = f"""\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A. Name <a@example.com>
Date: Mon, 2 Nov 2026 03:04:05 -0730
Subject: [HiCache] Do one thing

What was wrong.

Not: a trailer, as more follows.

Upstream-Status: Pending
Tests: test/registered/a.py, test/registered/b.py::C::test_d[x,y],
 test/registered/c.py::C
 test/registered/d.py::C::test_e
tests: test/registered/e.py
Base: v1.0
---
 python/sglang/a.py | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)

{DIFF}"""

SUBJECTS = [
    "[HiCache] Back up a state alone",
    "[HiCache] a/b: c  d -- e",
    "[HiCache] Ends in dots...",
    "[HiCache] v0.5.17 .. v0.5.18 ....x",
    "[HiCache] snake_case() and größe — done!",
    ".starts with a dot",
    "-starts with a dash",
    "!!!",
]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scratch")
    world.git(folder, "init", "--quiet")
    return folder


def git_name(folder: Path, subject: str) -> str:
    world.git(folder, "commit", "--quiet", "--allow-empty", "--file=-", stdin=subject)
    return world.git(folder, "log", "-1", "--format=%f").rstrip("\n")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_name_is_that_of_git(subject: str, scratch: Path) -> None:
    assert message.slug(subject) == git_name(scratch, subject)


@hypothesis.given(subject=strategies.text("aZ0._- []/ü", min_size=1, max_size=12))
@hypothesis.settings(max_examples=40, deadline=None)
def test_any_name_is_that_of_git(subject: str, scratch: Path) -> None:
    hypothesis.assume(subject.strip())
    subject = f"x {subject.strip()}"
    assert message.slug(subject) == git_name(scratch, subject)


def test_parts_of_a_patch_file() -> None:
    found = message.parse(TEXT, "x.patch")
    assert (found.author_name, found.author_mail) == ("A. Name", "a@example.com")
    assert found.subject == "[HiCache] Do one thing"
    assert found.body.startswith("What was wrong.\n")
    assert found.body.endswith("\nBase: v1.0")
    assert found.diff == DIFF
    lines = TEXT.split("\n")
    assert lines[found.subject_line - 1].startswith("Subject")
    assert lines[found.body_line - 1] == "What was wrong."
    assert lines[found.diff_line - 1].startswith("diff --git")


def test_trailers_are_the_last_paragraph() -> None:
    found = message.parse(TEXT, "x.patch")
    keys = [trailer.key for trailer in found.trailers]
    assert keys == ["Upstream-Status", "Tests", "tests", "Base"]
    assert all(TEXT.split("\n")[each.line - 1].startswith(each.key) for each in found.trailers)


def test_ids_by_comma_and_line() -> None:
    ids = [test_id for test_id, _ in message.parse(TEXT, "x.patch").test_ids()]
    assert ids == [
        "test/registered/a.py",
        "test/registered/b.py::C::test_d[x,y]",
        "test/registered/c.py::C",
        "test/registered/d.py::C::test_e",
        "test/registered/e.py",
    ]


@pytest.mark.parametrize("body", ["Prose.\n\nKey: value\nno trailer", "Prose.\n\n and more"])
def test_no_trailers(body: str) -> None:
    text = TEXT[: TEXT.index("What")] + body + "\n---\n\n" + DIFF
    assert message.parse(text, "x.patch").trailers == ()


def test_canonical_form_is_kept() -> None:
    canonical = message.render(message.parse(TEXT, "x.patch"))
    assert message.render(message.parse(canonical, "x.patch")) == canonical
    assert "1 file changed" not in canonical
    assert 'From: "A. Name" <a@example.com>' in canonical


def test_folded_and_encoded_headers() -> None:
    text = TEXT.replace("Subject: [HiCache] Do one", "Subject: [HiCache] Do\n one").replace(
        "A. Name", "=?UTF-8?q?J=C3=B6ran?="
    )
    found = message.parse(text, "x.patch")
    assert (found.subject, found.author_name) == ("[HiCache] Do one thing", "Jöran")


def test_signature_is_no_part_of_the_diff() -> None:
    assert message.parse(TEXT + "-- \n2.39.5\n\n", "x.patch").diff == DIFF
    removal = DIFF.replace("-a\n", "-- \n")
    assert message.parse(TEXT.replace(DIFF, removal), "x.patch").diff == removal


@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("From 0000", "Hello 0000", "x.patch:1:|x.patch:1;"),
        ("Subject: ", "Topic: ", "x.patch:5"),
        ("Date: Mon,", "Date Mon,", "x.patch:3"),
        ("diff --git", "diff", "no diff"),
    ],
)
def test_errors_tell_the_line(old: str, new: str, where: str) -> None:
    with pytest.raises(PatchSeriesError, match=where):
        message.parse(TEXT.replace(old, new), "x.patch")
