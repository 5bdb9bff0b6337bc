"""Mutation test of a series: break each added condition, and see a registered test fail.

Mutants are made from the lines that the patches add, and from nothing else: an operand of ``and`` /
``or`` is dropped, a comparison is inverted, a bound is shifted, an ``if`` is made always and never
true, a ``not``, a filter of a comprehension, a ``continue``, a ``raise``, an assignment or a call
whose value is not used is taken out, and a returned truth value is flipped.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import difflib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import sglang_cpu

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
    elif isinstance(node, ast.If | ast.IfExp):
        for value in (True, False):
            changed_if = copy.copy(node)
            changed_if.test = ast.Constant(value)
            yield f"if `{ast.unparse(node.test)}` -> {value}", changed_if
    elif isinstance(node, ast.comprehension) and node.ifs:
        changed_loop = copy.copy(node)
        changed_loop.ifs = []
        yield f"drop filter `{ast.unparse(node.ifs[0])}`", changed_loop
    elif isinstance(node, ast.Return) and isinstance(node.value, ast.Constant):
        if isinstance(node.value.value, bool):
            yield "flip returned value", ast.Return(ast.Constant(not node.value.value))
    elif isinstance(node, ast.Continue | ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield f"drop `{ast.unparse(node).splitlines()[0]}`", ast.Pass()
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp | ast.Attribute):
        # Only where the name is bound before: a reassignment, such as a value that is replaced.
        yield f"drop `{ast.unparse(node)}`", ast.Pass()


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
    released: Path, patched: Path, tests: list[str], root: Path, only: str | None = None
) -> tuple[int, list[Mutant]]:
    """Run the tests on every mutant of ``patched``; return how many there were, and who lived.

    ``released`` and ``patched`` hold ``sglang/``; ``tests`` are pytest ids relative to ``root``;
    ``only`` is a regular expression on ``path:line: what``. Prints a line a mutant.
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
    alive = []
    with tempfile.TemporaryDirectory(prefix="patchseries-mutate-") as work:
        tree = Path(work) / "tree"
        shutil.copytree(patched, tree, ignore=shutil.ignore_patterns("__pycache__"))
        if _passes(tree, tests, root) is False:
            raise SystemExit("patchseries mutate: the tests fail without any mutation")
        for number, mutant in enumerate(todo, 1):
            target = tree / mutant.path
            original = target.read_text()
            target.write_text(mutant.source)
            for stale in (target.parent / "__pycache__").glob(f"{target.stem}.*"):
                stale.unlink()
            lived = _passes(tree, tests, root)
            target.write_text(original)
            if lived:
                alive.append(mutant)
            verdict = "SURVIVED" if lived else "caught"
            where = f"{Path(mutant.path).name}:{mutant.line}"
            print(f"{number}/{len(todo)} {verdict:8} {where}: {mutant.what}", flush=True)
    return len(todo), alive


def _passes(tree: Path, tests: list[str], root: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "sglang_cpu.pytest_plugin", "--timeout=300", *tests]
    done = subprocess.run(
        command, cwd=root, env=sglang_cpu.environment(tree), capture_output=True, check=False
    )
    return done.returncode == 0
