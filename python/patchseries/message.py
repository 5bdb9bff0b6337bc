"""A patch file as mail: its headers, message and trailers, read and written in one canonical form.

`render(parse(text)) == text` holds for a canonical file; lint asks for exactly that, so that a
patch file does not depend on the git version and settings of whoever exported it.
"""

from __future__ import annotations

import dataclasses
import email.header
import email.utils
import re

from patchseries.errors import PatchSeriesError

ZERO_COMMIT = "0" * 40
FROM_LINE = f"From {ZERO_COMMIT} Mon Sep 17 00:00:00 2001"
MIME_LINES = (
    "MIME-Version: 1.0",
    "Content-Type: text/plain; charset=UTF-8",
    "Content-Transfer-Encoding: 8bit",
)
END_OF_MESSAGE = "---"
START_OF_DIFF = "diff --git "
_TRAILER = re.compile(r"([A-Za-z][A-Za-z0-9-]*):(?:[ \t]+(.*))?$")
_NEEDS_QUOTES = re.compile(r'[()<>@,;:\\".\[\]]')
_SIGNATURE = re.compile(r"(?:^|\n)-- \n\d[^\n]*\n\n?\Z")


@dataclasses.dataclass(frozen=True)
class Trailer:
    """One `Key: value` line at the end of a message; `line` counts from 1 in the patch file."""

    key: str
    value: str
    line: int


@dataclasses.dataclass(frozen=True)
class Message:
    """What a patch file holds beside the name of the file.

    body: the message without its subject, no blank lines at either end.
    diff: everything from the first `diff --git` on, without a mail signature.
    subject_line, body_line, diff_line: where these start in the file, from 1.
    """

    author_name: str
    author_mail: str
    date: str
    subject: str
    body: str
    diff: str
    trailers: tuple[Trailer, ...]
    subject_line: int
    body_line: int
    diff_line: int

    @property
    def author(self) -> str:
        quoted = self.author_name
        if _NEEDS_QUOTES.search(quoted):
            quoted = '"' + quoted.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return f"{quoted} <{self.author_mail}>"

    @property
    def text(self) -> str:
        """The commit message: subject, blank line, body; ends with a newline."""
        return f"{self.subject}\n\n{self.body}\n" if self.body else f"{self.subject}\n"

    def values(self, key: str) -> list[Trailer]:
        """The trailers with that key, compared without case, in order."""
        return [trailer for trailer in self.trailers if trailer.key.lower() == key.lower()]

    def test_ids(self) -> list[tuple[str, int]]:
        """Every id that a `Tests:` trailer names, with the line of that trailer.

        Ids are separated by commas or lines; a comma inside `[...]` belongs to the id.
        """
        ids: list[tuple[str, int]] = []
        for trailer in self.values("Tests"):
            for part in re.split(r",(?![^\[]*\])|\n", trailer.value):
                if part.strip():
                    ids.append((part.strip(), trailer.line))
        return ids


def slug(subject: str) -> str:
    """The file name, without `.patch`, that a subject gives.

    The rule is that of `%f` in gitformat-patch's pretty formats: ASCII letters, digits, `.` and `_`
    stay, any run of other characters becomes one `-`, a run of dots one dot, and neither `-` nor
    `.` ends the name (nor `-` starts it).
    """
    joined = re.sub(r"[^A-Za-z0-9._]+", "-", subject).lstrip("-")
    return re.sub(r"\.\.+", ".", joined).rstrip("-.")


