"""Build a wheel of the patched release, with a local version that says so.

0.5.17+hicache.1 satisfies `sglang==0.5.17`: a public version in a specifier ignores the local part
(https://packaging.python.org/en/latest/specifications/version-specifiers/#version-matching).
"""

from __future__ import annotations

import dataclasses
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from patchseries import archive, files, pin, pip_record, series, status, wheels
from patchseries.errors import PatchSeriesError
from patchseries.notes import LOCAL
from patchseries.repository import Repository

ANNOUNCER = "sglang/_hicache_patches.py"
_ENTRY_POINT = "\n[sglang.srt.plugins]\nhicache_patches = sglang._hicache_patches:announce\n"
_ANNOUNCER = '''\
"""Says once, when a server starts, what this build of sglang is."""

import logging
import multiprocessing

WHAT = {what!r}


def announce() -> None:
    """Called by sglang in each of its processes, as a plugin; only the first one speaks."""
    if multiprocessing.parent_process() is None:
        # sglang sets its loggers up later than this; a warning is shown all the same.
        logging.getLogger("sglang").warning(WHAT)
'''


@dataclasses.dataclass(frozen=True)
class Built:
    """A wheel that was built. released_size, size: bytes of upstream's wheel and of this one."""

    path: Path
    version: str
    released_size: int
    size: int


def version_of(pinned: pin.Pin, loaded: series.Series, count: int) -> str:
    """The local version of a prefix of the series.

    `hicache.N`, N being `revision` in base.toml: whoever publishes wheels of a changed series
    raises it. A prefix has the number of its patches behind that: no two prefixes share a version.
    """
    part = "" if count == len(loaded.patches) else f".{count}"
    return f"{pinned.version}{LOCAL}{pinned.revision}{part}"


def build(
    repository: Repository, base: str, through: str | None, out: Path, pinned_wheel: pin.Wheel
) -> Built:
    """Build the wheel of a prefix from a pinned one, into the folder `out`; whole or not at all.

    Raises PatchSeriesError for a prefix of no patch, and for what does not apply.
    """
    known = status.load(repository, base)
    count = known.series.count(through)
    if count == 0:
        raise PatchSeriesError(
            "no patch, no wheel",
            where=f"--through {through}",
            expected="a prefix with at least one patch",
            command=f"pip download --no-deps {known.pin.distribution}=={known.pin.version}",
        )
    version = version_of(known.pin, known.series, count)
    source = wheels.fetch(known.pin, pinned_wheel)
    old = f"{known.pin.distribution}-{known.pin.version}"
    if not source.name.startswith(f"{old}-"):
        raise PatchSeriesError("not the wheel of this release", where=source, expected=f"{old}-*")
    path = out / source.name.replace(old, f"{known.pin.distribution}-{version}", 1)
    out.mkdir(parents=True, exist_ok=True)
    changed = _changed(known, count, source, version)
    work = files.beside(path, files.NEW_SUFFIX)
    try:
        archive.write(work, _members(source, changed, old, version))
        work.replace(path)
    finally:
        work.unlink(missing_ok=True)
    return Built(path, version, source.stat().st_size, path.stat().st_size)


def _changed(
    known: status.Known, count: int, source: Path, version: str
) -> dict[str, bytes | None]:
    """What is other than in the released wheel, by name there; None for what is gone."""
    patches = known.series.patches[:count]
    released = wheels.read(source, known.pin.files)
    patched = pin.apply_checked(known.pin, patches, released)
    changed = {
        path.removeprefix(wheels.ABOVE_PACKAGE): content
        for path, content in patched.items()
        if content != released[path]
    }
    info = f"{known.pin.distribution}-{known.pin.version}.dist-info"
    with zipfile.ZipFile(source) as whole:
        names = set(whole.namelist())
        metadata = whole.read(f"{info}/METADATA").decode()
        points = f"{info}/entry_points.txt"
        entry_points = whole.read(points).decode() if points in names else ""
        for name in ("sglang/_version.py", "sglang/version.py"):
            if name in names:
                text = whole.read(name).decode()
                changed[name] = _with_version(text, known.pin.version, version).encode()
                break
    changed[f"{info}/METADATA"] = re.sub(
        r"(?m)^Version: .*$", f"Version: {version}", metadata, count=1
    ).encode()
    what = f"sglang {version}: {known.pin.version} with {count} patches for HiCache, "
    what += f"through {known.series.label(count)}"
    changed[ANNOUNCER] = _ANNOUNCER.format(what=what).encode()
    changed[points] = (entry_points + _ENTRY_POINT).lstrip("\n").encode()
    return changed


def _with_version(text: str, old: str, new: str) -> str:
    """The version module with the local version, as a string and as a tuple."""
    numbers = ", ".join(old.split("."))
    local = new.partition("+")[2]
    text = re.sub(rf"(?<=['\"]){re.escape(old)}(?=['\"])", new, text)
    return text.replace(f"({numbers})", f"({numbers}, {local!r})")


def _members(
    source: Path, changed: dict[str, bytes | None], old: str, version: str
) -> Iterator[archive.Member]:
    """Every member, sorted, RECORD last; the .dist-info folder named after the version."""
    old_info = f"{old}.dist-info/"
    new_info = f"{old.partition('-')[0]}-{version}.dist-info/"
    rows = []
    record = f"{old_info}RECORD"
    with zipfile.ZipFile(source) as whole, source.open("rb") as raw:
        infos = {info.filename: info for info in whole.infolist() if not info.is_dir()}
        for name in sorted({*infos, *changed} - {record}):
            renamed = name.replace(old_info, new_info, 1) if name.startswith(old_info) else name
            if name in changed:
                content = changed[name]
                if content is None:
                    continue
                executable = name in infos and bool((infos[name].external_attr >> 16) & 0o111)
                member = archive.stored(renamed, content, is_executable=executable)
            else:
                content = whole.read(name)
                member = dataclasses.replace(archive.taken_over(raw, infos[name]), name=renamed)
            rows.append(pip_record.row(renamed, content))
            yield member
    rows.append(f"{new_info}RECORD,,")
    yield archive.stored(f"{new_info}RECORD", "\n".join([*rows, ""]).encode())
