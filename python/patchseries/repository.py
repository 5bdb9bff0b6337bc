"""Where the series, the registered tests and the build products lie."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from patchseries.errors import ExitCode, PatchSeriesError

PIN_NAME = "base.toml"
SERIES_NAME = "series"
_DATA = Path(__file__).resolve().parent / "data"


@dataclasses.dataclass(frozen=True)
class Repository:
    """A checkout of this project: `patches/`, `test/registered/`, `build/` (can be made anew).

    The installed tool carries the first two in `patchseries/data/`.
    """

    root: Path

    @classmethod
    def default(cls) -> Repository:
        """What this package was installed with, else the checkout that it lies in."""
        return cls(_DATA if _DATA.is_dir() else Path(__file__).resolve().parents[2])

    @property
    def is_installed(self) -> bool:
        """Part of the installed tool: for reading only."""
        return self.root == _DATA

    def require_checkout(self) -> None:
        """Raise PatchSeriesError (usage) for a command that changes the series or builds in it."""
        if self.is_installed:
            raise PatchSeriesError(
                "the series of an installed tool is for reading only",
                where=self.root,
                expected="a checkout of this project",
                command="the same with --repo CHECKOUT",
                code=ExitCode.USAGE,
            )

    @property
    def patches(self) -> Path:
        return self.root / "patches"

    @property
    def registered(self) -> Path:
        return self.root / "test" / "registered"

    @property
    def build(self) -> Path:
        return cache_folder() if self.is_installed else self.root / "build"

    def bases(self) -> list[str]:
        """Names of the pinned releases, sorted."""
        return sorted(pin.parent.name for pin in self.patches.glob(f"*/{PIN_NAME}"))

    def folder(self, base: str) -> Path:
        """The folder of one base.

        Raises PatchSeriesError (usage) for a base that has no folder.
        """
        folder = self.patches / base
        if not folder.is_dir() or folder.parent != self.patches:
            raise PatchSeriesError(
                f"no such base: {base}",
                where=self.patches,
                expected="one of " + (", ".join(self.bases()) or "(none is there yet)"),
                command="python -m patchseries list",
                code=ExitCode.USAGE,
            )
        return folder

    def only_base(self) -> str:
        """The base to use when none was named.

        Raises PatchSeriesError (usage) unless there is exactly one.
        """
        bases = self.bases()
        if len(bases) != 1:
            raise PatchSeriesError(
                "which base is meant is not clear",
                where=self.patches,
                expected="--base with one of " + (", ".join(bases) or "(none is there yet)"),
                command="python -m patchseries list",
                code=ExitCode.USAGE,
            )
        return bases[0]


def cache_folder() -> Path:
    """Where downloads are kept, shared by all checkouts of this project and by scripts/setup."""
    named = os.environ.get("HICACHE_CACHE")
    if named:
        return Path(named)
    above = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(above) / "sglang-hicache-patches"
