"""Names of trees, and what is read from their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache_bench import trees
from hicache_bench.errors import BenchError, UsageError

PATCHED = "def _should_backup_after_insert(self, state):\n    ...\n"
CORE_FILE = "sglang/srt/mem_cache/unified_cache/unified_tree_core.py"


def make(folder: Path, core: str = "def _inc_hit_count_and_check():\n    pass\n") -> Path:
    for name, text in {
        "sglang/launch_server.py": "",
        CORE_FILE: core,
        "sglang/a.py": "a",
        "elsewhere.py": "x",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("text", "name", "base", "through"),
    [
        ("v0.5.17:base", "v0.5.17 as released", "v0.5.17", "base"),
        ("v0.5.17:core", "v0.5.17 + core", "v0.5.17", "core"),
        ("v0.5.17:HiCache-x.patch", "v0.5.17 + HiCache-x.patch", "v0.5.17", "HiCache-x.patch"),
    ],
)
def test_a_base_and_how_far_to_patch_it(text: str, name: str, base: str, through: str) -> None:
    assert trees.parse(text) == trees.TreeSpec(name, base, through)


def test_a_folder_with_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sub", "C:x"):
        (tmp_path / name).mkdir()
    assert trees.parse(f"mine={tmp_path}/./sub") == trees.TreeSpec("mine", path=tmp_path / "sub")
    monkeypatch.chdir(tmp_path)
    assert trees.parse("mine=C:x").path == tmp_path / "C:x"


@pytest.mark.parametrize(
    "text", ["", "v0.5.17", "v0.5.17:", ":core", "core", "0.5.17:core", "=/tmp", "a b=/tmp"]
)
def test_other_words_are_refused_with_the_value_and_a_command(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        trees.parse(text)
    assert f"--trees {text}: " in str(caught.value)
    assert "type: --trees " in str(caught.value)


def test_two_trees_of_one_name_are_refused() -> None:
    with pytest.raises(UsageError, match=r"two trees are called 'v0\.5\.17 as released'"):
        trees.parse_all(["v0.5.17:base", "v0.5.17:core", "v0.5.17:base"])


def test_a_folder_without_sglang_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"no sglang/launch_server\.py") as caught:
        trees.resolve(trees.parse(f"mine={tmp_path}"))
    assert str(tmp_path) in str(caught.value)


def test_the_digest_is_of_names_and_bytes_of_sglang_alone(tmp_path: Path) -> None:
    first = trees.resolve(trees.parse(f"one={make(tmp_path / 'one')}"))
    second = make(tmp_path / "two")

    def again() -> str:
        return trees.resolve(trees.parse(f"two={second}")).sha256

    assert again() == first.sha256
    (second / "elsewhere.py").write_text("y")
    cache = second / "sglang" / "__pycache__"
    cache.mkdir()
    (cache / "a.pyc").write_text("compiled")
    assert again() == first.sha256
    (second / "sglang" / "a.py").write_text("b")
    changed = again()
    assert changed != first.sha256
    (second / "sglang" / "a.py").rename(second / "sglang" / "b.py")
    assert again() not in (changed, first.sha256)


def test_component_only_backup_is_recognised_by_its_function(tmp_path: Path) -> None:
    plain = make(tmp_path / "plain")
    named = make(tmp_path / "named", "# calls _should_backup_after_insert(state)\n")
    patched = make(tmp_path / "patched", PATCHED)
    found = [trees.resolve(trees.parse(f"x={folder}")) for folder in (plain, named, patched)]
    assert [tree.incremental for tree in found] == [False, False, True]
    assert [tree.group for tree in found] == ["released", "released", "core"]


@pytest.mark.parametrize(
    ("line", "group"),
    [
        ("    SGLANG_HICACHE_INCREMENTAL_BACKUP = EnvBool(True)", "extended"),
        ("    # not SGLANG_HICACHE_INCREMENTAL_BACKUP = EnvBool(True)", "core"),
        ("    SGLANG_OTHER = EnvBool(True)", "core"),
    ],
)
def test_group_extended_is_recognised_by_its_switch(tmp_path: Path, line: str, group: str) -> None:
    folder = make(tmp_path, PATCHED)
    (folder / "sglang" / "srt" / "environ.py").write_text(f"class Envs:\n{line}\n")
    assert trees.resolve(trees.parse(f"x={folder}")).group == group


@pytest.mark.parametrize(
    ("version", "group"),
    [("0.5.17", "core"), ("0.5.17+hicache.1", "core"), ("0.5.23", "peer"), ("0.5.1", "peer")],
)
def test_a_release_without_a_series_is_a_peer(tmp_path: Path, version: str, group: str) -> None:
    folder = make(tmp_path, PATCHED)
    (folder / "sglang" / "_version.py").write_text(
        f"__version__: str\n__version__ = version = '{version}'\n"
    )
    assert trees.resolve(trees.parse(f"x={folder}")).group == group


@pytest.mark.parametrize(
    ("through", "group"), [("base", "released"), ("core", "core"), ("extended", "extended")]
)
def test_the_trees_of_the_series_have_their_groups(through: str, group: str) -> None:
    assert trees.resolve(trees.parse(f"v0.5.17:{through}")).group == group


def test_a_patch_that_is_not_in_the_series_is_one_clear_error() -> None:
    with pytest.raises(BenchError, match=r"v0\.5\.17:no-such-patch could not be built"):
        trees.resolve(trees.parse("v0.5.17:no-such-patch"))
