"""The fuzzer as its user sees it: on the whole series, and on core alone, which it must fail."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hicache_fuzz import api, cli
from patchseries import trees
from sglang_cpu import probe

HOST = Path(__file__).parent / "host"
CONFIG = "mamba-page1-write_through"

no_gpu = pytest.mark.skipif(
    probe.accelerator_present(), reason="transfers are held where sglang_cpu makes the copies"
)


def fuzz(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hicache_fuzz", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@no_gpu
def test_every_configuration() -> None:
    if "sglang_cpu.pytest_plugin" in sys.modules:
        pytest.skip("host/ runs in this very process")
    arguments = ["-q", "-p", "sglang_cpu.pytest_plugin", "-p", "no:cacheprovider", str(HOST)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments],
        env=api.environment(trees.cached("v0.5.17", None)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) > 30
    assert "skipped" not in done.stdout


@no_gpu
def test_core_loses_states_and_the_script_says_how(tmp_path: Path) -> None:
    """The rule that the whole series keeps. But for it, nothing is wrong with that run."""
    core = ("--tree", "v0.5.17:core", "--out", str(tmp_path))
    found = fuzz(*core, "--keeps-states", "yes", "--config", CONFIG, "--seed", "1")
    assert found.returncode == 1, found.stdout + found.stderr
    assert re.search(f"FAILED {CONFIG}, seed 1: AssertionError: state (lost|owed)", found.stdout)
    (path,) = tmp_path.glob("*.py")
    script = [line for line in path.read_text().split("\n") if line.startswith("state.")]
    assert 3 <= len(script) <= 8, script
    assert f"--replay {path}" in found.stdout
    without = fuzz(*core, "--replay", str(path), "--keeps-states", "no")
    assert without.returncode == 0, without.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tree", "nowhere"], "--tree nowhere: expected a folder that holds sglang/"),
        (["--tree", "v0.5.17:nothing"], "--tree v0.5.17:nothing: "),
        (["--config", "mamba"], "no configuration 'mamba'; expected one of: mamba-page1-"),
        (["--steps", "0"], "--steps 0: expected at least 1; type: scripts/fuzz --steps"),
        (["--replay", "missing.py"], "missing.py: "),
    ],
)
def test_refusals(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert message in capfd.readouterr().err
