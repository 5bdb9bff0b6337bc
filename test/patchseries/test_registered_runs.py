"""Registered tests on each prefix: real pytest processes on tiny trees."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import world

from patchseries import cli, inorder, junit, runner
from patchseries.series import Patch
from patchseries.verdict import Expectation, Outcome, Results, judge

UNIT = "test/registered/unit"


def environment(tree: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(tree),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


ENGINE = runner.Engine(environment, plugin=None)


def run(
    small: world.World,
    through: str | None = None,
    *,
    each: bool = False,
    pytest: tuple[str, ...] = (),
) -> list[runner.PrefixResult]:
    return runner.run(
        small.repository,
        world.BASE,
        through,
        each=each,
        pytest_arguments=pytest,
        engine=ENGINE,
        say=lambda line: None,
    )


def counts(result: runner.PrefixResult) -> tuple[int, int, int]:
    verdict = result.verdict
    return verdict.passed, verdict.failed_as_expected, verdict.skipped


def findings(result: runner.PrefixResult) -> list[str]:
    return [each.what for each in result.verdict.findings]


def test_each_prefix(small: world.World) -> None:
    results = run(small, each=True)
    assert [each.through for each in results] == [
        "base",
        *(name.removesuffix(".patch") for name in (world.FIRST, world.SECOND, world.THIRD)),
    ]
    assert [counts(each) for each in results] == [(1, 4, 1), (3, 2, 1), (4, 1, 1), (5, 0, 1)]
    assert [findings(each) for each in results] == [[], [], [], []]
    table = runner.table(results).splitlines()
    assert table[0].split() == [
        "through",
        "passed",
        "failed",
        "as",
        "expected",
        "skipped",
        "findings",
    ]
    assert table[1].split() == ["base", "1", "4", "1", "0"]


def test_prefixes_side_by_side(small: world.World) -> None:
    said: list[str] = []
    alone = run(small, each=True)
    results = runner.run(
        small.repository, world.BASE, None, each=True, engine=ENGINE, jobs=3, say=said.append
    )
    assert [(each.through, each.verdict) for each in results] == [
        (each.through, each.verdict) for each in alone
    ]
    heads = [line for line in said if line.startswith("[")]
    assert [line[:5] for line in heads] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    sums = [line for line in said if "passed" in line]
    for head, done in zip(heads, sums, strict=True):
        assert said.index(head) < said.index(done)
    assert said[-1] == sums[-1]


def test_what_is_said_keeps_its_order() -> None:
    said: list[str] = []
    speech = inorder.InOrder(3, said.append)
    first, second, third = (speech.of(number) for number in range(3))
    second("b1")
    first("a1")
    third("c1")
    assert said == ["a1"]
    speech.end(1)
    first("a2")
    speech.end(0)
    assert said == ["a1", "a2", "b1", "c1"]
    third("c2")
    speech.end(2)
    assert said == ["a1", "a2", "b1", "c1", "c2"]


def edit_tests(small: world.World, old: str, new: str, file: str = "test_small_first.py") -> None:
    path = small.repository.root / UNIT / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_every_kind_of_finding_as_released(small: world.World) -> None:
    edit_tests(small, "pool.SIZE, 8", "pool.SIZE, 4")
    edit_tests(small, "pool.KIND", "pool.SIZE")
    edit_tests(small, "test_old_is_gone", "test_old_was_renamed", "test_small_third.py")
    (result,) = run(small, "base")
    first, third = (name.removesuffix(".patch") for name in (world.FIRST, world.THIRD))
    assert findings(result) == [
        f"{UNIT}/test_small_first.py::TestFirst::test_size passes without {first}, "
        "which names it in Tests",
        f"{UNIT}/test_small_first.py::TestAlways::test_kind fails",
        f"{UNIT}/test_small_third.py::test_old_was_renamed fails",
        f"no test matches {UNIT}/test_small_third.py::test_old_is_gone, "
        f"which {third} names in Tests",
    ]
    assert "AssertionError: 4 != 'host'" in result.detail(result.verdict.findings[1])


def test_skip_is_no_failure_and_no_pass(small: world.World) -> None:
    edit_tests(small, "    def test_size", '    @unittest.skip("no")\n    def test_size')
    base, patched = run(small, "base")[0], run(small, world.FIRST)[0]
    first = world.FIRST.removesuffix(".patch")
    test = f"{UNIT}/test_small_first.py::TestFirst::test_size is skipped"
    assert findings(base) == [f"{test} without {first}, which names it in Tests"]
    assert findings(patched) == [f"{test} although {first}, which names it in Tests, is in"]


def test_one_failing_subtest_fails_the_test(small: world.World) -> None:
    edit_tests(small, "cache.step_2(), 20", "cache.step_2(), 20 * step")
    (result,) = run(small, world.FIRST)
    assert findings(result) == [
        f"{UNIT}/test_small_first.py::TestFirst::test_step fails although "
        f"{world.FIRST.removesuffix('.patch')}, which names it in Tests, is in"
    ]


def test_file_that_cannot_be_collected(small: world.World) -> None:
    edit_tests(small, "class TestFirst", "import nothing\n\n\nclass TestFirst")
    (result,) = run(small, "base")
    assert findings(result) == [
        f"{UNIT}/test_small_first.py cannot be collected, but "
        f"{UNIT}/test_small_first.py::TestAlways::test_gpu must pass here"
    ]
    assert "nothing" in result.detail(result.verdict.findings[0])
    assert counts(result) == (0, 4, 0)


def test_all_failures_of_a_file_are_due_to_a_later_patch(small: world.World) -> None:
    """The second patch's tests cannot be imported without it, and that is right."""
    (result,) = run(small, world.FIRST)
    assert result.results.broken == {f"{UNIT}/test_small_second.py"}
    assert findings(result) == []


