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
import json
import queue
import re
import subprocess
import sys
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
    """1-based numbers of the lines of ``after`` that ``before`` does not have there.

    Of several ways to see an insertion between equal lines, the last one, as git does.
    """
    new = after.splitlines()
    matcher = difflib.SequenceMatcher(a=before.splitlines(), b=new, autojunk=False)
    added: set[int] = set()
    for tag, _, _, start, end in matcher.get_opcodes():
        if tag == "insert":
            while end < len(new) and new[start] == new[end]:
                start, end = start + 1, end + 1  # noqa: PLW2901
        if tag in ("insert", "replace"):
            added.update(range(start + 1, end + 1))
    return added


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
    tests.sort(key=lambda name: ("fuzz" in name, name))  # the slow ones last: a failure ends a run
    workers: queue.Queue[Worker] = queue.Queue()
    for _ in range(jobs):
        workers.put(Worker(patched, root, tests))
    alive = []
    with ThreadPoolExecutor(jobs) as pool:

        def lives(mutant: Mutant | None) -> bool:
            worker = workers.get()
            try:
                return worker.lives(mutant)
            finally:
                workers.put(worker)

        if not lives(None):
            raise PatchSeriesError(
                "the registered tests fail without any mutation",
                where=patched,
                expected="tests that pass",
                command="python -m patchseries test --base v0.5.17",
            )
        for number, (mutant, lived) in enumerate(zip(todo, pool.map(lives, todo), strict=True), 1):
            if lived:
                alive.append(mutant)
            verdict = "SURVIVED" if lived else "caught"
            where = f"{Path(mutant.path).name}:{mutant.line}"
            print(f"{number}/{len(todo)} {verdict:8} {where}: {mutant.what}", flush=True)
    while not workers.empty():
        workers.get().close()
    return len(todo), alive


class Worker:
    """A process that has sglang imported from the patched tree, see `patchseries.mutant_worker`."""

    def __init__(self, tree: Path, root: Path, tests: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "patchseries.mutant_worker", *tests],
            cwd=root,
            env=sglang_cpu.environment(tree),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def lives(self, mutant: Mutant | None) -> bool:
        """Whether all tests pass with the mutant in place, or without any."""
        assert self._process.stdin is not None and self._process.stdout is not None
        line = ""
        if mutant is not None:
            line = json.dumps({"path": mutant.path, "source": mutant.source})
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        if answer not in ("survived", "caught"):
            raise PatchSeriesError(
                f"the process that runs the tests ended, with {self._process.wait()}",
                where=self._process.args[-1] if isinstance(self._process.args, list) else "tests",
                expected="an answer for each mutant",
                command="scripts/mutate --jobs 1",
            )
        return answer == "survived"

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


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
