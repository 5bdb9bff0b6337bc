"""Run the registered tests on the trees of prefixes of the series, one after the other."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from patchseries import junit, series, testids, trees
from patchseries.errors import ExitCode, PatchSeriesError
from patchseries.inorder import InOrder
from patchseries.repository import Repository
from patchseries.verdict import Expectation, Finding, Results, Verdict, judge

DETAIL_LINES = 30
"""Lines of pytest's report that are shown of a test that failed and should not have."""

_PERCENT = re.compile(r"\[ *(\d+)%\]\s*$")


@dataclasses.dataclass(frozen=True)
class Engine:
    """How sglang runs from a tree.

    environment: from the tree to the environment of a process. plugin: name of a pytest plugin.
    """

    environment: Callable[[Path], dict[str, str]]
    plugin: str | None


@dataclasses.dataclass(frozen=True)
class PrefixResult:
    """What came of one prefix.

    through: its label. log: pytest's whole output. seconds: of wall time, the tree included.
    """

    through: str
    verdict: Verdict
    results: Results
    log: Path
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {
            "through": self.through,
            "passed": self.verdict.passed,
            "failed_as_expected": self.verdict.failed_as_expected,
            "skipped": self.verdict.skipped,
            "findings": [each.what for each in self.verdict.findings],
            "log": str(self.log),
            "seconds": round(self.seconds, 1),
        }

    def detail(self, finding: Finding) -> str:
        """The end of pytest's report of what a finding is about; empty where there is none."""
        lines = self.results.details.get(finding.about, "").rstrip().split("\n")
        return "\n".join(lines[-DETAIL_LINES:])


