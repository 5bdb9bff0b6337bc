"""Runs host/ under the pytest plugin, in a process of its own, so that no other test is patched."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_cpu
from sglang_cpu import probe

HOST = Path(__file__).parent / "host"

# What sglang looks at to tell the CUDA build of torch from the CPU build; the rest of the
# difference is what it raises where there is no driver, and nothing may get that far.
CUDA_BUILD = "import torch; torch.version.cuda = torch.version.cuda or '13.0'"


@pytest.mark.skipif(probe.accelerator_present(), reason="with a GPU nothing stands in")
@pytest.mark.parametrize("build", ["as it is", "as the CUDA build"])
def test_host_suite(build: str, tree: Path) -> None:
    if "sglang_cpu.pytest_plugin" in sys.modules:
        pytest.skip("host/ runs in this very process")
    prelude = CUDA_BUILD if build == "as the CUDA build" else "pass"
    arguments = ["-q", "-p", "sglang_cpu.pytest_plugin", "-p", "no:cacheprovider", str(HOST)]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{prelude}\nimport sys, pytest\nsys.exit(pytest.main({arguments}))",
        ],
        env=sglang_cpu.environment(tree),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 100
    assert "skipped" not in done.stdout
