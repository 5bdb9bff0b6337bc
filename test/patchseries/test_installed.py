"""A sglang that pip installed into a real environment: byte code, RECORD, editable, links."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import setuptools
import unidiff
import world

PYTHON = Path(__file__).resolve().parents[2] / "python"
ASK = "from sglang.srt import pool; print(pool.SIZE)"


class Environment:
    """A virtual environment with what the tool needs, and the small sglang installed by pip."""

    def __init__(self, small: world.World, name: str = "env", *, editable: str = "") -> None:
        self.small = small
        self.folder = small.folder / name
        venv.create(self.folder, symlinks=True)
        self.python = self.folder / "bin" / "python"
        (self.site,) = self.folder.glob("lib/python3*/site-packages")
        shutil.copytree(Path(unidiff.__file__).parent, self.site / "unidiff")
        if editable:
            above = Path(setuptools.__file__).parents[1]
            for each in (*above.glob("setuptools*"), above / "_distutils_hack"):
                shutil.copytree(each, self.site / each.name)
            source = str(self.source(editable))
            self.pip("install", "--no-build-isolation", "--editable", source)
        else:
            self.pip("install", str(small.wheel))

    def source(self, packages: str) -> Path:
        """A checkout that pip can install; packages: how its project finds its packages."""
        checkout = self.small.checkout("checkout of sglang")
        project = '[build-system]\nrequires = ["setuptools"]\n[project]\nname = "sglang"\n'
        project += f'version = "1.0"\n[tool.setuptools{packages}\n'
        world.write(checkout, {"python/pyproject.toml": project})
        return checkout / "python"

    def pip(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "pip", "--python", str(self.python), *arguments]
        command += ["--no-index", "--no-deps"] if arguments[0] == "install" else []
        extra = {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = subprocess.run(
            command, env={**os.environ, **extra}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    def tool(
        self, *arguments: str, code: int = 0, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        command = [str(self.python), "-m", "patchseries"]
        command += ["--repo", str(self.small.repository.root), *arguments]
        done = subprocess.run(
            command,
            cwd=cwd or self.small.folder,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(PYTHON)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done

    def size(self, **extra: str) -> int:
        """What a fresh process imports: 4 as released, 8 with the first patch."""
        done = subprocess.run(
            [str(self.python), "-c", ASK],
            env={"PATH": os.environ["PATH"], **extra},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        return int(done.stdout)

    def files(self) -> dict[str, tuple[str, bytes, int]]:
        """What is installed, byte code left out."""
        return {
            name: each
            for name, each in world.snapshot(self.site).items()
            if "__pycache__" not in name and "patchseries" not in name
        }


def test_installed_by_pip(small: world.World) -> None:
    env = Environment(small)
    before = env.files()
    assert env.size() == 4
    said = env.tool("check", "--installed").stdout
    assert said.startswith(f"{env.site}: apply would end with: applied v1.0")
    assert env.files() == before
    env.tool("apply", "--installed")
    assert env.size() == 8
    assert env.tool("status", "--installed", "--expect", "applied").stdout.startswith(str(env.site))
    env.tool("status", "--installed", "--expect", "not-applied", code=1)
    env.tool("reverse", "--installed")
    assert env.size() == 4
    assert env.files() == before


@pytest.mark.parametrize(
    ("packages", "hook"),
    [
        ('.packages.find]\nwhere = ["."]', "__editable__.sglang-1.0.pth"),
        (
            ']\npackages = ["sglang", "sglang.srt"]\npackage-dir = {sglang = "sglang"}',
            "__editable___sglang_1_0_finder.py",
        ),
    ],
)
def test_installed_editable(packages: str, hook: str, small: world.World) -> None:
    env = Environment(small, editable=packages)
    assert (env.site / hook).is_file()
    checkout = small.folder / "checkout of sglang"
    env.tool("apply", "--installed")
    assert env.size() == 8
    assert (checkout / ".git/patchseries/state.json").is_file()
    assert env.tool("status", str(checkout), "--expect", "applied")
    env.tool("reverse", "--installed")
    assert env.size() == 4


def test_none_is_installed(small: world.World) -> None:
    env = Environment(small)
    env.pip("uninstall", "--yes", "sglang")
    said = env.tool("check", "--installed", code=2, cwd=small.unpacked()).stderr
    assert f"no sglang is installed; {env.python}; expected" in said


def test_current_folder_with_another_sglang(small: world.World) -> None:
    env = Environment(small)
    here = small.unpacked("here")
    done = env.tool("apply", "--installed", cwd=here)
    assert f"meant is {env.site}/sglang; {here}/sglang would be imported instead" in done.stderr
    assert env.tool("status", str(here), "--expect", "not-applied")
    assert env.size() == 8
    inside = env.tool("status", "--installed", "--expect", "applied", cwd=env.site)
    assert inside.stderr == ""


def test_target_or_installed(small: world.World) -> None:
    env = Environment(small)
    assert "not allowed with" in env.tool("apply", "--installed", str(env.site), code=2).stderr
    assert "required" in env.tool("apply", code=2).stderr


@pytest.mark.parametrize(
    ("mode", "beside"),
    [("timestamp", False), ("unchecked-hash", False), ("unchecked-hash", True)],
)
def test_stale_byte_code(mode: str, beside: bool, small: world.World) -> None:
    """Compiled ahead, as images are; unchecked byte code is never compared with its source."""
    env = Environment(small)

    def compile_all() -> None:
        command = [str(env.python), "-m", "compileall", "-q", "-f", str(env.site / "sglang")]
        command += ["--invalidation-mode", mode, *(["-b"] if beside else [])]
        subprocess.run(command, check=True)

    compile_all()
    assert env.size() == 4
    env.tool("apply", "--installed")
    assert env.size() == 8
    gone = "import importlib.util; print(importlib.util.find_spec('sglang.srt.old'))"
    assert subprocess.check_output([str(env.python), "-c", gone]) == b"None\n"
    compile_all()
    env.tool("reverse", "--installed")
    assert env.size() == 4
    assert not list((env.site / "sglang/srt").rglob("state.*.pyc"))
    assert not (env.site / "sglang/srt/hybrid").exists()


def test_without_byte_code(small: world.World) -> None:
    env = Environment(small)
    for compiled in (env.site / "sglang").rglob("__pycache__"):
        shutil.rmtree(compiled)
    env.tool("apply", "--installed")
    assert env.size(PYTHONDONTWRITEBYTECODE="1") == 8
    env.tool("reverse", "--installed")
    assert env.size(PYTHONDONTWRITEBYTECODE="1") == 4
    assert not list((env.site / "sglang").rglob("__pycache__"))


def rows(env: Environment) -> list[str]:
    return (env.site / "sglang-1.0.dist-info/RECORD").read_text().splitlines()


def test_record_is_true_while_applied(small: world.World) -> None:
    env = Environment(small)
    before = (env.site / "sglang-1.0.dist-info/RECORD").read_bytes()
    env.tool("apply", "--installed")
    (found,) = importlib.metadata.distributions(name="sglang", path=[str(env.site)])
    checked = 0
    for each in found.files or []:
        if each.hash is not None and each.name != "old.py":
            content = each.read_binary()
            assert (each.size, each.hash.mode) == (len(content), "sha256"), each
            assert f"={each.hash.value}" in world.record_row(str(each), content), each
            checked += 1
    assert checked > 8
    assert any(row.startswith("sglang/srt/hybrid/state.py,sha256=") for row in rows(env))
    assert "sglang/srt/hybrid/state.py" in env.pip("show", "--files", "sglang")
    assert env.pip("check") == "No broken requirements found.\n"
    env.tool("reverse", "--installed")
    assert (env.site / "sglang-1.0.dist-info/RECORD").read_bytes() == before


def test_record_line_of_a_file_that_others_changed_stays(small: world.World) -> None:
    env = Environment(small)
    record = env.site / "sglang-1.0.dist-info/RECORD"
    strange = record.read_text().replace("srt/pool.py,sha256=", "srt/pool.py,sha256=x")
    record.write_text(strange)
    env.tool("apply", "--installed")
    assert [row for row in rows(env) if "pool.py" in row] == [
        row for row in strange.splitlines() if "pool.py" in row
    ]
    env.tool("reverse", "--installed")
    assert record.read_text() == strange


def test_uninstall_leaves_nothing(small: world.World) -> None:
    env = Environment(small)
    empty = {name for name in env.files() if "sglang" not in name}
    env.tool("apply", "--installed")
    env.pip("uninstall", "--yes", "sglang")
    assert set(env.files()) == empty
    assert not (env.site / ".patchseries").exists()
    assert "no sglang here" in env.tool("status", str(env.site), code=2).stderr


def test_reinstall_is_as_released(small: world.World) -> None:
    env = Environment(small)
    before = env.files()
    env.tool("apply", "--installed")
    env.pip("install", "--force-reinstall", str(small.wheel))
    assert env.files() == before
    assert env.tool("status", "--installed", "--expect", "not-applied").stdout.count("\n") == 1
    env.tool("apply", "--installed")
    assert env.size() == 8
    env.tool("reverse", "--installed")
    assert env.files() == before


def test_uninstalled_by_hand_says_what_is_left(small: world.World) -> None:
    env = Environment(small)
    env.tool("apply", "--installed")
    shutil.rmtree(env.site / "sglang")
    said = env.tool("status", str(env.site), code=2).stderr
    assert "sglang is gone from here" in said
    assert f"rm -r '{env.site}/.patchseries'" in said


@pytest.mark.parametrize("linked", ["site-packages", "sglang"])
def test_symlinked(linked: str, small: world.World) -> None:
    env = Environment(small, "ein Ordner mit Umläuten")
    place = env.site if linked == "site-packages" else env.site / "sglang"
    real = small.folder / "wo anders" / place.name
    real.parent.mkdir()
    place.rename(real)
    place.symlink_to(real)
    before = world.snapshot(real)
    env.tool("apply", str(env.site))
    assert env.size() == 8
    env.tool("status", "--installed", "--expect", "applied")
    env.tool("status", str(real.parent if linked == "sglang" else real), "--expect", "applied")
    assert place.is_symlink()
    env.tool("reverse", "--installed")
    after = {name: each for name, each in world.snapshot(real).items() if "pycache" not in name}
    assert after == {name: each for name, each in before.items() if "pycache" not in name}
