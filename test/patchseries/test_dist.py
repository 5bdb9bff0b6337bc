"""Our own wheel and sdist: reproducible, complete, and what the README says about containers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import unidiff
import world

from patchseries import dist, pin, wheels
from patchseries.repository import Repository

REPOSITORY = Repository.default()
README = REPOSITORY.root / "README.md"
MARKER = "<!-- container -->"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder dist/ of this checkout."""
    folder = tmp_path_factory.mktemp("made") / "dist"
    dist.build(REPOSITORY, folder)
    return folder


def test_same_to_the_byte(made: Path, tmp_path: Path) -> None:
    """Built again from a copy elsewhere, at another time, with other permission bits."""
    copy = tmp_path / "ein anderer Ort"
    ignored = shutil.ignore_patterns(".git", "build", "dist", "__pycache__", ".*_cache")
    shutil.copytree(REPOSITORY.root, copy, ignore=ignored)
    for path in copy.rglob("*"):
        os.utime(path, (2e9, 2e9))
        path.chmod(0o700 if path.is_dir() else 0o600)
    before = os.umask(0o077)
    try:
        again = dist.build(Repository(copy), tmp_path / "dist")
    finally:
        os.umask(before)
    assert sorted(path.name for path in made.iterdir()) == [path.name for path in sorted(again)]
    for path in again:
        assert path.read_bytes() == (made / path.name).read_bytes()


def test_carries_the_series_and_the_tests(made: Path) -> None:
    (wheel,) = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as whole:
        carried = {
            name.removeprefix("patchseries/data/"): whole.read(name)
            for name in whole.namelist()
            if name.startswith("patchseries/data/")
        }
        ours = re.compile(r"\w+-[\d.]+\.dist-info/entry_points")
        (points,) = filter(ours.match, whole.namelist())
        assert "patchseries = patchseries.cli:main" in whole.read(points).decode()
    expected = {
        path.relative_to(REPOSITORY.root).as_posix(): path.read_bytes()
        for folder in (REPOSITORY.patches, REPOSITORY.registered)
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert carried == expected
    (sdist,) = made.glob("*.tar.gz")
    with tarfile.open(sdist) as whole:
        names = {name.partition("/")[2] for name in whole.getnames()}
    assert {*expected, "setup.py", "pyproject.toml", "python/patchseries/cli.py"} <= names


def environment(folder: Path, sglang: Path | None) -> tuple[Path, dict[str, str]]:
    """A fresh environment, offline but for what is in `wheels/`, and what runs in it."""
    venv.create(folder, with_pip=True, symlinks=True)
    (site,) = folder.glob("lib/python3*/site-packages")
    above = Path(unidiff.__file__).parents[1]
    for each in above.glob("unidiff*"):
        shutil.copytree(each, site / each.name)
    variables = {
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
        "HOME": str(folder),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_COMPILE": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    if sglang is not None:
        command = ["pip", "install", "--quiet", "--no-deps", str(sglang)]
        subprocess.run([folder / "bin" / command[0], *command[1:]], env=variables, check=True)
    return site, variables


def test_from_any_folder_without_git_and_torch(
    made: Path, small: world.World, tmp_path: Path
) -> None:
    """The installed tool has its own series; here it is asked about another release."""
    env = tmp_path / "env"
    site, variables = environment(env, None)
    (wheel,) = made.glob("*.whl")
    subprocess.run([env / "bin/pip", "install", "--quiet", str(wheel)], env=variables, check=True)
    variables["PATH"] = str(env / "bin")  # no git
    target = small.unpacked()

    def tool(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(env / "bin" / "patchseries"), *arguments]
        return subprocess.run(
            command, cwd="/", env=variables, capture_output=True, text=True, check=False
        )

    assert tool("list").stdout.startswith("v0.5.17: ")
    assert "file missing" in tool("apply", str(target)).stderr
    assert f"no sglang is installed; {env}" in tool("apply", "--installed").stderr
    repo = ("--repo", str(small.repository.root))
    assert tool(*repo, "apply", str(target)).returncode == 0
    assert tool(*repo, "reverse", str(target)).returncode == 0
    refused = tool("pin")
    assert (refused.returncode, "for reading only" in refused.stderr) == (2, True)
    assert not list((site / "patchseries").glob("build*"))


def container_lines(text: str) -> list[str]:
    """What the RUN lines behind the marker run; COPY lines are for `copied`."""
    block = text.partition(MARKER)[2].partition("```dockerfile\n")[2].partition("```")[0]
    return re.sub(r"\\\n\s*", "", block).splitlines()


def test_container_lines_of_the_readme(made: Path, tmp_path: Path) -> None:
    """Each RUN line as it stands there, in an environment that holds the released sglang."""
    text = README.read_text()
    if MARKER not in text:
        pytest.skip(f"README.md holds no {MARKER}")
    pinned = pin.read(REPOSITORY.folder("v0.5.17"))
    sglang = wheels.fetch(pinned, wheels.for_this_python(pinned))
    env, inside = tmp_path / "env", tmp_path / "inside"
    site, variables = environment(env, sglang)
    inside.mkdir()
    ran = 0
    for line in container_lines(text):
        instruction, _, rest = line.partition(" ")
        if instruction == "COPY":
            source, target = rest.split()
            assert source == "dist/sglang_hicache_patches-*.whl"
            assert not Path(target).is_absolute()
            (inside / target).mkdir()
            for file in made.glob(source.removeprefix("dist/")):
                shutil.copy(file, inside / target)
        elif instruction == "RUN":
            subprocess.run(["/bin/sh", "-ec", rest], cwd=inside, env=variables, check=True)
            ran += 1
    assert ran >= 2
    assert (site / ".patchseries/state.json").is_file()
    patched = (site / "sglang/srt/mem_cache/unified_cache/unified_tree_core.py").read_text()
    assert "_needs_incremental_component_backup" in patched
    # The line that verifies fails where the series is not in.
    reverse = [env / "bin" / "patchseries", "reverse", "--installed"]
    subprocess.run(reverse, env=variables, check=True)
    verify = next(line for line in container_lines(text) if "--expect" in line).partition(" ")[2]
    verify = verify.rpartition("&& ")[2]
    done = subprocess.run(["/bin/sh", "-ec", verify], cwd=inside, env=variables, check=False)
    assert done.returncode == 1
