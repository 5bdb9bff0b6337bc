"""Which mutants are made of the lines that a patch adds; scripts/mutate runs them on real trees."""

from __future__ import annotations

import ast

import pytest

from patchseries.mutate import added_lines, mutants

BEFORE = """\
def walk(nodes):
    for node in nodes:
        if node.root:
            continue
        use(node)
"""
AFTER = """\
def walk(nodes):
    for node in nodes:
        if node.root:
            continue
        if node.value is not None and not node.copied:
            continue
        use(node)
"""


def made(before: str, after: str) -> list[str]:
    return [mutant.what for mutant in mutants("module.py", before, after)]


def test_only_added_lines_are_mutated() -> None:
    assert added_lines(BEFORE, AFTER) == {5, 6}
    assert {mutant.line for mutant in mutants("module.py", BEFORE, AFTER)} == {5, 6}
    assert made(AFTER, AFTER) == []


def test_every_part_of_a_condition_is_broken() -> None:
    assert made(BEFORE, AFTER) == [
        "`node.value is not None` -> `node.value is None`",
        "drop `node.value is not None`",
        "drop `not node.copied`",
        "drop not of `not node.copied`",
        "if `node.value is not None and (not node.copied)` -> False",
        "if `node.value is not None and (not node.copied)` -> True",
        "drop `continue`",
    ]


@pytest.mark.parametrize(
    ("line", "whats"),
    [
        ("    x = a < 1\n", ["`a < 1` -> `a <= 1`", "`a < 1` -> `a >= 1`"]),
        ("    check(a)\n", ["drop `check(a)`"]),
        ("    raise ValueError(a)\n", ["drop `raise ValueError(a)`"]),
        ("    return True\n", ["flip returned value"]),
        ("    x = [b for b in a if b]\n", ["drop filter `b`"]),
        (
            "    x = 1 if a else 2\n",
            ["drop `x = 1 if a else 2`", "if `a` -> False", "if `a` -> True"],
        ),
        ("    pass\n", []),
    ],
)
def test_each_kind(line: str, whats: list[str]) -> None:
    assert made("def f(a):\n", f"def f(a):\n{line}") == whats


def test_a_mutant_differs_in_that_one_place() -> None:
    for mutant in mutants("module.py", BEFORE, AFTER):
        assert ast.dump(ast.parse(mutant.source)) != ast.dump(ast.parse(AFTER))
    flipped = next(m for m in mutants("module.py", BEFORE, AFTER) if m.what.startswith("`"))
    assert flipped.source == ast.unparse(ast.parse(AFTER.replace("is not None", "is None"))) + "\n"
