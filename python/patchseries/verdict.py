"""What the registered tests must do on the tree of a prefix, held against what they did."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence

from patchseries.series import Patch
from patchseries.testids import covers


class Outcome(enum.Enum):
    """How one test ended. A test with several results (setup, subtests) has the worst."""

    PASSED = "passes"
    SKIPPED = "is skipped"
    FAILED = "fails"


@dataclasses.dataclass(frozen=True)
class Results:
    """What a pytest run gave.

    outcomes: node id to outcome. broken: files that could not be collected.
    details: node id or file to pytest's report of a failure.
    """

    outcomes: Mapping[str, Outcome]
    broken: frozenset[str]
    details: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something that did not go as the trailers say. about: key into `Results.details`."""

    what: str
    about: str = ""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """passed, failed_as_expected, skipped: counts of tests. findings: what is wrong."""

    passed: int
    failed_as_expected: int
    skipped: int
    findings: tuple[Finding, ...]


@dataclasses.dataclass(frozen=True)
class Expectation:
    """The test ids that the trailers of a series name, seen from the tree of its first `count`."""

    named: tuple[tuple[str, int, str], ...]
    count: int

    @classmethod
    def of(cls, patches: Sequence[Patch], count: int) -> Expectation:
        """named: (test id, position of the patch that names it, name of the patch)."""
        named = [
            (test_id, position, patch.name.removesuffix(".patch"))
            for position, patch in enumerate(patches)
            for test_id, _ in patch.message.test_ids()
        ]
        return cls(tuple(named), count)

    def later(self, node: str) -> str | None:
        """The first patch that is not in the tree and names the test, which must fail then."""
        for test_id, position, patch in self.named:
            if position >= self.count and covers(test_id, node):
                return patch
        return None

    def applied(self, node: str) -> str | None:
        """The last patch that is in the tree and names the test."""
        for test_id, position, patch in reversed(self.named):
            if position < self.count and covers(test_id, node):
                return patch
        return None


def judge(
    expected: Expectation,
    results: Results,
    tests_in: Callable[[str], Iterable[str]],
    *,
    selected: bool = False,
) -> Verdict:
    """Hold a run against the trailers.

    On the tree of the first k patches, a test that a later patch names must fail, and every other
    test must pass; one that no patch names may be skipped.

    tests_in: the test ids in a file, for files that could not be collected.
    selected: the user ran a part of the tests, so that a named one may be missing.
    """
    passed = failed = skipped = 0
    findings: list[Finding] = []
    for node, outcome in results.outcomes.items():
        later, applied = expected.later(node), expected.applied(node)
        if later is not None:
            if outcome is Outcome.FAILED:
                failed += 1
            else:
                without = f"without {later}, which names it in Tests"
                findings.append(Finding(f"{node} {outcome.value} {without}", node))
        elif outcome is Outcome.PASSED:
            passed += 1
        elif outcome is Outcome.SKIPPED and applied is None:
            skipped += 1
        else:
            because = f"although {applied}, which names it in Tests, is in" if applied else ""
            findings.append(Finding(f"{node} {outcome.value} {because}".rstrip(), node))
    for file in sorted(results.broken):
        must_pass = [test for test in tests_in(file) if expected.later(test) is None]
        failed += sum(1 for test in tests_in(file) if expected.later(test) is not None)
        if must_pass or not any(covers(file, test_id) for test_id, _, _ in expected.named):
            what = f"{file} cannot be collected"
            if must_pass:
                what += f", but {must_pass[0]} must pass here"
            findings.append(Finding(what, file))
    if not selected:
        findings += _unmatched(expected, results)
    return Verdict(passed, failed, skipped, tuple(findings))


def _unmatched(expected: Expectation, results: Results) -> list[Finding]:
    findings = []
    for test_id, _, patch in expected.named:
        in_broken = test_id.partition("::")[0] in results.broken
        if not in_broken and not any(covers(test_id, node) for node in results.outcomes):
            findings.append(Finding(f"no test matches {test_id}, which {patch} names in Tests"))
    return findings
