"""Lay the series out as a git repository: the released sources, then one commit per patch."""

from __future__ import annotations

import email.utils
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from patchseries import git, pin, series, wheels
from patchseries.errors import ExitCode, PatchSeriesError
from patchseries.repository import Repository

BASE_REF = "refs/patchseries/"
"""The commit of the released sources is kept under this, followed by the name of the base."""

BRANCH = "series"
_BASE_DATE = "@0 +0000"
_COMMITTER = {
    "GIT_COMMITTER_NAME": "patchseries",
    "GIT_COMMITTER_EMAIL": "patchseries@localhost",
}


def edit(repository: Repository, base: str, destination: Path) -> int:
    """Make the repository at destination and return the number of patch commits.

    destination must not exist, or be an empty folder. Commit ids depend on the wheel and the
    patches only: author and date are the patches', the committer is fixed.

    Raises PatchSeriesError, and leaves destination as it was, when anything fails.
    """
    require_empty(destination)
    loaded = series.load(repository, base)
    pinned = pin.read(loaded.folder)
    package = wheels.read_package(wheels.fetch(pinned, wheels.for_reading(pinned)))
    destination.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        for path, (content, executable) in package.items():
            target = work / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod(0o755 if executable else 0o644)
        _start(work, base, pinned.version)
        files: dict[str, bytes | None] = {path: content for path, (content, _) in package.items()}
        for patch in loaded.patches:
            _refuse_upstreamed(patch, files, base)
            _commit_patch(work, patch, files)
        _count_commits(work, base, len(loaded.patches))
        wheels.give_usual_mode(work)
        work.replace(destination)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return len(loaded.patches)


def renew(repository: Repository, base: str, destination: Path) -> int:
    """Make the repository anew in place of an earlier one; errors and result as in `edit`.

    The earlier one stays until the new one is complete.
    """
    work = destination.with_name(f".{destination.name}.patchseries-new")
    shutil.rmtree(work, ignore_errors=True)
    try:
        count = edit(repository, base, work)
        shutil.rmtree(destination)
        work.replace(destination)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return count


def require_empty(destination: Path) -> None:
    """Raise PatchSeriesError (usage) unless destination is free to be made."""
    taken = destination.is_symlink() or (destination.exists() and not destination.is_dir())
    if taken or (destination.is_dir() and any(destination.iterdir())):
        raise PatchSeriesError(
            "the destination is not empty",
            where=destination,
            expected="a folder that does not exist yet, or is empty",
            command="name another folder",
            code=ExitCode.USAGE,
        )


def _start(work: Path, base: str, version: str) -> None:
    git.run(work, "init", "--quiet", f"--initial-branch={BRANCH}", "--template=")
    # What the user's own git must not change in this repository either.
    for name, value in {"core.autocrlf": "false", "core.safecrlf": "false", "gc.auto": "0"}.items():
        git.run(work, "config", name, value)
    exclude = work / ".git" / "info" / "exclude"
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_text("__pycache__/\n")  # so that trying a patch out does not look like a change
    git.run(work, "add", "--all", "--force")
    author = {
        "GIT_AUTHOR_NAME": _COMMITTER["GIT_COMMITTER_NAME"],
        "GIT_AUTHOR_EMAIL": _COMMITTER["GIT_COMMITTER_EMAIL"],
        "GIT_AUTHOR_DATE": _BASE_DATE,
    }
    _commit(work, f"sglang {version} as released\n", author)
    git.run(work, "update-ref", BASE_REF + base, "HEAD")


def _refuse_upstreamed(patch: series.Patch, files: Mapping[str, bytes | None], base: str) -> None:
    """Raise PatchSeriesError for a patch whose every change is in the sources already.

    `git am -3` makes no commit of such a patch, and exits 0.
    """
    reversed_files = {change.path: files.get(change.path) for change in patch.changes}
    try:
        patch.reverse(reversed_files)
        patch.apply(reversed_files)
    except PatchSeriesError:
        return
    raise PatchSeriesError(
        f"upstreamed: {base} has every change of this patch already",
        where=patch.name,
        expected="a change that the release lacks",
        command=f"take it out of patches/{base}/series, then: python -m patchseries pin",
    )


def _count_commits(work: Path, base: str, expected: int) -> None:
    found = int(git.run(work, "rev-list", "--count", f"{BASE_REF}{base}..HEAD"))
    if found != expected:
        raise PatchSeriesError(
            f"git made {found} commits", where=work, expected=f"{expected}, one per patch"
        )


def _commit_patch(work: Path, patch: series.Patch, files: dict[str, bytes | None]) -> None:
    patch.apply(files)
    paths: list[str] = []
    for change in patch.changes:
        content, target = files[change.path], work / change.path
        paths.append(change.path)
        if content is None:
            target.unlink()
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        if change.mode is not None:
            target.chmod(change.mode)
    git.run(work, "add", "--all", "--force", "--", *paths)
    message = patch.message
    author = {
        "GIT_AUTHOR_NAME": message.author_name,
        "GIT_AUTHOR_EMAIL": message.author_mail,
        "GIT_AUTHOR_DATE": _git_date(message.date, patch.name),
    }
    _commit(work, message.text, author)


def _commit(work: Path, text: str, author: dict[str, str]) -> None:
    extra = {**author, **_COMMITTER, "GIT_COMMITTER_DATE": author["GIT_AUTHOR_DATE"]}
    arguments: Sequence[str] = (
        "commit",
        "--quiet",
        "--no-verify",
        "--cleanup=verbatim",
        "--file=-",
    )
    git.run(work, *arguments, stdin=text.encode(), extra=extra)


def _git_date(date: str, name: str) -> str:
    """A mail date as git's `@seconds zone`, which no locale or format setting can change."""
    parsed = email.utils.parsedate_tz(date)
    if parsed is None:
        raise PatchSeriesError(
            f"not a date: {date!r}", where=name, expected="such as 'Mon, 3 Aug 2026 10:00:00 +0000'"
        )
    minutes = (parsed[9] or 0) // 60
    sign = "-" if minutes < 0 else "+"
    zone = f"{sign}{abs(minutes) // 60:02d}{abs(minutes) % 60:02d}"
    return f"@{email.utils.mktime_tz(parsed)} {zone}"
