"""The released wheel: cached or downloaded, checked against the pin, read or unpacked."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from patchseries.diff import PREFIX
from patchseries.errors import PatchSeriesError
from patchseries.pin import Pin, Wheel
from patchseries.repository import cache_folder

_NAME = re.compile(
    r"[^-]+-(?P<version>[^-]+)-(?P<python>cp\d+|py3)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl$"
)
_STDERR = 2  # the descriptor: pip draws its progress bar where that is a terminal
ABOVE_PACKAGE = "python/"
"""What a path of the git repository has in front of a path in the wheel."""


def for_this_python(pin: Pin) -> Wheel:
    """The pinned wheel for the running python and machine.

    Raises PatchSeriesError that lists the pinned ones when none fits.
    """
    major, minor = sys.version_info[:2]
    tag = f"cp{major}{minor}"
    machine = platform.machine()
    for wheel in pin.wheels:
        matched = _NAME.match(wheel.file)
        if matched and (matched["python"] in (tag, "py3")):
            on = matched["platform"]
            if on == "any" or (sys.platform == "linux" and on.endswith("_" + machine)):
                return wheel
    raise PatchSeriesError(
        f"no pinned wheel is for {tag} on {sys.platform} {machine}",
        where=f"patches/{pin.base}/base.toml",
        expected="one of " + ", ".join(wheel.file for wheel in pin.wheels),
        command="run this with a python that one of them is for",
    )


def for_reading(pin: Pin) -> Wheel:
    """A wheel to read Python sources from: the fitting one, else the first; they hold the same."""
    try:
        return for_this_python(pin)
    except PatchSeriesError:
        if not pin.wheels:
            raise
        return pin.wheels[0]


def fetch(pin: Pin, wheel: Wheel) -> Path:
    """The wheel's file in the cache, downloaded with pip where it is not there yet.

    Raises PatchSeriesError when pip fails, or when the SHA-256 is not the pinned one.
    """
    folder = cache_folder() / "wheels"
    path = folder / wheel.file
    if path.exists():
        _check(path, wheel, f"rm '{path}', then again")
        return path
    folder.mkdir(parents=True, exist_ok=True)
    print(f"downloading {wheel.file} from the package index", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as work:
        command = _pip_command(pin, wheel, work)
        done = subprocess.run(command, stdout=_STDERR, check=False)
        downloaded = Path(work) / wheel.file
        if done.returncode != 0 or not downloaded.exists():
            raise PatchSeriesError(
                f"pip could not download {wheel.file} (exit {done.returncode})",
                where=" ".join(command),
                expected="a python with pip, and a package index that can be reached",
                command=f"put the wheel into {folder} by hand, then again",
            )
        _check(downloaded, wheel, "check the package index that pip is set to: pip config list")
        downloaded.replace(path)
    return path


def _pip_command(pin: Pin, wheel: Wheel, destination: str) -> list[str]:
    matched = _NAME.match(wheel.file)
    if matched is None:
        raise PatchSeriesError("not the name of a wheel", where=wheel.file)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--dest", destination]
    if matched["python"] != "py3":
        command += ["--implementation", "cp", "--abi", matched["abi"]]
        command += ["--python-version", matched["python"].removeprefix("cp")]
        for each in matched["platform"].split("."):
            command += ["--platform", each]
    return [*command, f"{pin.distribution}=={pin.version}"]


def _check(path: Path, wheel: Wheel, command: str) -> None:
    found = hash_file(path)
    if found != wheel.sha256:
        raise PatchSeriesError(
            f"the wheel has another SHA-256 than the pin says: {found}",
            where=path,
            expected=wheel.sha256,
            command=command,
        )


def hash_file(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(path: Path, wanted: Iterable[str]) -> dict[str, bytes | None]:
    """Files of a wheel in memory: path in the git repository to content, None where it has none."""
    files: dict[str, bytes | None] = {}
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        for name in wanted:
            inside = name.removeprefix(ABOVE_PACKAGE)
            files[name] = archive.read(inside) if inside in names else None
    return files


def read_package(path: Path) -> dict[str, tuple[bytes, bool]]:
    """The whole `sglang/` of a wheel: path in the git repository to content and executable bit."""
    files: dict[str, tuple[bytes, bool]] = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            name = ABOVE_PACKAGE + info.filename
            if not info.is_dir() and name.startswith(PREFIX):
                files[name] = (archive.read(info), _is_executable(info))
    return files


def unpack(path: Path, destination: Path) -> None:
    """Unpack a wheel into an existing folder, executable bits as in the wheel.

    Raises PatchSeriesError for a member that would land outside, a link, or a repeated name.
    """
    with zipfile.ZipFile(path) as archive:
        seen: set[str] = set()
        for info in archive.infolist():
            parts = PurePosixPath(info.filename).parts
            kind = stat.S_IFMT(info.external_attr >> 16)
            unsafe = info.filename.startswith("/") or "\\" in info.filename or ".." in parts
            if unsafe or kind not in (0, stat.S_IFREG, stat.S_IFDIR) or info.filename in seen:
                raise PatchSeriesError(
                    f"will not unpack {info.filename!r}",
                    where=path,
                    expected="plain files and folders, each once, that stay inside the wheel",
                )
            seen.add(info.filename)
            target = destination.joinpath(*parts)
            if info.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as source, target.open("xb") as sink:
                shutil.copyfileobj(source, sink)
            if _is_executable(info):
                target.chmod(target.stat().st_mode | (0o111 & ~_umask()))


def give_usual_mode(folder: Path) -> None:
    """Give a folder that mkdtemp made for this user alone the permission bits that mkdir gives."""
    folder.chmod(0o777 & ~_umask())


def _is_executable(info: zipfile.ZipInfo) -> bool:
    return bool((info.external_attr >> 16) & 0o111)


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current
