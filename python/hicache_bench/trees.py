"""The sglang source trees that a run compares: named, found, told apart and fingerprinted."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hicache_bench import peers
from hicache_bench.errors import BenchError, UsageError
from patchseries import trees as patched
from patchseries.errors import PatchSeriesError
from patchseries.repository import Repository

Group = Literal["released", "core", "extended", "peer"]
"""What a tree has, and so what it must show: nothing of the series, its first group, both groups;
"peer" is a later release as it is, which is measured and not judged."""

# The function that decides about a backup after an insert. Design section 4 fixes its name for our
# patches and upstream's alike, so it tells a tree with component-only incremental backup from one
# without.
_MARKER = "def _should_backup_after_insert("
_CORE_VARIABLE = "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"
_MARKED_FILE = Path("sglang/srt/mem_cache/unified_cache/unified_tree_core.py")
# The off switch of group `extended`, by which such a tree is told from one with `core` alone.
_SWITCH = "SGLANG_HICACHE_INCREMENTAL_BACKUP"
_SWITCH_FILE = Path("sglang/srt/environ.py")
_VERSION_FILE = Path("sglang/_version.py")


@dataclass(frozen=True)
class TreeSpec:
    """What the user asked for: a base and how far to patch it, or a folder of the user's own."""

    name: str
    base: str | None = None
    through: str | None = None
    path: Path | None = None
    core: str | None = None


@dataclass(frozen=True)
class Tree:
    """A folder that holds `sglang/`.

    sha256: one digest over every file of `sglang/`, names and bytes, compiled Python left out.
    incremental: whether it has component-only incremental backup. environ: what its server runs
    with, name and value. extended: whether it has group `extended` of the series. peer: whether it
    is of a release that the series is not for.
    """

    name: str
    path: Path
    sha256: str
    incremental: bool
    environ: tuple[tuple[str, str], ...] = ()
    extended: bool = False
    peer: bool = False

    @property
    def group(self) -> Group:
        """The group of the series that it has, or "peer"."""
        if self.peer:
            return "peer"
        if self.extended:
            return "extended"
        return "core" if self.incremental else "released"


def parse(text: str) -> TreeSpec:
    """Read `BASE:THROUGH` (v0.5.17:base, v0.5.17:core, v0.5.17:PATCH) or `NAME=FOLDER`.

    `@rust` or `@python` behind it asks for that tree core; from 0.5.21 on there are both. Raises
    UsageError.
    """
    whole, text = text, re.sub(r"@(rust|python)$", "", text)
    core = whole.removeprefix(text).removeprefix("@") or None
    name, equals, folder = text.partition("=")
    if equals:
        if not re.fullmatch(r"[\w.+-]+", name):
            raise UsageError(
                f"--trees {text}: the name {name!r} is empty or not of letters, digits and ._+-; "
                "expected NAME=FOLDER; type: --trees mine=/path/that/holds/sglang"
            )
        path = Path(folder).expanduser().resolve()
        if not folder or not path.is_dir():
            raise UsageError(
                f"--trees {text}: no such folder; expected one that holds sglang/; "
                "type: --trees mine=/path/that/holds/sglang"
            )
        return TreeSpec(f"{name}, {core} core" if core else name, path=path, core=core)
    base, colon, through = text.partition(":")
    if not (re.fullmatch(r"v\d[\w.]*", base) and colon and re.fullmatch(r"[\w.+-]+", through)):
        raise UsageError(
            f"--trees {text}: expected BASE:THROUGH, as v0.5.17:base (as released) or "
            "v0.5.17:core, or NAME=FOLDER; type: --trees v0.5.17:core"
        )
    label = f"{base} as released" if through == "base" else f"{base} + {through}"
    return TreeSpec(f"{label}, {core} core" if core else label, base, through, core=core)


def parse_all(texts: Sequence[str]) -> list[TreeSpec]:
    """Read every --trees value; two of the same name are refused, since rows go by name."""
    specs = [parse(text) for text in texts]
    for index, spec in enumerate(specs):
        if spec.name in [earlier.name for earlier in specs[:index]]:
            raise UsageError(
                f"--trees: two trees are called {spec.name!r}; expected names that differ"
            )
    return specs


def resolve(spec: TreeSpec) -> Tree:
    """Build or find the tree and look at it. Raises BenchError when it cannot be had."""
    path = spec.path
    if path is None:
        assert spec.base is not None and spec.through is not None
        path = _build(spec.base, spec.through)
    if not (path / "sglang" / "launch_server.py").is_file():
        raise BenchError(
            f"{path}: no sglang/launch_server.py; expected a folder that holds sglang/, such as an "
            "unzipped wheel; type: python -m patchseries tree --base v0.5.17 /tmp/sglang-tree"
        )
    return Tree(
        spec.name,
        path,
        digest(path / "sglang"),
        has_incremental_backup(path),
        environ=((_CORE_VARIABLE, spec.core),) if spec.core else (),
        extended=has_extended(path),
        peer=is_peer(path),
    )


def _build(base: str, through: str) -> Path:
    try:
        repository = Repository.default()
        released = peers.pins(repository)
        if through == "base" and base in released and base not in repository.bases():
            return peers.cached(released[base], repository)
        return patched.cached(base, through)
    except PatchSeriesError as error:
        raise BenchError(f"the tree {base}:{through} could not be built: {error}") from error


def has_incremental_backup(path: Path) -> bool:
    """Whether the tree's own source has component-only incremental backup after an insert."""
    return _MARKER in _text(path / _MARKED_FILE)


def has_extended(path: Path) -> bool:
    """Whether the tree's own source has group `extended`: it knows the switch that turns it off."""
    return _says(path / _SWITCH_FILE, rf"^\s+{_SWITCH} = ")


def is_peer(path: Path) -> bool:
    """Whether the tree says that it is of a release that has no series here.

    A tree that does not say what it is, such as a git checkout, is judged by what it has.
    """
    file = path / _VERSION_FILE
    said = re.search(r"^__version__ = .*'([\d.]+)", _text(file), re.MULTILINE)
    return said is not None and f"v{said[1]}" not in Repository.default().bases()


def _says(file: Path, pattern: str) -> bool:
    return re.search(pattern, _text(file), re.MULTILINE) is not None


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def digest(folder: Path) -> str:
    """SHA-256 over the sorted relative names and SHA-256s of a folder's files."""
    total = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        relative = file.relative_to(folder)
        if "__pycache__" not in relative.parts and file.is_file():
            total.update(
                f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {relative.as_posix()}\n".encode()
            )
    return total.hexdigest()
