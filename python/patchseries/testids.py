"""Test ids told from source text, without importing anything."""

from __future__ import annotations

import ast
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path

REGISTERED = "test/registered/"


@dataclasses.dataclass(frozen=True)
class TestFile:
    """What a test file holds.

    classes: name, joined by `::` where nested, to the names of its methods, those of base classes
        in the same file included. functions: at module level.
    """

    __test__ = False

    classes: dict[str, set[str]]
    functions: set[str]

    def ids(self, file: str) -> Iterator[str]:
        """The id of every test, parameters left out."""
        for name in sorted(self.functions):
            if name.startswith("test"):
                yield f"{file}::{name}"
        for owner, methods in sorted(self.classes.items()):
            for name in sorted(methods):
                if name.startswith("test"):
                    yield f"{file}::{owner}::{name}"


def covers(test_id: str, node: str) -> bool:
    """Is the node the one that is meant, or something below it (file, class, parameter)?"""
    return node == test_id or node.startswith((f"{test_id}::", f"{test_id}["))


def why_unknown(root: Path, test_id: str) -> str | None:
    """Why a test id names nothing in the repository at root; None where it does."""
    file, _, below = test_id.partition("::")
    if not file.startswith(REGISTERED) or not file.endswith(".py") or ".." in file:
        return f"not a test file under {REGISTERED}"
    path = root / file
    if not path.is_file():
        return "no such file"
    try:
        found = read(path, path.stat().st_mtime_ns)
    except SyntaxError as error:
        return f"the file does not parse, line {error.lineno}"
    if not below:
        return None if any(found.ids(file)) else "the file holds no test"
    return _why_not_in(found, below.partition("[")[0])


def _why_not_in(found: TestFile, name: str) -> str | None:
    owner, _, method = name.rpartition("::")
    if name in found.classes or (not owner and name in found.functions):
        return None
    if owner not in found.classes:
        return f"no class or function {owner or name}"
    return None if method in found.classes[owner] else f"no {method} in class {owner}"


@functools.cache
def read(path: Path, _version: int) -> TestFile:
    """Parse a test file; _version is its mtime, so that a changed file is parsed anew.

    Raises SyntaxError.
    """
    tree = ast.parse(path.read_bytes(), str(path))
    classes: dict[str, set[str]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            _collect(node, "", classes)
    return TestFile(classes, _functions(tree.body))


def _collect(node: ast.ClassDef, above: str, classes: dict[str, set[str]]) -> None:
    methods = _functions(node.body)
    for base in node.bases:
        if isinstance(base, ast.Name):
            methods |= classes.get(base.id, set())
    classes[above + node.name] = methods
    for each in node.body:
        if isinstance(each, ast.ClassDef):
            _collect(each, f"{above}{node.name}::", classes)


def _functions(body: list[ast.stmt]) -> set[str]:
    return {each.name for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
