"""Run git so that nothing of the user's surroundings reaches it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from patchseries.errors import PatchSeriesError

# What a repository's own config, or a git default that depends on the machine, could change.
_CONFIG = {
    "core.attributesFile": os.devnull,
    "core.autocrlf": "false",
    "core.eol": "lf",
    "core.excludesFile": os.devnull,
    "core.hooksPath": os.devnull,
    "core.quotePath": "false",
    "core.safecrlf": "false",
    "commit.gpgSign": "false",
    "diff.algorithm": "myers",
    "diff.context": "3",
    "diff.indentHeuristic": "true",
    "diff.interHunkContext": "0",
    "diff.noprefix": "false",
    "diff.mnemonicPrefix": "false",
    "diff.orderFile": os.devnull,
    "diff.relative": "false",
    "diff.renames": "false",
    "diff.suppressBlankEmpty": "false",
    "i18n.commitEncoding": "UTF-8",
    "i18n.logOutputEncoding": "UTF-8",
    "gc.auto": "0",
}


def environment(folder: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for git in a folder: no config but the repository's, no search above it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {
        **kept,
        # git before 2.32 knows no GIT_CONFIG_GLOBAL, and looks into the home folder all the same.
        "HOME": os.devnull,
        "XDG_CONFIG_HOME": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "LC_ALL": "C",
        "TZ": "UTC",
        **(extra or {}),
    }


def run(
    folder: Path,
    *arguments: str,
    stdin: bytes | None = None,
    extra: Mapping[str, str] | None = None,
) -> bytes:
    """Standard output of `git ...` in folder.

    Raises PatchSeriesError with git's own message when it fails, or when there is no git.
    """
    settings = [word for name, value in _CONFIG.items() for word in ("-c", f"{name}={value}")]
    try:
        done = subprocess.run(
            ["git", *settings, *arguments],
            cwd=folder,
            env=environment(folder, extra),
            input=b"" if stdin is None else stdin,
            capture_output=True,
            check=False,
        )
    except FileNotFoundError:
        raise PatchSeriesError(
            "git is not installed",
            where="PATH",
            expected="git 2.30 or newer; only edit and export need it",
            command="install git with your system's package manager",
        ) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["(nothing)"]
        raise PatchSeriesError(f"git {arguments[0]} failed: {said[-1]}", where=folder)
    return done.stdout
