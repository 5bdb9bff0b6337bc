"""Read pytest's JUnit XML (family xunit1) back into node ids and outcomes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from patchseries.verdict import Outcome, Results

_WORSE = [Outcome.PASSED, Outcome.SKIPPED, Outcome.FAILED]


def read(path: Path) -> Results:
    """The results in a report file.

    Node ids are put together from the file and class attributes, as pytest writes them for tests
    below its root folder. Raises ElementTree.ParseError for a file that is cut off.
    """
    outcomes: dict[str, Outcome] = {}
    broken: set[str] = set()
    details: dict[str, str] = {}
    for case in ElementTree.parse(path).iter("testcase"):
        file = case.get("file") or ""
        dotted, name = case.get("classname") or "", case.get("name") or ""
        outcome, detail = _outcome(case)
        if not dotted:  # a file that could not be collected has no class, and its module as name
            file = file or name.replace(".", "/") + ".py"
            broken.add(file)
            details[file] = detail
            continue
        module = file.removesuffix(".py").replace("/", ".")
        classes = dotted.removeprefix(module).strip(".").replace(".", "::")
        node = "::".join(part for part in (file, classes, name) if part)
        previous = outcomes.get(node, Outcome.PASSED)
        outcomes[node] = max(previous, outcome, key=_WORSE.index)
        if detail:
            details[node] = detail
    return Results(outcomes, frozenset(broken), details)


def _outcome(case: ElementTree.Element) -> tuple[Outcome, str]:
    bad = [child for child in case if child.tag in ("failure", "error")]
    if bad:
        return Outcome.FAILED, "\n".join(child.text or child.get("message") or "" for child in bad)
    if any(child.tag == "skipped" for child in case):
        return Outcome.SKIPPED, ""
    return Outcome.PASSED, ""
