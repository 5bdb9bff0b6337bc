"""Tests that start processes of their own; test_cpu_host.py runs those under host/ in one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tree() -> Path:
    """A folder with sglang/ as released: $SGLANG_TREE, or the one that patchseries keeps."""
    if given := os.environ.get("SGLANG_TREE"):
        return Path(given)
    from patchseries import trees

    return trees.cached("v0.5.17", "base")
