"""Build this project's own wheel and sdist, the same to the byte wherever and whenever it is done.

    python -m patchseries.dist --out dist

setuptools does the work, on a copy of what belongs in; the archives are then written again with
sorted names and fixed times, owners and permission bits.
"""

from __future__ import annotations

import argparse
import gzip
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from patchseries import archive
from patchseries.errors import ExitCode, PatchSeriesError
from patchseries.repository import Repository

_BELONGING = (
    "pyproject.toml",
    "setup.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "NOTICE",
    "python",
    "patches",
    "test/registered",
)
_IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc", ".*")
_BACKEND = """
import sys
from setuptools import build_meta
out = sys.argv[1]  # setuptools sets its own sys.argv
build_meta.build_sdist(out)
build_meta.build_wheel(out)
"""


def build(repository: Repository, out: Path) -> list[Path]:
    """Build both into the folder `out`, and return their paths.

    Raises PatchSeriesError when setuptools cannot, or when there is no checkout.
    """
    repository.require_checkout()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="patchseries-dist-") as folder:
        source, raw = Path(folder) / "source", Path(folder) / "raw"
        raw.mkdir()
        for name in _BELONGING:
            _copy(repository.root / name, source / name)
        done = subprocess.run(
            [sys.executable, "-c", _BACKEND, str(raw)],
            cwd=source,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = done.stderr.strip().splitlines() or ["(nothing)"]
            raise PatchSeriesError(
                f"setuptools could not build: {said[-1]}",
                where=repository.root,
                expected="a python with setuptools 77 or newer",
                command="make setup, then: make dist",
            )
        made = []
        for path in sorted(raw.iterdir()):
            fixed = Path(folder) / path.name
            if path.suffix == ".whl":
                _fix_wheel(path, fixed)
            else:
                _fix_sdist(path, fixed)
            staged = out / f".{path.name}.patchseries-new"
            shutil.copyfile(fixed, staged)
            made.append(staged.replace(out / path.name))
    return made


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=_IGNORED)
    else:
        shutil.copyfile(source, target)


def _fix_wheel(source: Path, target: Path) -> None:
    with zipfile.ZipFile(source) as whole:
        infos = [info for info in whole.infolist() if not info.is_dir()]
        infos.sort(key=lambda info: (info.filename.endswith("/RECORD"), info.filename))
        contents = {info.filename: whole.read(info) for info in infos}
    record = next(name for name in contents if name.endswith(".dist-info/RECORD"))
    contents[record] = "".join(sorted(contents[record].decode().splitlines(keepends=True))).encode()
    archive.write(target, (archive.stored(name, each) for name, each in contents.items()))


def _fix_sdist(source: Path, target: Path) -> None:
    with (
        tarfile.open(source) as whole,
        target.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as fixed,
    ):
        for member in sorted(whole.getmembers(), key=lambda each: each.name):
            if not member.isfile():
                continue
            content = whole.extractfile(member)
            assert content is not None
            info = tarfile.TarInfo(member.name)
            info.size, info.mode = member.size, 0o644
            fixed.addfile(info, io.BytesIO(content.read()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `make dist`."""
    parser = argparse.ArgumentParser(
        prog="python -m patchseries.dist",
        description="Build this project's wheel and sdist, the same to the byte always.",
        epilog="example: python -m patchseries.dist --out dist",
    )
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder (default: dist)")
    options = parser.parse_args(arguments)
    try:
        for path in build(Repository.default(), options.out):
            print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")
    except PatchSeriesError as error:
        print(f"patchseries: {error}", file=sys.stderr)
        return int(error.code)
    return int(ExitCode.DONE)


if __name__ == "__main__":
    sys.exit(main())