def sglang_engine() -> Engine:
    """The engine that runs sglang on this machine, with or without a GPU.

    Raises PatchSeriesError (usage) in a python that cannot run it.
    """
    lacking = [name for name in ("torch", "pytest") if importlib.util.find_spec(name) is None]
    if lacking:
        raise PatchSeriesError(
            f"this python lacks {' and '.join(lacking)}",
            where=sys.executable,
            expected="the environment of this project's repository",
            command="scripts/patchseries test, in a clone of the repository",
            code=ExitCode.USAGE,
        )
    import sglang_cpu  # noqa: PLC0415 - not needed by any other command

    return Engine(sglang_cpu.environment, "sglang_cpu.pytest_plugin")


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of pytest.

    label: for the user. folder: pytest runs in it. tree: holds the sglang/ that is tested.
    tests: files or folders, relative to `folder`. output: path of the log and the report, without
    their suffixes.
    """

    label: str
    folder: Path
    tree: Path
    tests: tuple[str, ...]
    output: Path

    @property
    def log(self) -> Path:
        return self.output.with_name(self.output.name + ".log")


def say_to_stderr(line: str) -> None:
    """Where progress goes."""
    print(line, file=sys.stderr, flush=True)


def run(
    repository: Repository,
    base: str,
    through: str | None,
    *,
    each: bool = False,
    pytest_arguments: Sequence[str] = (),
    engine: Engine | None = None,
    jobs: int = 1,
    say: Callable[[str], None] = say_to_stderr,
) -> list[PrefixResult]:
    """Run the tests on the tree of a prefix, or (each) of every prefix up to it from none on.

    jobs: prefixes that are tested at the same time; what is said keeps their order.
    A tree that cannot be tested is a finding, so that the others still are.

    Raises PatchSeriesError for an unknown base or prefix.
    """
    engine = engine or sglang_engine()
    loaded = series.load(repository, base)
    last = loaded.count(through)
    counts = range(last + 1) if each else range(last, last + 1)
    speech = InOrder(len(counts), say)

    def test(number: int) -> PrefixResult:
        tell = speech.of(number)
        tell(f"[{number + 1}/{len(counts)}] {base} through {loaded.label(counts[number])}")
        try:
            result = _run_prefix(
                repository,
                loaded,
                counts[number],
                pytest_arguments=pytest_arguments,
                engine=engine,
                say=tell,
            )
            verdict = result.verdict
            tell(
                f"  {verdict.passed} passed, {verdict.failed_as_expected} failed as they must, "
                f"{verdict.skipped} skipped, {len(verdict.findings)} findings"
            )
            return result
        finally:
            speech.end(number)

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        return list(pool.map(test, range(len(counts))))


_BUILDING = threading.Lock()
"""Trees are built one at a time: the umask is one for the whole process."""


def _run_prefix(
    repository: Repository,
    loaded: series.Series,
    count: int,
    *,
    pytest_arguments: Sequence[str],
    engine: Engine,
    say: Callable[[str], None],
) -> PrefixResult:
    label = loaded.label(count)
    output = repository.build / "test" / f"{loaded.base}-{label}"
    started = time.monotonic()
    try:
        with _BUILDING:
            tree = trees.cached(loaded.base, label, repository)
    except PatchSeriesError as error:
        verdict = Verdict(0, 0, 0, (Finding(f"no tree to test: {error}"),))
        return PrefixResult(label, verdict, Results({}, frozenset()), output, 0.0)
    tests = (str(repository.registered.relative_to(repository.root)),)
    expected = Expectation.of(loaded.patches, count)
    result = run_pytest(
        Job(label, repository.root, tree, tests, output),
        engine,
        pytest_arguments,
        lambda results, selected: judge(
            expected, results, lambda file: _tests_in(repository.root, file), selected=selected
        ),
        say,
    )
    return dataclasses.replace(result, seconds=time.monotonic() - started)


def run_pytest(
    job: Job,
    engine: Engine,
    pytest_arguments: Sequence[str],
    judged: Callable[[Results, bool], Verdict],
    say: Callable[[str], None],
) -> PrefixResult:
    """Run one job; `judged` gets the results, and whether they are a part of what there is."""
    job.output.parent.mkdir(parents=True, exist_ok=True)
    report = job.output.with_name(job.output.name + ".xml")
    report.unlink(missing_ok=True)
    started = time.monotonic()
    command = _command(job, report, engine, pytest_arguments)
    code = _run_pytest(command, job.folder, engine.environment(job.tree), job.log, say)
    results, failure = _read_report(report, code, job.log)
    verdict = judged(results, bool(pytest_arguments) or failure is not None)
    if failure is not None:
        verdict = dataclasses.replace(verdict, findings=(failure, *verdict.findings))
    return PrefixResult(job.label, verdict, results, job.log, time.monotonic() - started)


def _command(job: Job, report: Path, engine: Engine, pytest_arguments: Sequence[str]) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--verbose", "--no-header", "--tb=short", "-rN"]
    command += ["--rootdir", str(job.folder), "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", "-o", "junit_family=xunit1"]
    command += [f"--junitxml={report}"]
    if engine.plugin:
        command += ["-p", engine.plugin]
    # Arguments that name tests take the place of all of them.
    if not any(testids.REGISTERED in argument for argument in pytest_arguments):
        command += job.tests
    return [*command, *pytest_arguments]


def _run_pytest(
    command: Sequence[str],
    root: Path,
    environment: dict[str, str],
    log: Path,
    say: Callable[[str], None],
) -> int:
    """Run pytest with its output in the log, saying how far it is, and return its exit code."""
    with (
        log.open("w") as sink,
        subprocess.Popen(
            command,
            cwd=root,
            env={**environment, "PYTHONUNBUFFERED": "1", "COLUMNS": "120"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in _with_progress(process.stdout, say):
                sink.write(line)
        except BaseException:
            process.kill()
            raise
        return process.wait()


def _with_progress(lines: Iterator[str] | Any, say: Callable[[str], None]) -> Iterator[str]:
    said = 0
    for line in lines:
        matched = _PERCENT.search(line)
        if matched and int(matched[1]) >= said + 25:
            said = int(matched[1]) // 25 * 25
            say(f"  {said} %")
        yield line


def _read_report(report: Path, code: int, log: Path) -> tuple[Results, Finding | None]:
    """Results, and a finding where pytest did not get through."""
    results = Results({}, frozenset())
    with contextlib.suppress(FileNotFoundError, ElementTree.ParseError):
        results = junit.read(report)
    if code in (0, 1):
        if not results.outcomes and not results.broken:
            return results, Finding(f"pytest ran no test; see {log}", "pytest")
        return results, None
    meaning = {
        2: "was interrupted",
        3: "had an internal error",
        4: "did not take its arguments",
        5: "found no tests",
    }.get(code, f"was ended by signal {-code}" if code < 0 else f"ended with code {code}")
    last = ""
    with contextlib.suppress(OSError):
        last = "\n".join(log.read_text(errors="replace").rstrip().split("\n")[-DETAIL_LINES:])
    results = dataclasses.replace(results, details={**results.details, "pytest": last})
    return results, Finding(f"pytest {meaning}; see {log}", "pytest")


def _tests_in(root: Path, file: str) -> list[str]:
    path = root / file
    with contextlib.suppress(OSError, SyntaxError):
        return list(testids.read(path, path.stat().st_mtime_ns).ids(file))
    return []


def table(results: Sequence[PrefixResult]) -> str:
    """One line per prefix: passed, failed as expected, skipped, findings."""
    rows = [("through", "passed", "failed as expected", "skipped", "findings")]
    for each in results:
        verdict = each.verdict
        counts = (
            verdict.passed,
            verdict.failed_as_expected,
            verdict.skipped,
            len(verdict.findings),
        )
        rows.append((each.through, *map(str, counts)))  # type: ignore[arg-type]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, rest = row[0].ljust(widths[0]), zip(row[1:], widths[1:], strict=True)
        lines.append("  ".join([first, *(text.rjust(width) for text, width in rest)]))
    return "\n".join(lines)
