"""A checkout's own registered tests, and ours laid beside them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import test_registered_runs
import world

from patchseries import checkout, cli, runner, status, targets
from patchseries.errors import ExitCode, PatchSeriesError

UNIT = "test/registered/unit"
OWN = '''\
"""A registered test as a checkout has them."""

import unittest


class TestOwn(unittest.TestCase):
    def test_size(self):
        from sglang.srt import pool

        self.assertEqual(pool.SIZE, 8)

    def test_fails(self):
        self.assertEqual(1, %d)


if __name__ == "__main__":
    unittest.main()
'''
UPSTREAM = {
    f"{UNIT}/test_pool.py": OWN % 1,
    f"{UNIT}/test_other.py": (OWN % 2).replace("pool", "other"),
    f"{UNIT}/test_served.py": "import sglang.test.nothing\n",
    f"{UNIT}/pool_helper.py": "from sglang.srt import pool\n",
    "test/manual/test_pool.py": "from sglang.srt import pool\n",
}


@pytest.fixture
def upstream(small: world.World) -> Path:
    """A git checkout that has tests of its own."""
    made = small.checkout()
    world.write(made, UPSTREAM)
    world.commit(made, "tests")
    return made


def tool(small: world.World, *arguments: str) -> int:
    return cli.main(["--repo", str(small.repository.root), *arguments])


def run(small: world.World, upstream: Path, *arguments: str) -> runner.PrefixResult:
    return checkout.run(
        small.repository,
        targets.locate(upstream),
        pytest_arguments=arguments,
        engine=test_registered_runs.ENGINE,
        say=lambda line: None,
    )


def test_found_by_imports(upstream: Path) -> None:
    more = {
        "a": "import sglang.srt.pool as p\n",
        "b": "from sglang.srt.pool import SIZE\n",
        "c": "def f():\n    import sglang.srt.mem_cache.hicache_storage\n",
        "d": "from sglang.srt.mem_cache import unified_radix_cache\n",
        "e": "from sglang.srt.mem_cache import radix_cache\n",
        "f": "from sglang.srt.pool import (\n",
        "g": "# sglang.srt.pool\n",
        "h": "from harness import pool\n",
    }
    world.write(
        upstream,
        {
            f"{UNIT}/deep/harness.py": "import more\n",
            f"{UNIT}/deep/more.py": "from sglang.srt import pool\nimport harness\n",
        },
    )
    world.write(upstream, {f"{UNIT}/deep/test_{name}.py": text for name, text in more.items()})
    assert checkout.find_tests(upstream, [world.POOL, world.CACHE]) == [
        *(f"{UNIT}/deep/test_{name}.py" for name in "abcdfh"),
        f"{UNIT}/test_pool.py",
    ]


def test_runs_them_on_the_patched_checkout(small: world.World, upstream: Path) -> None:
    tool(small, "apply", str(upstream))
    result = run(small, upstream)
    assert (result.verdict.passed, result.verdict.findings) == (2, ())
    world.write(upstream, {f"{UNIT}/test_pool.py": OWN % 22})
    result = run(small, upstream)
    assert [each.what for each in result.verdict.findings] == [
        f"{UNIT}/test_pool.py::TestOwn::test_fails fails"
    ]
    assert run(small, upstream, "-k", "test_size").verdict.findings == ()


def test_apply_comes_first(small: world.World, upstream: Path) -> None:
    with pytest.raises(PatchSeriesError, match=r"not applied.*patchseries apply '"):
        run(small, upstream)


def test_no_tests_there(small: world.World) -> None:
    with pytest.raises(PatchSeriesError, match="no registered tests here") as caught:
        run(small, small.unpacked())
    assert caught.value.code is ExitCode.USAGE
    bare = small.checkout("bare")
    world.write(bare, {f"{UNIT}/test_x.py": "import os\n"})
    tool(small, "apply", str(bare))
    with pytest.raises(PatchSeriesError, match="no test imports a module of HiCache"):
        run(small, bare)


def test_command_line(
    small: world.World,
    upstream: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(runner, "sglang_engine", lambda: test_registered_runs.ENGINE)
    assert tool(small, "test", "--checkout", str(upstream)) == 1
    tool(small, "apply", str(upstream))
    assert tool(small, "test", "--checkout", str(upstream)) == 0
    with pytest.raises(SystemExit):
        tool(small, "test", "--checkout", str(upstream), "--each")
    capsys.readouterr()


def test_with_tests(small: world.World, upstream: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = world.snapshot(upstream / "test")
    assert tool(small, "apply", str(upstream), "--with-tests", "--through", "core") == 0
    assert "2 test files laid" in capsys.readouterr().out
    laid = {"test_small_first.py", "test_small_second.py"}  # the third is named by no patch of core
    assert {path.name for path in (upstream / UNIT).glob("test_small*")} == laid
    result = run(small, upstream)
    assert result.verdict.passed > 4
    assert result.verdict.findings == ()
    again = world.identities(upstream / "test")
    assert tool(small, "apply", str(upstream), "--with-tests", "--through", "core") == 0
    assert world.identities(upstream / "test") == again
    assert tool(small, "apply", str(upstream), "--with-tests") == 0
    assert (upstream / UNIT / "test_small_third.py").is_file()
    capsys.readouterr()
    assert tool(small, "status", str(upstream), "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["tests"] == [f"{UNIT}/test_small_{n}.py" for n in ("first", "second", "third")]
    assert tool(small, "reverse", str(upstream)) == 0
    assert "3 test files taken away" in capsys.readouterr().out
    after = world.snapshot(upstream / "test")
    assert {name: each for name, each in after.items() if "pycache" not in name} == before
    assert not [name for name in after if "small" in name]


def test_folders_that_were_made_go_too(small: world.World) -> None:
    made = small.checkout()
    world.write(made, {"test/README": ""})
    before = world.snapshot(made / "test")
    assert tool(small, "apply", str(made), "--with-tests") == 0
    assert (made / UNIT / "test_small_first.py").is_file()
    assert tool(small, "reverse", str(made)) == 0
    assert world.snapshot(made / "test") == before


def test_file_of_others_is_not_overwritten(
    small: world.World, upstream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{UNIT}/test_small_first.py"
    world.write(upstream, {name: "# theirs\n"})
    before = world.snapshot(upstream / "python")
    assert tool(small, "apply", str(upstream), "--with-tests") == 1
    assert f"not as this tool laid it; {upstream}/{name}" in capsys.readouterr().err
    assert world.snapshot(upstream / "python") == before
    # The same content is left where it is, also by reverse.
    world.write(upstream, {name: world.TESTS})
    assert tool(small, "apply", str(upstream), "--with-tests") == 0
    assert tool(small, "reverse", str(upstream)) == 0
    assert (upstream / name).read_text() == world.TESTS


def test_laid_test_that_was_edited_stops_reverse(
    small: world.World, upstream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"{UNIT}/test_small_first.py"
    assert tool(small, "apply", str(upstream), "--with-tests") == 0
    world.write(upstream, {name: "# mine\n"})
    before = world.identities(upstream)
    assert tool(small, "reverse", str(upstream)) == 1
    assert f"not as this tool laid it; {upstream}/{name}" in capsys.readouterr().err
    assert world.identities(upstream) == before
    notes = status.examine(small.repository, targets.locate(upstream)).notes
    assert f"a laid test file was changed or removed: {upstream}/{name}" in notes
    (upstream / name).unlink()
    assert tool(small, "reverse", str(upstream)) == 0


def test_newer_tests_take_the_place_of_laid_ones(small: world.World, upstream: Path) -> None:
    assert tool(small, "apply", str(upstream), "--with-tests") == 0
    ours = small.repository.root / UNIT / "test_small_first.py"
    ours.write_text(world.TESTS + "# more\n")
    assert tool(small, "apply", str(upstream)) == 0
    assert "# more" not in (upstream / UNIT / ours.name).read_text()
    assert tool(small, "apply", str(upstream), "--with-tests") == 0
    assert (upstream / UNIT / ours.name).read_text() == ours.read_text()
    assert tool(small, "reverse", str(upstream)) == 0
    assert not (upstream / UNIT / ours.name).exists()


def test_no_place_for_tests(small: world.World, capsys: pytest.CaptureFixture[str]) -> None:
    target = small.unpacked()
    before = world.identities(target)
    assert tool(small, "apply", str(target), "--with-tests") == 2
    assert "no place for tests" in capsys.readouterr().err
    assert world.identities(target) == before
