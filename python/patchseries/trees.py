"""Patched source trees, built from the pinned wheel with the same code that `apply` uses."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from patchseries import apply, diff, pin, plan, series, status, targets, wheels
from patchseries.edit import require_empty
from patchseries.errors import PatchSeriesError
from patchseries.repository import Repository

_KEPT = 3
"""Cached trees of one prefix that are kept, so that editing a patch does not fill the disk."""


def build(
    base: str, through: str | None, destination: Path, repository: Repository | None = None
) -> Path:
    """Unpack the wheel of a base at destination, apply the series up to `through`, and return it.

    through: a group, a patch, `base` for as released, or None for the whole series.
    destination: must not exist, or be an empty folder; it appears whole or not at all, and holds
    `sglang/`, the rest of the wheel, and (unless as released) the record that `apply` leaves.

    Raises PatchSeriesError for what does not match the pin or does not apply.
    """
    repository = repository or Repository.default()
    require_empty(destination)
    loaded = series.load(repository, base)
    count = loaded.count(through)
    pinned = pin.read(loaded.folder)
    wheel = wheels.fetch(pinned, wheels.for_this_python(pinned))
    destination = destination.absolute()
    destination.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        wheels.unpack(wheel, work)
        if count:
            planned = plan.to_apply(repository, targets.locate(work), base, through)
            apply.execute(planned)
        wheels.give_usual_mode(work)
        work.replace(destination)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return destination


def cached(base: str, through: str | None, repository: Repository | None = None) -> Path:
    """The tree of a prefix under build/trees/, built where it is not there yet.

    It is reused as long as the pinned wheel and the patches of the prefix are the same.

    Raises PatchSeriesError as `build` does, and for a cached tree that somebody has changed.
    """
    repository = repository or Repository.default()
    loaded = series.load(repository, base)
    count = loaded.count(through)
    pinned = pin.read(loaded.folder)
    wheel = wheels.for_this_python(pinned)
    label = loaded.label(count)
    parts = [wheel.sha256, *(patch.sha256 for patch in loaded.patches[:count])]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    folder = repository.build / "trees"
    tree = folder / f"{base}-{label}-{key}"
    if tree.exists():
        _require_intact(repository, tree, base, count)
        os.utime(tree)
        return tree
    try:
        build(base, through, tree, repository)
    except (OSError, PatchSeriesError):
        if not tree.exists():  # else another process was faster
            raise
    _prune(folder, f"{base}-{label}-")
    return tree


def _require_intact(repository: Repository, tree: Path, base: str, count: int) -> None:
    known = status.load(repository, base)
    contents = targets.locate(tree).read(known.pin.files)
    for path, expected in known.ladder.after(count).items():
        found = diff.sha256(contents[path])
        if found != expected:
            raise PatchSeriesError(
                f"the cached tree was changed: {found}",
                where=tree / path.removeprefix("python/"),
                expected=expected,
                command=f"rm -r '{tree}', then again",
            )


def _prune(folder: Path, prefix: str) -> None:
    """Remove the trees of a prefix that were not asked for lately."""
    trees = [
        each
        for each in folder.iterdir()
        if each.name.startswith(prefix) and len(each.name) == len(prefix) + 16
    ]
    trees.sort(key=lambda each: each.stat().st_mtime_ns, reverse=True)
    for stale in trees[_KEPT:]:
        shutil.rmtree(stale, ignore_errors=True)