def test_no_tests_at_all(small: world.World) -> None:
    for path in (small.repository.root / UNIT).iterdir():
        path.unlink()
    (result,) = run(small)
    assert findings(result)[0].startswith("pytest found no tests")


def test_collecting_alone_is_no_run(small: world.World) -> None:
    (result,) = run(small, pytest=("--collect-only",))
    assert findings(result)[0].startswith("pytest ran no test")


def test_crash_is_a_finding(small: world.World) -> None:
    edit_tests(
        small, "self.assertEqual(pool.KIND", "__import__('os').abort(); self.assertEqual(pool.KIND"
    )
    (result,) = run(small)
    assert findings(result)[0].startswith("pytest was ended by signal 6; see ")
    assert result.log.exists()


def test_results_of_an_earlier_run_are_not_taken_for_this_one(small: world.World) -> None:
    run(small)
    edit_tests(small, "import unittest\n", "import unittest\n__import__('os')._exit(0)\n")
    (result,) = run(small)
    assert findings(result)
    assert counts(result) == (0, 0, 0)


def test_arguments_for_pytest(small: world.World) -> None:
    (result,) = run(small, pytest=("-k", "test_size"))
    assert (counts(result), findings(result)) == ((1, 0, 0), [])
    (result,) = run(small, pytest=(f"{UNIT}/test_small_third.py",))
    assert (counts(result), findings(result)) == ((1, 0, 0), [])
    (result,) = run(small, pytest=("--no-such-option",))
    assert findings(result)[0].startswith("pytest did not take its arguments")


def test_prefix_that_cannot_be_built_is_a_finding(small: world.World) -> None:
    path = small.patches / world.SECOND
    path.write_text(path.read_text().replace("+STEPS = 12", "+STEPS = 13"))
    results = run(small, each=True)
    assert [bool(findings(each)) for each in results] == [False, False, True, True]
    assert findings(results[2])[0].startswith("no tree to test: ")


def test_command_line(
    small: world.World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "sglang_engine", lambda: ENGINE)
    report = small.folder / "out" / "report.json"
    repo = ["--repo", str(small.repository.root)]
    assert cli.main([*repo, "test", "--through", "core", "--json", str(report)]) == 0
    said = capsys.readouterr()
    assert "[1/1] v1.0 through HiCache-Back-up-a-state-alone" in said.err
    data = json.loads(report.read_text())
    assert data["prefixes"][0]["passed"] == 4
    edit_tests(small, "pool.KIND", "pool.SIZE")
    assert cli.main([*repo, "test", "--", "-k", "test_kind"]) == 1
    assert "test_kind fails\n" in capsys.readouterr().out


def test_worst_of_several_results_counts(tmp_path: Path) -> None:
    """pytest lists a test again where its teardown fails too, or a plugin reruns it."""
    case = '<testcase file="a/b.py" classname="a.b.C" name="test_x[p.q]">{}</testcase>'
    results = ["<skipped/>", "<failure>first</failure>", ""]
    report = tmp_path / "report.xml"
    report.write_text(f"<testsuite>{''.join(map(case.format, results))}</testsuite>")
    found = junit.read(report)
    assert found.outcomes == {"a/b.py::C::test_x[p.q]": Outcome.FAILED}
    assert found.details == {"a/b.py::C::test_x[p.q]": "first"}


def patch(name: str, *ids: str) -> Patch:
    text = (
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: A <a@b>\nDate: x\nSubject: {name}\n\n"
        f"x\n\nTests: {', '.join(ids)}\n---\n\ndiff --git x\n"
    )
    return Patch(f"{name}.patch", "core", text)


def test_the_later_patch_decides() -> None:
    """A class of the first patch with one test of the third: that one fails until the third."""
    patches = [patch("one", "f.py::C"), patch("two", "f.py::D"), patch("three", "f.py::C::test_z")]
    nodes = ["f.py::C::test_a", "f.py::C::test_z", "f.py::C::test_z[x]", "f.py::C::test_zz"]
    expected = Expectation.of(patches, 2)
    assert [expected.later(node) for node in nodes] == [None, "three", "three", None]
    assert [expected.applied(node) for node in nodes] == ["one"] * 4
    outcomes = dict.fromkeys(nodes, Outcome.PASSED)
    verdict = judge(expected, Results(outcomes, frozenset()), lambda file: [], selected=True)
    assert [each.what for each in verdict.findings] == [
        "f.py::C::test_z passes without three, which names it in Tests",
        "f.py::C::test_z[x] passes without three, which names it in Tests",
    ]