def parse(text: str, name: str) -> Message:
    """Read a patch file in the format of git format-patch.

    Raises PatchSeriesError, with file and line, where a header, the subject or the diff is missing.
    """
    lines = text.split("\n")
    if "\r" in text:
        number = 1 + text.count("\n", 0, text.index("\r"))
        raise _wrong(name, number, "the patch has CRLF line ends", "LF only, as git keeps it")
    if not re.match(r"From [0-9a-f]{40} ", lines[0]):
        raise _wrong(name, 1, "not a patch in git format", repr(FROM_LINE))
    headers, blank = _read_headers(lines, name)
    diff_start = next(
        (at for at in range(blank, len(lines)) if lines[at].startswith(START_OF_DIFF)), None
    )
    if diff_start is None:
        expected = f"a line that starts with '{START_OF_DIFF}'"
        raise _wrong(name, len(lines), "no diff", expected)
    above = lines[:diff_start]
    body_end = above.index(END_OF_MESSAGE, blank) if END_OF_MESSAGE in above[blank:] else diff_start
    filled = [at for at in range(blank, body_end) if lines[at].strip()]
    body_start = filled[0] if filled else body_end
    body = lines[body_start : filled[-1] + 1] if filled else []
    author_name, author_mail = _address(headers["from"][0])
    return Message(
        author_name=author_name,
        author_mail=author_mail,
        date=headers["date"][0],
        subject=_decoded(headers["subject"][0]),
        body="\n".join(body),
        diff=_SIGNATURE.sub("\n", "\n".join(lines[diff_start:])),
        trailers=tuple(_trailers(body, body_start + 1)),
        subject_line=headers["subject"][1],
        body_line=body_start + 1,
        diff_line=diff_start + 1,
    )


def _wrong(name: str, line: int, what: str, expected: str) -> PatchSeriesError:
    return PatchSeriesError(what, where=f"{name}:{line}", expected=expected)


def _read_headers(lines: list[str], name: str) -> tuple[dict[str, tuple[str, int]], int]:
    """Lower-case header name to value and line, and the index of the blank line behind them."""
    headers: dict[str, tuple[str, int]] = {}
    last, at = "", 1
    while at < len(lines) and lines[at]:
        line = lines[at]
        if line[0] in " \t" and last:
            headers[last] = (f"{headers[last][0]} {line.strip()}", headers[last][1])
        elif ": " in line:
            last, value = line.split(": ", 1)
            last = last.lower()
            headers[last] = (value, at + 1)
        else:
            raise _wrong(name, at + 1, "not a mail header", "'Name: value', or a blank line")
        at += 1
    for required in ("From", "Date", "Subject"):
        if required.lower() not in headers:
            raise _wrong(name, at + 1, f"no {required}: header", f"'{required}: ...'")
    return headers, at


def render(message: Message) -> str:
    """The canonical text of a patch file."""
    head = [
        FROM_LINE,
        f"From: {message.author}",
        f"Date: {message.date}",
        f"Subject: {message.subject}",
    ]
    if not "".join([*head, message.body]).isascii():
        head += MIME_LINES
    body = [message.body] if message.body else []
    diff = message.diff.rstrip("\n") + "\n"
    return "\n".join([*head, "", *body, END_OF_MESSAGE, "", diff])


def _decoded(value: str) -> str:
    """Undo the `=?UTF-8?q?...?=` words that git writes into headers unless told not to."""
    return str(email.header.make_header(email.header.decode_header(value)))


def _address(value: str) -> tuple[str, str]:
    name, mail = email.utils.parseaddr(value)
    return _decoded(name), mail


def _trailers(body: list[str], first_line: int) -> list[Trailer]:
    """The trailers: the last paragraph, if every line of it is one or goes on with one."""
    start = len(body)
    while start > 0 and body[start - 1].strip():
        start -= 1
    found: list[Trailer] = []
    for offset, line in enumerate(body[start:], start):
        matched = _TRAILER.match(line)
        if matched:
            found.append(Trailer(matched[1], (matched[2] or "").strip(), first_line + offset))
        elif line[0] in " \t" and found:
            previous = found[-1]
            joined = f"{previous.value}\n{line.strip()}".strip("\n")
            found[-1] = dataclasses.replace(previous, value=joined)
        else:
            return []
    return found
