"""A small base with a series of three patches, made once with real git, copied for each test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import world


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> world.World:
    """Made once; nobody changes it."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("template")
        patch.setenv("HICACHE_CACHE", str(folder / "cache"))
        return world.make(folder)


@pytest.fixture
def small(template: world.World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> world.World:
    """A repository with the series, its wheel in the cache, and room for targets."""
    shutil.copytree(template.folder, tmp_path / "world", symlinks=True)
    monkeypatch.setenv("HICACHE_CACHE", str(tmp_path / "world" / "cache"))
    return world.World(tmp_path / "world")
