"""Compiled copies of modules that change.

Python takes a .pyc for stale by the source's time (whole seconds) and size, and one that was
compiled with `--invalidation-mode unchecked-hash` never. So they go before their source changes:
when a command is killed in between, the next import compiles what is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from patchseries import files


def compiled(module: Path) -> list[Path]:
    """The compiled copies of a module: in __pycache__, and a sourceless one beside it."""
    if module.suffix != ".py":
        return []
    found = sorted((module.parent / "__pycache__").glob(f"{module.stem}.*.pyc"))
    beside = module.with_suffix(".pyc")
    return [*found, beside] if beside.exists() else found


def remove(modules: Iterable[Path]) -> None:
    """Remove the compiled copies of modules, for good before this returns.

    Raises OSError where one cannot be removed.
    """
    stale = [each for module in modules for each in compiled(module)]
    for each in stale:
        each.unlink(missing_ok=True)
    for folder in sorted({each.parent for each in stale}):
        files.sync_folder(folder)


def sweep(modules: Iterable[Path]) -> None:
    """Remove what an import in another process may have compiled meanwhile, as far as possible."""
    with contextlib.suppress(OSError):
        remove(modules)
