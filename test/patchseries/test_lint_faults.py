"""Lint finds each kind of fault, tells where it is, and tells all of them at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import world

from patchseries import lint, message


def problems(small: world.World) -> list[str]:
    return [str(each) for each in lint.lint(small.repository, world.BASE)]


def test_committed_series_has_none(small: world.World) -> None:
    assert problems(small) == []


def change(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Replace text in a file of the series."""

    def spoil(folder: Path) -> None:
        path = folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return spoil


def number_the_name(folder: Path) -> None:
    (folder / world.FIRST).rename(folder / f"0001-{world.FIRST}")
    change("series", world.FIRST, f"0001-{world.FIRST}")(folder)


def unlisted(folder: Path) -> None:
    (folder / "HiCache-Other.patch").write_text((folder / world.FIRST).read_text())


def no_file(folder: Path) -> None:
    (folder / world.THIRD).unlink()


def crlf(folder: Path) -> None:
    path = folder / world.FIRST
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def not_utf8(folder: Path) -> None:
    path = folder / world.FIRST
    path.write_bytes(path.read_bytes().replace("ö".encode(), b"\xf6"))


def swap(folder: Path) -> None:
    path = folder / "series"
    text = path.read_text().replace(world.FIRST, "x").replace(world.SECOND, world.FIRST)
    path.write_text(text.replace("x\n", f"{world.SECOND}\n"))


def sign(folder: Path) -> None:
    with (folder / world.FIRST).open("a") as file:
        file.write("-- \n2.39.5\n\n")


def only_trailers(folder: Path) -> None:
    change(world.FIRST, "What was wrong, what changes, what it costs.\n\n", "")(folder)


def unpinned(folder: Path) -> None:
    path = folder / "base.toml"
    pinned = re.compile(rf'^"{world.OLD}" = "[0-9a-f]{{64}}"\n', re.MULTILINE)
    path.write_text(pinned.sub("", path.read_text(), count=1))


def pinned_in_vain(folder: Path) -> None:
    change("base.toml", "[files]\n", f'[files]\n"python/sglang/srt/x.py" = "{"0" * 64}"\n')(folder)


def other_release(folder: Path) -> None:
    path = folder / "base.toml"
    text = path.read_text()
    line = re.search(rf'"{world.OLD}" = "([0-9a-f]+)"', text)
    assert line
    path.write_text(text.replace(line[1], "1" * 64))


def other_tree(folder: Path) -> None:
    path = folder / "base.toml"
    path.write_text(re.sub(r'tree = "\w+"', f'tree = "{"2" * 64}"', path.read_text(), count=1))


def other_result(folder: Path) -> None:
    path = folder / "base.toml"
    text = path.read_text()
    start = text.index("[patches.files]")
    result = re.compile(rf'("{world.CACHE}" = )"\w+"')
    path.write_text(text[:start] + result.sub(rf'\1"{"3" * 64}"', text[start:], count=1))


def long_subject(folder: Path) -> None:
    subject = "[HiCache] " + "x" * 63
    path = folder / world.FIRST
    text = path.read_text()
    path.write_text(text.replace(message.parse(text, "").subject, subject))


FIRST = rf"patches/v1.0/{world.FIRST}"
TOML = r"patches/v1.0/base.toml"
SERIES = r"patches/v1.0/series"

