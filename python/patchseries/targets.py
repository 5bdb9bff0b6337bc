"""Where a sglang lies that the series is applied to, and the record of what was applied.

Three layouts are understood: a folder that holds `sglang/` (an unzipped wheel, site-packages, the
`python/` of a checkout), a checkout that holds `python/sglang/`, and the `sglang` folder itself. A
patch speaks of `python/sglang/...` in all of them. git is never run: the folder may lie inside any
other repository.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from patchseries import files
from patchseries.diff import PREFIX
from patchseries.errors import ExitCode, PatchSeriesError

RECORD_FOLDER = ".patchseries"
TESTS = "test/"
RECORD_NAME = "state.json"


@dataclasses.dataclass(frozen=True)
class Target:
    """A sglang on disk.

    named: the path as the user gave it, for messages and commands.
    package: the folder `sglang`.
    record: the state file, there or not.
    """

    named: Path
    package: Path
    record: Path

    def path(self, name: str) -> Path:
        """The file that a patch calls by that name.

        `test/...` lies in the checkout; what is not `python/sglang/...` either, beside sglang/.
        """
        if name.startswith(PREFIX):
            return self.package / name.removeprefix(PREFIX)
        if name.startswith(TESTS):
            return self.package.parent.parent / name
        return self.package.parent / name

    @property
    def tests(self) -> Path | None:
        """The test/ folder of a checkout; None where sglang/ is not in a checkout that has one."""
        folder = self.package.parent.parent / TESTS
        return folder if self.package.parent.name == "python" and folder.is_dir() else None

    def read(self, names: Iterable[str]) -> dict[str, bytes | None]:
        """Content by name; None for a file that is not there.

        Raises PatchSeriesError for what cannot be read.
        """
        found: dict[str, bytes | None] = {}
        for name in names:
            try:
                found[name] = self.path(name).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                found[name] = None
            except OSError as error:
                raise PatchSeriesError(
                    f"cannot read: {error.strerror}",
                    where=self.path(name),
                    expected="a file that this user may read",
                ) from error
        return found

    def leftovers(self, names: Iterable[str]) -> list[Path]:
        """What a command that was stopped left beside these files and the record."""
        found = files.leftovers([*map(self.path, names), self.record])
        folder = self.record.parent
        if folder.is_dir() and not any(folder.iterdir()):
            found.append(folder)
        return found


def locate(path: Path) -> Target:
    """Find the sglang that a path means.

    Raises PatchSeriesError (usage) when there is none.
    """
    if not path.is_dir():
        raise PatchSeriesError(
            "no such folder",
            where=path,
            expected="a folder that holds sglang/, or a git checkout of sglang",
            command=_hint(path.absolute()),
            code=ExitCode.USAGE,
        )
    whole = path.resolve()
    if _is_package(whole / "python" / "sglang"):
        package = whole / "python" / "sglang"
    elif _is_package(whole / "sglang"):
        package = whole / "sglang"
    elif whole.name == "sglang" and _is_package(whole):
        package = whole
    else:
        _refuse_uninstalled(path, whole)
        raise PatchSeriesError(
            "no sglang here",
            where=path,
            expected="sglang/srt/ or python/sglang/srt/ in it",
            command=_hint(whole),
            code=ExitCode.USAGE,
        )
    package = package.resolve()  # sglang/ itself may be a link: the record goes where the files are
    return Target(path, package, _record(package))


def _refuse_uninstalled(path: Path, whole: Path) -> None:
    record = whole / RECORD_FOLDER / RECORD_NAME
    if record.is_file():
        raise PatchSeriesError(
            "sglang is gone from here, and the record of an apply was left behind",
            where=record,
            expected="sglang/ beside it",
            command=f"rm -r '{record.parent}', or install sglang again; named was {path}",
            code=ExitCode.USAGE,
        )


def _is_package(folder: Path) -> bool:
    return (folder / "srt").is_dir()


def _hint(folder: Path) -> str:
    """The path that was probably meant."""
    if _is_package(folder / "sglang" / "python" / "sglang"):
        return f"python -m patchseries status '{folder / 'sglang'}'"
    for above in folder.parents:
        if above.name == "sglang" and _is_package(above):
            return f"python -m patchseries status '{above.parent}'"
    if folder.suffix == ".whl":
        return f"unzip '{folder}' -d sglang-tree, then python -m patchseries status sglang-tree"
    return "python -m patchseries status --installed, for the sglang of this python"


def _record(package: Path) -> Path:
    """The state file: in the git directory of a checkout, not to dirty it, else beside sglang/."""
    checkout = package.parent.parent
    if package.parent.name == "python":
        git_folder = _git_folder(checkout / ".git")
        if git_folder is not None:
            return git_folder / RECORD_FOLDER.lstrip(".") / RECORD_NAME
        if (checkout / "python" / "pyproject.toml").exists():  # the sources without their history
            return checkout / RECORD_FOLDER / RECORD_NAME
    return package.parent / RECORD_FOLDER / RECORD_NAME


def _git_folder(entry: Path) -> Path | None:
    """The git directory that `.git` is, or (in a worktree or a submodule) points to."""
    if entry.is_dir():
        return entry
    if not entry.is_file():
        return None
    text = entry.read_text(encoding="utf-8", errors="surrogateescape").strip()
    if not text.startswith("gitdir:"):
        return None
    folder = (entry.parent / text.removeprefix("gitdir:").strip()).resolve()
    if not folder.is_dir():
        raise PatchSeriesError(
            "the git directory of this checkout is gone",
            where=entry,
            expected=str(folder),
            command="git worktree repair",
        )
    return folder
