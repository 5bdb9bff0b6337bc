"""Keep pip's RECORD true while the series is in, so that uninstalling takes away all of it.

A line that names a file with the hash of a version that the patches know gets the hash and size of
the version that is there; files that the patches add get lines, and so does our own record, so that
`pip uninstall` leaves nothing behind. Every other line stays as it is, to the byte, also the one of
a file that a patch deletes: pip passes over what is not there. Taking out is the same with the
released contents: nothing has to be remembered.

Format: https://packaging.python.org/en/latest/specifications/recording-installed-packages/
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

from patchseries import diff
from patchseries.errors import PatchSeriesError
from patchseries.ladder import Ladder
from patchseries.targets import RECORD_FOLDER, RECORD_NAME, Target
from patchseries.wheels import ABOVE_PACKAGE

OURS = f"{RECORD_FOLDER}/{RECORD_NAME}"


@dataclasses.dataclass(frozen=True)
class Record:
    """RECORD of the distribution that a target is. name: as `Target.path` takes it."""

    name: str
    content: bytes


def dist_info(target: Target) -> Path | None:
    """The .dist-info folder beside sglang/; None where there is none, or more than one."""
    found = [each for each in target.package.parent.glob("sglang-*.dist-info") if each.is_dir()]
    return found[0] if len(found) == 1 else None


def read(target: Target) -> Record | None:
    """The RECORD beside a target, or None: not installed by pip, or an editable install.

    Raises PatchSeriesError when it cannot be read.
    """
    folder = dist_info(target)
    if folder is None or target.record.parent.parent != target.package.parent:
        return None
    try:
        return Record(f"{folder.name}/RECORD", (folder / "RECORD").read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PatchSeriesError(
            f"cannot read: {error.strerror}",
            where=folder / "RECORD",
            expected="a file that this user may read",
        ) from error


def row(name: str, content: bytes) -> str:
    """A line of RECORD, without its end."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{quoted(name)},sha256={digest},{len(content)}"


def quoted(name: str) -> str:
    """A name as RECORD, which is CSV, writes it."""
    return '"' + name.replace('"', '""') + '"' if set(name) & set(',"\r\n') else name


def updated(
    record: Record, ladder: Ladder, contents: Mapping[str, bytes | None], *, is_in: bool
) -> bytes:
    """The text of RECORD for these contents.

    ladder: the versions that files may have. contents: path to content, as it is going to be.
    is_in: our own record is going to be there.
    """
    text = record.content.decode(errors="surrogateescape")
    if not text.endswith("\n"):
        return record.content  # not as pip writes it: better left alone
    end = "\r\n" if text.endswith("\r\n") else "\n"
    ours = {path.removeprefix(ABOVE_PACKAGE): path for path in ladder.released}
    is_added = {name for name, path in ours.items() if ladder.released[path] == diff.ABSENT}
    lines, kept = [], set()
    for line in text.splitlines(keepends=True):
        name, found = _fields(line)
        path = ours.get(name)
        if path is None or found not in ladder.versions(path):
            if name == OURS:
                continue  # goes to the end
            lines.append(line)
            kept.add(name)
        elif name not in is_added:
            content = contents[path]
            ending = line[len(line.rstrip("\r\n")) :]
            lines.append(line if content is None else row(name, content) + ending)
    added = [
        row(name, content)
        for name in sorted(is_added - kept)
        if (content := contents[ours[name]]) is not None
    ]
    if is_in:
        added.append(f"{OURS},,")
    return "".join([*lines, *(line + end for line in added)]).encode(errors="surrogateescape")


def _fields(line: str) -> tuple[str, str]:
    """Name of the file and hex SHA-256, which is empty where RECORD has none."""
    fields = next(csv.reader([line]), [])
    if len(fields) != 3 or not fields[1].startswith("sha256="):
        return (fields[0] if fields else ""), ""
    encoded = fields[1].removeprefix("sha256=")
    try:
        digest = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    except ValueError:
        return fields[0], ""
    return fields[0], digest.hex()
