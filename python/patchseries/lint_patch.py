"""What must hold of one patch file by itself: its name, headers, trailers and format."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

from patchseries import message, testids
from patchseries.errors import PatchSeriesError
from patchseries.message import Message, Trailer
from patchseries.series import Patch

SUBJECT_PREFIX = "[HiCache] "
SUBJECT_LIMIT = 72
"""Columns of a subject, as sglang writes them."""

STATUS_FORMS = (
    "Pending",
    "Submitted [URL]",
    "Merged [URL, FIRST RELEASE]",
    "Inappropriate [REASON]",
)
"""The vocabulary of Upstream-Status, after OpenEmbedded's."""

_STATUS = re.compile(
    r"(Pending|Submitted \[https?://[^\s\]]+\]|Merged \[https?://[^\s,\]]+, v?\d[\w.]*\]"
    r"|Inappropriate \[\S[^\]]*\])$"
)
_URL = re.compile(r"https?://\S+$")
_REQUIRED = ("Upstream-Status", "Tests", "Base")
_OWN = (*_REQUIRED, "Upstream-PR")
EXPORT = "python -m patchseries export DEST, from the repository that edit made"
_AMEND = "git commit --amend in the repository that edit made, then export"


@dataclasses.dataclass(frozen=True)
class Problem:
    """One thing that does not hold: `file:line: what; expected; command`."""

    file: Path
    line: int
    what: str
    expected: str
    command: str

    @classmethod
    def from_error(cls, file: Path, error: PatchSeriesError) -> Problem:
        """An error of the tool as a problem; `NAME:LINE` in its place gives the line."""
        matched = re.search(r":(\d+)", error.where)
        line = int(matched[1]) if matched else 1
        return cls(file, line, error.what, error.expected, error.command or EXPORT)

    def __str__(self) -> str:
        parts = [f"{self.file}:{self.line}: {self.what}"]
        if self.expected:
            parts.append(f"expected {self.expected}")
        if self.command:
            parts.append(f"type: {self.command}")
        return "; ".join(parts)


def problems(patch: Patch, path: Path, base: str, root: Path) -> list[Problem]:
    """Problems of one patch file, by line.

    path: as shown to the user. base: the folder's name. root: of the repository, for test ids.
    """
    try:
        found = patch.message
    except PatchSeriesError as error:
        return [Problem.from_error(path, error)]
    result = [
        *_headers(found, patch, path),
        *_trailers(found, path, base, root),
        *_added_lines(found, path),
        *_format(found, patch, path),
    ]
    try:
        _ = patch.changes
    except PatchSeriesError as error:
        result.append(Problem.from_error(path, error))
    return sorted(result, key=lambda each: each.line)


def _headers(found: Message, patch: Patch, path: Path) -> Iterator[Problem]:
    line, subject = found.subject_line, found.subject
    name = f"{message.slug(subject)}.patch"
    if patch.name != name:
        yield Problem(path, line, f"the subject gives another file name: {name}", name, EXPORT)
    if not subject.startswith(SUBJECT_PREFIX):
        expected = f"a subject that starts with '{SUBJECT_PREFIX}'"
        yield Problem(path, line, f"the subject is {subject!r}", expected, _AMEND)
    if len(subject) > SUBJECT_LIMIT:
        what = f"the subject has {len(subject)} characters"
        yield Problem(path, line, what, f"at most {SUBJECT_LIMIT}", _AMEND)
    text = found.body.split("\n\n")
    if not found.body or (found.trailers and len(text) < 2):
        expected = "what was wrong, what changes, what it costs"
        yield Problem(path, found.body_line, "the message has no body", expected, _AMEND)


def _trailers(found: Message, path: Path, base: str, root: Path) -> Iterator[Problem]:
    for required in _REQUIRED:
        values = found.values(required)
        if not values:
            yield Problem(
                path, found.body_line, f"no trailer {required}:", f"'{required}: ...'", _AMEND
            )
        if required != "Tests":
            for extra in values[1:]:
                yield Problem(path, extra.line, f"{required}: is there twice", "once", _AMEND)
    for trailer in found.values("Upstream-Status"):
        if not _STATUS.match(trailer.value):
            what = f"Upstream-Status is {trailer.value!r}"
            yield Problem(path, trailer.line, what, " | ".join(STATUS_FORMS), _AMEND)
    for trailer in found.values("Upstream-PR"):
        if not _URL.match(trailer.value):
            yield Problem(path, trailer.line, f"Upstream-PR is {trailer.value!r}", "a URL", _AMEND)
    for trailer in found.values("Base"):
        if trailer.value != base:
            yield Problem(path, trailer.line, f"Base is {trailer.value!r}", repr(base), _AMEND)
    yield from _spelling(found, path)
    yield from _tests(found, path, root)


def _spelling(found: Message, path: Path) -> Iterator[Problem]:
    for trailer in found.trailers:
        for own in _OWN:
            if trailer.key.lower() == own.lower() and trailer.key != own:
                yield Problem(
                    path, trailer.line, f"the trailer is {trailer.key}:", f"{own}:", _AMEND
                )


def _tests(found: Message, path: Path, root: Path) -> Iterator[Problem]:
    ids = found.test_ids()
    trailers: list[Trailer] = found.values("Tests")
    if trailers and not ids:
        yield Problem(path, trailers[0].line, "Tests: names no test", "FILE::CLASS::TEST", _AMEND)
    for test_id, line in ids:
        why = testids.why_unknown(root, test_id)
        if why:
            expected = f"FILE, FILE::CLASS or FILE::CLASS::TEST under {testids.REGISTERED}"
            yield Problem(path, line, f"Tests: names {test_id}: {why}", expected, _AMEND)


def _added_lines(found: Message, path: Path) -> Iterator[Problem]:
    previous = ""
    for number, line in enumerate(found.diff.split("\n"), found.diff_line):
        is_file_name = line.startswith("+++ ") and previous.startswith("--- ")
        previous = line
        if not line.startswith("+") or is_file_name:
            continue
        if line != line.rstrip():
            yield Problem(path, number, "blanks at the end of an added line", "none", _AMEND)
        if "\t" in line:
            yield Problem(path, number, "a tab in an added line", "blanks", _AMEND)


def _format(found: Message, patch: Patch, path: Path) -> Iterator[Problem]:
    """What export pins down: see message.render."""
    lines = patch.text.split("\n")
    if lines[0] != message.FROM_LINE:
        yield Problem(path, 1, "the first line tells a commit", message.FROM_LINE, EXPORT)
    for number, line in enumerate(lines, 1):
        if number < found.diff_line:
            continue
        if line.startswith("index ") and not re.match(
            r"index [0-9a-f]{40}\.\.[0-9a-f]{40}\b", line
        ):
            what = "the index line has short hashes"
            yield Problem(path, number, what, "40 hex digits on both sides", EXPORT)
        if line == "-- " and number >= len(lines) - 3:
            yield Problem(path, number, "a mail signature", "the diff to end the file", EXPORT)
            return
    canonical = message.render(found).split("\n")
    for number, (line, wanted) in enumerate(zip(lines, canonical, strict=False), 1):
        if line != wanted and number > 1:
            yield Problem(path, number, f"not as export writes it: {line!r}", repr(wanted), EXPORT)
            return
    if len(lines) != len(canonical):
        what = f"{len(lines)} lines, export writes {len(canonical)}"
        yield Problem(path, min(len(lines), len(canonical)), what, "the same", EXPORT)
