"""Write the commits of an `edit` repository back as patches, the same bytes on every machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from patchseries import files, git, message, pin, pinning, series
from patchseries.edit import BASE_REF
from patchseries.errors import ExitCode, PatchSeriesError
from patchseries.repository import PIN_NAME, SERIES_NAME, Repository

DEFAULT_GROUP = "core"

# Every choice that a config or a git version could make otherwise.
_FORMAT = (
    "--keep-subject",
    "--no-numbered",
    "--no-stat",
    "--no-cover-letter",
    "--no-thread",
    "--no-signoff",
    "--no-signature",
    "--no-from",
    "--no-attach",
    "--no-add-header",
    "--no-to",
    "--no-cc",
    "--no-notes",
    "--no-base",
    "--no-encode-email-headers",
    "--zero-commit",
    "--full-index",
    "--no-binary",
    "--no-renames",
    "--no-color",
    "--no-ext-diff",
    "--no-textconv",
    "--no-relative",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--unified=3",
    "--inter-hunk-context=0",
    "--diff-algorithm=myers",
    "--indent-heuristic",
)


@dataclasses.dataclass(frozen=True)
class Exported:
    """Names of the files of patches/<base>/, by what export does (or would do) to them."""

    base: str
    written: tuple[str, ...]
    deleted: tuple[str, ...]
    unchanged: tuple[str, ...]

    @property
    def is_same(self) -> bool:
        return not self.written and not self.deleted


def export(repository: Repository, source: Path, *, check: bool = False) -> Exported:
    """Renew patches/<base>/ from the repository at source: patch files, series, base.toml.

    check: compare only, write nothing.

    Raises PatchSeriesError, having written nothing, for uncommitted changes, a rebase in progress,
    merges, two commits of one name, or a patch that does not apply to the pinned release.
    """
    if not check:
        repository.require_checkout()
    base, first = _find_base(source)
    _require_settled(source, first)
    folder = repository.folder(base)
    patches = _read_commits(source, first)
    entries = series.read_entries(folder / SERIES_NAME)
    names = [patch.name for patch in patches]
    wanted: dict[str, str] = {patch.name: patch.text for patch in patches}
    wanted[SERIES_NAME] = (
        series.read_text(folder / SERIES_NAME)
        if names == [entry.name for entry in entries] and (folder / SERIES_NAME).exists()
        else series.render_entries(names, entries, DEFAULT_GROUP)
    )
    wanted[PIN_NAME] = pinning.renewed(
        pin.read(folder), series.Series(base, folder, tuple(patches))
    )
    current = {
        path.name: path.read_bytes().decode(errors="replace")
        for path in [*folder.glob("*.patch"), folder / SERIES_NAME, folder / PIN_NAME]
        if path.exists()
    }
    written = [name for name, text in wanted.items() if current.get(name) != text]
    deleted = [name for name in current if name not in wanted]
    unchanged = [name for name in wanted if name not in written]
    if not check:
        contents = [files.Write(folder / name, wanted[name].encode()) for name in written]
        contents += [files.Write(folder / name, None) for name in deleted]
        with files.Transaction(contents) as transaction:
            transaction.commit()
    return Exported(base, tuple(written), tuple(sorted(deleted)), tuple(unchanged))


def require_exported(repository: Repository, source: Path) -> None:
    """Raise PatchSeriesError where the repository at source holds what patches/ does not."""
    if not export(repository, source, check=True).is_same:
        raise PatchSeriesError(
            "this repository and the series are not the same",
            where=source,
            expected="every commit exported, and no patch changed since",
            command=f"python -m patchseries export '{source}', or rm -r '{source}'",
        )


def _find_base(source: Path) -> tuple[str, str]:
    """Name of the base, and the commit of the released sources."""
    listed = ""
    if (source / ".git").exists():
        listed = git.run(
            source, "for-each-ref", "--format=%(refname) %(objectname)", BASE_REF
        ).decode()
    if listed.count("\n") != 1:
        raise PatchSeriesError(
            "not a repository that edit made",
            where=source,
            expected=f"one ref under {BASE_REF}",
            command="python -m patchseries edit --base BASE DEST",
            code=ExitCode.USAGE,
        )
    name, commit = listed.split()
    return name.removeprefix(BASE_REF), commit


def _require_settled(source: Path, first: str) -> None:
    """Refuse to export while HEAD is not the whole series."""
    git_folder = Path(git.run(source, "rev-parse", "--absolute-git-dir").decode().strip())
    for unfinished in (
        "rebase-merge",
        "rebase-apply",
        "MERGE_HEAD",
        "CHERRY_PICK_HEAD",
        "REVERT_HEAD",
    ):
        if (git_folder / unfinished).exists():
            raise PatchSeriesError(
                "a rebase, merge or cherry-pick is not finished",
                where=git_folder / unfinished,
                expected="a branch with every patch on it",
                command="git rebase --continue (or --abort), then again",
            )
    changed = (
        git.run(source, "status", "--porcelain", "--untracked-files=all").decode().splitlines()
    )
    if changed:
        raise PatchSeriesError(
            f"{len(changed)} files are not committed, the first: {changed[0]}",
            where=source,
            expected="every change in a commit",
            command="git commit (--amend, --fixup), or git stash, then again",
        )
    try:
        git.run(source, "merge-base", "--is-ancestor", first, "HEAD")
    except PatchSeriesError:
        raise PatchSeriesError(
            "HEAD is not on top of the released sources",
            where=source,
            expected=f"a branch that starts at {first}",
            command="git switch series",
        ) from None
    if merges := git.run(source, "rev-list", "--merges", f"{first}..HEAD").decode().split():
        raise PatchSeriesError(
            "the series holds a merge",
            where=merges[0],
            expected="one commit per patch, one after the other",
            command="git rebase, then again",
        )


def _read_commits(source: Path, first: str) -> list[series.Patch]:
    commits = git.run(source, "rev-list", "--reverse", f"{first}..HEAD").decode().split()
    patches: list[series.Patch] = []
    for commit in commits:
        found = _read_commit(source, commit)
        name = f"{message.slug(found.subject)}.patch"
        if name in {patch.name for patch in patches}:
            raise PatchSeriesError(
                f"two commits would give {name}",
                where=commit,
                expected="subjects that differ in more than signs",
                command="git commit --amend, or git rebase --interactive",
            )
        patches.append(series.Patch(name, "", message.render(found)))
    return patches


def _read_commit(source: Path, commit: str) -> message.Message:
    written = _utf8(git.run(source, "log", "-1", "--format=%B", commit), commit)
    text = _utf8(git.run(source, "format-patch", "-1", "--stdout", *_FORMAT, commit), commit)
    if not text:
        raise PatchSeriesError(
            f"the commit changes nothing (upstreamed?): {written.splitlines()[0]}",
            where=commit,
            expected="one idea per commit, which the release lacks",
            command="git rebase --interactive, and drop it",
        )
    found = message.parse(text, commit)
    if found.text.split() != written.split():
        raise PatchSeriesError(
            f"the commit message does not survive as a patch: {found.subject}",
            where=commit,
            expected="no line in it that is '---' or starts a diff",
            command="git commit --amend, or git rebase --interactive",
        )
    return found


def _utf8(text: bytes, commit: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        raise PatchSeriesError(
            "the commit is not UTF-8 throughout", where=commit, expected="UTF-8 message and files"
        ) from None
