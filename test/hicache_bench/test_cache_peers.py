"""Releases that are measured as they are, and the choice of the tree core."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from hicache_bench import launch, models, peers, trees, workload
from hicache_bench.errors import BenchError
from patchseries.errors import PatchSeriesError
from patchseries.pin import Pin, Wheel
from patchseries.repository import Repository


def test_the_pinned_peers_are_those_that_the_readme_compares_with() -> None:
    found = peers.pins(Repository.default())
    assert set(found) == {"v0.5.18", "v0.5.23"}
    for base, pin in found.items():
        assert pin.version == base.removeprefix("v")
        assert len(pin.wheels) == 3
        assert all(len(wheel.sha256) == 64 for wheel in pin.wheels)


@pytest.mark.parametrize(
    ("text", "name", "core"),
    [
        ("v0.5.23:base", "v0.5.23 as released", None),
        ("v0.5.23:base@rust", "v0.5.23 as released, rust core", "rust"),
        ("v0.5.17:core@python", "v0.5.17 + core, python core", "python"),
    ],
)
def test_the_tree_core_is_chosen_behind_the_tree(text: str, name: str, core: str | None) -> None:
    spec = trees.parse(text)
    assert (spec.name, spec.core) == (name, core)


def test_the_chosen_core_reaches_the_server(tmp_path: Path) -> None:
    folder = tmp_path / "tree" / "sglang"
    folder.mkdir(parents=True)
    for name in ("launch_server.py", "__init__.py"):
        (folder / name).write_text("")
    tree = trees.resolve(trees.parse(f"mine={folder.parent}@rust"))
    checkpoint = models.Checkpoint("m", tmp_path, 2048, 4096)
    spec = launch.spec(
        "m",
        checkpoint,
        tree.path,
        shape=workload.Shape(),
        policy="write_through",
        logs=tmp_path,
        environ=tree.environ,
    )
    assert spec.environ["SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND"] == "rust"


def wheel(version: str) -> tuple[bytes, str]:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("sglang/launch_server.py", f"# {version}\n")
        archive.writestr("sglang/__init__.py", "")
    return data.getvalue(), f"sglang-{version}-py3-none-any.whl"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Repository, Pin, Path]:
    """A repository with one peer, whose wheel lies in the cache already."""
    monkeypatch.setenv("HICACHE_CACHE", str(tmp_path / "cache"))
    data, name = wheel("9.9.9")
    folder = tmp_path / "cache" / "wheels"
    folder.mkdir(parents=True)
    (folder / name).write_bytes(data)
    (tmp_path / "root" / "patches").mkdir(parents=True)
    repository = Repository(tmp_path / "root")
    (repository.patches / peers.FILE).write_text(
        f'[[peers]]\nbase = "v9.9.9"\n[[peers.wheels]]\nfile = "{name}"\n'
        f'sha256 = "{hashlib.sha256(data).hexdigest()}"\n'
    )
    return repository, peers.pins(repository)["v9.9.9"], folder / name


def test_a_peer_is_unpacked_once(world: tuple[Repository, Pin, Path]) -> None:
    repository, pin, archive = world
    tree = peers.cached(pin, repository)
    assert (tree / "sglang" / "launch_server.py").read_text() == "# 9.9.9\n"
    archive.unlink()
    assert peers.cached(pin, repository) == tree
    assert [each.name for each in tree.parent.iterdir()] == [tree.name]


def test_a_wheel_that_is_not_the_pinned_one_is_refused(
    world: tuple[Repository, Pin, Path],
) -> None:
    repository, pin, archive = world
    archive.write_bytes(wheel("9.9.8")[0])
    with pytest.raises(PatchSeriesError, match="SHA-256"):
        peers.cached(pin, repository)
    assert list((repository.build / "trees").glob("*")) == []


def test_a_file_that_cannot_be_used_is_named(world: tuple[Repository, Pin, Path]) -> None:
    repository, _, _ = world
    for text in ("[[peers]]\n", "nonsense", '[[peers]]\nbase = "v1"\nwheels = 3\n'):
        (repository.patches / peers.FILE).write_text(text)
        with pytest.raises(BenchError, match=r"peers\.toml: cannot be used"):
            peers.pins(repository)


def test_no_file_means_no_peers(tmp_path: Path) -> None:
    assert peers.pins(Repository(tmp_path)) == {}


def test_pins_hold_what_the_file_says(world: tuple[Repository, Pin, Path]) -> None:
    _, pin, archive = world
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert pin.wheels == (Wheel(archive.name, sha256),)
