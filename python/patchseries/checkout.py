"""Run a checkout's own registered tests of HiCache on the patched checkout."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from patchseries import runner, status
from patchseries.errors import ExitCode, PatchSeriesError
from patchseries.report import Condition
from patchseries.repository import Repository
from patchseries.targets import Target
from patchseries.testids import REGISTERED
from patchseries.verdict import Expectation, judge

_CACHE_MODULE = re.compile(
    r"sglang\.srt\.mem_cache\..*(hicache|hi_?radix|unified|hybrid_cache|memory_pool_host|host_pool)"
)
"""Modules of the hierarchical cache, beside those that the series touches."""


def find_tests(root: Path, touched: Iterable[str]) -> list[str]:
    """Test files under test/registered/ that import what the series touches, or HiCache's modules.

    root: the checkout. touched: paths as patches write them. A file that does not parse is taken
    when it speaks of one of these modules, so that pytest can say what is wrong with it.
    """
    modules = {
        path.removeprefix("python/").removesuffix(".py").replace("/", ".") for path in touched
    }
    found = []
    for path in sorted((root / REGISTERED).rglob("test_*.py")):
        imported = _imported(path, set())
        if imported & modules or any(_CACHE_MODULE.match(each) for each in imported):
            found.append(path.relative_to(root).as_posix())
    return found


def _imported(path: Path, seen: set[Path]) -> set[str]:
    """Dotted names that a file imports, itself or through helpers that lie beside it."""
    seen.add(path)
    source = path.read_bytes()
    try:
        names = set(_imports(ast.parse(source, str(path))))
    except SyntaxError:
        return set(re.findall(r"sglang[\w.]+", source.decode(errors="replace")))
    helpers = {path.with_name(f"{name.partition('.')[0]}.py") for name in names} - seen
    return names.union(*(_imported(each, seen) for each in sorted(helpers) if each.is_file()))


def _imports(tree: ast.Module) -> Iterator[str]:
    """Dotted names that a file imports anywhere; `from a import b` gives a and a.b."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def run(
    repository: Repository,
    target: Target,
    *,
    pytest_arguments: Sequence[str] = (),
    engine: runner.Engine | None = None,
    say: Callable[[str], None] = runner.say_to_stderr,
) -> runner.PrefixResult:
    """Run the tests of a checkout; any that fails, or no test at all, is a finding.

    Raises PatchSeriesError unless the target is a checkout with test/registered/ in which the
    series is applied.
    """
    root = target.package.parent.parent
    if target.tests is None or not (root / REGISTERED).is_dir():
        raise PatchSeriesError(
            "no registered tests here",
            where=target.named,
            expected=f"a checkout of sglang, with python/sglang/ and {REGISTERED}",
            command=f"python -m patchseries apply '{target.named}' --with-tests, in a checkout",
            code=ExitCode.USAGE,
        )
    report = status.examine(repository, target)
    if report.condition is not Condition.APPLIED:
        raise PatchSeriesError(
            f"the series is not in: {report.condition.value}",
            where=target.named,
            expected="applied",
            command=f"python -m patchseries apply '{target.named}', then again",
        )
    files = find_tests(root, report.ladder.released)
    if not files:
        raise PatchSeriesError(
            "no test imports a module of HiCache",
            where=root / REGISTERED,
            expected="at least one test file that does",
            command=f"python -m patchseries apply --with-tests '{target.named}' lays ours",
        )
    for file in files:
        say(f"  {file}")
    return runner.run_pytest(
        runner.Job(
            label=root.name,
            folder=root,
            tree=target.package.parent,
            tests=tuple(files),
            output=repository.build / "test" / f"checkout-{root.name}",
        ),
        engine or runner.sglang_engine(),
        pytest_arguments,
        lambda results, selected: judge(
            Expectation((), 0), results, lambda file: [], selected=selected
        ),
        say,
    )
