"""The versions that files have along a run of patches, by hash, and the way back down."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from patchseries import diff
from patchseries.errors import PatchSeriesError
from patchseries.series import Patch


@dataclasses.dataclass(frozen=True)
class Ladder:
    """Patches with what each makes of its files.

    released: path to hash before the first patch, of every file that some patch touches.
    patches: in order. results: for each patch, path to hash after it, of the files that it touches.
    """

    released: Mapping[str, str]
    patches: tuple[Patch, ...]
    results: tuple[Mapping[str, str], ...]

    def after(self, count: int) -> dict[str, str]:
        """Path to hash of every file after the first count patches."""
        hashes = dict(self.released)
        for result in self.results[:count]:
            hashes.update(result)
        return hashes

    def versions(self, path: str) -> tuple[str, ...]:
        """Every hash that the file has along the way, as released first."""
        return (self.released[path], *(each[path] for each in self.results if path in each))

    def fits(self, hashes: Mapping[str, str]) -> int | None:
        """After how many patches every file has just these hashes; the most if several."""
        now = {path: hashes[path] for path in self.released}
        for count in range(len(self.patches), -1, -1):
            if now == self.after(count):
                return count
        return None

    def rewind(self, path: str, content: bytes | None) -> bytes | None:
        """One file as released, from whichever version along the way it is.

        Raises PatchSeriesError for a file that is none of them.
        """
        versions = self.versions(path)
        found = diff.sha256(content)
        if found not in versions:
            raise PatchSeriesError(
                f"not a version of this file that the patches know: {found}",
                where=path,
                expected=" or ".join(versions),
            )
        changes = [
            change for patch in self.patches for change in patch.changes if change.path == path
        ]
        for change in reversed(changes[: versions.index(found)]):
            content = change.reverse().apply(content)
        if diff.sha256(content) != self.released[path]:
            raise PatchSeriesError(
                f"taking the patches out gives another file: {diff.sha256(content)}",
                where=path,
                expected=self.released[path],
            )
        return content
