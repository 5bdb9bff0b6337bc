"""The pin of a base (base.toml): which release, and what every touched file must hash to.

A pin is more than a tag: the released wheels by SHA-256, every file that the series touches as
released, and every file as each patch leaves it. Hashes are hex SHA-256, or `absent`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from patchseries import diff
from patchseries.errors import PatchSeriesError
from patchseries.repository import PIN_NAME
from patchseries.series import Patch, Series, read_text

_COMMIT_NOTE = (
    '# commit = "<40 hex>": the peeled commit of the tag (git rev-parse {tag}^{{commit}}). '
    "Not filled in: the\n"
    "# package index, which this pin was made from, does not tell it; the hashes below stand "
    "for it.\n"
)


@dataclasses.dataclass(frozen=True)
class Wheel:
    """A released wheel: file name and hex SHA-256."""

    file: str
    sha256: str


@dataclasses.dataclass(frozen=True)
class PatchResult:
    """What one patch leaves behind.

    files: path to hash, of the files that the patch touches.
    tree: one hash over all files that the series touches, as they are after this patch.
    """

    name: str
    files: Mapping[str, str]
    tree: str


@dataclasses.dataclass(frozen=True)
class Pin:
    """Everything in base.toml.

    files: path to hash as released. revision: N in the local version of wheels, 0.5.17+hicache.N;
    raised by hand when a changed series is published.
    """

    base: str
    tag: str
    commit: str | None
    distribution: str
    version: str
    wheels: tuple[Wheel, ...]
    files: Mapping[str, str]
    patches: tuple[PatchResult, ...]
    revision: int = 1


def tree_digest(hashes: Mapping[str, str]) -> str:
    """Hex SHA-256 over lines `hash, two blanks, path`, sorted by path, as sha256sum prints them."""
    lines = "".join(f"{hashes[path]}  {path}\n" for path in sorted(hashes))
    return hashlib.sha256(lines.encode()).hexdigest()


def read(folder: Path) -> Pin:
    """Read the base.toml in folder.

    Raises PatchSeriesError when it is missing, not TOML, or lacks something.
    """
    path = folder / PIN_NAME
    renew = f"python -m patchseries pin --base {folder.name}"
    if not path.exists():
        raise PatchSeriesError(
            "the base is not pinned",
            where=path,
            expected="a base.toml",
            command=f"{renew} --wheels FOLDER",
        )
    try:
        data = tomllib.loads(read_text(path))
        return _from_data(data)
    except tomllib.TOMLDecodeError as error:
        raise PatchSeriesError(
            f"not TOML: {error}", where=path, expected="TOML as pin writes it", command=renew
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PatchSeriesError(
            f"missing or of the wrong type: {error}",
            where=path,
            expected="base, tag, distribution, version, [[wheels]], [files], [[patches]]",
            command=renew,
        ) from None


def _from_data(data: dict[str, Any]) -> Pin:
    return Pin(
        base=str(data["base"]),
        tag=str(data["tag"]),
        commit=data.get("commit"),
        distribution=str(data["distribution"]),
        version=str(data["version"]),
        wheels=tuple(Wheel(str(each["file"]), str(each["sha256"])) for each in data["wheels"]),
        files={path: str(value) for path, value in data.get("files", {}).items()},
        patches=tuple(
            PatchResult(str(each["name"]), dict(each["files"]), str(each["tree"]))
            for each in data.get("patches", [])
        ),
        revision=int(data.get("revision", 1)),
    )


def render(pin: Pin) -> str:
    """The text of base.toml; the same pin gives the same bytes."""
    lines = [
        f"# Hashes renewed by: python -m patchseries pin --base {pin.base}",
        f"base = {_quoted(pin.base)}",
        f"tag = {_quoted(pin.tag)}",
    ]
    if pin.commit:
        lines.append(f"commit = {_quoted(pin.commit)}")
    else:
        lines += _COMMIT_NOTE.format(tag=pin.tag).splitlines()
    lines += [
        f"distribution = {_quoted(pin.distribution)}",
        f"version = {_quoted(pin.version)}",
        f"revision = {pin.revision}  # raise it when wheels of a changed series are published",
    ]
    for wheel in pin.wheels:
        lines += ["", "[[wheels]]", f"file = {_quoted(wheel.file)}"]
        lines += [f"sha256 = {_quoted(wheel.sha256)}"]
    lines += ["", "# Every file that the series touches, as released.", "[files]"]
    lines += _table(pin.files)
    for result in pin.patches:
        lines += ["", "[[patches]]", f"name = {_quoted(result.name)}"]
        lines += [f"tree = {_quoted(result.tree)}", "", "[patches.files]", *_table(result.files)]
    return "\n".join(lines) + "\n"


def _table(hashes: Mapping[str, str]) -> Iterable[str]:
    return [f"{_quoted(path)} = {_quoted(hashes[path])}" for path in sorted(hashes)]


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def compute(
    series: Series, released: Mapping[str, bytes | None]
) -> tuple[dict[str, str], tuple[PatchResult, ...]]:
    """The hashes of a pin: of the touched files as released, and after each patch.

    released: path to content of at least the files that the series touches.

    Raises PatchSeriesError where a patch does not apply.
    """
    files = {path: released[path] for path in series.paths}
    hashes = {path: diff.sha256(content) for path, content in files.items()}
    results: list[PatchResult] = []
    current = dict(hashes)
    for patch in series.patches:
        patch.apply(files)
        touched = {change.path: diff.sha256(files[change.path]) for change in patch.changes}
        current.update(touched)
        results.append(PatchResult(patch.name, touched, tree_digest(current)))
    return hashes, tuple(results)


def apply_checked(
    pin: Pin, patches: Iterable[Patch], files: Mapping[str, bytes | None], start: int = 0
) -> dict[str, bytes | None]:
    """Apply patches in memory and hold every result against the pin.

    patches: a run of the series that starts after the first `start` patches.
    files: path to content as the pin says after `start` patches.

    Raises PatchSeriesError that names the file where a hash is not the pinned one.
    """
    result = dict(files)
    expected = {each.name: each for each in pin.patches}
    renew = f"python -m patchseries pin --base {pin.base}"
    for patch in patches:
        if patch.name not in expected:
            raise PatchSeriesError(
                f"{patch.name} is not pinned", where=PIN_NAME, expected="its hashes", command=renew
            )
        patch.apply(result)
        pinned = expected[patch.name].files
        for change in patch.changes:
            found = diff.sha256(result[change.path])
            if pinned.get(change.path) != found:
                raise PatchSeriesError(
                    f"{patch.name} gives another {change.path} than the pin says: {found}",
                    where=PIN_NAME,
                    expected=pinned.get(change.path, "the file to be pinned"),
                    command=renew,
                )
    return result
