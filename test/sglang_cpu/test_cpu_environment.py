"""What `sglang_cpu.environment` sets, by what the machine can do; and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_cpu
from sglang_cpu import env, probe

PACKAGE = Path(sglang_cpu.__file__).parent


@pytest.fixture
def fake_tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "sglang").mkdir(parents=True)
    (tmp_path / "tree" / "sglang" / "__init__.py").touch()
    return tmp_path / "tree"


@pytest.fixture(autouse=True)
def fresh_probe() -> None:
    probe.stub_folders.cache_clear()


def package(folder: Path, name: str, source: str) -> None:
    """Write a package of one file, and of the submodules that the probes ask for."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(source)


def test_without_gpu(fake_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "accelerator_present", lambda: False)
    monkeypatch.setattr(probe, "stub_folders", lambda: (Path("/stubs"),))
    made = sglang_cpu.environment(fake_tree, {"PYTHONPATH": "/mine", "OMP_NUM_THREADS": "2"})
    assert made["PYTHONPATH"].split(os.pathsep) == [
        str(fake_tree),
        str(PACKAGE / "plugin"),
        str(PACKAGE.parent),
        "/stubs",
        "/mine",
    ]
    assert made["SGLANG_USE_CPU_ENGINE"] == "1"
    assert made["SGLANG_MAMBA_CONV_DTYPE"] == "float32"
    assert made["OMP_NUM_THREADS"] == "2", "what the caller set stays"


def test_with_gpu(fake_tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "accelerator_present", lambda: True)
    assert sglang_cpu.environment(fake_tree, {"A": "b"}) == {"A": "b", "PYTHONPATH": str(fake_tree)}


def test_base_is_left_alone(fake_tree: Path) -> None:
    base = {"PYTHONPATH": "/mine"}
    sglang_cpu.environment(fake_tree, base)
    assert base == {"PYTHONPATH": "/mine"}


def test_no_tree(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"expected a folder that holds sglang/.*patchseries tree"
    ):
        sglang_cpu.environment(tmp_path)


def test_stub_where_nothing_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    assert [folder.name for folder in probe.stub_folders()] == ["kernel", "vision"]


@pytest.mark.parametrize(
    "broken", ["raise ImportError('libcuda.so.1')", "raise RuntimeError('no operators')"]
)
def test_stub_where_the_real_one_cannot_load(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package(tmp_path, "torchvision", broken)
    package(tmp_path, "sgl_kernel", broken)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [folder.name for folder in probe.stub_folders()] == ["kernel", "vision"]


def test_no_stub_where_the_real_one_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(tmp_path, "torchvision", "")
    (tmp_path / "torchvision" / "io.py").touch()
    package(tmp_path / "torchvision", "transforms", "")
    package(tmp_path / "torchvision" / "transforms", "v2", "")
    (tmp_path / "torchvision" / "transforms" / "v2" / "functional.py").touch()
    # a CUDA build of sgl_kernel can be imported on some machines, and still has no operator for
    # the host
    package(tmp_path, "sgl_kernel", "")
    (tmp_path / "sgl_kernel" / "mamba.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [folder.name for folder in probe.stub_folders()] == ["kernel"]


def plugins(pythonpath: list[Path]) -> str:
    code = (
        "from importlib.metadata import entry_points\n"
        "print([(p.name, p.value) for p in entry_points(group='sglang.srt.plugins')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, pythonpath))},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_only_the_environment_shows_the_plugin() -> None:
    assert "sglang_cpu" not in plugins([PACKAGE.parent])
    assert "('sglang_cpu', 'sglang_cpu.server:register')" in plugins(
        [PACKAGE / "plugin", PACKAGE.parent]
    )


def test_settings_are_named_as_sglang_names_them(tree: Path) -> None:
    names = [name for name in env.SETTINGS if name.startswith("SGLANG_")]
    sources = "".join(
        (tree / "sglang" / "srt" / path).read_text() for path in ("environ.py", "utils/common.py")
    )
    assert [name for name in names if name not in sources] == []
