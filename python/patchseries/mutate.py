"""Mutation test of a series: break each added condition, and see a registered test fail.

Mutants are made from the lines that the patches add, and from nothing else: an operand of ``and`` /
``or`` is dropped, a comparison is inverted, a bound is shifted, an ``if`` is made always and never
true, a ``not``, a filter of a comprehension, a ``continue``, a ``raise``, an assignment or a call
whose value is not used is taken out, and a returned truth value is flipped.
"""

from __future__ import annotations

import argparse
import ast
import copy
import dataclasses
import difflib
import queue
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sglang_cpu
from patchseries import trees
from patchseries.errors import PatchSeriesError

INVERTED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}
SHIFTED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One file with one change."""

    path: str
    line: int
    what: str
    source: str


def added_lines(before: str, after: str) -> set[int]:
    """1-based numbers of the lines of ``after`` that ``before`` does not have there."""
    matcher = difflib.SequenceMatcher(a=before.splitlines(), b=after.splitlines(), autojunk=False)
    return {
        line + 1
        for tag, _, _, start, end in matcher.get_opcodes()
        if tag in ("insert", "replace")
        for line in range(start, end)
    }


def _replacements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """(what, node to put in its place) for each way to break one node."""
    if isinstance(node, ast.expr):
        yield from _of_expression(node)
    elif isinstance(node, ast.stmt):
        yield from _of_statement(node)
    if isinstance(node, ast.If | ast.IfExp):
        for value in (True, False):
            changed = copy.copy(node)
            changed.test = ast.Constant(value)
            yield f"if `{ast.unparse(node.test)}` -> {value}", changed
    elif isinstance(node, ast.comprehension) and node.ifs:
        unfiltered = copy.copy(node)
        unfiltered.ifs = []
        yield f"drop filter `{ast.unparse(node.ifs[0])}`", unfiltered


def _of_expression(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(node, ast.BoolOp):
        for i, operand in enumerate(node.values):
            rest = node.values[:i] + node.values[i + 1 :]
            left = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
            yield f"drop `{ast.unparse(operand)}`", left
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        for table in (INVERTED, SHIFTED):
            swapped = table.get(type(node.ops[0]))
            if swapped is not None:
                changed = ast.Compare(node.left, [swapped()], node.comparators)
                yield f"`{ast.unparse(node)}` -> `{ast.unparse(changed)}`", changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield f"drop not of `{ast.unparse(node)}`", node.operand


def _of_statement(node: ast.stmt) -> Iterator[tuple[str, ast.stmt]]:
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    is_assignment = isinstance(node, ast.Assign) and isinstance(
        node.value, ast.IfExp | ast.Attribute
    )
    if isinstance(node, ast.Continue | ast.Raise) or is_call or is_assignment:
        yield f"drop `{ast.unparse(node).splitlines()[0]}`", ast.Pass()
    elif (
        isinstance(node, ast.Return)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, bool)
    ):
        yield "flip returned value", ast.Return(ast.Constant(not node.value.value))


class _Replace(ast.NodeTransformer):
    def __init__(self, target: ast.AST, replacement: ast.AST) -> None:
        self.target, self.replacement = target, replacement

    def visit(self, node: ast.AST) -> ast.AST:
        return self.replacement if node is self.target else self.generic_visit(node)


def mutants(path: str, before: str, after: str) -> list[Mutant]:
    """Every mutant of the lines that ``after`` adds to ``before``, in the order of lines."""
    added = added_lines(before, after)
    tree = ast.parse(after)
    found = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", None)
        if isinstance(node, ast.comprehension):
            line = node.target.lineno
        if line not in added:
            continue
        for what, replacement in _replacements(node):
            changed = _Replace(node, replacement).visit(copy_with(tree, node))
            source = ast.unparse(ast.fix_missing_locations(changed)) + "\n"
            found.append(Mutant(path, line, what, source))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.what))


def copy_with(tree: ast.Module, kept: ast.AST) -> ast.Module:
    """A deep copy of ``tree`` in which ``kept`` is still the very same object."""
    return copy.deepcopy(tree, {id(kept): kept})


def survivors(
    released: Path, patched: Path, root: Path, only: str | None = None, jobs: int = 2
) -> tuple[int, list[Mutant]]:
    """Run the registered tests on every mutant; return how many there were, and who lived.

    ``released`` and ``patched`` hold ``sglang/``; ``root`` is the checkout with test/registered/;
    ``only`` is a regular expression on "path:line: what". Prints a line a mutant.
    """
    files = sorted(
        str(path.relative_to(patched))
        for path in (patched / "sglang/srt").rglob("*.py")
        if path.read_bytes() != (released / path.relative_to(patched)).read_bytes()
    )
    todo = [
        mutant
        for name in files
        for mutant in mutants(name, (released / name).read_text(), (patched / name).read_text())
        if only is None or re.search(only, f"{name}:{mutant.line}: {mutant.what}")
    ]
    tests = [str(path.relative_to(root)) for path in (root / "test/registered").rglob("test_*.py")]
    tests.sort(
        key=lambda name: ("fuzz" in name, name)
    )  # the slow ones last: the first failure ends a run
    copies: queue.Queue[Path] = queue.Queue()
    verdicts = {}
    with (
        tempfile.TemporaryDirectory(prefix="patchseries-mutate-") as work,
        ThreadPoolExecutor(jobs) as pool,
    ):
        for number in range(jobs):
            tree = Path(work) / str(number)
            shutil.copytree(patched, tree, ignore=shutil.ignore_patterns("__pycache__"))
            copies.put(tree)
        if not _passes(tree, tests, root):
            raise PatchSeriesError(
                "the registered tests fail without any mutation",
                where=patched,
                expected="tests that pass",
                command="python -m patchseries test --base v0.5.17",
            )

        def run(mutant: Mutant) -> bool:
            tree = copies.get()
            try:
                return _lives(tree, mutant, tests, root)
            finally:
                copies.put(tree)

        for number, (mutant, lived) in enumerate(zip(todo, pool.map(run, todo), strict=True), 1):
            verdicts[mutant] = lived
            verdict = "SURVIVED" if lived else "caught"
            where = f"{Path(mutant.path).name}:{mutant.line}"
            print(f"{number}/{len(todo)} {verdict:8} {where}: {mutant.what}", flush=True)
    return len(todo), [mutant for mutant in todo if verdicts[mutant]]


def _lives(tree: Path, mutant: Mutant, tests: list[str], root: Path) -> bool:
    """Whether all tests pass on the tree with one mutant in it; the tree is put back."""
    target = tree / mutant.path
    original = target.read_text()
    target.write_text(mutant.source)
    try:
        # Byte code is told stale by time and size only.
        for stale in (target.parent / "__pycache__").glob(f"{target.stem}.*"):
            stale.unlink()
        return _passes(tree, tests, root)
    finally:
        target.write_text(original)


def _passes(tree: Path, tests: list[str], root: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "sglang_cpu.pytest_plugin", "--timeout=300", *tests]
    done = subprocess.run(
        command, cwd=root, env=sglang_cpu.environment(tree), capture_output=True, check=False
    )
    return done.returncode == 0


def main() -> int:
    """Entry point of scripts/mutate."""
    parser = argparse.ArgumentParser(
        prog="scripts/mutate",
        description="Break every condition that the patches add, one at a time, and see a "
        "registered test fail.",
        epilog="example: scripts/mutate --jobs 1 'tree_core.py:8'",
    )
    parser.add_argument("only", nargs="?", help="regular expression on 'file:line: what'")
    parser.add_argument("--base", default="v0.5.17", help="the release (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="test runs at a time (default: 2)")
    arguments = parser.parse_args()
    released = trees.cached(arguments.base, "base")
    patched = trees.cached(arguments.base, "all")
    root = Path(__file__).resolve().parents[2]
    total, alive = survivors(released, patched, root, arguments.only, arguments.jobs)
    print(f"{total - len(alive)} of {total} mutants caught")
    for mutant in alive:
        print(f"survived: {mutant.path}:{mutant.line}: {mutant.what}")
    return 1 if alive or not total else 0


if __name__ == "__main__":
    sys.exit(main())
