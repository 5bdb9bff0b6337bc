"""Where the sglang of the running python is installed, found without importing it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from patchseries.errors import ExitCode, PatchSeriesError

PACKAGE = "sglang"


def find() -> tuple[Path, str]:
    """The folder that holds the installed sglang/, and a note (or "") on one that hides it here.

    Editable installs are followed to where the files are. The current folder does not count, unless
    it is an entry of the path of its own: `python -m` puts it in front of what is installed.

    Raises PatchSeriesError (usage) when the running python has none.
    """
    here = Path.cwd()
    with _without_current_folder():
        try:
            spec = importlib.util.find_spec(PACKAGE)
        except (ImportError, ValueError):  # one that is half imported has no spec
            spec = None
    if spec is None or spec.origin is None:
        raise PatchSeriesError(
            "no sglang is installed",
            where=sys.executable,
            expected="a python whose environment holds sglang and this tool",
            command="PYTHON -m patchseries ... with the python that runs the server, "
            "or name the folder that holds sglang/ instead of --installed",
            code=ExitCode.USAGE,
        )
    folder = Path(spec.origin).resolve().parent.parent
    local = here / PACKAGE
    if (local / "srt").is_dir() and local.resolve().parent != folder:
        return folder, (
            f"meant is {folder / PACKAGE}; {local} would be imported instead by a python -m "
            "that is started in this folder"
        )
    return folder, ""


@contextlib.contextmanager
def _without_current_folder() -> Iterator[None]:
    """Take away the entry that `python -m` puts first, and no other."""
    before = list(sys.path)
    first = sys.path[0] if sys.path else None
    is_current = first is not None and (
        first == "" or os.path.realpath(first) == os.path.realpath(Path.cwd())
    )
    if is_current and not sys.flags.safe_path:
        del sys.path[0]
    try:
        yield
    finally:
        sys.path[:] = before
