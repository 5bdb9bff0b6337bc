"""Make and renew base.toml from the released wheels and the patch files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from patchseries import diff, files, pin, series, wheels
from patchseries.errors import ExitCode, PatchSeriesError
from patchseries.repository import PIN_NAME, Repository

DISTRIBUTION = "sglang"


def renew(
    repository: Repository, base: str, *, wheel_folder: Path | None = None, check: bool = False
) -> bool:
    """Bring patches/<base>/base.toml up to date; return whether it differed.

    wheel_folder: pin the wheels found under it, in place of those pinned so far; makes a new base.
    check: compare only, write nothing.

    Raises PatchSeriesError, having written nothing, where a patch does not apply or two wheels
    disagree on a source file.
    """
    if not check:
        repository.require_checkout()
    if wheel_folder is None:
        loaded = series.load(repository, base)
        pinned = pin.read(loaded.folder)
        text = renewed(pinned, loaded)
    else:
        folder = repository.patches / base
        found = _wheels_of(base, wheel_folder)
        pinned = _with_wheels(folder, base, found)
        folder_exists = folder.is_dir()
        loaded = series.load(repository, base) if folder_exists else series.Series(base, folder, ())
        text = renewed(pinned, loaded, found[0])
    path = loaded.folder / PIN_NAME
    differs = not path.exists() or series.read_text(path) != text
    if differs and not check:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.replace_durably(path, text.encode())
    return differs


def renewed(pinned: pin.Pin, loaded: series.Series, wheel: Path | None = None) -> str:
    """The text of base.toml with the hashes that this series gives on the pinned release.

    wheel: read the released files from this one; else a pinned one is fetched.

    Raises PatchSeriesError where a patch does not apply.
    """
    wheel = wheel or wheels.fetch(pinned, wheels.for_reading(pinned))
    released = wheels.read(wheel, loaded.paths)
    hashes, results = pin.compute(loaded, released)
    return pin.render(dataclasses.replace(pinned, files=hashes, patches=results))


def _wheels_of(base: str, folder: Path) -> list[Path]:
    version = base.removeprefix("v")
    found = sorted(folder.rglob(f"{DISTRIBUTION}-{version}-*.whl"), key=lambda each: each.name)
    if not found:
        raise PatchSeriesError(
            "no wheel of this release",
            where=folder,
            expected=f"{DISTRIBUTION}-{version}-*.whl",
            command=f"pip download --no-deps --dest '{folder}' {DISTRIBUTION}=={version}",
            code=ExitCode.USAGE,
        )
    return found


def _with_wheels(folder: Path, base: str, found: list[Path]) -> pin.Pin:
    first = _sources(found[0])
    for other in found[1:]:
        differing = first ^ _sources(other)
        if differing:
            raise PatchSeriesError(
                f"two wheels of one release differ in {min(differing)[0]}",
                where=other,
                expected=f"the Python sources of {found[0].name}: one set of hashes stands for all",
            )
    pinned = tuple(pin.Wheel(each.name, wheels.hash_file(each)) for each in found)
    if (folder / PIN_NAME).exists():
        return dataclasses.replace(pin.read(folder), wheels=pinned)
    return pin.Pin(base, base, None, DISTRIBUTION, base.removeprefix("v"), pinned, {}, ())


def _sources(path: Path) -> set[tuple[str, str]]:
    return {
        (name, diff.sha256(content))
        for name, (content, _) in wheels.read_package(path).items()
        if name.endswith(".py")
    }
