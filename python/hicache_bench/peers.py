"""Releases that are measured as they are: no patches of ours, only a wheel and its SHA-256.

`patches/peers.toml` pins them:

    [[peers]]
    base = "v0.5.23"

    [[peers.wheels]]
    file = "sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64.whl"
    sha256 = "..."
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import tomllib
from pathlib import Path

from hicache_bench.errors import BenchError
from patchseries import wheels
from patchseries.pin import Pin, Wheel
from patchseries.repository import Repository

FILE = "peers.toml"


def pins(repository: Repository) -> dict[str, Pin]:
    """The peers by base name. Raises BenchError where the file cannot be used."""
    path = repository.patches / FILE
    if not path.is_file():
        return {}
    try:
        found = {}
        for peer in tomllib.loads(path.read_text(encoding="utf-8"))["peers"]:
            base = str(peer["base"])
            found[base] = Pin(
                base=base,
                tag=base,
                commit=None,
                distribution="sglang",
                version=base.removeprefix("v"),
                wheels=tuple(Wheel(each["file"], each["sha256"]) for each in peer["wheels"]),
                files={},
                patches=(),
            )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BenchError(
            f"{path}: cannot be used ({error}); expected [[peers]] with base and "
            "[[peers.wheels]] with file and sha256; type: git checkout patches/peers.toml"
        ) from error
    return found


def cached(pin: Pin, repository: Repository) -> Path:
    """The unpacked wheel under build/trees/, made where it is not there yet.

    Raises PatchSeriesError where the wheel cannot be had or is not the pinned one.
    """
    wheel = wheels.for_this_python(pin)
    key = hashlib.sha256(wheel.sha256.encode()).hexdigest()[:16]
    folder = repository.build / "trees"
    tree = folder / f"{pin.base}-peer-{key}"
    if tree.is_dir():
        return tree
    archive = wheels.fetch(pin, wheel)
    folder.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{tree.name}-", dir=folder))
    try:
        wheels.unpack(archive, work)
        wheels.give_usual_mode(work)
        work.replace(tree)
    except OSError:
        if not tree.is_dir():  # else another process was faster
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return tree