FAULTS = {
    "number in the name": (number_the_name, rf"0001-{world.FIRST}:4: .*gives another file name"),
    "commit hash": (change(world.FIRST, "0" * 40, "a" * 40), rf"{FIRST}:1: .*tells a commit"),
    "no prefix": (change(world.FIRST, "[HiCache] Let", "Let"), rf"{FIRST}:4: the subject is 'Let"),
    "long subject": (
        long_subject,
        rf"{FIRST}:4: the subject has 73 characters; expected at most 72",
    ),
    "only trailers": (only_trailers, rf"{FIRST}:\d+: the message has no body"),
    "no status": (change(world.FIRST, "Upstream-Status: Pending\n", ""), "no trailer Upstream-St"),
    "no tests": (
        change(
            world.FIRST,
            "Tests: test/registered/unit/test_small_first.py::TestFirst\n",
            "",
        ),
        rf"{FIRST}:9: no trailer Tests:",
    ),
    "no base": (change(world.FIRST, "Base: v1.0\n", ""), rf"{FIRST}:9: no trailer Base:"),
    "other base": (change(world.FIRST, "Base: v1.0", "Base: v2"), rf"{FIRST}:13: Base is 'v2'"),
    "base twice": (
        change(world.FIRST, "Base: v1.0", "Base: v1.0\nBase: v1.0"),
        ":14: Base: is there",
    ),
    "spelling": (
        change(world.FIRST, "Upstream-Status", "Upstream-status"),
        rf"{FIRST}:11: the trailer is Upstream-status:; expected Upstream-Status:",
    ),
    "status of one's own": (
        change(world.FIRST, "Status: Pending", "Status: Soon"),
        rf"{FIRST}:11: Upstream-Status is 'Soon'; expected Pending \| Submitted",
    ),
    "submitted where": (
        change(world.FIRST, "Status: Pending", "Status: Submitted"),
        "Upstream-Status is 'Submitted'",
    ),
    "merged without release": (
        change(world.FIRST, "Status: Pending", "Status: Merged [https://x.example/1]"),
        "Upstream-Status is 'Merged",
    ),
    "inappropriate without reason": (
        change(world.FIRST, "Status: Pending", "Status: Inappropriate []"),
        "Upstream-Status is 'Inappropriate",
    ),
    "no url": (
        change(world.FIRST, "Base: v1.0", "Upstream-PR: 4711\nBase: v1.0"),
        rf"{FIRST}:13: Upstream-PR is '4711'; expected a URL",
    ),
    "unknown test file": (
        change(world.FIRST, "test_small_first.py", "test_smaller.py"),
        rf"{FIRST}:12: Tests: names .*test_smaller.py::TestFirst: no such file",
    ),
    "unknown class": (
        change(world.FIRST, "::TestFirst", "::TestLast"),
        r"no class or function TestLast",
    ),
    "unknown test": (
        change(world.FIRST, "::TestFirst", "::TestFirst::test_x"),
        r"no test_x in class TestFirst",
    ),
    "test elsewhere": (
        change(world.FIRST, "test/registered/unit", "test/unit"),
        r"not a test file under test/registered/",
    ),
    "short hashes": (
        change(world.FIRST, "index ", "index 1234567..7654321 100644\nx"),
        rf"{FIRST}:\d+: the index line has short hashes",
    ),
    "mail signature": (sign, rf"{FIRST}:\d+: a mail signature"),
    "diffstat": (
        change(world.FIRST, "---\n\ndiff", "---\n x.py | 1 +\n\ndiff"),
        rf"{FIRST}:15: not as export writes it",
    ),
    "folded subject": (
        change(world.FIRST, "Let a node", "Let a\n node"),
        rf"{FIRST}:4: not as export writes it",
    ),
    "blanks": (
        change(world.FIRST, "+    return 20\n", "+    return 20 \n"),
        "blanks at the end of",
    ),
    "tab": (change(world.FIRST, "+    return 20\n", "+\treturn 20\n"), "a tab in an added line"),
    "rename": (
        change(world.SECOND, "new file mode 100644\n", "similarity index 90%\n"),
        rf"patches/v1.0/{world.SECOND}:\d+: cannot take up 'similarity",
    ),
    "crlf": (crlf, rf"{FIRST}:1: "),
    "not UTF-8": (not_utf8, rf"{FIRST}:1: not UTF-8"),
    "no diff": (change(world.THIRD, "diff --git", "diff"), rf"{world.THIRD}:\d+: "),
    "does not apply": (
        change(world.THIRD, "-    return 5\n", "-    return 6\n"),
        rf"{world.THIRD}:\d+: .*does not apply: line 22 of the file",
    ),
    "wrong order": (swap, rf"{world.SECOND}:\d+: the index line names another old blob"),
    "other new blob": (
        change(world.FIRST, "+    return 20\n", "+    return 21\n"),
        rf"{FIRST}:\d+: the index line names another new blob for {world.CACHE}",
    ),
    "not pinned": (unpinned, rf"{TOML}:\d+: {world.OLD} is touched by a patch but not pinned"),
    "pinned in vain": (pinned_in_vain, rf"{TOML}:\d+: python/sglang/srt/x.py is pinned but no"),
    "other release": (other_release, rf"{TOML}:\d+: {world.OLD} is pinned to 1111"),
    "other tree": (other_tree, rf"{TOML}:\d+: after {world.FIRST}, the tree is pinned to 2222"),
    "other result": (
        other_result,
        rf"{TOML}:\d+: after {world.FIRST}, {world.CACHE} is pinned to 3",
    ),
    "pin of other patches": (
        change("base.toml", f'name = "{world.THIRD}"', 'name = "x.patch"'),
        rf"{TOML}:\d+: \[\[patches\]\] are not those of the series",
    ),
    "pin of another base": (change("base.toml", 'base = "v1.0"', 'base = "v2"'), "base is 'v2'"),
    "pin by hand": (change("base.toml", "# Every", "# All"), rf"{TOML}:\d+: not as pin writes it"),
    "pin that is no TOML": (change("base.toml", "base = ", "base "), rf"{TOML}:1: not TOML"),
    "unlisted": (unlisted, r"HiCache-Other.patch:1: not in the series"),
    "no file": (no_file, rf"{SERIES}:7: no file for the entry {world.THIRD}"),
    "entry twice": (change("series", world.SECOND, world.FIRST), rf"{SERIES}:4: .* is there twice"),
    "no group": (change("series", "# group: core\n", ""), rf"{SERIES}:2: .* is in no group"),
    "reserved group": (change("series", "group: core", "group: all"), "a group is named all"),
    "no patch name": (
        change("series", world.THIRD, "x.diff"),
        rf"{SERIES}:7: x.diff names no patch",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault(fault: str, small: world.World) -> None:
    spoil, expected = FAULTS[fault]
    spoil(small.patches)
    found = problems(small)
    assert [each for each in found if re.search(expected, each)], found
    for each in found:
        assert re.match(r"patches/v1\.0/\S+:\d+: .+; expected .+; type: .+", each)


def test_group_that_comes_back(small: world.World) -> None:
    text = f"# group: a\n{world.FIRST}\n# group: b\n{world.SECOND}\n# group: a\n{world.THIRD}\n"
    (small.patches / "series").write_text(text)
    assert any(
        "patches/v1.0/series:6: group a is torn apart by b" in each for each in problems(small)
    )


def test_all_at_once(small: world.World) -> None:
    change(world.FIRST, "Status: Pending", "Status: Soon")(small.patches)
    change(world.FIRST, "+    return 20\n", "+    return 20 \n")(small.patches)
    change(world.THIRD, "Base: v1.0", "Base: v3")(small.patches)
    unlisted(small.patches)
    found = "\n".join(problems(small))
    for part in ("'Soon'", "blanks at the end", "'v3'", "not in the series"):
        assert part in found


def test_accepted_forms_of_upstream_status(small: world.World) -> None:
    for status in (
        "Submitted [https://github.com/sgl-project/sglang/pull/1]",
        "Merged [https://github.com/sgl-project/sglang/pull/1, v0.5.18]",
        "Inappropriate [only where the release is old]",
    ):
        path = small.patches / world.FIRST
        text = path.read_text()
        path.write_text(re.sub("Upstream-Status: .*", f"Upstream-Status: {status}", text))
        assert problems(small) == []


def test_inherited_test_method_counts(small: world.World) -> None:
    path = small.repository.root / "test/registered/unit/test_small_first.py"
    path.write_text(path.read_text() + "\n\nclass TestMore(TestFirst):\n    pass\n")
    change(world.FIRST, "::TestFirst", "::TestMore::test_size")(small.patches)
    assert problems(small) == []
